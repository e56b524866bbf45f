"""State that a log derives from its records: keys, producers, fence, cursors, members, trims, schemas
(docs/api.md §3, §5).

PURE. `apply` follows the log batch by batch as batches are stored, committed or not; `truncate_after` undoes
exactly what the truncated batches did. So every replica that becomes leader answers a retry as the old leader
did. Uncommitted batches count for decisions about later appends; readers get committed values.

Keys and producers expire by elapsed time and by the log's own progress, never by a wall clock: `pass_time`
records periodically how far the log is committed. What was committed before a record that is at least
`idempotency_ms` old may be forgotten. Time in which this replica does not run does not count.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import UNSET

from app.log.claims import CLAIM_BYTES, HASH_BYTES, PARTITIONS, Claim, KeyTable, key_hash, pack_claim
from app.log.control_records import (
    AnyControlRecord,
    CursorRecord,
    FenceRecord,
    MembershipRecord,
    SchemaRecord,
    TermRecord,
    TrimRecord,
    decode_control,
)
from app.log.producers import ProducerTable
from app.log.recorded_values import Address, LogCursor, Membership, SyncFloor
from app.log.restoring import RestoredKey, Restoring, WholeRestoring
from app.log.schemas import LogSchemas
from app.log.snapshot import Capture, SnapshotHead, pieces_of
from storage.file_system import Bytes
from storage.format.batch import AppendMark, Batch, marks_of
from storage.format.records import control_value
from storage.units import NO_INDEX

__all__ = [
    "DAY_MS",
    "Address",
    "Claim",
    "LogCursor",
    "LogState",
    "Membership",
]

DAY_MS: Final = 24 * 60 * 60 * 1000
NOTES: Final = 64  # of progress within idempotency_ms: expiry is late by at most this fraction
EXPIRED_PARTITIONS: Final = 64  # visited by one call of `expire`
EXPIRED_PRODUCERS: Final = 1_000  # checked by one call of `expire`


class _Undo(NamedTuple):
    """The value that `name` had in `table` before the batch that ends there; None: it was absent."""

    last_index: int
    table: int
    name: str
    value: Any


_CURSORS, _FENCE, _MEMBERSHIP = 2, 3, 4  # in snapshots; 0 and 1: keys and producers of earlier versions
_ONE: Final = ""  # the key in a table with one value
_VALUES: Final[Mapping[int, Any]] = {_CURSORS: LogCursor, _FENCE: str, _MEMBERSHIP: Membership}


class LogState:
    """State derived from one log, from the order and content of its batches alone.

    Invariant: with the same batches applied and the same expiries, every replica holds the same state.
    """

    def __init__(self, *, idempotency_ms: int = DAY_MS) -> None:
        """idempotency_ms: minimum time for which a committed key or producer is remembered."""
        self._idempotency_ms = idempotency_ms
        self._keys = KeyTable()
        self._producers = ProducerTable()
        self._cursors: dict[str, LogCursor] = {}
        self._fence: dict[str, str] = {}
        self._membership: dict[str, Membership] = {}
        self._sync_floor: SyncFloor | None = None
        self._trim_index = 0
        self._trims: deque[tuple[int, int]] = deque()  # (index of the record, until_index), uncommitted
        self._undo: deque[_Undo] = deque()  # of cursors, fence and membership
        self._schemas = LogSchemas()
        self._data_end = 0  # the index after the last committed data record
        self._data_ends: deque[int] = deque()  # the index after each uncommitted batch of data
        self._applied_index = NO_INDEX
        self._committed_index = NO_INDEX
        self._age_ms = 0  # running time of replicas with this state
        self._seen_ms: int | None = None  # monotonic, of the last pass_time
        self._notes: deque[tuple[int, int]] = deque()  # (age, committed index then), oldest first
        self._horizon = NO_INDEX  # everything that ends at or before it has expired
        self._unvisited = 0  # partitions of keys that the current round of expiry has not visited

    @property
    def idempotency_ms(self) -> int:
        """Minimum time for which a committed key or producer is remembered."""
        return self._idempotency_ms

    @property
    def applied_index(self) -> int:
        """Last index of the batch applied last, NO_INDEX for none."""
        return self._applied_index

    @property
    def committed_index(self) -> int:
        """Index up to which nothing is ever truncated; NO_INDEX for none."""
        return self._committed_index

    @property
    def data_end(self) -> int:
        """The index after the last data record, uncommitted ones included; 0 for none (docs/api.md §3)."""
        return self._data_ends[-1] if self._data_ends else self._data_end

    @property
    def key_count(self) -> int:
        """Number of remembered idempotency keys; an expired one counts until `expire` has removed it."""
        return len(self._keys)

    @property
    def producer_count(self) -> int:
        """Number of remembered producers."""
        return len(self._producers)

    @property
    def fencing_token(self) -> str | None:
        """The token that every append must carry, None while no fence is set. Uncommitted fences count."""
        return self._fence.get(_ONE)

    @property
    def cursors(self) -> Mapping[str, LogCursor]:
        """Cursors by name, uncommitted ones included: for decisions about later records."""
        return self._cursors

    def committed_cursor(self, name: str) -> LogCursor | None:
        """Return the cursor as the last committed record set it, None when there is none: for readers."""
        for undo in self._undo:
            if undo.table == _CURSORS and undo.name == name:
                before: LogCursor | None = undo.value
                return before
        return self._cursors.get(name)

    def committed_cursors(self) -> dict[str, LogCursor]:
        """Return all cursors as `committed_cursor` does, in the order of their names."""
        found: dict[str, LogCursor | None] = dict(self._cursors)
        for undo in reversed(self._undo):
            if undo.table == _CURSORS:
                found[undo.name] = undo.value
        return {name: cursor for name, cursor in sorted(found.items()) if cursor is not None}

    @property
    def schemas(self) -> LogSchemas:
        """All versions of the log's schema, uncommitted ones included. Readers get those `until` what they
        may see."""
        return self._schemas

    def schema_version(self, index: int) -> int | None:
        """Return the newest version of the schema that a record up to `index` set, 0 when there is none.

        None: this replica has not received the log's state up to there yet.
        """
        if self._applied_index < index:
            return None
        found = self._schemas.until(index)
        return found[-1].version if found else 0

    @property
    def membership(self) -> Membership | None:
        """The last membership in the log, committed or not (R-10); None: the log has none."""
        return self._membership.get(_ONE)

    @property
    def settled_membership(self) -> Membership | None:
        """The last committed membership; None: no committed record contains one (R-10)."""
        undone = (undo.value for undo in self._undo if undo.table == _MEMBERSHIP)
        return next(undone, self.membership)

    @property
    def replaced_membership(self) -> Membership | None:
        """The membership that the last one replaced, while the last is not known to be committed; otherwise
        the last (R-10). None: no earlier record contains one."""
        undone = (undo.value for undo in reversed(self._undo) if undo.table == _MEMBERSHIP)
        return next(undone, self.membership)

    @property
    def sync_floor(self) -> SyncFloor | None:
        """Requirement of the newest epoch of a classic log for synchronous appends; None: no record that was
        kept states it."""
        return self._sync_floor

    @property
    def trim_index(self) -> int:
        """Index below which every replica may remove records; 0 when nothing was trimmed. Committed trims
        only."""
        return self._trim_index

    @property
    def logged_trim_index(self) -> int:
        """As `trim_index`, with the trims in the log that are not known here to be committed."""
        return max(self._trim_index, max((until for _, until in self._trims), default=0))

    def fenced_below(self, until_index: int) -> tuple[str, int] | None:
        """Return the cursor with a fence that is furthest below `until_index`: (name, position)."""
        first = self._first_fence
        return first if first is not None and first[1] < until_index else None

    @property
    def fence_lag(self) -> int | None:
        """Number of indexes from the first cursor with a fence to the last data record, at least 0.

        Uncommitted records count. None: no cursor has a fence.
        """
        first = self._first_fence
        return None if first is None else max(0, self.data_end - first[1])

    @property
    def _first_fence(self) -> tuple[str, int] | None:
        """Name and position of the cursor with a fence that is furthest back; None without one."""
        fences = [(cursor.position, name) for name, cursor in self._cursors.items() if cursor.fence]
        if not fences:
            return None
        position, name = min(fences)
        return name, position

    def become(self, other: "LogState") -> None:
        """Adopt everything that `other` holds: the state of the same log at another replica."""
        self.__dict__.update(other.__dict__)

    def pass_over(self, first_index: int) -> None:
        """Continue at `first_index`: records before it are lost, and count as trimmed."""
        self._applied_index = max(self._applied_index, first_index - 1)
        self._committed_index = max(self._committed_index, first_index - 1)
        self._trim_index = max(self._trim_index, first_index)
        self._data_end = max(self._data_end, first_index)

    # --- following the log

    def apply(self, batch: Batch) -> None:
        """Apply the next batch. A batch that was applied before, or one after a gap, changes nothing: the
        state in a gap must first be received from another replica (`become`).

        Raises CorruptBatch for unreadable marks or control records.
        """
        if batch.base_index != self._applied_index + 1:
            return
        if batch.is_control:
            self._apply_control(batch.last_index, decode_control(control_value(batch)))
        else:
            if batch.header.appends_size:
                self._apply_marks(batch, marks_of(batch))
            if batch.last_index > self._committed_index:
                self._data_ends.append(batch.next_index)
            else:
                self._data_end = batch.next_index
        self._applied_index = batch.last_index

    def _apply_control(self, index: int, record: AnyControlRecord | None) -> None:
        match record:
            case FenceRecord(token=token):
                self._set(index, _FENCE, _ONE, token)
            case CursorRecord(name=name, index=position, fence=fence, holder=named):
                holder = None if named is UNSET else named
                cursor = None if position is None else LogCursor(position, fence, index, holder)
                self._set(index, _CURSORS, name, cursor)
            case MembershipRecord(voters=voters, learners=learners, nodes=named):
                nodes = {name: Address(*address) for name, address in named.items()}
                self._set(index, _MEMBERSHIP, _ONE, Membership(index, voters, learners, nodes))
            case TermRecord(voters=tuple(voters), learners=learners):  # contains the first group
                others = () if learners is UNSET else learners
                self._set(index, _MEMBERSHIP, _ONE, Membership(index, voters, others, {}))
            case TermRecord(sync_slaves=int(sync_slaves), slaves=int(slaves)):
                self._sync_floor = SyncFloor(index, sync_slaves, slaves)
            case TrimRecord(until_index=until_index):
                self._trims.append((index, until_index))
                self._take_committed_trims()
            case SchemaRecord():
                self._schemas.add(index, record)

    def _set(self, index: int, table: int, name: str, value: Any) -> None:
        """Set the value of `name` by the record at `index`; None removes it."""
        values = self._table(table)
        before = values.pop(name, None)
        if index > self._committed_index:
            self._undo.append(_Undo(index, table, name, before))
        if value is not None:
            values[name] = value

    def _table(self, table: int) -> dict[str, Any]:
        tables: dict[int, dict[str, Any]] = {
            _CURSORS: self._cursors,
            _FENCE: self._fence,
            _MEMBERSHIP: self._membership,
        }
        return tables[table]

    def _apply_marks(self, batch: Batch, marks: tuple[AppendMark, ...]) -> None:
        uncommitted_until = batch.last_index if batch.last_index > self._committed_index else None
        for mark in marks:
            first_index = batch.base_index + mark.ordinal
            claim = pack_claim(
                Claim(
                    first_index,
                    first_index + mark.count - 1,
                    batch.term,
                    batch.offset,
                    batch.next_offset,
                    batch.timestamp_ms,
                    mark.digest,
                )
            )
            if mark.idempotency_key is not None:
                self._keys.add(key_hash(mark.idempotency_key), claim, uncommitted_until)
            if mark.producer_id is not None:
                epoch, sequence = mark.producer_epoch, mark.producer_sequence
                self._producers.add(mark.producer_id, epoch, sequence, claim, uncommitted_until)

    def truncate_after(self, index: int) -> None:
        """Undo every batch after `index`. Raises ValueError below the committed index (R-07)."""
        if index >= self._applied_index:
            return
        if index < self._committed_index:
            raise ValueError(f"index {self._committed_index} is committed")
        self._keys.truncate_after(index)
        self._producers.truncate_after(index)
        while self._undo and self._undo[-1].last_index > index:
            undo = self._undo.pop()
            table = self._table(undo.table)
            table.pop(undo.name, None)
            if undo.value is not None:
                table[undo.name] = undo.value
        self._schemas.truncate_after(index)
        if self._sync_floor is not None and self._sync_floor.since > index:
            self._sync_floor = None
        while self._trims and self._trims[-1][0] > index:
            self._trims.pop()
        while self._data_ends and self._data_ends[-1] > index + 1:
            self._data_ends.pop()
        self._applied_index = index

    def committed(self, index: int) -> None:
        """Record that nothing up to `index` is ever truncated."""
        self._committed_index = max(self._committed_index, index)
        self._keys.committed(index)
        self._producers.committed(index)
        while self._undo and self._undo[0].last_index <= index:
            self._undo.popleft()
        while self._data_ends and self._data_ends[0] <= index + 1:
            self._data_end = self._data_ends.popleft()
        self._take_committed_trims()

    def _take_committed_trims(self) -> None:
        while self._trims and self._trims[0][0] <= self._committed_index:
            self._trim_index = max(self._trim_index, self._trims.popleft()[1])

    # --- forgetting

    def pass_time(self, now_ms: int) -> None:
        """Record the progress of the log, and determine what has expired. now_ms: monotonic, of this
        process."""
        if self._seen_ms is not None:
            self._age_ms += max(0, now_ms - self._seen_ms)
        self._seen_ms = now_ms
        if not self._notes or self._age_ms - self._notes[-1][0] > self._idempotency_ms // NOTES:
            self._notes.append((self._age_ms, min(self._committed_index, self._applied_index)))
        while self._notes and self._age_ms - self._notes[0][0] >= self._idempotency_ms:
            index = self._notes.popleft()[1]
            if index > self._horizon:
                self._horizon, self._unvisited = index, PARTITIONS

    def expire(self) -> None:
        """Remove a part of what has expired; a call takes well under a millisecond."""
        if self._unvisited > 0:
            self._unvisited -= EXPIRED_PARTITIONS
            self._keys.drop_to(self._horizon, EXPIRED_PARTITIONS)
        if self._horizon != NO_INDEX:
            self._producers.drop_to(self._horizon, EXPIRED_PRODUCERS)

    # --- answering

    def find_key(self, key: str) -> Claim | None:
        """Return the append that claimed the idempotency key, None when it is free (again)."""
        claim = self._keys.find(key)
        return None if claim is None or claim.last_index <= self._horizon else claim

    def knows_producer(self, id: str) -> bool:
        """Return whether the producer has appended and is remembered."""
        return id in self._producers

    def check_producer(self, id: str, epoch: int, sequence: int, allow_gap: bool = False) -> Claim | None:
        """Return the append that this sequence repeats, None when it is the next one.

        Raises ProducerFenced for an epoch older than the producer's newest, SequenceGap for a sequence that
        is neither one of the last five nor the next (with allow_gap: any larger one).
        """
        return self._producers.check(id, epoch, sequence, allow_gap)

    # --- keeping

    def capture(self) -> Capture:
        """Return the whole state at `applied_index`, including what may still be truncated, in pieces.

        After a truncation below that index, the remaining pieces must not be read.
        """
        committed_index = min(self._committed_index, self._applied_index)
        head = SnapshotHead(
            index=self._applied_index,
            committed_index=self._committed_index,
            cursors=self._cursors,
            fencing_token=self.fencing_token,
            membership=self.membership,
            trim_index=self._trim_index,
            trims=list(self._trims),
            undo=list(self._undo),
            keys=self._keys.uncommitted(),
            producers_undo=self._producers.undo(),
            data_end=self._data_end,
            data_ends=list(self._data_ends),
            age_ms=self._age_ms,
            notes=list(self._notes),
            horizon=self._horizon,
            schemas=list(self._schemas.versions),
            sync_floor=self._sync_floor,
        )
        return Capture(
            self._applied_index, committed_index, pieces_of(head, self._keys, self._producers.capture())
        )

    def snapshot(self) -> bytes:
        """Return the state as one piece; may take long."""
        return b"".join(self.capture().take(1 << 62))

    @classmethod
    def restoring(cls, *, idempotency_ms: int = DAY_MS) -> "Restoring[LogState] | WholeRestoring[LogState]":
        """Return the object that rebuilds a state from the pieces of a snapshot."""
        return Restoring(cls(idempotency_ms=idempotency_ms))

    @classmethod
    def restore(cls, data: Bytes, *, idempotency_ms: int = DAY_MS) -> "LogState":
        """Invert `snapshot`; continue with the batch after `applied_index`. Raises ValueError."""
        restoring = cls.restoring(idempotency_ms=idempotency_ms)
        restoring.feed(data)
        return restoring.finish()

    def take_head(self, head: SnapshotHead) -> None:
        """Adopt what a snapshot holds beside committed keys and producers. Raises ValueError."""
        self._cursors = head.cursors
        self._fence = {} if head.fencing_token is None else {_ONE: head.fencing_token}
        self._membership = {} if head.membership is None else {_ONE: head.membership}
        self._trim_index = head.trim_index
        self._trims = deque(head.trims)
        self._undo = deque(_undo_of(*undo) for undo in head.undo)
        self._data_end, self._data_ends = head.data_end, deque(head.data_ends)
        self._applied_index, self._committed_index = head.index, head.committed_index
        self._age_ms, self._notes, self._horizon = head.age_ms, deque(head.notes), head.horizon
        self._unvisited = 0 if head.horizon == NO_INDEX else PARTITIONS
        self._schemas = LogSchemas(head.schemas)
        self._sync_floor = head.sync_floor
        self._producers.load((), head.producers_undo)

    def take_partition(self, dumped: bytes) -> None:
        """Add a partition of committed keys. Raises ValueError."""
        self._keys.load(dumped)

    def take_producers(self, producers: Iterable[tuple[str, bytes]]) -> None:
        """Add producers with their histories. Raises ValueError."""
        self._producers.load(producers)

    def take_keys(self, keys: Iterable[RestoredKey]) -> None:
        """Add keys one by one, after all partitions. Raises ValueError."""
        for uncommitted_until, hashed, claim in keys:
            if len(hashed) != HASH_BYTES or len(claim) != CLAIM_BYTES:
                raise ValueError("not a snapshot: an idempotency key has the wrong size")
            self._keys.add(hashed, claim, uncommitted_until)


def _undo_of(last_index: int, table: int, name: str, value: Any) -> _Undo:
    """Restore the type that a decoded value had in its table."""
    kind = _VALUES.get(table)
    if kind is None:
        raise ValueError(f"not a snapshot: unknown table {table}")
    return _Undo(last_index, table, name, msgspec.convert(value, kind | None))
