"""A file system that knows its syncs: a disk that hangs or is slow is found by them."""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence

from storage.file_system import File, FileSystem, Lock


class WatchedSyncs:
    """Path and beginning of each sync that has not returned, and how long the others have taken. May be used
    by several threads."""

    def __init__(self, bounds_s: Sequence[float] = (), now_s: Callable[[], float] = time.monotonic) -> None:
        """bounds_s: ascending, of `counts`. now_s(): seconds of a clock that is never set."""
        self._bounds_s = bounds_s
        self._now_s = now_s
        self._lock = threading.Lock()
        self._running: dict[object, tuple[float, str]] = {}
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def longest(self) -> tuple[float, str]:
        """Return how long the oldest one has waited, in seconds, and the path of its file or folder; 0 and ""
        without any."""
        with self._lock:
            now_s = self._now_s()
            began_s, path = min(self._running.values(), default=(now_s, ""))
        return now_s - began_s, path

    def ended(self) -> tuple[list[int], float]:
        """Return how many syncs have taken up to each of the bounds, and longer, and the seconds of all."""
        with self._lock:
            return list(self._counts), self._sum_s

    def run(self, path: str, sync: Callable[[], None]) -> None:
        """Call `sync` of that file or folder. Raises as it does."""
        key = object()
        with self._lock:
            began_s = self._now_s()
            self._running[key] = (began_s, path)
        try:
            sync()
        finally:
            with self._lock:
                took_s = self._now_s() - began_s
                del self._running[key]
                self._counts[bisect_left(self._bounds_s, took_s)] += 1
                self._sum_s += took_s


class WatchedFile:
    """storage.file_system.File whose syncs are watched."""

    def __init__(self, file: File, path: str, syncs: WatchedSyncs) -> None:
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

    def __init__(self, files: FileSystem, syncs: WatchedSyncs) -> None:
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
