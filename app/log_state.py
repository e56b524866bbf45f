"""What a log says beside its records: keys, producers, fence, cursors, members, trims (API.md §3, §5).

PURE. `apply` follows the log batch by batch as batches are stored, committed or not; `truncate_after` takes
back exactly what the cut batches did. So any replica that becomes leader answers a repeat as the old one did.
Memory: a tuple a claim; keys and producers that were silent longer than `idempotency_ms` go with `expire`.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from storage.batch import AppendMark, Batch, marks_of
from storage.records import control_value

REMEMBERED_SEQUENCES: Final = 5
DAY_MS: Final = 24 * 60 * 60 * 1000
NO_INDEX: Final = -1


class Claim(NamedTuple):
    """Where one append stands: what its first answer said. `digest`: of its records and conditions."""

    first_index: int
    last_index: int
    term: int
    first_offset: int
    next_offset: int
    timestamp_ms: int
    digest: bytes


class ProducerHistory(NamedTuple):
    """The last appends of a producer in its newest epoch, oldest first: (sequence, claim)."""

    epoch: int
    recent: tuple[tuple[int, Claim], ...]


class Cursor(NamedTuple):
    """A reader goes on at `position`; with `fence` nothing from there on is trimmed.

    revision: the index of the record that says so.
    """

    position: int
    fence: bool
    revision: int


class Address(NamedTuple):
    """Where a member is reached: base URL of its REST, host:port for its peers."""

    url: str
    peer_address: str


class Membership(NamedTuple):
    """Who is in the group since that record (R-10). nodes: addresses that the log had to teach."""

    since: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    nodes: dict[str, Address]


class SequenceGap(Exception):
    """The sequence is neither the next one nor one of the last few."""

    def __init__(self, expected_sequence: int) -> None:
        super().__init__(f"expected sequence {expected_sequence}")
        self.expected_sequence = expected_sequence


class ProducerFenced(Exception):
    """A newer epoch of the producer has written."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch} has taken over")
        self.epoch = epoch


class _Undo(NamedTuple):
    """The value that `name` had in `table` before the batch that ends there; None: it was absent."""

    last_index: int
    table: int
    name: str
    value: Any


_KEYS, _PRODUCERS, _CURSORS, _FENCE, _MEMBERSHIP = range(5)
_ONE: Final = ""  # the name of what there is one of


class _Snapshot(msgspec.Struct, array_like=True):
    index: int
    committed_index: int
    keys: dict[str, Claim]
    producers: dict[str, ProducerHistory]
    cursors: dict[str, Cursor]
    fencing_token: str | None
    membership: Membership | None
    trim_index: int
    trims: list[tuple[int, int]]
    undo: list[tuple[int, int, str, Any]]


class LogState:
    """State derived from one log, by order and content of its batches alone.

    Invariant: with the same batches applied and the same expiries, every replica holds the same state.
    """

    def __init__(self, *, idempotency_ms: int = DAY_MS) -> None:
        """idempotency_ms: for how long a key or producer is remembered at least, by the leader's clock."""
        self._idempotency_ms = idempotency_ms
        self._keys: dict[str, Claim] = {}
        self._producers: dict[str, ProducerHistory] = {}
        self._cursors: dict[str, Cursor] = {}
        self._fence: dict[str, str] = {}
        self._membership: dict[str, Membership] = {}
        self._trim_index = 0
        self._trims: deque[tuple[int, int]] = deque()  # (index of the record, until_index), not committed yet
        self._undo: deque[_Undo] = deque()
        self._applied_index = NO_INDEX
        self._committed_index = NO_INDEX

    @property
    def idempotency_ms(self) -> int:
        """For how long a key or producer is remembered at least."""
        return self._idempotency_ms

    @property
    def applied_index(self) -> int:
        """Last index of the batch applied last, NO_INDEX for none."""
        return self._applied_index

    @property
    def committed_index(self) -> int:
        """Up to here nothing is ever taken back, NO_INDEX for none."""
        return self._committed_index

    @property
    def fencing_token(self) -> str | None:
        """What every append must carry, None while no fence is set."""
        return self._fence.get(_ONE)

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        """By name, those not committed yet included."""
        return self._cursors

    @property
    def membership(self) -> Membership | None:
        """The last one that the log names, committed or not; None: it never did (R-10)."""
        return self._membership.get(_ONE)

    @property
    def settled_membership(self) -> Membership | None:
        """The last one that is committed; None: no committed record names one (R-10)."""
        undone = (undo.value for undo in self._undo if undo.table == _MEMBERSHIP)
        return next(undone, self.membership)

    @property
    def trim_index(self) -> int:
        """Every replica may remove the records below; 0 when nothing was trimmed. Committed trims only."""
        return self._trim_index

    def fenced_below(self, until_index: int) -> tuple[str, int] | None:
        """The cursor with a fence that stands furthest below `until_index`: (name, position)."""
        fences = [
            (cursor.position, name)
            for name, cursor in self._cursors.items()
            if cursor.fence and cursor.position < until_index
        ]
        if not fences:
            return None
        position, name = min(fences)
        return name, position

    def become(self, other: "LogState") -> None:
        """Take over everything that `other` knows: the state of the same log at another replica."""
        self.__dict__.update(other.__dict__)

    def pass_over(self, first_index: int) -> None:
        """Go on at `first_index`: what precedes it is lost, and counts as trimmed."""
        self._applied_index = max(self._applied_index, first_index - 1)
        self._committed_index = max(self._committed_index, first_index - 1)
        self._trim_index = max(self._trim_index, first_index)

    # --- following the log

    def apply(self, batch: Batch) -> None:
        """Take in the batch that follows. One that was taken in before changes nothing, nor does one beyond a
        gap: what lies in the gap must come from another replica first (`become`).

        Raises CorruptBatch for unreadable marks or control records.
        """
        if batch.base_index != self._applied_index + 1:
            return
        if batch.is_control:
            self._apply_control(batch.last_index, control_value(batch))
        elif batch.header.appends_size:
            next_offset = batch.next_offset  # one object for all claims of the batch
            for mark in marks_of(batch):
                self._apply_mark(batch, mark, next_offset)
        self._applied_index = batch.last_index

    def _apply_control(self, index: int, value: dict[str, Any]) -> None:
        match value.get("kind"):
            case "fence":
                self._set(index, _FENCE, _ONE, value["token"])
            case "cursor":
                at = value["index"]
                cursor = None if at is None else Cursor(at, value["fence"], index)
                self._set(index, _CURSORS, value["name"], cursor)
            case "membership":
                self._set_membership(index, value)
            case "term" if "voters" in value:  # of the log's first leader: its first group
                self._set_membership(index, value)
            case "trim":
                self._trims.append((index, value["until_index"]))
                self._take_committed_trims()

    def _set_membership(self, index: int, value: dict[str, Any]) -> None:
        nodes = {name: Address(*address) for name, address in value.get("nodes", {}).items()}
        membership = Membership(index, tuple(value["voters"]), tuple(value["learners"]), nodes)
        self._set(index, _MEMBERSHIP, _ONE, membership)

    def _set(self, index: int, table: int, name: str, value: Any) -> None:
        """Give `name` a value by the record at `index`; None takes it away."""
        values = self._table(table)
        self._remember(index, table, name, values.pop(name, None))
        if value is not None:
            values[name] = value

    def _table(self, table: int) -> dict[str, Any]:
        tables = (self._keys, self._producers, self._cursors, self._fence, self._membership)
        return tables[table]

    def _apply_mark(self, batch: Batch, mark: AppendMark, next_offset: int) -> None:
        first_index = batch.base_index + mark.ordinal
        last_index = first_index if mark.count == 1 else first_index + mark.count - 1
        claim = Claim(
            first_index, last_index, batch.term, batch.offset, next_offset, batch.timestamp_ms, mark.digest
        )
        if mark.idempotency_key is not None:
            before = self._keys.pop(mark.idempotency_key, None)  # and to the end: the order is that of age
            self._remember(batch.last_index, _KEYS, mark.idempotency_key, before)
            self._keys[mark.idempotency_key] = claim
        if mark.producer_id is not None:
            history = self._producers.pop(mark.producer_id, None)
            self._remember(batch.last_index, _PRODUCERS, mark.producer_id, history)
            entry = (mark.producer_sequence, claim)
            if history is not None and history.epoch == mark.producer_epoch:
                recent = (*history.recent[1 - REMEMBERED_SEQUENCES :], entry)
            else:
                recent = (entry,)
            self._producers[mark.producer_id] = ProducerHistory(mark.producer_epoch, recent)

    def _remember(self, index: int, table: int, name: str, value: Any) -> None:
        if index > self._committed_index:
            self._undo.append(_Undo(index, table, name, value))

    def truncate_after(self, index: int) -> None:
        """Take back every batch past `index`. Raises ValueError below what was committed (R-07)."""
        if index >= self._applied_index:
            return
        if index < self._committed_index:
            raise ValueError(f"index {self._committed_index} is committed")
        while self._undo and self._undo[-1].last_index > index:
            undo = self._undo.pop()
            table = self._table(undo.table)
            table.pop(undo.name, None)
            if undo.value is not None:
                table[undo.name] = undo.value
        while self._trims and self._trims[-1][0] > index:
            self._trims.pop()
        self._applied_index = index

    def committed(self, index: int) -> None:
        """Take note that nothing up to `index` is ever taken back."""
        self._committed_index = max(self._committed_index, index)
        while self._undo and self._undo[0].last_index <= index:
            self._undo.popleft()
        self._take_committed_trims()

    def _take_committed_trims(self) -> None:
        while self._trims and self._trims[0][0] <= self._committed_index:
            self._trim_index = max(self._trim_index, self._trims.popleft()[1])

    def expire(self, now_ms: int) -> None:
        """Forget committed keys and producers that have been silent for longer than idempotency_ms."""
        oldest_ms = now_ms - self._idempotency_ms
        for key in self._silent(self._keys.items(), oldest_ms):
            del self._keys[key]
        latest = ((id, history.recent[-1][1]) for id, history in self._producers.items())
        for id in self._silent(latest, oldest_ms):
            del self._producers[id]

    def _silent(self, claims: Iterable[tuple[str, Claim]], oldest_ms: int) -> list[str]:
        """Return the names at the front of the claims, which stand in the order of age, that are too old."""
        names = []
        for name, claim in claims:
            if claim.timestamp_ms >= oldest_ms or claim.last_index > self._committed_index:
                break
            names.append(name)
        return names

    # --- answering

    def find_key(self, key: str, now_ms: int) -> Claim | None:
        """Return the append that claimed the idempotency key, None when it is free (again)."""
        claim = self._keys.get(key)
        if claim is None or claim.timestamp_ms < now_ms - self._idempotency_ms:
            return None
        return claim

    def check_producer(self, id: str, epoch: int, sequence: int, allow_gap: bool = False) -> Claim | None:
        """Return the append that this sequence is a repeat of, None when it is the next one.

        Raises ProducerFenced for an epoch older than the producer's newest, SequenceGap for a sequence that
        is neither one of the last REMEMBERED_SEQUENCES nor the next (with allow_gap: any larger one).
        """
        history = self._producers.get(id)
        if history is None or epoch > history.epoch:
            return None
        if epoch < history.epoch:
            raise ProducerFenced(history.epoch)
        last = history.recent[-1][0]
        if sequence == last + 1 or (allow_gap and sequence > last):
            return None
        for known, claim in history.recent:
            if known == sequence:
                return claim
        raise SequenceGap(last + 1)

    # --- keeping

    def snapshot(self) -> bytes:
        """Return the whole state, what may still be taken back included; valid for `applied_index`."""
        return msgspec.msgpack.encode(
            _Snapshot(
                self._applied_index,
                self._committed_index,
                self._keys,
                self._producers,
                self._cursors,
                self.fencing_token,
                self.membership,
                self._trim_index,
                list(self._trims),
                list(self._undo),
            )
        )

    @classmethod
    def restore(cls, data: bytes, *, idempotency_ms: int = DAY_MS) -> "LogState":
        """Invert snapshot; go on with the batch after `applied_index`. Raises ValueError."""
        try:
            snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
            undo = [
                _Undo(index, table, name, _undo_value(table, v)) for index, table, name, v in snapshot.undo
            ]
        except msgspec.DecodeError as error:
            raise ValueError(f"not a snapshot: {error}") from error
        state = cls(idempotency_ms=idempotency_ms)
        state._keys = snapshot.keys
        state._producers = snapshot.producers
        state._cursors = snapshot.cursors
        state._fence = {} if snapshot.fencing_token is None else {_ONE: snapshot.fencing_token}
        state._membership = {} if snapshot.membership is None else {_ONE: snapshot.membership}
        state._trim_index = snapshot.trim_index
        state._trims = deque(snapshot.trims)
        state._undo = deque(undo)
        state._applied_index = snapshot.index
        state._committed_index = snapshot.committed_index
        return state


def _undo_value(table: int, value: Any) -> Any:
    """Give a decoded value the type that it had in its table."""
    kinds: tuple[Any, ...] = (
        Claim | None,
        ProducerHistory | None,
        Cursor | None,
        str | None,
        Membership | None,
    )
    return msgspec.convert(value, kinds[table])
