"""Copies that lack the log's state or older records, in whole groups: they follow, and do not lead (C-05)."""

from dataclasses import replace

import pytest

from app.errors import CommitlogError
from app.log.contract import AppendResult
from tests.simulation.controller.cases.operations import (
    append_at,
    master_of,
    replace_disk,
    replica_id_of,
    request,
    trim,
    truth,
    try_append,
)
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import FAST, HA, HaPlan, Timing
from tests.simulation.world.network import LinkFaults
from tests.support.committed import values_of


def quiet(seed: int, brokers: int, *, unclean: bool = False, timing: Timing = FAST) -> HaCluster:
    plan = HaPlan(
        brokers=brokers,
        unclean=unclean,
        faults=False,
        clients=0,
        links=LinkFaults(),
        own_controllers=True,
        timing=timing,
    )
    cluster = HaCluster(seed, plan)
    cluster.run(2)
    return cluster


def cut_peers(cluster: HaCluster, one: HaSimNode, other: HaSimNode) -> None:
    """Between these nodes messages are lost; the HA line and the controllers are left."""
    cluster.network.cut([(one.name, other.name), (other.name, one.name)])


def has_joined(cluster: HaCluster, node: HaSimNode) -> bool:
    """Return True if the node's current copy is in the set."""
    return replica_id_of(node) in truth(cluster).sync_state_set


def kill(cluster: HaCluster, node: HaSimNode) -> None:
    node.crash(power=False)
    cluster.hang_up(node.name)


def lose_disk_after_trim(cluster: HaCluster) -> tuple[HaSimNode, HaSimNode, AppendResult]:
    """Trim a record with a key, and replace the disk of the slave, which is down. Return the master, the
    slave and the result of that append."""
    master = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not master)
    first = append_at(cluster, master, b"order", key="4711")
    for number in range(10):
        append_at(cluster, master, b"%d" % number)
    trim(cluster, master, master.driver.committed_index - 2)
    assert master.log.begin_index > first.first_index
    kill(cluster, slave)
    replace_disk(slave)
    return master, slave, first


@pytest.mark.rule("C-05", "C-08")
@pytest.mark.parametrize("lost", ["state requests", "nothing"])
def test_a_key_is_known_to_every_master(lost: str) -> None:
    """The records that claimed it are trimmed: an empty copy needs the log's state of another one."""
    cluster = quiet(3, 2)
    master, slave, first = lose_disk_after_trim(cluster)
    if lost == "state requests":
        cut_peers(cluster, master, slave)
    slave.start()
    joined = cluster.run_until(lambda: has_joined(cluster, slave), 4)
    assert joined is (lost == "nothing")
    kill(cluster, master)
    cluster.run(2)
    if lost == "state requests":
        assert truth(cluster).master_node in (None, master.name)
        cluster.network.heal()
        master.start()
        assert cluster.run_until(lambda: has_joined(cluster, slave), 6)
        kill(cluster, master)
        cluster.run(2)
    now = master_of(cluster)
    assert now is slave
    repeat = append_at(cluster, now, b"order", key="4711")
    assert (repeat.first_index, repeat.replayed) == (first.first_index, True)


@pytest.mark.rule("C-05", "C-08")
def test_a_member_of_the_set_has_the_state_on_its_disk() -> None:
    """It dies as soon as it has joined, and the master after it: no other copy could send the state again."""
    cluster = quiet(3, 2)
    master, slave, first = lose_disk_after_trim(cluster)
    slave.start()
    assert cluster.run_until(lambda: has_joined(cluster, slave), 4)
    kill(cluster, slave)
    kill(cluster, master)
    slave.start()
    assert cluster.run_until(lambda: slave.is_master and slave.acknowledges, 6)
    repeat = append_at(cluster, slave, b"order", key="4711")
    assert (repeat.first_index, repeat.replayed) == (first.first_index, True)


@pytest.mark.rule("C-05")
def test_an_unclean_election_of_a_copy_without_state_continues_and_brings_others_into_the_set() -> None:
    cluster = quiet(3, 2, unclean=True)
    master = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not master)
    for number in range(8):
        append_at(cluster, master, b"%d" % number)
    trim(cluster, master, master.driver.committed_index - 2)
    kill(cluster, slave)
    replace_disk(slave)
    cut_peers(cluster, master, slave)
    slave.start()
    assert cluster.run_until(lambda: slave.log.end_index == master.log.end_index, 3)
    kill(cluster, master)
    assert cluster.run_until(lambda: slave.is_master and slave.acknowledges, 4)
    assert not isinstance(try_append(cluster, slave, b"after", key="again"), CommitlogError)
    assert append_at(cluster, slave, b"after", key="again").replayed
    cluster.run(1)  # until what it has accepted is in a snapshot
    slave.crash(power=False)
    slave.start()
    assert cluster.run_until(lambda: slave.is_master and slave.acknowledges, 4)
    assert (truth(cluster).master_epoch, truth(cluster).unclean_epoch) == (3, 2)
    cluster.network.heal()
    master.start()
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 2, 8)


@pytest.mark.rule("A-09", "C-08", "C-11")
def test_a_copy_that_began_with_the_last_segment_joins_once_the_rest_is_trimmed() -> None:
    cluster = quiet(1, 2, timing=replace(FAST, ha=replace(HA, ha_sync_from_last_file=True)))
    master = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not master)
    kill(cluster, slave)
    for number in range(30):
        append_at(cluster, master, b"%d " % number + b"x" * 1_500)
    replace_disk(slave)
    slave.start()
    cluster.run(3)
    begin = slave.log.begin_index
    assert begin > 0
    assert slave.driver.committed_index == master.driver.committed_index
    assert truth(cluster).set_nodes == (master.name,)
    slave.crash(power=False)
    slave.start()  # it does not know how it began, but what it lacks
    cluster.run(2)
    assert truth(cluster).set_nodes == (master.name,)
    trim(cluster, master, begin + 1)
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 2, 4)
    kill(cluster, master)
    assert cluster.run_until(lambda: truth(cluster).master_node == slave.name, 3)


@pytest.mark.rule("A-04", "A-09")
def test_a_copy_that_began_with_records_that_were_never_confirmed_follows_the_next_master() -> None:
    """The next master sends what precedes its beginning, which is confirmed and not held here."""
    patient = replace(HA, ha_sync_from_last_file=True, ha_max_time_slave_not_catchup_ms=5_000)
    cluster = quiet(1, 3, timing=replace(FAST, ha=patient))
    old = master_of(cluster)
    heir, empty = (node for node in cluster.brokers if node is not old)
    kill(cluster, empty)
    assert cluster.run_until(lambda: not has_joined(cluster, empty), 8)
    replace_disk(empty)
    for number in range(3):
        append_at(cluster, old, b"%d " % number + b"x" * 1_500)
    kill(cluster, heir)
    for number in range(12):
        old.append(request(b"never %d " % number + b"x" * 1_500), lambda _answer: None)
        cluster.run(0.005)
    assert old.log.last_segment_index > old.driver.committed_index
    empty.start()
    assert cluster.run_until(lambda: empty.alive and empty.log.end_index > 0, 3)
    assert empty.log.begin_index == old.driver.committed_index + 1
    kill(cluster, old)
    kill(cluster, empty)
    empty.start()  # it knows again that everything before its beginning is confirmed
    heir.start()
    assert cluster.run_until(lambda: heir.is_master and heir.acknowledges, 8)
    append_at(cluster, heir, b"after")
    target = heir.driver.committed_index
    assert cluster.run_until(lambda: empty.driver.committed_index >= target, 8)
    assert empty.log.batch_at(target).header.chain == heir.log.batch_at(target).header.chain


@pytest.mark.rule("A-04", "A-10")
def test_a_tail_that_was_never_confirmed_gives_way_to_a_trimmed_masters_log() -> None:
    cluster = quiet(2, 3)
    old = master_of(cluster)
    for number in range(5):
        append_at(cluster, old, b"before %d" % number)
    cluster.run(0.5)
    confirmed = old.driver.committed_index
    cluster.cut("isolate", old.name, 10_000_000)
    for number in range(12):
        old.append(request(b"never %d" % number), lambda _answer: None)
        cluster.run(0.005)
    assert old.log.end_index > confirmed + 5
    cluster.run(1.5)
    new = master_of(cluster)
    assert new is not old
    for number in range(8):
        append_at(cluster, new, b"after %d " % number + b"x" * 3_000)  # more than one frame each
    trim(cluster, new, new.driver.committed_index - 2)
    assert confirmed < new.log.begin_index <= old.log.end_index
    cluster.network.heal()
    cluster.streams.heal()
    cluster._apart.clear()
    target = new.driver.committed_index
    assert cluster.run_until(lambda: old.driver.committed_index >= target, 10)
    served = []
    index = old.log.begin_index
    while index <= old.driver.committed_index:
        batch = old.log.batch_at(index)
        served += [] if batch.is_control else values_of(batch)
        index = batch.next_index
    assert served
    assert not [value for value in served if value.startswith("never")]


@pytest.mark.rule("C-05", "A-09")
def test_a_trim_and_a_crash_before_the_next_checkpoint_leave_the_only_copy_able_to_lead() -> None:
    """The trim was carried out, so it was committed; after the crash the checkpoint is older than that."""
    cluster = quiet(1, 2)
    master = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not master)
    for number in range(30):
        append_at(cluster, master, b"%d " % number + b"x" * 1_500)
    kill(cluster, slave)
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 1, 3)
    end = append_at(cluster, master, b"kept").last_index
    saved = master.driver._state.checkpointer
    assert cluster.run_until(lambda: saved.safe_index == end, 3)  # just now
    trim(cluster, master, end - 8)
    cluster.run(0.02)  # until it is durable
    kill(cluster, master)
    master.start()
    assert master.log.begin_index > 0
    assert master.driver.committed_index == end  # the trim comes after it
    assert cluster.run_until(lambda: master.is_master and master.acknowledges, 4)
    assert append_at(cluster, master, b"after").last_index > end
