"""The real file system, with a memory of what is durable, and with faults that a test switches on.

Beside a node's folder DATA stand

    DATA.durable/contents/INODE     what a sync has surely made durable of each file
    DATA.durable/names/…            the names that a sync of their folder has made durable (hard links)
    DATA.faults                     JSON, read when it changes: Faults
    DATA.boots                      a byte for each power cut: with it every boot has an id of its own

So a test can kill the process at any moment and then let the power fail (`power_cut.py`): what no sync had
covered is gone, kept or torn. All else is the production file system, which this class extends.
"""

import json
import os
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.errors import DiskError, StorageFull, SyncFailed
from storage.file_system import Bytes
from storage.files import OsFile, OsFileSystem

CONTENTS, NAMES = "contents", "names"
IO_ERROR = "Input/output error"


def durable_folder(data: Path) -> Path:
    return data.with_name(data.name + ".durable")


def faults_file(data: Path) -> Path:
    return data.with_name(data.name + ".faults")


def boots_file(data: Path) -> Path:
    return data.with_name(data.name + ".boots")


@dataclass(frozen=True)
class Faults:
    """Parts of paths whose operations fail; None: no such fault."""

    sync: str | None = None
    write: str | None = None
    read: str | None = None
    full: str | None = None

    def save(self, data: Path) -> None:
        place = faults_file(data)
        temporary = place.with_suffix(".tmp")
        temporary.write_text(json.dumps(vars(self)))
        temporary.replace(place)


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes that no sync has covered yet; with `size` None, a cut of the file to `offset`."""

    offset: int
    size: int | None


class Shadow:
    """Durable content of the folder `data`. The lock guards the lists, never a call that waits for a disk."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.contents = durable_folder(data) / CONTENTS
        self.names = durable_folder(data) / NAMES
        self._lock = threading.Lock()
        self._written: dict[int, list[Written]] = {}
        self._named: dict[Path, list[tuple[Path, int | None]]] = {}  # folder -> (name, its inode or none)
        shutil.rmtree(durable_folder(data), ignore_errors=True)
        self.contents.mkdir(parents=True)
        self.names.mkdir()
        for place in sorted(data.rglob("*")):
            if place.is_dir():
                self.make_folder(place)
            else:
                self._adopt(place)

    def _adopt(self, place: Path) -> None:
        """Content at the start counts as durable: the test has created it."""
        content = self.contents / str(place.stat().st_ino)
        shutil.copyfile(place, content)
        self._link(place, place.stat().st_ino)

    def name_of(self, place: Path) -> Path:
        return self.names / place.relative_to(self.data)

    def make_folder(self, place: Path) -> None:
        if place.is_relative_to(self.data):
            self.name_of(place).mkdir(parents=True, exist_ok=True)

    def moved_folder(self, source: Path, target: Path) -> None:
        """A folder's new name counts as durable at once."""
        self.name_of(source).replace(self.name_of(target))

    def created(self, place: Path, inode: int) -> None:
        with self._lock:
            (self.contents / str(inode)).unlink(missing_ok=True)  # of a removed file with the same inode
            (self.contents / str(inode)).touch()
            self._written.pop(inode, None)
        self.named(place, inode)

    def named(self, place: Path, inode: int | None) -> None:
        with self._lock:
            self._named.setdefault(place.parent, []).append((place, inode))

    def wrote(self, inode: int, what: Written) -> None:
        with self._lock:
            self._written.setdefault(inode, []).append(what)

    def take(self, inode: int) -> list[Written]:
        with self._lock:
            return self._written.pop(inode, [])

    def synced(self, descriptor: int, inode: int, written: Sequence[Written]) -> None:
        """A sync has covered `written`: what the file holds there now is durable."""
        with (self.contents / str(inode)).open("r+b") as content:
            for what in written:
                if what.size is None:
                    content.truncate(what.offset)
                else:
                    content.seek(what.offset)
                    content.write(os.pread(descriptor, what.size, what.offset))

    def folder_synced(self, folder: Path) -> None:
        with self._lock:
            changes = self._named.pop(folder, [])
        for place, inode in changes:
            if inode is None:
                self.name_of(place).unlink(missing_ok=True)
            else:
                self._link(place, inode)

    def _link(self, place: Path, inode: int) -> None:
        name = self.name_of(place)
        temporary = name.with_name(name.name + ".linking")
        temporary.unlink(missing_ok=True)
        temporary.hardlink_to(self.contents / str(inode))
        temporary.replace(name)
        temporary.unlink(missing_ok=True)  # rename leaves both when they are the same file already


class FaultyFile(OsFile):
    def __init__(self, files: "FaultyFileSystem", path: str, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._files = files
        self._inode = os.fstat(descriptor).st_ino

    def pwrite(self, data: Bytes | Sequence[Bytes], offset: int) -> None:
        buffers = (data,) if isinstance(data, bytes | bytearray | memoryview) else data
        whole = b"".join(bytes(buffer) for buffer in buffers)
        faults = self._files.faults()
        if faults.full is not None and faults.full in self._path:
            self._write_and_note(whole[: len(whole) // 2], offset)
            raise StorageFull(self._path, "write", "No space left on device")
        self._files.check("write", self._path, faults.write)
        self._write_and_note(whole, offset)

    def _write_and_note(self, whole: bytes, offset: int) -> None:
        super().pwrite(whole, offset)
        self._files.shadow.wrote(self._inode, Written(offset, len(whole)))

    def read(self, offset: int, size: int) -> bytes:
        self._files.check("read", self._path, self._files.faults().read)
        return super().read(offset, size)

    def later_view(self, offset: int, size: int) -> Callable[[], memoryview]:
        load = super().later_view(offset, size)

        def checked() -> memoryview:
            self._files.check("read", self._path, self._files.faults().read)
            return load()

        return checked

    def sync(self) -> None:
        written = self._files.shadow.take(self._inode)
        fault = self._files.faults().sync
        if fault is not None and fault in self._path:
            raise SyncFailed(self._path, "sync", IO_ERROR)  # and the pages are dropped, as the kernel does
        super().sync()
        self._files.shadow.synced(self._descriptor, self._inode, written)

    def truncate(self, size: int) -> None:
        super().truncate(size)
        self._files.shadow.wrote(self._inode, Written(size, None))


class FaultyFileSystem(OsFileSystem):
    """One for each process; `data` is the node's folder."""

    def __init__(self, data: Path) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.shadow = Shadow(data)
        self._faults = Faults()
        self._seen_ns = -1

    def faults(self) -> Faults:
        try:
            changed_ns = faults_file(self.shadow.data).stat().st_mtime_ns
        except FileNotFoundError:
            return Faults()
        if changed_ns != self._seen_ns:
            self._faults = Faults(**json.loads(faults_file(self.shadow.data).read_text()))
            self._seen_ns = changed_ns
        return self._faults

    def check(self, operation: str, path: str, fault: str | None) -> None:
        if fault is not None and fault in path:
            raise DiskError(path, operation, IO_ERROR)

    def open(self, path: str, create: bool = False) -> FaultyFile:
        is_new = create and not self.exists(path)
        opened = super().open(path, create)
        file = FaultyFile(self, path, os.dup(opened._descriptor))
        opened.close()
        if is_new:
            self.shadow.created(Path(path), file._inode)
        return file

    def make_folders(self, path: str) -> None:
        super().make_folders(path)
        self.shadow.make_folder(Path(path))

    def rename(self, source: str, target: str) -> None:
        found = Path(source).stat()
        super().rename(source, target)
        if stat.S_ISDIR(found.st_mode):
            self.shadow.moved_folder(Path(source), Path(target))
            return
        self.shadow.named(Path(source), None)
        self.shadow.named(Path(target), found.st_ino)

    def remove(self, path: str) -> None:
        super().remove(path)
        self.shadow.named(Path(path), None)

    def sync_folder(self, path: str) -> None:
        super().sync_folder(path)
        self.shadow.folder_synced(Path(path))

    def created_at(self, path: str) -> str:
        """Not known: a power cut puts the durable files in place as copies."""
        return ""

    def boot_id(self) -> str:
        """That of the machine, and the power cuts so far."""
        file = boots_file(self.shadow.data)
        return f"{super().boot_id()}-{file.stat().st_size if file.exists() else 0}"
