"""Micro-batches over Spark Connect: the function that a query calls runs in a process of the server.

The job that writes is therefore created there, from the same configuration, in that process's own session. It
takes the lease there too, and reports no progress: the driver reads the tables (run.py). The server needs the
packages that this package imports; the package itself comes with the session (session/spark_session.py).
Checkpoints are files of the server, which its processes read too, under one path for all of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.materialize.supervisor import Job


class RemoteWrite:
    """Called with each micro-batch of one query. make: creates the job, in the session of the calling
    process."""

    def __init__(self, make: Callable[[SparkSession], Job], checkpoint: Path) -> None:
        self.make = make
        self.checkpoint = checkpoint
        self._job: Job | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_job": None}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if self._job is None:
            self._job = self.make(rows.sparkSession)
            self._job.stream(self.checkpoint)  # finds the end of the table, and takes the lease
        self._job.write(rows, batch_id)
