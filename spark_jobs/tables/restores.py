"""RESTORE commits of a table: they remove rows, and keep the claims under which the rows were added."""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from app.tables.catalog import RESTORE
from app.tables.delta_log import DeltaLog
from app.tables.names import RESTORED_PROPERTY
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import is_remote
from spark_jobs.tables.metadata import set_properties, table_properties
from spark_jobs.tables.removals import TableReplaced
from spark_jobs.tables.table import newest_commits

HISTORY: Final = 100  # newest commits that the first call reads


class Restores:
    """RESTORE commits of one table that the job has not repaired. In a local folder each call reads the
    commits since the last one; elsewhere the first call alone finds any.

    has_gap: commits since the last call were removed from the history, so one of them may be a RESTORE. True
    until `done` is called.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark = spark
        self.path = path
        self._log = None if is_url(path) or is_remote(spark) else DeltaLog(path, keeps_files=False)
        self._next: int | None = None  # the version after those that were read
        self._due: list[int] = []
        self.has_gap = False

    def due(self) -> Sequence[int]:
        """Return their versions, oldest first, until `done` is called. Raises TableReplaced,
        DeltaLogError."""
        found = self._by_spark() if self._log is None else self._in_log(self._log)
        if found:
            known = int(table_properties(self.spark, self.path).get(RESTORED_PROPERTY, -1))
            self._due += [version for version in found if version > known]
        return self._due

    def done(self) -> None:
        """Note in the table that the rows of all `due` are there again."""
        if self._due:
            set_properties(self.spark, self.path, {RESTORED_PROPERTY: str(self._due[-1])})
            self._due = []
        self.has_gap = False

    def _in_log(self, log: DeltaLog) -> list[int]:
        if self._next is None:
            known = log.versions()
            self._next = max(known.start, known.stop - HISTORY)
        found = []
        first = log.first_left(self._next)
        if first < self._next:
            raise TableReplaced(self.path)
        self.has_gap |= first > self._next
        self._next = first
        while (commit := log.commit(self._next)) is not None:
            if commit.operation == RESTORE:
                found.append(self._next)
            self._next += 1
        return found

    def _by_spark(self) -> list[int]:
        if self._next is not None:
            return []
        rows = newest_commits(self.spark, self.path, HISTORY)
        self._next = max((row["version"] for row in rows), default=-1) + 1
        return [row["version"] for row in rows if row["operation"] == RESTORE]
