"""Commits of other writers that take rows from a table while a job extends it."""

from collections.abc import Sequence

from pyspark.sql import SparkSession

from app.tables.delta_log import Commit, DeltaLog
from spark_jobs.errors import SourceError
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import is_remote


class TableReplaced(SourceError):
    """The folder of a table was removed while a job extended it, and another table may be there now."""

    condition = "COMMITLOG_TABLE_REPLACED"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not the table that this job has extended: its folder was removed")


class Removals:
    """Commits of one table that may have removed rows, each reported once. Elsewhere than in a local folder
    none is noticed."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._log = None if is_url(path) or is_remote(spark) else DeltaLog(path, keeps_files=False)
        self._next = 0  # the first version that was not read
        self._last: Commit | None = None  # the one before it

    def start(self) -> None:
        """Report no commit before now."""
        if self._log is not None:
            self._next = self._log.versions().stop
            self._last = self._log.commit(self._next - 1)

    def found(self) -> Sequence[str]:
        """Return the operations of the commits since the last call that may have removed rows: "" for those
        that cannot be read, because they were removed from the history. Raises TableReplaced, DeltaLogError.
        """
        if self._log is None:
            return ()
        last = self._log.commit(self._next - 1)
        is_other = last is not None and self._last is not None and last != self._last
        first = self._next if last is not None else self._log.first_left(self._next)
        if is_other or first < self._next:
            raise TableReplaced(self.path)
        operations = [""] if first > self._next else []
        self._next = first
        while (commit := self._log.commit(self._next)) is not None:
            if commit.removes_rows:
                operations.append(commit.operation)
            self._next, self._last = self._next + 1, commit
        return operations
