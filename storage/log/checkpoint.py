"""Starting point of a restart: the checkpoint (two slots) and the snapshot of the log's state (one file).

Checkpoint payload (storage/log/slots.py), magic `CLCP`, little-endian: committed_index i64 | state_index i64.
Snapshot file: magic `CLST` | version u16 | zero u16 | size u64 | payload | CRC32C u32 of all before it.
"""

import struct
from dataclasses import dataclass
from typing import Final

from storage.errors import CorruptFile, NewerFormat
from storage.file_system import Bytes, FileSystem, write_durably
from storage.format.checksum import extend_crc32c
from storage.log.slots import SlotFile
from storage.units import MIB

MAGIC: Final = b"CLCP"
SNAPSHOT_MAGIC: Final = b"CLST"
_PAYLOAD = struct.Struct("<qq")
_SNAPSHOT_HEAD = struct.Struct("<4sHHQ")
_CRC = struct.Struct("<I")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A position that a restart may rely on (D-20).

    committed_index: committed *and* durable in this node's log when it was saved, the smaller of both.
    Recovery treats damage up to it as corruption, not as a torn tail. -1: none. state_index: the snapshot
    file holds the log's state after this index. -1: none.
    """

    committed_index: int = -1
    state_index: int = -1


class CheckpointFile:
    """The checkpoint on disk; `save` is durable on return."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._slots = SlotFile(files, path, MAGIC)

    def load(self) -> Checkpoint:
        """Return the newest checkpoint; an empty one when none was saved. Raises CorruptFile, NewerFormat."""
        payload = self._slots.load()
        if payload is None:
            return Checkpoint()
        if len(payload) != _PAYLOAD.size:
            raise NewerFormat(self._slots.path, f"it has {len(payload)} bytes")
        committed_index, state_index = _PAYLOAD.unpack(payload)
        return Checkpoint(committed_index, state_index)

    def save(self, checkpoint: Checkpoint) -> None:
        self._slots.save(_PAYLOAD.pack(checkpoint.committed_index, checkpoint.state_index))


_SLICE_BYTES: Final = MIB  # written or checked per step: other threads run in between


class SnapshotFile:
    """A block of bytes with a checksum that is replaced as a whole (LogState.capture)."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self.path = path

    def load(self) -> memoryview | None:
        """Return the payload, None when there is no snapshot. Raises CorruptFile, NewerFormat."""
        if not self._files.exists(self.path):
            return None
        data = memoryview(self._files.read(self.path))
        if len(data) < _SNAPSHOT_HEAD.size + _CRC.size:
            raise CorruptFile(self.path, "too short")
        magic, version, zero, size = _SNAPSHOT_HEAD.unpack_from(data)
        end = len(data) - _CRC.size
        if magic != SNAPSHOT_MAGIC or size != end - _SNAPSHOT_HEAD.size:
            raise CorruptFile(self.path, "not a snapshot")
        crc = 0
        for start in range(0, end, _SLICE_BYTES):
            crc = extend_crc32c(crc, data[start : min(start + _SLICE_BYTES, end)])
        if _CRC.unpack_from(data, end)[0] != crc:
            raise CorruptFile(self.path, "checksum")
        if (version, zero) != (_VERSION, 0):
            raise NewerFormat(self.path, f"its format is {version}, not {_VERSION}")
        return data[_SNAPSHOT_HEAD.size : end]

    def remove(self) -> None:
        """Remove the snapshot, if there is one; durable on return."""
        if self._files.exists(self.path):
            self._files.remove(self.path)
            self._files.sync_folder(self.path.rpartition("/")[0])

    def save(self, *pieces: Bytes) -> None:
        """Replace the snapshot by the pieces, one after the other; durable on return."""
        head = _SNAPSHOT_HEAD.pack(SNAPSHOT_MAGIC, _VERSION, 0, sum(map(len, pieces)))
        data = [head, *pieces]
        crc = 0
        for piece in data:
            crc = extend_crc32c(crc, piece)
        write_durably(self._files, self.path, [*data, _CRC.pack(crc)])
