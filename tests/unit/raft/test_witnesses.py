"""The voters of the group before must hold and elect what follows a change of the members (R-10)."""

import pytest

from app.log.contract import ChangeKind, GroupConfig
from app.raft.config import RaftConfig
from app.raft.messages import TimeoutNow
from tests.unit.raft.support import Group, Member
from tests.unit.raft.test_doubt import wipe


def promoted_third() -> tuple[Group, Member, int]:
    """n2 leads two voters and has made n3 the third; n1 has not heard of that. The index of the record."""
    group = Group(2)
    leader = group.elect("n2")
    group.settle()
    group.join("n3")
    leader.change(ChangeKind.ADD, "n3")
    group.pass_time(500)
    leader.change(ChangeKind.PROMOTE, "n3")
    promotion = leader.log.end_index
    group.settle("n2", "n3")
    assert group["n3"].log.end_index == promotion
    return group, leader, promotion


@pytest.mark.rule("R-02", "R-10")
def test_two_voters_both_know_the_third_before_it_helps_to_commit() -> None:
    """Otherwise a replaced disk and the voter that knows of two would elect each other without the third."""
    group, leader, promotion = promoted_third()
    leader.append()
    group.settle("n2", "n3")
    assert leader.core.committed_index == promotion - 1
    group.settle()
    group.pass_time(100)
    assert leader.core.committed_index == leader.log.end_index
    leader.append()
    group.settle("n2", "n3")
    assert leader.core.committed_index == leader.log.end_index
    wipe(group["n2"])
    group.take()
    group.pass_time(10_000, "n1", "n2")
    assert not group["n1"].leads
    group.pass_time(10_000)
    assert group.leader.name == "n3"


@pytest.mark.rule("R-02", "R-10")
def test_a_new_leader_of_three_also_waits_for_both_former_voters() -> None:
    group, _, promotion = promoted_third()
    for member in group.members.values():
        member.restart(committed=min(promotion - 1, member.log.end_index))
    group.take()
    group.wait(2_000)
    group["n3"].tick()
    for _ in range(4):  # pre-votes and votes, asked and given
        group.deliver()
    assert group["n3"].leads
    group.settle("n2", "n3")
    assert group["n3"].core.committed_index == promotion - 1
    group.pass_time(500)
    assert group["n3"].core.committed_index == group["n3"].log.end_index > promotion


@pytest.mark.rule("R-02", "R-10")
@pytest.mark.parametrize("lost", ["n1", "n3"])
@pytest.mark.parametrize("restarts", [False, True])
def test_the_third_voter_counts_although_a_disk_is_replaced_meanwhile(lost: str, restarts: bool) -> None:
    group, leader, promotion = promoted_third()
    wipe(group[lost])
    if restarts:
        leader.restart(committed=promotion - 1)
    group.take()
    group.pass_time(20_000)
    group.leader.append()
    group.pass_time(1_000)
    assert group.leader.core.committed_index == group.leader.log.end_index
    assert all(member.core.sound for member in group.members.values())


@pytest.mark.rule("R-07", "R-10")
def test_both_of_two_voters_hold_earlier_records_before_the_third_helps_to_commit_them() -> None:
    """Otherwise the leader and the third one commit it, and the two elect each other without it when the disk
    of the leader is replaced."""
    group = Group(2)
    leader = group.elect("n2")
    group.settle()
    group.join("n3")
    leader.change(ChangeKind.ADD, "n3")
    group.pass_time(1_000)
    committed_index = leader.core.committed_index
    leader.append()
    group.pass_time(200, "n2", "n3")
    leader.change(ChangeKind.PROMOTE, "n3")
    group.pass_time(300, "n2", "n3")
    assert group["n3"].log.end_index == leader.log.end_index > committed_index + 1
    assert leader.core.committed_index == committed_index
    group.pass_time(3_000)
    assert leader.core.committed_index == leader.log.end_index


@pytest.mark.rule("R-01", "R-10")
def test_both_of_two_voters_elect_the_leader_whose_log_alone_names_the_third() -> None:
    """Otherwise n2 elects n3, and, after its disk is replaced, n1 in the same term: both voters that n1 knows
    vote for it."""
    group, _, _ = promoted_third()
    third = group["n3"]
    third.step("n2", TimeoutNow(1))
    group.settle("n2", "n3")
    assert (third.leads, third.core.term) == (False, 2)
    wipe(group["n2"])
    group.take()
    group.pass_time(10_000, "n1", "n2")
    assert (group["n1"].leads, group["n1"].core.term) == (True, 2)
    group.pass_time(10_000)
    assert all(member.log.batches == group.leader.log.batches for member in group.members.values())


@pytest.mark.rule("R-10")
def test_two_voters_that_were_three_may_become_three_again() -> None:
    group, _, _ = promoted_third()
    group.pass_time(3_000)
    leader = group.leader
    leader.change(ChangeKind.REMOVE, "n1" if leader.name != "n1" else "n3")
    group.pass_time(1_000)
    group.join("n4")
    for kind in (ChangeKind.ADD, ChangeKind.PROMOTE):
        leader.change(kind, "n4")
        group.pass_time(1_000)
    assert len(leader.core.group.voters) == 3
    assert leader.core.committed_index == leader.log.end_index


@pytest.mark.rule("R-02", "R-10")
def test_a_replaced_disk_that_must_witness_the_third_voter_ends_the_wait() -> None:
    """n1 is lost before it holds the record: an empty folder under its name lets the group go on."""
    group, leader, promotion = promoted_third()
    group.take()
    group.pass_time(5_000, "n2", "n3")
    assert leader.core.committed_index == promotion - 1
    wipe(group["n1"])
    group.take()
    group.pass_time(5_000)
    assert group["n1"].core.sound
    assert group.leader.core.committed_index == group.leader.log.end_index >= promotion


@pytest.mark.rule("R-04", "R-10")
@pytest.mark.parametrize("removes", [True, False])
def test_a_leader_stands_down_without_the_voter_that_must_hold_its_change(removes: bool) -> None:
    """It commits nothing, although it is a majority of the newest group, or hears one."""
    group = Group(2)
    leader = group.elect("n1")
    group.pass_time(500)
    if removes:
        leader.change(ChangeKind.REMOVE, "n2")
    else:
        group.join("n3")
        leader.change(ChangeKind.ADD, "n3")
        group.pass_time(500)
        leader.change(ChangeKind.PROMOTE, "n3")
    group.take()
    others = [name for name in group.members if name != "n2"]
    group.pass_time(3_000, *others)
    assert not any(group[name].leads for name in others)
    group.take()
    group.pass_time(5_000)
    assert group.leader.core.committed_index == group.leader.log.end_index


@pytest.mark.rule("R-10")
def test_the_removal_of_one_of_two_voters_is_committed_once_both_hold_it() -> None:
    group = Group(2)
    leader = group.elect("n2")
    group.pass_time(500)
    leader.change(ChangeKind.REMOVE, "n1")
    assert leader.core.group == GroupConfig(voters=("n2",), learners=("n1",))
    group.take()
    group.pass_time(500, "n2")
    assert leader.core.committed_index < leader.log.end_index
    leader.restart(committed=leader.core.committed_index)
    group.pass_time(5_000, "n2")
    assert not leader.leads
    group.take()
    group.pass_time(5_000)
    assert group.leader is leader
    assert leader.core.committed_index == leader.log.end_index
    leader.change(ChangeKind.REMOVE, "n1")
    leader.restart(committed=0)  # the record after it shows that it was committed
    assert leader.leads


def promoted_fifth() -> tuple[Group, Member, int]:
    """n2 leads four voters and has made n5 the fifth, which n5 alone has heard. The index of the record.
    A push carries one batch."""
    group = Group(4, raft=RaftConfig(push_max_bytes=1))
    leader = group.elect("n2")
    group.settle()
    group.join("n5")
    leader.change(ChangeKind.ADD, "n5")
    group.pass_time(500)
    leader.change(ChangeKind.PROMOTE, "n5")
    promotion = leader.log.end_index
    group.settle("n2", "n5")
    assert group["n5"].log.end_index == promotion
    return group, leader, promotion


@pytest.mark.rule("R-02", "R-10")
def test_three_of_four_voters_hold_the_fifth_before_it_helps_to_commit() -> None:
    """Otherwise two of the four and the fifth commit. When the disks of the two are replaced, the four elect
    one that does not know the fifth, without its record."""
    group, leader, promotion = promoted_fifth()
    leader.append()
    group.settle("n2", "n3", "n5")
    assert leader.core.committed_index == promotion - 1
    group.settle("n2", "n3", "n4", "n5")
    group.pass_time(100, "n2", "n3", "n4", "n5")
    assert leader.core.committed_index == leader.log.end_index
    for lost in ("n2", "n3"):
        wipe(group[lost])
    group.take()
    group.pass_time(10_000, "n1", "n2", "n3", "n4")
    assert not any(group[name].leads for name in ("n1", "n2", "n3"))
    group.take()
    group.pass_time(10_000)
    assert group.leader.log.end_index > promotion
    assert all(member.log.batches == group.leader.log.batches for member in group.members.values())


def stand(group: Group, name: str, *voters: str) -> None:
    """The member is elected by these voters, in a newer term than any; what it sends after that is lost."""
    newest, member = max(each.core.term for each in group.members.values()), group[name]
    group.take()
    while not (member.leads and member.core.term > newest):
        group.wait(2_000)
        member.tick()
        for _ in range(4):  # pre-votes and votes, asked and given
            for voter in voters:
                group.deliver(name, voter)
            group.deliver(target=name)
    group.take()


@pytest.mark.rule("R-02", "R-05", "R-10")
def test_three_of_four_voters_hold_a_record_of_the_term_that_commits_the_fifth() -> None:
    """n4 receives the promotion from the leader of term 3, but no record of that term. Meanwhile n1 has led
    term 2 without the promotion. When the disks of n2 and n3 are replaced, n4 elects n1 for its newer log."""
    group, _, promotion = promoted_fifth()
    stand(group, "n1", "n3", "n4")
    stand(group, "n2", "n3", "n4", "n5")
    leader = group["n2"]
    assert [each.terms[promotion:] for each in (group["n1"].log, leader.log)] == [[2], [1, 3]]
    for _ in range(300):
        group.wait(20)
        leader.tick()
        group.take(target="n1")
        for push in group.pushes("n4"):
            if all(batch.term < 3 for batch in push.batches):
                group["n4"].step("n2", push)
        group.deliver()
    assert group["n4"].log.end_index == promotion < group["n3"].log.end_index == leader.log.end_index
    assert leader.leads
    assert leader.core.committed_index < promotion
    group.pass_time(1_000)
    assert group.leader.core.committed_index == group.leader.log.end_index > promotion


@pytest.mark.rule("R-01", "R-10")
def test_three_of_four_voters_elect_the_leader_whose_log_names_the_fifth() -> None:
    """Otherwise n2 and n3 elect n5. When their disks are replaced, they help to elect n1 in the same term."""
    group, _, _ = promoted_fifth()
    fifth = group["n5"]
    group.settle("n2", "n3", "n5")
    group.take()
    fifth.step("n2", TimeoutNow(1))
    group.settle("n2", "n3", "n5")
    assert (fifth.leads, fifth.core.term) == (False, 2)
    group.settle("n2", "n3", "n4", "n5")
    group.pass_time(5_000, "n2", "n3", "n4", "n5")
    assert group.leader.log.end_index == group.leader.core.committed_index


@pytest.mark.rule("R-04", "R-10")
def test_a_leader_of_five_stands_down_without_a_majority_of_the_former_four() -> None:
    group, leader, promotion = promoted_fifth()
    group.take()
    group.pass_time(5_000, "n2", "n3", "n5")
    assert not any(group[name].leads for name in ("n2", "n3", "n5"))
    assert leader.core.committed_index < promotion
    group.take()
    group.pass_time(5_000)
    assert group.leader.core.committed_index == group.leader.log.end_index > promotion


@pytest.mark.rule("R-02", "R-10")
@pytest.mark.parametrize("lost", [("n1", "n3"), ("n1", "n5"), ("n3", "n4")])
def test_the_fifth_voter_counts_although_two_disks_are_replaced_meanwhile(lost: tuple[str, ...]) -> None:
    group, _, promotion = promoted_fifth()
    for name in lost:
        wipe(group[name])
    group.take()
    group.pass_time(20_000)
    group.leader.append()
    group.pass_time(1_000)
    assert group.leader.core.committed_index == group.leader.log.end_index > promotion
    assert all(member.core.sound for member in group.members.values())


@pytest.mark.rule("R-02", "R-10")
def test_a_former_voter_in_doubt_helps_to_elect_and_holds_nothing() -> None:
    """n4 is away, and the disk of n1 was replaced. The leader needs the vote of n1, but commits nothing
    before n1 is sound."""
    group, _, promotion = promoted_fifth()
    names = ("n1", "n2", "n3", "n5")
    group.settle("n2", "n3", "n5")
    wipe(group["n1"])
    group["n2"].restart(committed=promotion - 1)
    group.take()
    group.wait(3_000)
    leader = group.elect("n2", *names)
    assert group["n1"].log.end_index == leader.log.end_index > promotion
    assert (group["n1"].core.sound, leader.core.committed_index) == (False, promotion - 1)
    group.pass_time(1_000, *names)
    assert (group["n1"].core.sound, leader.core.committed_index) == (True, leader.log.end_index)


@pytest.mark.rule("R-01", "R-10")
def test_a_former_voter_that_refuses_does_not_help_to_elect() -> None:
    group, _, _ = promoted_fifth()
    group.settle("n2", "n3", "n5")
    group["n1"].step("n2", TimeoutNow(1))
    group.take()
    group["n5"].step("n2", TimeoutNow(1))
    group.settle("n1", "n2", "n3", "n5")
    assert (group["n5"].leads, group["n5"].core.term, group["n1"].core.term) == (False, 2, 2)


@pytest.mark.rule("R-10")
def test_a_majority_of_five_commits_once_three_of_the_former_four_hold_the_promotion() -> None:
    group, leader, promotion = promoted_fifth()
    leader.append()
    group.settle("n2", "n3", "n5")
    assert leader.core.committed_index == promotion - 1
    for push in group.pushes("n4"):
        if push.batches and push.batches[-1].last_index <= promotion:
            group["n4"].step("n2", push)
    assert group["n4"].log.end_index == promotion
    group.settle("n2", "n4")
    assert leader.core.committed_index == leader.log.end_index > promotion


@pytest.mark.rule("R-04", "R-10")
def test_a_leader_of_five_stays_with_three_of_the_former_four() -> None:
    """n4 is away. The disk of n1 is full, so nothing is committed."""
    group, leader, promotion = promoted_fifth()
    group["n1"].full = True
    group.take()
    group.pass_time(5_000, "n1", "n2", "n3", "n5")
    assert (leader.leads, leader.core.term, leader.core.committed_index) == (True, 1, promotion - 1)
