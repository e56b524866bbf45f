"""Identity of a copy of a log: replica id and check code, stored beside the copy (C-03).

DATA/logs/NAME/replica is one line: CRC32C in hexadecimal, a space, JSON. It moves with the copy: a copy that
is set aside keeps its identity, and the empty one in its place is another replica. An unreadable line is not
an identity either: a new id is always safe. A copy that may lack what it acknowledged must lose its identity
before it is used; for a copy of a folder the controllers decide that.
"""

import logging

import msgspec

from app.controller.replicas_manager import CopyIdentity
from storage.file_system import FileSystem, write_durably
from storage.format.checksum import crc32c

logger = logging.getLogger(__name__)


class _IdentityLine(msgspec.Struct, frozen=True):
    check_code: str
    replica_id: int
    is_copy: bool = False


class IdentityFile:
    """The identity of one copy. Every method may block on the disk."""

    def __init__(self, files: FileSystem, data_folder: str, log_name: str) -> None:
        self._files = files
        self._path = f"{data_folder}/logs/{log_name}/replica"

    def load(self) -> CopyIdentity | None:
        """Return the identity, None if the copy has none."""
        if not self._files.exists(self._path):
            return None
        checksum, _, text = self._files.read(self._path).strip().partition(b" ")
        if checksum != b"%08x" % crc32c(text):
            logger.warning("%s cannot be read: the copy gets a new identity", self._path)
            return None
        line = msgspec.json.decode(text, type=_IdentityLine)
        return CopyIdentity(line.check_code, line.replica_id, line.is_copy)

    def save(self, identity: CopyIdentity) -> None:
        """Save the identity; durable on return. Raises StorageFull, DiskError."""
        text = msgspec.json.encode(_IdentityLine(*msgspec.structs.astuple(identity)))
        write_durably(self._files, self._path, b"%08x %s\n" % (crc32c(text), text))

    def note_copy(self) -> None:
        """Record that the folder is a copy; durable on return. It may be from before the id was assigned:
        without one it is another replica. Raises StorageFull, DiskError."""
        identity = self.load()
        if identity is None or not identity.replica_id:
            self.forget()
        else:
            self.save(msgspec.structs.replace(identity, is_copy=True))

    def forget(self) -> None:
        """Make the copy another replica from now on; durable on return. Raises DiskError."""
        if self._files.exists(self._path):
            self._files.remove(self._path)
            self._files.sync_folder(self._path.rpartition("/")[0])
