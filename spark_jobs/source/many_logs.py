"""A stream over many logs: the option `logs`. Each row has the name of its log in the column `log`.

One call of a node finds where all logs end. New logs that match a pattern join at their beginning, deleted
ones leave. A log that was replaced, is shorter than what was read, or has trimmed what was not read is left
out with a warning, and the others continue. For the job, whose tables decide what is written, it joins again
at its end: the job of the log reads everything before that, with checks of its own.
"""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from spark_jobs.errors import LogClash, LogTrimmed, RequestRefused, SourceError, Unreachable, plain_errors
from spark_jobs.source.answers import LogEnds
from spark_jobs.source.ends_poller import LogEndsPoller
from spark_jobs.source.log_names import selected
from spark_jobs.source.log_reads import GIVE_UP_S, LogReads, connect
from spark_jobs.source.logs_planning import LogRange, LogsOffset, Turns, packed
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.planning import LATEST, RecordsOffset, SmallBatchPace, admit_bytes
from spark_jobs.source.read_limits import default_limit
from spark_jobs.source.reading import RecordsPartition, read_records
from spark_jobs.source.stopping import end_quietly

FEW_RECORDS = 256  # of a log: their size is not looked up
READ_THREADS = 4  # of one partition with several logs
LEAVE_OUT_AFTER_S = 2.0  # a log that does not answer when a micro-batch is planned
ASK_AGAIN_S = 5.0  # one that is left out, or that no node reports
FORGOTTEN_AT_ONCE = 8  # deleted logs in one micro-batch: each costs a call of every endpoint
FIRST_LOOK_S = 0.05
ASK_WITHIN_S = 0.2  # an endpoint that answers later counts with its answer before

logger = logging.getLogger(__name__)


class LogsPartition(InputPartition):
    """Ranges of one log or more."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = list(ranges)


class LogsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams all logs that the option `logs` selects."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._target: dict[str, LogEnds] | None = None  # of Trigger.AvailableNow
        self._ends_poller: LogEndsPoller | None = None
        self._reads: dict[str, LogReads] = {}
        self._connection: Any = None
        self._paces: dict[str, SmallBatchPace] = {}
        self._left_out: dict[str, str] = {}  # with the reason
        self._joined: dict[str, RecordsOffset] = {}  # where logs joined again that have brought nothing since
        self._ask_at_s: dict[str, float] = {}  # of logs that are left out, or that no node reports
        self._ask_deleted_at_s = 0.0
        self._all_answer = False  # every endpoint, when the ends were asked for last
        self._turns = Turns(options.max_records_per_trigger, options.backlog_records)

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        wanted = self.options.starting_index
        if wanted != LATEST and not isinstance(wanted, Mapping):
            return LogsOffset({}).to_json()  # each log joins at its beginning
        ends = self._all_ends() if wanted == LATEST else self._ends()
        if not isinstance(wanted, Mapping):
            wanted = {log: each.next_index for log, each in ends.items()}
        logs = {
            log: RecordsOffset(index, ends[log].term, ends[log].log_id)
            if log in ends
            else RecordsOffset(index, None, "")
            for log, index in wanted.items()
        }
        return LogsOffset(logs).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self.options)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {log: self._furthest(log, each) for log, each in self._all_ends().items()}

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = LogsOffset.from_json(start)
        ends = self._target if self._target is not None else self._ends()
        positions = {**begin.logs, **self._joined}
        waiting: dict[str, int] = {}
        for log, each in ends.items():
            at = positions.get(log)
            if at is None:
                at = RecordsOffset(each.begin_index, each.term, each.log_id)
            count = self._waiting(log, at, each)
            if count > 0:
                positions[log] = at
                waiting[log] = count
        counts = self._turns.choose(waiting) if waiting else {}
        batch: dict[str, tuple[int, int]] = {}
        for log, count in counts.items():
            at, each = positions[log], ends[log]
            first = max(at.next_index, each.begin_index)
            until = first + count
            if not isinstance(limit, ReadAllAvailable):
                try:
                    until = self._admit(log, first, until, len(counts))
                except SourceError as error:  # it reports its end, and does not answer reads
                    if self._target is not None:
                        raise  # the query would end without its records
                    self._leave_out(log, error.message)
                    continue
            lost = at.lost + first - at.next_index
            positions[log] = RecordsOffset(until, each.term, each.log_id, lost)
            batch[log] = (first, until)
            self._joined.pop(log, None)
        if not batch:
            return start
        self._forget_deleted(positions, ends)
        return LogsOffset(positions, batch).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = LogsOffset.from_json(start).logs, LogsOffset.from_json(end)
        ranges = []
        for log, (first, end_index) in until.batch.items():
            # a log that has joined again has not lost what the stream has left out
            is_counted = log in begin and not self.options.joins_again
            lost_from = begin[log].next_index if is_counted else first
            at = until.logs[log]
            lost = lost_from if lost_from < first else None
            ranges.append(LogRange(log, first, end_index, at.term, lost, at.log_id))
        parts = packed(ranges, self.options.max_records_per_partition, self.options.min_partitions)
        return [LogsPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, LogsPartition)
        return read_ranges(self.options, partition.ranges)

    def stop(self) -> None:
        end_quietly()
        if self._ends_poller is not None:
            self._ends_poller.stop()
        if self._connection is not None:
            self._connection.close()

    def _ends(self) -> dict[str, LogEnds]:
        """Return the ends of the selected logs; the first call waits for an answer. Raises Unreachable."""
        if self._ends_poller is None:
            self._ends_poller = LogEndsPoller(
                self.options.endpoints, self.options.token, threading.Event(), on_demand=True
            )
            self._ends_poller.start()
            give_up_at_s = time.monotonic() + GIVE_UP_S
            while not self._ends_poller.has_answer:
                if time.monotonic() > give_up_at_s:
                    raise Unreachable(f"no endpoint of {', '.join(self.options.endpoints)} answers")
                time.sleep(FIRST_LOOK_S)
        self._all_answer = self._ends_poller.ask(ASK_WITHIN_S)
        known = self._ends_poller.known()
        return {log: known[log] for log in selected(self.options.logs, known)}

    def _all_ends(self) -> dict[str, LogEnds]:
        """As `_ends`, also of logs whose nodes have not answered yet: each of these is asked for by itself.
        Raises Unreachable if no replica of one answers."""
        found = self._ends()
        for log in selected(self.options.logs, self._client("").log_names()):
            if log not in found:
                try:
                    found[log] = self._client(log).ends_of_log()
                except RequestRefused as refused:
                    if refused.status != 404:  # it was deleted meanwhile
                        raise
        return found

    def _furthest(self, log: str, ends: LogEnds) -> LogEnds:
        """Return the ends of a log as its leader confirms them: the first node that answered may lag, and not
        know the term of the newest records."""
        tail = self._client(log).tail(confirmed=False)
        if tail.next_index <= ends.next_index:
            return ends
        return replace(ends, next_index=tail.next_index, term=max(ends.term, tail.term))

    def _waiting(self, log: str, at: RecordsOffset, ends: LogEnds) -> int:
        """Return the number of records that a micro-batch may read of a log now; 0 too for one that is left
        out."""
        if at.log_id not in ("", ends.log_id):
            return self._part_from(log, f"its id is {ends.log_id}, it was {at.log_id}", ends)
        if ends.begin_index > at.next_index and self.options.fail_on_data_loss:
            reason = f"index {at.next_index} was trimmed, it begins at {ends.begin_index}"
            return self._part_from(log, reason, ends)
        count = ends.next_index - max(at.next_index, ends.begin_index)
        has_new_term = at.term is not None and ends.term > at.term
        if (count <= 0 and not (count < 0 and has_new_term)) or time.monotonic() < self._ask_at_s.get(
            log, 0.0
        ):
            return 0
        try:
            if has_new_term and (replaced := self._replaced(log, at)) is not None:
                return self._part_from(log, replaced, ends)
        except SourceError as error:
            return self._leave_out(log, error.message)
        if count < 0:
            return 0
        self._left_out.pop(log, None)
        if self._target is not None:
            return count
        if log not in self._paces:
            least, delay_s = self.options.min_records_per_trigger, self.options.max_trigger_delay_s
            self._paces[log] = SmallBatchPace(least, delay_s)
        return count if self._paces[log].takes(count, time.monotonic()) else 0

    def _replaced(self, log: str, at: RecordsOffset) -> str | None:
        """Return how a log differs from the one in which a position was taken, in an earlier term; None for
        not. A record that replaces another one has a term above all that were known then. Raises
        SourceError."""
        client = self._client(log)
        tail = client.tail(confirmed=False)
        if tail.confirmed and tail.next_index < at.next_index:
            return f"it ends before index {tail.next_index}, and was read up to {at.next_index - 1} inclusive"
        if at.next_index > 0 and tail.next_index >= at.next_index:
            place = client.place(at.next_index - 1)
            if place is not None and at.term is not None and place.term > at.term:
                return (
                    f"the record at index {at.next_index - 1} is of term {place.term}, it was of {at.term} "
                    "at most"
                )
        return None

    def _part_from(self, log: str, reason: str, ends: LogEnds) -> int:
        """Leave out a log in which the position of the stream is no longer right."""
        if self.options.joins_again:
            self._joined[log] = RecordsOffset(ends.next_index, ends.term, ends.log_id)
            return 0
        return self._leave_out(log, reason)

    def _leave_out(self, log: str, reason: str) -> int:
        self._ask_at_s[log] = time.monotonic() + ASK_AGAIN_S
        if self._left_out.get(log) != reason:
            self._left_out[log] = reason
            logger.warning("log %s: %s; it is left out, the other logs continue", log, reason)
        return 0

    def _forget_deleted(self, positions: dict[str, RecordsOffset], ends: Mapping[str, LogEnds]) -> None:
        """Remove the positions of deleted logs: where logs come and go, they would fill each offset. A later
        log of the name is a new one.

        A log that no node reports may exist still, and the stream would bring its records again: every
        endpoint is asked for it, unless one does not answer now. A micro-batch waits for their answers.
        """
        now_s = time.monotonic()
        if not self._all_answer or now_s < self._ask_deleted_at_s:
            return
        due = [log for log, at in positions.items() if log not in ends and at.log_id]
        due.sort(key=lambda log: self._ask_at_s.get(log, 0.0))  # each has its turn
        for log in due[:FORGOTTEN_AT_ONCE]:
            if not self._client(log).is_gone(positions[log].log_id):
                self._ask_at_s[log] = self._ask_deleted_at_s = now_s + ASK_AGAIN_S
                return
            del positions[log]
            by_log: tuple[dict[str, Any], ...] = (
                self._reads,
                self._paces,
                self._left_out,
                self._joined,
                self._ask_at_s,
            )
            for known in by_log:
                known.pop(log, None)

    def _admit(self, log: str, first: int, until: int, logs: int) -> int:
        """Return the end of what a micro-batch with so many logs takes of [first, until), by its bytes."""
        most = self.options.max_bytes_per_trigger
        backlog = self.options.backlog_records
        is_backlog = backlog is not None and until - first > backlog
        if most is None or until - first <= FEW_RECORDS or is_backlog:
            return until
        client = self._client(log)

        def position_of(index: int) -> int:
            place = client.place(index)
            if place is None:
                raise LogTrimmed(log, index, client.tail(confirmed=False).begin_index)
            return place.offset

        share = max(1, most // logs)
        try:
            if position_of(until - 1) - position_of(first) <= share:
                return until
            return admit_bytes(first, until, share, position_of)
        except LogTrimmed:
            return first + FEW_RECORDS  # the read finds out

    def _client(self, log: str) -> LogReads:
        if self._connection is None:
            self._connection = connect(self.options.endpoints, self.options.token, LEAVE_OUT_AFTER_S)
        if log not in self._reads:
            self._reads[log] = LogReads(self.options.endpoints, log, connection=self._connection)
        return self._reads[log]


def read_ranges(options: SourceOptions, ranges: Sequence[LogRange]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of every range, in order. Small ranges of several logs are read side by side."""
    connection = connect(options.endpoints, options.token, GIVE_UP_S)

    def read(each: LogRange) -> Iterator[pa.RecordBatch]:
        client = LogReads(options.endpoints, each.log, connection=connection)
        return _read_range(options, each, client)

    try:
        if len(ranges) == 1:
            yield from read(ranges[0])
            return
        with ThreadPoolExecutor(READ_THREADS) as threads:
            for batches in threads.map(lambda each: list(read(each)), ranges):
                yield from batches
    finally:
        connection.close()


def _read_range(options: SourceOptions, each: LogRange, client: LogReads) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one log's range. The others continue without a log that was deleted since the range
    was planned, also if it was created again: nothing can bring its records back.

    Raises LogClash if a record has a later term than the log had then.
    """
    partition = RecordsPartition(
        each.first, each.until, options.endpoints, lost_from=each.lost_from, log_id=each.log_id
    )
    try:
        for rows in read_records(replace(options, log=each.log), partition, client):
            last = rows.column("term")[-1].as_py()
            if each.term is not None and last is not None and last > each.term:
                raise LogClash(
                    each.log,
                    f"the record at index {rows.column('index')[-1]} is of term {last}, it was of "
                    f"{each.term} at most",
                )
            yield rows
    except (LogClash, RequestRefused) as error:
        if not each.log_id or not client.is_gone(each.log_id):
            raise
        logger.warning(
            "log %s: %s; it was deleted: its records [%d, %d), as far as they were not read yet, are left "
            "out, the other logs continue",
            *(each.log, error.message, each.first, each.until),
        )
