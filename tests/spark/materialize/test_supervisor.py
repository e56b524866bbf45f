"""The reaction of a job to a failed query, without Spark."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from app.errors import ConfigError
from spark_jobs.errors import (
    LogClash,
    OptionError,
    RequestRefused,
    ShortRead,
    SourceError,
    Unreachable,
    own_error,
)
from spark_jobs.materialize import supervisor
from spark_jobs.materialize.lease import LeaseLost
from spark_jobs.materialize.supervisor import MAX_FAILURES, MaterializeFailed, Supervisor, reason_of
from spark_jobs.run import exit_code


class Failing:
    """A job whose query never starts."""

    name = "entries"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def stream(self, checkpoint: Path) -> DataFrame:
        raise self.error

    def write(self, rows: DataFrame, batch_id: int) -> None:
        raise AssertionError("nothing was read")


def test_who_follows_a_log_waits_out_an_outage_and_gives_up_on_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "FAILURE_PAUSE_S", 0.0)
    following = Supervisor(Failing(Unreachable("no replica")), tmp_path, "1 second")
    for _ in range(4 * MAX_FAILURES):
        following.ensure_running()
    assert following.starts == 4 * MAX_FAILURES
    for error, trigger, starts in (
        (Unreachable("no replica"), None, 1),
        (OSError("full"), "1 second", MAX_FAILURES + 1),
        (OSError(f"Python worker exited: {LogClash('default', 'full')}"), "1 second", 1),
    ):
        ending = Supervisor(Failing(error), tmp_path, trigger)
        for _ in range(starts - 1):
            ending.ensure_running()
        with pytest.raises(MaterializeFailed, match=reason_of(error)):
            ending.ensure_running()
        assert ending.starts == starts


def test_of_a_chain_of_errors_in_a_traceback_the_last_one_counts() -> None:
    first, last = ShortRead("61 came where 60 was due"), Unreachable(f"no replica: {ShortRead('twice')}")
    text = f"Traceback\nx.ShortRead: {first}\nThe above exception was the direct cause\nx.Y: {last}\n at java"
    assert own_error(RuntimeError(text)) == (Unreachable, last.message)
    assert own_error(RuntimeError("[STREAM_FAILED] other")) is None


def test_the_exit_code_says_whose_fault_it_was() -> None:
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
    "error", [RequestRefused(404, "log-not-found", "no such log"), LeaseLost("orders", 7)]
)
def test_a_person_is_told_the_own_error_in_sparks_text(error: SourceError) -> None:
    kind = type(error)
    text = (
        f"[STREAM_FAILED] Query terminated.\nTraceback (most recent call last):\n  File worker.py\n"
        f"{kind.__module__}.{kind.__name__}: {error}\n\n\tat org.apache.spark.Here\n"
    )
    assert reason_of(RuntimeError(text)) == error.message
