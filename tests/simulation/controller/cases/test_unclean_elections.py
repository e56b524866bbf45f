"""Copies with records that an unclean election has lost (C-05)."""

import pytest

from app.api.read.selection import Consistency
from app.errors import CommitlogError, ReadIndexUnavailable
from app.ha.auto_switch.slave_side import SlaveSide
from app.log.contract import NO_INDEX, AppendResult
from tests.simulation.controller.cases.operations import append_at, master_of, trim, truth
from tests.simulation.controller.cases.test_incomplete_copies import kill, quiet
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.raft.reads import Shown
from tests.simulation.world.promises import Violation


def read(cluster: HaCluster, node: HaSimNode, start_index: int) -> Shown | CommitlogError:
    """A linearizable read at a node."""
    got: list[Shown | CommitlogError] = []
    node.read_page(start_index, Consistency.LINEARIZABLE, got.append)
    assert cluster.run_until(lambda: bool(got), 10)
    return got[0]


def group_with_lost_records() -> tuple[HaCluster, HaSimNode, HaSimNode, AppendResult]:
    """A copy that is not compared with the master yet, and holds records that an unclean election has lost;
    the master; and what was acknowledged since."""
    cluster = quiet(1, 2, unclean=True)
    old = master_of(cluster)
    new = next(node for node in cluster.brokers if node is not old)
    append_at(cluster, old, b"kept")
    cluster.run(0.5)
    kill(cluster, new)
    assert cluster.run_until(lambda: truth(cluster).set_nodes == (old.name,), 5)
    for number in range(6):
        append_at(cluster, old, b"lost %d" % number)
    cluster.run(0.5)
    kill(cluster, old)
    new.start()
    assert cluster.run_until(lambda: new.is_master and new.acknowledges, 8)
    assert truth(cluster).unclean_epoch == truth(cluster).master_epoch
    acknowledged = append_at(cluster, new, b"acknowledged")
    cluster.streams.cuts[old.name, new.name] = None
    cluster.streams.cuts[new.name, old.name] = None
    old.start()
    assert cluster.run_until(lambda: old.core.epoch == new.core.epoch, 3)
    cluster.run(0.5)  # the copies are not compared, and messages between the nodes arrive
    assert old.driver.committed_index >= acknowledged.last_index
    return cluster, old, new, acknowledged


@pytest.mark.rule("A-04", "A-11")
def test_a_copy_with_lost_records_serves_no_linearizable_read() -> None:
    cluster, old, _new, acknowledged = group_with_lost_records()
    assert isinstance(read(cluster, old, acknowledged.first_index), ReadIndexUnavailable)
    cluster.streams.heal()
    assert cluster.run_until(lambda: len(truth(cluster).set_nodes) == 2, 8)
    page = read(cluster, old, acknowledged.first_index)
    assert isinstance(page, Shown)
    assert page.records == [(acknowledged.first_index, "acknowledged")]


@pytest.mark.rule("A-04", "A-11")
def test_a_linearizable_read_of_lost_records_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlaveSide, "may_hold_lost", False)
    cluster, old, _new, acknowledged = group_with_lost_records()
    checker = cluster.checker
    reader = checker.unclean_reads.reader(checker.unclean_epoch)
    old.read_page(acknowledged.first_index, Consistency.LINEARIZABLE, reader)
    with pytest.raises(Violation, match="shows lost 1 at"):
        cluster.run(1)


@pytest.mark.rule("A-04", "A-11")
def test_a_linearizable_read_without_an_acknowledged_record_is_noticed() -> None:
    cluster, _old, new, acknowledged = group_with_lost_records()
    checker, epoch = cluster.checker, cluster.checker.unclean_epoch
    page = read(cluster, new, acknowledged.first_index)
    assert isinstance(page, Shown)
    short = page._replace(next_index=acknowledged.first_index, records=[])
    for answer, problem in ((page, None), (short, "was acknowledged before the request")):
        checker.unclean_reads.reader(epoch)(answer)
        assert (problem or "") in (checker.unclean_reads.problem(epoch) or "")
    before = checker.unclean_reads.reader(0)  # the election comes between request and answer
    before(page)
    assert checker.unclean_reads.problem(epoch) is None


@pytest.mark.rule("A-04", "C-08")
@pytest.mark.parametrize("trim_is_lost", [True, False])
def test_a_copy_whose_trim_is_lost_joins_again(trim_is_lost: bool) -> None:
    """The new master holds the trimmed records, and no copy without them joins: it begins again."""
    cluster = quiet(1, 2, unclean=True)
    old = master_of(cluster)
    new = next(node for node in cluster.brokers if node is not old)
    for number in range(12):
        append_at(cluster, old, b"kept %d" % number)
    if not trim_is_lost:
        trim(cluster, old, 6)
        assert cluster.run_until(lambda: new.log.begin_index == 6, 5)
    kill(cluster, new)
    assert cluster.run_until(lambda: truth(cluster).set_nodes == (old.name,), 5)
    append_at(cluster, old, b"lost")
    if trim_is_lost:
        trim(cluster, old, 6)
    assert old.log.begin_index == 6
    cluster.run(1)
    kill(cluster, old)
    new.start()
    assert cluster.run_until(lambda: new.is_master and new.acknowledges, 8)
    append_at(cluster, new, b"acknowledged")
    began: list[int] = []
    old.start()

    def has_joined() -> bool:
        began.append(old.log.begin_index)
        return len(truth(cluster).set_nodes) == 2

    assert cluster.run_until(has_joined, 10)
    assert old.log.begin_index == new.log.begin_index == (0 if trim_is_lost else 6)
    assert "lost" in old.receipts()
    assert not any(value.startswith("kept") for value in old.receipts())
    assert (NO_INDEX in began) is trim_is_lost  # otherwise what is kept is not fetched again
