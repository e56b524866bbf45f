"""Several administrators set the schema of a log at the same instant: one succeeds for each version."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from app.errors import CommitlogError, NotLeader, SchemaChanged
from app.log.commands import ABSENT, CommandResult
from app.log.contract import Role
from app.log.control_records import SchemaRecord
from app.log.set_schema import SetSchema
from app.node.replica.driver import LogDriver
from tests.simulation.classic.group import ClassicGroup
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.plan import HaPlan
from tests.simulation.raft.cluster import SimulatedCluster

ADMINISTRATORS = 4
ROUNDS = 3
Answers = list[CommandResult | CommitlogError]


def raft() -> Any:
    return SimulatedCluster(1)


def controller() -> Any:
    return HaCluster(1, HaPlan(faults=False, clients=1))


def classic() -> Any:
    return ClassicGroup(1, faults=False, clients=1)


def drivers(cluster: Any) -> list[LogDriver]:
    nodes = cluster.brokers if isinstance(cluster, HaCluster) else cluster.nodes.values()
    return [node.driver for node in nodes]


def leader_of(cluster: Any) -> LogDriver:
    for _ in range(100):
        for driver in drivers(cluster):
            if driver.role in (Role.LEADER, Role.MASTER) and driver._core.accepts_appends:
                return driver
        cluster.run(0.2)
    raise AssertionError("no leader")


def schema(number: int) -> SchemaRecord:
    return SchemaRecord(version=0, format="json", definition=f"a{number} INT", compatibility="none")


@pytest.mark.parametrize("make", [raft, controller, classic])
def test_one_of_several_administrators_sets_each_version(make: Callable[[], Any]) -> None:
    """The others learn the version that is there now. A repeat of each attempt changes nothing."""
    cluster = make()
    cluster.run(3)
    leader = leader_of(cluster)
    for version in range(ROUNDS):
        expected = ABSENT if version == 0 else version
        asked = [SetSchema(schema(10 * version + each), expected) for each in range(ADMINISTRATORS)]
        for repeat in range(2):
            answers: Answers = []
            for command in asked:
                leader.command(command, answers.append)
            elsewhere: Answers = []
            others = [each for each in drivers(cluster) if each is not leader]
            others[0].command(asked[0], elsewhere.append)
            cluster.run(2)
            kinds = Counter(type(each) for each in answers)
            assert kinds == {CommandResult: 1, SchemaChanged: ADMINISTRATORS - 1}
            assert [type(each) for each in elsewhere] == [NotLeader]
            (result,) = (each for each in answers if isinstance(each, CommandResult))
            assert result.changed is (repeat == 0)
            found = leader.state.schemas.until(result.index)[-1]
            assert (found.version, found.record.definition) == (version + 1, schema(10 * version).definition)
    shown = {tuple(each.version for each in one.state.schemas.until(10**9)) for one in drivers(cluster)}
    assert shown == {tuple(range(1, ROUNDS + 1))}
