"""Checks of appends at the leader of a log, and the batches that accepted appends form.

Everything that arrived before this turn of the loop shares a batch, as far as it fits (group commit). The
checks of docs/api.md §3 (idempotency, sequence, fence, match_term, match_index, quota) see the log's state
with all earlier appends applied, including those of the same turn, whose batch is written first where
necessary.
"""

from app.errors import (
    Fenced,
    IdempotencyKeyReused,
    IndexMismatch,
    LeaderPendingFull,
    RateLimited,
    TermMismatch,
)
from app.log.claims import Claim
from app.log.contract import APPEND_MAX_BYTES, AppendRequest
from app.log.driver_interfaces import AppendLimits
from app.log.producers import NUMBER_MAX, Producer
from app.log.state import LogState
from app.node.replica.open_appends import OpenAppend
from storage.format.batch import AppendMark, EncodedBody
from storage.format.records import RecordColumns, RecordTable, encode_body, joined


class Coalescing:
    """The appends of one turn that will share the next batch."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.start()

    def start(self) -> None:
        """Begin the next batch."""
        self.appends: list[OpenAppend] = []
        self._columns: RecordColumns | None = None
        self._tables: list[RecordTable] = []  # a batch has either columns or tables
        self.marks: list[AppendMark] = []
        self.count = 0
        self._packed_bytes = 0
        self._keys: dict[str, None] = {}
        self._producers: dict[str, Producer] = {}  # the last claim of each in this batch

    def has_room_for(self, request: AppendRequest) -> bool:
        """Return whether the append may share this batch: columns share none with tables, and no batch
        exceeds its maximum."""
        if not self.appends:
            return True
        if isinstance(request.records, RecordTable) != bool(self._tables):
            return False
        return self._packed_bytes + request.records.packed_bytes <= self._max_bytes

    def decides_about(self, request: AppendRequest) -> bool:
        """Return whether the log's state can judge the request only after this batch is in it."""
        if request.idempotency_key is not None and request.idempotency_key in self._keys:
            return True
        producer = request.producer
        return producer is not None and producer.id in self._producers and not self.continues(producer)

    @property
    def key_count(self) -> int:
        """Number of idempotency keys that this batch claims."""
        return len(self._keys)

    def begins(self, producer: Producer) -> bool:
        """Return whether the producer has no append in this batch."""
        return producer.id not in self._producers

    @property
    def producer_count(self) -> int:
        """Number of producers that have an append in this batch."""
        return len(self._producers)

    def continues(self, producer: Producer) -> bool:
        """Return whether the producer's last append is in this batch and this one is its direct successor."""
        last = self._producers.get(producer.id)
        return last is not None and (producer.epoch, producer.sequence) == (last.epoch, last.sequence + 1)

    def add(self, append: OpenAppend) -> None:
        request = append.request
        records = request.records
        if request.idempotency_key is not None or request.producer is not None:
            self._mark(request)
        self.appends.append(append)
        self.count += records.count
        self._packed_bytes += records.packed_bytes
        if isinstance(records, RecordTable):
            self._tables.append(records)
        elif self._columns is None:
            self._columns = records
        else:
            if len(self.appends) == 2:  # the first one's columns are its client's, not ours to extend
                own = RecordColumns()
                own.extend(self._columns)
                self._columns = own
            self._columns.extend(records)

    def body(self) -> EncodedBody:
        """Return the encoded records of at least one append."""
        return encode_body(self._columns or joined(self._tables))

    def _mark(self, request: AppendRequest) -> None:
        producer = request.producer
        if request.idempotency_key is not None:
            self._keys[request.idempotency_key] = None
        if producer is None:
            mark = AppendMark(
                self.count, request.records.count, request.idempotency_key, digest=request.digest
            )
        else:
            self._producers[producer.id] = producer
            mark = AppendMark(
                self.count,
                request.records.count,
                request.idempotency_key,
                producer.id,
                producer.epoch,
                producer.sequence,
                producer.allow_gap,
                request.digest,
            )
        self.marks.append(mark)


def check_storable(request: AppendRequest) -> None:
    """Raise ValueError for an append that no log can hold: replicas that have it in their log would not open
    it again. The routes refuse all of them before."""
    records, producer = request.records, request.producer
    if not records.count or records.packed_bytes > APPEND_MAX_BYTES:
        raise ValueError(
            f"An append needs at least one record and at most {APPEND_MAX_BYTES} bytes; "
            f"got {records.count} records, {records.packed_bytes} bytes."
        )
    if producer is None:
        return
    for number in (producer.epoch, producer.sequence):
        if not 0 <= number <= NUMBER_MAX:
            raise ValueError(f"Numbers of a producer must be between 0 and {NUMBER_MAX}, got {number}.")


def check_repeat(state: LogState, request: AppendRequest, batch: Coalescing) -> Claim | None:
    """Return the claim of the first append with this key or sequence, None for a new one.

    Raises IdempotencyKeyReused, SequenceGap, ProducerFenced.
    """
    if request.idempotency_key is not None:
        claim = state.find_key(request.idempotency_key)
        if claim is not None:
            if claim.digest != request.digest:
                raise IdempotencyKeyReused(
                    "an append with other records or conditions has used this Idempotency-Key"
                )
            return claim
    producer = request.producer
    if producer is None or batch.continues(producer):
        return None
    return state.check_producer(producer.id, producer.epoch, producer.sequence, producer.allow_gap)


def check_conditions(
    state: LogState, request: AppendRequest, *, term: int, next_index: int, data_end: int
) -> None:
    """Check fence, then term, then index. Raises Fenced, TermMismatch, IndexMismatch.

    next_index: index of the append's first record; data_end: the index after the last data record before it.
    """
    if state.fencing_token is not None and request.fencing_token != state.fencing_token:
        given = "no fencing_token" if request.fencing_token is None else "another one"
        raise Fenced(f"the log requires its fencing token, the append has {given}")
    if request.match_term is not None and request.match_term != term:
        raise TermMismatch(request.match_term, term)
    if request.match_index is not None and not data_end <= request.match_index <= next_index:
        raise IndexMismatch(request.match_index, next_index)


def check_quota(limits: AppendLimits, waiting: int, waiting_bytes: int, request: AppendRequest) -> None:
    """Check the limits of waiting appends at the leader (D-29). Raises LeaderPendingFull.

    waiting, waiting_bytes: all appends that are not answered yet. A group is refused if one of its members
    would be.
    """
    if waiting + request.appends > limits.max_pending_requests:
        raise LeaderPendingFull
    is_alone = not waiting and request.appends == 1
    if not is_alone and waiting_bytes + request.records.size_bytes > limits.max_pending_bytes:
        raise LeaderPendingFull


def check_memory(limits: AppendLimits, state: LogState, batch: Coalescing, request: AppendRequest) -> None:
    """Refuse a new key or producer beyond the log's limits: no entry is forgotten early.

    Raises RateLimited.
    """
    keys = state.key_count + batch.key_count
    if request.idempotency_key is not None and keys >= limits.max_idempotency_keys:
        raise RateLimited(
            f"The log remembers {keys} idempotency keys, its limit (limits.max_idempotency_keys). "
            f"A key is forgotten {state.idempotency_ms} ms after its append."
        )
    producer = request.producer
    if producer is None or state.knows_producer(producer.id) or not batch.begins(producer):
        return
    if state.producer_count + batch.producer_count >= limits.max_producers:
        raise RateLimited(
            f"The log remembers {limits.max_producers} producers, its limit (limits.max_producers). "
            f"A producer is forgotten {state.idempotency_ms} ms after its last append."
        )
