"""Errors of the source and the sink; each message states the remedy."""

import errno
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from app.local_problem import local_problem

HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"  # read by Spark's Python processes when they report an error
_CODED = re.compile(r"\[(COMMITLOG_[A-Z_]+)\] (.*)")
_NO_SPACE = tuple(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT))
_CODES = {2: "usage", 4: "not-found", 5: "unavailable"}  # of a problem document, by exit code
_KINDS: dict[str, type["SourceError"]] = {}  # by condition


class SourceError(RuntimeError):
    """Base class of the errors of the `commitlog` source. The message is for the user of the query.

    condition: name of this kind of error. The text begins with it, as Spark's own errors do: Spark passes on
    the errors of its Python processes as text (`own_error`). is_final: a restart of the query does not fix
    the error.
    """

    condition = "COMMITLOG_ERROR"
    is_final = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _KINDS[cls.condition] = cls

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}"

    @property
    def message(self) -> str:
        return super().__str__()


def own_error(error: BaseException) -> tuple[type[SourceError], str] | None:
    """Return the kind and the message of an error of this package, also from the text of an error of Spark
    that wraps one; None for another error. Of a chain in a traceback the last one counts: it was raised."""
    if isinstance(error, SourceError):
        return type(error), error.message
    found = [(_KINDS.get(each[1]), each[2].strip()) for each in _CODED.finditer(str(error))]
    return next(((kind, message) for kind, message in reversed(found) if kind is not None), None)


def is_disk_full(error: BaseException) -> bool:
    """Return whether a disk had no space left, also by the text of an error of Java."""
    return any(reason in str(error) for reason in _NO_SPACE)


def write_failure(error: Exception, exit_code: int, *, as_json: bool) -> None:
    """Write why a job ends to standard error: a sentence, or the problem document of docs/api.md §7."""
    if not as_json:
        sys.stderr.write(f"{error}\n")
        return
    code = _CODES.get(exit_code, "failed")
    document = local_problem(code, str(error), retryable=code == "unavailable")
    sys.stderr.write(f"{json.dumps(document, ensure_ascii=False)}\n")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let Spark report an error of this package in its planning process as one sentence, not as a traceback.

    For code that Spark runs in a process of its own, for one plan: the setting is of the whole process.
    """
    try:
        yield
    except SourceError:
        os.environ[HIDE_TRACEBACK] = "1"
        raise


class OptionError(SourceError):
    """An unknown option, or an invalid value."""

    condition = "COMMITLOG_OPTION"
    is_final = True


class Unreachable(SourceError):
    """No replica answered in time. The message contains the last error of each."""

    condition = "COMMITLOG_UNREACHABLE"


class NoCopy(Unreachable):
    """A node answered that has no data of the log."""

    condition = "COMMITLOG_NO_COPY"


class RequestRefused(SourceError):
    """A replica answered with a problem that a retry, there or at another replica, cannot solve."""

    condition = "COMMITLOG_REFUSED"
    is_final = True

    def __init__(self, status: int, code: str, detail: str, fields: dict[str, object] | None = None) -> None:
        super().__init__(f"the log service refused: {status} {code}: {detail}")
        self.status = status
        self.code = code
        self.fields = fields or {}


class LogTrimmed(SourceError):
    """The log no longer contains the requested index."""

    condition = "COMMITLOG_LOG_TRIMMED"
    is_final = True

    def __init__(self, log: str, index: int, begin_index: int) -> None:
        super().__init__(
            f"log {log!r} begins at index {begin_index}: the records from {index} to {begin_index - 1} were "
            "trimmed before they were read. They are lost to this query. To continue without them, set "
            "failOnDataLoss to false; a materializer that holds a fencing cursor keeps retention from "
            "passing it."
        )
        self.begin_index = begin_index


class RecordsTrimmed(SourceError):
    """The log no longer contains records that a table needs next: a job has no gap to offer instead."""

    condition = "COMMITLOG_RECORDS_TRIMMED"
    is_final = True

    def __init__(self, log: str, path: str, index: int, begin_index: int) -> None:
        super().__init__(
            f"log {log!r} begins at index {begin_index}: the records from {index} to {begin_index - 1} were "
            f"trimmed before they were read into {path}, which stays as it is. To continue with new tables, "
            f"which begin at index {begin_index}: stop the job, move the folder {path.rpartition('/')[0]} "
            "to another place, and start the job."
        )


class JournalTrimmed(SourceError):
    """A node's journal no longer contains the requested event."""

    condition = "COMMITLOG_JOURNAL_TRIMMED"
    is_final = True

    def __init__(self, log: str, node: str, seq: int, first_seq: int) -> None:
        super().__init__(
            f"log {log!r}: the journal of node {node} begins at event {first_seq}: the events from {seq} to "
            f"{first_seq - 1} were removed by its retention ([journal] retention_ms, retention_bytes) before "
            "they were read. They are lost to this query. To continue without them, set "
            "failOnDataLoss to false."
        )
        self.first_seq = first_seq


class TableUnreadable(SourceError):
    """A Delta table that tail=union cannot read."""

    condition = "COMMITLOG_TABLE_UNREADABLE"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"tail=union cannot read the table at {path}: {reason}")


class LogClash(SourceError):
    """The log is not the one that this query has read so far."""

    condition = "COMMITLOG_LOG_CLASH"
    is_final = True

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(
            f"log {log!r} is not the log that this query has read: {reason}. It may lack records that the "
            "query has read before. If the endpoint belongs to another cluster, correct it. If the log "
            "was deleted and created again, or the cluster was wiped, restored or elected an unclean leader, "
            "compare the tables with the log, then start with an empty checkpoint and an empty table; a job "
            "that keeps the tables of logs, with an empty folder of tables."
        )


class RowsLost(SourceError):
    """RESTORE took rows from a typed table, and the job cannot add them again."""

    condition = "COMMITLOG_ROWS_LOST"
    is_final = True

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(
            f"RESTORE took rows from {path} which the job cannot add again: {reason}. To have the whole "
            "table made again, stop the job, delete the folder of the table, and start the job."
        )


class StrayRows(SourceError):
    """A typed table has rows after the end of the log. The job would take the records before them for
    written."""

    condition = "COMMITLOG_STRAY_ROWS"
    is_final = True

    def __init__(self, path: str, log: str, log_end: int, last: int) -> None:
        """log_end: index after the last record of the log. last: of the table."""
        super().__init__(
            f"{path} has rows up to index {last}, and log {log!r} ends before index {log_end}: another "
            "program wrote rows that are of no record. Stop the job, delete the rows from index "
            f"{log_end} on from the table, or its folder, and start the job."
        )


class ColumnClash(SourceError):
    """A column of a typed table has a type that cannot become the one that the schema gives.

    A retry helps where another driver has widened the column for a version that this one has not read yet.
    """

    condition = "COMMITLOG_COLUMN_CLASH"

    def __init__(self, path: str, column: str, held: str, wanted: str) -> None:
        super().__init__(
            f"{path}: the column {column} is {held}, and Delta cannot change it to {wanted}, the type by the "
            "schema of the log. Another program changed the table, or an earlier release wrote records of a "
            "later version of the schema into it. To have the table made again from `entries`, stop the job, "
            "delete the folder of the table, and start the job."
        )


class SinkError(SourceError):
    """Rows that could not be written. The message states what is stored, and the remedy."""

    condition = "COMMITLOG_SINK"


class SinkClash(SinkError):
    """The log or the staging folder contains appends of another query under this batch's id."""

    condition = "COMMITLOG_SINK_CLASH"

    def __init__(self, log: str, producer_id: str, batch_id: int) -> None:
        super().__init__(
            f"log {log!r} already holds appends of producer {producer_id!r} for batch {batch_id} or a later "
            "one, which this query has not made: the staging folder was removed, the checkpoint was lost, or "
            "another query uses this producerId. If the query continued, rows could be written twice. "
            "Compare the log with the query's source; then continue with another producerId, or with a "
            "higher producerEpoch."
        )


class ShortRead(SourceError):
    """A response with missing, duplicate or reordered records: an error of the service."""

    condition = "COMMITLOG_SHORT_READ"
