"""The durable note that a log of this node is damaged: from before its files are touched until it is healed.

DATA/repairing/NAME is one line: CRC32C in hexadecimal, a space, JSON. It lies outside the log's folder, so
that it outlives whatever becomes of that, and it keeps what the node had promised (term and vote, R-01) while
the vote file may be moved away. A note that cannot be read still counts: there is damage, and no promise is
known.
"""

import logging
from typing import Final

import msgspec

from storage.checksum import crc32c
from storage.errors import DiskError
from storage.file_system import FileSystem, write_durably
from storage.hard_state import HardState

logger = logging.getLogger(__name__)

FOLDER: Final = "repairing"


class Note(msgspec.Struct, frozen=True):
    """reason: what was damaged first. promised: term and vote as they stood, None when they are not known."""

    reason: str
    found_by: str
    since_ms: int
    promised: tuple[int, str | None] | None = None

    @property
    def hard_state(self) -> HardState | None:
        return None if self.promised is None else HardState(*self.promised)


_UNREADABLE: Final = Note("a repair was under way, and its note cannot be read", "start", 0)
_DECODER = msgspec.json.Decoder(Note)


class RepairMarker:
    """The note of one log. Every method may block on the disk."""

    def __init__(self, files: FileSystem, data_folder: str, log_name: str) -> None:
        self._files = files
        self._folder = f"{data_folder}/{FOLDER}"
        self._path = f"{self._folder}/{log_name}"

    @property
    def exists(self) -> bool:
        return self._files.exists(self._path)

    def load(self) -> Note | None:
        """The note, None when the log is not marked."""
        if not self.exists:
            return None
        try:
            checksum, _, text = self._files.read(self._path).strip().partition(b" ")
            if checksum != _checksum(text):
                raise ValueError("checksum")
            return _DECODER.decode(text)
        except (ValueError, msgspec.DecodeError, DiskError) as error:
            logger.error("%s: %s", self._path, error)
            return _UNREADABLE

    def save(self, note: Note) -> None:
        """Durable on return. Raises DiskError."""
        self._files.make_folders(self._folder)
        text = msgspec.json.encode(note)
        write_durably(self._files, self._path, _checksum(text) + b" " + text + b"\n")

    def remove(self) -> None:
        """The log is healed; durable on return. Raises DiskError."""
        if self.exists:
            self._files.remove(self._path)
            self._files.sync_folder(self._folder)


def _checksum(text: bytes) -> bytes:
    return b"%08x" % crc32c(text)
