"""The quorum ack checker, rule by rule."""

import pytest

from app.log.contract import NO_INDEX, Acks, AppendFate, CoreEvent, Durability, PendingAppend
from app.raft.config import RaftConfig
from app.raft.messages import Heartbeat, PushAnswer, PushCode, PushType
from app.raft.quorum import quorum_index
from storage.log.hard_state import HardState
from tests.unit.raft.support import Group, Member, MemoryLog, log_of


def watermark_events(member: Member) -> list[CoreEvent]:
    return [event for event in member.events if event.kind == "watermarks"]


def ack(group: Group, peer: str, index: int, *, sound: bool = True) -> None:
    """`peer` acknowledges everything up to `index` in the session of now."""
    core = group["n1"].core
    session = core._peers.dispatchers[peer].session
    answer = PushAnswer(
        core.term, PushType.APPEND, PushCode.SUCCESS, session, 1, index, 0, index, sound=sound
    )
    group["n1"].step(peer, answer)


def ready_group(voters: int = 3, **options: object) -> tuple[Group, Member]:
    """n1 leads, its opening record is committed everywhere."""
    group = Group(voters, **options)  # type: ignore[arg-type]
    leader = group.elect("n1")
    group.pass_time(200)
    leader.answers.clear()
    return group, leader


@pytest.mark.rule("D-24")
@pytest.mark.parametrize(
    ("watermarks", "expected"),
    [
        ((5,), 5),
        ((5, 3), 3),
        ((5, 3, 1), 3),
        ((5, 5, 5), 5),
        ((9, NO_INDEX, NO_INDEX), NO_INDEX),
        ((1, 2, 3, 4), 2),
        ((1, 9, 3, 7, 5), 5),
    ],
)
def test_the_quorum_index_is_what_a_majority_has_reached(watermarks: tuple[int, ...], expected: int) -> None:
    assert quorum_index(watermarks) == expected


@pytest.mark.rule("D-24", "D-28")
@pytest.mark.parametrize("voters", [1, 3, 5])
def test_an_append_succeeds_only_when_a_majority_holds_it(voters: int) -> None:
    group, leader = ready_group(voters)
    leader.append(token="a")
    for number in range(2, voters + 1):
        held = number - 1  # the leader among them
        assert (leader.answers == []) is (held <= voters // 2)
        ack(group, f"n{number}", 1)
    assert leader.answers == [("a", AppendFate.ACKNOWLEDGED)]
    assert leader.core.committed_index == 1


@pytest.mark.rule("R-11", "D-24")
def test_the_leaders_own_share_counts_only_when_it_is_on_its_disk() -> None:
    group, leader = ready_group(3)
    leader.auto_sync = False
    leader.append(token="a")
    ack(group, "n2", 1)
    assert leader.answers == []
    leader.sync()
    assert leader.answers == [("a", AppendFate.ACKNOWLEDGED)]


@pytest.mark.rule("R-11")
def test_a_majority_of_followers_commits_what_the_leader_has_not_synced_yet() -> None:
    group, leader = ready_group(3)
    leader.auto_sync = False
    leader.append(token="a")
    ack(group, "n2", 1)
    ack(group, "n3", 1)
    assert leader.answers == [("a", AppendFate.ACKNOWLEDGED)]


@pytest.mark.rule("R-11")
def test_with_replicated_durability_the_leaders_share_counts_when_it_is_written() -> None:
    group, leader = ready_group(3, durability=Durability.REPLICATED)
    leader.auto_sync = False
    leader.append(token="a")
    ack(group, "n2", 1)
    assert leader.answers == [("a", AppendFate.ACKNOWLEDGED)]


@pytest.mark.rule("R-05", "D-24")
def test_records_of_older_terms_are_committed_only_by_one_of_the_own_term() -> None:
    """Figure 8 of the Raft paper: a majority that holds an old record does not make it last."""
    group = Group({"n1": log_of(1, 2), "n2": log_of(1, 2), "n3": log_of(1)}, hard_states={"n1": HardState(3)})
    leader = group["n1"]
    leader.auto_sync = False  # the opening record of the term stays off the disk
    group.elect("n1", "n1", "n3")
    assert leader.core.term == 4
    leader.core._quorum.set_watermark("n2", 1)
    leader.tick()
    assert leader.core.watermarks() == {4: {"n1": 1, "n2": 1, "n3": 2}}  # all hold the record of term 2
    assert leader.core.committed_index == NO_INDEX
    leader.core._quorum.raise_watermark("n2", 2)
    leader.tick()
    assert leader.core.committed_index == 2


@pytest.mark.rule("R-05")
def test_a_leader_opens_its_term_with_a_control_record() -> None:
    group = Group({"n1": log_of(1), "n2": log_of(1), "n3": log_of(1)})
    leader = group.elect("n1")
    opening = leader.log.batches[-1]
    assert opening.is_control
    assert (opening.term, opening.base_index) == (2, 1)


@pytest.mark.rule("D-25")
def test_appends_are_answered_in_the_order_of_their_indexes() -> None:
    group, leader = ready_group(3)
    for token in ("a", "b", "c", "d"):
        leader.append(token=token)
    ack(group, "n2", 3)
    assert [token for token, _ in leader.answers] == ["a", "b", "c"]
    ack(group, "n3", 4)
    assert [token for token, _ in leader.answers] == ["a", "b", "c", "d"]


@pytest.mark.rule("D-25")
def test_acks_leader_all_and_quorum_wait_for_their_own_condition() -> None:
    group, leader = ready_group(3)
    leader.auto_sync = False
    leader.append(token="leader", acks=Acks.LEADER)
    leader.append(token="quorum", acks=Acks.QUORUM)
    leader.append(token="all", acks=Acks.ALL)
    assert leader.answers == []
    leader.sync()
    assert [token for token, _ in leader.answers] == ["leader"]
    ack(group, "n2", 3)
    assert [token for token, _ in leader.answers] == ["leader", "quorum"]
    ack(group, "n3", 3)
    assert [token for token, _ in leader.answers] == ["leader", "quorum", "all"]


@pytest.mark.rule("D-25", "R-11")
def test_an_unsound_voter_does_not_count_for_acks_of_all() -> None:
    group, leader = ready_group(3)
    leader.append(token="all", acks=Acks.ALL)
    ack(group, "n2", 1)
    ack(group, "n3", 1, sound=False)
    assert leader.core.committed_index == 1
    assert leader.answers == []
    ack(group, "n3", 1)
    assert leader.answers == [("all", AppendFate.ACKNOWLEDGED)]


@pytest.mark.rule("D-23")
def test_when_the_lead_is_lost_all_that_wait_hear_term_changed_and_watermarks_go() -> None:
    _, leader = ready_group(3)
    leader.append(token="a")
    leader.append(token="b", acks=Acks.ALL)
    leader.step("n2", Heartbeat(leader.core.term + 1, "n2", NO_INDEX, 1))
    assert leader.answers == [("a", AppendFate.TERM_CHANGED), ("b", AppendFate.TERM_CHANGED)]
    assert leader.core.watermarks() == {}
    assert leader.core._quorum._pending.close() == []


@pytest.mark.rule("D-23")
def test_watermarks_of_an_older_term_do_not_count_in_the_next_one() -> None:
    group, leader = ready_group(3)
    leader.append()
    group.settle()
    group.elect("n2", "n2", "n3")
    group.pass_time(200)
    group.elect("n1", "n1", "n3")
    assert leader.core.watermarks()[3]["n2"] == NO_INDEX
    assert leader.core.watermarks(1) == {}


@pytest.mark.rule("D-26")
def test_an_append_that_waits_too_long_hears_so_and_may_still_commit() -> None:
    group, leader = ready_group(3)
    leader.append(token="slow", timeout_ms=1_000)
    leader.append(token="patient", timeout_ms=60_000)
    group.take()
    for _ in range(60):
        group.wait(20)
        leader.core._peers.heard_ms = dict.fromkeys(leader.core._peers.heard_ms, group.now_ms)
        leader.tick()
        assert (leader.answers == []) is (group.now_ms < 11_200 + 1_000 + 20) or leader.answers
    assert leader.answers == [("slow", AppendFate.TIMED_OUT)]
    ack(group, "n2", 2)
    assert leader.answers == [("slow", AppendFate.TIMED_OUT), ("patient", AppendFate.ACKNOWLEDGED)]
    assert leader.core.committed_index == 2


@pytest.mark.rule("D-27")
def test_the_leak_check_answers_every_append_left_behind() -> None:
    group, leader = ready_group(3)
    leader.append(token="a")
    leader.core._member.committed_index = 1  # moved without the answer, which no code path should do
    leader.tick()
    group.wait(1_000)
    leader.core._peers.heard_ms = dict.fromkeys(leader.core._peers.heard_ms, group.now_ms)
    leader.tick()
    assert leader.answers == [("a", AppendFate.ACKNOWLEDGED)]


def test_a_repeat_joins_those_that_wait_in_its_place() -> None:
    group, leader = ready_group(3)
    for token in ("a", "b"):
        leader.append(token=token)
    leader.core.join(PendingAppend(1, 1, Acks.QUORUM, group.now_ms + 5_000, "again"), group.now_ms)
    leader.run()
    assert leader.answers == []
    ack(group, "n2", 1)
    assert sorted(token for token, _ in leader.answers) == ["a", "again"]
    ack(group, "n2", 2)
    assert leader.answers[-1] == ("b", AppendFate.ACKNOWLEDGED)
    leader.core.join(PendingAppend(1, 1, Acks.QUORUM, group.now_ms + 5_000, "late"), group.now_ms)
    leader.run()
    assert leader.answers[-1] == ("late", AppendFate.ACKNOWLEDGED)


def test_appends_that_found_no_room_on_disk_are_refused_and_leave_nothing() -> None:
    group, leader = ready_group(3)
    leader.full = True
    end_index = leader.log.end_index
    leader.append(token="a")
    assert leader.answers == [("a", AppendFate.REFUSED)]
    assert leader.log.end_index == end_index
    assert leader.core._quorum._pending.close() == []
    leader.full = False
    leader.append(token="b")
    group.settle()
    assert leader.answers[-1] == ("b", AppendFate.ACKNOWLEDGED)


@pytest.mark.rule("D-22")
def test_watermarks_are_published_each_3_s_when_nothing_moves() -> None:
    group, leader = ready_group(3)
    group.pass_time(2_000)
    leader.events.clear()
    group.pass_time(9_000)
    assert len(watermark_events(leader)) == 3
    [event, *_] = watermark_events(leader)
    assert event.term == 1
    assert event.data == {
        "role": "leader",
        "begin_index": 0,
        "end_index": 0,
        "committed_index": 0,
        "peers": {"n1": 0, "n2": 0, "n3": 0},
    }


@pytest.mark.rule("D-22")
def test_watermarks_are_published_at_most_each_500_ms_while_they_move() -> None:
    group, leader = ready_group(3)
    group.pass_time(2_000)
    leader.events.clear()
    for _ in range(100):
        leader.append()
        group.pass_time(20)
    assert 3 <= len(watermark_events(leader)) <= 4


@pytest.mark.rule("D-22")
def test_watermarks_are_published_when_a_term_opens_and_ends() -> None:
    group = Group(3)
    leader = group.elect("n1")
    assert [event.term for event in watermark_events(leader)] == [1]
    group.pass_time(200)
    leader.append()
    group.settle()
    leader.step("n2", Heartbeat(9, "n2", NO_INDEX, 1))
    last = watermark_events(leader)[-1]
    assert (last.term, last.data["peers"]) == (1, {"n1": 1, "n2": 1, "n3": 1})


def test_learners_receive_the_log_and_do_not_count() -> None:
    group = Group({"n1": MemoryLog(), "n2": MemoryLog(), "l1": MemoryLog()}, learners=("l1",))
    leader = group.elect("n1")
    group.pass_time(500)
    leader.append(token="a")
    group.settle("n1", "l1")
    assert group["l1"].log.end_index == 1
    assert leader.answers == []
    group.settle()
    assert leader.answers == [("a", AppendFate.ACKNOWLEDGED)]


def test_a_single_voter_commits_by_itself() -> None:
    group = Group(1, raft=RaftConfig())
    leader = group["n1"]
    assert leader.leads
    leader.append(token="a")
    assert leader.answers == [("a", AppendFate.ACKNOWLEDGED)]
