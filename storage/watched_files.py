"""A file system that knows its syncs in progress: a disk that hangs is found by them."""

import threading
import time
from collections.abc import Callable

from storage.file_system import File, FileSystem, Lock


class SyncsInProgress:
    """Path and beginning of each sync that has not returned. May be used by several threads."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        """now_s(): seconds of a clock that is never set."""
        self._now_s = now_s
        self._lock = threading.Lock()
        self._running: dict[object, tuple[float, str]] = {}

    def longest(self) -> tuple[float, str]:
        """Return how long the oldest one has waited, in seconds, and the path of its file or folder; 0 and ""
        without any."""
        with self._lock:
            now_s = self._now_s()
            began_s, path = min(self._running.values(), default=(now_s, ""))
        return now_s - began_s, path

    def run(self, path: str, sync: Callable[[], None]) -> None:
        """Call `sync` of that file or folder. Raises as it does."""
        key = object()
        with self._lock:
            self._running[key] = (self._now_s(), path)
        try:
            sync()
        finally:
            with self._lock:
                del self._running[key]


class WatchedFile:
    """storage.file_system.File whose syncs are watched."""

    def __init__(self, file: File, path: str, syncs: SyncsInProgress) -> None:
        self._file = file
        self._path = path
        self._syncs = syncs
        self.pwrite = file.pwrite
        self.read = file.read
        self.view = file.view
        self.later_view = file.later_view
        self.drop_cache = file.drop_cache
        self.size = file.size
        self.allocate = file.allocate
        self.truncate = file.truncate
        self.close = file.close

    def sync(self) -> None:
        self._syncs.run(self._path, self._file.sync)


class WatchedFiles:
    """storage.file_system.FileSystem whose syncs are watched."""

    def __init__(self, files: FileSystem, syncs: SyncsInProgress) -> None:
        self._files = files
        self._syncs = syncs
        self.read = files.read
        self.exists = files.exists
        self.list = files.list
        self.sizes = files.sizes
        self.rename = files.rename
        self.remove = files.remove
        self.remove_folder = files.remove_folder
        self.boot_id = files.boot_id
        self.created_at = files.created_at

    def open(self, path: str, create: bool = False) -> File:
        return WatchedFile(self._files.open(path, create), path, self._syncs)

    def make_folders(self, path: str) -> None:
        self._syncs.run(path, lambda: self._files.make_folders(path))  # it syncs folders

    def sync_folder(self, path: str) -> None:
        self._syncs.run(path, lambda: self._files.sync_folder(path))

    def lock(self, path: str) -> Lock:
        return self._files.lock(path)
