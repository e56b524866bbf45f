"""A log that cannot be opened leaves no file open: its opening is often repeated, for hours."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import DiskError, StorageError, StorageFull
from storage.files import OsFile, OsFileSystem
from storage.log.log_folder import segment_offsets
from storage.log.recovery import Recovery
from tests.unit.storage.support import LOG_ID, SMALL, grow, open_log, open_term


class Watched(OsFileSystem):
    """full, unreadable: names of a file that cannot be opened for lack of space, and of one that cannot be
    read."""

    def __init__(self) -> None:
        self.files: list[OsFile] = []
        self.full: str | None = None
        self.unreadable: str | None = None

    def open(self, path: str, create: bool = False) -> OsFile:
        name = path.rpartition("/")[2]
        if name == self.full:
            raise StorageFull(path, "open", "no space")
        file = super().open(path, create)
        self.files.append(file)
        if name == self.unreadable:
            file.read = _unreadable(path)  # type: ignore[method-assign]
        return file

    @property
    def open_count(self) -> int:
        return sum(file._descriptor >= 0 for file in self.files)


def _unreadable(path: str) -> Callable[[int, int], bytes]:
    def read(_offset: int, _size: int) -> bytes:
        raise DiskError(path, "read", "an error of the medium")

    return read


def _flip(path: Path, from_end: int) -> None:
    data = bytearray(path.read_bytes())
    data[-from_end] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", ["tail", "last durable", "short segment", "unreadable", "full"])
def test_an_opening_that_fails_closes_what_it_has_opened(tmp_path: Path, damage: str) -> None:
    files, folder = Watched(), str(tmp_path / "log")
    log = open_log(files, SMALL, folder=folder)
    open_term(log, 1)
    grow(log, 60)
    log.close()
    log = open_log(files, SMALL, folder=folder)
    if damage != "last durable":
        grow(log, 3)  # beyond the durable point; a killed process closes no log
    committed_index = log.end_index
    for segment in log._segments:
        segment.close()
    offsets = segment_offsets(files, folder)
    assert len(offsets) > 2
    first, last = (tmp_path / "log" / f"{offset:020d}.log" for offset in (offsets[0], offsets[-1]))
    if damage in ("tail", "last durable"):
        _flip(last, from_end=40)
    elif damage == "short segment":
        _cut(first)
    elif damage == "unreadable":
        files.unreadable = last.name
    else:
        files.full = "manifest"
    assert files.open_count == 0
    for _ in range(3):
        with pytest.raises(StorageError):
            open_log(files, SMALL, committed_index, folder)
        assert files.open_count == 0
    with contextlib.suppress(StorageError):
        Recovery(files, folder, LOG_ID, committed_index).has_torn_tail()
    assert files.open_count == 0
