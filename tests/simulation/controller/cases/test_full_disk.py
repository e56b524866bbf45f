"""Masters whose disks lack space for records, or for the opening of an epoch: no node has a reserve here."""

import pytest

from app.log.contract import AppendResult
from storage.errors import StorageFull
from storage.format.segment_format import segment_offset
from tests.simulation.controller.cases.operations import master_of, request, truth
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import LOG_NAME, USUAL, HaPlan
from tests.simulation.world.network import LinkFaults


def with_full_disks(number: int) -> tuple[HaCluster, list[HaSimNode]]:
    """A cluster of three in sync; the segments of its log cannot grow at so many nodes, the master first."""
    plan = HaPlan(own_controllers=True, faults=False, clients=0, links=LinkFaults(), timing=USUAL)
    cluster = HaCluster(1, plan)
    assert cluster.run_until(
        lambda: (log := cluster.checker.truth.log(LOG_NAME)) is not None and len(log.sync_state_set) == 3, 60
    )
    master = master_of(cluster)
    full = [master, *(node for node in cluster.brokers if node is not master)][:number]
    for node in full:
        node.files.refuse = _no_space
    return cluster, full


def _no_space(operation: str, path: str) -> None:
    folder, _, name = path.rpartition("/")
    if operation == "extend" and folder.endswith(f"/logs/{LOG_NAME}") and segment_offset(name) is not None:
        raise StorageFull(path, operation, "no space left")


def is_stored(cluster: HaCluster, number: int, pause_s: float) -> bool:
    """Append a record of that number where a master is, and wait; return whether it was acknowledged."""
    answers: list[object] = []
    for node in cluster.brokers:
        if node.acknowledges:
            node.append(request(b"%d" % number), answers.append)
    cluster.run(pause_s)
    return any(isinstance(answer, AppendResult) for answer in answers)


@pytest.mark.rule("C-05")
@pytest.mark.parametrize(("full_disks", "pause_s"), [(1, 0.5), (1, 5.0), (2, 0.5)])
def test_a_log_takes_appends_at_a_member_with_disk_space_however_seldom_it_is_written(
    full_disks: int, pause_s: float
) -> None:
    cluster, full = with_full_disks(full_disks)
    results = [is_stored(cluster, number, pause_s) for number in range(int(20 / pause_s))]
    assert results[0] is False
    assert results[-1] is True
    assert master_of(cluster) not in full
    assert truth(cluster).unclean_epoch == 0


@pytest.mark.rule("C-05")
def test_where_no_member_can_open_an_epoch_the_controllers_try_again_from_time_to_time() -> None:
    cluster, full = with_full_disks(3)
    for number in range(60):
        assert not is_stored(cluster, number, 0.5)
    assert cluster.checker.counts["elections"] < 20
    for node in full:
        node.files.recover()
    cluster.run(10)
    assert is_stored(cluster, 60, 0.5)
