"""Bounds of terms and epochs that another node names. PURE.

A term grows by one for each election, so no group gets near these bounds. A message beyond them is malformed
or forged; if a node adopted it, the next election would exceed the 64 bits that a term has on disk.
"""

from typing import Final

TERM_MAX: Final = 1 << 62
TERM_UNKNOWN: Final = TERM_MAX + 1  # of a node that may have lost its own
TERM_JUMP_MAX: Final = 1 << 40  # above the own term: tens of thousands of years of elections


def is_plausible_term(own: int, named: int) -> bool:
    """Return False for a term or epoch of another node that must not be adopted."""
    return named <= min(own + TERM_JUMP_MAX, TERM_MAX)
