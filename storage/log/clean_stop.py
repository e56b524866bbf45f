"""Durable note of an open log that acknowledges before it syncs: a power failure may lose what it wrote.

FOLDER/opened is one line: CRC32C in hexadecimal, a space, JSON. It exists only in the folder of a log that
was opened with `acks_unsynced`. It is written before the log is used, and marked clean after everything is
synced. An unreadable line counts as written in an unknown run of the operating system.

    may_have_lost -> the caller makes its doubt durable -> opened -> the log is used and closed -> stopped
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec

from storage.errors import StorageFull
from storage.file_system import FileSystem, write_durably
from storage.format.checksum import crc32c

OPENED_NAME: Final = "opened"
UNKNOWN_BOOT: Final = ""


class OpenMark(msgspec.Struct, frozen=True):
    """boot_id: run of the operating system in which the log was opened last; UNKNOWN_BOOT if unknown.

    acks_unsynced: the log acknowledges records before they are synced. clean: everything was synced after the
    last use.
    """

    boot_id: str
    acks_unsynced: bool = True
    clean: bool = False


def may_have_lost(opened: OpenMark | None, boot_id: str) -> bool:
    """Return whether written, acknowledged and unsynced bytes may be lost. PURE.

    opened: the note of the last use, None if there is none. boot_id: the present run of the operating system
    (FileSystem.boot_id). A killed process loses nothing: the operating system keeps written data.
    """
    if opened is None or opened.clean or not opened.acks_unsynced:
        return False
    return UNKNOWN_BOOT in (opened.boot_id, boot_id) or opened.boot_id != boot_id


@dataclass(frozen=True)
class CleanStop:
    """The note of one log's folder. Every method may block on the disk. Raises DiskError, StorageFull."""

    files: FileSystem
    folder: str

    @property
    def _path(self) -> str:
        return f"{self.folder}/{OPENED_NAME}"

    def load(self) -> OpenMark | None:
        """Return the note of the last use, None when there is none."""
        if not self.files.exists(self._path):
            return None
        checksum, _, text = self.files.read(self._path).strip().partition(b" ")
        if checksum != b"%08x" % crc32c(text):
            return OpenMark(UNKNOWN_BOOT)
        return msgspec.json.decode(text, type=OpenMark)

    def may_have_lost(self) -> bool:
        """Return whether the last use may have lost acknowledged bytes (see `may_have_lost`)."""
        return may_have_lost(self.load(), self.files.boot_id())

    def opened(self, *, acks_unsynced: bool) -> None:
        """Record that the log is in use from now on; durable on return.

        Call it only after a doubt about the last use is durable elsewhere, and everything that the last use
        wrote is synced: this note replaces the last one. If there is no space for the note, the old one
        stays for a log that syncs first: at most it doubts too much. For another log it is marked as a doubt;
        if there is none, StorageFull is raised.
        """
        last = self.load()
        if last is None and not acks_unsynced:
            return
        try:
            self._save(last, OpenMark(self.files.boot_id(), acks_unsynced))
        except StorageFull:
            if last is None:
                raise
            if acks_unsynced:
                self._spoil()

    def _spoil(self) -> None:
        """Mark the note as a doubt: overwriting in place needs no space."""
        with closing(self.files.open(self._path)) as file:
            file.pwrite(b"?", 0)
            file.sync()

    def stopped(self) -> None:
        """Record a clean stop; durable on return. Call it only after everything in the log is synced."""
        last = self.load()
        if last is not None and last.boot_id == self.files.boot_id():
            self._save(last, OpenMark(last.boot_id, last.acks_unsynced, clean=True))

    def _save(self, last: OpenMark | None, opened: OpenMark) -> None:
        if opened != last:
            text = msgspec.json.encode(opened)
            write_durably(self.files, self._path, b"%08x %s\n" % (crc32c(text), text))
