"""Entry handler: what a follower has acknowledged is durable, whatever arrives late (R-11)."""

import pytest

from app.log.contract import NO_INDEX, Durability
from app.raft.messages import Heartbeat, PushCode, PushType
from tests.unit.raft.support import Group, log_of
from tests.unit.raft.test_entry_handler import Leader, codes


@pytest.mark.rule("R-11")
def test_an_append_is_acknowledged_only_when_it_is_durable() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1))
    leader.compare(0)
    leader.follower.auto_sync = False
    assert leader.append(1) == []
    assert leader.append(1) == []  # a repeat is no way round it
    assert leader.append(2) == []
    leader.follower.sync()
    assert codes(leader.answers()) == [(PushCode.SUCCESS, 2)]  # one cumulative answer
    assert codes(leader.commit(2)) == [(PushCode.SUCCESS, 2)]


@pytest.mark.rule("R-11", "D-19")
def test_the_rest_of_a_partial_sync_is_acknowledged_after_the_next_one() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1))
    leader.compare(0)
    follower = leader.follower
    follower.auto_sync = False
    assert leader.append(1) == []
    assert leader.append(2) == []  # written while the sync of the first was in progress
    for durable_index in (1, 2):
        follower.log.durable_index = durable_index
        follower.core.synced(leader.group.now_ms)
        follower.run()
        assert codes(leader.answers()) == [(PushCode.SUCCESS, durable_index)]


@pytest.mark.rule("R-11")
def test_commit_answers_name_only_what_is_durable() -> None:
    leader = Leader(log_of(1, 1), log_of(1))
    leader.compare(0)
    leader.follower.auto_sync = False
    leader.append(1)
    [answer] = leader.commit(1)
    assert (answer.index, answer.end_index) == (0, 0)


@pytest.mark.rule("R-11")
def test_with_replicated_durability_written_is_enough() -> None:
    leader = Leader(log_of(1, 1), log_of(1))
    leader.follower.core._member.durability = Durability.REPLICATED
    leader.compare(0)
    leader.follower.auto_sync = False
    assert codes(leader.append(1)) == [(PushCode.SUCCESS, 1)]


@pytest.mark.rule("R-11")
def test_a_follower_that_does_not_know_fsync_yet_acknowledges_to_its_leader_what_is_on_disk() -> None:
    """A changed setting, by a call or by a restart node by node, reaches the leader first."""
    leader = Leader(log_of(1, 1, 1), log_of(1))
    leader.follower.core._member.durability = Durability.REPLICATED
    leader.compare(0)
    leader.follower.auto_sync = False
    leader.syncs = True
    assert leader.append(1) == []
    leader.follower.sync()
    assert codes(leader.answers()) == [(PushCode.SUCCESS, 1)]
    leader.syncs = False
    assert codes(leader.append(2)) == [(PushCode.SUCCESS, 2)]


@pytest.mark.rule("R-11", "D-16")
def test_a_late_push_does_not_weaken_what_later_ones_ask_for() -> None:
    """The leader has changed to fsync between two pushes, and the second one arrives first."""
    leader = Leader(log_of(1, 1, 1, 1, 1), log_of(1))
    leader.follower.core._member.durability = Durability.REPLICATED
    leader.compare(0)
    leader.follower.auto_sync = False
    before = leader.push(PushType.APPEND, 0, leader.log.batch_at(1)), leader.push(PushType.COMMIT, 0)
    leader.syncs = True
    assert leader.append(2) == []
    for late in before:
        assert [answer.index for answer in leader.send(late)] in ([], [0])
    assert leader.follower.log.end_index == 2
    leader.follower.sync()
    assert codes(leader.answers()) == [(PushCode.SUCCESS, 2)]
    leader.syncs = False  # it has changed back
    assert codes(leader.append(3)) == [(PushCode.SUCCESS, 3)]


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("durability", list(Durability))
def test_a_leader_asks_for_the_durability_that_it_promises(durability: Durability) -> None:
    group, leader = Group(3, durability=durability), "n1"
    group.elect(leader)
    group.settle()
    group[leader].append()
    [push] = group.pushes("n2")
    assert push.syncs is (durability is Durability.FSYNC)


@pytest.mark.rule("D-14")
def test_compare_and_truncate_are_answered_only_when_the_named_end_is_durable() -> None:
    theirs = log_of(1, 1)
    leader = Leader(log_of(1, 1, 3), theirs)
    leader.follower.auto_sync = False
    theirs.add(2)
    assert leader.compare(1) == []
    leader.follower.sync()
    [answer] = leader.answers()
    assert (answer.code, answer.end_index) == (PushCode.SUCCESS, 2)
    assert leader.truncate(2) == []
    leader.follower.sync()
    [answer] = leader.answers()
    assert (answer.code, answer.end_index) == (PushCode.SUCCESS, 2)


@pytest.mark.rule("D-14", "D-16")
def test_a_late_truncate_of_an_earlier_session_takes_nothing_away() -> None:
    leader = Leader(log_of(1, 1, 1, 1), log_of(1, 1, 2))
    leader.compare(1)
    late = leader.push(PushType.TRUNCATE, 0, leader.log.batch_at(1))
    leader.send(late)
    leader.session = 2
    leader.append(2, 3)
    assert leader.send(late) == []
    assert leader.follower.log.end_index == 3


@pytest.mark.rule("D-14")
def test_a_late_truncate_is_known_for_one_also_after_the_leader_was_lost_and_found() -> None:
    leader = Leader(log_of(1, 1, 1, 1), log_of(1, 1, 2))
    leader.compare(1)
    late = leader.push(PushType.TRUNCATE, 0, leader.log.batch_at(1))
    leader.send(late)
    leader.session = 2
    leader.append(2, 3)
    leader.group.wait(2_000)
    leader.follower.tick()
    assert leader.follower.core.leader_id is None
    leader.follower.step("n1", Heartbeat(leader.term, "n1", NO_INDEX, 9))
    assert leader.send(late) == []
    assert leader.follower.log.end_index == 3


@pytest.mark.rule("D-14")
def test_a_truncate_meant_for_an_earlier_incarnation_takes_nothing_away() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1, 1))
    leader.compare(1)
    late = leader.push(PushType.TRUNCATE, 0, leader.log.batch_at(1))
    leader.append(2)
    leader.follower.restart()
    assert codes(leader.send(late)) == [(PushCode.INCONSISTENT_STATE, 0)]
    assert leader.follower.log.end_index == 2


def test_a_full_disk_is_answered_busy_and_nothing_of_the_push_stays() -> None:
    leader = Leader(log_of(1, 1), log_of(1))
    leader.compare(0)
    leader.follower.full = True
    assert codes(leader.append(1)) == [(PushCode.BUSY, 0)]
    leader.follower.full = False
    assert codes(leader.append(1)) == [(PushCode.SUCCESS, 1)]


@pytest.mark.rule("D-05")
def test_a_commit_that_names_more_than_is_held_is_inconsistent() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1), committed=2)
    leader.compare(0)
    assert codes(leader.commit(2)) == [(PushCode.INCONSISTENT_STATE, 2)]
    assert leader.follower.core.committed_index == 0
