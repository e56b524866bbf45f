"""State of a replica when it opens: committed index, trims, resets; and the first group of a log (R-10)."""

from pathlib import Path

import pytest

from app.log.commands import Trim
from app.log.contract import NO_INDEX, Reset, Role
from app.raft.messages import Heartbeat, PushRequest, PushType, VoteAnswer, VoteRequest
from app.raft.state import committed_at_open
from storage.log.hard_state import HardState
from tests.unit.node.replica.driver_support import Node, Seams, follower_of_n2, push_to, result
from tests.unit.raft.support import Group, Member, MemoryLog, log_of
from tests.unit.raft.test_doubt import blank_group


def trimmed_log(begin_index: int, *terms: int) -> MemoryLog:
    log = log_of(*terms)
    log.trim(begin_index)
    return log


@pytest.mark.rule("D-20")
def test_records_trimmed_or_reset_away_are_committed() -> None:
    assert committed_at_open(MemoryLog(), NO_INDEX) == NO_INDEX
    assert committed_at_open(log_of(1, 1), NO_INDEX) == NO_INDEX
    assert committed_at_open(log_of(1, 1), 7) == 1
    assert committed_at_open(trimmed_log(2, 1, 1, 1), 0) == 1
    assert committed_at_open(trimmed_log(2, 1, 1, 1), 2) == 2
    emptied = MemoryLog()
    emptied.base_index = 5  # a reset whose first batch did not reach the disk
    assert committed_at_open(emptied, 3) == 4


@pytest.mark.rule("R-08")
def test_a_trim_of_all_that_is_committed_survives_a_crash_before_the_next_checkpoint(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1")
    for _ in range(5):
        result(node.append(b"x"))
    node.tick(20)
    node.tick(61_000)  # snapshot and checkpoint hold all of the idle log
    node.tick(3_100)
    node.command(Trim(node.driver.committed_index + 1))
    node.tick(20)
    begin_index = node.driver.log.begin_index
    assert begin_index == 6
    node.seams.work.clear()
    node.seams = Seams(now=node.seams.now + 1_000)
    node.driver = node.open()
    assert node.driver.committed_index >= begin_index - 1
    reads: list[object] = []
    node.driver.start()
    node.driver.read_index(reads.append)  # before the record that opens the term is durable
    node.seams.run()
    assert node.seams.failures == []
    assert reads == [node.driver.committed_index]
    assert result(node.append(b"y")).first_index == node.driver.log.end_index


@pytest.mark.rule("R-08")
def test_a_leader_whose_log_begins_after_its_committed_index_answers_reads_and_changes() -> None:
    group = Group(
        {name: trimmed_log(3, 1, 1, 1, 1) for name in ("n1", "n2", "n3")},
        committed=dict.fromkeys(("n1", "n2", "n3"), 1),
    )
    leader = group["n1"]
    leader.auto_sync = group["n2"].auto_sync = group["n3"].auto_sync = False
    group.elect("n1")
    assert leader.core.committed_index == 2
    leader.core.read_index("r", group.now_ms)
    group.settle()
    assert leader.reads == []
    for member in group.members.values():
        member.sync()
    group.pass_time(500)
    assert leader.reads == [("r", 4)]


def emptied_at_3() -> Group:
    """n3 was reset to begin at 3, and lost the first record by a crash. The log of the others begins at 0."""
    emptied = MemoryLog()
    emptied.cut(Reset(3, log_of(1, 1, 1).end_offset, 1))
    logs = {"n1": log_of(1, 1, 1, 1, 1), "n2": log_of(1, 1, 1, 1, 1), "n3": emptied}
    return Group(logs, committed={"n1": 4, "n2": 4, "n3": 2})


@pytest.mark.rule("R-07")
def test_a_reset_that_a_crash_has_emptied_continues_with_the_next_leader() -> None:
    group = emptied_at_3()
    group.elect("n1", "n1", "n2")
    group.pass_time(5_000)
    member = group["n3"]
    assert (member.log.begin_index, member.log.batches) == (3, group["n1"].log.batches[3:])
    assert member.core.committed_index == group["n1"].core.committed_index
    assert not any(event.data["refused"] for event in member.events if event.kind == "truncate")


@pytest.mark.rule("R-02")
def test_a_second_crash_in_a_reset_by_another_leader_forgets_nothing_of_the_first() -> None:
    """A member of an older group, which lacks what was committed then, gets no vote."""
    group = emptied_at_3()
    member = group["n3"]
    member.auto_sync = False
    group.elect("n1", "n1", "n2")
    group.settle("n1", "n3")
    assert len(member.log.truncations) == 2
    member.restart()
    assert (member.log.end_index, member.core.committed_index) == (NO_INDEX, 2)
    group.take()
    member.step("n2", VoteRequest(member.core.term + 1, 1, 1))
    [vote] = [message for message in group.take("n3") if isinstance(message, VoteAnswer)]
    assert not vote.granted


@pytest.mark.rule("R-02")
def test_a_full_disk_within_a_reset_leaves_known_what_was_committed_before_the_begin() -> None:
    ours = log_of(1, 1, 1, 1, 1)
    ours.trim(3)
    group = Group({"n1": ours, "n2": log_of(1, 1, 1, 1, 1), "n3": log_of(1)})
    member = group["n3"]
    member.full = True
    group.elect("n1", "n1", "n2")
    group.settle("n1", "n3")
    assert (member.log.end_index, member.core.committed_index) == (NO_INDEX, 2)
    member.full = False
    group.pass_time(5_000)
    assert member.log.batches == group["n1"].log.batches


@pytest.mark.rule("D-20")
def test_a_reset_survives_a_crash_before_the_next_checkpoint(tmp_path: Path) -> None:
    node, log = follower_of_n2(tmp_path)
    push_to(node, PushType.APPEND, 1, "n2", 0, log.batch_at(0))
    node.seams.run()
    for _ in range(4):
        log.add(1)
    incarnation = node.driver._core._handler._incarnation  # type: ignore[attr-defined]
    reset = PushRequest(
        1, PushType.TRUNCATE, "n2", 5, 2, incarnation, 3, 0, 4, True, False, (log.batch_at(4),)
    )
    node.driver.deliver("n2", reset)
    node.seams.run()
    assert (node.driver.log.begin_index, node.driver.committed_index) == (4, 4)
    node.restart()
    assert node.seams.failures == []
    assert node.driver.committed_index == 3
    node.driver.deliver("n2", Heartbeat(1, "n2", 5, 1))
    node.tick(20)
    assert node.seams.failures == []


def let_found(group: Group, may_found: bool) -> None:
    for member in group.members.values():
        member.core.may_found = may_found


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("blocked", [("n1",), ("n1", "n2", "n3")])
def test_a_new_group_does_not_begin_while_one_of_its_voters_knows_another_one(
    blocked: tuple[str, ...],
) -> None:
    group = blank_group()
    for name in blocked:
        group[name].core.may_found = False
    group.pass_time(10_000)
    assert not any(member.leads for member in group.members.values())
    assert all(member.core.term == 0 for member in group.members.values())
    let_found(group, True)
    group.pass_time(5_000)
    assert group.leader.core.group.voters == ("n1", "n2", "n3")


@pytest.mark.rule("R-10")
def test_a_voter_alone_waits_until_it_may_begin_the_group() -> None:
    """It would otherwise lead in the instant in which it starts, before any other node could report."""
    group = Group(1)
    member = group.members["n1"] = Member("n1", group, MemoryLog(), HardState(), NO_INDEX)
    member.core.may_found = False
    member.core.start(group.now_ms)
    group.pass_time(5_000)
    assert (member.core.role, member.core.term) == (Role.FOLLOWER, 0)
    member.core.may_found = True
    group.pass_time(3_000)
    assert member.leads


@pytest.mark.rule("R-10")
def test_a_group_that_exists_elects_leaders_whatever_other_nodes_report() -> None:
    group = Group(3)
    group.elect("n1")
    group.settle()
    let_found(group, False)
    group.elect("n2")
    group.settle()
    assert group.leader.name == "n2"
    assert group["n1"].log.end_index > NO_INDEX


@pytest.mark.rule("R-10")
def test_a_new_member_that_may_not_begin_a_group_refuses_its_vote() -> None:
    group = blank_group()
    group["n2"].core.may_found = False
    group["n2"].step("n1", VoteRequest(1, NO_INDEX, 0, pre_vote=True, weighs=True))
    answers = group.take("n2", "n1", VoteAnswer)
    assert [message.granted for message in answers if isinstance(message, VoteAnswer)] == [False]
