"""Members that may have lost what they acknowledged or voted: what counts of them, and how the doubt ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.log.contract import NO_INDEX, Durability, Role
from app.raft.doubt import Doubt
from app.raft.elections import Ballot
from app.raft.messages import HeartbeatAnswer, TimeoutNow, VoteAnswer, VoteRequest
from app.raft.reads import Confirmation
from app.raft.state import MemberState, Outbox
from storage.log.hard_state import HardState
from tests.unit.raft.support import Group, Member, MemoryLog, log_of


def wipe(member: Member) -> None:
    """The member's disk is replaced by an empty one."""
    member.log = MemoryLog()
    member.saved = [HardState()]
    member.restart(sound=False, knows_vote=False)


def blank_group(count: int = 3) -> Group:
    """Members whose folders are empty: none of them can know whether there was a log before."""
    group = Group(count)
    for member in group.members.values():
        wipe(member)
    return group


@pytest.mark.rule("R-02")
@pytest.mark.parametrize("count", [2, 3, 5])
def test_a_fresh_group_elects_a_leader_once_every_voter_is_there(count: int) -> None:
    group = blank_group(count)
    names = tuple(group.members)
    group.pass_time(5_000, *names[:-1])
    assert not any(member.leads for member in group.members.values())
    assert all(member.core.term == 0 for member in group.members.values())
    group.pass_time(3_000)
    leader = group.leader
    leader.append()
    group.pass_time(100)
    assert leader.core.committed_index == leader.log.end_index
    assert all(member.core.sound for member in group.members.values())


@pytest.mark.rule("R-02")
def test_a_replaced_disk_neither_votes_nor_counts_until_it_holds_what_was_committed() -> None:
    """n1 and n2 hold what is committed; n2's disk is replaced while n1 is away, and n3 comes back."""
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    for _ in range(3):
        leader.append()
        group.settle("n1", "n2")
    committed = leader.core.committed_index
    assert committed == 3
    wipe(group["n2"])
    group.take()
    group.pass_time(10_000, "n2", "n3")
    assert not group["n2"].leads
    assert not group["n3"].leads
    group.pass_time(10_000)
    assert group.leader.name == "n1"
    group.leader.append()
    group.pass_time(200)
    assert group["n2"].core.sound
    assert all(member.log.batches == leader.log.batches for member in group.members.values())


@pytest.mark.rule("R-02")
def test_two_replaced_disks_get_everything_from_the_third() -> None:
    group = Group(3)
    leader = group.elect("n3")
    leader.append()
    group.pass_time(500)
    wipe(group["n1"])
    wipe(group["n2"])
    leader.restart()
    group.take()
    group.pass_time(10_000, "n1", "n2")  # they alone begin no other log
    assert not group["n1"].leads
    assert not group["n2"].leads
    group.pass_time(5_000)
    assert group.leader.name == "n3"
    assert group["n1"].log.batches == group["n2"].log.batches == leader.log.batches
    assert group["n1"].core.sound
    assert group["n2"].core.sound


@pytest.mark.rule("D-24")
def test_the_acknowledgement_of_an_unsound_voter_does_not_count() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(500)
    wipe(group["n2"])
    group.take()
    group.pass_time(300, "n1", "n2")  # n3 is away: no node can confirm the leader to n2
    batch = leader.append()
    group.pass_time(300, "n1", "n2")
    assert group["n2"].log.end_index == batch.last_index
    assert leader.core.watermarks()[1]["n2"] == batch.last_index
    assert leader.core.committed_index < batch.last_index
    group.pass_time(1_500)
    assert leader.core.committed_index == batch.last_index
    assert group["n2"].core.sound


@pytest.mark.rule("R-08")
def test_an_unsound_voter_confirms_no_read() -> None:
    """It may have helped to elect a node in a newer term, and have forgotten."""
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(500)
    wipe(group["n2"])
    group.take()
    group.pass_time(200, "n1", "n2")
    leader.core.read_index("r", group.now_ms)
    group.pass_time(200, "n1", "n2")
    assert leader.reads == []
    group.pass_time(500)
    assert [token for token, index in leader.reads if index is not None] == ["r"]


def elect_n3_in_term_2(group: Group) -> None:
    """Let n2 elect n3. n1 does not know it, and still leads term 1."""
    group.pass_time(500)
    group["n3"].step("n1", TimeoutNow(1))
    group.settle("n2", "n3")
    assert (group["n3"].leads, group["n3"].core.term) == (True, 2)
    group.take()


def bring_n2_all_of_n1(group: Group) -> None:
    """Let n1 bring n2, whose disk was lost, all that it has. n2 stays in doubt."""
    for _ in range(40):
        group.now_ms += 20
        group["n1"].tick()
        group["n2"].tick()
        group.settle("n1", "n2")
    assert group["n2"].log.batches == group["n1"].log.batches
    assert not group["n2"].core.sound


@pytest.mark.rule("R-01")
def test_a_lost_vote_in_a_newer_term_does_not_elect_two_leaders() -> None:
    """n2 elects n3 in term 2 and loses its disk; n1, still the leader of term 1, brings it all it has."""
    group = Group(3)
    first = group.elect("n1")
    elect_n3_in_term_2(group)
    wipe(group["n2"])
    first.append()
    bring_n2_all_of_n1(group)
    group.take()
    group.pass_time(20_000, "n1", "n2")
    assert not [m.name for m in (first, group["n2"]) if m.leads and m.core.term >= 2]
    group.pass_time(5_000)
    assert all(member.core.sound for member in group.members.values())
    assert group.leader.core.term >= 2


@pytest.mark.rule("R-02")
def test_two_voters_serve_again_though_one_may_have_lost_its_end() -> None:
    group = Group({"n1": log_of(1, 1, 1), "n2": log_of(1, 1)}, committed={"n1": 2, "n2": 1})
    group["n2"].restart(sound=False)
    group.pass_time(5_000)
    assert group.leader.name == "n1"
    assert group["n2"].core.sound
    assert group["n2"].log.batches == group["n1"].log.batches


@pytest.mark.rule("R-02")
def test_all_voters_may_have_lost_their_end_and_serve_again_with_the_longest_log() -> None:
    """A common power failure with `replicated`."""
    group = Group({"n1": log_of(1, 1), "n2": log_of(1, 1, 1), "n3": log_of(1)})
    for member in group.members.values():
        member.restart(sound=False)
    group.take()
    group.pass_time(5_000, "n1", "n3")
    assert not any(member.leads for member in group.members.values())
    group.pass_time(5_000)
    assert group.leader.log.terms[:3] == [1, 1, 1]
    assert all(member.core.sound for member in group.members.values())


@pytest.mark.rule("R-02")
def test_an_unsound_member_grants_nothing_to_a_candidate_that_would_count_it() -> None:
    """A candidate of an older version does not know that votes may be unsound."""
    group = Group(3)
    member = group["n2"]
    member.restart(sound=False)
    group.take()
    member.step("n1", VoteRequest(1, 5, 1))
    assert [answer.granted for answer in group.take(source="n2")] == [False]  # type: ignore[union-attr]
    member.step("n1", VoteRequest(2, 5, 1, weighs=True))
    [answer] = group.take(source="n2")
    assert (answer.granted, answer.sound) == (True, False)  # type: ignore[union-attr]


def test_a_ballot_is_won_by_sound_votes_or_by_all() -> None:
    group = Group(3)
    member = MemberState("n1", group.config, Durability.FSYNC, Role.CANDIDATE, 1, None, NO_INDEX)
    ballot = Ballot(member, MemoryLog(), Outbox())
    ballot.open(1)
    ballot.count("n2", VoteAnswer(1, True, sound=False))
    assert not ballot.is_won
    ballot.count("n3", VoteAnswer(1, True, sound=False))
    assert ballot.is_won
    ballot.open(1)
    ballot.count("n2", VoteAnswer(1, True))
    assert ballot.is_won


@pytest.mark.rule("R-01", "R-03")
def test_a_late_answer_to_the_pre_vote_is_not_a_vote() -> None:
    """Both are about the same term, but a granted pre-vote is not stored as a vote."""
    group = Group(3)
    member = MemberState("n1", group.config, Durability.FSYNC, Role.CANDIDATE, 1, None, NO_INDEX)
    ballot = Ballot(member, MemoryLog(), Outbox())
    ballot.open(1, pre_vote=True)
    ballot.open(1)
    ballot.count("n2", VoteAnswer(1, True, pre_vote=True))
    assert not ballot.is_won
    ballot.count("n2", VoteAnswer(1, True))
    assert ballot.is_won


@pytest.mark.rule("R-02")
def test_a_confirmation_of_an_older_term_does_not_end_the_doubt() -> None:
    """The member may have helped to elect a leader between the two terms."""
    reads: list[Confirmation] = []
    group = Group(3)
    member = MemberState("n2", group.config, Durability.FSYNC, Role.FOLLOWER, 5, None, NO_INDEX, "n1")
    handler: Any = SimpleNamespace(holds_all_committed=True)
    asking: Any = SimpleNamespace(ask=lambda reader, _now_ms: reads.append(reader))
    doubt = Doubt(member, handler, asking, knows_vote=False)
    doubt.tick(0)
    reads[0].give(3)
    assert doubt.is_over
    member.term = 7
    assert not doubt.is_over
    doubt.tick(1)
    assert not doubt.is_over  # the new leader has not answered yet
    reads[1].give(4)
    assert doubt.is_over


@pytest.mark.rule("R-04")
@pytest.mark.parametrize("count", [3, 5])
def test_a_majority_of_replaced_disks_counts_again_once_every_voter_is_there(count: int) -> None:
    """While a voter is away nothing confirms the leader to them: it stands down, and all elect one later."""
    group = Group(count)
    leader = group.elect("n1")
    leader.append()
    group.pass_time(300)
    for number in range(count // 2 + 1):
        wipe(group[f"n{count - number}"])
    group.take()
    if count > 3:
        group.pass_time(8_000, *(name for name in group.members if name != "n2"))
        assert not any(member.leads for member in group.members.values())
    group.pass_time(8_000)
    leader = group.leader
    batch = leader.append()
    group.pass_time(500)
    assert leader.core.committed_index == batch.last_index
    assert all(member.core.sound for member in group.members.values())


@pytest.mark.rule("R-04")
def test_one_replaced_disk_does_not_disturb_the_leader() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(300)
    wipe(group["n3"])
    group.take()
    group.pass_time(5_000)
    assert (leader.leads, leader.core.term) == (True, 1)
    assert group["n3"].core.sound


@pytest.mark.rule("R-02")
def test_a_late_heartbeat_answer_of_an_earlier_incarnation_makes_no_acknowledgement_count() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(300)
    wipe(group["n3"])
    group.take()
    for _ in range(60):  # n3 gets the log, and no leader is confirmed to it
        group.wait(20)
        leader.tick()
        group.settle("n1", "n3")
        group.take(target="n2")
        leader.core._peers.heard_ms["n2"] = group.now_ms
    batch = leader.append()
    group.settle("n1", "n3")
    assert not group["n3"].core.sound
    assert group["n3"].log.end_index == batch.last_index
    leader.step("n3", HeartbeatAnswer(leader.core.term, 1))
    assert leader.core.committed_index < batch.last_index


@pytest.mark.rule("R-01", "R-02")
def test_a_vote_for_a_candidate_of_an_older_term_does_not_end_the_doubt() -> None:
    """n2 votes for n1 in term 2, and n1 stalls. n3 helps n2 to lead term 3, and loses its disk. Then n1 wakes
    up and gets both votes of term 2, that of n3 too: it has forgotten term 3."""
    group = Group(3)
    stalled = group.elect("n1")
    group.pass_time(300)
    stalled.restart()
    group.take()
    group.now_ms += 5_000
    stalled.tick()
    group.take()
    for voter in ("n2", "n3"):
        stalled.step(voter, VoteAnswer(2, True, pre_vote=True))
    requests = {voter: group.take(target=voter)[0] for voter in ("n2", "n3")}
    group["n2"].step("n1", requests["n2"])
    [vote] = group.take(source="n2", target="n1")
    newer = group["n2"]
    group.now_ms += 5_000
    newer.tick()
    group.settle("n2", "n3")
    assert (newer.leads, newer.core.term) == (True, 3)
    batch = newer.append()
    group.settle("n2", "n3")
    assert newer.core.committed_index == batch.last_index
    wipe(group["n3"])
    group.take()
    stalled.core._timer.due_ms = group.now_ms + 1  # its disk took long to save the vote
    group["n3"].step("n1", requests["n3"])
    stalled.step("n2", vote)
    group.settle("n1", "n3")
    assert (stalled.leads, stalled.core.term) == (True, 2)
    stale = stalled.append()
    for _ in range(40):
        group.now_ms += 20
        stalled.tick()
        group["n3"].tick()
        group.settle("n1", "n3")
    assert not group["n3"].core.sound
    assert stalled.core.committed_index < stale.last_index
    group.take()
    group.pass_time(8_000)
    assert group.leader.log.holds(batch)
    assert all(member.core.sound for member in group.members.values())


@pytest.mark.rule("R-01", "R-04")
def test_a_member_in_doubt_asks_each_leader_until_it_is_confirmed() -> None:
    """One question at a time; a term that is confirmed needs no other."""
    member = MemberState(
        "n3", Group(3).config, Durability.FSYNC, Role.FOLLOWER, term=2, voted_for=None, committed_index=0
    )
    asked: list[Confirmation] = []
    reads: Any = SimpleNamespace(ask=lambda confirmation, _: asked.append(confirmation))
    handler: Any = SimpleNamespace(holds_all_committed=True)
    doubt = Doubt(member, handler, reads, knows_vote=False)

    def questions() -> int:
        asked.clear()
        for _ in range(3):
            doubt.tick(0)
        return len(asked)

    assert questions() == 0  # there is no leader
    member.leader_id = "n1"
    assert questions() == 1
    doubt._confirmation.give(None)
    assert (questions(), doubt.trusts_leader) == (1, False)  # refused: again
    doubt._confirmation.give(7)
    assert (questions(), doubt.trusts_leader, doubt.is_over) == (0, True, True)
    member.term = 3
    assert not doubt.trusts_leader
    assert questions() == 1


@pytest.mark.rule("R-04")
def test_a_doubt_of_an_earlier_term_does_not_end_the_next_one_at_once() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(500)
    for name in ("n2", "n3"):
        leader.step(name, HeartbeatAnswer(1, 1, sound=False, trusts=False))
    leader.core._stand_down(group.now_ms)
    group.now_ms += 5_000
    leader.core._campaign(group.now_ms)
    leader.run()
    group.deliver(kind=VoteRequest)
    group.deliver(kind=VoteAnswer)
    assert leader.leads
    leader.tick()  # before any answer of the new term
    assert leader.leads


@pytest.mark.rule("R-01", "R-02")
def test_a_vote_that_comes_late_does_not_count() -> None:
    """n1 votes for n3 in term 2, and its disk is replaced. Once it is sound again, a member of term 1, the
    vote reaches n3, and n4 votes for n3. Then n1 and n2 vote for n5 in the same term."""
    group = Group(5)
    group.elect("n2")
    group.pass_time(500)
    late = group["n3"]
    late.step("n2", TimeoutNow(1))
    requests = {voter: group.take("n3", voter)[0] for voter in ("n1", "n2", "n4", "n5")}
    group["n1"].step("n3", requests["n1"])
    [vote] = group.take("n1", "n3")
    wipe(group["n1"])
    group.take()
    group.pass_time(1_000, "n1", "n2", "n4", "n5")
    group.take()
    assert (group["n1"].core.sound, group["n2"].leads, group["n2"].core.term) == (True, True, 1)
    group["n4"].step("n3", requests["n4"])
    late.step("n1", vote)
    group.deliver("n4", "n3")
    group["n5"].step("n2", TimeoutNow(1))
    group.settle("n1", "n2", "n5")
    assert (group["n5"].leads, group["n5"].core.term) == (True, 2)
    assert not late.leads
