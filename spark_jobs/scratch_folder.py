"""Scratch folders: each belongs to one process, and goes with it.

A process that is killed leaves its own, which the next one of that user removes. A living process holds the
lock of a file in its folder; the operating system releases it in every case.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

LOCK: Final = "commitlog-lock"  # exists only once it is locked; a folder without it is in use or not ours
_held: dict[Path, int] = {}  # by folder of this process: the descriptor of its lock


def make_scratch(prefix: str, parent: Path | None = None) -> Path:
    """Return a new folder whose name begins with `prefix`, and remove those of processes that were killed.

    parent: None for the place of temporary files. Raises OSError.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent.absolute()
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # removed meanwhile, without a lock, or in use
            _remove_abandoned(folder)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    unlocked = folder / f"{LOCK}.new"
    lock = _held[folder] = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # a file system without locks: nothing removes the folder later
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(folder / LOCK)
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove a folder of this process, as far as that is possible."""
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _held.pop(folder, None)) is not None:
        os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user whose process has ended. No link is followed. Raises OSError."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
