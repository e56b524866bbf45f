"""Producer: appends records in the background, in batches, in order, each exactly once."""

import logging
import math
import os
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from app.arguments import check_instance, check_number, check_text, check_whole
from app.client.batches import arrow_body, check_arrow
from app.client.client import CommitlogClient
from app.client.deliveries import Delivered, QueuedAppend, RecordDelivery
from app.client.errors import ClientError, Problem, ProducerFailed
from app.client.records import (
    Record,
    check_content,
    check_details,
    check_list,
    kept,
    stored_bytes,
)
from storage.units import MIB

if TYPE_CHECKING:
    import pyarrow as pa

MAX_IN_FLIGHT = 5  # a log remembers the last five appends of a producer
OPTIONS = ("acks", "fencing_token", "timeout_ms")  # of each append
KNOWN_FOR_S = 60.0  # after an append; far less than the time for which a log remembers a silent producer
INTERRUPT_S = 2.0  # for which Ctrl-C in the `with` block of a producer waits for commits
_GAP_PAUSE_S = 0.005
_UTF8_MAX_BYTES = 4  # of a character
_QUEUED_RECORD_BYTES = 64  # of a record beside its value and key, about

logger = logging.getLogger(__name__)
_process = os.getpid()  # of this process; cheaper than a call for each record


def _note_fork() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_fork)


def _is_plain(content: str | bytes | None) -> bool:
    """Return whether content may be queued as it is, without a check. Text outside of ASCII may have
    surrogates, which no encoder takes, and a buffer may be used again by its owner."""
    return content.isascii() if isinstance(content, str) else content is None or isinstance(content, bytes)


class RecordProducer:
    """Appends to the log of `client`, by threads in the background. May be shared by threads.

    Records are committed in the order of `send`, and a retry never stores one twice: the log knows the
    producer by `producer_id` and `epoch`, and each append by its sequence. A new producer has a new id. The
    epoch of one that keeps its id over restarts is the clock in milliseconds: the log then refuses what an
    older instance still sends. If a clock was ahead at an earlier start, set `epoch` above the
    `current_epoch` of the refusal before the first `send`.

    linger_ms: how long a batch waits for more records. max_batch_records, max_batch_bytes: of one append; the
    service allows 10 000 records and 16 MiB unless it is configured otherwise. max_in_flight: appends at a
    time, 1 to 5. max_pending_bytes: of records that are not committed; `send` waits beyond it.

    The first append that fails finally ends the producer: later records would be out of order. Later
    records fail with ProducerFailed and the outcome `not_applied`, or with the answer that they received.
    A record that is larger than the service allows fails alone, with RecordRefused: the others are sent, and
    the next `flush` or `close` raises its error when they are committed.
    """

    max_record_bytes: int = MIB
    """Limit of value, key and headers together: `send` refuses a larger record, and sends the others. It
    falls to the limit of the service when that has refused a record; set it for a higher one."""

    def __init__(
        self,
        client: CommitlogClient,
        *,
        producer_id: str | None = None,
        linger_ms: float = 5.0,
        max_batch_records: int = 10_000,
        max_batch_bytes: int = 4 * MIB,
        max_in_flight: int = 4,
        max_pending_bytes: int = 64 * MIB,
        **options: Any,
    ) -> None:
        """options: of each append: acks, timeout_ms, fencing_token. Raises TypeError and ValueError."""
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise TypeError(f"a producer has no option {unknown[0]}; for its appends: {', '.join(OPTIONS)}")
        at_least_one = {
            "max_batch_records": max_batch_records,
            "max_batch_bytes": max_batch_bytes,
            "max_pending_bytes": max_pending_bytes,
        }
        for name, value in at_least_one.items():
            check_whole(name, value, 1)
        check_number("linger_ms", linger_ms)
        check_whole("max_in_flight", max_in_flight, 1, MAX_IN_FLIGHT)
        check_whole("timeout_ms", options.get("timeout_ms", 1), 1)
        if producer_id is not None:
            check_text("producer_id", producer_id)
        check_instance("client", client, CommitlogClient)
        self.producer_id = producer_id or str(uuid.uuid4())
        self.epoch = time.time_ns() // 1_000_000 if producer_id else 0
        self._client = client
        self._process = _process
        self._options = options
        self._linger_s = linger_ms / 1_000
        self._max_records, self._max_bytes = max_batch_records, max_batch_bytes
        self._max_pending = max_pending_bytes
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for senders: a batch to send
        self._room = threading.Condition(self._lock)  # for callers: less is pending, or all is done
        self._queue: deque[QueuedAppend] = deque()  # not sent; only the last one may be open
        self._in_flight: deque[QueuedAppend] = deque()
        self._pending = 0
        self._sequence = 0
        self._known_until_s = -math.inf  # until then the log remembers an append of this producer
        self._is_closed = False
        self._urgent = 0
        self._failed: ClientError | None = None
        self._refused: ClientError | None = None  # of a record, since the last flush
        self._unsent: set[int] = set()  # sequences of batches of which no record was left
        self._threads = [
            threading.Thread(target=self._send_batches, name=f"commitlog-producer-{number}", daemon=True)
            for number in range(max_in_flight)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Close. After Ctrl-C what is not committed within INTERRUPT_S is given up."""
        try:
            if error is not None and issubclass(error, KeyboardInterrupt) and self._process == _process:
                self._close_soon()
            else:
                self.close()
        except ClientError:
            if error is None:  # otherwise the error in the block is the one to raise
                raise

    # --- what callers do

    def send(
        self, value: str | bytes | Record | None, key: str | bytes | None = None, *, wait: bool = True
    ) -> RecordDelivery:
        """Queue one record. Raises ProducerFailed after an earlier failure, BlockingIOError with wait=False
        while max_pending_bytes are pending, TypeError for a part that no record can have, and ValueError for
        a record that is larger than max_record_bytes, or whose text has no form in UTF-8 (lone surrogates).
        """
        if self._process != _process:
            self._check_process()
        other = None
        if isinstance(value, Record):
            record = value
            if record.headers != () or record.timestamp is not None:
                check_details(record)
                other = kept(record)
            value, key = record.value, record.key
        is_plain = (type(value) is bytes or _is_plain(value)) and (key is None or _is_plain(key))
        if not is_plain:
            check_content("value", value)
            check_content("key", key)
        size = _QUEUED_RECORD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if not is_plain or other is not None or size * _UTF8_MAX_BYTES > self.max_record_bytes:
            record = other or kept(Record(value, key))
            value, key = record.value, record.key
            size = self._checked_size(record)
        with self._lock:
            if self._pending >= self._max_pending or self._failed is not None or self._is_closed:
                self._wait_for_room(wait=wait)
            queue = self._queue
            batch = queue[-1] if queue else None
            if batch is None or batch.is_closed or batch.size + size > self._max_bytes:
                batch = self._begin()
            position = len(batch.values)
            if other is not None or batch.others is not None:
                if batch.others is None:
                    batch.others = [Record(*pair) for pair in zip(batch.values, batch.keys, strict=True)]
                batch.others.append(other or Record(value, key))
            batch.values.append(value)
            batch.keys.append(key)
            batch.size += size
            self._pending += size
            if position + 1 >= self._max_records:
                batch.is_closed = True
                self._work.notify()
        return RecordDelivery(batch.future, position)

    def wait_for_room(self) -> None:
        """Wait while max_pending_bytes are not committed. Raises ProducerFailed, as `send`."""
        self._check_process()
        with self._lock:
            self._wait_for_room(wait=True)

    def send_many(self, values: Iterable[str | bytes | Record | None]) -> list[RecordDelivery]:
        """Queue records in their order. Raises TypeError for one record that is not in a list, before any is
        queued."""
        check_list(values)
        return [self.send(value) for value in values]

    def send_arrow(self, table: "pa.Table | pa.RecordBatch") -> list[RecordDelivery]:
        """Queue a table with the columns of `append_arrow`, divided into appends; return one delivery for
        each of them, at its first record."""
        deliveries = []
        check_arrow("table", table)
        self._check_process()
        for body in arrow_body(table, self._max_records, self._max_bytes):
            with self._lock:
                self._wait_for_room(wait=True)
                batch = self._begin()
                batch.body, batch.size, batch.is_closed = body, len(body.content), True
                self._pending += batch.size
                self._work.notify()
            deliveries.append(RecordDelivery(batch.future, 0))
        return deliveries

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is queued at once, and wait until all of it is committed. Records that are sent meanwhile
        are not waited for.

        Raises the error of the append that failed, RecordRefused once for records that were left out, or
        TimeoutError.
        """
        if timeout_s is not None:
            check_number("timeout_s", timeout_s)
        self._check_process()
        with self._lock:
            self._urgent += 1
            self._work.notify_all()
            until = self._sequence + len(self._queue)
            try:
                if not self._room.wait_for(lambda: self._is_done(until), timeout_s):
                    raise TimeoutError(f"{self._pending} bytes are not committed after {timeout_s} s")
                refused, self._refused = self._refused, None
                if (error := self._failed or refused) is not None:
                    raise error
            finally:
                self._urgent -= 1

    def close(self) -> None:
        """Flush, and end the threads. Raises as `flush`. In a forked process: do nothing."""
        if self._process != _process:
            return
        self._check_process()
        try:
            self.flush()
        finally:
            with self._lock:
                self._is_closed = True
                self._work.notify_all()
                self._room.notify_all()
            for thread in self._threads:
                thread.join()

    def _close_soon(self) -> None:
        """Close within INTERRUPT_S: what is queued then is not sent, and no thread is waited for."""
        try:
            self.flush(INTERRUPT_S)
        except TimeoutError:
            error = ClientError("the producer was interrupted before it sent the record")
            with self._lock:
                self._is_closed = True
                doubtful = len(self._in_flight)
                ended = self._fail(error)
                self._work.notify_all()
                self._room.notify_all()
            for batch in ended:
                batch.future.set_exception(ProducerFailed(error))
            logger.warning(
                "interrupted: %d queued appends are not sent, %d in flight may be stored",
                len(ended),
                doubtful,
            )
        else:
            self.close()

    def _check_process(self) -> None:
        """Raise RuntimeError in a process that does not have the threads: after a fork, or at its end."""
        if self._process != _process:
            raise RuntimeError("the producer belongs to another process; create one after the fork")
        if sys.is_finalizing():
            raise RuntimeError("the program ends without its producer: close that before, or by atexit")

    def _checked_size(self, record: Record) -> int:
        """Return the bytes that a record needs in the queue. Raises ValueError for one that is too large."""
        size = stored_bytes(record)
        limit = self.max_record_bytes
        if size > limit:
            raise ValueError(f"a record has at most {limit} bytes (max_record_bytes), got {size}")
        return size + _QUEUED_RECORD_BYTES * (1 + len(record.headers))

    # --- with the lock

    def _wait_for_room(self, *, wait: bool) -> None:
        while True:
            if self._failed is not None:
                raise ProducerFailed(self._failed)
            if self._is_closed:
                raise ValueError("the producer is closed")
            if self._pending < self._max_pending:
                return
            if not wait:
                raise BlockingIOError(f"{self._pending} bytes are pending")
            self._urgent += 1  # what is queued leaves at once, or there may never be room
            self._work.notify_all()
            try:
                self._room.wait()
            finally:
                self._urgent -= 1

    def _begin(self) -> QueuedAppend:
        if self._queue:
            self._queue[-1].is_closed = True
        batch = QueuedAppend(time.monotonic())
        self._queue.append(batch)
        self._work.notify()
        return batch

    def _is_done(self, until: int) -> bool:
        """Return whether every batch below this sequence has an outcome."""
        is_sent = self._sequence >= until or not self._queue  # of a failed producer the queue is empty
        return is_sent and (not self._in_flight or self._in_flight[0].sequence >= until)

    def _may_send(self) -> bool:
        """Return whether the next batch may leave: alone while the log may not know the producer, whose first
        sequence may be any; later, while the log still remembers the oldest batch in flight after it."""
        if not self._in_flight:
            return True
        is_known = time.monotonic() < self._known_until_s
        return is_known and self._sequence - self._in_flight[0].sequence < MAX_IN_FLIGHT

    def _next(self) -> QueuedAppend | None:
        """Wait for a batch whose turn it is; None when the producer is closed."""
        while True:
            wait_s = None
            if self._queue and self._may_send():
                first = self._queue[0]
                wait_s = first.since + self._linger_s - time.monotonic()
                if first.is_closed or self._urgent or self._is_closed or wait_s <= 0:
                    self._queue.popleft()
                    first.is_closed = True
                    first.sequence = self._sequence
                    self._sequence += 1
                    self._in_flight.append(first)
                    return first
            elif self._is_closed and not self._queue:
                return None
            self._work.wait(wait_s)

    def _fail(self, error: ClientError) -> list[QueuedAppend]:
        """End the producer; return the batches that are never sent."""
        self._failed = self._failed or error
        ended = list(self._queue)
        self._queue.clear()
        self._pending -= sum(batch.size for batch in ended)
        return ended

    # --- threads

    def _send_batches(self) -> None:
        while True:
            with self._lock:
                batch = self._next()
            if batch is None:
                return
            error = self._deliver(batch)
            with self._lock:
                ended = [] if error is None else self._fail(error)
            for other in ended:
                assert error is not None
                other.future.set_exception(ProducerFailed(error))
            with self._lock:  # a flush returns when every delivery is done
                self._in_flight.remove(batch)
                self._pending -= batch.size
                if error is None and not batch.is_empty:
                    self._known_until_s = time.monotonic() + KNOWN_FOR_S
                self._refused = self._refused or next(iter(batch.refused.values()), None)
                self._work.notify_all()
                self._room.notify_all()

    def _deliver(self, batch: QueuedAppend) -> ClientError | None:
        """Append a batch and complete its deliveries; return the error of a failure."""
        try:
            batch.future.set_result(self._append(batch))
        except ClientError as failure:
            batch.future.set_exception(failure)
            return failure
        except Exception as failure:
            is_encoded = batch.body is not None
            error = ClientError(f"the records cannot be {'sent' if is_encoded else 'encoded'}: {failure}")
            error.outcome = "unknown" if is_encoded else "not_applied"
            error.__cause__ = failure
            batch.future.set_exception(error)
            return error
        return None

    def _append(self, batch: QueuedAppend) -> Delivered:
        """Append a batch without its too large records; wait while an earlier one is still on its way. Raises
        ClientError."""
        after_unsent = False  # all sequences that the log misses are of batches that were left out
        outcome = "not_applied"  # of the calls so far
        while not batch.is_empty:
            with self._lock:
                is_alone = self._in_flight[0] is batch
            body = batch.encoded()
            try:
                appended = self._client.append_body(
                    body.content,
                    body.media_type,
                    producer_id=self.producer_id,
                    producer_epoch=self.epoch,
                    producer_sequence=batch.sequence,
                    producer_allow_gap=after_unsent or None,
                    **self._options,
                )
                return Delivered(appended, batch.refused)
            except ClientError as problem:
                if problem.outcome == "not_applied":
                    problem.outcome = outcome  # an attempt whose answer was lost may still arrive
                outcome = problem.outcome
                if not isinstance(problem, Problem):
                    raise
                if problem.outcome == "not_applied" and batch.take_out(problem):
                    self.max_record_bytes = min(self.max_record_bytes, int(problem.document["limit"]))
                    continue
                expected = problem.document.get("expected_sequence")
                if problem.code != "sequence-gap" or expected is None or expected > batch.sequence:
                    raise
                with self._lock:
                    failed = self._failed
                    misses_unsent = all(number in self._unsent for number in range(expected, batch.sequence))
                if failed is not None:
                    ended = ProducerFailed(failed)
                    ended.outcome = outcome
                    raise ended from problem
                if misses_unsent and not after_unsent:
                    after_unsent = True
                    continue
                if is_alone:
                    raise  # the log has lost the sequence of this producer: nothing earlier is on its way
            time.sleep(_GAP_PAUSE_S)
        with self._lock:
            self._unsent.add(batch.sequence)
        return Delivered(None, batch.refused)
