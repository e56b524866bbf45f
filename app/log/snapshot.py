"""Snapshots of a log's state, written and read in pieces. PURE.

    CLS2 | frames: size u32, kind u8, payload of `size` bytes | ... | an END frame, empty

HEAD is first: msgpack of SnapshotHead. KEYS: one partition (app/log/claims.py). PRODUCERS: msgpack of
pairs (id, history). All numbers are little-endian. A node also reads the format of earlier versions: one
msgpack array, `OldSnapshot`.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from app.log.claims import KeyTable, unpack_claim
from app.log.producers import Undo
from app.log.recorded_values import LogCursor, Membership, SyncFloor
from app.log.schemas import SchemaVersion
from storage.file_system import Bytes

MAGIC: Final = b"CLS2"
HEAD, KEYS, PRODUCERS, END = 1, 2, 3, 4
_FRAME = struct.Struct("<IB")
_PRODUCERS_A_FRAME: Final = 500


class SnapshotHead(msgspec.Struct, array_like=True):
    """The state without committed keys and producers; `*undo` and keys contain what may be truncated yet."""

    index: int
    committed_index: int
    cursors: dict[str, LogCursor]
    fencing_token: str | None
    membership: Membership | None
    trim_index: int
    trims: list[tuple[int, int]]
    undo: list[tuple[int, int, str, Any]]
    keys: list[tuple[int, bytes, bytes]]  # uncommitted: last index of the batch, hash, claim
    producers_undo: list[Undo]
    data_end: int
    data_ends: list[int]
    age_ms: int
    notes: list[tuple[int, int]]
    horizon: int
    schemas: list[SchemaVersion] = []  # absent in snapshots of earlier versions
    sync_floor: SyncFloor | None = None  # as schemas


class OldClaim(msgspec.Struct, array_like=True):
    """A claim in a snapshot of an earlier version: not packed."""

    first_index: int
    last_index: int
    term: int
    first_offset: int
    next_offset: int
    timestamp_ms: int
    digest: bytes


OldHistory = tuple[int, tuple[tuple[int, OldClaim], ...]]


class OldSnapshot(msgspec.Struct, array_like=True):
    """The state as one msgpack array: the format of earlier versions."""

    index: int
    committed_index: int
    keys: dict[str, OldClaim]
    producers: dict[str, OldHistory]
    cursors: dict[str, LogCursor]
    fencing_token: str | None
    membership: Membership | None
    trim_index: int
    trims: list[tuple[int, int]]
    undo: list[tuple[int, int, str, Any]]


class Capture:
    """The state of a log at `index`, to be read in pieces while the log continues.

    Committed keys are read when their piece is read: what was committed at the capture is never truncated,
    and keys that expire meanwhile are left out.
    """

    def __init__(self, index: int, committed_index: int, pieces: Iterator[bytes]) -> None:
        """committed_index: nothing up to here can be truncated, at most `index`."""
        self.index = index
        self.committed_index = committed_index
        self._pieces = pieces

    def take(self, max_bytes: int) -> list[bytes]:
        """Return the next pieces: about max_bytes, at least one piece; [] after the last one."""
        taken, size = [], 0
        while size < max_bytes and (piece := next(self._pieces, None)) is not None:
            taken.append(piece)
            size += len(piece)
        return taken


def pieces_of(
    head: SnapshotHead, keys: KeyTable, producers: tuple[list[str], list[bytes]]
) -> Iterator[bytes]:
    """Return the pieces of a snapshot one by one. producers: of ProducerTable.capture. `head` is encoded at
    once, because its values change later."""
    first_piece = MAGIC + _frame(HEAD, msgspec.msgpack.encode(head))
    until_index = head.committed_index
    if head.keys:  # a partly committed batch is among the uncommitted ones
        until_index = min(until_index, unpack_claim(head.keys[0][2]).first_index - 1)
    return _pieces(first_piece, until_index, keys, producers)


def _pieces(
    first_piece: bytes, until_index: int, keys: KeyTable, producers: tuple[list[str], list[bytes]]
) -> Iterator[bytes]:
    yield first_piece
    ids, histories = producers
    for first in range(0, len(ids), _PRODUCERS_A_FRAME):
        part = slice(first, first + _PRODUCERS_A_FRAME)
        pairs = tuple(zip(ids[part], histories[part], strict=True))
        yield _frame(PRODUCERS, msgspec.msgpack.encode(pairs))
    for number in keys.numbers():  # a partition that begins later holds no key of this snapshot
        dumped = keys.dump(number, until_index)
        if dumped:
            yield _frame(KEYS, dumped)
    yield _frame(END, b"")


def _frame(kind: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload), kind) + payload


class Frames:
    """Splits a snapshot that arrives in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._begun = False

    @property
    def rest(self) -> bytes:
        """Bytes that belong to no complete frame: all of a snapshot in the old format."""
        return bytes(self._buffer)

    @property
    def is_old(self) -> bool:
        """True if the received bytes are not in this format."""
        return not self._begun

    def feed(self, data: Bytes) -> Iterable[tuple[int, bytes]]:
        """Return the frames that are complete now: (kind, payload)."""
        buffer = self._buffer
        buffer += data
        position = 0
        if not self._begun:
            if len(buffer) < len(MAGIC) or not buffer.startswith(MAGIC):
                return []
            self._begun, position = True, len(MAGIC)
        frames = []
        while len(buffer) - position >= _FRAME.size:
            size, kind = _FRAME.unpack_from(buffer, position)
            end = position + _FRAME.size + size
            if end > len(buffer):
                break
            frames.append((kind, bytes(buffer[position + _FRAME.size : end])))
            position = end
        del buffer[:position]
        return frames
