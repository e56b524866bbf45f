"""Journal of a node for one log: its events in a small commit log that needs no quorum.

Every event is a batch of one record in term 0, whose value is the compact JSON {"kind", "term", "data"}; the
batch's index is `seq`, its timestamp the event's. A reader sees an event only when it is durable.
"""

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec

from storage.errors import CorruptBatch
from storage.file_system import FileSystem
from storage.format.batch import Batch, log_id_of, stamp
from storage.format.records import RecordColumns, decode_body, encode_body
from storage.format.segment_format import segment_name
from storage.log.aside import ASIDE_FOLDER, set_aside
from storage.log.commitlog import Commitlog, CommitlogConfig, SyncTicket, TrimTicket
from storage.log.log_folder import segment_offsets
from storage.log.scan import Scan
from storage.units import MIB

_READ_BYTES = MIB
KEPT_EVENTS = 1_000  # the newest events are never trimmed: a jump of the clock does not empty a journal
LIMITED_KINDS = ("corruption", "repair")  # kinds of which one cause may produce any number
LIMIT_BURST = 20
LIMIT_REFILL_MS = 30_000


@dataclass(frozen=True, slots=True)
class Event:
    """One event of docs/api.md §2; `seq` counts from 0 without gaps at its node and log."""

    seq: int
    node: str
    log: str
    timestamp_ms: int
    kind: str
    term: int
    data: dict[str, Any]


class _Stored(msgspec.Struct):
    kind: str
    term: int
    data: dict[str, Any]


class _Limit:
    """Admits LIMIT_BURST events of a kind at once, then one every LIMIT_REFILL_MS."""

    def __init__(self) -> None:
        self.suppressed = 0  # since the last event that passed
        self._left = LIMIT_BURST
        self._refilled_ms = 0

    def admits(self, now_ms: int) -> bool:
        elapsed_ms = now_ms - self._refilled_ms
        if elapsed_ms < 0 or elapsed_ms >= LIMIT_BURST * LIMIT_REFILL_MS:
            self._left, self._refilled_ms = LIMIT_BURST, now_ms
        else:
            refill = elapsed_ms // LIMIT_REFILL_MS
            self._left = min(LIMIT_BURST, self._left + refill)
            self._refilled_ms += refill * LIMIT_REFILL_MS
        if self._left == 0:
            self.suppressed += 1
            return False
        self._left -= 1
        return True


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(_Stored)


def journal_log_id(node: str, log: str) -> int:
    """Return the log id in the batches of a node's journal."""
    return log_id_of(f"journal/{node}", log)


class Journal:
    """The journal of `node` for `log`. Owned by one thread, synced like a Commitlog."""

    def __init__(
        self, files: FileSystem, folder: str, node: str, log: str, config: CommitlogConfig | None = None
    ) -> None:
        """Recover the journal in `folder`, which is created if missing. Raises as Commitlog.open does.

        An empty one begins after the last event of a journal that was set aside (`replace_journal`).
        """
        self._node = node
        self._name = log
        self._log_id = journal_log_id(node, log)
        self._log = Commitlog.open(files, folder, log_id=self._log_id, config=config)
        if self._log.next_index == 0 and ASIDE_FOLDER in files.list(folder):
            self._log.reset(_last_seq(files, f"{folder}/{ASIDE_FOLDER}", self._log_id) + 1, 0)
        self._log.settle(self._log.durable_index)
        self._limits = {kind: _Limit() for kind in LIMITED_KINDS}
        self.suppressed = 0  # suppressed events of limited kinds

    @property
    def next_seq(self) -> int:
        """The seq of the next event appended."""
        return self._log.next_index

    @property
    def begin_seq(self) -> int:
        """The seq of the oldest event held; next_seq of an empty journal."""
        begin = self._log.begin_index
        return self._log.next_index if begin < 0 else begin

    @property
    def size_bytes(self) -> int:
        return self._log.end_offset - self._log.begin_offset

    def record(self, kind: str, term: int, data: dict[str, Any], timestamp_ms: int) -> Event | None:
        """Append an event and return its seq; None if its kind has exceeded its limit.

        The next admitted event of the kind has `suppressed` in its data: the number of events left out.
        Raises as `append`.
        """
        limit = self._limits.get(kind)
        if limit is None:
            return self.append(kind, term, data, timestamp_ms)
        if not limit.admits(timestamp_ms):
            self.suppressed += 1
            return None
        if limit.suppressed:
            data = {**data, "suppressed": limit.suppressed}
        event = self.append(kind, term, data, timestamp_ms)
        limit.suppressed = 0
        return event

    def start_trim(self, oldest_ms: int | None, max_bytes: int | None) -> TrimTicket | None:
        """Trim events older than `oldest_ms`, and the oldest ones beyond `max_bytes`.

        The newest KEPT_EVENTS stay. None if nothing is trimmed; otherwise run the ticket as
        Commitlog.start_trim requires, in order with the syncs. Raises CorruptLog, DiskError.
        """
        log = self._log
        until = begin = self.begin_seq
        if oldest_ms is not None:
            young = log.first_index_at_or_after(oldest_ms)
            until = log.next_index if young is None else young
        if max_bytes is not None and self.size_bytes > max_bytes:
            until = max(until, self._first_within(max_bytes))
        until = min(until, log.next_index - KEPT_EVENTS)
        return log.start_trim(until) if until > begin else None

    def _first_within(self, max_bytes: int) -> int:
        """Return the first seq of the newest events within max_bytes, found by bisection."""
        log = self._log
        target = log.end_offset - max_bytes
        low, high = log.begin_index, log.next_index
        while low < high:
            middle = (low + high) // 2
            if log.batch_at(middle).offset >= target:
                high = middle
            else:
                low = middle + 1
        return high

    def append(self, kind: str, term: int, data: dict[str, Any], timestamp_ms: int) -> Event:
        """Write an event; it is visible after the next sync. Raises StorageFull, DiskError."""
        records = RecordColumns()
        records.add(_ENCODER.encode(_Stored(kind, term, data)))
        batch = stamp(
            encode_body(records),
            log_id=self._log_id,
            base_index=self._log.next_index,
            term=0,
            timestamp_ms=timestamp_ms,
            offset=self._log.end_offset,
            previous_chain=self._log.last_chain,
        )
        self._log.append([batch])
        return Event(batch.base_index, self._node, self._name, timestamp_ms, kind, term, data)

    def read(self, from_seq: int, limit: int) -> tuple[list[Event], int, bool]:
        """Return at most `limit` durable events from `from_seq`, the next seq, and whether more exist."""
        events: list[Event] = []
        at = max(from_seq, self._log.begin_index, 0)
        end = self._log.durable_index
        while at <= end and len(events) < limit:
            until_index = min(end, at + limit - len(events) - 1)
            for batch in self._log.read_batches(at, _READ_BYTES, until_index):
                events.append(self._event(batch))
                at = batch.next_index
        return events, at, at <= end

    def _event(self, batch: Batch) -> Event:
        value = decode_body(batch.header, batch.body).column(2)[0].as_py()
        try:
            stored = _DECODER.decode(value or b"")
        except msgspec.DecodeError as error:
            raise CorruptBatch(f"event: {error}") from error
        return Event(
            batch.base_index,
            self._node,
            self._name,
            batch.timestamp_ms,
            stored.kind,
            stored.term,
            stored.data,
        )

    def start_sync(self) -> SyncTicket | None:
        return self._log.start_sync()

    def finish_sync(self, ticket: SyncTicket) -> None:
        self._log.finish_sync(ticket)
        self._log.settle(self._log.durable_index)  # only recovery truncates a journal

    def close(self) -> None:
        """Make every event durable, and close the files."""
        self._log.close()


def replace_journal(files: FileSystem, folder: str) -> None:
    """Set a damaged journal aside: no other replica has a copy to repair it from.

    The next one in the folder begins after the last event that can be found there, so no seq is assigned
    twice, also after a crash. Raises DiskError.
    """
    set_aside(files, folder)


def _last_seq(files: FileSystem, folder: str, log_id: int) -> int:
    """Return the seq of the last complete event in the folder, -1 if there is none."""
    for offset in reversed(segment_offsets(files, folder)):
        path = f"{folder}/{segment_name(offset)}"
        with closing(files.open(path)) as file:
            scan = Scan(path, file, offset, log_id, offset, patient=True)
            found = -1
            while True:
                batch = scan.next_batch()
                if batch is not None:
                    found = max(found, batch.last_index)
                elif not scan.skip():
                    break
        if found >= 0:
            return found
    return -1
