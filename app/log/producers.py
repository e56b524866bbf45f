"""Idempotent producers of a log: the last appends of each, which may be truncated again (docs/api.md
§3). PURE."""

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from app.errors import ProducerFenced, SequenceGap
from app.log.claims import CLAIM_BYTES, Claim, unpack_claim

NUMBER_MAX: Final = 2**63 - 1  # largest epoch and sequence: snapshots store eight bytes
REMEMBERED_SEQUENCES: Final = 5

# A history: epoch(8), then for each remembered append, oldest first: sequence(8) claim(56), little-endian
_NUMBER = struct.Struct("<q")
_ENTRY_BYTES: Final = _NUMBER.size + CLAIM_BYTES


@dataclass(frozen=True, slots=True)
class Producer:
    """An idempotent producer's claim on one append (docs/api.md §3). `sequence` counts appends."""

    id: str
    epoch: int
    sequence: int
    allow_gap: bool = False


class Undo(NamedTuple):
    """History of producer `id` before the batch that ends at last_index; None: it had none."""

    last_index: int
    id: str
    history: bytes | None


def pack_history(epoch: int, recent: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a history. recent: (sequence, packed claim) of the last appends, oldest first."""
    return _NUMBER.pack(epoch) + b"".join(_NUMBER.pack(sequence) + claim for sequence, claim in recent)


def is_history(data: bytes) -> bool:
    """Return whether `data` has the size of a history with at least one append."""
    entries = len(data) - _NUMBER.size
    return _ENTRY_BYTES <= entries <= _ENTRY_BYTES * REMEMBERED_SEQUENCES and entries % _ENTRY_BYTES == 0


def _epoch_of(history: bytes) -> int:
    return int(_NUMBER.unpack_from(history)[0])


def _last_sequence_of(history: bytes) -> int:
    return int(_NUMBER.unpack_from(history, len(history) - _ENTRY_BYTES)[0])


def _last_index_of(history: bytes) -> int:
    return unpack_claim(history, len(history) - CLAIM_BYTES).last_index


class ProducerTable:
    """The producers of one log, the least recent writer first."""

    def __init__(self) -> None:
        self._histories: dict[str, bytes] = {}
        self._undo: deque[Undo] = deque()

    def __len__(self) -> int:
        return len(self._histories)

    def __contains__(self, id: str) -> bool:
        return id in self._histories

    def add(self, id: str, epoch: int, sequence: int, claim: bytes, uncommitted_until: int | None) -> None:
        """Remember an append of the producer. claim: packed; uncommitted_until: as KeyTable.add.

        A sequence that is not above the last one shows that the leader had forgotten the producer, so it is
        forgotten here too.
        """
        before = self._histories.pop(id, None)  # and to the end: the dict is ordered by age
        if uncommitted_until is not None:
            self._undo.append(Undo(uncommitted_until, id, before))
        entry = _NUMBER.pack(sequence) + claim
        if before is not None and _epoch_of(before) == epoch and _last_sequence_of(before) < sequence:
            recent = before[_NUMBER.size :][-_ENTRY_BYTES * (REMEMBERED_SEQUENCES - 1) :]
            self._histories[id] = before[: _NUMBER.size] + recent + entry
        else:
            self._histories[id] = pack_history(epoch, [(sequence, claim)])

    def check(self, id: str, epoch: int, sequence: int, allow_gap: bool) -> Claim | None:
        """Return the append that this sequence repeats, None when it is the next one.

        Raises ProducerFenced for an epoch older than the producer's newest, SequenceGap for a sequence that
        is neither one of the last REMEMBERED_SEQUENCES nor the next (with allow_gap: any larger one).
        """
        history = self._histories.get(id)
        if history is None or epoch > _epoch_of(history):
            return None
        if epoch < _epoch_of(history):
            raise ProducerFenced(_epoch_of(history), epoch)
        last = _last_sequence_of(history)
        if sequence == last + 1 or (allow_gap and sequence > last):
            return None
        for position in range(_NUMBER.size, len(history), _ENTRY_BYTES):
            if _NUMBER.unpack_from(history, position)[0] == sequence:
                return unpack_claim(history, position + _NUMBER.size)
        raise SequenceGap(last + 1, sequence)

    def committed(self, index: int) -> None:
        """Record that nothing up to `index` is ever truncated."""
        while self._undo and self._undo[0].last_index <= index:
            self._undo.popleft()

    def truncate_after(self, index: int) -> None:
        """Undo the appends of uncommitted batches that end after `index`."""
        while self._undo and self._undo[-1].last_index > index:
            _, id, history = self._undo.pop()
            self._histories.pop(id, None)
            if history is not None:
                self._histories[id] = history

    def drop_to(self, index: int, limit: int) -> None:
        """Forget the producers at the front whose last append ends at or before `index`; at most `limit`."""
        for id, history in list(islice(self._histories.items(), limit)):
            if _last_index_of(history) > index:
                break
            del self._histories[id]
        if not self._histories:
            self._histories.clear()  # or each further call passes over the places of all that were removed

    def capture(self) -> tuple[list[str], list[bytes]]:
        """Return every producer, and its history at the same place. Pairs of very many would be made for
        longer than a turn of the loop may last."""
        return list(self._histories), list(self._histories.values())

    def undo(self) -> list[Undo]:
        """Return the changes that `truncate_after` would undo, in the order of the log."""
        return list(self._undo)

    def load(self, items: Iterable[tuple[str, bytes]], undo: Iterable[Undo] = ()) -> None:
        """Add the pairs of `capture`, and what `undo` returned. Raises ValueError for anything else."""
        for id, history in items:
            if not is_history(history):
                raise ValueError("not a snapshot: a producer's history has the wrong size")
            self._histories[id] = history
        self._undo.extend(undo)
