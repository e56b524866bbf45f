"""State of a log that begins after the past: another replica sends it, in pieces of one snapshot."""

from pathlib import Path

import pytest

from app.log.commands import MoveCursor, Trim
from app.log.driver_interfaces import DriverConfig
from app.log.producers import Producer
from app.node.network.wire import decode, encode
from app.raft.messages import StateChunk, StateRequest
from storage.errors import CorruptFile
from storage.files import OsFileSystem
from storage.log.commitlog import Commitlog
from tests.unit.node.replica.driver_support import Node, classic_mode, result
from tests.unit.node.replica.test_driver_commands import done
from tests.unit.storage.support import sync_log


def test_a_log_that_begins_after_the_past_gets_its_state_and_does_not_lead_before(tmp_path: Path) -> None:
    """The state of the past comes piece by piece from the leader; lost pieces are asked for again."""
    source = Node(tmp_path / "source")
    result(source.append(idempotency_key="k"))
    done(source.command(MoveCursor("etl", 1, fence=False)))
    for _ in range(10):
        source.append()
    transfer = source.driver._state.transfer
    copy = Node(tmp_path / "copy", "n1", "n2", "n3", config=DriverConfig())
    copy.driver.log.reset(6, source.driver.log.batch_at(6).offset)
    copy.driver.log.append(source.driver.log.read_batches(6, 1 << 20))
    taking = copy.driver._state.transfer
    assert not taking.is_whole
    taking.tick("n2", 1_000)
    taking.tick("n2", 1_500)
    [(_, lost)] = copy.seams.sent[-1:]
    taking.tick("n2", 2_000)
    [(_, request)] = copy.seams.sent[-1:]
    assert isinstance(request, StateRequest)
    assert isinstance(lost, StateRequest)
    transfer.serve("n1", request)
    [(_, chunk)] = source.seams.sent[-1:]
    assert isinstance(chunk, StateChunk)
    taking.take("n2", StateChunk(lost.id, chunk.offset, chunk.total, chunk.crc, chunk.data), 2_100)
    assert not taking.is_whole
    taking.take("n2", chunk, 2_100)
    assert taking.is_whole
    state = copy.driver.state
    assert state.find_key("k") is not None
    assert state.cursors["etl"].position == 1
    assert state.applied_index == copy.driver.log.end_index


@pytest.mark.rule("R-08")
def test_a_received_state_counts_as_committed_what_its_replica_knows_so(tmp_path: Path) -> None:
    """Nothing else would commit it before the next record: readers got values of before the transfer."""
    source = Node(tmp_path / "source")
    done(source.command(MoveCursor("etl", 1, fence=False)))
    for _ in range(6):
        source.append()
    copy = Node(tmp_path / "copy", "n1", "n2", "n3")
    copy.driver.log.reset(6, source.driver.log.batch_at(6).offset)
    copy.driver._state.transfer.tick("n2", 1_000)
    [(_, request)] = copy.seams.sent[-1:]
    source.driver._state.serve("n1", request)
    [(_, chunk)] = source.seams.sent[-1:]
    moved = done(source.command(MoveCursor("etl", 5, fence=False)))
    copy.driver.log.append(source.driver.log.read_batches(6, 1 << 20))
    copy.driver._core._member.committed_index = moved.index  # type: ignore[attr-defined]
    copy.driver._executor.carry_out()
    copy.driver._state.take("n2", chunk, 1_100)
    cursor = copy.driver.state.committed_cursor("etl")
    assert cursor is not None
    assert (cursor.position, copy.driver.state.committed_index) == (5, moved.index)


def test_a_replica_that_was_reset_learns_the_epoch_of_its_begin(tmp_path: Path) -> None:
    source = Node(tmp_path / "source")
    for _ in range(8):
        source.append()
    [opened] = source.driver.log.epochs
    copy = Node(tmp_path / "copy", "n1", "n2", "n3")
    copy.driver.log.reset(6, source.driver.log.batch_at(6).offset)
    copy.driver.log.append(source.driver.log.read_batches(6, 1 << 20))
    asking = copy.driver._state._begin_epoch
    asking.tick("n2", 1, 1_000)
    [(_, lost)] = copy.seams.sent[-1:]
    asking.tick("n2", 1, 1_999)
    [(_, request)] = copy.seams.sent[-1:]
    assert request is lost
    asking.tick("n2", 1, 2_000)
    [(_, request)] = copy.seams.sent[-1:]
    assert isinstance(request, StateRequest)
    assert request is not lost
    source.driver._state.serve("n1", request)
    [(_, chunk)] = source.seams.sent[-1:]
    assert isinstance(chunk, StateChunk)
    _, decoded = decode(memoryview(b"".join(encode(1, chunk))))
    assert isinstance(decoded, StateChunk)
    forged = StateChunk(chunk.id - 1, 0, 0, 0, b"", decoded.epoch)
    copy.driver._state.take("n2", forged, 1_100)
    assert copy.driver.log.epochs == ()
    copy.driver._state.take("n2", decoded, 1_100)
    assert copy.driver.log.epochs == (opened,)
    copy.seams.run()
    log = copy.driver.log
    reopened = Commitlog.open(OsFileSystem(), log.folder, log_id=log.log_id)
    assert reopened.epochs == (opened,)
    reopened.close()


def test_a_leader_that_does_not_know_the_epoch_of_a_begin_is_asked_once(tmp_path: Path) -> None:
    source = Node(tmp_path / "source")
    for _ in range(8):
        source.append()
    copy = Node(tmp_path / "copy", "n1", "n2", "n3")
    copy.driver.log.reset(6, source.driver.log.batch_at(6).offset)
    copy.driver.log.append(source.driver.log.read_batches(6, 1 << 20))
    asking = copy.driver._state._begin_epoch
    asking.tick("n2", 1, 1_000)
    [(_, request)] = copy.seams.sent[-1:]
    asked = len(copy.seams.sent)
    asking.take(StateChunk(request.id, 0, 4, 1, b"none"))
    asking.tick("n2", 1, 9_000)
    assert (len(copy.seams.sent), copy.driver.log.epochs) == (asked, ())


def test_an_answer_about_an_earlier_begin_is_not_one_about_the_present_one(tmp_path: Path) -> None:
    source = Node(tmp_path / "source")
    for _ in range(8):
        source.append()
    copy = Node(tmp_path / "copy", "n1", "n2", "n3")
    batches = source.driver.log.read_batches(6, 1 << 20)
    copy.driver.log.reset(6, batches[0].offset)
    copy.driver.log.append(batches)
    asking = copy.driver._state._begin_epoch
    asking.tick("n2", 1, 1_000)
    [(_, request)] = copy.seams.sent[-1:]
    copy.driver.log.reset(7, batches[1].offset)
    asking.take(StateChunk(request.id, 0, 0, 0, b""))  # it knows no epoch of the term asked for
    copy.driver.log.append(batches[1:])
    asking.tick("n2", 1, 1_100)
    [(_, request)] = copy.seams.sent[-1:]
    source.driver._state.serve("n1", request)
    [(_, chunk)] = source.seams.sent[-1:]
    asking.take(chunk)
    assert copy.driver.log.epochs == source.driver.log.epochs


def test_pieces_of_two_snapshots_are_never_put_together(tmp_path: Path) -> None:
    """Neither when the first question comes twice, nor when it was asked by an earlier incarnation."""
    source = Node(tmp_path / "source", config=DriverConfig(state_chunk_bytes=40))
    for number in range(10):
        result(source.append(idempotency_key=f"k{number}"))

    def served(request: StateRequest) -> StateChunk:
        source.driver._state.transfer.serve("n1", request)
        [(_, chunk)] = source.seams.sent[-1:]
        assert isinstance(chunk, StateChunk)
        return chunk

    def asked(copy: Node) -> StateRequest:
        [(_, request)] = copy.seams.sent[-1:]
        assert isinstance(request, StateRequest)
        return request

    def begun(folder: str, now_ms: int) -> Node:
        copy = Node(tmp_path / folder, "n1", "n2", "n3")
        copy.driver.log.reset(6, source.driver.log.batch_at(6).offset)
        copy.driver.log.append(source.driver.log.read_batches(6, 1 << 20, 9))
        copy.driver._state.transfer.tick("n2", now_ms)
        return copy

    copy = begun("copy", 1_000)
    request = asked(copy)
    chunk = served(request)
    result(source.append(idempotency_key="k0000"))
    served(request)  # the same question once more
    while not copy.driver._state.transfer.is_whole:
        copy.driver._state.transfer.take("n2", chunk, 1_000)
        chunk = served(asked(copy))
    assert copy.driver.state.find_key("k0") is not None
    assert copy.driver.state.find_key("k0000") is None

    late = served(request)
    another = begun("another", 2_000)
    another.driver._state.transfer.take("n2", late, 2_000)
    assert asked(another).offset == 0


def transferred(source: Node, copy: Node) -> None:
    """Let the copy ask the source for the log's state until it has it."""
    copy.driver._state.transfer.tick("n2", 1_000)
    for round_ in range(1_000):
        if copy.driver._state.transfer.is_whole:
            return
        [(_, request)] = copy.seams.sent[-1:]
        assert isinstance(request, StateRequest)
        before = len(source.seams.sent)
        source.driver._state.transfer.serve("n1", request)
        source.driver._state.transfer.tick(None, 1_000)
        if len(source.seams.sent) > before:
            [(_, chunk)] = source.seams.sent[-1:]
            assert isinstance(chunk, StateChunk)
            copy.driver._state.transfer.take("n2", chunk, 1_000 + round_)
        copy.driver._state.transfer.tick("n2", 1_000 + round_)
    raise AssertionError("the state did not come")


@pytest.mark.rule("D-12")
def test_the_state_that_is_sent_holds_what_is_committed_alone(tmp_path: Path) -> None:
    """Else a replica would answer a repeat by an append that was truncated everywhere."""
    source, copy = Node(tmp_path / "source"), Node(tmp_path / "copy", "n1", "n2", "n3")
    for number in range(8):
        result(source.append(idempotency_key=f"k{number}", producer=Producer(f"p{number}", 0, 3)))
    result(source.append())
    source.ask(idempotency_key="late", producer=Producer("p0", 0, 4))
    source.driver.command(MoveCursor("late", 1, True), lambda _: None)
    source.seams.turn()  # written, neither durable nor committed
    log = source.driver.log
    assert (log.end_index, source.driver.committed_index) == (11, 9)
    copy.driver.log.reset(9, log.batch_at(9).offset)
    copy.driver.log.append(log.read_batches(9, 1 << 20, 9))
    transferred(source, copy)
    state = copy.driver.state
    assert state.applied_index == 9
    assert all(state.find_key(f"k{number}") is not None for number in range(8))
    assert state.find_key("late") is None
    assert state.check_producer("p0", 0, 4) is None
    assert list(state.cursors) == []


def test_a_large_state_is_sent_and_taken_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is copied and replayed both logs go on; a truncation makes the replay begin again."""
    monkeypatch.setattr("app.node.state.state_transfer.COPY_BYTES", 300)
    monkeypatch.setattr("app.node.state.state_transfer.REPLAY_BYTES", 1)
    source = Node(tmp_path / "source", config=DriverConfig(state_chunk_bytes=100))
    copy = Node(tmp_path / "copy", "n1", "n2", "n3")
    for number in range(30):
        result(source.append(idempotency_key=f"k{number}"))
    log = source.driver.log
    copy.driver.log.reset(20, log.batch_at(20).offset)
    copy.driver.log.append(log.read_batches(20, 1 << 20, 25))
    copy.driver._state.transfer.tick("n2", 500)
    [(_, request)] = copy.seams.sent[-1:]
    source.driver._state.transfer.serve("n1", request)  # begins the copy
    result(source.append(idempotency_key="later"))
    transferred(source, copy)
    state = copy.driver.state
    assert all(state.find_key(f"k{number}") is not None for number in range(25))
    assert state.applied_index >= 25


def test_a_large_snapshot_is_copied_in_slices_and_is_of_one_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.node.state.checkpoints.SLICE_BYTES", 300)
    node = Node(tmp_path, config=DriverConfig(checkpoint_interval_ms=20, snapshot_interval_ms=10_000))
    for number in range(50):
        result(node.append(idempotency_key=f"k{number}"))
    node.tick(1)
    checkpointer = node.driver._state.checkpointer
    checkpointer.demand()
    node.tick(20)
    assert checkpointer.safe_index == -1  # the first slices alone
    slices = 0
    while checkpointer.safe_index == -1:
        result(node.append(idempotency_key=f"later{slices}"))
        node.tick(20)
        slices += 1
    assert slices > 5
    assert checkpointer.safe_index == 50
    for _ in range(2):
        node.restart()
        again = result(node.append(idempotency_key="later0"))
        assert (again.first_index, again.replayed) == (51, True)
        assert result(node.append(idempotency_key="k7")).first_index == 8


def test_a_snapshot_is_thrown_away_when_the_log_is_truncated_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.node.state.checkpoints.SLICE_BYTES", 300)
    node = Node(tmp_path, config=DriverConfig(checkpoint_interval_ms=20))
    for number in range(50):
        result(node.append(idempotency_key=f"k{number}"))
    checkpointer = node.driver._state.checkpointer
    node.tick(1)
    checkpointer.demand()
    node.tick(20)
    checkpointer.log_truncated()
    for _ in range(20):
        node.tick(20)
    assert checkpointer.safe_index == -1


@pytest.mark.rule("D-12")
def test_without_a_leader_the_peers_are_asked_for_the_state_in_turn(tmp_path: Path) -> None:
    """This copy may hold the longest log, and no other can be elected."""
    source, copy = Node(tmp_path / "source"), Node(tmp_path / "copy", "n1", "n2", "n3")
    for number in range(4):
        result(source.append(idempotency_key=f"k{number}"))
    log = source.driver.log
    copy.driver.log.reset(3, log.batch_at(3).offset)
    copy.driver.log.append(log.read_batches(3, 1 << 20))
    keeper = copy.driver._state
    keeper.judge_electable()
    assert copy.driver.leader_id is None
    assert not copy.driver._core.electable
    asked = []
    for _ in range(3):
        copy.seams.sent.clear()
        keeper.tick(copy.seams.now)
        asked += [(peer, sent) for peer, sent in copy.seams.sent if isinstance(sent, StateRequest)]
        copy.seams.now += 1_000
    assert [peer for peer, _ in asked] in (["n2", "n3", "n2"], ["n3", "n2", "n3"])
    transferred(source, copy)
    assert copy.driver.state.find_key("k0") is not None
    assert copy.driver._core.electable


@pytest.mark.rule("C-08")
def test_a_copy_of_a_log_with_a_master_may_join_once_its_state_is_on_its_disk(tmp_path: Path) -> None:
    """After a crash it has only what is there, and no other copy may be left to send the state again."""
    source = Node(tmp_path / "source")
    for number in range(4):
        result(source.append(idempotency_key=f"k{number}"))
    done(source.command(Trim(3)))
    copy = Node(tmp_path / "copy", mode=classic_mode("n2"))
    log = source.driver.log
    copy.driver.log.reset(3, log.batch_at(3).offset)
    copy.driver.log.append(log.read_batches(3, 1 << 20))
    sync_log(copy.driver.log)
    copy.driver._state.judge_electable()
    transferred(source, copy)
    assert copy.driver.state.find_key("k0") is not None
    assert not copy.driver._core.electable
    for _ in range(20):
        copy.tick(200)
    assert copy.driver._core.electable


@pytest.mark.parametrize("voters", [("n1",), ("n1", "n2")])
def test_a_trimmed_log_whose_state_is_missing_is_damaged_unless_another_replica_may_have_it(
    voters: tuple[str, ...], tmp_path: Path
) -> None:
    """The only copy could never lead again, and would not report why."""
    node = Node(tmp_path)
    for _ in range(10):
        node.append()
    done(node.command(Trim(4)))
    for _ in range(4):
        node.tick(20)
    assert node.driver.log.begin_index == 4
    node.restart()
    (tmp_path / "logs/default/state").unlink()
    (tmp_path / "logs/default/group").unlink(missing_ok=True)
    node.voters = voters
    if len(voters) > 1:
        node.restart()
        assert node.driver.log.begin_index == 4
        return
    with pytest.raises(CorruptFile, match="missing"):
        node.restart()
