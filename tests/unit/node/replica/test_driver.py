"""The driver of a log: turns, appends, the order of their checks, repeats."""

from pathlib import Path

import pyarrow as pa
import pytest

from app.errors import CommitlogError, RequestOutstanding
from app.log.commands import SetFence
from app.log.contract import APPEND_MAX_BYTES, Acks, AppendRequest, AppendResult, Durability, Role
from app.log.driver_interfaces import DriverConfig
from app.log.producers import NUMBER_MAX, Producer
from app.node.replica.append_checks import check_storable
from app.raft.messages import (
    Heartbeat,
    PushType,
)
from storage.files import OsFileSystem
from storage.format.records import BODY_SCHEMA, RecordColumns, RecordTable, read_columns
from storage.log.checkpoint import CheckpointFile
from tests.unit.node.replica.driver_support import (
    Limits,
    Node,
    Seams,
    code,
    follower_of_n2,
    keep_lead,
    leading_node,
    push_to,
    result,
)


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


def table(*values: bytes, key: bytes | None = None) -> RecordTable:
    count = len(values)
    rows = pa.RecordBatch.from_pydict(
        {"timestamp": [None] * count, "key": [key] * count, "value": values, "headers": [None] * count},
        schema=BODY_SCHEMA,
    )
    return RecordTable(rows, sum(map(len, values)))


def test_tables_share_a_batch_with_tables_only(node: Node) -> None:
    answers: list[AppendResult | CommitlogError] = []
    node.ask(b"before")
    for each in (table(b"1", b"2", b"3"), table(b"4", key=b"k"), table(b"5", b"6")):
        node.driver.append(AppendRequest(each), answers.append)
    node.ask(b"behind")
    node.seams.run()
    batches = node.driver.log.read_batches(1, 1 << 20)
    assert [batch.count for batch in batches] == [1, 6, 1]
    assert [(result(each).first_index, result(each).last_index) for each in answers] == [
        (2, 4), (5, 5), (6, 7),
    ]  # fmt: skip
    assert {result(each).first_offset for each in answers} == {batches[1].offset}
    rows = read_columns(batches[1])
    assert rows.column("value").to_pylist() == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert rows.column("key").to_pylist() == [None, None, None, b"k", None, None]


def test_tables_that_share_a_batch_are_capped_in_bytes(tmp_path: Path) -> None:
    node = Node(tmp_path, config=DriverConfig(coalesce_max_bytes=300))
    for _ in range(4):
        node.driver.append(AppendRequest(table(b"x" * 100)), lambda _: None)
    node.driver.append(AppendRequest(table(b"y" * 400)), lambda _: None)
    node.seams.run()
    assert [batch.count for batch in node.driver.log.read_batches(1, 1 << 20)] == [2, 2, 1]


def test_an_invalid_append_is_the_callers_error(node: Node) -> None:
    with pytest.raises(ValueError, match="0 records"):
        node.driver.append(AppendRequest(RecordColumns()), lambda _: None)


@pytest.mark.parametrize("producer", [Producer("p", 0, 2**63), Producer("p", 2**63, 0), Producer("p", 0, -1)])
def test_an_append_that_no_log_can_hold_does_not_enter_it(node: Node, producer: Producer) -> None:
    """Its batch would be written, its state could not be stored, and the log would not open again."""
    end_index = node.driver.log.end_index
    with pytest.raises(ValueError, match="a producer must be between"):
        node.ask(b"v", producer=producer)
    assert isinstance(node.append(b"v", producer=Producer("p", 2**63 - 1, 2**63 - 1)), AppendResult)
    node.restart()
    assert (node.seams.failures, node.driver.log.next_index) == ([], end_index + 3)  # and its next term


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
def test_a_node_that_does_not_lead_names_the_leader(tmp_path: Path) -> None:
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


def test_a_repeat_whose_first_is_in_flight_too_long_is_refused(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    first = node.ask(idempotency_key="k", timeout_ms=60_000)
    again = node.ask(idempotency_key="k", timeout_ms=100)
    node.seams.run()
    for _ in range(10):
        keep_lead(node)
        node.tick(20)
    assert first == []
    assert code(again[0]) == "request-outstanding"
    assert isinstance(again[0], RequestOutstanding)
    problem = again[0].problem("/", "r")  # this request stored nothing, the first one may yet be committed
    assert (problem["outcome"], problem["first_outcome"]) == ("not_applied", "unknown")


def test_keys_survive_a_restart(node: Node) -> None:
    first = result(node.append(b"a", idempotency_key="k"))
    node.restart()
    assert node.driver.role is Role.LEADER
    again = result(node.append(b"a", idempotency_key="k"))
    assert (again.first_index, again.replayed) == (first.first_index, True)


def test_a_truncation_takes_back_the_keys_of_removed_records(tmp_path: Path) -> None:
    node, log = follower_of_n2(tmp_path)
    push_to(node, PushType.APPEND, 1, "n2", -1, *log.batches)
    node.seams.run()
    assert node.driver.state.find_key("k") is not None
    push_to(node, PushType.TRUNCATE, 2, "n3", -1, log.batches[0])
    node.seams.run()
    assert node.driver.log.end_index == 0
    assert node.driver.state.find_key("k") is None


@pytest.mark.rule("R-11")
def test_reads_and_syncs_wait_while_the_disk_truncates_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read may see a part of the truncation, and a sync may use a file that it removes."""
    node, log = follower_of_n2(tmp_path)
    push_to(node, PushType.APPEND, 1, "n2", -1, *log.batches)
    node.seams.run()
    truncate_after, waits = node.driver.log.truncate_after, list[bool]()

    def truncate(index: int) -> None:
        waits.append(node.driver.is_truncating)
        truncate_after(index)

    monkeypatch.setattr(node.driver.log, "truncate_after", truncate)
    push_to(node, PushType.TRUNCATE, 2, "n3", -1, log.batches[0])
    node.seams.run()
    assert (waits, node.driver.is_truncating) == ([True], False)


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


class WallClock(Seams):
    """A clock of the machine that an operator sets."""

    wall_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.wall_ms


def test_timestamps_never_fall_whatever_happens_to_the_clock(tmp_path: Path) -> None:
    """Reads from a timestamp find their first record by bisection."""
    node = Node(tmp_path)
    first_ms = result(node.append()).timestamp_ms
    node.seams = clock = WallClock(now=node.seams.now)
    clock.wall_ms = first_ms - 60_000
    node.driver = node.open()  # the next leader's clock is late
    node.driver.start()
    clock.run()
    opening = node.driver.log.batch_at(node.driver.log.end_index)
    assert (opening.is_control, opening.timestamp_ms) == (True, first_ms)
    stamped = []
    for wall_ms in (first_ms - 50_000, first_ms + 5, first_ms + 5, first_ms - 1, first_ms + 7):
        clock.wall_ms = wall_ms
        stamped.append(result(node.append()).timestamp_ms - first_ms)
    assert stamped == [0, 5, 5, 5, 7]


def request_of(values: int = 1, producer: Producer | None = None) -> AppendRequest:
    records = RecordColumns()
    for _ in range(values):
        records.add(b"v")
    return AppendRequest(records, producer=producer)


def test_an_append_has_at_least_one_record_and_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    one = request_of()
    with pytest.raises(ValueError, match="got 0 records, 0 bytes"):
        check_storable(request_of(0))
    monkeypatch.setattr("app.node.replica.append_checks.APPEND_MAX_BYTES", one.records.packed_bytes)
    check_storable(one)
    with pytest.raises(ValueError, match="got 2 records"):
        check_storable(request_of(2))
    assert one.records.packed_bytes < APPEND_MAX_BYTES


@pytest.mark.parametrize("number", [-1, NUMBER_MAX + 1])
def test_numbers_of_a_producer_fit_into_the_log(number: int) -> None:
    check_storable(request_of(producer=Producer("p", 0, 0)))
    check_storable(request_of(producer=Producer("p", NUMBER_MAX, NUMBER_MAX)))
    for producer in (Producer("p", number, 0), Producer("p", 0, number)):
        with pytest.raises(ValueError, match=f"must be between 0 and {NUMBER_MAX}, got {number}"):
            check_storable(request_of(producer=producer))
