"""The epochs of a log: where each term begins (A-03). The same bytes on every node with the same log.

Little-endian: magic `CLEP` | version u16 | zero u16 | count u32 | zero u32, then for each epoch
    epoch i64 | term i64 | start_index i64 | start_offset i64 | started_ms i64 | length u16 | leader UTF-8
and at the end CRC32C u32 of all before it. Replaced as a whole (temporary file, sync, rename). It is
derived from the control records that open the terms, so a missing or damaged file is rebuilt from the log.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from storage.errors import CorruptBatch
from storage.file_system import Bytes
from storage.format.batch import Batch
from storage.format.checksum import crc32c
from storage.format.records import control_value

MAGIC: Final = b"CLEP"
VERSION: Final = 1
LEADER_MAX_BYTES: Final = 1_024
_HEAD = struct.Struct("<4sHHII")
_EPOCH = struct.Struct("<qqqqqH")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Epoch:
    """A boundary of the log. It ends where the next one starts; the last one is open."""

    epoch: int
    term: int
    leader: str
    start_index: int
    start_offset: int
    started_ms: int

    def begins_before(self, index: int, offset: int) -> bool:
        """Return whether it can be an epoch of a log that begins at `index` and `offset`, and fits into the
        file: another node may have sent it."""
        fits = 0 <= self.started_ms < 1 << 63 and len(self.leader.encode()) <= LEADER_MAX_BYTES
        return fits and 0 <= self.start_index < index and 0 <= self.start_offset < offset


def epoch_of(batch: Batch) -> Epoch | None:
    """Return the epoch that a batch opens, None for every other batch. Raises CorruptBatch."""
    if not batch.is_control:
        return None
    value = control_value(batch)
    if value.get("kind") != "term":
        return None
    leader = value.get("leader")
    if not isinstance(leader, str):
        raise CorruptBatch("control record: a term without a leader")
    return Epoch(batch.term, batch.term, leader, batch.base_index, batch.offset, batch.timestamp_ms)


def epochs_from(epochs: Sequence[Epoch], base_offset: int) -> tuple[Epoch, ...]:
    """Return the epochs without those that end at or before `base_offset`, where the log begins."""
    first = 0
    while first + 1 < len(epochs) and epochs[first + 1].start_offset <= base_offset:
        first += 1
    return tuple(epochs[first:])


def encode_epochs(epochs: Sequence[Epoch]) -> bytes:
    """Return the content of the file."""
    parts = [_HEAD.pack(MAGIC, VERSION, 0, len(epochs), 0)]
    for epoch in epochs:
        leader = epoch.leader.encode()
        parts.append(
            _EPOCH.pack(
                epoch.epoch,
                epoch.term,
                epoch.start_index,
                epoch.start_offset,
                epoch.started_ms,
                len(leader),
            )
        )
        parts.append(leader)
    data = b"".join(parts)
    return data + _CRC.pack(crc32c(data))


def decode_epochs(data: Bytes) -> list[Epoch]:
    """Invert encode_epochs. Raises ValueError for anything but a complete, valid file."""
    end = len(data) - _CRC.size
    if end < _HEAD.size or _CRC.unpack_from(data, end)[0] != crc32c(bytes(data[:end])):
        raise ValueError("checksum")
    magic, version, zero, count, zeros = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION or zero or zeros:
        raise ValueError("not an epoch file of this version")
    epochs: list[Epoch] = []
    at = _HEAD.size
    for _ in range(count):
        if at + _EPOCH.size > end:
            raise ValueError("too short")
        epoch, term, start_index, start_offset, started_ms, length = _EPOCH.unpack_from(data, at)
        at += _EPOCH.size
        if at + length > end:
            raise ValueError("too short")
        leader = bytes(data[at : at + length]).decode()
        epochs.append(Epoch(epoch, term, leader, start_index, start_offset, started_ms))
        at += length
    if at != end:
        raise ValueError("too long")
    return epochs
