"""Durable note that distinguishes a log's folder from a copy of it.

FOLDER/origin has two equal lines: CRC32C in hexadecimal, a space, JSON. Each contains the creation of this
file as the file system records it (FileSystem.created_at). A copy of the file is another file, created later.
The note is replaced at each opening and each clean stop, so a copy that is restored over the files of a later
run, or of the run in which it was made, is detected too. One damaged line leaves the other. Without an intact
line the folder counts as a copy.

Not detected: a volume that is rolled back to a snapshot of its blocks, a copy that is restored over the files
of the run in which it was made when that was killed, a folder whose note was not written by a version with
this check, and any copy on a file system that does not record the creation of a file.

    is_copy -> the caller makes its doubt durable -> opened -> the log is used and closed -> stopped
"""

import contextlib
from dataclasses import dataclass
from typing import Final

import msgspec

from storage.errors import StorageFull
from storage.file_system import FileSystem
from storage.format.checksum import crc32c

ORIGIN_NAME: Final = "origin"
UNKNOWN: Final = ""
LINES: Final = 2


class Origin(msgspec.Struct, frozen=True):
    """created: creation of the file that holds this line."""

    created: str


def is_copy(noted: str, created: str) -> bool:
    """Return whether the note belongs to another file; False if that is UNKNOWN. PURE."""
    return UNKNOWN not in (noted, created) and noted != created


def created_in(note: bytes) -> str | None:
    """Return what an intact line of the note contains, None if every line is damaged. PURE.

    A note of one line was written by an older version.
    """
    half = len(note) // LINES
    for line in (note[:half], note[half:], note):
        checksum, _, text = line[:-1].partition(b" ")
        if text and checksum == b"%08x" % crc32c(text):
            return msgspec.json.decode(text, type=Origin).created
    return None


@dataclass(frozen=True)
class FolderOrigin:
    """The note of one log's folder. Every method may block on the disk. Raises DiskError."""

    files: FileSystem
    folder: str

    @property
    def _path(self) -> str:
        return f"{self.folder}/{ORIGIN_NAME}"

    def is_copy(self) -> bool:
        """Return whether the folder is a copy of the one that the last opening used."""
        if not self.files.exists(self._path):
            return False
        noted = created_in(self.files.read(self._path))
        return noted is None or is_copy(noted, self.files.created_at(self._path))

    def renew(self) -> None:
        """Replace the note; durable on return.

        Call it only after a doubt about a copy is durable elsewhere. Without space for the note, the old one
        stays.
        """
        temporary = f"{self._path}.tmp"
        with contextlib.suppress(StorageFull):
            if self.files.exists(temporary):
                self.files.remove(temporary)
            with contextlib.closing(self.files.open(temporary, create=True)) as file:
                text = msgspec.json.encode(Origin(self.files.created_at(temporary)))
                file.pwrite(b"%08x %s\n" % (crc32c(text), text) * LINES, 0)
                file.sync()
            self.files.rename(temporary, self._path)
            self.files.sync_folder(self.folder)

    def renew_if_noted(self) -> None:
        """Replace the note after a clean stop, if there is one; durable on return."""
        if self.files.exists(self._path):
            self.renew()

    def forget(self) -> None:
        """Make the folder pass as the original at its next opening; durable on return."""
        if self.files.exists(self._path):
            self.files.remove(self._path)
            self.files.sync_folder(self.folder)
