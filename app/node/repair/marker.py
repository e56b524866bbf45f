"""Durable note that a log of this node is damaged: from before the first repair step until it is sound.

DATA/repairing/NAME is JSON. It is outside the log's folder, so it does not depend on the state of that. An
unreadable note still counts, and promises nothing; nor does the one that replaces it.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from app.log.contract import NO_INDEX
from storage.errors import DiskError, DiskRefused
from storage.file_system import FileSystem, write_named_durably

FOLDER: Final = "repairing"


class Note(msgspec.Struct, frozen=True):
    """reason: the first damage; found_by: what detected it.

    keeps_promises: once all ranges are repaired, everything that this replica ever acknowledged or voted is
    restored. Never true again after it was false. lacks_records: records that this replica held are lost,
    perhaps with the membership records among them. Never false again after it was true. intact: the files are
    not damaged, so the log opens without a repair. lost_vote: the term and vote may be older than the last
    ones of this replica. held_index: index up to which the log was durable when the damage was found: missing
    records up to it are damage, not a torn tail. pair: the voters, if the copy is one of two (is_of_pair of
    DamagedCopy): until it is open again, the other one commits nothing without it, and changes no members.
    """

    reason: str
    found_by: str
    since_ms: int
    keeps_promises: bool = False
    lacks_records: bool = True
    intact: bool = False
    lost_vote: bool = False
    held_index: int = NO_INDEX
    pair: tuple[str, ...] = ()


class RepairMarker:
    """The note of one log. Every method may block on the disk."""

    def __init__(self, files: FileSystem, data_folder: str, log_name: str) -> None:
        self._files = files
        self._folder = f"{data_folder}/{FOLDER}"
        self._name = log_name
        self._path = f"{self._folder}/{log_name}"

    @property
    def exists(self) -> bool:
        return self._files.exists(self._path)

    def find(self) -> bool:
        """Return whether there is a note; it is durable then, also one whose writer ended before its sync.
        Raises DiskError."""
        if not self.exists:
            return False
        self._files.sync_folder(self._folder)
        return True

    @property
    def keeps_promises(self) -> bool:
        note = self._load()
        return note is not None and note.keeps_promises

    @property
    def lacks_records(self) -> bool:
        note = self._load()
        return note is None or note.lacks_records

    @property
    def intact(self) -> bool:
        note = self._load()
        return note is not None and note.intact

    @property
    def lost_vote(self) -> bool:
        note = self._load()
        return note is None or note.lost_vote

    @property
    def held_index(self) -> int:
        note = self._load()
        return NO_INDEX if note is None else note.held_index

    @property
    def pair(self) -> tuple[str, ...]:
        note = self._load()
        return () if note is None else note.pair

    def save(self, note: Note) -> None:
        """Save the note; durable on return. The first note of a repair stays, except for its promises, what
        it lacks and the pair. Raises DiskError."""
        if self.find():
            first = self._load()
            note = _unknown_before(note) if first is None else _both(first, note)
            if note == first:
                return
        self._files.make_folders(self._folder)
        self._write(note)

    def forget_held(self) -> None:
        """Forget the held index: those records are restored, or given up; durable on return. Raises
        DiskError."""
        note = self._load()
        if note is not None and note.held_index != NO_INDEX:
            self._write(replace(note, held_index=NO_INDEX))

    def forget_offline(self) -> None:
        """The log is open again, or empty: forget the held index and the pair; durable on return. Raises
        DiskError."""
        note = self._load()
        if note is not None and (note.held_index != NO_INDEX or note.pair):
            self._write(replace(note, held_index=NO_INDEX, pair=()))

    def _write(self, note: Note) -> None:
        write_named_durably(self._files, self._folder, self._name, msgspec.json.encode(note) + b"\n")

    def _load(self) -> Note | None:
        try:
            return msgspec.json.decode(self._files.read(self._path), type=Note)
        except DiskRefused:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError, DiskError):
            return None

    def remove(self) -> None:
        """Remove the note: the log is sound; durable on return. Raises DiskError."""
        if self.exists:
            self._files.remove(self._path)
            self._files.sync_folder(self._folder)


def _both(first: Note, note: Note) -> Note:
    """Return the first note with what a later one adds to it."""
    return replace(
        first,
        keeps_promises=first.keeps_promises and note.keeps_promises,
        lacks_records=first.lacks_records or note.lacks_records,
        intact=first.intact and note.intact,
        lost_vote=first.lost_vote or note.lost_vote,
        held_index=max(first.held_index, note.held_index),
        pair=note.pair,
    )


def _unknown_before(note: Note) -> Note:
    """Return the note that replaces one that cannot be read: the disk may read that again later."""
    return replace(note, keeps_promises=False, lacks_records=True, intact=False, lost_vote=True)
