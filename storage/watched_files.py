"""A file system that knows its syncs in progress: a disk that hangs is found by them."""

import threading
import time
from collections.abc import Callable
from functools import partial

from storage.files import OsFile, OsFileSystem, open_descriptor


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


class WatchedFile(OsFile):
    """A file whose syncs are watched."""

    def __init__(self, path: str, descriptor: int, syncs: SyncsInProgress) -> None:
        super().__init__(path, descriptor)
        self._syncs = syncs

    def sync(self) -> None:
        self._syncs.run(self._path, super().sync)


class WatchedFiles(OsFileSystem):
    """The files of this machine; their syncs are watched."""

    def __init__(self, syncs: SyncsInProgress) -> None:
        self._syncs = syncs

    def open(self, path: str, create: bool = False) -> WatchedFile:
        return WatchedFile(path, open_descriptor(path, create), self._syncs)

    def make_folders(self, path: str) -> None:
        self._syncs.run(path, partial(super().make_folders, path))  # it syncs folders

    def sync_folder(self, path: str) -> None:
        self._syncs.run(path, partial(super().sync_folder, path))
