"""Reports of the Spark jobs that write the tables: the files `progress*.json` in the folder of the tables.

A job replaces its file twice a second (spark_jobs/materialize/progress.py). A file elsewhere is not read.
"""

from pathlib import Path
from typing import Final

import msgspec

from app.tables.delta_log import is_url
from app.tables.names import FAILED, PROGRESS_FILE

_FILES: Final = PROGRESS_FILE.replace(".", "*.")


class _LogReport(msgspec.Struct):
    error: str | None = None
    failed_ms: int | None = None  # jobs of earlier releases do not write it


class _Document(msgspec.Struct):
    """One file. error: why the whole job has failed; jobs of earlier releases do not write it."""

    state: str
    updated_ms: int
    logs: dict[str, _LogReport]
    error: str | None = None


class JobReport(msgspec.Struct, frozen=True):
    """The last report of the job of a log.

    state: running, done, stopped, failed; a job that was killed stays as it was. updated_ms: time of the
    report. error: why the job has failed, in one sentence; None if it has not, or if the reason is not known.
    failed_ms: since when; None if it has not failed, or if that is not known.
    """

    state: str
    updated_ms: int
    error: str | None
    failed_ms: int | None


def job_report(root: str, log: str) -> JobReport | None:
    """Return the newest report of a job that writes the tables below ROOT/LOG. None if there is none that can
    be read, and for tables at a URL. Blocks on I/O."""
    if is_url(root):
        return None
    found = [document for path in Path(root).glob(_FILES) if log in (document := _read(path)).logs]
    return max((_report(each, log) for each in found), key=lambda report: report.updated_ms, default=None)


def _read(path: Path) -> _Document:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document)
    except (OSError, msgspec.DecodeError):  # removed meanwhile, not readable for this user, not of a job
        return _Document("", 0, {})


def _report(document: _Document, log: str) -> JobReport:
    own = document.logs[log]
    if own.error is not None:
        return JobReport(FAILED, document.updated_ms, own.error, own.failed_ms)
    if document.state != FAILED:
        return JobReport(document.state, document.updated_ms, None, None)
    if document.error is None and any(each.error is not None for each in document.logs.values()):
        return JobReport("done", document.updated_ms, None, None)  # with --once; the job reports other logs
    return JobReport(FAILED, document.updated_ms, document.error, document.updated_ms)
