"""A replaced disk: the empty copy is no member before it holds what was acknowledged (C-03)."""

import pytest

from storage.log.aside import set_aside
from tests.simulation.controller.cases.operations import append_at, master_of, replace_disk, truth
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import LOG_NAME, HaPlan
from tests.simulation.world.network import LinkFaults


def set_copy_aside(node: HaSimNode) -> None:
    """The end of a repair that found no copy of the records: the replica continues with an empty copy."""
    set_aside(node.files, f"data/logs/{LOG_NAME}")
    node.sound = False


@pytest.mark.rule("C-03", "C-08", "C-12")
@pytest.mark.parametrize("brokers", [2, 3])
@pytest.mark.parametrize("how", ["set aside", "whole disk"])
def test_a_new_copy_is_not_a_member_by_the_acks_of_the_old_one(how: str, brokers: int) -> None:
    """The line between master and slave is cut, so the old copy's connection is half-open at the master."""
    cluster = HaCluster(
        brokers, HaPlan(brokers=brokers, faults=False, clients=0, links=LinkFaults(), own_controllers=True)
    )
    cluster.run(2)
    master = master_of(cluster)
    last = max(append_at(cluster, master, b"acknowledged %d" % number).last_index for number in range(5))
    slave = next(node for node in cluster.brokers if node is not master)
    for other in cluster.brokers:
        if other not in (master, slave):
            other.crash(power=False)
            assert cluster.run_until(lambda name=other.name: name not in truth(cluster).set_nodes, 3)  # type: ignore[misc]
    cluster.streams.cuts[master.name, slave.name] = None
    slave.crash(power=False)
    if how == "set aside":
        set_copy_aside(slave)
    else:
        replace_disk(slave)
    slave.start()
    cluster.run(1.5)
    assert truth(cluster).set_nodes == (master.name,)
    master.crash(power=False)
    cluster.hang_up(master.name)
    cluster.run(1)
    assert truth(cluster).master_node in (None, master.name)
    cluster.streams.heal()
    master.start()
    assert cluster.run_until(lambda: slave.name in truth(cluster).set_nodes, 5)
    assert slave.held_index >= last
