"""Steps of jobs in threads, and the reaction to a failed one, without Spark."""

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from app.errors import ConfigError
from app.schemas import SchemaInvalid
from spark_jobs.errors import (
    LogClash,
    OptionError,
    RequestRefused,
    ShortRead,
    SourceError,
    Unreachable,
    own_error,
)
from spark_jobs.materialize import supervisor as supervisor_module
from spark_jobs.materialize import workers as workers_module
from spark_jobs.materialize.lease import LeaseLost
from spark_jobs.materialize.supervisor import (
    FORGET_AFTER_S,
    MAX_FAILURES,
    MaterializeFailed,
    Supervisor,
    reason_of,
)
from spark_jobs.materialize.workers import Kind, Workers
from spark_jobs.run import exit_code
from spark_jobs.tables.local.commits import NeedsSpark
from tests.spark.source.looks import await_true


class Failing:
    """A job that never opens."""

    name = "entries"
    is_large = done = False

    def __init__(self, error: Exception) -> None:
        self.error = error

    def open(self) -> None:
        raise self.error

    def step(self) -> bool:
        raise AssertionError("nothing is open")


class SameThread(Workers):
    """Work is done when it is submitted."""

    def submit(self, work: Callable[[], Any], kind: Kind = Kind.SMALL) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future


def attempt(supervisor: Supervisor) -> None:
    """Begin a step, and note how it has ended."""
    supervisor.ensure_running(due=True)
    supervisor.start_at_s = float("inf")
    supervisor.ensure_running(due=False)
    supervisor.start_at_s = 0.0


def test_a_job_that_follows_a_log_waits_for_the_end_of_an_outage_and_ends_on_all_else() -> None:
    workers = SameThread()
    following = Supervisor(Failing(Unreachable("no replica")), workers, log="orders", follows=True)
    for _ in range(4 * MAX_FAILURES):
        attempt(following)
    assert following.starts == 4 * MAX_FAILURES
    for error, follows, starts in (
        (Unreachable("no replica"), False, 1),
        (OSError("full"), True, MAX_FAILURES + 1),
        (OSError(f"Python worker exited: {LogClash('default', 'full')}"), True, 1),
    ):
        ending = Supervisor(Failing(error), workers, log="orders", follows=follows)
        for _ in range(starts - 1):
            attempt(ending)
        with pytest.raises(MaterializeFailed, match=reason_of(error)) as failed:
            attempt(ending)
        own = own_error(error)
        assert str(failed.value).startswith("entries: " if own is None else f"[{own[0].condition}] entries: ")
        assert ending.starts == starts
    workers.stop()


def test_an_outage_does_not_count_as_failures_of_the_job() -> None:
    job, workers = Failing(Unreachable("no replica")), SameThread()
    supervisor = Supervisor(job, workers, log="orders", follows=True)
    for _ in range(2 * MAX_FAILURES):
        attempt(supervisor)
    for error in (OSError("full"), Unreachable("no replica")) * (MAX_FAILURES - 1):
        job.error = error
        attempt(supervisor)
    job.error = OSError("full")
    attempt(supervisor)
    with pytest.raises(MaterializeFailed, match="full"):
        attempt(supervisor)
    workers.stop()


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        Py4JError("java.io.IOException: Disk quota exceeded"),
        NeedsSpark("/tables/orders: [Errno 28] No space left on device"),
    ],
)
def test_a_job_that_follows_a_log_waits_for_space_on_the_disk(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = SameThread()
    following = Supervisor(Failing(error), workers, log="orders", follows=True)
    for _ in range(4 * MAX_FAILURES):
        attempt(following)
    assert capsys.readouterr().err.count("orders: entries: ") == 1
    ending = Supervisor(Failing(error), workers, log="orders", follows=False)
    for _ in range(MAX_FAILURES):
        attempt(ending)
    with pytest.raises(MaterializeFailed):
        attempt(ending)
    workers.stop()


def test_failures_of_a_quiet_log_long_ago_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: now_s)
    supervisor = Supervisor(Failing(OSError("full")), SameThread(), log="orders", follows=True)
    for _ in range(2 * MAX_FAILURES):
        now_s += FORGET_AFTER_S + 1
        attempt(supervisor)
    for _ in range(MAX_FAILURES - 1):
        now_s += FORGET_AFTER_S
        attempt(supervisor)
    with pytest.raises(MaterializeFailed, match="full"):
        attempt(supervisor)


class Counted:
    """A job with so many batches."""

    name = "entries"
    is_large = False

    def __init__(self, batches: int) -> None:
        self.batches = batches
        self.opened = 0

    @property
    def done(self) -> bool:
        return self.batches == 0

    def open(self) -> None:
        self.opened += 1

    def step(self) -> bool:
        self.batches -= 1
        return True


@pytest.mark.parametrize("error", [SchemaInvalid("", "no columns"), ValueError("no reader"), OSError("full")])
def test_a_job_that_does_not_open_ends_its_own_log_alone(error: Exception) -> None:
    """`FollowedLogs` ends one log for MaterializeFailed and errors of the source; others end the program."""
    supervisor = Supervisor(Failing(error), SameThread(), log="orders", follows=True)
    supervisor.open()
    supervisor.start_at_s = 0.0
    for _ in range(MAX_FAILURES - 1):
        attempt(supervisor)
    with pytest.raises(MaterializeFailed, match=str(error)):
        attempt(supervisor)
    for final in (LogClash("default", "full"), OptionError("no log")):
        with pytest.raises(type(final)):
            Supervisor(Failing(final), SameThread(), log="orders", follows=True).open()


def test_a_job_without_an_end_steps_when_it_is_due_and_another_one_until_it_is_done() -> None:
    workers = SameThread()
    job = Counted(10)
    following = Supervisor(job, workers, log="orders", follows=True)
    following.open()
    for due in (False, True, False, True, False):
        following.ensure_running(due=due)
    assert (job.batches, job.opened) == (8, 1)
    ending = Supervisor(job, workers, log="orders", follows=False)
    while not ending.done:
        ending.ensure_running(due=True)
    assert (job.batches, job.opened, following.done) == (0, 2, False)
    workers.stop()


class FailsOnce(Counted):
    """A job whose first step fails."""

    def step(self) -> bool:
        if self.opened == 1:
            raise OSError("full")
        return super().step()


def test_a_job_is_opened_again_after_a_step_that_failed() -> None:
    """The step has ended between two tables: what the job knows of them may be wrong."""
    workers = SameThread()
    job = FailsOnce(2)
    supervisor = Supervisor(job, workers, log="orders", follows=True)
    supervisor.open()
    for _ in range(2):
        attempt(supervisor)
    assert (job.opened, job.batches) == (2, 1)
    workers.stop()


def test_a_backlog_leaves_the_other_threads_alone_and_a_stop_waits_for_it_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers_module, "STOP_WITHIN_S", 0.2)
    interrupted = threading.Event()
    workers = Workers(interrupted.set, threads=1)
    backlog = workers.submit(lambda: interrupted.wait(60), Kind.LARGE)
    waiting = workers.submit(lambda: None, Kind.LARGE)
    assert workers.submit(lambda: 7).result(60) == 7
    workers.stop()
    assert backlog.result(60)
    assert waiting.cancelled()


def test_logs_that_do_not_answer_leave_the_threads_to_the_others() -> None:
    """Once that is known, by a failure or because no endpoint reports an end."""

    def check() -> None:
        began.release()
        assert answered.wait(60)
        raise Unreachable("no replica")

    workers = Workers(threads=1)
    began, answered = threading.Semaphore(0), threading.Event()
    failed = Supervisor(Failing(Unreachable("no replica")), workers, log="orders", follows=True, check=check)
    failed.open()
    failed.start_at_s = 0.0
    silent = Supervisor(Counted(5), workers, log="orders", follows=True, check=check)
    silent.open()
    failed.ensure_running(due=True)
    silent.ensure_running(due=True, answers=False)
    assert began.acquire(timeout=60)
    assert began.acquire(timeout=60)
    job = Counted(1)
    other = Supervisor(job, workers, log="orders", follows=True, check=check)
    other.open()
    other.ensure_running(due=True)
    await_true(lambda: job.done)
    answered.set()
    workers.stop()
    for supervisor in (failed, silent):
        supervisor.ensure_running(due=False)
        assert not supervisor.is_open
    assert silent.job.step()


def test_the_last_one_of_a_chain_of_errors_in_a_traceback_counts() -> None:
    first, last = (
        ShortRead("received index 61 instead of 60"),
        Unreachable(f"no replica: {ShortRead('twice')}"),
    )
    text = f"Traceback\nx.ShortRead: {first}\nThe above exception was the direct cause\nx.Y: {last}\n at java"
    assert own_error(RuntimeError(text)) == (Unreachable, last.message)
    assert own_error(RuntimeError("[STREAM_FAILED] other")) is None


def test_the_exit_code_names_the_side_at_fault() -> None:
    def failed(cause: Exception) -> MaterializeFailed:
        error = MaterializeFailed("entries: …")
        error.__cause__ = cause
        return error

    assert exit_code(ConfigError("no table")) == exit_code(OptionError("endpoint")) == 2
    assert exit_code(RequestRefused(404, "log-not-found", "no log")) == 4
    assert exit_code(Unreachable("nobody")) == exit_code(failed(Unreachable("nobody"))) == 5
    assert exit_code(failed(RuntimeError(f"Traceback\nany.name: {Unreachable('nobody')}\n"))) == 5
    assert exit_code(RequestRefused(403, "forbidden", "not yours")) == exit_code(failed(OSError("full"))) == 1


@pytest.mark.parametrize(
    "error", [RequestRefused(404, "log-not-found", "no such log"), LeaseLost("orders", None)]
)
def test_the_sources_own_error_is_found_in_sparks_text(error: SourceError) -> None:
    kind = type(error)
    text = (
        f"[STREAM_FAILED] Query terminated.\nTraceback (most recent call last):\n  File worker.py\n"
        f"{kind.__module__}.{kind.__name__}: {error}\n\n\tat org.apache.spark.Here\n"
    )
    assert reason_of(RuntimeError(text)) == error.message


@pytest.mark.parametrize(
    ("causes", "reason"),
    [
        (
            ": any.Invariant: [DELTA_VIOLATE] CHECK low (id < 33)\n\tat A",
            "[DELTA_VIOLATE] CHECK low (id < 33)",
        ),
        (": any.Failed: Job aborted\n\tat A\nCaused by: java.io.IOException: disk full\n\tat B", "disk full"),
        (": java.lang.NullPointerException\n\tat A", "java.lang.NullPointerException"),
        ("", "An error occurred while calling o1.append."),
    ],
)
def test_the_reason_of_an_exception_in_java_is_its_last_cause(causes: str, reason: str) -> None:
    """Py4J's text begins with the call alone."""
    assert reason_of(RuntimeError(f"An error occurred while calling o1.append.\n{causes}")) == reason


def test_a_line_of_a_failure_names_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """One job has the tables of many logs."""
    supervisor = Supervisor(Failing(OSError("full")), SameThread(), log="orders", follows=True)
    supervisor.open()
    output = capsys.readouterr()
    assert f"orders: {Failing.name}: full; starting again" in output.out + output.err
