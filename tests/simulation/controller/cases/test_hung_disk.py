"""A master whose disk hangs, while its node lives and keeps its lease (A-11, C-05)."""

import pytest

from app.log.contract import AppendRequest
from storage.format.records import RecordColumns
from tests.simulation.controller.cases.operations import append_at, master_of, truth
from tests.simulation.controller.cases.test_incomplete_copies import quiet

SECOND_US = 1_000_000


@pytest.mark.rule("C-05")
def test_a_master_whose_disk_hangs_gives_its_role_up() -> None:
    cluster = quiet(1, 2)
    old = master_of(cluster)
    new = next(node for node in cluster.brokers if node is not old)
    kept = append_at(cluster, old, b"kept")
    old.hang_disk(60 * SECOND_US)
    records = RecordColumns()
    records.add(b"in doubt")
    old.driver.append(AppendRequest(records, timeout_ms=60_000), lambda _answer: None)
    cluster.run(9)
    assert old.is_master  # a slow disk gets its time
    assert cluster.run_until(lambda: new.is_master and new.acknowledges, 25)
    assert append_at(cluster, new, b"acknowledged").first_index > kept.last_index
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 2, 60)


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
