"""The leader's dispatcher of one peer, rule by rule."""

import pytest

from app.log.contract import NO_INDEX, Reset, TruncateAfter
from app.raft.config import RaftConfig
from app.raft.messages import HeartbeatAnswer, PushAnswer, PushCode, PushRequest, PushType
from tests.unit.raft.support import Group, MemoryLog, log_of


def state_of(group: Group, peer: str) -> str:
    return next(each.state for each in group.leader.core.status().peers if each.id == peer)


def watermark_of(group: Group, peer: str) -> int:
    core = group.leader.core
    return core.watermarks()[core.term][peer]


def pending_of(group: Group, peer: str) -> int:
    return next(each.pending for each in group.leader.core.status().peers if each.id == peer)


def answer_of(
    group: Group,
    request: PushRequest,
    code: PushCode = PushCode.SUCCESS,
    index: int | None = None,
    begin_index: int = 0,
    end_index: int = NO_INDEX,
    conflict: tuple[int, int] = (0, NO_INDEX),
) -> PushAnswer:
    """A possible answer of a follower to `request`. conflict: (term, index)."""
    at = request.index if index is None else index
    return PushAnswer(
        request.term, request.type, code, request.session, 99, at, begin_index, end_index, *conflict
    )


def elect_with_silent_n2(group: Group) -> PushRequest:
    """n1 leads by the vote of n3; return its first COMPARE to n2, which has answered nothing yet."""
    group.elect("n1", "n1", "n3")
    [request] = group.pushes("n2")
    assert request.type is PushType.COMPARE
    return request


@pytest.mark.rule("D-01", "D-11")
def test_begins_with_compare_at_the_leaders_end() -> None:
    group = Group({"n1": log_of(1, 1), "n2": log_of(1, 1), "n3": log_of(1, 1)})
    request = elect_with_silent_n2(group)
    assert state_of(group, "n2") == "COMPARE"
    assert (request.index, request.index_term) == (2, 2)
    assert state_of(group, "n3") == "APPEND"


@pytest.mark.rule("D-11")
def test_an_empty_leader_log_has_nothing_to_compare() -> None:
    group = Group(3)
    group["n1"].full = True  # even the opening of its term cannot be stored
    group.wait(1_000)
    group["n1"].tick()
    group.deliver()
    group.deliver()
    group.deliver()
    group.deliver()
    assert group.pushes("n2") == []


@pytest.mark.rule("D-11")
def test_one_compare_at_a_time_and_again_after_its_timeout() -> None:
    group = Group({"n1": log_of(1), "n2": log_of(1), "n3": log_of(1)})
    first = elect_with_silent_n2(group)
    group.pass_time(2_980, "n1", "n3")
    assert group.pushes("n2") == []
    group.pass_time(20, "n1", "n3")
    assert [(push.type, push.index) for push in group.pushes("n2")] == [(PushType.COMPARE, first.index)]


@pytest.mark.rule("D-02")
def test_a_new_term_starts_the_comparison_again() -> None:
    group = Group(3)
    group.elect("n1")
    group.pass_time(200)
    assert state_of(group, "n2") == "APPEND"
    group.elect("n2", "n2", "n3")
    group.pass_time(200)
    group.elect("n1", "n1", "n3")
    assert group["n1"].core.term == 3
    assert state_of(group, "n2") == "COMPARE"
    assert [push.type for push in group.pushes("n2")] == [PushType.COMPARE]


@pytest.mark.rule("D-02")
def test_a_node_that_lost_the_lead_pushes_nothing() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    group.elect("n2", "n2", "n3")
    group.settle()
    assert not leader.leads
    for dispatcher in leader.core._peers.dispatchers.values():
        dispatcher.step(group.now_ms + 5_000)
    leader.run()
    assert group.take(source="n1", kind=PushRequest) == []


@pytest.mark.rule("D-03")
def test_entering_append_sets_watermark_and_write_index() -> None:
    group = Group({"n1": log_of(1, 1, 1), "n2": log_of(1, 1, 1), "n3": log_of(1, 1, 1)})
    request = elect_with_silent_n2(group)
    group["n1"].step("n2", answer_of(group, request, end_index=3))
    assert (state_of(group, "n2"), watermark_of(group, "n2")) == ("APPEND", 3)
    batch = group["n1"].append()
    [push] = group.pushes("n2")
    assert push.batches == (batch,)
    assert (push.index, push.index_term) == (3, 2)


@pytest.mark.rule("D-03", "D-10")
def test_inconsistent_state_leads_back_to_compare_without_pending_pushes() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    leader.append()
    [push] = group.pushes("n2")
    assert pending_of(group, "n2") == 1
    leader.step("n2", answer_of(group, push, PushCode.INCONSISTENT_STATE, end_index=0))
    assert (state_of(group, "n2"), pending_of(group, "n2")) == ("COMPARE", 0)
    [compare] = group.pushes("n2")
    assert (compare.type, compare.index) == (PushType.COMPARE, leader.log.end_index)


@pytest.mark.rule("D-03")
def test_entering_truncate_forgets_the_compare_index() -> None:
    group = Group({"n1": log_of(1, 1, 1), "n2": log_of(1, 1, 1), "n3": log_of(1, 1, 1)})
    request = elect_with_silent_n2(group)
    group["n1"].step("n2", answer_of(group, request, end_index=9))
    assert state_of(group, "n2") == "TRUNCATE"
    [truncate] = group.pushes("n2")
    group["n1"].step("n2", answer_of(group, truncate, PushCode.INCONSISTENT_STATE, end_index=9))
    [compare] = group.pushes("n2")
    assert (compare.type, compare.index) == (PushType.COMPARE, 3)  # from the end again


@pytest.mark.rule("D-04")
def test_pushes_are_pipelined_up_to_max_pending() -> None:
    group = Group(3, raft=RaftConfig(max_pending=5))
    leader = group.elect("n1")
    group.pass_time(200)
    for _ in range(8):
        leader.append()
    pushes = group.pushes("n2")
    assert [push.batches[0].base_index for push in pushes] == [1, 2, 3, 4, 5]
    assert pending_of(group, "n2") == 5
    leader.step("n2", answer_of(group, pushes[1], index=2, end_index=2))
    assert [batch.base_index for push in group.pushes("n2") for batch in push.batches] == [6, 7, 8]


@pytest.mark.rule("D-04")
def test_bytes_in_flight_are_bounded_too() -> None:
    group = Group(3, raft=RaftConfig(max_pending_bytes=2_000, push_max_bytes=1_000))
    leader = group.elect("n1")
    group.pass_time(200)
    sizes = [leader.append().size_bytes for _ in range(8)]
    in_flight = sum(batch.size_bytes for push in group.pushes("n2") for batch in push.batches)
    assert 2_000 <= in_flight < 2_000 + max(sizes)


@pytest.mark.rule("D-05")
def test_an_idle_leader_sends_commit_soon_after_a_change_and_rarely_without() -> None:
    config = RaftConfig(commit_interval_ms=40, idle_commit_interval_ms=400)
    group = Group(3, raft=config)
    leader = group.elect("n1")
    group.pass_time(1_000)
    leader.append()
    group.settle()
    assert leader.core.committed_index == 1
    times = []
    start = group.now_ms
    for _ in range(60):
        group.wait(20)
        leader.tick()
        commits = [push for push in group.pushes("n2") if push.type is PushType.COMMIT]
        assert all(commit.committed_index == 1 for commit in commits)
        times += [group.now_ms - start] * len(commits)
        leader.core._peers.heard_ms = dict.fromkeys(leader.core._peers.heard_ms, group.now_ms)
    assert times == [40, 440, 840]


@pytest.mark.rule("D-05")
def test_commit_finds_a_peer_that_was_wiped_while_nothing_is_appended() -> None:
    group = Group(3)
    group.elect("n1")
    group.pass_time(500)
    group["n1"].append()
    group.pass_time(500)
    group["n2"].log = MemoryLog()
    group["n2"].restart()
    group.pass_time(2_000)
    assert group["n2"].log.terms == group["n1"].log.terms
    assert group["n2"].core.committed_index == 1


@pytest.mark.rule("D-06")
def test_every_push_names_leader_term_and_committed_index() -> None:
    group = Group({"n1": log_of(1, 1), "n2": log_of(1, 1, 1, 1), "n3": log_of(1, 1)})
    seen = set()
    leader = group["n1"]
    group.elect("n1", "n1", "n3")
    for _ in range(100):
        group.wait(100)
        leader.tick()
        if len(leader.log.batches) < 5 and leader.core.committed_index >= 2:
            leader.append()
        for source, _, message in group.sent:
            if isinstance(message, PushRequest):
                assert (source, message.leader_id, message.term) == ("n1", "n1", leader.core.term)
                assert message.committed_index <= leader.core.committed_index
                seen.add(message.type)
        if leader.core.committed_index != NO_INDEX and seen:
            pushes = [message for _, _, message in group.sent if isinstance(message, PushRequest)]
            assert all(message.leader_id == "n1" for message in pushes)
        group.deliver()
    assert seen == set(PushType)


@pytest.mark.rule("D-07")
def test_the_batch_behind_the_watermark_is_pushed_again_when_its_answer_is_overdue() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    first, second = leader.append(), leader.append()
    group.pushes("n2")  # lost
    group.pass_time(1_000, "n1", "n3")
    assert [push.type for push in group.pushes("n2")] == [PushType.COMMIT]
    group.pass_time(20, "n1", "n3")
    [again] = [push for push in group.pushes("n2") if push.type is PushType.APPEND]
    assert again.batches == (first,)
    leader.step("n2", answer_of(group, again, index=first.last_index, end_index=first.last_index))
    group["n1"].tick()
    [again] = [push for push in group.pushes("n2") if push.type is PushType.APPEND]
    assert again.batches == (second,)


@pytest.mark.rule("D-07")
def test_a_push_that_was_acknowledged_in_part_is_repeated_from_the_watermark() -> None:
    group = Group(3, raft=RaftConfig(max_pending=1))
    leader = group.elect("n1")
    group.pass_time(200)
    batches = [leader.append() for _ in range(4)]
    [push] = group.pushes("n2")
    leader.step("n2", answer_of(group, push, index=1, end_index=1))
    [push] = group.pushes("n2")
    assert push.batches == tuple(batches[1:])
    leader.step("n2", answer_of(group, push, index=2, end_index=2))
    group.pass_time(1_020, "n1", "n3")
    [again] = [push for push in group.pushes("n2") if push.type is PushType.APPEND]
    assert again.batches == tuple(batches[2:])
    assert (again.index, again.index_term) == (2, 1)


@pytest.mark.rule("D-08")
def test_pushes_at_or_below_the_watermark_leave_the_window() -> None:
    group = Group(3, raft=RaftConfig(max_pending=3))
    leader = group.elect("n1")
    group.pass_time(200)
    for _ in range(3):
        leader.append()
    pushes = group.pushes("n2")
    leader.core._quorum.raise_watermark("n2", 3)  # as if the answers had raised it but not freed the window
    leader.append()
    [push] = group.pushes("n2")
    assert push.batches[0].base_index == 4
    assert pending_of(group, "n2") == 1
    assert len(pushes) == 3


@pytest.mark.rule("D-08")
def test_the_leak_check_runs_each_second_also_when_the_window_has_room() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    leader.append()
    leader.core._quorum.raise_watermark("n2", 1)
    group.wait(1_000)
    leader.tick()
    assert pending_of(group, "n2") == 0


@pytest.mark.rule("D-09")
def test_a_peer_far_behind_gets_its_quota_and_no_other_peer_is_affected() -> None:
    config = RaftConfig(
        max_pending=4,
        push_max_bytes=700,
        peer_push_throttle_point_bytes=3_000,
        peer_push_quota_bytes_per_s=2_000,
    )
    group = Group(3, raft=config)
    leader = group.elect("n1")
    group.pass_time(200)
    size = leader.append().size_bytes
    group.settle()
    for _ in range(30):
        leader.append()
        group.settle("n1", "n3")
    assert watermark_of(group, "n3") == leader.log.end_index
    in_flight = group.pushes("n2")
    answered = in_flight[-1].batches[-1].last_index
    leader.tick()
    pushed_bytes = 0
    for _ in range(50):  # one second, in which n2 answers every push at once
        for _ in range(10):
            leader.step(
                "n2",
                answer_of(group, _append_of(leader.core.term, group), index=answered, end_index=answered),
            )
            pushes = [push for push in group.pushes("n2") if push.type is PushType.APPEND]
            if not pushes:
                break
            answered = pushes[-1].batches[-1].last_index
            pushed_bytes += sum(batch.size_bytes for push in pushes for batch in push.batches)
        group.pass_time(20, "n1", "n3")
    assert pushed_bytes <= 2 * (2_000 + size)  # a second touches two windows of one second
    assert pushed_bytes >= 2_000


def _append_of(term: int, group: Group) -> PushRequest:
    session = group.leader.core._peers.dispatchers["n2"].session
    return PushRequest(term, PushType.APPEND, "n1", 0, session, 99, 0, 0, 0)


@pytest.mark.rule("D-10")
def test_success_raises_the_watermark_and_other_codes_are_left_to_the_retry() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    leader.append()
    [push] = group.pushes("n2")
    for code in (PushCode.BUSY, PushCode.REPEATED_PUSH):
        leader.step("n2", answer_of(group, push, code))
        assert (state_of(group, "n2"), watermark_of(group, "n2"), pending_of(group, "n2")) == ("APPEND", 0, 1)
    leader.step("n2", answer_of(group, push, index=1, end_index=1))
    assert (watermark_of(group, "n2"), pending_of(group, "n2")) == (1, 0)
    leader.step("n2", answer_of(group, push, index=0, end_index=0))  # an older answer that was overtaken
    assert watermark_of(group, "n2") == 1


@pytest.mark.rule("D-10")
def test_an_answer_past_the_leaders_end_counts_for_nothing() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    leader.append()
    [push] = group.pushes("n2")
    leader.step("n2", answer_of(group, push, index=50, end_index=50))
    assert (watermark_of(group, "n2"), state_of(group, "n2")) == (0, "COMPARE")


@pytest.mark.rule("D-10")
def test_answers_of_an_earlier_session_change_nothing() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    leader.append()
    [push] = group.pushes("n2")
    leader.step("n2", answer_of(group, push, PushCode.INCONSISTENT_STATE))
    leader.step("n2", answer_of(group, push, index=1, end_index=1))
    assert watermark_of(group, "n2") == 0


@pytest.mark.rule("D-11", "D-14")
@pytest.mark.parametrize("code", [PushCode.SUCCESS, PushCode.INCONSISTENT_STATE])
def test_an_answer_to_a_comparison_of_an_earlier_session_counts_for_nothing(code: PushCode) -> None:
    """The peer may have lost its log since, or have got what it lacked then."""
    group = Group({name: log_of(1, 1) for name in ("n1", "n2", "n3")})
    compare = elect_with_silent_n2(group)
    leader = group["n1"]
    late = answer_of(group, compare, code, end_index=2)
    leader.step("n2", answer_of(group, compare, end_index=2))
    assert state_of(group, "n2") == "APPEND"
    leader.core._peers.dispatchers["n2"]._enter_compare()
    leader.core.tick(group.now_ms)
    leader.run()
    [again] = [push for push in group.pushes("n2") if push.session > compare.session + 1]
    assert again.index == compare.index
    leader.step("n2", late)
    assert state_of(group, "n2") == "COMPARE"
    leader.step("n2", answer_of(group, again, end_index=2))
    assert state_of(group, "n2") == "APPEND"


COMPARED = [
    # leader's terms, follower's terms, follower's log in the end begins at, what it had to do
    pytest.param((1, 1, 2), (1, 1, 2), None, id="1-equal"),
    pytest.param((1, 1, 2), (1, 1, 2, 2), TruncateAfter(2), id="2-longer"),
    pytest.param((1, 1, 2), (), Reset(0, 0), id="3-empty"),
    pytest.param((1, 1, 2), (1, 1), None, id="5-shorter"),
    pytest.param((1, 1, 4, 4), (1, 1, 2, 2), TruncateAfter(1), id="6-conflict"),
    pytest.param((1, 1, 4), (1, 1, 2, 2, 3), TruncateAfter(1), id="5-6-longer-conflict"),
    pytest.param((1, 4), (2, 2, 3), Reset(0, 0), id="7-nothing-in-common"),
]


@pytest.mark.rule("D-04", "D-13")
def test_a_silent_peer_that_speaks_again_is_asked_again_at_once() -> None:
    group = Group({"n1": log_of(1), "n2": log_of(1), "n3": log_of(1)})
    elect_with_silent_n2(group)
    group.pass_time(1_200, "n1", "n3")
    assert group.pushes("n2") == []
    group["n1"].step("n2", HeartbeatAnswer(group.leader.core.term, 1))
    group["n1"].tick()
    assert [push.type for push in group.pushes("n2")] == [PushType.COMPARE]


@pytest.mark.rule("D-12")
def test_a_peer_that_is_reset_counts_for_nothing_until_it_has_answered() -> None:
    """Its earlier acknowledgements end with the log that it gives up."""
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    assert watermark_of(group, "n2") == 0
    leader.append()
    [push] = group.pushes("n2")
    leader.step("n2", answer_of(group, push, PushCode.INCONSISTENT_STATE))
    [compare] = group.pushes("n2")
    leader.step("n2", answer_of(group, compare, PushCode.INCONSISTENT_STATE, begin_index=NO_INDEX))
    [truncate] = group.pushes("n2")
    assert (truncate.type, truncate.reset) == (PushType.TRUNCATE, True)
    assert watermark_of(group, "n2") == NO_INDEX


def test_the_status_has_the_time_at_which_each_peer_answered_last() -> None:
    group = Group(3)
    group.elect("n1")
    group.settle()
    answered_ms = group.now_ms
    group.pass_time(2_000, "n1", "n3")
    heard = {peer.id: peer.heard_ms for peer in group.leader.core.status().peers}
    assert heard["n2"] == answered_ms
    assert heard["n3"] is not None
    assert heard["n3"] > group.now_ms - group.raft.election_timeout_ms[1]
