"""Changes of members while a voter may have lost what it acknowledged or voted (R-10)."""

import pytest

from app.log.contract import NO_INDEX, ChangeKind, Durability, GroupConfig, Role
from app.raft.config import RaftConfig
from app.raft.elections import Ballot
from app.raft.messages import TimeoutNow, VoteAnswer
from app.raft.state import MemberState, Outbox
from storage.log.hard_state import HardState
from tests.unit.raft.support import Group, Member, MemoryLog
from tests.unit.raft.test_doubt import bring_n2_all_of_n1, elect_n3_in_term_2, wipe


@pytest.mark.rule("R-02", "R-10")
def test_a_removed_leader_is_not_elected_by_a_replaced_disk_alone() -> None:
    """n1 does not know that its removal is committed; n2 went on alone, and its disk is replaced."""
    group = Group(2)
    leader = group.elect("n1")
    group.settle()
    leader.change(ChangeKind.REMOVE, "n1")
    group.settle()
    assert group["n2"].core.group.voters == ("n2",)
    leader.restart()
    wipe(group["n2"])
    group.take()
    group.pass_time(10_000)
    assert leader.core.role is Role.CANDIDATE
    assert not leader.leads


@pytest.mark.rule("R-02", "R-10")
def test_a_candidate_outside_the_group_needs_sound_votes() -> None:
    member = MemberState(
        "n1", GroupConfig(voters=("n2",)), Durability.FSYNC, Role.CANDIDATE, 1, None, NO_INDEX
    )
    ballot = Ballot(member, MemoryLog(), Outbox())
    ballot.open(1)
    ballot.count("n2", VoteAnswer(1, True, sound=False))
    assert not ballot.is_won
    ballot.open(1)
    ballot.count("n2", VoteAnswer(1, True))
    assert ballot.is_won


@pytest.mark.rule("R-02", "R-10")
def test_a_removed_candidate_is_not_elected_by_two_voters_that_are_both_in_doubt() -> None:
    """They may have gone on together. If one of them is sound, it would hold that."""
    member = MemberState(
        "n1", GroupConfig(voters=("n2", "n3")), Durability.FSYNC, Role.CANDIDATE, 1, None, NO_INDEX
    )
    member.former_voters, member.group_index = ("n1", "n2", "n3"), 5
    ballot = Ballot(member, MemoryLog(), Outbox())
    won = []
    for sound in (False, True):
        ballot.open(1)
        ballot.count("n2", VoteAnswer(1, True, sound=sound))
        ballot.count("n3", VoteAnswer(1, True, sound=False))
        won.append(ballot.is_won)
    assert won == [False, True]


@pytest.mark.rule("R-02", "R-10")
def test_a_replaced_disk_that_knows_another_group_still_votes_for_a_sound_candidate() -> None:
    """Its configuration may be newer than the group: every voter of that has granted."""
    group = GroupConfig(voters=("n1", "n2"))
    member = MemberState("n1", group, Durability.FSYNC, Role.CANDIDATE, 1, None, NO_INDEX)
    ballot = Ballot(member, MemoryLog(), Outbox())
    won = []
    for sound in (True, False):
        ballot.open(1)
        ballot.count("n2", VoteAnswer(1, True, sound=sound, voters=("n2", "n3")))
        won.append(ballot.is_won)
    assert won == [False, True]


@pytest.mark.rule("R-01", "R-10")
@pytest.mark.parametrize("configured", [("n2",), ("n1", "n2")])
def test_a_replaced_disk_that_does_not_know_all_voters_does_not_elect_two_leaders(
    monkeypatch: pytest.MonkeyPatch, configured: tuple[str, ...]
) -> None:
    """n2 elects n3 in term 2 and loses its disk. Its configuration is older than the group, and n1, still the
    leader of term 1, has trimmed the record that names it."""
    group = Group(3)
    first = group.elect("n1")
    for _ in range(4):
        first.append()
    elect_n3_in_term_2(group)
    first.log.trim(3)
    monkeypatch.setattr(first, "_follow_membership", lambda: None)  # its state names the group
    group.config = GroupConfig(voters=configured)
    wipe(group["n2"])
    group["n2"].core.electable = False  # it lacks the state of the log
    stale = first.append()
    bring_n2_all_of_n1(group)
    assert first.core.committed_index < stale.last_index


def removed_third() -> tuple[Group, Member, Member]:
    """n2 leads term 1 and appends the removal of n3, which reaches no other voter. n1 helps n3 to lead term
    2, both commit a record, and the disk of n1 is replaced. The leaders of both terms."""
    group = Group(3, raft=RaftConfig(max_push_timeout_ms=100))
    stale = group.elect("n2")
    group.pass_time(500)
    group.take()
    stale.change(ChangeKind.REMOVE, "n3")
    group.take()
    newer = group["n3"]
    newer.step("n2", TimeoutNow(1))
    group.settle("n1", "n3")
    assert (newer.leads, newer.core.term) == (True, 2)
    batch = newer.append()
    group.settle("n1", "n3")
    assert newer.core.committed_index == batch.last_index
    wipe(group["n1"])
    group.take()
    return group, stale, newer


@pytest.mark.rule("R-02", "R-10")
def test_a_voter_that_may_lead_without_its_removal_must_grant_too() -> None:
    """The other two are all voters of the newest group, of which one has forgotten what was committed."""
    group, stale, newer = removed_third()
    stale.restart()
    group.pass_time(10_000, "n1", "n2")
    assert not stale.leads
    group.take()
    group.pass_time(10_000)
    assert group.leader is newer
    assert all(member.core.sound for member in group.members.values())
    assert all(member.log.batches == newer.log.batches for member in group.members.values())


@pytest.mark.rule("R-01", "R-10")
def test_a_voter_that_may_lead_without_its_removal_must_confirm_the_leader_too() -> None:
    group, stale, _ = removed_third()
    for _ in range(45):
        group.now_ms += 20
        stale.tick()
        group["n1"].tick()
        group.settle("n1", "n2")
    assert stale.leads
    assert group["n1"].log.batches == stale.log.batches
    assert not group["n1"].core.sound
    assert stale.core.committed_index < stale.log.end_index


@pytest.mark.rule("R-07", "R-10")
def test_the_removed_one_of_two_voters_is_not_elected_by_the_replaced_disk_of_the_other() -> None:
    """The other one went on alone, and then with a third node."""
    group = Group(2)
    leader = group.elect("n2")
    group.pass_time(500)
    for _ in range(2):  # it becomes a learner first
        if "n1" in leader.core.group.members:
            leader.change(ChangeKind.REMOVE, "n1")
            group.pass_time(500)
    group.join("n3")
    for kind in (ChangeKind.ADD, ChangeKind.PROMOTE):
        leader.change(kind, "n3")
        group.pass_time(500)
    assert leader.core.committed_index == leader.log.end_index
    group["n1"].restart()  # it forgets what others have reported
    wipe(leader)
    group.take()
    group.pass_time(10_000, "n1", "n2")
    assert not group["n1"].leads
    group.pass_time(10_000)
    assert group.leader.name == "n3"
    assert leader.log.batches == group["n3"].log.batches


@pytest.mark.rule("R-10")
def test_a_removed_voter_with_the_longest_log_leads_although_a_disk_is_replaced() -> None:
    """Two voters remain. One is sound: if they had gone on, it would hold more."""
    group = Group(3)
    removed = group.elect("n1")
    group.pass_time(500)
    removed.change(ChangeKind.REMOVE, "n1")
    removed.restart()
    wipe(group["n3"])
    group.take()
    group.pass_time(10_000)
    assert any(member.leads for member in group.members.values())
    assert group.leader.core.group == GroupConfig(voters=("n2", "n3"))
    assert removed.core.role is Role.REMOVED
    assert all(member.core.sound for member in group.members.values())


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("restarts", [False, True])
def test_a_removal_is_committed_although_a_disk_is_replaced_meanwhile(restarts: bool) -> None:
    """The removed voter is there: it grants, and confirms the leader."""
    group = Group(3)
    leader = group.elect("n2")
    group.pass_time(500)
    group.take()
    leader.change(ChangeKind.REMOVE, "n3")
    wipe(group["n1"])
    if restarts:
        leader.restart()
    group.take()
    group.pass_time(10_000)
    assert leader.leads
    assert leader.core.committed_index == leader.log.end_index
    assert group["n1"].core.sound
    assert group["n3"].core.role is Role.REMOVED


@pytest.mark.rule("R-01", "R-10")
def test_a_replaced_disk_of_two_voters_that_lacks_the_record_of_the_third_asks_for_a_confirmation() -> None:
    """n1 helps n3, which n2 has just made the third voter, to lead term 2, and its disk is replaced. What n2
    sends first, still the leader of term 1, names two voters, and is all that n2 has committed."""
    group = Group(2, raft=RaftConfig(max_push_timeout_ms=100, push_max_bytes=1))
    stale = group.elect("n2")
    group.settle()
    group.join("n3")
    stale.change(ChangeKind.ADD, "n3")
    group.pass_time(500)
    group.take()
    stale.change(ChangeKind.PROMOTE, "n3")
    promotion = stale.log.end_index
    group.deliver("n2")
    group.take()
    group["n3"].core._member.former_voters = ()  # of an earlier version
    group["n3"].step("n2", TimeoutNow(1))
    group.settle("n1", "n3")
    assert (group["n3"].leads, group["n3"].core.term) == (True, 2)
    wipe(group["n1"])
    group.take()
    for _ in range(45):
        group.now_ms += 20
        stale.tick()
        group["n1"].tick()
        for _ in range(20):
            for push in group.pushes("n1"):
                is_late = bool(push.batches) and push.batches[-1].last_index == promotion
                if not is_late or not group["n1"].log.batches:
                    group.send("n2", "n1", push)
            group.deliver("n2", "n1")
            group.deliver("n1", "n2")
    assert stale.leads
    assert group["n1"].log.end_index == promotion - 1 == stale.core.committed_index
    assert not group["n1"].core.sound


@pytest.mark.rule("R-02", "R-10")
@pytest.mark.parametrize(("count", "others"), [(3, ("n3",)), (5, ("n4", "n5"))])
def test_a_replaced_disk_whose_configuration_names_fewer_voters_is_not_elected_before_the_first_record(
    count: int, others: tuple[str, ...]
) -> None:
    """n1 and the others have committed the first records. The rest holds none, and grants: of the three or
    two voters that n1 knows, all, or a majority of sound ones."""
    group = Group(count)
    whole, leader = group.config, group.elect("n1", "n1", *others)
    leader.append()
    group.settle("n1", *others)
    assert leader.core.committed_index == 1
    known = tuple(name for name in whole.voters if name not in others)
    group.config = GroupConfig(voters=known)
    wipe(leader)
    group.config = whole
    group.take()
    group.pass_time(10_000, *known)
    assert not any(group[name].leads for name in known)
    group.pass_time(10_000)
    assert group.leader.name in others
    assert all(member.log.batches == group.leader.log.batches for member in group.members.values())


@pytest.mark.rule("R-01", "R-10")
def test_a_member_that_has_lost_the_group_of_its_log_does_not_campaign() -> None:
    """The configuration names n1 and n2 now: they would elect n1 in the term in which the others elect n3."""
    group = Group(5, hard_states={f"n{number}": HardState(1) for number in range(1, 6)})
    whole, member, others = group.config, group["n1"], ("n3", "n4", "n5")
    group.config = GroupConfig(voters=("n1", "n2"))
    member.restart(sound=False, knows_group=False)
    group.config = whole
    group.pass_time(5_000, "n1", "n2")
    assert not member.leads
    group.elect("n3", *others)
    group.settle(*others)
    assert group["n3"].core.committed_index == 0
    group.pass_time(5_000)
    assert (member.core.group, member.core.sound, member.core.committed_index) == (whole, True, 0)
    group.elect("n1")
