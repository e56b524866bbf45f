"""Tests that planted bugs need: each fails under one bug that the simulator seldom or never meets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from app.api.read.reader import Reader
from app.api.read.selection import Consistency
from app.errors import CommitlogError, ReadIndexUnavailable
from app.log.contract import NO_INDEX, ChangeKind, Role
from app.log.driver_interfaces import DriverConfig
from app.log.state import DAY_MS, LogState
from app.node.network.wire import decode, encode
from app.node.opening import open_replica
from app.node.replica.commit_waiters import CommitWaiters
from app.node.replica.read_gate import ReadGate
from app.node.state import checkpoints
from app.node.state.checkpoints import Checkpointer, _Taken
from app.raft.messages import (
    Heartbeat,
    PushAnswer,
    PushRequest,
    PushType,
    StateChunk,
    VoteAnswer,
    VoteRequest,
)
from storage.format.batch import AppendMark
from storage.format.records import encode_control
from tests.unit.node.replica.driver_support import Node, follower_of_n2, push_to, result
from tests.unit.node.replica.test_driver_state_transfer import transferred
from tests.unit.raft.support import Group, MemoryLog, body_of, log_of
from tests.unit.raft.test_entry_handler import Leader


@pytest.mark.rule("R-12")
def test_the_committed_index_before_the_comparison_proves_nothing() -> None:
    """The leader may commit by a copy whose loss it learns of only with the next comparison."""
    group = Group(3)
    n1 = group.elect("n1")
    group.settle()
    group.pass_time(200)
    n1.auto_sync = group["n3"].auto_sync = False
    n1.append()
    group.settle()
    n2 = group["n2"]
    assert n1.core.committed_index == 0
    assert n2.log.durable_index == 1
    n2.log.batches = n2.log.batches[:1]  # its disk loses index 1, and it knows of the damage
    n2.log.durable_index = 0
    n2.restart(sound=False)
    dispatcher = n1.core._peers.dispatchers["n2"]
    dispatcher._enter_compare()
    dispatcher.step(group.now_ms)
    n1.run()
    for _ in range(2):  # COMPARE at 1 fails, COMPARE at 0 finds equal logs; that answer is late
        for answer in group.take(source="n2", target="n1", kind=PushAnswer):
            assert isinstance(answer, PushAnswer)
            assert not answer.sound
            n1.step("n2", replace(answer, sound=True))  # a leader of the version before does not read that
        for push in group.pushes("n2"):
            if push.type is PushType.COMPARE:
                n2.step("n1", push)
    assert n2.core._handler.matched_index == 0
    n1.sync()  # the leader's own copy is durable, and it still counts the lost one
    assert n1.core.committed_index == 1
    n2.tick()
    assert not n2.core.sound


@pytest.mark.rule("D-12")
def test_a_reset_takes_back_keys_that_were_not_committed(tmp_path: Path) -> None:
    node, log = follower_of_n2(tmp_path)  # index 0: the opening of term 1, index 1: an append with the key k
    for index in (0, 1):
        push_to(node, PushType.APPEND, 1, "n2", 0, log.batch_at(index))
        node.seams.run()
    for _ in range(4):
        batch = log.stamp(body_of(1, b"x"), 1)
        log.write([batch])
        push_to(node, PushType.APPEND, 1, "n2", 0, batch)
        node.seams.run()
    driver: Any = node.driver
    assert (driver.log.end_index, driver.committed_index) == (5, 0)
    assert driver.state.find_key("k") is not None
    other = MemoryLog()  # of the leader of term 2, which committed other records from 1 on, and trimmed to 3
    other.write([log.batch_at(0)])
    other.write([other.stamp(encode_control({"kind": "term", "leader": "n3"}), 2, control=True)])
    for _ in range(3):
        other.write([other.stamp(body_of(1, b"y"), 2)])
    incarnation = driver._core._handler._incarnation
    driver.deliver("n3", Heartbeat(2, "n3", 4, 1))
    node.seams.run()
    push = PushRequest(
        2, PushType.TRUNCATE, "n3", 4, 1, incarnation, 2, 0, 3, True, False, (other.batch_at(3),)
    )
    driver.deliver("n3", push)
    node.seams.run()
    assert driver.log.begin_index == 3
    assert driver.state.find_key("k") is None
    assert not driver._core.electable


@pytest.mark.rule("R-10")
def test_a_leader_that_removed_itself_does_not_count_itself() -> None:
    group = Group(3)
    n1 = group.elect("n1")
    group.settle()
    group.pass_time(300)
    for name in ("n2", "n3"):
        group[name].auto_sync = False
    n1.change(ChangeKind.REMOVE, "n1")
    group.settle()
    before = n1.core.committed_index
    group["n2"].sync()
    group.settle()
    assert n1.core.committed_index == before < n1.log.end_index  # n2 alone is no majority of n2 and n3
    group["n3"].sync()
    group.settle()
    assert n1.core.committed_index == n1.log.end_index


@pytest.mark.rule("R-08")
@pytest.mark.parametrize("consistency", [Consistency.LINEARIZABLE, Consistency.COMMITTED])
def test_a_read_shows_no_record_beyond_the_committed_index(consistency: Consistency) -> None:
    driver = SimpleNamespace(committed_index=2, log=SimpleNamespace(begin_index=0, end_index=5))
    here: Any = SimpleNamespace(broker=None, hosted=None, driver=driver)
    assert Reader(here, consistency).visible_end == 2
    assert Reader(here, Consistency.LOCAL).visible_end == 5


@pytest.mark.rule("R-08")
def test_a_confirmed_read_waits_until_this_replica_has_its_index() -> None:
    waiters = CommitWaiters()
    gate = ReadGate(1_000, waiters.add)
    answers: list[Any] = []
    gate.give(answers.append, 5, 0)
    waiters.wake(4)
    assert answers == []
    waiters.wake(5)
    assert answers == [5]


@pytest.mark.rule("R-08")
def test_a_confirmed_read_that_was_given_up_is_not_answered_again() -> None:
    waiters = CommitWaiters()
    gate = ReadGate(1_000, waiters.add)
    answers: list[Any] = []
    gate.give(answers.append, 5, 0)
    gate.give_up(1_000)
    waiters.wake(5)
    assert [type(answer) for answer in answers] == [ReadIndexUnavailable]


@pytest.mark.rule("R-03")
def test_a_grant_of_an_earlier_pre_vote_does_not_count() -> None:
    group = Group(3)
    n1 = group["n1"]
    group.wait(3_000)
    n1.tick()
    assert n1.core.role is Role.CANDIDATE
    n1.step("n2", VoteAnswer(0, True, True))  # of a ballot for term 0; this one is for term 1
    assert n1.core.term == 0


@pytest.mark.rule("R-01")
def test_a_member_that_follows_a_leader_gives_no_vote_in_its_term() -> None:
    group = Group(3)
    n2 = group["n2"]
    n2.step("n1", Heartbeat(1, "n1", NO_INDEX, 1))
    group.take()
    n2.step("n3", VoteRequest(1, 5, 1, False, False))
    [answer] = group.take(source="n2", kind=VoteAnswer)
    assert isinstance(answer, VoteAnswer)
    assert not answer.granted


@pytest.mark.rule("R-12")
def test_a_truncation_without_room_for_its_batch_takes_back_what_was_matched() -> None:
    leader = Leader(log_of(1, 1, 1), log_of(1, 1, 1))
    leader.compare(2)
    other = MemoryLog(log_of(1).batches)
    other.write([other.stamp(body_of(1, b"another"), 1)])
    leader.session = 2
    leader.follower.full = True
    leader.send(leader.push(PushType.TRUNCATE, 0, other.batch_at(1)))
    assert leader.follower.log.end_index == 0
    leader.follower.step("n1", Heartbeat(leader.term, "n1", 2, 1))
    assert leader.follower.core.committed_index <= 0


@pytest.mark.rule("D-20")
def test_a_snapshot_that_is_not_saved_yet_goes_with_a_truncation() -> None:
    log: Any = SimpleNamespace(durable_index=NO_INDEX, last_chain=b"c" * 16)
    saved: list[Any] = []
    file: Any = SimpleNamespace(save=lambda *payload: saved.append(payload))
    checkpoint_file: Any = SimpleNamespace(save=lambda _checkpoint: None)
    disk: Any = SimpleNamespace(submit=lambda work, then: then(work(), None))
    config = DriverConfig(checkpoint_interval_ms=1, snapshot_interval_ms=1_000)
    state = LogState()
    state.apply(log_of(1).batches[0])
    checkpointer = Checkpointer(log, checkpoint_file, file, disk, config, lambda _what, _error: None)
    for now_ms in (0, 1_000, 1_100, 1_200):
        checkpointer.tick(state, NO_INDEX, now_ms)
    checkpointer.log_truncated()
    log.durable_index = 0
    for now_ms in (1_300, 1_400):
        checkpointer.tick(state, NO_INDEX, now_ms)
    assert saved == []


@pytest.mark.rule("D-12")
def test_a_state_from_before_the_log_begins_is_asked_for_again(tmp_path: Path) -> None:
    """The leader's own state may be older than the first record of the replica that asks."""
    source, copy = Node(tmp_path / "source"), Node(tmp_path / "copy", "n1", "n2", "n3")
    for number in range(3):
        result(source.append(idempotency_key=f"k{number}"))
    copy.driver.log.reset(source.driver.log.next_index + 5, source.driver.log.end_offset + 4_096)
    with pytest.raises(AssertionError, match="did not come"):
        transferred(source, copy)
    assert copy.driver.state.find_key("k0") is None
    assert not copy.driver._state.transfer.is_whole


@pytest.mark.rule("D-20")
@pytest.mark.parametrize("bin_max", [checkpoints.BIN_MAX, 10])
def test_a_snapshot_of_a_replaced_batch_goes_back_to_what_was_committed(
    bin_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "BIN_MAX", bin_max)
    common = log_of(1).batches[0]

    def log_with(key: str, term: int) -> MemoryLog:
        log = MemoryLog([common])
        log.write([log.stamp(body_of(1, b"v"), term, marks=(AppendMark(0, 1, key, digest=b"d" * 16),))])
        return log

    before, after = log_with("old", 1), log_with("new", 2)
    state = LogState()
    for batch in before.batches:
        state.apply(batch)
    state.committed(0)
    taken = _Taken(state.capture(), before.last_chain)
    taken.copy(1 << 30)
    file: Any = SimpleNamespace(load=lambda: b"".join(taken.payload()))
    log: Any = after
    loaded, safe_index = open_replica.load_state(log, file, idempotency_ms=DAY_MS)
    assert safe_index == 0
    assert loaded.find_key("old") is None
    assert loaded.find_key("new") is not None


class Huge(bytes):
    """A piece of a state that claims a size of more than 32 bits."""

    def __len__(self) -> int:
        return 5 << 30


@pytest.mark.rule("D-20")
def test_a_state_of_more_than_four_gibibytes_is_stored_with_its_size() -> None:
    capture: Any = None
    taken = _Taken(capture, b"c" * 16, [Huge()])
    head, _piece = taken.payload()
    assert checkpoints._LARGE_HEAD.unpack_from(head) == (0xC1, 16, 5 << 30)
    chunk = StateChunk(1, 5 << 30, 6 << 30, 7, b"piece")
    assert decode(memoryview(b"".join(encode(1, chunk)))) == (1, chunk)
    with pytest.raises(ValueError, match="sizes"):
        checkpoints._decode_saved(memoryview(head + b"a piece of it"))
    with pytest.raises(ValueError, match="too short"):
        checkpoints._decode_saved(memoryview(head[:5]))


def test_a_read_that_has_its_index_is_not_counted_until_its_deadline() -> None:
    """Or the metric of waiting reads grows with the reads of the last seconds."""
    waiters = CommitWaiters()
    answers: list[int | CommitlogError] = []
    gate = ReadGate(1_000, waiters.add)
    for index in (5, 5, 9):
        gate.give(answers.append, index, now_ms=0)
    assert gate.waiting_count == 3
    waiters.wake(5)
    gate.give_up(10)
    assert (answers, gate.waiting_count) == ([5, 5], 1)
    gate.give_up(1_000)
    assert isinstance(answers[2], ReadIndexUnavailable)
    waiters.wake(9)
    assert (len(answers), gate.waiting_count) == (3, 0)
