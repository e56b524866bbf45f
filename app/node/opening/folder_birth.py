"""Age of a node's data folder relative to the metadata: which logs may have had another folder at this node.

DATA/born is one line: CRC32C in hexadecimal, a space, JSON. A log that was created later than the folder
opens for the first time at each of its replicas with an empty folder, and no disk was replaced. A log that is
older than the folder may have been here before: then its empty folder is a doubt (trust.py). So is that of a
log which an earlier incarnation knew already, and has opened: its files were removed since. A folder that was
put in the place of a later one is as old as its first start there.
"""

from typing import Final

import msgspec

from app.node.repair.marker import RepairMarker
from storage.errors import DiskError, DiskRefused
from storage.file_system import FileSystem, write_durably
from storage.format.checksum import crc32c
from storage.units import NO_INDEX

_NEVER: Final = 1 << 62


class _BirthLine(msgspec.Struct, frozen=True):
    index: int


class FolderBirth:
    """The record of one node. Every method may block on the disk."""

    def __init__(self, files: FileSystem, data_folder: str, metadata_marker: RepairMarker) -> None:
        """metadata_marker: the note of the replica of `__controller`. While that may lack committed
        records, every log may be older than the folder, until `read`."""
        self._files = files
        self._path = f"{data_folder}/born"
        self._marker = metadata_marker
        self._known_index = NO_INDEX
        self._read_index = _NEVER

    def know(self, index: int) -> None:
        """An earlier incarnation knew the metadata up to `index`."""
        self._known_index = index

    def read(self, index: int) -> None:
        """Record that the leader of the metadata has confirmed `index` to this incarnation: a log that is
        created later is newer than this folder. Only the first index counts."""
        self._read_index = min(self._read_index, index)

    @property
    def index(self) -> int:
        """Index of `__controller`: a log created at or below it existed before this folder, or was opened
        before; NO_INDEX for none."""
        return max(self._known_index, self.folder_index)

    @property
    def folder_index(self) -> int:
        """Index of `__controller`: a log created at or below it existed before this folder; NO_INDEX for
        none."""
        if self._marker.intact:
            return self._read_index
        return self._saved_index

    @property
    def _saved_index(self) -> int:
        if not self._files.exists(self._path):  # a folder of an earlier version
            return NO_INDEX
        try:
            checksum, _, text = self._files.read(self._path).strip().partition(b" ")
        except DiskRefused:
            raise
        except DiskError:
            return _NEVER
        if checksum != b"%08x" % crc32c(text):
            return _NEVER
        return msgspec.json.decode(text, type=_BirthLine).index

    def save(self, index: int) -> None:
        """Save the index, or the one that was read if that is lower. Durable on return. Raises DiskError.

        The first one stays, unless the folder is a copy: what was created since may have been in the one that
        it replaces.
        """
        index = min(index, self._read_index)
        is_copy = self._marker.exists and self._marker.lost_vote
        if not self._files.exists(self._path) or (is_copy and self._saved_index < index):
            text = msgspec.json.encode(_BirthLine(index))
            write_durably(self._files, self._path, b"%08x %s\n" % (crc32c(text), text))
        else:  # its writer may have ended before it was durable
            self._files.sync_folder(self._path.rpartition("/")[0])
