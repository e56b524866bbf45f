"""Many logs in one job: an independent group of jobs for each log.

Logs are named directly, or by patterns (`orders-*`): new logs that match join, deleted logs leave.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Protocol

from spark_jobs.errors import OptionError, SourceError, Unreachable
from spark_jobs.materialize.progress import LogProgress
from spark_jobs.materialize.query import LogRows
from spark_jobs.materialize.supervisor import MaterializeFailed
from spark_jobs.source.log_names import is_pattern, matching, split_names
from spark_jobs.tables.conflicts import SPARK_ERRORS
from spark_jobs.tables.table import TableClash

NAMES_EACH_S = 5.0
STOP_THREADS = 4
STOP_WITHIN_S = 3.0
FAILURES = (MaterializeFailed, SourceError, TableClash, *SPARK_ERRORS)


class Group(Protocol):
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


def in_order(act: Callable[[str], None], logs: list[str]) -> None:
    for log in logs:
        act(log)


class Groups:
    """The running groups, by log. A group that fails ends alone; the job fails when none is left."""

    def __init__(
        self,
        names: Sequence[str],
        make: Callable[[str], Group],
        logs: Callable[[], list[str]],
        clock: Callable[[], float] = time.monotonic,
        each: Callable[[Callable[[str], None], list[str]], None] = in_order,
    ) -> None:
        """names: of logs, and patterns. logs: gets the list of logs from the service; may raise
        Unreachable. each: calls a function with every log of a list, perhaps in threads."""
        self.named = [name for name in names if not is_pattern(name)]
        self.patterns = [name for name in names if is_pattern(name)]
        self.groups: dict[str, Group] = {}
        self.failed: dict[str, Exception] = {}
        self._make = make
        self._logs = logs
        self._clock = clock
        self._each = each
        self._asked_at_s = 0.0

    def start(self) -> None:
        """Start the groups of all selected logs.

        Raises OptionError when there is none, Unreachable, and the error of a group that is the only one.
        """
        found = named([*self.named, *self.patterns], self._logs)
        self._asked_at_s = self._clock()
        self._add(found)
        self._raise_when_all_failed()

    def poll(self, *, final: bool = False) -> None:
        """Do what is due in every group, and add or drop groups of new and deleted logs."""
        if self.patterns and not final and self._clock() >= self._asked_at_s + NAMES_EACH_S:
            self._ask()
        for log, group in list(self.groups.items()):
            if log not in self.failed:
                try:
                    group.poll(final=final, logs=len(self.groups))
                except FAILURES as error:
                    self._end(log, error)
        self._raise_when_all_failed()

    def take(self, delivery: LogRows) -> None:
        """Give rows to their log's jobs. A log that has just joined, or has failed, is left out."""
        group = self.groups.get(delivery.log)
        if group is not None and delivery.log not in self.failed:
            group.take(delivery)

    def ends(self) -> dict[str, int]:
        """Return the first index that was not read yet, by log."""
        return {log: group.read_until for log, group in list(self.groups.items())}

    def finish(self) -> None:
        """Raise the error of the first group that failed, once the others are done."""
        for error in self.failed.values():
            raise error

    def stop(self) -> None:
        """Stop every group, in several threads; after STOP_WITHIN_S those that are left are not waited
        for."""
        left = list(self.groups.values())

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
        return all(log in self.failed or group.done for log, group in self.groups.items())

    def progress(self) -> dict[str, LogProgress]:
        return {log: group.progress() for log, group in self.groups.items()}

    def _ask(self) -> None:
        self._asked_at_s = self._clock()
        try:
            found = matching(self.patterns, self._logs())
        except Unreachable:
            return  # the groups report it themselves, and the next check asks again
        self._add([log for log in found if log not in self.groups])
        for log in set(self.groups).difference(found, self.named):
            self.groups.pop(log).stop()
            self.failed.pop(log, None)

    def _add(self, logs: list[str]) -> None:
        self.groups.update({log: self._make(log) for log in logs})
        self._each(self._start, logs)

    def _start(self, log: str) -> None:
        try:
            self.groups[log].start()
        except FAILURES as error:
            self._end(log, error)

    def _end(self, log: str, error: Exception) -> None:
        self.failed[log] = error
        self.groups[log].stop()
        if len(self.groups) > 1:
            sys.stderr.write(f"{log}: {error}; the other logs go on\n")

    def _raise_when_all_failed(self) -> None:
        if self.groups and len(self.failed) == len(self.groups):
            self.finish()
