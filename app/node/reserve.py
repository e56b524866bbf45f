"""Space that a node holds back on its disk, so that a full disk can be emptied again.

DATA/reserve is a file of allocated, unused blocks. Records that the service itself needs (terms, members,
trims, fences), votes, checkpoints and snapshots take space from it when the disk is full; clients' records do
not. A write without space releases a part of the file and is repeated. While a part of it is in use, leaders
refuse clients' records, and the node tries to restore it.
"""

import asyncio
import logging
import shutil
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from app.pauses import rest
from storage.errors import DiskError, StorageFull
from storage.file_system import Bytes, File, FileSystem, Lock
from storage.format.segment_format import segment_offset
from storage.units import MIB

logger = logging.getLogger(__name__)

RESERVE_NAME: Final = "reserve"
RESTORE_INTERVAL_S: Final = 1.0
_STEP_MIN_BYTES: Final = MIB


def disk_bytes_of(folder: Path) -> int:
    """Return the size of the disk that the folder is on, or will be on when it is created. Raises OSError."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).total


class Reserve:
    """May be used by several threads. Invariant: at most `size_bytes` are held back."""

    def __init__(self, files: FileSystem, path: str, size_bytes: int) -> None:
        """size_bytes: 0 holds nothing back."""
        self._files = files
        self._path = path
        self.size_bytes = size_bytes
        self._held_bytes = size_bytes
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def in_use(self) -> bool:
        return self._held_bytes < self.size_bytes

    def fit_to(self, disk_bytes: int) -> None:
        """Hold back no more than a sixteenth of a small disk."""
        self.size_bytes = self._held_bytes = min(self.size_bytes, disk_bytes // 16)

    async def keep(self) -> None:
        """Restore the used part, once a second, as long as the node runs."""
        while True:
            await rest(RESTORE_INTERVAL_S)
            if self.in_use:
                try:
                    await asyncio.to_thread(self.restore)
                except DiskError as error:
                    logger.error("the reserve cannot be restored: %s", error)

    def restore(self) -> bool:
        """Hold back all of it again; return whether there was space. Blocks. Raises DiskError."""
        with self._lock:
            with closing(self._files.open(self._path, create=True)) as file:
                held_bytes = file.size()
                if held_bytes > self.size_bytes:
                    file.truncate(self.size_bytes)
                elif held_bytes < self.size_bytes:
                    try:
                        file.allocate(self.size_bytes)
                    except StorageFull:
                        file.truncate(held_bytes)
                        if not self.in_use:
                            logger.error(
                                "the disk has no room for the reserve: appends are refused; free space on "
                                "it, or set a smaller [disk] reserve_bytes",
                                extra={"bytes": self.size_bytes, "held_bytes": held_bytes},
                            )
                        self._held_bytes = held_bytes
                        return False
            if self.in_use:
                logger.info("the disk has room again", extra={"reserve_bytes": self.size_bytes})
            self._held_bytes = self.size_bytes
            return True

    def release(self, *, keep_bytes: int = 0) -> bool:
        """Release half of what is held, down to keep_bytes; return False if nothing more can be released."""
        with self._lock:
            if self._held_bytes <= keep_bytes:
                return False
            if not self.in_use:
                logger.error("the disk is full: the reserve is in use", extra={"bytes": self.size_bytes})
            half = self._held_bytes // 2
            held_bytes = max(keep_bytes, half if half >= _STEP_MIN_BYTES else 0)
            try:
                with closing(self._files.open(self._path)) as file:
                    file.truncate(held_bytes)
            except DiskError as error:
                logger.error("the reserve cannot be used: %s", error)
                return False
            self._held_bytes = held_bytes
            return True


class ReservedFile:
    """storage.file_system.File whose writes may use the reserve."""

    def __init__(self, file: File, reserve: Reserve) -> None:
        self._file = file
        self._reserve = reserve
        self.read = file.read
        self.view = file.view
        self.later_view = file.later_view
        self.drop_cache = file.drop_cache
        self.size = file.size
        self.sync = file.sync
        self.allocate = file.allocate
        self.truncate = file.truncate
        self.close = file.close

    def pwrite(self, data: Bytes | Sequence[Bytes], offset: int) -> None:
        while True:
            try:
                self._file.pwrite(data, offset)
                return
            except StorageFull:
                if not self._reserve.release():
                    raise


class ReservedFiles:
    """storage.file_system.FileSystem: the small files of a node use its reserve; segments of logs do not."""

    def __init__(self, files: FileSystem, reserve: Reserve) -> None:
        self._files = files
        self._reserve = reserve
        self.read = files.read
        self.exists = files.exists
        self.list = files.list
        self.sizes = files.sizes
        self.make_folders = files.make_folders
        self.rename = files.rename
        self.remove = files.remove
        self.remove_folder = files.remove_folder
        self.sync_folder = files.sync_folder
        self.boot_id = files.boot_id
        self.created_at = files.created_at

    def open(self, path: str, create: bool = False) -> File:
        file = self._files.open(path, create)
        is_segment = segment_offset(path.rpartition("/")[2]) is not None
        return file if is_segment else ReservedFile(file, self._reserve)

    def lock(self, path: str) -> Lock:
        return self._files.lock(path)
