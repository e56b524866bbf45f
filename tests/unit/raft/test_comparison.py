"""Dispatcher: the comparison of a peer with the leader, and what ends it (D-12 to D-14)."""

import pytest

from app.log.contract import NO_INDEX
from app.raft.messages import PushCode, PushType
from tests.unit.raft.support import Group, log_of
from tests.unit.raft.test_dispatcher import COMPARED, answer_of, elect_with_silent_n2, state_of, watermark_of


@pytest.mark.rule("D-12", "D-14")
@pytest.mark.parametrize(("ours", "theirs", "change"), COMPARED)
def test_every_outcome_of_compare_ends_with_equal_logs(
    ours: tuple[int, ...], theirs: tuple[int, ...], change: object
) -> None:
    group = Group({"n1": log_of(*ours), "n2": log_of(*theirs), "n3": log_of(*ours)})
    group.elect("n1", "n1", "n3")
    group.pass_time(4_000)
    assert group["n2"].log.batches == group["n1"].log.batches
    assert state_of(group, "n2") == "APPEND"
    assert group["n2"].log.truncations == ([] if change is None else [change])


@pytest.mark.rule("D-12")
def test_case_1_equal_ends_go_to_append() -> None:
    group = Group({"n1": log_of(1, 1), "n2": log_of(1), "n3": log_of(1, 1)})
    request = elect_with_silent_n2(group)
    group["n1"].step("n2", answer_of(group, request, end_index=request.index))
    assert state_of(group, "n2") == "APPEND"


@pytest.mark.rule("D-12", "D-14")
def test_case_2_equal_but_longer_truncates_behind_the_compare_index() -> None:
    group = Group({"n1": log_of(1, 1), "n2": log_of(1), "n3": log_of(1, 1)})
    request = elect_with_silent_n2(group)
    group["n1"].step("n2", answer_of(group, request, end_index=8))
    [push] = group.pushes("n2")
    assert (push.type, push.truncate_index, push.reset) == (PushType.TRUNCATE, request.index, False)
    assert push.batches == (group["n1"].log.batch_at(request.index),)


@pytest.mark.rule("D-12", "D-14")
@pytest.mark.parametrize(
    ("begin_index", "end_index", "conflict"),
    [
        pytest.param(NO_INDEX, 1, (0, NO_INDEX), id="3-ends-before-our-begin"),
        pytest.param(50, 60, (0, NO_INDEX), id="3-begins-behind-our-end"),
        pytest.param(6, 7, (0, NO_INDEX), id="4-compared-before-its-begin"),
        pytest.param(0, 9, (1, 1), id="7-further-back-than-our-begin"),
    ],
)
def test_cases_3_4_and_7_start_again_at_the_leaders_begin(
    begin_index: int, end_index: int, conflict: tuple[int, int]
) -> None:
    log = log_of(1, 1, 1, 1, 1)
    log.trim(3)
    group = Group({"n1": log, "n2": log_of(1), "n3": log_of(1, 1, 1, 1, 1)})
    request = elect_with_silent_n2(group)
    answer = answer_of(
        group,
        request,
        PushCode.INCONSISTENT_STATE,
        begin_index=begin_index,
        end_index=end_index,
        conflict=conflict,
    )
    group["n1"].step("n2", answer)
    [push] = group.pushes("n2")
    assert (push.type, push.truncate_index, push.reset, push.leader_begin) == (PushType.TRUNCATE, 3, True, 3)


@pytest.mark.rule("D-12", "R-02")
@pytest.mark.parametrize(
    ("empty_at", "begin_index"), [(NO_INDEX, 2), (0, 2), (1, 2), (3, 3), (4, 4), (50, 2)]
)
def test_a_peer_that_an_earlier_reset_left_empty_begins_no_earlier_than_before(
    empty_at: int, begin_index: int
) -> None:
    """Everything before its beginning was committed: an earlier begin would forget that."""
    log = log_of(1, 1, 1, 1, 1)
    log.trim(2)
    group = Group({"n1": log, "n2": log_of(1), "n3": log_of(1, 1, 1, 1, 1)})
    request = elect_with_silent_n2(group)
    answer = answer_of(group, request, PushCode.INCONSISTENT_STATE, begin_index=empty_at, end_index=NO_INDEX)
    group["n1"].step("n2", answer)
    [push] = group.pushes("n2")
    assert (push.type, push.truncate_index, push.reset) == (PushType.TRUNCATE, begin_index, True)


@pytest.mark.rule("D-12")
def test_records_trimmed_while_the_peer_was_asked_are_compared_again() -> None:
    group = Group({"n1": log_of(1, 1), "n2": log_of(1, 1), "n3": log_of(1, 1)})
    request = elect_with_silent_n2(group)
    leader = group["n1"]
    leader.append()
    group.settle("n1", "n3")
    leader.log.trim(request.index + 1)
    group.pushes("n2")
    leader.step("n2", answer_of(group, request, end_index=request.index))
    [push] = group.pushes("n2")
    assert (push.type, push.index) == (PushType.COMPARE, leader.log.end_index)


@pytest.mark.rule("D-12")
def test_case_5_the_followers_end_is_compared_next() -> None:
    group = Group({"n1": log_of(1, 1, 1, 1), "n2": log_of(1), "n3": log_of(1, 1, 1, 1)})
    request = elect_with_silent_n2(group)
    answer = answer_of(group, request, PushCode.INCONSISTENT_STATE, end_index=2, conflict=(1, 2))
    group["n1"].step("n2", answer)
    [push] = group.pushes("n2")
    assert (push.type, push.index, push.index_term) == (PushType.COMPARE, 2, 1)


@pytest.mark.rule("D-12")
def test_case_5_within_a_batch_of_the_leader_continues_at_the_batch_before() -> None:
    group = Group({"n1": log_of(1, 1, 2, count=3), "n2": log_of(1), "n3": log_of(1, 1, 2, count=3)})
    request = elect_with_silent_n2(group)
    answer = answer_of(group, request, PushCode.INCONSISTENT_STATE, end_index=7, conflict=(2, 7))
    group["n1"].step("n2", answer)
    [push] = group.pushes("n2")
    assert (push.type, push.index) == (PushType.COMPARE, 5)


@pytest.mark.rule("D-13")
def test_the_comparison_takes_a_step_for_each_term_not_for_each_record() -> None:
    ours = (1,) * 300 + (2,) * 300 + (5,) * 300
    theirs = (1,) * 300 + (3,) * 500 + (4,) * 500
    group = Group({"n1": log_of(*ours), "n2": log_of(*theirs), "n3": log_of(*ours)})
    group.elect("n1", "n1", "n3")
    compared = []
    for _ in range(10):
        group["n1"].tick()
        compared += [
            m.index for _, to, m in group.sent if to == "n2" and getattr(m, "type", 0) is PushType.COMPARE
        ]
        group.deliver()
        group.wait(200)
    assert len(compared) <= 4
    group.pass_time(4_000)
    assert group["n2"].log.batches == group["n1"].log.batches


@pytest.mark.rule("D-14")
def test_truncate_is_repeated_until_the_peers_end_is_the_truncate_index() -> None:
    group = Group({"n1": log_of(1, 1), "n2": log_of(1), "n3": log_of(1, 1)})
    request = elect_with_silent_n2(group)
    leader = group["n1"]
    leader.step("n2", answer_of(group, request, end_index=8))
    [push] = group.pushes("n2")
    leader.step("n2", answer_of(group, push, index=2, end_index=8))
    assert (state_of(group, "n2"), watermark_of(group, "n2")) == ("TRUNCATE", NO_INDEX)
    leader.step("n2", answer_of(group, push, PushCode.REFUSED, index=2, end_index=2))
    assert (state_of(group, "n2"), watermark_of(group, "n2")) == ("TRUNCATE", NO_INDEX)
    group.pass_time(group.raft.compare_timeout_ms, "n1", "n3")
    [again] = group.pushes("n2")
    assert (again.type, again.truncate_index) == (PushType.TRUNCATE, 2)
    leader.step("n2", answer_of(group, again, index=2, end_index=2))
    assert (state_of(group, "n2"), watermark_of(group, "n2")) == ("APPEND", 2)
