"""File system of this machine (storage/file_system.py): pwrite writes, mmap reads, fdatasync syncs."""

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from storage.birth_time import birth_time
from storage.errors import (
    DiskError,
    DiskRefused,
    Exhausted,
    FileClosed,
    FolderLocked,
    StorageFull,
    SyncFailed,
)
from storage.file_system import Bytes, File, FileSystem, Lock, write_durably

__all__ = ["File", "FileSystem", "Lock", "OsFileSystem", "write_durably"]

_FORBIDDEN = (errno.EACCES, errno.EPERM)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_REFUSED = (*_FORBIDDEN, errno.EROFS)
_LACKING = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK)  # the file system lacks the operation
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no space on the disk, or quota exceeded
_BUFFERS_A_CALL = 512  # well below IOV_MAX
_POPULATE_READ = 22  # madvise(2): since Linux 5.14, not in the mmap module yet
_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"  # Linux: drawn at each boot
_UNREADABLE = (errno.EFAULT, 133)  # 133: EHWPOISON, not in the errno module


def _reason(error: OSError) -> str:
    """Return the reason and, for a refused access or an operation that the file system lacks, the remedy."""
    reason = error.strerror or str(error)
    if error.errno in _FORBIDDEN:
        reason += ": the user that runs the node must own the data folder and be able to write to it"
    elif error.errno == errno.EROFS:
        reason += ": mount it read-write again, after a look for errors of the disk in the kernel's log"
    elif error.errno in _LACKING:
        reason += ": the file system lacks this operation: use a folder on a local disk, with ext4 or XFS"
    return reason


def _error(path: str, operation: str, error: OSError) -> DiskError:
    """Return an error of this package with path, operation and reason."""
    reason = _reason(error)
    if error.errno == errno.EBADF:
        return FileClosed(path, operation, reason)
    if error.errno in _FULL:
        return StorageFull(path, operation, reason)
    if error.errno in _EXHAUSTED:
        return Exhausted(path, operation, reason)
    return (DiskRefused if error.errno in _REFUSED else DiskError)(path, operation, reason)


@contextlib.contextmanager
def _named(path: str, operation: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _error(path, operation, error) from error


class OsFile:
    """An open file of the operating system. Reads by mmap; when the file grows, the mapping is replaced.

    It is closed by `close`, or once nothing uses it any more.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._mapped = memoryview(b"")

    def pwrite(self, data: Bytes | Sequence[Bytes], offset: int) -> None:
        buffers = (data,) if isinstance(data, (bytes, bytearray, memoryview)) else data
        try:
            for start in range(0, len(buffers), _BUFFERS_A_CALL):
                offset = self._write_all(buffers[start : start + _BUFFERS_A_CALL], offset)
        except OSError as error:
            raise _error(self._path, "write", error) from error

    def _write_all(self, buffers: Sequence[Bytes], offset: int) -> int:
        rest: Sequence[Bytes] = buffers
        left = sum(len(buffer) for buffer in buffers)
        while True:
            written = os.pwritev(self._descriptor, rest, offset)
            offset += written
            left -= written
            if left == 0:
                return offset
            rest = (memoryview(b"".join(rest))[written:],)  # rare: a signal, or the disk is almost full

    def read(self, offset: int, size: int) -> bytes:
        with _named(self._path, "read"):
            parts = []
            while size > 0 and (part := os.pread(self._descriptor, size, offset)):
                parts.append(part)
                offset += len(part)
                size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view(self, offset: int, size: int) -> memoryview:
        return self.later_view(offset, size)()

    def later_view(self, offset: int, size: int) -> Callable[[], memoryview]:
        if offset + size > len(self._mapped):
            self._remap(offset + size)
        mapping, mapped = self._map, self._mapped  # they exist while they are referenced

        def load() -> memoryview:
            if mapping is not None and self._populate(mapping, offset, size):
                return mapped[offset : offset + size]
            return memoryview(self.read(offset, size))

        return load

    def _populate(self, mapping: mmap.mmap, offset: int, size: int) -> bool:
        """Load the pages before the first access; False where the system does not support it.

        Access to a page that cannot be read (a bad sector, or another program truncated the file) would kill
        the process with SIGBUS; here it raises DiskError.
        """
        start = offset - offset % mmap.PAGESIZE
        try:
            mapping.madvise(_POPULATE_READ, start, offset + size - start)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            if error.errno in _UNREADABLE:
                raise DiskError(self._path, "read", "cannot be read from the disk") from error
            raise _error(self._path, "read", error) from error
        return True

    def _remap(self, needed: int) -> None:
        with _named(self._path, "map"):
            length = os.fstat(self._descriptor).st_size
            if needed > length:
                raise DiskError(self._path, "map", f"{needed} bytes wanted of {length}")
            if length == 0:
                return
            try:
                # The old mapping exists while a view of it is referenced.
                self._map = mmap.mmap(self._descriptor, length, access=mmap.ACCESS_READ)
            except OSError as error:
                if error.errno != errno.ENODEV:
                    raise
                return  # a file system without mappings: views are copies
            self._mapped = memoryview(self._map)

    def drop_cache(self, offset: int, size: int) -> None:
        with _named(self._path, "advise"):
            os.posix_fadvise(self._descriptor, offset, size, os.POSIX_FADV_DONTNEED)

    def size(self) -> int:
        with _named(self._path, "stat"):
            return os.fstat(self._descriptor).st_size

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise SyncFailed(self._path, "sync", error.strerror or str(error)) from error

    def truncate(self, size: int) -> None:
        with _named(self._path, "truncate"):
            os.ftruncate(self._descriptor, size)
        if size < len(self._mapped):
            self._map, self._mapped = None, memoryview(b"")  # bytes after its end must not be accessed

    def allocate(self, size: int) -> None:
        with _named(self._path, "allocate"):
            os.posix_fallocate(self._descriptor, 0, size)

    def close(self) -> None:
        self._map, self._mapped = None, memoryview(b"")
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with _named(self._path, "close"):
                os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(DiskError):
            self.close()


class OsLock:
    """A lock that the operating system releases when the process ends, in every case."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _is_in_use(folder: Path) -> bool:
    """Return whether the name of the folder is durable.

    That of an empty one may be missing on the disk: an earlier `make_folders` may have failed, or the process
    ended, before its sync. Nothing is in a folder before that. One in a place where this user cannot write,
    or that it cannot open for a sync, was not made here. Raises OSError.
    """
    if not folder.is_dir():
        return False
    with os.scandir(folder) as entries:
        return next(entries, None) is not None or not os.access(folder.parent, os.R_OK | os.W_OK)


class OsFileSystem:
    """The files of this machine. Stateless; may be shared by threads."""

    def open(self, path: str, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        with _named(path, "open"):
            return OsFile(path, os.open(path, flags, 0o644))

    def read(self, path: str) -> bytes:
        with contextlib.closing(self.open(path)) as file:
            return file.read(0, file.size())

    def exists(self, path: str) -> bool:
        try:
            with _named(path, "stat"):
                os.lstat(path)
        except DiskError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return False
            raise
        return True

    def list(self, folder: str) -> list[str]:
        with _named(folder, "list"):
            return sorted(path.name for path in Path(folder).iterdir())

    def sizes(self, folder: str) -> dict[str, int]:
        with _named(folder, "list"), os.scandir(folder) as entries:
            return dict(sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file()))

    def make_folders(self, path: str) -> None:
        unsynced = []
        with _named(path, "stat"):
            for folder in (Path(path), *Path(path).parents):
                if _is_in_use(folder):
                    break
                unsynced.append(folder)
        for folder in reversed(unsynced):
            with _named(str(folder), "make folder"):
                folder.mkdir(mode=0o700, exist_ok=True)  # records are for the service's own user
            self.sync_folder(str(folder.parent))

    def rename(self, source: str, target: str) -> None:
        with _named(source, "rename"):
            Path(source).replace(target)

    def remove(self, path: str) -> None:
        with _named(path, "remove"):
            Path(path).unlink()

    def remove_folder(self, path: str) -> None:
        with _named(path, "remove folder"):
            Path(path).rmdir()

    def sync_folder(self, path: str) -> None:
        with _named(path, "open"):
            descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno == errno.EINVAL:  # as some file systems answer for a folder
                error = OSError(errno.EOPNOTSUPP, error.strerror)
            raise SyncFailed(path, "sync", _reason(error)) from error
        finally:
            os.close(descriptor)

    def boot_id(self) -> str:
        try:
            return Path(_BOOT_ID_PATH).read_text("utf-8").strip()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                raise _error(_BOOT_ID_PATH, "read", error) from error
            return ""

    def created_at(self, path: str) -> str:
        with _named(path, "stat"):
            return birth_time(path)

    def lock(self, path: str) -> OsLock:
        with _named(path, "lock"):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(descriptor)
                raise FolderLocked(path, "lock", "another process holds it") from error
            except OSError:
                os.close(descriptor)
                raise
        return OsLock(descriptor)
