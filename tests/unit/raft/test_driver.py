"""The driver of a log: turns, appends, answers, syncs, reads and checkpoints."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from app.errors import CommitlogError
from app.log_commands import SetFence
from app.node.driver import LogDriver
from app.raft.messages import (
    Heartbeat,
    HeartbeatAnswer,
    PushRequest,
    PushType,
    ReadIndexAnswer,
    VoteAnswer,
    VoteRequest,
)
from app.replication import (
    Acks,
    AppendRequest,
    AppendResult,
    DriverConfig,
    Durability,
    Producer,
    Role,
)
from storage import errors as storage_errors
from storage.batch import AppendMark, Batch
from storage.checkpoint import CheckpointFile
from storage.commitlog import Commitlog
from storage.files import OsFileSystem
from storage.records import BODY_SCHEMA, RecordColumns, RecordTable, encode_body, encode_control
from tests.unit.raft.driver_support import Limits, Node, code, result
from tests.unit.raft.support import MemoryLog


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.rule("D-28")
def test_an_append_is_answered_with_index_term_leader_and_position(node: Node) -> None:
    opening = node.driver.log.batch_at(0)
    answer = result(node.append(b"a", b"b"))
    assert (answer.first_index, answer.last_index, answer.count, answer.term) == (1, 2, 2, 1)
    assert (answer.first_offset, answer.next_offset) == (opening.next_offset, node.driver.log.end_offset)
    assert (answer.leader, answer.committed_index, answer.next_index) == ("n1", 2, 3)
    assert (answer.acks, answer.durability, answer.replayed) == (Acks.QUORUM, Durability.FSYNC, False)


@pytest.mark.rule("R-11")
def test_no_answer_before_the_sync(node: Node) -> None:
    answers = node.ask()
    node.seams.turn()
    node.seams.turn()
    assert node.driver.log.end_index == 1
    assert answers == []
    node.seams.run()
    assert result(answers[0]).first_index == 1


def test_everything_that_arrives_before_a_turn_becomes_one_batch(node: Node) -> None:
    answers = [node.ask(b"a%d" % number) for number in range(5)]
    node.seams.run()
    assert [result(each[0]).first_index for each in answers] == [1, 2, 3, 4, 5]
    batch = node.driver.log.batch_at(1)
    assert (batch.base_index, batch.last_index) == (1, 5)
    assert {result(each[0]).first_offset for each in answers} == {batch.offset}


def test_a_batch_is_capped_in_bytes_and_an_append_is_never_split(tmp_path: Path) -> None:
    node = Node(tmp_path, config=DriverConfig(coalesce_max_bytes=300))
    for _ in range(4):
        node.ask(b"x" * 100)
    node.ask(b"y" * 200, b"y" * 200)
    node.seams.run()
    counts = [batch.count for batch in node.driver.log.read_batches(1, 1 << 20)]
    assert counts == [2, 2, 2]


def test_overhead_counts_towards_the_cap_of_a_batch(tmp_path: Path) -> None:
    node = Node(tmp_path, config=DriverConfig(coalesce_max_bytes=100_000))
    for _ in range(10):
        node.ask(*[b""] * 1_000)
    node.seams.run()
    batches = node.driver.log.read_batches(1, 1 << 20)
    assert sum(batch.count for batch in batches) == 10_000
    assert max(len(batch.body) for batch in batches) <= 100_000


def test_a_table_stays_a_batch_of_its_own(node: Node) -> None:
    rows = pa.RecordBatch.from_pydict(
        {"timestamp": [None] * 3, "key": [None] * 3, "value": [b"1", b"2", b"3"], "headers": [None] * 3},
        schema=BODY_SCHEMA,
    )
    answers: list[AppendResult | CommitlogError] = []
    node.ask(b"before")
    node.driver.append(AppendRequest(RecordTable(rows, 3)), answers.append)
    node.ask(b"behind")
    node.seams.run()
    assert [batch.count for batch in node.driver.log.read_batches(1, 1 << 20)] == [1, 3, 1]
    assert (result(answers[0]).first_index, result(answers[0]).last_index) == (2, 4)


def test_what_is_no_append_is_the_callers_mistake(node: Node) -> None:
    with pytest.raises(ValueError, match="0 records"):
        node.driver.append(AppendRequest(RecordColumns()), lambda _: None)


def test_the_clients_records_are_not_changed(node: Node) -> None:
    records = RecordColumns()
    records.add(b"mine")
    node.driver.append(AppendRequest(records), lambda _: None)
    node.ask(b"other")
    node.seams.run()
    assert records.values == [b"mine"]


# --- the order of checks ---


def test_match_index_counts_the_appends_of_the_same_turn(node: Node) -> None:
    first = node.ask(b"a", b"b", match_index=1)
    second = node.ask(match_index=3)
    third = node.ask(match_index=3)
    node.seams.run()
    assert (result(first[0]).first_index, result(second[0]).first_index) == (1, 3)
    refusal = third[0]
    assert code(refusal) == "index-mismatch"
    assert isinstance(refusal, CommitlogError)
    assert refusal.fields() == {"expected_index": 3, "next_index": 4}


def test_match_term_is_checked_before_match_index(node: Node) -> None:
    assert code(node.append(match_term=7, match_index=99)) == "term-mismatch"
    assert code(node.append(match_term=1, match_index=99)) == "index-mismatch"
    assert result(node.append(match_term=1)).first_index == 1


def test_a_fence_comes_before_the_other_conditions(node: Node) -> None:
    node.command(SetFence("w-a"))
    assert code(node.append(match_term=7)) == "fenced"
    assert code(node.append(fencing_token="w-b")) == "fenced"
    assert result(node.append(fencing_token="w-a")).first_index == 2


@pytest.mark.rule("D-29")
def test_appends_beyond_the_limit_are_refused_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, limits=Limits(max_pending_requests=2))
    answers = [node.ask() for _ in range(3)]
    assert [code(each[0]) for each in answers if each] == ["leader-pending-full"]
    node.seams.turn()
    late = node.ask()
    node.seams.turn()
    assert code(late[0]) == "leader-pending-full"
    node.seams.run()
    assert [result(each[0]).first_index for each in answers[:2]] == [1, 2]
    assert result(node.append()).first_index == 3


@pytest.mark.rule("D-29")
def test_bytes_that_wait_are_limited_too(tmp_path: Path) -> None:
    node = Node(tmp_path, limits=Limits(max_pending_bytes=1_000))
    first, second, third = node.ask(b"x" * 400), node.ask(b"x" * 400), node.ask(b"x" * 400)
    assert code(third[0]) == "leader-pending-full"
    node.seams.turn()
    late = node.ask(b"x" * 400)
    node.seams.turn()
    assert code(late[0]) == "leader-pending-full"
    node.seams.run()
    assert (result(first[0]).first_index, result(second[0]).first_index) == (1, 2)
    assert result(node.append(b"x" * 5_000)).first_index == 3  # alone, any size that a request may have


@pytest.mark.rule("D-29")
def test_a_node_that_does_not_lead_says_who_does(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    assert code(node.append()) == "no-leader"
    node.driver.deliver("n2", Heartbeat(3, "n2", -1, 1))
    node.seams.run()
    refusal = node.append()
    assert code(refusal) == "not-leader"
    assert isinstance(refusal, CommitlogError)
    assert refusal.fields()["leader"] == "n2"


# --- repeats ---


def test_a_repeat_by_key_gets_the_first_answer(node: Node) -> None:
    first = result(node.append(b"a", b"b", idempotency_key="k"))
    node.append(b"other")
    again = result(node.append(b"a", b"b", idempotency_key="k"))
    assert again.replayed
    assert not first.replayed
    for name in ("first_index", "last_index", "count", "term", "first_offset", "next_offset", "timestamp_ms"):
        assert getattr(again, name) == getattr(first, name)
    assert node.driver.log.end_index == 3


def test_a_key_with_another_digest_is_refused(node: Node) -> None:
    node.append(idempotency_key="k")
    assert code(node.append(idempotency_key="k", digest=b"e" * 16)) == "idempotency-key-reused"


def test_a_repeat_in_the_same_turn_waits_for_the_first(node: Node) -> None:
    first, again = node.ask(idempotency_key="k"), node.ask(idempotency_key="k")
    node.seams.turn()
    assert (first, again) == ([], [])
    node.seams.run()
    assert (result(first[0]).replayed, result(again[0]).replayed) == (False, True)
    assert result(first[0]).first_index == result(again[0]).first_index == 1


def test_a_repeat_whose_first_is_in_flight_too_long_is_told_so(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    first = node.ask(idempotency_key="k", timeout_ms=60_000)
    again = node.ask(idempotency_key="k", timeout_ms=100)
    node.seams.run()
    for _ in range(10):
        keep_lead(node)
        node.tick(20)
    assert first == []
    assert code(again[0]) == "request-outstanding"


def test_keys_survive_a_restart(node: Node) -> None:
    first = result(node.append(b"a", idempotency_key="k"))
    node.restart()
    assert node.driver.role is Role.LEADER
    again = result(node.append(b"a", idempotency_key="k"))
    assert (again.first_index, again.replayed) == (first.first_index, True)


def follower_of_n2(folder: Path) -> tuple[Node, MemoryLog]:
    """n1 follows n2 in term 1, and a log as n2 would have it: an opening, then an append with the key k."""
    node = Node(folder, "n1", "n2", "n3")
    log = MemoryLog()
    log.write([log.stamp(encode_control({"kind": "term", "leader": "n2"}), 1, control=True)])
    records = RecordColumns()
    records.add(b"v")
    log.write([log.stamp(encode_body(records), 1, marks=(AppendMark(0, 1, "k", digest=b"d" * 16),))])
    node.driver.deliver("n2", Heartbeat(1, "n2", -1, 1))
    node.seams.run()
    return node, log


def push_to(node: Node, kind: PushType, term: int, leader: str, committed: int, *batches: Batch) -> None:
    life = node.driver._core._handler._life  # type: ignore[attr-defined]
    index = batches[0].base_index - 1
    index_term = node.driver.log.term_at(index)
    node.driver.deliver(
        leader, PushRequest(term, kind, leader, committed, 1, life, index, index_term, 0, False, batches)
    )


def test_a_truncation_takes_back_the_keys_of_what_is_gone(tmp_path: Path) -> None:
    node, log = follower_of_n2(tmp_path)
    push_to(node, PushType.APPEND, 1, "n2", -1, *log.batches)
    node.seams.run()
    assert node.driver._state.find_key("k", log.batches[1].timestamp_ms) is not None
    push_to(node, PushType.TRUNCATE, 2, "n3", -1, log.batches[0])
    node.seams.run()
    assert node.driver.log.end_index == 0
    assert node.driver._state.find_key("k", log.batches[1].timestamp_ms) is None


@pytest.mark.rule("D-20", "R-11")
def test_the_checkpoint_never_names_what_is_not_durable_here(tmp_path: Path) -> None:
    node, log = follower_of_n2(tmp_path)
    push_to(node, PushType.APPEND, 1, "n2", 1, *log.batches)
    node.seams.turn()
    assert (node.driver.committed_index, node.driver.log.durable_index) == (1, -1)
    node.driver.tick()
    node.seams.now += 3_000
    node.driver.tick()
    node.seams.work.pop()()  # the checkpoint; the syncs before it are still under way
    saved = CheckpointFile(OsFileSystem(), f"{tmp_path}/logs/default/checkpoint").load()
    assert saved.committed_index == -1


def test_producers_continue_within_one_turn_and_repeat(node: Node) -> None:
    answers = [node.ask(b"%d" % n, producer=Producer("p", 0, n)) for n in (7, 8, 9, 9)]
    node.seams.run()
    assert [result(each[0]).first_index for each in answers] == [1, 2, 3, 3]
    assert [result(each[0]).replayed for each in answers] == [False, False, False, True]
    assert node.driver.log.batch_at(1).last_index == 3  # those in sequence shared one batch
    gap = node.append(producer=Producer("p", 0, 12))
    assert code(gap) == "sequence-gap"
    assert isinstance(gap, CommitlogError)
    assert gap.fields() == {"expected_sequence": 10}
    assert result(node.append(producer=Producer("p", 0, 12, allow_gap=True))).first_index == 4
    assert result(node.append(producer=Producer("p", 1, 0))).first_index == 5
    assert code(node.append(producer=Producer("p", 0, 13))) == "producer-fenced"


# --- the disk ---


class FullFiles:
    """Stands in for Commitlog.append while the disk is full."""

    def __init__(self, driver: LogDriver) -> None:
        self.driver = driver
        self.append = driver.log.append

    def refuse(self, _batches: object) -> None:
        raise storage_errors.StorageFull("log", "pwrite", "no space left")


def test_a_full_disk_is_a_refusal_and_nothing_of_the_append_stays(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = FullFiles(node.driver)
    monkeypatch.setattr(node.driver.log, "append", full.refuse)
    answers = [
        node.ask(idempotency_key="k"),
        node.ask(producer=Producer("p", 0, 3)),
        node.ask(idempotency_key="k"),
    ]
    node.seams.run()
    assert [code(each[0]) for each in answers] == ["storage-full"] * 3
    assert node.driver.log.end_index == 0
    monkeypatch.undo()
    again = result(node.append(idempotency_key="k"))
    assert (again.first_index, again.replayed) == (1, False)
    assert result(node.append(producer=Producer("p", 0, 5))).first_index == 2


@pytest.mark.rule("R-11")
def test_a_failed_write_of_term_or_vote_stops_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    node.seams.disk_error = storage_errors.SyncFailed("vote", "fdatasync", "I/O error")
    node.driver.deliver("n2", VoteRequest(5, 10, 4))
    node.seams.run()
    assert [type(error) for _, error in node.seams.failures] == [storage_errors.SyncFailed]
    assert node.seams.sent == []  # no vote left the node
    node.driver.deliver("n2", Heartbeat(6, "n2", -1, 1))
    node.seams.run()
    assert len(node.seams.failures) == 1
    assert node.seams.sent == []


@pytest.mark.rule("R-01")
def test_a_vote_leaves_only_when_it_is_on_disk_and_survives_a_restart(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    node.driver.deliver("n2", VoteRequest(5, 10, 4))
    node.seams.turn()
    assert node.seams.sent == []
    node.seams.run()
    assert node.seams.sent == [("n2", VoteAnswer(5, True, False))]
    node.restart()
    assert node.driver.term == 5
    node.driver.deliver("n3", VoteRequest(5, 10, 4))
    node.seams.run()
    assert node.seams.sent == [("n3", VoteAnswer(5, False, False))]


def test_while_the_disk_is_waited_for_nothing_else_happens(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    node.driver.deliver("n2", VoteRequest(5, 10, 4))
    node.driver.deliver("n2", Heartbeat(5, "n2", -1, 1))
    node.seams.turn()
    node.seams.turn()
    assert node.driver.leader_id is None
    node.seams.run()
    assert node.driver.leader_id == "n2"


def test_with_replicated_durability_an_answer_does_not_wait_for_the_sync(tmp_path: Path) -> None:
    node = Node(tmp_path, durability=Durability.REPLICATED)
    answers = node.ask()
    node.seams.turn()
    assert result(answers[0]).durability is Durability.REPLICATED
    assert node.driver.log.durable_index < 1
    node.tick(10)
    assert node.driver.log.durable_index == 1


# --- callbacks, waiters, journal, restart ---


def test_a_callback_that_raises_never_reaches_replication(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(_answer: object) -> None:
        raise ConnectionResetError("the client has gone")

    records = RecordColumns()
    records.add(b"v")
    node.driver.append(AppendRequest(records), gone)
    behind = node.ask()
    node.seams.run()
    assert result(behind[0]).first_index == 2
    assert node.seams.failures == []
    assert "callback" in caplog.text


def test_waiters_are_woken_by_their_commit_in_order_of_index(node: Node) -> None:
    woken: list[int] = []
    node.driver.when_committed(2, lambda: woken.append(2))
    node.driver.when_committed(1, lambda: woken.append(1))
    cancelled = node.driver.when_committed(1, lambda: woken.append(99))
    cancelled.cancel()
    node.append()
    assert woken == [1]
    node.append()
    assert woken == [1, 2]
    node.driver.when_committed(0, lambda: woken.append(0))
    assert woken == [1, 2, 0]


def confirmed_read(node: Node, index: int) -> list[int | CommitlogError]:
    """A read at a follower that its leader has confirmed for `index`; the list gets its answer."""
    answers: list[int | CommitlogError] = []
    node.driver.read_index(answers.append)
    node.seams.run()
    _, request = node.seams.sent[-1]
    node.driver.deliver("n2", ReadIndexAnswer(request.term, request.id, index))
    node.seams.run()
    return answers


@pytest.mark.rule("R-08")
def test_a_follower_answers_a_read_only_when_it_has_the_index(tmp_path: Path) -> None:
    node, log = follower_of_n2(tmp_path)
    answers = confirmed_read(node, 0)
    assert answers == []
    push_to(node, PushType.APPEND, 1, "n2", 0, log.batches[0])
    node.seams.run()
    assert answers == [0]


def test_a_confirmed_read_whose_index_does_not_come_is_given_up(tmp_path: Path) -> None:
    node, _ = follower_of_n2(tmp_path)
    answers = [confirmed_read(node, 5), confirmed_read(node, 6)]
    node.seams.now += DriverConfig().read_timeout_ms
    node.driver.tick()
    node.seams.run()
    codes = [answer.code for each in answers for answer in each if isinstance(answer, CommitlogError)]
    assert codes == ["read-index-unavailable"] * 2


def test_a_read_without_a_leader_is_unavailable(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    answers: list[int | CommitlogError] = []
    node.driver.read_index(answers.append)
    node.seams.run()
    assert [error.code for error in answers if isinstance(error, CommitlogError)] == [
        "read-index-unavailable"
    ]


def test_the_journal_tells_start_term_role_and_epoch(node: Node) -> None:
    [start] = node.events("start")
    assert start["version"] == "1.2.3"
    assert node.events("term") == [{"term": 1, "leader": "n1"}]
    assert node.events("role")[-1] == {"role": "leader", "leader": "n1"}
    [epoch] = node.events("epoch")
    assert (epoch["epoch"], epoch["leader"], epoch["start_index"], epoch["end_index"]) == (1, "n1", 0, None)


@pytest.mark.rule("D-20")
def test_the_committed_index_reaches_the_checkpoint_and_a_restart_knows_it(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1")
    node.append()
    node.tick(20)
    node.tick(3_000)
    node.voters = ("n1", "n2", "n3")  # so that the restarted one cannot commit by itself
    node.restart()
    assert node.driver.committed_index == 1


def test_a_clean_stop_saves_where_a_restart_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    for number in range(20):
        node.append(idempotency_key=f"k{number}")
    stopped: list[bool] = []
    node.driver.stop(lambda: stopped.append(True))
    refused = node.ask()
    node.seams.run()
    assert stopped == [True]
    assert code(refused[0]) == "no-leader"
    assert node.events("stop") == [{}]
    read: list[int] = []
    original = Commitlog.read_batches

    def counted(log: Commitlog, from_index: int, *arguments: Any) -> Any:
        read.append(from_index)
        return original(log, from_index, *arguments)

    monkeypatch.setattr(Commitlog, "read_batches", counted)
    node.voters = ("n1", "n2", "n3")
    node.restart()
    assert min(read) >= 20  # the state came from its snapshot, not from the log
    assert node.driver._state.find_key("k0", node.seams.now_ms()) is not None


@pytest.mark.rule("R-01")
def test_a_log_of_which_only_the_vote_is_left_is_damaged_not_new(tmp_path: Path) -> None:
    """It may have acknowledged anything: an empty log that votes would forget it."""
    node = Node(tmp_path)
    result(node.append())
    for path in (tmp_path / "logs" / "default").iterdir():
        if path.name != "vote":
            path.unlink()
    with pytest.raises(storage_errors.CorruptLog, match="missing"):
        node.restart()


def test_a_stop_while_the_disk_is_waited_for_comes_after_it(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    answers = node.ask()
    node.seams.run()
    node.driver.deliver("n2", Heartbeat(9, "n2", -1, 1))
    node.seams.turn()  # the newer term is on its way to the disk
    stopped: list[bool] = []
    node.driver.stop(lambda: stopped.append(True))
    late = node.ask()
    node.seams.run()
    assert code(late[0]) == "not-leader"
    assert code(answers[0]) == "term-changed"
    assert stopped == [True]
    assert node.events("stop") == [{}]


def test_status_shows_one_instant(node: Node) -> None:
    node.append(b"a", b"b")
    status = node.driver.status()
    assert (status.begin_index, status.end_index, status.next_index) == (0, 2, 3)
    assert (status.core.role, status.core.term, status.core.leader_id) == (Role.LEADER, 1, "n1")
    assert (status.end_offset, status.durability) == (node.driver.log.end_offset, Durability.FSYNC)
    assert node.driver.watermarks() == {1: {"n1": 2}}
    assert node.driver.watermarks(9) == {}


@pytest.mark.rule("D-23")
def test_a_leader_that_is_replaced_answers_term_changed(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    answers = node.ask()
    node.seams.run()
    assert answers == []
    node.driver.deliver("n2", Heartbeat(9, "n2", -1, 1))
    node.seams.run()
    assert code(answers[0]) == "term-changed"


@pytest.mark.rule("D-26")
def test_an_append_without_a_quorum_times_out_and_says_where_it_stands(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    answers = node.ask(timeout_ms=200)
    node.seams.run()
    for _ in range(20):
        keep_lead(node)
        node.tick(20)
    refusal = answers[0]
    assert code(refusal) == "quorum-timeout"
    assert isinstance(refusal, CommitlogError)
    assert refusal.fields() == {"first_index": 1}


def leading_node(folder: Path) -> Node:
    """n1 of three, elected by n2, whose log nobody acknowledges."""
    node = Node(folder, "n1", "n2", "n3")
    node.tick(2_000)
    node.driver.deliver("n2", VoteAnswer(1, True, pre_vote=True))
    node.seams.run()
    node.driver.deliver("n2", VoteAnswer(1, True))
    node.seams.run()
    assert node.driver.role is Role.LEADER
    return node


def keep_lead(node: Node) -> None:
    node.driver.deliver("n2", HeartbeatAnswer(node.driver.term, 0))
    node.seams.run()
