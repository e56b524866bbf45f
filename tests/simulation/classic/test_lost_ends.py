"""A copy may lack what it acknowledged: after a power failure under `replicated`, on a new disk (H-07)."""

import pytest

from app.log.contract import Durability
from tests.simulation.classic.group import HA, ClassicGroup, ClassicNode
from tests.simulation.classic.test_classic_group import appended

ONE_SYNC_SLAVE = 3  # a seed of three nodes with `replicated`, whose appends wait for one slave


def holds(node: ClassicNode, index: int) -> bool:
    return node.driver.held_index >= index


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("next_master", ["n2", "n3"])
def test_no_master_opens_without_a_record_that_a_power_failure_took_from_a_slave(
    monkeypatch: pytest.MonkeyPatch, next_master: str
) -> None:
    """n1 and n3 held it. n1 is down, n3 has lost its end: neither n3 nor n2 with n3 may go on without it."""
    group = ClassicGroup(ONE_SYNC_SLAVE, faults=False, clients=0)
    assert (group.sync_slaves, group.durability) == (1, Durability.REPLICATED)
    n1, n2, n3 = group.nodes.values()
    assert group.run_until(lambda: n1.driver._core.accepts_appends, 8)
    first = appended(group, "first").last_index
    assert group.run_until(lambda: holds(n2, first) and holds(n3, first), 2)
    group.run(1)
    group.network.cuts["n1", "n2"] = None
    n3.hang_disk(10_000_000)
    taken = appended(group, "acknowledged").last_index
    monkeypatch.setattr(n3.files.random, "random", lambda: 0.0)  # nothing unsynced is kept
    n3.crash(power=True)
    n1.crash(power=False)
    group.network.heal()
    n3.start()  # it is a slave without its master at first
    assert not holds(n3, taken)
    group.run(1)
    group.names = (next_master, *(name for name in group.names if name != next_master))
    group.master = group.nodes[next_master]
    for node in (n2, n3):
        node.crash(power=False)
        node.start()
    group.run(HA.opening_wait_ms / 1_000 + 1)
    assert "n1" in (group.master.driver.status().core.waits_for or "")
    n1.start()
    assert group.run_until(lambda: group.nemesis.counts["operator changed the master"] > 0, 15)
    assert group.run_until(lambda: all(holds(node, taken) for node in group.nodes.values()), 30)
    group._check_acknowledged()


@pytest.mark.rule("H-07")
def test_a_master_with_a_new_disk_waits_for_slaves_that_connect_late() -> None:
    """It began the log again after a wait, and kept its own log if that became the longer one."""
    group = ClassicGroup(ONE_SYNC_SLAVE, faults=False, clients=0)
    master, *slaves = group.nodes.values()
    assert group.run_until(lambda: master.driver._core.accepts_appends, 8)
    taken = appended(group, "acknowledged").last_index
    assert group.run_until(lambda: all(holds(node, taken) for node in slaves), 2)
    for slave in slaves:
        group.network.cuts[master.name, slave.name] = None
    group.nemesis.wipe(master)
    master.start()
    group.run(HA.opening_wait_ms / 1_000 + 1)
    assert master.driver.log.end_index < 0
    assert "n2, n3 may hold records" in (master.driver.status().core.waits_for or "")
    group.network.heal()
    assert group.run_until(lambda: group.nemesis.counts["operator changed the master"] > 0, 15)
    assert group.run_until(lambda: all(holds(node, taken) for node in group.nodes.values()), 30)
    group._check_acknowledged()
