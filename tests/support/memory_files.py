"""A file system in memory that loses at a crash everything that it may (see storage/file_system.py)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from storage.errors import DiskError, FolderLocked, StorageFull, SyncFailed
from storage.file_system import Bytes

SECTOR_BYTES = 512


class PowerCut(BaseException):
    """The machine stops before the operation; only the test may catch this."""


@dataclass(frozen=True, slots=True)
class Change:
    """One unsynced write or, with `data` None, a truncation to `offset`."""

    offset: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if len(content) < self.offset:
            content.extend(bytes(self.offset - len(content)))
        if self.data is None:
            del content[self.offset :]
        else:
            content[self.offset : self.offset + len(self.data)] = self.data


@dataclass(slots=True, eq=False)
class Content:
    """Content of a file, and its durable content. created: unique for each file of a disk."""

    now: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    changes: list[Change] = field(default_factory=list)
    created: int = 0

    def change(self, change: Change) -> None:
        change.apply(self.now)
        self.changes.append(change)

    def sync(self) -> None:
        for change in self.changes:
            change.apply(self.durable)
        self.changes.clear()

    def drop_clean(self, offset: int, size: int) -> None:
        """Read a range from the disk again, without what a failed sync lost; unsynced changes stay."""
        held = bytearray(self.durable)
        for change in self.changes:
            change.apply(held)
        held.extend(bytes(max(0, len(self.now) - len(held))))
        end = min(offset + size, len(self.now))
        self.now[offset:end] = held[offset:end]

    def crash(self, random: Random) -> None:
        """Each unsynced change may have reached the disk completely, in part, or not at all."""
        for change in self.changes:
            fate = random.random()
            if fate < 0.4:
                continue
            if fate < 0.7 and change.data is not None:
                for part in _torn(change.offset, change.data, random):
                    part.apply(self.durable)
            else:
                change.apply(self.durable)
        self.changes.clear()
        self.now = bytearray(self.durable)


def _torn(offset: int, data: bytes, random: Random) -> list[Change]:
    """Return a prefix of the data, or all of it but one sector: that keeps its old bytes, zeros after the
    old end."""
    if random.random() < 0.7:
        return [Change(offset, data[: random.randrange(len(data) + 1)])]
    hole = random.randrange(len(data) // SECTOR_BYTES + 1) * SECTOR_BYTES
    behind = data[hole + SECTOR_BYTES :]
    parts = [Change(offset, data[:hole])]
    return [*parts, Change(offset + hole + SECTOR_BYTES, behind)] if behind else parts


class MemoryFile:
    """storage.file_system.File."""

    def __init__(self, files: "MemoryFiles", path: str, content: Content) -> None:
        self._files = files
        self.path = path
        self._content = content

    def pwrite(self, data: Bytes | Sequence[Bytes], offset: int) -> None:
        whole = data if isinstance(data, bytes | bytearray | memoryview) else b"".join(data)
        grows = offset + len(whole) > len(self._content.now)
        self._files.operate("extend" if grows else "write", self.path)
        fits = len(whole)
        if self._files.space_bytes is not None:
            room = max(0, self._files.free_bytes())  # an overwrite needs no space
            fits = max(0, min(fits, room + len(self._content.now) - offset))
        self._content.change(Change(offset, bytes(whole[:fits])))
        if fits < len(whole):
            raise StorageFull(self.path, "write", "no space left")

    def read(self, offset: int, size: int) -> bytes:
        self._files.observe("read", self.path)
        data = bytes(self._content.now[offset : offset + size])
        self._files.bytes_read += len(data)
        return data

    def view(self, offset: int, size: int) -> memoryview:
        return self.later_view(offset, size)()

    def later_view(self, offset: int, size: int) -> Callable[[], memoryview]:
        if offset + size > len(self._content.now):
            raise DiskError(self.path, "view", "past the end of the file")

        def load() -> memoryview:
            self._files.observe("read", self.path)
            return memoryview(bytes(self._content.now[offset : offset + size]))

        return load

    def drop_cache(self, offset: int, size: int) -> None:
        self._content.drop_clean(offset, size)

    def size(self) -> int:
        return len(self._content.now)

    def sync(self) -> None:
        try:
            self._files.operate("sync", self.path)
        except SyncFailed:
            self._content.changes.clear()  # the pages count as clean, but are lost
            raise
        if self._files.syncs_fail:
            self._content.changes.clear()
            raise SyncFailed(self.path, "sync", "input/output error")
        self._content.sync()

    def truncate(self, size: int) -> None:
        self._files.operate("truncate", self.path)
        self._content.change(Change(size, None))

    def allocate(self, size: int) -> None:
        held = len(self._content.now)
        if size > held:
            self.pwrite(bytes(size - held), held)

    def close(self) -> None:
        """No effect: no file stays open."""


@dataclass(eq=False)
class MemoryLock:
    held: dict[str, "MemoryLock"]
    path: str

    def release(self) -> None:
        self.held.pop(self.path, None)


class MemoryFiles:
    """storage.file_system.FileSystem. Names change in the order of their folder's operations, or not yet."""

    def __init__(self, random: Random | None = None) -> None:
        """random: decides what a crash loses."""
        self.operations = 0  # number of writes, syncs, truncations and changes of names
        self.power_cut_at: int | None = None  # the operation before which the power fails
        self.space_bytes: int | None = None  # of all files together
        self.syncs_fail = False
        self.refuse: Callable[[str, str], None] | None = None  # (operation, path): raises what it meets
        self.bytes_read = 0  # by `read` alone: a view is checked at its access
        self.opened = 0  # number of files opened
        self.creations = 0  # number of files created
        self.random = random or Random(0)
        self.boots = 0  # power failures survived: the run of the operating system that `boot_id` names
        self._names: dict[str, Content] = {}
        self._durable: dict[str, Content] = {}
        self._renames: dict[
            str, list[tuple[str, Content | None]]
        ] = {}  # folder -> (path, content) not synced
        self._locks: dict[str, MemoryLock] = {}

    def observe(self, operation: str, path: str) -> None:
        """An operation that changes nothing: open, read, list."""
        if self.refuse is not None:
            self.refuse(operation, path)

    def operate(self, operation: str, path: str) -> None:
        """Count an operation that changes something. Raises PowerCut, and what `refuse` raises."""
        if self.refuse is not None:
            self.refuse(operation, path)
        if self.operations == self.power_cut_at:
            raise PowerCut
        self.operations += 1

    def free_bytes(self) -> int:
        return (self.space_bytes or 0) - sum(len(content.now) for content in self._names.values())

    def open(self, path: str, create: bool = False) -> MemoryFile:
        self.observe("open", path)
        self.opened += 1
        content = self._names.get(path)
        if content is None:
            if not create:
                raise DiskError(path, "open", "no such file")
            self.creations += 1
            content = Content(created=self.creations)
            self._set("create", path, content)
        return MemoryFile(self, path, content)

    def read(self, path: str) -> bytes:
        self.observe("read", path)
        data = bytes(self._found(path).now)
        self.bytes_read += len(data)
        return data

    def exists(self, path: str) -> bool:
        return path in self._names

    def list(self, folder: str) -> list[str]:
        self.observe("list", folder)
        start = folder + "/"
        names = {name[len(start) :].partition("/")[0]: None for name in self._names if name.startswith(start)}
        return sorted(names)

    def sizes(self, folder: str) -> dict[str, int]:
        return {
            name: len(self._names[f"{folder}/{name}"].now)
            for name in self.list(folder)
            if f"{folder}/{name}" in self._names
        }

    def make_folders(self, path: str) -> None:
        """A folder exists as soon as something is in it."""

    def rename(self, source: str, target: str) -> None:
        content = self._found(source)
        self._set("rename", target, content)
        _put(self._names, source, None)
        self._renames[path_folder(target)].append((source, None))

    def remove(self, path: str) -> None:
        self._found(path)
        self._set("remove", path, None)

    def remove_folder(self, path: str) -> None:
        """A folder does not exist any more once nothing is in it."""

    def copy_folder(self, path: str) -> dict[str, bytes]:
        """A backup of what is in the folder and below it now, by path."""
        below = path + "/"
        return {name: bytes(each.now) for name, each in self._names.items() if name.startswith(below)}

    def put_folder(self, path: str, contents: dict[str, bytes]) -> None:
        """Replace the folder by a backup of it, durably."""
        below = path + "/"
        for names in (self._names, self._durable):
            for name in [each for each in names if each.startswith(below)]:
                del names[name]
        for folder in [each for each in self._renames if f"{each}/".startswith(below)]:
            del self._renames[folder]
        for name, data in contents.items():
            self._names[name] = self._durable[name] = Content(bytearray(data), bytearray(data))

    def sync_folder(self, path: str) -> None:
        self.operate("sync", path)
        if self.syncs_fail:
            raise SyncFailed(path, "sync", "input/output error")
        for name, _content in self._renames.pop(path, ()):
            _put(self._durable, name, self._names.get(name))  # since then it may have left the folder

    def boot_id(self) -> str:
        return f"boot-{self.boots}"

    def created_at(self, path: str) -> str:
        self.observe("read", path)
        return f"{self._found(path).created:016}"

    def lock(self, path: str) -> MemoryLock:
        if path in self._locks:
            raise FolderLocked(path, "lock", "held by another")
        self._locks[path] = MemoryLock(self._locks, path)
        return self._locks[path]

    def crash(self) -> None:
        """Cut the power: unsynced changes are kept, torn, or lost. All locks are free."""
        for changes in self._renames.values():
            for name, content in changes[: self.random.randrange(len(changes) + 1)]:
                _put(self._durable, name, content)
        self._renames.clear()
        self.power_cut_at = None
        self.boots += 1
        self._names = dict(self._durable)
        for content in self._names.values():
            content.crash(self.random)
        self._locks.clear()

    def copy_to(self, other: "MemoryFiles") -> None:
        """Copy what is durable to an empty disk, as a backup does: the copies are other files."""
        other.creations = self.creations
        for path, content in self._durable.items():
            other.creations += 1
            data = content.durable
            other._names[path] = Content(bytearray(data), bytearray(data), created=other.creations)
        other._durable = dict(other._names)

    def _found(self, path: str) -> Content:
        content = self._names.get(path)
        if content is None:
            raise DiskError(path, "open", "no such file")
        return content

    def _set(self, operation: str, path: str, content: Content | None) -> None:
        self.operate(operation, path)
        _put(self._names, path, content)
        self._renames.setdefault(path_folder(path), []).append((path, content))


def path_folder(path: str) -> str:
    return path.rpartition("/")[0]


def _put(names: dict[str, Content], path: str, content: Content | None) -> None:
    if content is None:
        names.pop(path, None)
    else:
        names[path] = content
