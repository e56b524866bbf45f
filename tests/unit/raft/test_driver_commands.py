"""Commands at a driver: fences, cursors, trims; the state of a log that begins after the past."""

from pathlib import Path

from app.log_commands import ABSENT, CommandResult, DropCursor, MoveCursor, SetFence, Trim
from app.raft.messages import StateChunk, StateRequest
from app.replication import DriverConfig
from storage.commitlog import CommitlogConfig
from tests.unit.raft.driver_support import Node, code, result

SMALL = CommitlogConfig(segment_max_bytes=8 * 1024)


def done(answer: object) -> CommandResult:
    assert isinstance(answer, CommandResult), answer
    return answer


def test_a_command_is_a_control_record_of_its_own(node: Node) -> None:
    fence = done(node.command(SetFence("w-a")))
    assert (fence.index, fence.term, fence.changed) == (1, 1, True)
    assert node.driver.log.batch_at(1).is_control
    again = done(node.command(SetFence("w-a")))
    assert (again.index, again.changed) == (1, False)
    assert code(node.command(SetFence("w-b", match_token=None))) == "fenced"
    assert done(node.command(SetFence(None, match_token="w-a"))).changed


def test_fences_and_cursors_survive_a_restart(node: Node) -> None:
    done(node.command(SetFence("w-a")))
    made = done(node.command(MoveCursor("etl", 5, fence=True, if_match=ABSENT)))
    done(node.command(MoveCursor("gone", 1, fence=False)))
    done(node.command(DropCursor("gone")))
    node.restart()
    assert node.driver.state.fencing_token == "w-a"
    assert list(node.driver.state.cursors) == ["etl"]
    assert node.driver.state.cursors["etl"].revision == made.index


def test_a_trim_stops_at_a_readers_fence(node: Node) -> None:
    for _ in range(10):
        node.append()
    done(node.command(MoveCursor("etl", 4, fence=True)))
    assert code(node.command(Trim(6))) == "not-materialized"
    assert code(node.command(Trim(99))) == "invalid-request"
    done(node.command(Trim(4)))
    node.tick(20)
    node.tick(20)
    assert node.driver.log.begin_index == 4
    done(node.command(Trim(6, force=True)))
    node.tick(20)
    node.tick(20)
    assert node.driver.log.begin_index == 6
    assert not done(node.command(Trim(5))).changed


def test_nothing_is_trimmed_before_the_state_is_safe(tmp_path: Path) -> None:
    """Else a power cut would leave a log that nobody can lead: its keys are neither in it nor beside it."""
    node = Node(tmp_path)
    key = result(node.append(idempotency_key="k"))
    for _ in range(10):
        node.append()
    done(node.command(Trim(8)))
    assert node.driver.log.begin_index == 0
    node.tick(20)
    node.tick(20)
    assert node.driver.log.begin_index == 8
    node.restart()
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.replayed) == (key.first_index, True)


def test_a_repeat_of_what_is_trimmed_with_its_term_gets_the_first_answer(tmp_path: Path) -> None:
    """Nobody knows any more who led that term: whoever answers stands for it."""
    node = Node(tmp_path)
    first = result(node.append(idempotency_key="k"))
    node.restart()
    last = [result(node.append()) for _ in range(3)][-1]
    done(node.command(Trim(last.last_index)))
    for _ in range(2):
        node.tick(20)
    assert node.driver.log.begin_index == last.last_index
    assert node.driver.log.epochs[0].term > first.term
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.term, again.leader, again.replayed) == (
        first.first_index,
        first.term,
        node.driver.node_id,
        True,
    )


def test_a_log_that_begins_after_the_past_gets_its_state_and_does_not_lead_before(tmp_path: Path) -> None:
    """The state of the past comes piece by piece from the leader; lost pieces are asked for again."""
    source = Node(tmp_path / "source")
    result(source.append(idempotency_key="k"))
    done(source.command(MoveCursor("etl", 1, fence=False)))
    for _ in range(10):
        source.append()
    transfer = source.driver._transfer
    copy = Node(tmp_path / "copy", "n1", "n2", "n3", config=DriverConfig())
    copy.driver.log.reset(6, source.driver.log.batch_at(6).offset)
    copy.driver.log.append(source.driver.log.read_batches(6, 1 << 20))
    taking = copy.driver._transfer
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
    assert state.find_key("k", copy.seams.now_ms()) is not None
    assert state.cursors["etl"].position == 1
    assert state.applied_index == copy.driver.log.end_index


def test_a_snapshot_of_what_may_still_be_taken_back_makes_no_trim_safe(tmp_path: Path) -> None:
    """Once the batch that it rests on is trimmed, a restart only believes what was committed at its time."""
    node = Node(tmp_path, config=DriverConfig(checkpoint_interval_ms=20, snapshot_interval_ms=60))
    node.tick(20)
    node.append()
    asked = node.ask(idempotency_key="k")
    node.seams.turn()  # written, neither durable nor committed
    for _ in range(3):
        node.seams.now += 20
        node.driver.tick()  # the snapshot is taken
    node.seams.run()
    first = result(*asked)
    node.driver._checkpointer._snapshot_ms = 1 << 60  # and no other one by itself
    for _ in range(2):
        node.tick(20)
    assert node.driver._checkpointer._saved.state_index == first.last_index
    done(node.command(Trim(first.last_index + 1)))
    for _ in range(4):
        node.tick(20)
    assert node.driver.log.begin_index == first.last_index + 1
    node.restart()
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.replayed) == (first.first_index, True)


def test_pieces_of_two_snapshots_are_never_put_together(tmp_path: Path) -> None:
    """Neither when the first question comes twice, nor when it was asked by an earlier life."""
    source = Node(tmp_path / "source", config=DriverConfig(state_chunk_bytes=40))
    for number in range(10):
        result(source.append(idempotency_key=f"k{number}"))

    def served(request: StateRequest) -> StateChunk:
        source.driver._transfer.serve("n1", request)
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
        copy.driver._transfer.tick("n2", now_ms)
        return copy

    copy = begun("copy", 1_000)
    request = asked(copy)
    chunk = served(request)
    result(source.append(idempotency_key="k0000"))
    served(request)  # the same question once more
    while not copy.driver._transfer.is_whole:
        copy.driver._transfer.take("n2", chunk, 1_000)
        chunk = served(asked(copy))
    assert copy.driver.state.find_key("k0", copy.seams.now_ms()) is not None
    assert copy.driver.state.find_key("k0000", copy.seams.now_ms()) is None

    late = served(request)
    another = begun("another", 2_000)
    another.driver._transfer.take("n2", late, 2_000)
    assert asked(another).offset == 0
