"""Linearizable reads by ReadIndex."""

import pytest

from app.raft.config import RaftConfig
from app.raft.messages import Heartbeat, HeartbeatAnswer, ReadIndexAnswer, ReadIndexRequest
from app.raft.reads import Confirmation
from tests.unit.raft.support import Group, Member, log_of


def ask(member: Member, token: str) -> None:
    member.core.read_index(token, member.group.now_ms)
    member.run()


def ready_group(voters: int = 3) -> tuple[Group, Member]:
    group = Group(voters)
    leader = group.elect("n1")
    group.pass_time(200)
    group.take()
    return group, leader


@pytest.mark.rule("R-08")
def test_a_read_index_is_given_only_after_a_quorum_has_confirmed_the_leader() -> None:
    group, leader = ready_group()
    ask(leader, "a")
    assert leader.reads == []
    group.deliver(target="n2", kind=Heartbeat)
    group.deliver(source="n2", kind=HeartbeatAnswer)
    assert leader.reads == [("a", 0)]


@pytest.mark.rule("R-08")
def test_an_answer_to_an_earlier_round_confirms_nothing() -> None:
    group, leader = ready_group()
    leader.core._broadcast(group.now_ms)
    leader.run()
    group.deliver(target="n2", kind=Heartbeat)
    ask(leader, "a")
    group.deliver(source="n2", target="n1", kind=HeartbeatAnswer)
    assert leader.reads == []


@pytest.mark.rule("R-08")
def test_readers_share_a_round() -> None:
    group, leader = ready_group()
    for token in ("a", "b", "c"):
        ask(leader, token)
    assert len(group.take(target="n3", kind=Heartbeat)) == 1  # a's round; b and c wait for the next one
    group.deliver(target="n2", kind=Heartbeat)
    group.deliver(source="n2", kind=HeartbeatAnswer)
    assert leader.reads == [("a", 0)]
    assert len(group.take(target="n3", kind=Heartbeat)) == 1
    group.deliver(target="n2", kind=Heartbeat)
    group.deliver(source="n2", kind=HeartbeatAnswer)
    assert leader.reads == [("a", 0), ("b", 0), ("c", 0)]


@pytest.mark.rule("R-08")
def test_a_lost_round_is_made_good_by_the_next_heartbeat() -> None:
    group, leader = ready_group()
    ask(leader, "a")
    group.take()
    group.pass_time(200)
    assert leader.reads == [("a", 0)]


@pytest.mark.rule("R-08")
def test_a_leader_without_a_committed_record_of_its_term_gives_no_index_yet() -> None:
    group = Group({"n1": log_of(1, 1), "n2": log_of(1, 1), "n3": log_of(1, 1)}, committed={"n1": 1})
    leader = group["n1"]
    leader.auto_sync = False
    group.elect("n1", "n1", "n3")
    ask(leader, "a")
    for _ in range(5):
        group.deliver(kind=Heartbeat)
        group.deliver(kind=HeartbeatAnswer)
        leader.core._broadcast(group.now_ms)
        leader.run()
    assert leader.reads == []
    leader.auto_sync = True
    group.pass_time(300)
    assert leader.reads == [("a", 2)]


@pytest.mark.rule("R-08")
def test_a_stale_leader_confirms_no_read() -> None:
    group, leader = ready_group()
    group.elect("n2", "n2", "n3")
    group.take()
    ask(leader, "a")
    group.pass_time(2_000)
    assert leader.reads == [("a", None)]


@pytest.mark.rule("R-08")
def test_a_follower_asks_the_leader_once_for_many_readers() -> None:
    group, _ = ready_group()
    follower = group["n2"]
    for token in ("a", "b", "c"):
        ask(follower, token)
    assert len([m for _, _, m in group.sent if isinstance(m, ReadIndexRequest)]) == 1
    group.settle()
    assert sorted(follower.reads) == [("a", 0), ("b", 0), ("c", 0)]


@pytest.mark.rule("R-08")
def test_a_confirmation_of_the_lead_gives_no_reader_its_index() -> None:
    """All voters confirm the lead, also unsound ones, and before the term is open."""
    group, _ = ready_group()
    follower, confirmation = group["n2"], Confirmation()
    reads = follower.core._follower_reads
    ask(follower, "a")
    reads.ask(confirmation, group.now_ms)
    ask(follower, "b")  # both wait until the request in progress is answered
    for is_about_lead, given, confirmed in (
        (False, [("a", 0)], None),
        (True, [("a", 0)], 0),
        (False, [("a", 0), ("b", 0)], 0),
    ):
        [request] = [m for _, _, m in group.sent if isinstance(m, ReadIndexRequest)]
        assert request.leadership is is_about_lead
        for kind in (ReadIndexRequest, Heartbeat, HeartbeatAnswer, ReadIndexAnswer):
            group.deliver(kind=kind)
        assert (follower.reads, confirmation.index) == (given, confirmed)


@pytest.mark.rule("R-08")
def test_an_answer_to_an_earlier_incarnation_is_not_taken() -> None:
    group, leader = ready_group()
    ask(group["n2"], "old")
    group.deliver(kind=ReadIndexRequest)
    group.deliver(kind=Heartbeat)
    group.deliver(kind=HeartbeatAnswer)
    [stale] = group.take(target="n2", kind=ReadIndexAnswer)
    leader.append()
    group.settle()
    group["n2"].restart()
    group.pass_time(200)
    group["n2"].reads.clear()
    ask(group["n2"], "new")
    group["n2"].step("n1", stale)
    assert group["n2"].reads == []
    group.settle()
    assert group["n2"].reads == [("new", 1)]


@pytest.mark.rule("R-08")
def test_readers_of_a_follower_hear_when_no_leader_confirms() -> None:
    group, _ = ready_group()
    follower = group["n2"]
    ask(follower, "a")
    group.take()
    group.pass_time(1_020, "n1", "n3")
    follower.core._leader_heard_ms = group.now_ms
    follower.core._restart_election_timer(group.now_ms)
    follower.tick()
    assert follower.reads == [("a", None)]
    follower.core._lose_leader()
    ask(follower, "b")
    assert follower.reads[-1] == ("b", None)


@pytest.mark.rule("R-08")
def test_a_single_voter_confirms_by_itself() -> None:
    group = Group(1)
    ask(group["n1"], "a")
    assert group["n1"].reads == [("a", 0)]


def test_a_member_that_does_not_lead_answers_that_it_cannot_confirm() -> None:
    group, _ = ready_group()
    group["n2"].step("n3", ReadIndexRequest(1, 77))
    [answer] = group.take(source="n2", kind=ReadIndexAnswer)
    assert answer == ReadIndexAnswer(1, 77, None)


@pytest.mark.rule("R-08")
def test_rounds_of_an_older_term_confirm_nothing() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(3_000)  # many rounds, all answered
    for name in ("n2", "n1"):
        group.elect(name)
        group.pass_time(300)
    group.take()
    leader.reads.clear()
    ask(leader, "a")
    assert leader.reads == []
    group.settle()
    assert leader.reads == [("a", leader.core.committed_index)]


@pytest.mark.rule("R-08")
def test_readers_are_refused_in_time_while_the_leaders_term_is_not_open() -> None:
    """Its followers answer heartbeats, and their disks hang: callers give up, and ask again."""
    group = Group(3)
    for member in group.members.values():
        member.auto_sync = False
    leader = group.elect("n1")
    for second in range(5):
        ask(leader, f"{second}")
        group.pass_time(1_000)
    assert leader.reads == [(f"{second}", None) for second in range(5)]
    assert leader.core.waiting_reads == 0


@pytest.mark.rule("R-08")
@pytest.mark.parametrize("name", ["n1", "n2"], ids=["leader", "follower"])
def test_more_readers_than_the_limit_are_refused_at_once(name: str) -> None:
    group = Group(3, raft=RaftConfig(max_waiting_reads=2))
    group.elect("n1")
    group.pass_time(200)
    group.take()
    member = group[name]
    for token in ("a", "b", "c"):
        ask(member, token)
    assert member.reads == [("c", None)]
    assert member.core.waiting_reads == 2
    group.settle()
    assert sorted(member.reads) == [("a", 0), ("b", 0), ("c", None)]


@pytest.mark.rule("R-08")
def test_readers_that_queue_after_a_lost_request_are_asked_for_when_it_times_out() -> None:
    group, _ = ready_group()
    follower = group["n2"]
    ask(follower, "lost")
    ask(follower, "queued")
    assert len(group.take(source="n2", kind=ReadIndexRequest)) == 1
    group.now_ms += group.raft.read_index_timeout_ms + 1
    follower.core._follower_reads.tick(group.now_ms)
    follower.run()
    assert follower.reads == [("lost", None)]
    assert len(group.take(source="n2", kind=ReadIndexRequest)) == 1


@pytest.mark.rule("R-08")
def test_a_lost_request_of_a_follower_is_waited_for_its_whole_time() -> None:
    group, _ = ready_group()
    follower = group["n2"]
    group.now_ms += 60_000  # longer ago than the time for an answer
    ask(follower, "lost")
    for early_ms in (0, group.raft.read_index_timeout_ms):
        follower.core._follower_reads.tick(group.now_ms + early_ms)
        follower.run()
        assert follower.reads == []
    follower.core._follower_reads.tick(group.now_ms + group.raft.read_index_timeout_ms + 1)
    follower.run()
    assert follower.reads == [("lost", None)]


@pytest.mark.rule("R-08")
def test_readers_that_lose_their_leader_are_refused_once_and_never_asked_for_again() -> None:
    group, _ = ready_group()
    follower = group["n2"]
    ask(follower, "asked for")
    ask(follower, "queued")
    follower.core._follower_reads.fail()
    follower.run()
    assert follower.reads == [("asked for", None), ("queued", None)]
    assert follower.core.waiting_reads == 0


@pytest.mark.rule("R-08")
def test_a_late_answer_to_an_earlier_round_takes_nothing_back() -> None:
    _, leader = ready_group(5)
    rounds = leader.core._leader_reads
    ask(leader, "a")
    number = rounds._round
    for peer, given in (("n2", number), ("n2", number - 1), ("n3", number)):
        leader.step(peer, HeartbeatAnswer(leader.core.term, given))
    assert leader.reads == [("a", leader.core.committed_index)]
