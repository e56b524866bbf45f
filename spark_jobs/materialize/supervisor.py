"""Supervision of one job of a log: its steps run in the workers' threads, and failures are retried.

The tables themselves record their progress, so each start of a job (the first, after a kill, or after a
failure) begins where its tables end, and takes the same path.
"""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from spark_jobs.errors import SourceError, Unreachable, is_disk_full, own_error
from spark_jobs.job_lines import warn
from spark_jobs.materialize.workers import Kind, Workers

MAX_FAILURES = 5  # of one job, without a batch in between; `Supervisor` names what is none
FAILURE_PAUSE_S = 1.0
FORGET_AFTER_S = 3_600.0  # a failure does not count after this time without one: a quiet log has no batch
REPORT_EACH_S = 60.0  # that no node answers, or that a disk is full
_OF_JAVA = "An error occurred while calling "  # first line of Py4J's text of an exception in Java
_CAUSE = re.compile(r"(?:Caused by)?: ([\w.$]+)(?:: (.+))?")


class MaterializeFailed(RuntimeError):
    """A job ended for a reason that a restart does not fix; the message is for the operator."""


class Job(Protocol):
    """One kind of tables of one log."""

    name: str

    def open(self) -> None:
        """Find where the tables end. Called again after a failure."""
        ...

    def step(self) -> bool:
        """Extend the tables by one batch; return whether there was one."""
        ...

    @property
    def is_large(self) -> bool:
        """True if the next step may take seconds."""
        ...

    @property
    def done(self) -> bool:
        """True if the tables hold everything that there was at the start."""
        ...


class Supervisor:
    """Keeps one job running: opens it again after a failure; ends when that fails repeatedly. A job that
    follows its log waits until nodes answer, and until there is space on the disk."""

    def __init__(
        self,
        job: Job,
        workers: Workers,
        *,
        log: str,
        follows: bool,
        kind: Kind = Kind.SMALL,
        check: Callable[[], object] | None = None,
    ) -> None:
        """log: named in its lines. follows: run until stopped; otherwise end once the job is done. kind: of
        its steps, unless they are large. check: raises Unreachable soon when no node answers, where a step
        would try for longer; called before a step that may find that, in threads of such steps."""
        self.job = job
        self.log = log
        self.follows = follows
        self.starts = 0
        self.failures = 0  # without a batch in between, and without those of `_waits`
        self._failed_at_s = float("-inf")  # the last of these failures
        self.done = False
        self.is_open = False
        self.begun_at_s = self.ended_at_s = float("-inf")  # of the last step
        self.had_batch = False  # the last step
        self.start_at_s = 0.0
        self._workers = workers
        self._kind = kind
        self._check = check
        self._answered = True  # False: the last step found no node that answers
        self._waits = 0  # steps that found that, or a full disk, without one that had a batch in between
        self._reported_at_s = float("-inf")  # that the job waits
        self._step: Future[Any] | None = None
        self._using = threading.Lock()  # held while a thread uses the job
        self._failure: Exception | None = None  # of `deliver`

    def open(self) -> None:
        """Open the job now. Raises SourceError; MaterializeFailed for an error that a restart does not
        fix."""
        try:
            self._open()
        except Exception as error:
            if isinstance(error, SourceError) and not isinstance(error, Unreachable):
                raise
            self._failed(error)

    def ensure_running(self, *, due: bool, answers: bool = True) -> None:
        """Note how a step or a delivery has ended, and begin the next step if it is due. answers: False: the
        nodes may not answer now.

        Raises MaterializeFailed if one failed and a restart does not help.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            self._failed(failure)
        if self._step is not None:
            if not self._step.done():
                return
            step, self._step = self._step, None
            if step.cancelled():
                return
            error = step.exception()
            if isinstance(error, Exception):
                self._failed(error)
            else:
                self._answered = True
                self.done = not self.follows and self.job.done
        if self.done or self._workers.stopping.is_set() or time.monotonic() < self.start_at_s:
            return
        if due or not self.is_open:
            self.begun_at_s = time.monotonic()
            if self.follows and self._check is not None and not (answers and self._answered):
                self._step = self._workers.submit(partial(self._run, self._check), Kind.PROBE)
                return
            kind = Kind.LARGE if self.is_open and self.job.is_large else self._kind
            self._step = self._workers.submit(self._run, kind)

    @property
    def is_running(self) -> bool:
        """True while a step or a delivery uses the job."""
        return self._using.locked() or (self._step is not None and not self._step.done())

    def deliver(self, work: Callable[[], bool]) -> None:
        """Let `work` extend the tables of an open job, in the thread of the caller, and return whether it
        did. It is left out while a step runs, which reads the same records. Raises nothing: `ensure_running`
        reports a failure."""
        if not self._using.acquire(blocking=False):
            return
        try:
            if self.is_open and self._failure is None and work():
                self.failures = self._waits = 0
                self.ended_at_s = time.monotonic()
        except Exception as error:
            self.is_open = False
            self._failure = error
        finally:
            self._using.release()

    def _run(self, check: Callable[[], object] | None = None) -> None:
        if self._workers.stopping.is_set():
            return
        try:
            if check is not None:
                check()
            with self._using:
                if not self.is_open:
                    self._open()
                self.had_batch = self.job.step()
            if self.had_batch:
                self.failures = self._waits = 0
        finally:
            self.ended_at_s = time.monotonic()

    def _open(self) -> None:
        self.starts += 1
        self.job.open()
        self.is_open = True

    def _failed(self, error: Exception) -> None:
        self.is_open = False
        reason = reason_of(error)
        own = own_error(error)
        kind = SourceError if own is None else own[0]
        unreachable = issubclass(kind, Unreachable)  # reported after retries: a following job retries on
        self._answered = not unreachable
        waits = unreachable or (self.follows and is_disk_full(error))
        now_s = time.monotonic()
        if waits:
            self._waits = min(self._waits + 1, MAX_FAILURES)
        else:
            is_first = now_s > self._failed_at_s + FORGET_AFTER_S
            self.failures = 1 if is_first else self.failures + 1
            self._failed_at_s = now_s
        given_up = self.failures > MAX_FAILURES or (unreachable and not self.follows)
        if given_up or kind.is_final:
            raise failure_of(self.job.name, error) from error
        self.start_at_s = now_s + FAILURE_PAUSE_S * (self._waits if waits else self.failures)
        if waits and self._waits > 1 and now_s < self._reported_at_s + REPORT_EACH_S:
            return
        self._reported_at_s = now_s
        warn(f"{self.log}: {self.job.name}: {reason}; starting again from the end of the table")


def failure_of(job: str, error: Exception) -> MaterializeFailed:
    """Return the error with which a job ends. Its text begins with the condition of its cause, if that has
    one."""
    own = own_error(error)
    condition = "" if own is None else f"[{own[0].condition}] "
    return MaterializeFailed(f"{condition}{job}: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """Return the meaningful line of an error: Spark wraps Python's errors in pages of text, and Py4J writes
    the exceptions of Java with their causes, of which the last one is the reason."""
    if (own := own_error(error)) is not None:
        return own[1]
    text = str(error)
    lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
    causes = [found for line in lines if (found := _CAUSE.fullmatch(line))]
    if text.startswith(_OF_JAVA) and causes:
        return (causes[-1][2] or causes[-1][1])[:500]
    return next(iter(lines), type(error).__name__)[:500]
