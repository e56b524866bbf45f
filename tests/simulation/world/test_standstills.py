"""Stalls and hung disks last to their end: nothing counts as running before it runs."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.classic.group import ClassicGroup
from tests.simulation.raft.cluster import SimulatedCluster
from tests.simulation.raft.many_logs import ManyLogs, without_faults
from tests.simulation.world.machine import Machine
from tests.simulation.world.world import Life, World

LONG_US, SHORT_US = 6_000_000, 500_000


def test_a_shorter_stall_within_a_longer_one_does_not_end_it() -> None:
    """The event that the first stall has put off is due at the end of that one."""
    world, life, did = World(1), Life("n1"), list[int]()
    life.stall.extend(LONG_US)
    world.after(1_000, lambda: did.append(world.now_us), life)
    world.after(2_000, lambda: life.stall.extend(world.now_us + SHORT_US))
    while not did:
        world.step(2 * LONG_US)
    assert did == [life.stall.until_us] == [LONG_US]


def test_a_suspend_within_a_longer_one_stops_no_clock_twice() -> None:
    """CLOCK_MONOTONIC would go back."""
    world = World(1)
    machine = Machine(world)
    for lasting_us in (LONG_US, SHORT_US):
        machine.suspended(lasting_us)
    world.after(LONG_US, lambda: None)
    world.step(LONG_US)
    assert machine._clock_ns(time.CLOCK_MONOTONIC) == 0


def classic() -> tuple[Any, Any]:
    group = ClassicGroup(1, faults=False)
    return group, group.nodes["n1"]


def raft() -> tuple[Any, Any]:
    cluster = SimulatedCluster(1)
    return cluster, cluster.nodes["n1"]


def many_logs() -> tuple[Any, Any]:
    cluster = ManyLogs(1, without_faults(2))
    return cluster, cluster.machines["n1"].replicas["log0"]


@pytest.mark.parametrize("make", [classic, raft, many_logs])
@pytest.mark.parametrize("what", ["stall", "hung disk"])
def test_a_standstill_lasts_to_its_end_when_the_faults_end(
    make: Callable[[], tuple[Any, Any]], what: str
) -> None:
    """A shorter one meanwhile does not end it either."""
    cluster, node = make()
    cluster.run(3)
    begin_us = cluster.world.now_us
    for lasting_us in (LONG_US, SHORT_US):
        stand_still(cluster, node, what, lasting_us)
    cluster.nemesis.stop()
    while node.is_stalled or not node.has_healthy_disk:
        cluster.world.step(begin_us + 2 * LONG_US)
    assert cluster.world.now_us >= begin_us + LONG_US


def stand_still(cluster: Any, node: Any, what: str, lasting_us: int) -> None:
    if isinstance(cluster, ClassicGroup):
        (node.stall if what == "stall" else node.hang_disk)(lasting_us)
    else:
        (cluster.stall if what == "stall" else cluster.hang_disk)(node.name, lasting_us)
