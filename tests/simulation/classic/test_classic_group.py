"""The checker of classic mode reports broken guarantees, and nothing else."""

import pytest

from app.errors import CommitlogError
from app.log.contract import Acks, AppendRequest, AppendResult
from storage.format.records import RecordColumns
from tests.simulation.classic.group import THINK_US, ClassicGroup, ClassicNode
from tests.simulation.world.promises import Violation
from tests.unit.ha.clients import Client

TWO_SYNC_SLAVES = 23  # a seed of three nodes whose appends wait for both slaves
Answers = list[AppendResult | CommitlogError]


def quiet_group() -> ClassicGroup:
    group = ClassicGroup(TWO_SYNC_SLAVES, faults=False, clients=0)
    assert group.sync_slaves == 2
    core = group.master.driver._core
    assert group.run_until(lambda: core.accepts_appends, 8)
    appended(group, "first")
    return group


def request(value: str, acks: Acks = Acks.QUORUM) -> AppendRequest:
    records = RecordColumns()
    records.add(value.encode())
    return AppendRequest(records, timeout_ms=5_000, acks=acks)


def append(group: ClassicGroup, value: str) -> Answers:
    """Begin an append; its answer comes into the list that is returned."""
    answers: Answers = []
    group.master.append(request(value), answers.append)
    return answers


def appended(group: ClassicGroup, value: str) -> AppendResult:
    answers = append(group, value)
    assert group.run_until(lambda: answers != [], 6)
    (answer,) = answers
    assert isinstance(answer, AppendResult)
    return answer


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("how", ["stalled master", "half-open connection"])
def test_a_disk_that_is_replaced_after_its_ack_was_sent_breaks_no_promise(how: str) -> None:
    """The slave acknowledges, then its disk is replaced; the master can only hear of the ack first."""
    group = quiet_group()
    master, other, lost = group.nodes.values()
    late = master if how == "stalled master" else other
    target = master.driver.log.end_index + 1

    def durable(*nodes: ClassicNode) -> bool:
        return all(node.driver.log.durable_index >= target for node in nodes)

    if late is other:
        other.stall(600_000)
    answers = append(group, "acknowledged")
    assert group.run_until(lambda: durable(*{other, lost} - {late}), 1)
    if late is master:
        assert not answers
        master.stall(600_000)
    group.run(0.01)  # the reports arrive
    assert not answers
    group.network.cuts[master.name, lost.name] = None
    group.nemesis.wipe(lost)
    group.run(0.3)
    assert not answers
    if late is master:  # it has a new, empty copy before the master reads of its acknowledgement
        lost.start()
    assert group.run_until(lambda: answers != [], 2)
    assert isinstance(answers[0], AppendResult)


@pytest.mark.rule("H-07")
def test_an_ack_without_the_slaves_that_were_asked_for_is_found() -> None:
    group = quiet_group()
    group.nodes["n3"].crash(power=False)
    group.master.driver._core._needs.asked = 1  # type: ignore[attr-defined]
    with pytest.raises(Violation, match=r"held by \['n1', 'n2'\] only, not 3"):
        appended(group, "too early")


@pytest.mark.rule("H-01")
def test_a_slave_that_does_not_connect_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound counts from the end of the cut."""
    group = quiet_group()
    slave = group.nodes["n3"]
    monkeypatch.setattr(slave.driver._core, "_connect", lambda _now_ms: None)
    group.network.cuts[group.master.name, slave.name] = None
    group.run(8)
    group.network.heal()
    group.run(4)
    with pytest.raises(Violation, match="no append can be acknowledged for"):
        group.run(4)


@pytest.mark.rule("H-06", "H-07")
def test_the_group_continues_after_an_append_that_a_replaced_slave_never_holds() -> None:
    """The slave gets the newest segment alone, so no repeat of an older append is acknowledged. The status
    states it, and what is appended from then on is acknowledged."""
    group = quiet_group()
    master, lost = group.master, group.nodes["n3"]
    lost.crash(power=False)
    kept = master.driver.log.end_index + 1
    Client("k", group.world, [master], group.ledger, THINK_US).start()
    assert group.run_until(lambda: master.driver.log.end_index >= kept, 3)
    for _ in range(500):
        if master.driver.log.last_segment_index > kept:
            break
        master.driver.append(request("x" * 500, Acks.LEADER), lambda _answer: None)
        group.run(0.02)
    assert master.driver.log.last_segment_index > kept
    group.nemesis.wipe(lost)
    group.settle()
    assert group.ledger.highest_index > kept
    assert "k-1" not in group.ledger.acknowledged
    assert lost.driver.log.begin_index > kept
    (slave,) = (peer for peer in master.driver.status().core.peers if peer.id == lost.name)
    assert slave.reason is not None
    assert slave.reason.startswith(f"it began empty, at index {lost.driver.log.begin_index}")
