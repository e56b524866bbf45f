"""Transfer of a log's state in pieces: of one snapshot, of a whole state, and of the present epoch; and a
received state where the replica begins to lead."""

from pathlib import Path

import msgspec
import pytest

from app.log.contract import TruncateAfter
from app.log.driver_interfaces import DriverConfig
from app.log.state import DAY_MS, LogState
from app.node.state.checkpoints import load_snapshot
from app.node.state.state_transfer import ASK_AGAIN_MS, StateTransfer
from app.raft.messages import Heartbeat, PushRequest, PushType, StateChunk, StateRequest
from storage.files import OsFileSystem
from storage.format.batch import AppendMark, stamp
from storage.log.checkpoint import SnapshotFile
from tests.unit.log.test_state import DIGEST, Log
from tests.unit.node.replica.driver_support import Node, follower_of_n2, push_to, result
from tests.unit.raft.support import LOG_ID, MemoryLog, body_of


def whole_node(folder: Path) -> Node:
    """A node whose state is sent in several pieces."""
    node = Node(folder / "whole", config=DriverConfig(state_chunk_bytes=64))
    for number in range(8):
        result(node.append(idempotency_key=f"k{number}"))
    return node


def copy_of(source: Node, folder: Path) -> Node:
    """A replica that lacks the state and the records before index 6."""
    copy = Node(folder / "copy", "n1", "n2", "n3")
    copy.driver.log.reset(6, source.driver.log.batch_at(6).offset)
    copy.driver.log.append(source.driver.log.read_batches(6, 1 << 20))
    assert not transfer_of(copy).is_whole
    return copy


def transfer_of(node: Node) -> StateTransfer:
    return node.driver._state.transfer


def pieces_for(copy: Node, source: Node, now_ms: int) -> list[StateChunk]:
    """Return the pieces that `copy` asks for from now_ms on, taken all but the last."""
    transfer_of(copy).tick("n2", now_ms)
    pieces: list[StateChunk] = []
    while True:
        request = copy.seams.sent[-1][1]
        assert isinstance(request, StateRequest)
        transfer_of(source).serve("n1", request)
        chunk = source.seams.sent[-1][1]
        assert isinstance(chunk, StateChunk)
        pieces.append(chunk)
        if chunk.offset + len(chunk.data) == chunk.total:
            return pieces
        transfer_of(copy).take("n2", chunk, now_ms)


@pytest.mark.rule("D-28")
def test_pieces_with_another_checksum_are_not_a_state(tmp_path: Path) -> None:
    """They are of two snapshots: keys would be missing, and a retry would be stored twice."""
    source = whole_node(tmp_path)
    copy = copy_of(source, tmp_path)
    *_, last = pieces_for(copy, source, 1_000)
    assert last.offset > 0
    transfer_of(copy).take("n2", msgspec.structs.replace(last, crc=last.crc ^ 1), 1_000)
    assert not transfer_of(copy).is_whole
    *_, last = pieces_for(copy, source, 1_000 + ASK_AGAIN_MS)
    transfer_of(copy).take("n2", last, 1_000 + ASK_AGAIN_MS)
    assert transfer_of(copy).is_whole
    assert all(copy.driver.state.find_key(f"k{number}") for number in range(8))


@pytest.mark.rule("D-28")
def test_a_replica_that_opens_without_the_state_may_not_lead(tmp_path: Path) -> None:
    """It would not know the keys of the records that it lacks."""
    copy = copy_of(whole_node(tmp_path), tmp_path)
    copy.driver.deliver("n2", Heartbeat(1, "n2", -1, 1))
    copy.seams.run()
    copy.restart()
    assert not transfer_of(copy).is_whole
    assert not copy.driver._core.electable


@pytest.mark.rule("D-28", "C-05")
def test_an_epoch_that_replaces_committed_records_leaves_no_state_that_only_looks_complete(
    tmp_path: Path,
) -> None:
    """The log of the copy begins later: a state made of its records alone would lack earlier keys."""
    source = whole_node(tmp_path)
    copy = copy_of(source, tmp_path)
    transfer = transfer_of(copy)
    *_, last = pieces_for(copy, source, 1_000)
    transfer.take("n2", last, 1_000)
    committed = copy.driver.state.committed_index
    assert not transfer.epoch_began(committed + 1, committed)
    assert transfer.is_whole
    assert copy.driver.state.find_key("k0") is not None
    assert transfer.epoch_began(committed, committed - 1)
    assert transfer.rebuild()
    assert not transfer.is_whole
    assert copy.driver.state.find_key("k7") is None


def append_with_key(node: Node, key: str) -> None:
    log = node.driver.log
    batch = stamp(
        body_of(1, b"v"),
        log_id=LOG_ID,
        base_index=log.next_index,
        term=log.last_term,
        timestamp_ms=1,
        offset=log.end_offset,
        previous_chain=log.last_chain,
        marks=(AppendMark(0, 1, key, digest=DIGEST),),
    )
    log.append([batch])


@pytest.mark.rule("D-28", "R-07")
def test_a_truncation_takes_its_records_out_of_a_state_that_is_being_completed(tmp_path: Path) -> None:
    """A retry would be answered with the place of a record that no log holds."""
    source = whole_node(tmp_path)
    copy = copy_of(source, tmp_path)
    kept_index = copy.driver.log.end_index
    append_with_key(copy, "gone")
    append_with_key(copy, "gone too")
    *_, last = pieces_for(copy, source, 1_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.node.state.state_transfer.REPLAY_BYTES", 1)
        transfer_of(copy).take("n2", last, 1_000)
    assert not transfer_of(copy).is_whole  # one of the two batches is applied to it so far
    copy.driver.log.truncate_after(kept_index)
    copy.driver._state.truncated(TruncateAfter(kept_index))
    append_with_key(copy, "another")
    for now_ms in (1_001, 1_002):
        transfer_of(copy).tick("n2", now_ms)
    *_, last = pieces_for(copy, source, 1_003 + ASK_AGAIN_MS)
    for now_ms in (2_003, 2_004, 2_005):
        transfer_of(copy).take("n2", last, now_ms)
        transfer_of(copy).tick("n2", now_ms)
    state = copy.driver.state
    assert (state.find_key("gone"), state.find_key("gone too")) == (None, None)
    assert state.find_key("another") is not None
    assert state.applied_index == copy.driver.log.end_index


@pytest.mark.rule("D-12", "D-28")
def test_a_replica_that_is_reset_may_not_lead_before_it_has_the_state(tmp_path: Path) -> None:
    """As the leader it would store the retries of everything before its beginning again."""
    node, log = follower_of_n2(tmp_path)
    push_to(node, PushType.APPEND, 1, "n2", 1, *log.batches)
    node.seams.run()
    assert (node.driver.log.end_index, node.driver._core.electable) == (1, True)
    begin = stamp(
        body_of(1, b"v"),
        log_id=LOG_ID,
        base_index=60,
        term=1,
        timestamp_ms=1,
        offset=6_000,
        previous_chain=log.batches[-1].header.chain,
    )
    incarnation = node.driver._core._handler._incarnation  # type: ignore[attr-defined]
    reset = PushRequest(1, PushType.TRUNCATE, "n2", 60, 2, incarnation, 59, 0, 60, True, False, (begin,))
    node.driver.deliver("n2", reset)
    node.seams.run()
    assert (node.driver.log.begin_index, node.driver.log.end_index) == (60, 60)
    assert not node.driver._core.electable
    assert not node.seams.sent[-1][1].may_lead


@pytest.mark.rule("D-28")
def test_a_replica_without_the_whole_state_sends_none(tmp_path: Path) -> None:
    copy = copy_of(whole_node(tmp_path), tmp_path)
    before = len(copy.seams.sent)
    transfer_of(copy).serve("n3", StateRequest(7, 0))
    assert len(copy.seams.sent) == before


@pytest.mark.rule("D-28", "C-05")
def test_no_snapshot_of_an_earlier_epoch_is_sent_on(tmp_path: Path) -> None:
    """The next master may lack what it knows."""
    source = whole_node(tmp_path)
    transfer = transfer_of(source)
    transfer.serve("n2", StateRequest(7, 0))
    _, first = source.seams.sent[-1]
    assert isinstance(first, StateChunk)
    transfer.epoch_began(source.driver.log.next_index, source.driver.committed_index)
    transfer.serve("n2", StateRequest(7, len(first.data)))
    assert source.seams.sent[-1][1] is first
    transfer.serve("n2", StateRequest(8, 0))
    assert source.seams.sent[-1][1] is not first


@pytest.mark.rule("D-28", "C-05")
@pytest.mark.parametrize("committed", [False, True])
def test_a_leader_forgets_what_a_received_state_knows_of_records_that_never_came(
    tmp_path: Path, committed: bool
) -> None:
    """A retry would be answered with the place of a record that no log holds. That committed ones are missing
    happens after an unclean election only, which is in the journal."""
    node = Node(tmp_path, "n1")
    keeper, log = node.driver._state, node.driver.log
    ahead, state = Log(), LogState()
    for mark in (AppendMark(0, 1, "held", digest=DIGEST), AppendMark(0, 1, "lost", digest=DIGEST)):
        state.apply(ahead.add(mark, count=1))
    state.committed(1 if committed else 0)
    keeper.state.become(state)
    assert (keeper.state.applied_index, log.end_index) == (1, 0)
    keeper.begin_to_lead(node.driver._journal_writer)
    assert keeper.state.applied_index == log.end_index
    assert keeper.state.find_key("lost") is None
    assert (keeper.state.find_key("held") is None) is committed
    node.seams.run()
    kinds = [event.kind for event in node.driver.journal.read(0, 100)[0]]
    assert ("corruption" in kinds) is committed


@pytest.mark.rule("D-20")
def test_a_snapshot_that_waits_for_the_disk_goes_with_its_truncated_records(tmp_path: Path) -> None:
    node, log = follower_of_n2(tmp_path)
    opening, removed = log.batches
    push_to(node, PushType.APPEND, 1, "n2", 0, opening)
    node.seams.run()
    push_to(node, PushType.APPEND, 1, "n2", 0, removed)
    node.seams.turn()
    checkpointer = node.driver._state.checkpointer
    checkpointer.demand()
    node.seams.now += 20
    node.driver.tick()  # a snapshot at index 1, which is not durable
    node.driver.deliver("n3", Heartbeat(2, "n3", -1, 1))
    node.seams.run()
    push_to(node, PushType.TRUNCATE, 2, "n3", 0, opening)
    node.seams.run()
    other = MemoryLog([opening])
    other.write([other.stamp(body_of(1, b"other"), 2)])
    push_to(node, PushType.APPEND, 2, "n3", 1, other.batches[1])
    node.seams.run()
    assert node.driver.log.batch_at(1) == other.batches[1]
    for _ in range(3):
        node.tick(1_000)
    snapshot_file = SnapshotFile(OsFileSystem(), f"{tmp_path}/logs/default/state")
    found = load_snapshot(snapshot_file, idempotency_ms=DAY_MS)
    assert found is None or found[1] == node.driver.log.last_chain


@pytest.mark.rule("D-12")
@pytest.mark.parametrize("piece_ms", [ASK_AGAIN_MS + 200, 6_000])
def test_a_state_arrives_over_a_link_that_takes_longer_for_a_piece_than_the_pause(
    tmp_path: Path, piece_ms: int
) -> None:
    """Until then the copy cannot lead, although its group may need it."""
    source = whole_node(tmp_path)
    copy = copy_of(source, tmp_path)
    busy_until_ms, on_the_way = 0, list[tuple[int, StateChunk]]()
    seen = len(copy.seams.sent)
    for now_ms in range(0, 100 * piece_ms, 100):
        while on_the_way and on_the_way[0][0] <= now_ms:
            transfer_of(copy).take("n2", on_the_way.pop(0)[1], now_ms)
        transfer_of(copy).tick("n2", now_ms)
        requests, seen = copy.seams.sent[seen:], len(copy.seams.sent)
        for _, request in requests:
            before = len(source.seams.sent)
            transfer_of(source).serve("n1", request)
            for _, chunk in source.seams.sent[before:]:
                busy_until_ms = max(busy_until_ms, now_ms) + piece_ms
                on_the_way.append((busy_until_ms, chunk))
        if transfer_of(copy).is_whole:
            return
    pytest.fail("the state never arrives")


def test_another_leader_is_asked_as_soon_as_the_first_one_was(tmp_path: Path) -> None:
    """The link to the one before may have been slow."""
    source = whole_node(tmp_path)
    copy = copy_of(source, tmp_path)
    transfer = transfer_of(copy)
    late: list[StateChunk] = []
    for now_ms in range(0, 60_000, 100):
        transfer.tick("n2", now_ms)
        _, request = copy.seams.sent[-1]
        assert isinstance(request, StateRequest)
        if not late or late[-1].id != request.id:
            for chunk in late[-1:]:
                transfer.take("n2", chunk, now_ms)
            late.append(StateChunk(request.id, 0, 9, 0, b"x"))
    asked = len(copy.seams.sent)
    transfer.tick("n3", 60_000 + ASK_AGAIN_MS)
    assert [target for target, _ in copy.seams.sent[asked:]] == ["n3"]
