"""Units of size; the index of no record; the time of no deadline."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

NO_INDEX: Final = -1  # begin_index and end_index of an empty log; the index before the first record
NEVER_MS: Final = 1 << 62  # deadline of work without one
