"""The streaming query that reads all logs of a job; the job of each log takes the rows of a micro-batch.

Each start of the query has a new checkpoint, and begins where the tables end. So a checkpoint that is lost,
or of another job, or ahead of a table needs no special treatment: the tables alone decide what is written. A
log whose rows could not be written ends no micro-batch: its job reads them itself. While the query starts, or
after a failure, all jobs do so.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.job_lines import warn
from spark_jobs.materialize.supervisor import MaterializeFailed, reason_of
from spark_jobs.materialize.workers import STOP_WITHIN_S, THREADS
from spark_jobs.scratch_folder import make_scratch, remove_scratch
from spark_jobs.source.logs_planning import LogsOffset
from spark_jobs.tables.conflicts import SPARK_ERRORS

PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0  # after a failure of the query
NAME = "commitlog-logs"
_NO_JAVA = (Py4JNetworkError, ConnectionError)  # its process does not answer


@dataclass(frozen=True)
class LogRows:
    """Records [first, until) of one log in a micro-batch. log_id: of the log, "" if it is not known. batch:
    of a large one, else None and rows. began_s: monotonic."""

    log: str
    log_id: str
    first: int
    until: int
    rows: pa.Table | None
    batch: DataFrame | None
    began_s: float


class RecordsQuery:
    """Runs the query, and starts it again after a failure.

    streamed: by log, the end of what the query has delivered since it began.
    begins: by log, where it began, none while it does not run: it brings no record before.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Mapping[str, str],
        checkpoints: Path | None,
        trigger_s: float,
        deliver: Callable[[LogRows], None],
    ) -> None:
        """options: of the source, all but the start. checkpoints: where each start gets a scratch folder,
        None for the place of temporary files. trigger_s: least time between two micro-batches. deliver:
        called in several threads; raises nothing."""
        self.spark = spark
        self.streamed: dict[str, int] = {}
        self.begins: Mapping[str, int] = {}
        self._options = {**options, "includeControl": "true"}
        self._checkpoints = checkpoints
        self._trigger_s = trigger_s
        self._deliver = deliver
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="batch")
        self._stopping = threading.Event()
        self._folder: Path | None = None
        self._query: StreamingQuery | None = None
        self._starting: Future[None] | None = None
        self._failures = 0
        self._start_at_s = 0.0
        self._ended_queries = 0  # their number: a late micro-batch of one reports nothing

    @property
    def delivers(self) -> bool:
        """True once the query has brought a micro-batch since its start."""
        return self._query is not None and bool(self.streamed)

    def passed(self, log: str) -> int:
        """Return the index before which the query brings no more records of a log; 0 if it is unknown."""
        return max(self.begins.get(log, 0), self.streamed.get(log, 0))

    def ensure_running(self, positions: Callable[[], Mapping[str, int]]) -> None:
        """Start the query, also after a failure, in a thread. positions: returns by log where the query
        begins; it begins at the beginning of any other log. Raises MaterializeFailed when Java has ended."""
        if self._starting is not None:
            if not self._starting.done():
                return
            starting, self._starting = self._starting, None
            error = starting.exception()
            if isinstance(error, Exception):
                self._failed(error)
        if self._query is not None:
            try:
                if not self._query.isActive:
                    self._ended(self._query)
            except (Py4JError, ConnectionError) as error:
                self._forget()
                self._failed(error)
        if self._query is None and time.monotonic() >= self._start_at_s:
            self._starting = self._threads.submit(self._start, positions())

    def stop(self) -> None:
        """End the query, once the units of work that run have ended; wait STOP_WITHIN_S at most."""
        self._stopping.set()
        if self._starting is not None:
            wait([self._starting], STOP_WITHIN_S)
        self._threads.shutdown(wait=False)  # what has not begun returns at once
        has_ended = True
        if self._query is not None:
            ending = threading.Thread(target=end_query, args=(self._query,), daemon=True)
            ending.start()
            ending.join(STOP_WITHIN_S)
            has_ended = not ending.is_alive()
        if has_ended:
            self._clear()

    def _start(self, positions: Mapping[str, int]) -> None:
        self._clear()
        if self._checkpoints is not None:
            self._checkpoints.mkdir(parents=True, exist_ok=True)
        self._folder = make_scratch("commitlog-stream-", self._checkpoints)
        reader = self.spark.readStream.format("commitlog").options(**self._options)
        writer = reader.option("startingIndex", json.dumps(dict(positions))).load().writeStream
        writer = writer.foreachBatch(self._write).option("checkpointLocation", f"file:{self._folder}")
        writer = writer.trigger(processingTime=f"{round(1_000 * self._trigger_s)} milliseconds")
        query = writer.queryName(f"{NAME}-{self._folder.name}").start()
        self.begins, self._query = positions, query
        if self._stopping.is_set():  # meanwhile: `stop` has not waited for this
            query.stop()

    def _ended(self, query: StreamingQuery) -> None:
        error = query.exception()
        self._forget()
        if error is not None:
            self._failed(error)

    def _forget(self) -> None:
        """The query has ended."""
        self._query = None
        self._ended_queries += 1
        self.begins = {}
        self.streamed.clear()

    def _failed(self, error: Exception) -> None:
        """Plan the next start. Raises MaterializeFailed when Java, which does not come back, is found missing
        twice: once may be the stop of all processes of the job."""
        if isinstance(error, _NO_JAVA) and self._failures:
            raise MaterializeFailed(
                "Java has ended; its own message, if any, is above. Without one the kernel has probably "
                "killed it for want of memory (dmesg). Start the job again, with more memory or a smaller "
                "driver_memory"
            ) from error
        self._failures += 1
        pause_s = min(LONGEST_PAUSE_S, PAUSE_S * 2 ** (self._failures - 1))
        self._start_at_s = time.monotonic() + pause_s
        reason = "Java does not answer" if isinstance(error, _NO_JAVA) else reason_of(error)
        warn(f"query: {reason}; starting again from the ends of the tables")

    def _clear(self) -> None:
        if self._folder is not None:
            remove_scratch(self._folder)

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch. Called by Spark, in a thread of its own."""
        began_s, ended = time.monotonic(), self._ended_queries
        assert self._folder is not None
        end = read_offset(self._folder, batch_id)
        ranges = end.batch
        if is_large(ranges, int(self._options["backlogRecords"])):
            [(log, (first, until))] = ranges.items()
            self._deliver(LogRows(log, end.logs[log].log_id, first, until, None, batch, began_s))
        else:
            try:
                rows = batch.toArrow()
            except SPARK_ERRORS:
                if self._stopping.is_set():
                    return  # interrupted by `stop`; Spark would look for that in the text of this error
                raise
            work: list[Future[Any]] = []
            for log, (first, until) in ranges.items():
                own = rows.filter(pc.equal(rows["log"], log))
                delivery = LogRows(log, end.logs[log].log_id, first, until, own, None, began_s)
                try:
                    work.append(self._threads.submit(self._deliver_unless_stopping, delivery))
                except RuntimeError:  # `stop` has closed the pool meanwhile
                    break
            wait(work)
        if not self._stopping.is_set() and ended == self._ended_queries:
            self.streamed.update({log: until for log, (_, until) in ranges.items()})
            for log in self.streamed.keys() - end.logs.keys():  # deleted
                del self.streamed[log]
            self.begins = {log: begin for log, begin in self.begins.items() if log in end.logs}
            self._failures = 0

    def _deliver_unless_stopping(self, delivery: LogRows) -> None:
        if not self._stopping.is_set():
            self._deliver(delivery)


def end_query(query: StreamingQuery) -> None:
    """End a query. Spark may have ended before, when a signal has reached all processes of the job."""
    with suppress(*SPARK_ERRORS, Py4JError, ConnectionError):
        query.stop()


def is_large(ranges: Mapping[str, tuple[int, int]], small_records: int) -> bool:
    """Return whether a micro-batch is a part of the backlog of one log."""
    return len(ranges) == 1 and all(until - first > small_records for first, until in ranges.values())


def read_offset(checkpoint: Path, batch_id: int) -> LogsOffset:
    """Return the end of a micro-batch, from the line that Spark writes before it runs one.

    Raises FileNotFoundError.
    """
    lines = (checkpoint / "offsets" / str(batch_id)).read_text("utf-8").splitlines()
    return LogsOffset.from_json(json.loads(lines[-1]))
