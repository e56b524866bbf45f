"""Creation time of a file as the file system records it: statx(2), which the os module does not offer."""

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_AT_FDCWD: Final = -100
_STATX_BTIME: Final = 0x800
_SIZE_BYTES: Final = 256  # of struct statx
_MASK: Final = struct.Struct("I")  # its first field: what the file system has filled in
_BTIME: Final = struct.Struct("qI")  # seconds, nanoseconds
_BTIME_OFFSET: Final = 80


def _find_statx() -> Callable[..., int] | None:
    try:
        found: Any = ctypes.CDLL(None, use_errno=True).statx
    except (AttributeError, OSError):
        return None  # another system than Linux, or an old C library
    found.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    found.restype = ctypes.c_int
    return found  # type: ignore[no-any-return]


_statx = _find_statx()


def birth_time(path: str) -> str:
    """Return seconds and nanoseconds of the file's creation; "" where it is not recorded. Raises OSError."""
    seconds = getattr(Path(path).stat(), "st_birthtime", None)  # macOS, FreeBSD
    if seconds is not None:
        return repr(seconds)
    if _statx is None:
        return ""
    buffer = ctypes.create_string_buffer(_SIZE_BYTES)
    if _statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer) != 0:
        return ""
    if not _MASK.unpack_from(buffer)[0] & _STATX_BTIME:
        return ""
    whole, nanoseconds = _BTIME.unpack_from(buffer, _BTIME_OFFSET)
    return f"{whole}.{nanoseconds:09d}"
