"""Many logs in one job: who is in, who leaves, and that one log's trouble is its own."""

from dataclasses import dataclass

import pytest
from pyspark.errors import AnalysisException

from spark_jobs.errors import OptionError, Unreachable
from spark_jobs.materialize.groups import NAMES_EACH_S, Groups, named
from spark_jobs.materialize.progress import LogProgress
from spark_jobs.materialize.query import LogRows
from spark_jobs.materialize.supervisor import MaterializeFailed
from spark_jobs.source.log_names import matching, split_names

PROGRESS = LogProgress(0, -1, None, 0, 0, 0, 0)
CLASH = MaterializeFailed("entries: it clashes")


@dataclass
class FakeGroup:
    state: str = "made"
    error: Exception | None = None
    done: bool = False
    read_until: int = 0
    taken: int = 0

    def take(self, delivery: LogRows) -> None:
        self.taken += 1

    def start(self) -> None:
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
    """The logs of the service, and the groups that were made."""

    def __init__(self, *logs: str) -> None:
        self.logs = list(logs)
        self.made: dict[str, FakeGroup] = {}
        self.now_s = 100.0
        self.unreachable = False

    def groups(self, *names: str) -> Groups:
        return Groups(names, self.make, self.names, clock=lambda: self.now_s)

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
    groups = world.groups("default", "orders-*")
    groups.start()
    groups.poll()
    assert list(groups.groups) == ["default", "orders-eu"]
    world.logs = ["orders-us"]
    groups.poll()
    assert list(groups.groups) == ["default", "orders-eu"]  # not asked at each look
    world.now_s += NAMES_EACH_S
    world.unreachable = True
    groups.poll()
    world.now_s += NAMES_EACH_S
    world.unreachable = False
    groups.poll()
    assert list(groups.progress()) == ["default", "orders-us"]
    assert world.made["orders-eu"].state == "stopped"
    assert world.made["orders-us"].state == "looked at"


@pytest.mark.parametrize("error", [CLASH, AnalysisException("it clashes")], ids=["ours", "Spark's"])
def test_one_log_fails_alone_and_is_told_in_the_end(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World()
    groups = world.groups("a", "b")
    groups.start()
    world.made["a"].error = error
    groups.poll()
    groups.poll()
    assert world.made["a"].state == "stopped"
    assert world.made["b"].state == "looked at"
    assert capsys.readouterr().err == f"a: {error}; the other logs go on\n"
    assert not groups.done
    world.made["b"].done = True
    assert groups.done
    with pytest.raises(type(error), match="it clashes"):
        groups.finish()
    world.made["b"].error = CLASH
    with pytest.raises(type(error)):
        groups.poll()


def test_a_deleted_log_is_no_failure_once_it_is_known_to_be_gone() -> None:
    world = World("orders-eu", "orders-us")
    groups = world.groups("orders-*")
    groups.start()
    world.made["orders-eu"].error = CLASH
    groups.poll()
    world.logs = ["orders-us"]
    world.now_s += NAMES_EACH_S
    groups.poll()
    groups.finish()
    assert list(groups.groups) == ["orders-us"]


def test_a_pattern_that_matches_nothing_at_the_start_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no log matches orders-\*"):
        World("default").groups("orders-*").start()
