"""A master whose disk hangs, while its node lives and keeps its lease (A-11, C-05)."""

import pytest

from app.controller.commands import ChangeLog
from app.log.contract import AppendRequest, Durability
from storage.format.records import RecordColumns
from tests.simulation.controller.cases.operations import append_at, master_of, request, truth
from tests.simulation.controller.cases.test_incomplete_copies import kill, quiet
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import LOG_NAME, USUAL, HaPlan
from tests.simulation.world.network import LinkFaults
from tests.support.committed import values_in

SECOND_US = 1_000_000


def opened_by_a_new_master(seed: int, in_sync: int | None = None) -> tuple[HaCluster, HaSimNode]:
    """A cluster of three in sync whose master was killed, and the next one, which has just opened its epoch:
    it has no lease yet."""
    plan = HaPlan(
        own_controllers=True, faults=False, clients=0, links=LinkFaults(), timing=USUAL, in_sync=in_sync
    )
    cluster = HaCluster(seed, plan)
    assert cluster.run_until(
        lambda: (log := cluster.checker.truth.log(LOG_NAME)) is not None and len(log.sync_state_set) == 3, 60
    )
    old = master_of(cluster)
    append_at(cluster, old, b"kept")
    cluster.run(1)
    kill(cluster, old)
    others = [node for node in cluster.brokers if node is not old]
    assert cluster.run_until(lambda: any(node.core._is_open for node in others), 20)
    return cluster, next(node for node in others if node.is_master)


def replicated() -> HaCluster:
    """A cluster of `replicated` durability whose set has all three copies."""
    plan = HaPlan(
        durability=Durability.REPLICATED, own_controllers=True, faults=False, clients=0, links=LinkFaults()
    )
    cluster = HaCluster(1, plan)
    assert cluster.run_until(
        lambda: (log := cluster.checker.truth.log(LOG_NAME)) is not None and len(log.sync_state_set) == 3, 20
    )
    return cluster


@pytest.mark.rule("C-05")
def test_a_master_whose_disk_hangs_gives_its_role_up() -> None:
    cluster = quiet(1, 2)
    old = master_of(cluster)
    new = next(node for node in cluster.brokers if node is not old)
    kept = append_at(cluster, old, b"kept")
    old.hang_disk(20 * SECOND_US)
    records = RecordColumns()
    records.add(b"in doubt")
    old.driver.append(AppendRequest(records, timeout_ms=60_000), lambda _answer: None)
    cluster.run(9)
    assert old.is_master  # a slow disk gets its time
    assert cluster.run_until(lambda: new.is_master and new.acknowledges, 10)
    assert append_at(cluster, new, b"acknowledged").first_index > kept.last_index
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 2, 60)


@pytest.mark.rule("C-05", "C-12")
@pytest.mark.parametrize("seed", [1, 2])
def test_a_new_master_whose_disk_hangs_gives_way_to_a_member_that_it_does_not_know_of(seed: int) -> None:
    """The set that the controllers accepted is not on its disk."""
    cluster = quiet(seed, 3)
    old, epoch = master_of(cluster), truth(cluster).master_epoch
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 3, 5)
    append_at(cluster, old, b"kept")
    cluster.run(1)
    kill(cluster, old)
    assert cluster.run_until(
        lambda: truth(cluster).master_epoch > epoch and not truth(cluster).is_opening, 20
    )
    hung = next(node for node in cluster.brokers if node.name == truth(cluster).master_node)
    assert cluster.run_until(lambda: hung.is_master and hung.core.set_request is not None, 20)
    hung.hang_disk(120 * SECOND_US)  # the request leaves with the next tick
    assert cluster.run_until(lambda: len(truth(cluster).sync_state_set) > 1, 20)
    assert len(hung.core._sync_state_set) == 1
    cluster.run(5)
    hung.driver.append(request(b"in doubt"), lambda _answer: None)
    others = [node for node in cluster.brokers if node is not hung]
    assert cluster.run_until(
        lambda: any(node.alive and node.is_master and node.acknowledges for node in others), 40
    )


def test_a_master_alone_in_its_set_keeps_the_role_whatever_its_disk_does() -> None:
    cluster = quiet(1, 1)
    master = master_of(cluster)
    epoch = truth(cluster).master_epoch
    master.hang_disk(30 * SECOND_US)
    records = RecordColumns()
    records.add(b"late")
    answers: list[object] = []
    master.driver.append(AppendRequest(records, timeout_ms=60_000), answers.append)
    assert cluster.run_until(lambda: bool(answers), 40)
    assert (truth(cluster).master_epoch, truth(cluster).set_nodes) == (epoch, (master.name,))


@pytest.mark.rule("C-05", "C-12", "R-11")
def test_a_change_to_fsync_takes_back_no_acknowledgement_of_a_copy_whose_disk_hangs() -> None:
    """Two of three members acknowledge: the third one lacks the record, and has more on its disk."""
    plan = HaPlan(
        in_sync=2,
        durability=Durability.REPLICATED,
        own_controllers=True,
        faults=False,
        clients=0,
        links=LinkFaults(),
        timing=USUAL,
    )
    cluster = HaCluster(1, plan)
    assert cluster.run_until(
        lambda: (
            (log := cluster.checker.truth.log(LOG_NAME)) is not None
            and len(log.sync_state_set) == 3
            and log.set_acks == 2
        ),
        20,
    )
    master = master_of(cluster)
    holder, other = (node for node in cluster.brokers if node is not master)
    append_at(cluster, master, b"on all disks")
    cluster.run(1)
    holder.hang_disk(8 * SECOND_US)
    append_at(cluster, master, b"on two disks")
    cluster.run(0.3)
    kill(cluster, other)
    kept = append_at(cluster, master, b"acknowledged")
    change = ChangeLog(LOG_NAME, {"durability": "fsync"}, "change")
    master.client.ask(change, lambda _answer: None, 5_000)
    assert cluster.run_until(lambda: holder.core._member.durability is Durability.FSYNC, 1)
    kill(cluster, master)
    other.start()
    assert len(truth(cluster).sync_state_set) == 3
    survivors = (holder, other)
    assert cluster.run_until(lambda: any(node.is_master and node.acknowledges for node in survivors), 30)
    assert master_of(cluster).log.end_index >= kept.last_index
    assert "acknowledged" in values_in(master_of(cluster).log)


@pytest.mark.rule("C-05", "C-07")
def test_a_master_that_cannot_store_a_smaller_set_gives_its_role_up() -> None:
    """It acknowledges before its disk has a record, so only the loss of a slave shows that the disk hangs."""
    cluster = replicated()
    master = master_of(cluster)
    slave, other = (node for node in cluster.brokers if node is not master)
    kept = append_at(cluster, master, b"kept")
    master.hang_disk(120 * SECOND_US)
    append_at(cluster, master, b"acknowledged without the disk")
    kill(cluster, slave)
    master.driver.append(request(b"in doubt"), lambda _answer: None)
    assert cluster.run_until(lambda: other.is_master and other.acknowledges, 40)
    assert append_at(cluster, other, b"on").first_index > kept.last_index


@pytest.mark.rule("C-05", "A-01")
def test_a_replicated_master_whose_disk_hangs_at_the_opening_gives_way() -> None:
    """Its epoch is not open while the record that opens it is not on its disk: the controllers must not take
    it for open."""
    cluster = replicated()
    old = master_of(cluster)
    others = [node for node in cluster.brokers if node is not old]
    kept = append_at(cluster, old, b"kept")
    cluster.run(1)
    kill(cluster, old)
    assert cluster.run_until(
        lambda: any(node.is_master and node.core.wants_control is None for node in others), 20
    )
    hung = next(node for node in others if node.is_master)
    assert not hung.core.accepts_appends
    hung.hang_disk(120 * SECOND_US)
    assert cluster.run_until(
        lambda: any(node is not hung and node.is_master and node.acknowledges for node in others), 40
    )
    assert append_at(cluster, master_of(cluster), b"on").first_index > kept.last_index


@pytest.mark.rule("A-11", "C-05", "C-12")
@pytest.mark.parametrize(("seed", "in_sync"), [(1, None), (2, None), (1, 2)])
def test_a_master_whose_disk_hangs_before_its_first_lease_gives_way(seed: int, in_sync: int | None) -> None:
    """It is the only member of the set, and can use no lease until its disk has the metadata by which its
    epoch is open. So it has acknowledged nothing, and the set before holds everything."""
    cluster, hung = opened_by_a_new_master(seed, in_sync)
    for node in cluster.brokers:
        cluster.bring_up(node)
    hung.hang_disk(40 * SECOND_US)
    assert cluster.run_until(lambda: not truth(cluster).is_opening, 5)
    assert truth(cluster).set_nodes == (hung.name,)
    assert cluster.run_until(
        lambda: any(node is not hung and node.is_master and node.acknowledges for node in cluster.brokers), 30
    )
    new = master_of(cluster)
    append_at(cluster, new, b"on")
    assert values_in(new.log) == ["kept", "on"]
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 3, 60)
    assert truth(cluster).unclean_epoch == 0


@pytest.mark.rule("A-11", "C-05")
@pytest.mark.parametrize("hung_disks", [1, 2])
def test_first_masters_whose_disks_hang_at_their_first_openings_give_way(hung_disks: int) -> None:
    """The log has never held a record. They recover, and follow."""
    plan = HaPlan(own_controllers=True, faults=False, clients=0, links=LinkFaults(), timing=USUAL)
    cluster = HaCluster(1, plan)
    assert cluster.run_until(
        lambda: (log := cluster.checker.truth.log(LOG_NAME)) is not None and log.master is not None, 60
    )
    first = next(node for node in cluster.brokers if node.name == truth(cluster).master_node)
    assert not first.core._is_open
    hung = [first, *(node for node in cluster.brokers if node is not first)][:hung_disks]
    for node in hung:
        node.hang_disk(60 * SECOND_US)
    others = [node for node in cluster.brokers if node not in hung]
    assert cluster.run_until(lambda: any(node.is_master and node.acknowledges for node in others), 20)
    append_at(cluster, master_of(cluster), b"kept")
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 3, 80)
    assert all(values_in(node.log) == ["kept"] for node in hung)
    assert truth(cluster).unclean_epoch == 0


@pytest.mark.rule("A-11", "C-05")
def test_a_first_master_that_dies_before_its_opening_is_replaced() -> None:
    plan = HaPlan(own_controllers=True, faults=False, clients=0, links=LinkFaults(), timing=USUAL)
    cluster = HaCluster(1, plan)
    assert cluster.run_until(
        lambda: (log := cluster.checker.truth.log(LOG_NAME)) is not None and log.master is not None, 60
    )
    first = next(node for node in cluster.brokers if node.name == truth(cluster).master_node)
    kill(cluster, first)
    others = [node for node in cluster.brokers if node is not first]
    assert cluster.run_until(lambda: any(node.is_master and node.acknowledges for node in others), 20)
    append_at(cluster, master_of(cluster), b"kept")
    cluster.bring_up(first)
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 3, 60)
    assert values_in(first.log) == ["kept"]
    assert truth(cluster).unclean_epoch == 0
