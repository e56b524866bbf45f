"""A master's place in its log for one slave: bytes out, acknowledgements in (A-05, A-08, H-06). PURE."""

from collections import deque
from dataclasses import dataclass
from typing import Final

from app.ha.log import Boundaries, HaLog
from app.log.contract import NO_INDEX
from storage.format.batch import BATCH_MAX_BYTES, Batch
from storage.units import KIB

READ_AHEAD_BYTES: Final = 256 * KIB
UNACKNOWLEDGED_MAX_BYTES: Final = 2 * BATCH_MAX_BYTES  # whole batches alone are acknowledged


class Trimmed(Exception):
    """The next batch is no longer in the log: the slave must start again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one epoch, as many as fit into one frame; a batch may span many frames."""

    offset: int
    epoch: int
    body: bytes


class Sender:
    """Sent and acknowledged position of one slave. Offsets are bytes of the log.

    Invariants: acked_offset <= sent_offset; acked_index is the last batch completely below acked_offset,
    among those that were sent or that the slave began with.
    """

    def __init__(self, log: HaLog, next_index: int, offset: int, held_index: int) -> None:
        """Begin at offset, in the batch of next_index; the slave holds every batch up to held_index."""
        self._log = log
        self._next_index = next_index
        self._current: Batch | None = None  # sent in part
        self._ahead: deque[Batch] = deque()  # the rest of it: a master never truncates its own log
        self._boundaries = Boundaries()
        self._start_offset = offset
        self.sent_offset = offset
        self.acked_offset = offset if held_index != NO_INDEX else 0
        self.acked_index = held_index

    @property
    def waiting_batches(self) -> int:
        """Number of batches that were sent and are not acknowledged."""
        return len(self._boundaries)

    def pieces(self, max_bytes: int, piece_max_bytes: int, until_index: int) -> list[Piece]:
        """Return the next bytes, whole batches up to `until_index`; about max_bytes. Raises Trimmed."""
        cut = _Cutter(self.sent_offset, piece_max_bytes)
        unacknowledged = self.sent_offset - max(self.acked_offset, self._start_offset)
        left = min(max_bytes, UNACKNOWLEDGED_MAX_BYTES - unacknowledged)
        while left > 0 and (batch := self._current or self._read(until_index)) is not None:
            at = self.sent_offset - batch.offset
            size = min(batch.size_bytes - at, left)
            cut.add(batch.term, memoryview(batch.data)[at : at + size])
            self.sent_offset += size
            left -= size
            self._current = batch
            if self.sent_offset == batch.next_offset:
                self._current = None
                self._next_index = batch.next_index
                self._boundaries.add(batch)
        return cut.done()

    def _read(self, until_index: int) -> Batch | None:
        log = self._log
        if not self._ahead and self._next_index <= until_index:
            if self._next_index < log.begin_index:
                raise Trimmed
            self._ahead.extend(log.read_batches(self._next_index, READ_AHEAD_BYTES, until_index))
        return self._ahead.popleft() if self._ahead else None

    def acknowledge(self, max_offset: int) -> str | None:
        """Record that the slave holds everything below max_offset. Return why that is impossible, None
        when it is not."""
        if max_offset > self.sent_offset:
            return f"an ack of {max_offset}, but only {self.sent_offset} was sent"
        if max_offset < self.acked_offset:
            return f"an ack of {max_offset} after one of {self.acked_offset}"
        self.acked_offset = max_offset
        reached = self._boundaries.take_until(max_offset)
        if reached is not None:
            self.acked_index = reached[1]
        return None


class _Cutter:
    """Splits the bytes of batches into pieces: none over two epochs (A-05), none larger than allowed
    (H-06)."""

    def __init__(self, offset: int, piece_max_bytes: int) -> None:
        self._offset = offset
        self._max_bytes = piece_max_bytes
        self._epoch = 0
        self._parts: list[memoryview] = []
        self._size = 0
        self._pieces: list[Piece] = []

    def add(self, epoch: int, data: memoryview) -> None:
        if epoch != self._epoch:
            self._flush()
            self._epoch = epoch
        while len(data):
            part = data[: self._max_bytes - self._size]
            self._parts.append(part)
            self._size += len(part)
            data = data[len(part) :]
            if self._size == self._max_bytes:
                self._flush()

    def done(self) -> list[Piece]:
        self._flush()
        return self._pieces

    def _flush(self) -> None:
        if self._parts:
            self._pieces.append(Piece(self._offset, self._epoch, b"".join(self._parts)))
            self._offset += self._size
            self._parts, self._size = [], 0
