"""Commits of other writers that take rows from a table while a job extends it."""

from collections.abc import Sequence
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import Row, SparkSession

from app.tables.delta_log import Commit, DeltaLog
from spark_jobs.errors import SourceError
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import is_remote
from spark_jobs.tables.table import NO_TABLE, newest_commits

HISTORY: Final = 10  # newest commits that Spark returns at once
LONG_HISTORY: Final = 1_000  # of a job that has paused meanwhile
NO_HISTORY: Final = (*NO_TABLE, "DELTA_TABLE_ONLY_OPERATION")
KEEPS_ROWS: Final = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES")


class TableReplaced(SourceError):
    """The folder of a table was removed while a job extended it, and another table may be there now."""

    condition = "COMMITLOG_TABLE_REPLACED"

    def __init__(self, path: str) -> None:
        super().__init__(f"{path} is not the table that this job has extended: its folder was removed")


class Removals:
    """Commits of one table that may have removed rows, each reported once."""

    def __init__(self, spark: SparkSession, path: str, *, elsewhere: bool = False) -> None:
        """elsewhere: let Spark read the commits of a table that is not in a local folder, a query at each
        call; False: none of them is noticed."""
        self.spark = spark
        self.path = path
        self._elsewhere = elsewhere
        self._log = None if is_url(path) or is_remote(spark) else DeltaLog(path, keeps_files=False)
        self._next = 0  # the first version that was not read
        self._last: Commit | tuple[Any, ...] | None = None  # the one before it, as this object reads it

    def start(self) -> None:
        """Report no commit before now."""
        if self._log is not None:
            self._next = self._log.versions().stop
            self._last = self._log.commit(self._next - 1)
        elif self._elsewhere:
            self._note_newest(self._history())

    def found(self) -> Sequence[str]:
        """Return the operations of the commits since the last call that may have removed rows: "" for those
        that cannot be read, because they were removed from the history. Raises TableReplaced, DeltaLogError.
        """
        if self._log is None:
            return self._found_by_spark() if self._elsewhere else ()
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

    def _found_by_spark(self) -> Sequence[str]:
        rows = self._history()
        newest = rows[-1]["version"] if rows else -1
        if rows and rows[0]["version"] >= self._next > 0:  # the last known one is not among them
            rows = self._history(min(newest + 2 - self._next, LONG_HISTORY))
        last = next((described(row) for row in rows if row["version"] == self._next - 1), self._last)
        if newest < self._next - 1 or last != self._last:
            raise TableReplaced(self.path)
        new = [row for row in rows if row["version"] >= self._next]
        is_whole = len(new) == newest + 1 - self._next
        self._note_newest(rows)
        found = [row["operation"] for row in new if not keeps_rows(row)]
        return found if is_whole else ["", *found]

    def _note_newest(self, rows: Sequence[Row]) -> None:
        self._next, self._last = (rows[-1]["version"] + 1, described(rows[-1])) if rows else (0, None)

    def _history(self, count: int = HISTORY) -> Sequence[Row]:
        """Return the newest commits, the last one at the end, none without a table."""
        try:
            return newest_commits(self.spark, self.path, count)
        except AnalysisException as error:
            if error.getCondition() in NO_HISTORY:
                return ()
            raise


def described(commit: Row) -> tuple[Any, ...]:
    """Return what distinguishes a commit from that of another table with its version. Spark changes
    the times of commits that one store gives the same time, by the number of commits that it returns."""
    return commit["operation"], commit["readVersion"], commit["userMetadata"]


def keeps_rows(commit: Row) -> bool:
    """Return whether a commit of the history removes no row."""
    return bool(commit["isBlindAppend"]) or commit["operation"] in KEEPS_ROWS
