"""Micro-batches over Spark Connect: what a query calls for each of them runs in a process of the server.

So the job that writes is made there, of the same configuration, in that process's own session; it takes the
lease there too, and tells nobody how far it is: the driver looks at the tables (run.py). The server needs
what this package imports; the package itself comes with the session
(session/spark_session.py). Checkpoints are files of the server, which its processes read too: a path that
means the same to all of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from spark_jobs.materialize.supervisor import Job


class RemoteWrite:
    """Called with each micro-batch of one query. make: the job, in the session of the process it runs in."""

    def __init__(self, make: Callable[[SparkSession], Job], checkpoint: Path) -> None:
        self.make = make
        self.checkpoint = checkpoint
        self._job: Job | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_job": None}

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if self._job is None:
            self._job = self.make(rows.sparkSession)
            self._job.stream(self.checkpoint)  # finds out where the table ends, and takes the lease
        self._job.write(rows, batch_id)
