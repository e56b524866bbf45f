"""Errors of storage. `app` maps them to answers; this package does not depend on HTTP.

StorageError
├── CorruptBatch          bytes that are not a valid batch
│   ├── PartialBatch      ... because they end too early
│   └── NewerBatch        ... but one of a later version
├── CorruptLog            damage at or before the durable point of a log: reported, never truncated
│   ├── UnreadableFile    ... or the disk refuses to read a file of it
│   └── ForeignLog        the folder holds another log: it was moved there
├── PatchRefused          batches that do not fit into the damage of a log
├── CorruptFile           a small file (vote, checkpoint, manifest, snapshot) is damaged
├── NewerFormat           a later version wrote the file: refused, never repaired
├── InvalidRecords           a client's body does not have the declared format
│   ├── BodyTooLarge      ... or exceeds a limit
│   └── EmptyBody         ... or holds no record
└── DiskError             the operating system refused an operation
    ├── StorageFull       no space left; nothing was stored
    ├── DiskRefused       not because of the file: no permission, or a read-only disk
    │   └── Exhausted     ... or the process has no descriptor or memory at present
    ├── SyncFailed        written data may be lost: the node stops (R-11)
    ├── FileClosed        the log was closed, while a reader still used it
    └── FolderLocked      another process owns the folder
InvariantError            a bug or a violated invariant: stops the node, never retried
"""

from typing import Final

READ_OPERATIONS: Final = ("read", "map")


class StorageError(Exception):
    """Base of all errors of this package."""


class CorruptBatch(StorageError):
    """The bytes are not a valid batch; `reason` is one short phrase."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class PartialBatch(CorruptBatch):
    """The bytes end before the batch does: more may follow (wire), or the tail was torn (disk)."""


class NewerBatch(CorruptBatch):
    """The checksum of the header is right, but its format or flags are unknown: a later version wrote it.

    place: log id and offset of the batch, from its header.
    """

    def __init__(self, reason: str, place: tuple[int, int]) -> None:
        super().__init__(reason)
        self.place = place


class CorruptLog(StorageError):
    """A log is damaged where it was durable. `offset` is a byte position in the log, not in the file."""

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path}: damaged at log offset {offset}: {reason}")
        self.path, self.offset, self.reason = path, offset, reason


class UnreadableFile(CorruptLog):
    """The disk refuses to read a file of a log, for now or permanently: nothing shows that it is damaged."""


class PatchRefused(StorageError):
    """The batches do not fit between the intact neighbours of a damage; nothing was written."""


class ForeignLog(CorruptLog):
    """The folder holds another, complete log: an error of the operator, not of the disk."""


class CorruptFile(StorageError):
    """A small durable file is damaged beyond its redundancy."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason


class NewerFormat(StorageError):
    """A later version of this program wrote the file. It is intact, so nothing is changed or repaired."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}: a later version of the program wrote it: start that version")
        self.path, self.reason = path, reason


class InvalidRecords(StorageError):
    """A client's body is refused; the message states the error in the terms of the API."""


class BodyTooLarge(InvalidRecords):
    """A client's body has too many records or bytes. limit_name: of the setting."""

    def __init__(self, detail: str, limit: int, limit_name: str) -> None:
        super().__init__(detail)
        self.limit, self.limit_name = limit, limit_name


class EmptyBody(InvalidRecords):
    """A client's body is well formed but holds no record."""


class DiskError(StorageError):
    """The operating system refused `operation` on `path`."""

    def __init__(self, path: str, operation: str, reason: str) -> None:
        super().__init__(f"{operation} {path}: {reason}")
        self.path, self.operation, self.reason = path, operation, reason


class StorageFull(DiskError):
    """No space is left, or a quota is exhausted."""


class DiskRefused(DiskError):
    """The refusal shows nothing about the file: the process has no descriptor, memory or permission for the
    operation, or the file system is read-only."""


class Exhausted(DiskRefused):
    """The process has no free descriptor or memory: the same operation may succeed later."""


class SyncFailed(DiskError):
    """A sync failed: written data may be lost, so the sync is never retried (R-11)."""


class FileClosed(DiskError):
    """The file was closed meanwhile: its log was removed, or opened again."""


class FolderLocked(DiskError):
    """Another process holds the lock of the folder."""


def as_damage(error: BaseException) -> BaseException:
    """Return a failed read of a log's file as damage, because another replica has the data."""
    if type(error) is DiskError and error.operation in READ_OPERATIONS:
        return UnreadableFile(error.path, 0, f"it cannot be read: {error.reason}")
    return error


class InvariantError(Exception):
    """An invariant between components is violated; continuing could lose data."""
