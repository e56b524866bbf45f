"""Restoration of a log's state from a snapshot that arrives in pieces (app/log/snapshot.py). PURE."""

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from app.log.claims import Claim, key_hash, pack_claim
from app.log.producers import Undo, pack_history
from app.log.snapshot import (
    END,
    HEAD,
    KEYS,
    PRODUCERS,
    Frames,
    OldClaim,
    OldHistory,
    OldSnapshot,
    SnapshotHead,
)
from storage.file_system import Bytes
from storage.units import NO_INDEX

RestoredKey = tuple[int | None, bytes, bytes]  # last index of the batch (None: committed), hash, packed claim
_OLD_KEYS: Final = 0  # numbers of tables in `OldSnapshot.undo`
_OLD_PRODUCERS: Final = 1
_PRODUCERS_DECODER = msgspec.msgpack.Decoder(list[tuple[str, bytes]])
_HEAD_DECODER = msgspec.msgpack.Decoder(SnapshotHead)


class Restorable(Protocol):
    """A state that takes the parts of a snapshot in their order. Every method raises ValueError for parts
    that cannot belong to a snapshot."""

    def take_head(self, head: SnapshotHead) -> None: ...
    def take_partition(self, dumped: bytes) -> None:
        """Add a partition of committed keys."""
        ...

    def take_producers(self, producers: Iterable[tuple[str, bytes]]) -> None: ...
    def take_keys(self, keys: Iterable[RestoredKey]) -> None:
        """Add keys one by one, after all partitions."""
        ...


AnyRestorable = TypeVar("AnyRestorable", bound=Restorable)
Whole = TypeVar("Whole")


class Restoring(Generic[AnyRestorable]):
    """Rebuilds a state from a snapshot that arrives in pieces of any size."""

    def __init__(self, state: AnyRestorable) -> None:
        self._state = state
        self._frames = Frames()
        self._keys: list[RestoredKey] = []  # uncommitted, to be added after the committed ones
        self._ended = False

    def feed(self, data: Bytes) -> None:
        """Add the next piece. Raises ValueError if it cannot belong to a snapshot."""
        for kind, payload in self._frames.feed(data):
            try:
                self._take(kind, payload)
            except msgspec.DecodeError as error:
                raise ValueError(f"not a snapshot: {error}") from error

    def _take(self, kind: int, payload: bytes) -> None:
        if self._ended:
            raise ValueError("not a snapshot: data after its end")
        if kind == HEAD:
            head = _HEAD_DECODER.decode(payload)
            self._state.take_head(head)
            self._keys = list(head.keys)
        elif kind == KEYS:
            self._state.take_partition(payload)
        elif kind == PRODUCERS:
            self._state.take_producers(_PRODUCERS_DECODER.decode(payload))
        elif kind == END:
            self._ended = True
        else:
            raise ValueError(f"not a snapshot: unknown kind of frame {kind}")

    def finish(self) -> AnyRestorable:
        """Return the state. Raises ValueError when pieces are missing."""
        if self._frames.is_old:
            try:
                self._take_old(msgspec.msgpack.decode(self._frames.rest, type=OldSnapshot))
            except msgspec.DecodeError as error:
                raise ValueError(f"not a snapshot: {error}") from error
        elif not self._ended:
            raise ValueError("not a snapshot: its end is missing")
        self._state.take_keys(self._keys)
        return self._state

    def _take_old(self, old: OldSnapshot) -> None:
        self._state.take_head(_head_of_old(old))
        self._state.take_producers((id, _packed_history(history)) for id, history in old.producers.items())
        for key, claim in sorted(old.keys.items(), key=lambda item: item[1].first_index):
            until = claim.last_index if claim.last_index > old.committed_index else None
            self._keys.append((until, key_hash(key), _packed(claim)))


class WholeRestoring(Generic[Whole]):
    """As Restoring, for a state whose snapshot is decoded in one piece."""

    def __init__(self, restore: Callable[[bytes], Whole]) -> None:
        self._restore = restore
        self._data = bytearray()

    def feed(self, data: Bytes) -> None:
        self._data += data

    def finish(self) -> Whole:
        """Return the state. Raises ValueError."""
        return self._restore(bytes(self._data))


def _head_of_old(old: OldSnapshot) -> SnapshotHead:
    """Convert a snapshot of versions that kept keys as text. Every record before it counts as data."""
    return SnapshotHead(
        index=old.index,
        committed_index=old.committed_index,
        cursors=old.cursors,
        fencing_token=old.fencing_token,
        membership=old.membership,
        trim_index=old.trim_index,
        trims=old.trims,
        undo=[each for each in old.undo if each[1] not in (_OLD_KEYS, _OLD_PRODUCERS)],
        keys=[],
        producers_undo=[
            Undo(last_index, id, _converted(value))
            for last_index, table, id, value in old.undo
            if table == _OLD_PRODUCERS
        ],
        data_end=old.index + 1,
        data_ends=[],
        age_ms=0,
        notes=[],
        horizon=NO_INDEX,
    )


def _packed(claim: OldClaim) -> bytes:
    return pack_claim(Claim(*msgspec.structs.astuple(claim)))


def _packed_history(history: OldHistory) -> bytes:
    epoch, recent = history
    return pack_history(epoch, [(sequence, _packed(claim)) for sequence, claim in recent])


def _converted(history: Any) -> bytes | None:
    return None if history is None else _packed_history(msgspec.convert(history, OldHistory))
