"""Many logs in one program: the jobs of each log, which do not depend on those of the others.

Logs are named directly, or by patterns (`orders-*`): new logs that match join, deleted logs leave.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from spark_jobs.errors import OptionError, SourceError, Unreachable
from spark_jobs.job_lines import warn
from spark_jobs.materialize.progress import LogProgress
from spark_jobs.materialize.query import LogRows
from spark_jobs.materialize.supervisor import MaterializeFailed
from spark_jobs.source.answers import LogEnds
from spark_jobs.source.log_names import is_pattern, matching, split_names
from spark_jobs.tables.conflicts import SPARK_ERRORS
from spark_jobs.tables.table import TableClash

NAMES_EACH_S = 5.0
DELETED = ("404 log-not-found", "409 log-deleting")  # in the error of such a log; its name may exist again
OPEN_AHEAD = 8  # logs chosen to open next, of which the threads open a few side by side
OPEN_WITHIN_S = 3.0  # at the start; those that are left open while the others are followed
STOP_THREADS = 4
STOP_WITHIN_S = 3.0
FAILURES = (MaterializeFailed, SourceError, TableClash, *SPARK_ERRORS)


class LogJobs(Protocol):
    """All jobs of one log."""

    def start(self) -> None: ...

    def poll(self, *, final: bool = False, logs: int = 1) -> None: ...

    def take(self, delivery: LogRows) -> None: ...

    def stop(self) -> None: ...

    @property
    def read_until(self) -> int: ...

    @property
    def done(self) -> bool: ...

    def progress(self) -> LogProgress: ...


def first_line(error: BaseException) -> str:
    """Return the sentence with which an error begins."""
    return str(error).partition("\n")[0] or type(error).__name__


def named(given: Iterable[str], logs: Callable[[], list[str]]) -> list[str]:
    """Return the logs that lists of names and patterns select. logs: returns all logs, called if there is a
    pattern.

    Raises OptionError when nothing matches.
    """
    names = split_names(given)
    found = matching(names, logs()) if any(map(is_pattern, names)) else []
    wanted = dict.fromkeys([*(name for name in names if not is_pattern(name)), *found])
    if not wanted:
        raise OptionError(f"no log matches {', '.join(names)}")
    return list(wanted)


class FollowedLogs:
    """The followed logs and their jobs. A log that fails ends alone; the program fails when none is left.

    Logs open a few at a time: first those that grow, then the long ones. Those that are open are followed
    meanwhile.
    """

    def __init__(
        self,
        names: Sequence[str],
        make: Callable[[str], LogJobs],
        logs: Callable[[], list[str]],
        submit: Callable[[Callable[[], None]], Future[None]],
        reported: Callable[[str], LogEnds | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """names: of logs, and patterns. logs: gets the list of logs from the service; may raise
        Unreachable. submit: runs a unit of work, which opens a log. reported: returns the ends of a log, as
        last reported, None for unknown."""
        self.named = [name for name in names if not is_pattern(name)]
        self.patterns = [name for name in names if is_pattern(name)]
        self.jobs: dict[str, LogJobs] = {}
        self.failed: dict[str, Exception] = {}
        self._failed_ms: dict[str, int] = {}  # of `failed`: when
        self._make = make
        self._logs = logs
        self._submit = submit
        self._reported = reported
        self._clock = clock
        self._asked_at_s = 0.0
        self._waiting: list[str] = []  # logs that have not begun to open
        self._opening: dict[Future[None], tuple[str, LogJobs]] = {}
        self._open: set[str] = set()
        self._first_ends: dict[str, int] = {}  # of logs that wait, as first reported

    def start(self) -> None:
        """Open all selected logs; after OPEN_WITHIN_S `poll` opens those that are left.

        Raises OptionError when there is none, Unreachable, and the error of a log that is the only one.
        """
        found = named([*self.named, *self.patterns], self._logs)
        self._asked_at_s = self._clock()
        self._add(found)
        give_up_at_s = self._clock() + OPEN_WITHIN_S
        self._open_next()
        while self._opening and (left_s := give_up_at_s - self._clock()) > 0:
            wait(self._opening, left_s, FIRST_COMPLETED)
            self._open_next()
        self._raise_when_all_failed()

    def poll(self, *, final: bool = False) -> None:
        """Do what is due in every log, and add new logs and drop deleted ones."""
        if self.patterns and not final and self._clock() >= self._asked_at_s + NAMES_EACH_S:
            self._ask()
        self._open_next()
        for log, jobs in list(self.jobs.items()):
            if log in self._open and log not in self.failed:
                try:
                    jobs.poll(final=final, logs=len(self.jobs))
                except FAILURES as error:
                    self._end(log, error)
        self._raise_when_all_failed()

    def take(self, delivery: LogRows) -> None:
        """Give rows to their log's jobs. A log that has just joined, or has failed, is left out."""
        jobs = self.jobs.get(delivery.log)
        if jobs is not None and delivery.log not in self.failed:
            jobs.take(delivery)

    def ends(self) -> dict[str, int]:
        """Return by log where a query begins that brings new records: after what was read, and at the
        reported end of a log that is not open: its own jobs read the records before it."""
        found = {}
        for log, jobs in self.jobs.items():
            if log in self._open and log not in self.failed:
                found[log] = jobs.read_until
            elif (ends := self._reported(log)) is not None:
                found[log] = ends.next_index
        return found

    def finish(self) -> None:
        """Raise the error of the first log that failed, once the others are done."""
        for error in self.failed.values():
            raise error

    def stop(self) -> None:
        """Stop the jobs of every log, in several threads, and wait STOP_WITHIN_S at most."""
        left = [self.jobs[log] for log in self._open]

        def stop_some() -> None:
            while left:
                with suppress(IndexError):
                    left.pop().stop()

        threads = [threading.Thread(target=stop_some, daemon=True) for _ in range(STOP_THREADS)]
        give_up_at_s = time.monotonic() + STOP_WITHIN_S
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, give_up_at_s - time.monotonic()))

    @property
    def done(self) -> bool:
        return all(log in self.failed or (log in self._open and jobs.done) for log, jobs in self.jobs.items())

    def progress(self) -> dict[str, LogProgress]:
        """Return the progress of every log that was opened. Of one that failed the end is not known: nothing
        asks for it any more."""
        found = {log: jobs.progress() for log, jobs in self.jobs.items() if log in self._open}
        for log in self.failed.keys() & found.keys():
            found[log] = replace(
                found[log],
                committed_index=None,
                error=first_line(self.failed[log]),
                failed_ms=self._failed_ms[log],
            )
        return found

    def _ask(self) -> None:
        self._asked_at_s = self._clock()
        try:
            found = matching(self.patterns, self._logs())
        except Unreachable:
            return  # the jobs report it themselves, and the next check asks again
        deleted = {log for log, error in self.failed.items() if any(code in str(error) for code in DELETED)}
        for log in (deleted | set(self.jobs).difference(found)).difference(self.named):
            self._drop(log)
        self._add([log for log in found if log not in self.jobs])

    def _add(self, logs: list[str]) -> None:
        self.jobs.update({log: self._make(log) for log in logs})
        self._waiting += logs

    def _drop(self, log: str) -> None:
        jobs = self.jobs.pop(log)
        self.failed.pop(log, None)
        self._failed_ms.pop(log, None)
        self._first_ends.pop(log, None)
        if log in self._waiting:
            self._waiting.remove(log)
        if log in self._open:
            self._open.remove(log)
            jobs.stop()

    def _open_next(self) -> None:
        """Note which logs are open, and open the next ones."""
        for opening in [each for each in self._opening if each.done()]:
            log, jobs = self._opening.pop(opening)
            if self.jobs.get(log) is not jobs or opening.cancelled():
                continue  # deleted meanwhile, or the job ends
            self._open.add(log)
            self._first_ends.pop(log, None)
            error = opening.exception()
            if isinstance(error, FAILURES):
                self._end(log, error)
            elif error is not None:
                raise error
        while self._waiting and len(self._opening) < OPEN_AHEAD:
            log = max(self._waiting, key=self._urgency)
            self._waiting.remove(log)
            self._opening[self._submit(self.jobs[log].start)] = (log, self.jobs[log])

    def _urgency(self, log: str) -> tuple[int, int]:
        """Return by how much a log has grown since its end was first reported, and its length."""
        ends = self._reported(log)
        if ends is None:
            return 0, 0
        return ends.next_index - self._first_ends.setdefault(log, ends.next_index), ends.next_index

    def _end(self, log: str, error: Exception) -> None:
        self.failed[log] = error
        self._failed_ms[log] = time.time_ns() // 1_000_000
        self.jobs[log].stop()
        if len(self.jobs) > 1:
            warn(f"{log}: {error}; the other logs continue")

    def _raise_when_all_failed(self) -> None:
        if self.jobs and len(self.failed) == len(self.jobs):
            self.finish()
