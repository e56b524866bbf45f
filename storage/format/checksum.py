"""CRC32C of any buffer, without copying it."""

from typing import Any

import google_crc32c
import numpy as np

from storage.file_system import Bytes


def _readable(data: Bytes) -> Any:
    """The C function does not accept a memoryview, but accepts an array over one."""
    return data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)


def crc32c(data: Bytes) -> int:
    """Return the CRC32C (Castagnoli) of the buffer, 0 to 2**32 - 1."""
    return int(google_crc32c.value(_readable(data)))


def extend_crc32c(crc: int, data: Bytes) -> int:
    """Return the CRC32C of the bytes of which `crc` is the checksum, followed by `data`."""
    return int(google_crc32c.extend(crc, _readable(data)))
