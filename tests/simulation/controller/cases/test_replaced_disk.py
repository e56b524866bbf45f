"""A replaced disk, or a folder from a copy: no member before it holds what was acknowledged (C-03)."""

import pytest

from storage.log.aside import set_aside
from tests.simulation.controller.cases.operations import append_at, master_of, replace_disk, truth
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import LOG_NAME, HaPlan
from tests.simulation.controller.run import run_seed
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


@pytest.mark.rule("C-03", "C-05", "C-12")
def test_an_older_copy_of_a_folder_is_no_member_for_a_controller_that_does_not_know_what_it_lacks() -> None:
    """It reported the records to another controller alone, which had not recorded them yet."""
    cluster = HaCluster(1, HaPlan(brokers=2, faults=False, clients=0, own_controllers=True))
    cluster.run(2)
    master = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not master)
    append_at(cluster, master, b"copied")
    older = slave.files.copy_folder(f"data/logs/{LOG_NAME}")
    last = append_at(cluster, master, b"acknowledged").last_index
    (active,) = [node for node in cluster.nodes.values() if node.is_active]
    for node in (active, slave):
        node.crash(power=False)
    slave.files.put_folder(f"data/logs/{LOG_NAME}", older)
    slave.start()
    assert cluster.run_until(lambda: slave.managers.reports()[0].replica_id > 0, 2)
    assert slave.held_index < last
    master.crash(power=False)
    cluster.run(2)
    assert truth(cluster).master_node in (None, master.name)
    for node in (active, master):
        node.start()
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 2, 5)
    assert slave.held_index >= last


@pytest.mark.rule("C-03", "C-05")
@pytest.mark.parametrize("in_sync", [None, 2])
def test_a_group_whose_folders_are_all_restored_elects_a_master_with_all_records(in_sync: int | None) -> None:
    cluster = HaCluster(1, HaPlan(faults=False, clients=0, in_sync=in_sync))
    cluster.run(2)
    last = append_at(cluster, master_of(cluster), b"acknowledged").last_index
    cluster.run(1)
    for node in cluster.nodes.values():
        node.crash(power=False)
    for node in cluster.nodes.values():
        node.files.put_folder("data", node.files.copy_folder("data"))
        node.start()
    assert cluster.run_until(lambda: any(node.acknowledges for node in cluster.brokers), 10)
    master = master_of(cluster)
    assert master.held_index >= last
    append_at(cluster, master, b"later")
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 3, 5)
    assert not truth(cluster).unclean_epoch


@pytest.mark.rule("C-03", "C-05", "C-12")
@pytest.mark.parametrize("restored", ["one", "all"])
def test_an_older_copy_of_a_folder_that_starts_before_the_others_does_not_lead(restored: str) -> None:
    """It was made before the last record, which was confirmed so late that the metadata do not know that."""
    cluster = HaCluster(1, HaPlan(faults=False, clients=0, own_controllers=True))
    cluster.run(2)
    master = master_of(cluster)
    older = next(node for node in cluster.brokers if node is not master)
    copies = {older.name: older.files.copy_folder("data")}
    last = append_at(cluster, master, b"acknowledged").last_index
    cluster.run(0.05)
    for node in cluster.nodes.values():
        copies.setdefault(node.name, node.files.copy_folder("data"))
        node.crash(power=False)
    for node in cluster.nodes.values():
        if node is older or restored == "all":
            node.files.put_folder("data", copies[node.name])
        if node is older or not node.is_broker:
            node.start()
    cluster.run(1.5)
    assert truth(cluster).master_node != older.name
    for node in cluster.brokers:
        if node is not older:
            node.start()
    assert cluster.run_until(lambda: any(node.acknowledges for node in cluster.brokers), 10)
    assert master_of(cluster).held_index >= last
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 3, 5)
    assert not truth(cluster).unclean_epoch


@pytest.mark.rule("C-12")
def test_a_retry_counts_what_a_later_copy_held_before_the_master_knew_of_it() -> None:
    """The acks of the later copy, on the same node, have confirmed the append. Its retry is acknowledged once
    the master knows that the copy is another replica."""
    _cluster, violation = run_seed(93_000_049, 20)
    assert violation is None
