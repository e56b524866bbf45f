"""Power failures with `durability = replicated`: a copy that may lack its end is another replica (C-03)."""

import pytest

from app.log.contract import Durability
from tests.simulation.controller.cases.operations import append_at, master_of, replica_id_of, request, truth
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import HaPlan
from tests.simulation.world.network import LinkFaults


def quiet(seed: int, brokers: int = 2, durability: Durability = Durability.REPLICATED) -> HaCluster:
    plan = HaPlan(
        brokers=brokers,
        durability=durability,
        faults=False,
        clients=0,
        links=LinkFaults(),
        own_controllers=True,
    )
    cluster = HaCluster(seed, plan)
    cluster.run(2)
    return cluster


def lose_power(node: HaSimNode) -> None:
    node.crash(power=False)
    node.files.crash()


@pytest.mark.rule("C-03", "C-05", "C-12")
@pytest.mark.parametrize("seed", range(3))
def test_a_master_that_lost_its_unsynced_end_is_not_elected(seed: int) -> None:
    cluster = quiet(seed)
    master = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not master)
    kept = [append_at(cluster, master, b"%d" % number).last_index for number in range(10)]
    got: list[object] = []
    for number in range(60):
        master.append(request(b"t%d" % number), got.append)
        cluster.run(0.002)
        if slave.driver.committed_index > master.log.durable_index + 1:
            break
    assert slave.driver.committed_index > master.log.durable_index
    kept.append(slave.driver.committed_index)
    before = replica_id_of(master)
    cluster.cut("isolate", slave.name, 2_000_000)
    cluster.hang_up(slave.name)
    lose_power(master)
    master.start()
    cluster.run(1.5)
    assert truth(cluster).master is None  # the slave is the only one that may lead
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 2, 6)
    assert truth(cluster).master_node == slave.name
    assert truth(cluster).unclean_epoch == 0
    assert replica_id_of(master) != before
    for node in cluster.brokers:
        assert node.held_index >= max(kept)


@pytest.mark.rule("C-03")
@pytest.mark.parametrize("how", ["process killed", "clean stop before the power failure", "fsync"])
def test_a_copy_that_has_lost_nothing_keeps_its_identity(how: str) -> None:
    cluster = quiet(7, durability=Durability.FSYNC if how == "fsync" else Durability.REPLICATED)
    master = master_of(cluster)
    slave = next(node for node in cluster.brokers if node is not master)
    append_at(cluster, master, b"a")
    before = replica_id_of(slave)
    if how == "process killed":
        slave.crash(power=False)
    else:
        if how != "fsync":
            stopped: list[None] = []
            slave.driver.stop(lambda: stopped.append(None))
            assert cluster.run_until(lambda: bool(stopped), 3)
        lose_power(slave)
    slave.start()
    assert cluster.run_until(lambda: replica_id_of(slave) > 0, 3)
    assert replica_id_of(slave) == before
    lose_power(slave)
    slave.start()
    assert cluster.run_until(lambda: replica_id_of(slave) > 0, 3)
    assert (replica_id_of(slave) == before) is (how == "fsync")  # in use again, the note was of this use
