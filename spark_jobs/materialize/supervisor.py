"""Keep a streaming query running, and its Spark checkpoint tidy.

The tables themselves say how far they go, so each start of a query, the first, after a kill or after a
failure, begins there with a fresh checkpoint: there is one road, and a checkpoint that was lost is nothing
special.
"""

import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.errors import Unreachable
from spark_jobs.tables.table import SPARK_ERRORS

MAX_FAILURES = 5  # of one query, with nothing written between
FAILURE_PAUSE_S = 1.0
STOP_WITHIN_S = 15.0
# What starting again does not mend: the names as Spark's own error text repeats them.
FATAL = ("LogClash", "Trimmed", "TableClash", "OptionError", "Refused", "EpochClash", "LeaseLost")

_OWN_ERROR = re.compile(r"spark_jobs\.[\w.]+: ")  # as a line of Spark's text names an error of this package


class MaterializeFailed(RuntimeError):
    """A query ended for a reason that starting it again does not mend; the message is for a person."""


class Job(Protocol):
    """One streaming query of one log, which can be started any number of times."""

    name: str

    def stream(self, checkpoint: Path) -> DataFrame:
        """A new stream that begins where the tables end; it will be run with this Spark checkpoint."""
        ...

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Bring the tables up to the end of a micro-batch."""
        ...


class Supervisor:
    """Keeps one job's query running: starts it again after a failure, gives up when that does not help."""

    def __init__(
        self,
        job: Job,
        checkpoints: Path,
        trigger: str | None,
        *,
        elsewhere: Callable[[Path], Callable[[DataFrame, int], None]] | None = None,
    ) -> None:
        """checkpoints: scratch folder. trigger: a Spark interval, None to end with what is there now.

        elsewhere: makes what writes the micro-batches of a query, from its checkpoint, where Spark calls that
        in another process; None: the job writes them, in this one.
        """
        self.job = job
        self._elsewhere = elsewhere
        self.checkpoints = checkpoints
        self.trigger = trigger
        self.query: StreamingQuery | None = None
        self.starts = 0
        self.failures = 0
        self.done = False
        self._error: Exception | None = None  # of the last write that failed
        self._stopping = False
        self._writing = threading.Lock()
        self.start_at_s = 0.0
        self.last_batch: dict[str, Any] | None = None  # id, records, duration_ms: as Spark tells

    def start(self) -> None:
        """Start a query from where the tables end, with a checkpoint of its own."""
        remove_dead_checkpoints(self.checkpoints)
        self.starts += 1
        checkpoint = self.checkpoints / f"{self.job.name}-{owner()}-{self.starts}"
        shutil.rmtree(checkpoint, ignore_errors=True)
        rows = self.job.stream(checkpoint)
        write = self._write if self._elsewhere is None else self._elsewhere(checkpoint)
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        if self.trigger is None:
            self.query = writer.trigger(availableNow=True).start()
        else:
            self.query = writer.trigger(processingTime=self.trigger).start()

    def look(self) -> None:
        """Start the query again if it failed, after a pause.

        Raises MaterializeFailed when that is in vain.
        """
        if self.done:
            return
        if self.query is None:
            if time.monotonic() >= self.start_at_s:
                self._try(self.start)
            return
        if self.query.isActive:
            self._note_batch(self.query)
            return
        error = self.query.exception()
        self.query = None
        if error is None:
            self.done = True
        else:
            self._failed(self._error or error)
            self._error = None

    def stop(self) -> None:
        """End the query when the micro-batch that it is in the middle of is written; STOP_WITHIN_S at most.

        One that is cut off leaves no trace in its table, but pages of complaints.
        """
        self._stopping = True
        if self._writing.acquire(timeout=STOP_WITHIN_S):
            self._writing.release()
        if self.query is not None:
            self.query.stop()
        for folder in self.checkpoints.glob(f"{self.job.name}-{owner()}-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _note_batch(self, query: StreamingQuery) -> None:
        told = query.lastProgress
        if told is not None and "addBatch" in told.durationMs:  # not a look that found nothing new
            if self.last_batch is None or told.batchId != self.last_batch["id"]:
                self.failures = 0
            self.last_batch = {
                "id": told.batchId,
                "records": told.numInputRows,
                "duration_ms": dict(told.durationMs),
            }

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        """What Spark calls. It takes errors as text only, and chokes on long ones: so they are kept here."""
        with self._writing:
            if self._stopping:
                return
            try:
                self.job.write(rows, batch_id)
            except Exception as error:
                self._error = error
                raise RuntimeError(f"{type(error).__name__} while {self.job.name} was written") from None
        self.failures = 0

    def _try(self, start: Callable[[], None]) -> None:
        try:
            start()
        except (*SPARK_ERRORS, Unreachable, OSError) as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        reason = reason_of(error)
        told = f"{type(error).__name__}: {error}"
        unreachable = "Unreachable: " in told  # told after a time of asking: who follows a log asks on
        if unreachable and self.trigger is not None:
            self.failures = min(self.failures, MAX_FAILURES)
        given_up = self.failures > MAX_FAILURES or (unreachable and self.trigger is None)
        if given_up or any(f"{name}: " in told for name in FATAL):
            raise MaterializeFailed(f"{self.job.name}: {reason}") from error
        sys.stderr.write(f"{self.job.name}: {reason}; starting again from the end of the table\n")
        self.start_at_s = time.monotonic() + FAILURE_PAUSE_S * self.failures


def owner() -> str:
    """Names this process in the folders that are its own."""
    return f"{socket.gethostname()}-{os.getpid()}"


def remove_dead_checkpoints(folder: Path) -> None:
    """Remove the scratch of drivers of this machine that no longer run: nothing will read it."""
    for path in folder.glob(f"*-{socket.gethostname()}-*-*"):
        pid = int(path.name.rsplit("-", 2)[1])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except PermissionError:
            continue


def reason_of(error: Exception) -> str:
    """The last line of an error that says something: Spark wraps Python's errors in pages of text."""
    lines = [line.strip() for line in str(error).splitlines()]
    for line in lines:
        if _OWN_ERROR.match(line):
            return line.split(": ", 1)[-1]
    return next((line for line in lines if line), type(error).__name__)[:500]
