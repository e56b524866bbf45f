"""The controllers lose their disks: they decide nothing, and are rebuilt from the brokers' copies."""

from random import Random

import pytest

from app.controller.metadata import Log
from app.errors import ConfigError
from app.log.contract import AppendResult
from app.node.metadata.rebuild import NodeFolder, Rebuilt, rebuild
from storage.log.hard_state import HardState, HardStateFile
from tests.simulation.controller.cases.operations import append_at, master_of, request, truth
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.plan import STORAGE, HaPlan
from tests.simulation.world.network import LinkFaults
from tests.support.memory_files import MemoryFiles

CONTROLLERS = ("c1", "c2", "c3")


def group_in_sync() -> HaCluster:
    plan = HaPlan(brokers=2, faults=False, clients=0, links=LinkFaults(), own_controllers=True)
    cluster = HaCluster(1, plan)
    cluster.run(2)
    append_at(cluster, master_of(cluster), b"acknowledged")
    assert len(truth(cluster).set_nodes) == 2
    cluster.run(1)
    return cluster


def stop(cluster: HaCluster, *names: str, wipe: bool = False) -> None:
    for name in names:
        cluster.nodes[name].crash(power=False)
        if wipe:
            cluster.nodes[name].files = MemoryFiles(Random(3))


def rebuilt(cluster: HaCluster, *, replace: bool = False) -> Rebuilt:
    nodes = [NodeFolder(name, node.files, "data") for name, node in cluster.nodes.items()]
    return rebuild(nodes, CONTROLLERS, cluster_id="ha", storage=STORAGE, now_ms=1, replace=replace)


def log_at(cluster: HaCluster, name: str) -> Log:
    log = cluster.nodes[name].state.metadata.log("default")
    assert log is not None
    return log


@pytest.mark.rule("C-04", "C-09")
@pytest.mark.parametrize("started", [False, True])
def test_the_copies_of_the_brokers_bring_the_controllers_back(started: bool) -> None:
    cluster = group_in_sync()
    before = truth(cluster)
    stop(cluster, *CONTROLLERS, wipe=True)
    learn = cluster.checker._learn
    if started:  # with their empty disks: they begin again, notice it, and decide nothing
        cluster.checker._learn = lambda node: None  # type: ignore[method-assign]  # it is another history
        for name in CONTROLLERS:
            cluster.nodes[name].start()
        stop(cluster, "n1")
        cluster.nodes["n1"].start()
        cluster.run(5)
        assert not any(node.is_active for node in cluster.nodes.values())
        begun_again = [cluster.nodes[name].state.metadata.log("default") for name in CONTROLLERS]
        assert all(log is None or log.master_epoch == 0 for log in begun_again)
        stop(cluster, *CONTROLLERS)
    stop(cluster, "n1", "n2")
    if started:
        with pytest.raises(ConfigError, match="different histories"):
            rebuilt(cluster)
    found = rebuilt(cluster, replace=started)
    assert (found.copied, found.doubts) == (list(CONTROLLERS), {})
    cluster.checker._learn = learn  # type: ignore[method-assign]
    for node in cluster.nodes.values():
        node.start()
    assert cluster.run_until(lambda: any(each.acknowledges for each in cluster.brokers), 10)
    after = log_at(cluster, "n1")
    assert after.master_epoch > before.master_epoch + 1_000
    assert {each.id for each in after.replicas} == {each.id for each in before.replicas}
    master = next(each for each in cluster.brokers if each.acknowledges)
    assert cluster.run_until(lambda: len(log_at(cluster, "n1").set_nodes) == 2, 10)
    got: list[object] = []
    master.append(request(b"after"), got.append)
    assert cluster.run_until(lambda: bool(got), 3)
    assert isinstance(got[0], AppendResult), got
    assert b"acknowledged" in b"".join(bytes(batch.body) for batch in master.log.read_batches(0, 1 << 20))


@pytest.mark.rule("C-09")
def test_an_election_that_no_copy_of_the_metadata_has_is_reported() -> None:
    cluster = group_in_sync()
    stop(cluster, *CONTROLLERS, wipe=True)
    stop(cluster, "n1", "n2")
    folder = "data/logs/default/vote"
    newer = HardStateFile(cluster.nodes["n2"].files, folder)
    newer.save(HardState(9, "n2"))
    assert rebuilt(cluster).doubts == {"default": ("n2", 9)}


@pytest.mark.rule("C-09")
def test_a_majority_that_has_its_copy_is_not_rebuilt() -> None:
    cluster = group_in_sync()
    stop(cluster, "c1", wipe=True)
    stop(cluster, "c2", "c3", "n1", "n2")
    with pytest.raises(ConfigError, match="a majority"):
        rebuilt(cluster)
