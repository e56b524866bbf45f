"""The durable note that a log of this node is damaged: from before its files are touched until it is healed.

DATA/repairing/NAME is JSON. It lies outside the log's folder, so that it outlives whatever becomes of that. A
note that cannot be read still counts.
"""

from typing import Final

import msgspec

from storage.file_system import FileSystem, write_durably

FOLDER: Final = "repairing"


class Note(msgspec.Struct, frozen=True):
    """reason: what was damaged first; found_by: what came upon it."""

    reason: str
    found_by: str
    since_ms: int


class RepairMarker:
    """The note of one log. Every method may block on the disk."""

    def __init__(self, files: FileSystem, data_folder: str, log_name: str) -> None:
        self._files = files
        self._folder = f"{data_folder}/{FOLDER}"
        self._path = f"{self._folder}/{log_name}"

    @property
    def exists(self) -> bool:
        return self._files.exists(self._path)

    def save(self, note: Note) -> None:
        """Durable on return; the first note of a repair stays. Raises DiskError."""
        if not self.exists:
            self._files.make_folders(self._folder)
            write_durably(self._files, self._path, msgspec.json.encode(note) + b"\n")

    def remove(self) -> None:
        """The log is healed; durable on return. Raises DiskError."""
        if self.exists:
            self._files.remove(self._path)
            self._files.sync_folder(self._folder)
