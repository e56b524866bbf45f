"""Supervision of a streaming query and its Spark checkpoint.

The tables themselves record their progress, so each start of a query (the first, after a kill, or after a
failure) begins there with a new checkpoint. All starts take the same path, and the loss of a checkpoint needs
no special treatment.
"""

import os
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

from spark_jobs.errors import SourceError, Unreachable, own_error
from spark_jobs.tables.table import SPARK_ERRORS

MAX_FAILURES = 5  # of one query, without a write in between
FAILURE_PAUSE_S = 1.0
STOP_WITHIN_S = 15.0


class MaterializeFailed(RuntimeError):
    """A query ended for a reason that a restart does not fix; the message is for the operator."""


class Job(Protocol):
    """One streaming query of one log, which can be started any number of times."""

    name: str

    def stream(self, checkpoint: Path) -> DataFrame:
        """Return a new stream that begins where the tables end; it will run with this Spark checkpoint."""
        ...

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """Extend the tables to the end of a micro-batch."""
        ...


class Supervisor:
    """Keeps one job's query running: restarts it after a failure, gives up when that does not help."""

    def __init__(
        self,
        job: Job,
        checkpoints: Path,
        trigger: str | None,
        *,
        elsewhere: Callable[[Path], Callable[[DataFrame, int], None]] | None = None,
    ) -> None:
        """checkpoints: scratch folder. trigger: a Spark interval, None to end with the data available now.

        elsewhere: creates the function that writes the micro-batches of a query, from its checkpoint, where
        Spark calls it in another process; None: the job writes them, in this one.
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
        self.last_batch: dict[str, Any] | None = None  # id, records, duration_ms: as reported by Spark

    def start(self) -> None:
        """Start a query from where the tables end, with its own checkpoint."""
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

    def ensure_running(self) -> None:
        """Restart the query if it failed, after a pause.

        Raises MaterializeFailed if a restart does not help.
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
        """End the query after its current micro-batch; STOP_WITHIN_S at most.

        An aborted micro-batch leaves no trace in its table, but long error messages.
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
        if told is not None and "addBatch" in told.durationMs:  # not a check that found no new records
            if self.last_batch is None or told.batchId != self.last_batch["id"]:
                self.failures = 0
            self.last_batch = {
                "id": told.batchId,
                "records": told.numInputRows,
                "duration_ms": dict(told.durationMs),
            }

    def _write(self, rows: DataFrame, batch_id: int) -> None:
        """Called by Spark. It takes errors as text only, and fails on long ones: so they are kept here."""
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
        own = own_error(error)
        kind = SourceError if own is None else own[0]
        unreachable = issubclass(kind, Unreachable)  # reported after retries: a following job retries on
        if unreachable and self.trigger is not None:
            self.failures = min(self.failures, MAX_FAILURES)
        given_up = self.failures > MAX_FAILURES or (unreachable and self.trigger is None)
        if given_up or kind.is_final:
            raise MaterializeFailed(f"{self.job.name}: {reason}") from error
        sys.stderr.write(f"{self.job.name}: {reason}; starting again from the end of the table\n")
        self.start_at_s = time.monotonic() + FAILURE_PAUSE_S * self.failures


def owner() -> str:
    """Return a name of this process for its own folders."""
    return f"{socket.gethostname()}-{os.getpid()}"


def remove_dead_checkpoints(folder: Path) -> None:
    """Remove the scratch folders of drivers of this machine that no longer run."""
    for path in folder.glob(f"*-{socket.gethostname()}-*-*"):
        pid = int(path.name.rsplit("-", 2)[1])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            shutil.rmtree(path, ignore_errors=True)
        except PermissionError:
            continue


def reason_of(error: Exception) -> str:
    """Return the last meaningful line of an error: Spark wraps Python's errors in pages of text."""
    if (own := own_error(error)) is not None:
        return own[1]
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)[:500]
