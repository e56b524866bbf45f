"""Terms, votes and leadership, rule by rule."""

import pytest

from app.log.contract import NO_INDEX, Durability, Reset, Role
from app.raft.messages import Heartbeat, HeartbeatAnswer, PushRequest, VoteAnswer, VoteRequest
from storage.log.hard_state import HardState
from tests.unit.raft.support import Group, MemoryLog, log_of


def vote_answers(group: Group, voter: str) -> list[VoteAnswer]:
    return [message for message in group.take(source=voter) if isinstance(message, VoteAnswer)]


@pytest.mark.rule("R-01")
def test_a_vote_is_on_disk_before_its_answer_leaves() -> None:
    group = Group(3)
    member = group["n2"]
    member.step("n1", VoteRequest(4, NO_INDEX, 0))
    ready = next(
        ready for ready in member.readies if any(isinstance(m, VoteAnswer) for _, m in ready.messages)
    )
    assert ready.hard_state == HardState(4, "n1")
    assert [answer.granted for answer in vote_answers(group, "n2")] == [True]


@pytest.mark.rule("R-01")
def test_one_vote_a_term_also_over_a_restart() -> None:
    group = Group(3)
    group["n2"].step("n1", VoteRequest(4, NO_INDEX, 0))
    group["n2"].step("n3", VoteRequest(4, NO_INDEX, 0))
    group["n2"].step("n1", VoteRequest(4, NO_INDEX, 0))
    assert [answer.granted for answer in vote_answers(group, "n2")] == [True, False, True]
    group["n2"].restart()
    group["n2"].step("n3", VoteRequest(4, NO_INDEX, 0))
    assert [answer.granted for answer in vote_answers(group, "n2")] == [False]


@pytest.mark.rule("R-01")
def test_a_candidate_saves_its_own_vote_before_it_asks() -> None:
    group = Group(3)
    member = group["n1"]
    group.wait(1_000)
    member.tick()
    group.deliver()
    group.deliver()
    asking = next(
        ready
        for ready in member.readies
        if any(isinstance(m, VoteRequest) and not m.pre_vote for _, m in ready.messages)
    )
    assert asking.hard_state == HardState(1, "n1")


@pytest.mark.rule("R-01")
def test_a_candidate_with_a_slow_disk_repeats_requests_that_may_have_been_lost() -> None:
    """It waits as long for votes as its own disk took: the other disks may be as slow."""
    group = Group(5)
    candidate = group["n1"]
    group.wait(1_000)
    candidate.tick()
    group.deliver()
    candidate.save_ms = 4_000
    group.deliver()
    assert len(group.take(kind=VoteRequest)) == 4  # lost
    candidate.step("n2", VoteAnswer(1, False, False))
    for _ in range(3):
        group.wait(group.raft.election_timeout_ms[1])
        assert candidate.core.due_ms <= group.now_ms
        candidate.tick()
        asked = [target for _, target, message in group.sent if isinstance(message, VoteRequest)]
        assert asked == ["n3", "n4", "n5"]
        assert {message.term for message in group.take() if not message.pre_vote} == {1}
    candidate.step("n3", VoteAnswer(1, True, False))
    candidate.step("n4", VoteAnswer(1, True, False))
    assert candidate.leads


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("voters", [1, 3, 5])
def test_a_majority_elects_exactly_one_leader(voters: int) -> None:
    group = Group(voters)
    group.pass_time(3_000)
    leaders = [member for member in group.members.values() if member.leads]
    assert len(leaders) == 1
    assert {member.core.leader_id for member in group.members.values()} == {leaders[0].name}


@pytest.mark.rule("R-02")
@pytest.mark.parametrize(
    ("candidate", "granted"),
    [
        ((5, 3), True),
        ((6, 3), True),
        ((2, 4), True),  # a later term beats a longer log
        ((4, 3), False),
        ((9, 2), False),
    ],
)
@pytest.mark.parametrize("pre_vote", [True, False])
def test_only_a_log_at_least_as_up_to_date_gets_the_vote(
    candidate: tuple[int, int], granted: bool, pre_vote: bool
) -> None:
    """candidate: (last index, last term); the voter's is (5, 3)."""
    group = Group({"n1": MemoryLog(), "n2": log_of(1, 1, 2, 2, 3, 3), "n3": MemoryLog()})
    group["n2"].step("n1", VoteRequest(7, *candidate, pre_vote))
    assert [answer.granted for answer in vote_answers(group, "n2")] == [granted]


@pytest.mark.rule("R-02")
@pytest.mark.parametrize("pre_vote", [True, False])
@pytest.mark.parametrize(
    ("last_term", "last_index", "granted"), [(2, 99, False), (3, 8, False), (3, 9, True), (4, 8, False)]
)
def test_a_log_that_a_reset_has_left_empty_refuses_who_lacks_what_was_before_it(
    last_term: int, last_index: int, granted: bool, pre_vote: bool
) -> None:
    """The node died between the reset and the first record: everything before the beginning was committed."""
    log = MemoryLog()
    log.cut(Reset(10, 4_096, 3))
    group = Group({"n1": MemoryLog(), "n2": log, "n3": MemoryLog()})
    group["n2"].step("n1", VoteRequest(5, last_index, last_term, pre_vote=pre_vote))
    assert [answer.granted for answer in vote_answers(group, "n2")] == [granted]


@pytest.mark.rule("R-02")
@pytest.mark.parametrize("rest", [MemoryLog(), log_of(1, 2, 2)], ids=["empty", "behind"])
def test_logs_that_a_power_failure_has_emptied_after_a_trim_elect_one_of_them(rest: MemoryLog) -> None:
    """With `replicated` the record at the beginning may be lost everywhere; what was before it was
    committed."""
    logs = {"n1": MemoryLog(), "n2": MemoryLog(), "n3": rest}
    for name in ("n1", "n2"):
        logs[name].cut(Reset(10, 4_096, 3))
    group = Group(logs, durability=Durability.REPLICATED, hard_states=dict.fromkeys(logs, HardState(3)))
    for member in group.members.values():
        member.restart(sound=False)
    group.pass_time(10_000)
    assert [name for name, member in group.members.items() if member.leads] in (["n1"], ["n2"])
    assert [member.log.begin_index for member in group.members.values()] == [10, 10, 10]


@pytest.mark.rule("R-03")
def test_a_node_that_was_cut_off_neither_raises_the_term_nor_unseats_the_leader() -> None:
    group = Group(3)
    group.elect("n1")
    group.pass_time(500)
    for _ in range(20):  # n3 is cut off for long
        group.pass_time(500, "n1", "n2")
        group["n3"].tick()
        group.take(source="n3")
    assert group["n3"].core.role is Role.CANDIDATE
    assert group["n3"].core.term == 1
    group.pass_time(2_000)
    assert (group.leader.name, group.leader.core.term) == ("n1", 1)
    assert group["n3"].core.leader_id == "n1"


@pytest.mark.rule("R-03")
def test_a_pre_vote_changes_nothing_at_the_voter() -> None:
    group = Group(3)
    before = list(group["n2"].saved)
    group["n2"].step("n1", VoteRequest(9, NO_INDEX, 0, pre_vote=True))
    assert [(answer.granted, answer.term) for answer in vote_answers(group, "n2")] == [(True, 9)]
    assert (group["n2"].core.term, group["n2"].saved) == (0, before)


@pytest.mark.rule("R-03")
def test_a_member_that_hears_a_leader_gives_neither_pre_vote_nor_vote() -> None:
    group = Group(3)
    group.elect("n1")
    group.pass_time(200)
    for pre_vote in (True, False):
        group["n2"].step("n3", VoteRequest(9, 50, 9, pre_vote))
    assert [answer.granted for answer in vote_answers(group, "n2")] == [False]  # the vote: not even an answer
    assert group["n2"].core.term == 1
    group.wait(500)  # the leader is silent for the shortest election timeout
    group["n2"].step("n3", VoteRequest(9, 50, 9))
    assert [answer.granted for answer in vote_answers(group, "n2")] == [True]


@pytest.mark.rule("R-03")
def test_a_node_with_a_newer_term_is_taken_back_by_one_election() -> None:
    group = Group(3, hard_states={"n3": HardState(5)})
    group.elect("n1", "n1", "n2")
    group.pass_time(4_000)
    assert group["n3"].core.leader_id == group.leader.name
    assert group.leader.core.term >= 5


@pytest.mark.rule("R-04")
def test_a_leader_that_a_majority_does_not_answer_stands_down_within_an_election_timeout() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(500)
    group.pass_time(980, "n1")
    assert leader.leads
    group.pass_time(60, "n1")
    assert not leader.leads
    assert leader.core.term == 1


@pytest.mark.rule("R-04")
def test_one_of_two_peers_is_majority_enough() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(5_000, "n1", "n2")
    assert leader.leads


@pytest.mark.rule("D-21", "R-01")
def test_a_stale_leader_learns_of_the_newer_term_and_follows() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    group.elect("n2", "n2", "n3")
    assert leader.leads
    group.take()
    leader.core.tick(group.now_ms)
    group["n3"].step("n1", Heartbeat(1, "n1", NO_INDEX, 99))
    [answer] = group.take(source="n3", kind=HeartbeatAnswer)
    leader.step("n3", answer)
    assert (leader.leads, leader.core.term) == (False, 2)


@pytest.mark.rule("R-10")
def test_only_leaders_and_candidates_are_heard_among_non_members() -> None:
    """The group here may be older than theirs; an answer, though, must be one of our own members'."""
    group = Group(3)
    leader = group.elect("n1")
    leader.step("n9", HeartbeatAnswer(50, 1))
    leader.step("n9", VoteAnswer(50, True))
    assert (leader.leads, leader.core.term) == (True, 1)
    leader.step("n9", Heartbeat(50, "n9", 5, 1))
    assert (leader.core.term, leader.core.leader_id) == (50, "n9")


def test_a_learner_never_campaigns() -> None:
    group = Group({"n1": MemoryLog(), "l1": MemoryLog()}, learners=("l1",))
    group.pass_time(5_000, "l1")
    assert (group["l1"].core.role, group["l1"].core.term) == (Role.LEARNER, 0)


@pytest.mark.rule("D-23")
def test_a_leader_that_stops_gives_up_the_lead() -> None:
    group = Group(3)
    leader = group.elect("n1")
    leader.append(token="a")
    leader.core.stop(group.now_ms)
    leader.run()
    assert not leader.leads
    assert [token for token, _ in leader.answers] == ["a"]


@pytest.mark.rule("R-05")
def test_the_only_voter_without_room_for_its_opening_tries_again_after_an_election_timeout() -> None:
    """The driver writes what the core wants before it does anything else: tried at once, the node hangs."""
    group = Group(1)
    member = group["n1"]
    member.full = True
    member.restart()
    shortest_ms, longest_ms = group.raft.election_timeout_ms
    assert (member.leads, member.core.term) == (False, 2)
    group.pass_time(shortest_ms - 20)
    assert member.core.term == 2
    group.pass_time(longest_ms)
    assert not member.leads
    assert member.core.term in (3, 4)
    member.full = False
    group.pass_time(longest_ms)
    assert member.leads


def test_a_leader_that_cannot_open_its_term_leaves_it_to_others() -> None:
    group = Group(3)
    group["n1"].full = True
    group.wait(1_000)
    group["n1"].tick()
    group.settle("n1", "n2")
    assert not group["n1"].leads
    assert group.take(source="n1", kind=PushRequest) == []
    group.pass_time(4_000, "n2", "n3")
    assert group.leader.name in ("n2", "n3")


@pytest.mark.rule("R-01")
@pytest.mark.parametrize(("disk_ms", "extension_ms"), [(0, 0), (3_000, 3_000), (60_000, 10_000)])
def test_no_election_begins_while_term_and_vote_wait_for_the_disk(disk_ms: int, extension_ms: int) -> None:
    """The wait begins when the vote leaves, and lasts longer as the other disks have as much to do."""
    core, now_ms = Group(3)["n2"].core, 10_000
    core.step("n1", VoteRequest(4, NO_INDEX, 0), now_ms)
    ready = core.ready()
    assert ready is not None
    assert ready.hard_state == HardState(4, "n1")
    now_ms += disk_ms
    core.advance(ready, now_ms)
    core.tick(now_ms + extension_ms + 499)
    assert core.ready() is None
    core.tick(now_ms + extension_ms + 1_000)
    asking = core.ready()
    assert asking is not None
    assert all(isinstance(message, VoteRequest) and message.pre_vote for _, message in asking.messages)


def test_heartbeats_of_all_logs_of_a_node_leave_at_the_same_time() -> None:
    """Two groups whose leaders were elected at different times, on one clock."""
    due_ms = set()
    for wait_ms in (0, 37):
        group = Group(3)
        group.wait(wait_ms)
        leader = group.elect("n1")
        group.pass_time(1_000)
        core = leader.core
        assert group.now_ms < core.due_ms <= group.now_ms + 100
        group.take()
        core.tick(int(core.due_ms) - 1)
        leader.run()
        assert group.take(source="n1", kind=Heartbeat) == []
        core.tick(int(core.due_ms))
        leader.run()
        assert len(group.take(source="n1", kind=Heartbeat)) == 2
        due_ms.add(core.due_ms % 100)
    assert due_ms == {0}


def test_a_follower_is_due_when_it_would_ask_for_votes() -> None:
    core = Group(3)["n2"].core
    core.tick(int(core.due_ms) - 1)
    assert core.ready() is None
    core.tick(int(core.due_ms))
    assert core.role is Role.CANDIDATE
