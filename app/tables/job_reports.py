"""Reports of the Spark jobs that write the tables: the files `progress*.json` in the folder of the tables.

A job replaces its file twice a second (spark_jobs/materialize/progress.py). A file elsewhere is not read.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from app.tables.delta_log import is_url
from app.tables.names import FAILED, PROGRESS_FILE
from storage.units import MIB

FILE_MAX_BYTES: Final = 64 * MIB  # of a larger file nothing is known: a log has some 500 bytes
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


_NOTHING: Final = _Document("", 0, {})


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


def job_reports(root: str) -> dict[str, JobReport]:
    """Return the newest report about each log of the jobs that write the tables below ROOT/LOG. A log without
    a report that can be read is left out, as are all logs of tables at a URL. Blocks on I/O."""
    newest: dict[str, JobReport] = {}
    for document in sorted(map(_read, _files(root)), key=lambda each: each.updated_ms):
        newest |= _reports(document)
    return newest


class JobReports:
    """The reports below a root, as of `job_reports`. The files are read again only after one has changed."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._stamps: dict[Path, tuple[int, ...] | None] = {}
        self._found: Mapping[str, JobReport] = {}

    def read(self) -> Mapping[str, JobReport]:
        """Return the newest report about each log. Blocks on I/O; of one thread at a time."""
        stamps = {path: _stamp(path) for path in _files(self._root)}  # before the files are read
        if stamps != self._stamps:
            self._found, self._stamps = job_reports(self._root), stamps
        return self._found


def _files(root: str) -> list[Path]:
    """Return the files of reports; none of a folder that cannot be read, and at a URL."""
    try:
        return [] if is_url(root) else list(Path(root).glob(_FILES))
    except OSError:
        return []


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return what differs after a file was replaced or written; None for a file that is removed meanwhile."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(path: Path) -> _Document:
    """Return a document without logs for a file that is removed meanwhile, is not readable for this user, or
    is not of a job."""
    try:
        data = _content(path)
        return _NOTHING if data is None else msgspec.json.decode(data, type=_Document)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NOTHING


def _content(path: Path) -> bytes | None:
    """Return the content, None for a pipe, a device, a folder or a large file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe may have no writer
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > FILE_MAX_BYTES:
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(FILE_MAX_BYTES)
    finally:
        os.close(descriptor)


def _reports(document: _Document) -> dict[str, JobReport]:
    names_logs = any(each.error is not None for each in document.logs.values())
    others = JobReport(document.state, document.updated_ms, None, None)
    if document.state == FAILED and document.error is None and names_logs:
        others = JobReport("done", document.updated_ms, None, None)  # with --once; the job reports other logs
    elif document.state == FAILED:
        others = JobReport(FAILED, document.updated_ms, document.error, document.updated_ms)
    return {
        log: others if own.error is None else JobReport(FAILED, document.updated_ms, own.error, own.failed_ms)
        for log, own in document.logs.items()
    }
