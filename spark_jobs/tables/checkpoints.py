"""Checkpoints of tables whose commits the driver makes itself, written by Spark behind those commits.

A checkpoint sums up the commits before it, so readers of a long history open the table fast; Delta also
removes old commits with it. Before some checkpoints the table's small files are merged (merging.py). Nothing
waits for either: commits continue, and a table for which one failed is complete without it.

Source: the Delta transaction log protocol, section Checkpoints.
"""

import logging
import threading
from collections import Counter
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from app.tables.delta_log import DeltaLogError
from spark_jobs.errors import SourceError
from spark_jobs.session.spark_session import delta_snapshot
from spark_jobs.tables.local.commits import NeedsSpark
from spark_jobs.tables.merging import merge_small_files

MERGE_EACH: Final = 10  # checkpoints of a table: a search for small files reads its whole log

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes the checkpoints of all tables of a process, one at a time, in a thread of its own. Safe for use
    by several threads."""

    def __init__(self) -> None:
        self._due: dict[str, SparkSession] = {}  # by path
        self._begun: Counter[str] = Counter()  # by path: how many checkpoints
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def request(self, spark: SparkSession, path: str) -> None:
        """Write a checkpoint of the newest version of the table at `path` soon."""
        with self._lock:
            self._due[path] = spark
            if self._thread is None:
                # a daemon: the end of the process does not wait for a checkpoint
                self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
                self._thread.start()

    def finish(self, timeout_s: float) -> bool:
        """Wait until no checkpoint is due, or forget those that have not begun by then; return whether all
        are written."""
        if (thread := self._thread) is not None:
            thread.join(timeout_s)
        with self._lock:
            self._due.clear()
            return self._thread is None

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._due:
                    self._thread = None
                    return
                path = next(iter(self._due))
                spark = self._due.pop(path)
            try:
                if self._begun[path] % MERGE_EACH == 0:
                    merge(path)
                self._begun[path] += 1
                write_checkpoint(spark, path)
            except (Py4JError, OSError) as error:  # OSError: the session has ended
                if not is_stopped(spark):
                    logger.warning("%s: no checkpoint was written: %s", path, error)
            except Exception:  # it is seen here alone, and the other tables are still due
                logger.exception("%s: no checkpoint was written", path)


def merge(path: str) -> None:
    """Merge the small files of a table if they have become too many."""
    try:
        merge_small_files(path)
    except (NeedsSpark, DeltaLogError):
        pass  # the table is left to OPTIMIZE
    except (SourceError, OSError) as error:
        logger.warning("%s: its small files were not merged: %s", path, error)
    except Exception:  # its checkpoint is due in every case
        logger.exception("%s: its small files were not merged", path)


def write_checkpoint(spark: SparkSession, path: str) -> None:
    """Write a checkpoint of the newest version, and remove commits that the table's settings no longer keep.
    Raises Py4JError."""
    log, snapshot = delta_snapshot(spark, path)
    jvm: Any = spark._jvm
    log.checkpointAndCleanUpDeltaLog(snapshot, jvm.scala.Option.empty())


def is_stopped(spark: SparkSession) -> bool:
    context: Any = spark.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError):  # its process has ended
        return True


CHECKPOINTS = CheckpointWriter()
