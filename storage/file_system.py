"""Interface to the disk: the operations that storage needs, and their guarantees after a crash.

- A write is durable only after `File.sync` of that file; before that, any part may be lost or torn.
- A new name, a rename or a removal is durable only after `sync_folder` of its folder.
- `rename` replaces the target atomically: after a crash it is the old or the new file, never a mixture.

`storage.files.OsFileSystem` is the implementation; tests and the simulator use one that loses unsynced data.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from storage.errors import DiskError, StorageFull

Bytes = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. Positions and sizes are bytes from the start of the file."""

    def pwrite(self, data: Bytes | Sequence[Bytes], offset: int) -> None:
        """Write all of `data` at `offset`. Raises StorageFull or DiskError; then any part may be written."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Return a copy of at most `size` bytes, fewer at the end of the file."""
        ...

    def view(self, offset: int, size: int) -> memoryview:
        """Return `size` bytes without copying; valid while referenced, until those bytes are truncated.

        The range must lie within the file. Raises DiskError.
        """
        ...

    def later_view(self, offset: int, size: int) -> Callable[[], memoryview]:
        """Return a function for any thread that reads these bytes from the disk and returns a view of them.

        As `view` otherwise; the file may be closed or removed meanwhile.
        """
        ...

    def drop_cache(self, offset: int, size: int) -> None:
        """Let the next read of these bytes use the disk where the system supports it; a hint."""
        ...

    def size(self) -> int: ...

    def sync(self) -> None:
        """Make content and size durable. Raises SyncFailed: written data may be lost."""
        ...

    def truncate(self, size: int) -> None:
        """Truncate the file to `size`; durable after the next sync."""
        ...

    def allocate(self, size: int) -> None:
        """Extend the file to at least `size` bytes and reserve the space. Raises StorageFull, DiskError."""
        ...

    def close(self) -> None:
        """Close the file; views stay valid."""
        ...


class Lock(Protocol):
    def release(self) -> None: ...


class FileSystem(Protocol):
    """Paths are strings with `/`. Every method raises DiskError when the operating system refuses."""

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading and writing; a missing file is a DiskError unless `create`."""
        ...

    def read(self, path: str) -> bytes: ...

    def exists(self, path: str) -> bool: ...

    def list(self, folder: str) -> list[str]:
        """Return the names of the files and folders in `folder`, sorted."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Return name and size in bytes of each file in `folder`, sorted by name; folders are left out.

        No file is opened for it.
        """
        ...

    def make_folders(self, path: str) -> None:
        """Create the folder and its parents if missing; durable on return.

        After an error or a crash a repeat makes durable what the first call has created."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def sync_folder(self, path: str) -> None: ...

    def boot_id(self) -> str:
        """Return an id of the present run of the operating system; "" if the system has none. Raises
        DiskRefused.

        Data that was written but not synced survives the end of a process while this id stays the same, and
        may be lost once it has changed.
        """
        ...

    def created_at(self, path: str) -> str:
        """Return an id of the creation of a file; "" if the file system does not record it.

        The id stays the same while the file exists, also under another name; a copy has another id.
        """
        ...

    def lock(self, path: str) -> Lock:
        """Take the only lock of `path`, a file that is created if missing. Raises FolderLocked."""
        ...


def write_durably(
    files: FileSystem, path: str, data: Bytes | Sequence[Bytes], *, temporary: str | None = None
) -> None:
    """Replace the file's content: after a crash the file is complete, with the old or the new content.

    temporary: path of the new content in the same folder until it is complete; None: `path` and `.tmp`.
    Raises StorageFull, then it is removed; DiskError.
    """
    write_pieces_durably(files, path, ((0, data),), temporary=temporary)


def write_pieces_durably(
    files: FileSystem,
    path: str,
    pieces: Iterable[tuple[int, Bytes | Sequence[Bytes]]],
    *,
    temporary: str | None = None,
) -> None:
    """As `write_durably`, of content in pieces: (offset, data) each."""
    temporary = temporary or path + ".tmp"
    file = files.open(temporary, create=True)
    try:
        file.truncate(0)
        for offset, data in pieces:
            file.pwrite(data, offset)
        file.sync()
    except StorageFull:  # others need the space that the incomplete file takes, trims above all
        with contextlib.suppress(DiskError):
            files.remove(temporary)
        raise
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_folder(path.rpartition("/")[0])


def write_named_durably(files: FileSystem, folder: str, name: str, data: Bytes) -> None:
    """As `write_durably`, for a file whose name is that of a log. `NAME.tmp` may be another log."""
    write_durably(files, f"{folder}/{name}", data, temporary=f"{folder}/.{name}.tmp")
