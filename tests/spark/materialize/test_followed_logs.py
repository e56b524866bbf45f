"""Many logs in one job: who is in, who leaves, and that a log's failure affects no other."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import pytest
from pyspark.errors import AnalysisException

from spark_jobs.errors import OptionError, RequestRefused, Unreachable
from spark_jobs.materialize import followed_logs as module
from spark_jobs.materialize.followed_logs import NAMES_EACH_S, FollowedLogs, named
from spark_jobs.materialize.progress import LogProgress, Progress
from spark_jobs.materialize.query import LogRows
from spark_jobs.materialize.supervisor import MaterializeFailed, failure_of
from spark_jobs.source.answers import LogEnds
from spark_jobs.source.log_names import matching, split_names

PROGRESS = LogProgress(0, -1, -1, 0, 0, 0, 0)
CLASH = MaterializeFailed("entries: it clashes")


@dataclass
class FakeGroup:
    state: str = "made"
    error: Exception | None = None
    done: bool = False
    read_until: int = 0
    taken: int = 0
    start_error: Exception | None = None

    def take(self, delivery: LogRows) -> None:
        self.taken += 1

    def start(self) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.state = "started"

    def poll(self, *, final: bool = False, logs: int = 1) -> None:
        if self.error is not None:
            raise self.error
        self.state = "looked at"

    def stop(self) -> None:
        self.state = "stopped"

    def progress(self) -> LogProgress:
        return PROGRESS


class World:
    """The logs of the service, and the jobs that were made."""

    def __init__(self, *logs: str) -> None:
        self.logs = list(logs)
        self.made: dict[str, FakeGroup] = {}
        self.now_s = 100.0
        self.unreachable = False
        self.next_indexes: dict[str, int] = {}  # as reported, by log
        self.opens_at_once = True
        self.openings: list[tuple[Future[None], Callable[[], None]]] = []  # that have not ended

    def follow(self, *names: str) -> FollowedLogs:
        return FollowedLogs(
            names, self.make, self.names, self.submit, self.reported, clock=lambda: self.now_s
        )

    def submit(self, opening: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        self.openings.append((future, opening))
        if self.opens_at_once:
            self.open_next()
        return future

    def open_next(self) -> None:
        """End the opening that has begun first."""
        future, opening = self.openings.pop(0)
        try:
            future.set_result(opening())
        except Exception as error:
            future.set_exception(error)

    def reported(self, log: str) -> LogEnds | None:
        end = self.next_indexes.get(log)
        return None if end is None else LogEnds("id", 0, end, 1, 0)

    def make(self, log: str) -> FakeGroup:
        return self.made.setdefault(log, FakeGroup())

    def names(self) -> list[str]:
        if self.unreachable:
            raise Unreachable("nobody")
        return self.logs


def test_names_are_lists_and_patterns_spare_the_systems_logs() -> None:
    assert split_names(["a, b", "orders-*", "b,", ""]) == ("a", "b", "orders-*")
    logs = ["default", "orders-eu", "orders-us", "__controller"]
    assert matching(["orders-*", "default"], logs) == ["orders-eu", "orders-us"]
    assert matching(["*"], logs) == logs[:3]
    assert matching(["__*"], logs) == ["__controller"]


def test_only_patterns_ask_which_logs_there_are() -> None:
    world = World("default", "orders-eu")
    assert named(["a,orders-*", "default"], world.names) == ["a", "default", "orders-eu"]
    with pytest.raises(OptionError, match="no log matches x-"):
        named(["x-*"], world.names)
    world.unreachable = True
    assert named(["a"], world.names) == ["a"]


def test_logs_that_match_later_join_and_deleted_ones_leave() -> None:
    world = World("orders-eu", "other")
    followed = world.follow("default", "orders-*")
    followed.start()
    followed.poll()
    assert list(followed.jobs) == ["default", "orders-eu"]
    world.logs = ["orders-us"]
    followed.poll()
    assert list(followed.jobs) == ["default", "orders-eu"]  # not asked at each poll
    world.now_s += NAMES_EACH_S
    world.unreachable = True
    followed.poll()
    world.now_s += NAMES_EACH_S
    world.unreachable = False
    followed.poll()
    followed.poll()  # the new one is open
    assert list(followed.progress()) == ["default", "orders-us"]
    assert world.made["orders-eu"].state == "stopped"
    assert world.made["orders-us"].state == "looked at"


@pytest.mark.parametrize("error", [CLASH, AnalysisException("it clashes")], ids=["ours", "Spark's"])
def test_one_log_fails_alone_and_is_reported_in_the_end(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    followed = world.follow("a", "b")
    followed.start()
    world.made["a"].error = error
    followed.poll()
    followed.poll()
    assert world.made["a"].state == "stopped"
    assert world.made["b"].state == "looked at"
    assert capsys.readouterr().err.endswith(f"Z a: {error}; the other logs continue\n")
    progress = Progress("running", 0, followed.progress(), 0.0)
    assert [(log, each.error, each.lag_records) for log, each in progress.logs.items()] == [
        ("a", str(error), None),
        ("b", None, 0),
    ]
    found_ms = progress.logs["a"].failed_ms
    assert found_ms is not None
    assert 0 <= time.time_ns() // 1_000_000 - found_ms < 60_000
    assert (followed.progress()["a"].failed_ms, progress.logs["b"].failed_ms) == (found_ms, None)
    assert f"a: failed with 0 entries through index -1: {error}; b: 0 entries" in str(progress)
    assert not followed.done
    world.made["b"].done = True
    assert followed.done
    with pytest.raises(type(error), match="it clashes"):
        followed.finish()
    world.made["b"].error = CLASH
    with pytest.raises(type(error)):
        followed.poll()


def test_a_deleted_log_is_not_a_failure_once_it_is_known_to_be_gone() -> None:
    world = World("orders-eu", "orders-us")
    followed = world.follow("orders-*")
    followed.start()
    world.made["orders-eu"].error = CLASH
    followed.poll()
    world.logs = ["orders-us"]
    world.now_s += NAMES_EACH_S
    followed.poll()
    followed.finish()
    assert list(followed.jobs) == ["orders-us"]


@pytest.mark.parametrize(("status", "code"), [(404, "log-not-found"), (409, "log-deleting")])
def test_a_log_that_was_deleted_and_created_between_two_checks_is_opened_again(
    status: int, code: str
) -> None:
    world = World("orders-eu", "orders-us")
    followed = world.follow("orders-*")
    followed.start()
    refused = RequestRefused(status, code, "log 'orders-eu' ...")
    world.made["orders-eu"].error = failure_of("entries", refused)
    world.made["orders-us"].error = CLASH
    with pytest.raises(MaterializeFailed):
        followed.poll()
    del world.made["orders-eu"]
    world.now_s += NAMES_EACH_S
    followed.poll()
    followed.poll()
    assert world.made["orders-eu"].state == "looked at"
    assert list(followed.failed) == ["orders-us"]  # other failures need an operator


def test_open_logs_are_followed_while_others_open_those_that_grow_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "OPEN_WITHIN_S", 0.0)
    monkeypatch.setattr(module, "OPEN_AHEAD", 2)
    world = World("a", "b", "c", "grows", "long", "unknown")
    world.opens_at_once = False
    world.next_indexes = {"a": 2, "b": 2, "c": 2, "grows": 2, "long": 900}
    followed = world.follow("*")
    followed.start()
    assert len(world.openings) == 2
    assert not followed.done
    assert followed.ends() == world.next_indexes  # what is not open reads everything before its end itself

    def opened() -> list[str]:
        world.open_next()
        followed.poll()
        return sorted(log for log, group in world.made.items() if group.state == "looked at")

    world.next_indexes["grows"] = 12
    assert opened() == ["long"]
    world.made["long"].read_until = 700
    assert followed.ends() == {**world.next_indexes, "long": 700}
    assert list(followed.progress()) == ["long"]
    assert opened() == ["a", "long"]
    assert opened() == ["a", "grows", "long"]
    world.logs = ["a", "grows", "long", "unknown"]  # "b" and "c" are opening
    world.now_s += NAMES_EACH_S
    assert opened() == opened() == ["a", "grows", "long"]
    assert opened() == ["a", "grows", "long", "unknown"]
    assert not world.openings
    followed.stop()
    assert [world.made[log].state for log in ("a", "b", "c")] == ["stopped", "started", "started"]


def test_a_log_that_does_not_open_fails_alone_unless_it_is_the_only_one() -> None:
    world = World()
    world.made = {"a": FakeGroup(start_error=CLASH), "b": FakeGroup(done=True)}
    world.next_indexes = {"a": 5}
    followed = world.follow("a", "b")
    followed.start()
    followed.poll()
    assert world.made["b"].state == "looked at"
    assert followed.done
    assert followed.ends() == {"a": 5, "b": 0}
    with pytest.raises(MaterializeFailed, match="it clashes"):
        followed.finish()
    with pytest.raises(MaterializeFailed, match="it clashes"):
        world.follow("a").start()


def test_a_pattern_that_matches_nothing_at_the_start_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no log matches orders-\*"):
        World("default").follow("orders-*").start()
