"""Schemas at a driver: versions in the order of the log, and appends that they reject."""

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from app.errors import SchemaMismatch
from app.log.commands import ABSENT, CommandResult, Trim
from app.log.contract import AppendRequest, AppendStream
from app.log.control_records import SchemaRecord
from app.log.schema_gate import ASIDE_COST, PART_COST, TURN_COST, TURN_MS
from app.log.schemas import DEFINITION_MAX_BYTES
from app.log.set_schema import SetSchema
from app.schemas import RecordDecoder
from app.schemas.schema import SCHEMA_VERSIONS_MAX
from storage.format.records import BODY_SCHEMA, RecordColumns, RecordTable
from tests.unit.node.replica.driver_support import Limits, Node, code, result


class SlowWorkers:
    """Workers that do a piece of work when a test lets them."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def run(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        self.waiting.append(lambda: then(work(), None))

    def next(self, node: Node) -> None:
        self.waiting.popleft()()
        node.seams.run()


def schema(*names: str, kind: str = "integer", **fields: Any) -> SchemaRecord:
    """A JSON Schema with these optional fields of one type."""
    properties = {name: {"type": kind} for name in names}
    definition = json.dumps({"type": "object", "properties": properties})
    return SchemaRecord(version=0, format="json", definition=definition, **fields)


def set_schema(node: Node, record: SchemaRecord, if_match: int | None = None) -> CommandResult:
    answer = node.command(SetSchema(record, if_match))
    assert isinstance(answer, CommandResult), answer
    return answer


def columns(*values: bytes | None, headers: Any = None) -> RecordColumns:
    records = RecordColumns()
    for value in values:
        records.add(value, headers=headers)
    return records


def append(node: Node, *values: bytes | None, headers: Any = None, **options: Any) -> Any:
    return append_records(node, columns(*values, headers=headers), **options)


def append_records(node: Node, records: RecordColumns | RecordTable, **options: Any) -> Any:
    answers: list[Any] = []
    node.driver.append(AppendRequest(records, digest=b"d" * 16, **options), answers.append)
    node.seams.run()
    [answer] = answers
    return answer


def test_versions_count_and_a_repeat_changes_nothing(node: Node) -> None:
    first = set_schema(node, schema("a"), ABSENT)
    again = set_schema(node, schema("a"), ABSENT)
    assert (first.changed, again.changed) == (True, False)
    second = set_schema(node, schema("a", "b"), 1)
    assert not set_schema(node, schema("a", "b"), 1).changed  # the answer of the first attempt was lost
    versions = node.driver.state.schemas.versions
    assert [(each.version, each.index) for each in versions] == [(1, first.index), (2, second.index)]
    assert code(node.command(SetSchema(schema("a"), 1))) == "schema-changed"
    assert code(node.command(SetSchema(schema("c"), ABSENT))) == "schema-changed"
    spaced = schema("a", "b")
    assert not set_schema(
        node,
        SchemaRecord(
            version=0, format="json", definition=json.dumps(json.loads(spaced.definition), indent=2)
        ),
    ).changed


def test_an_incompatible_version_needs_compatibility_none(node: Node) -> None:
    set_schema(node, schema("a"))
    refusal = node.command(SetSchema(schema("a", kind="string")))
    assert code(refusal) == "schema-incompatible"
    assert [each["path"] for each in refusal.fields()["differences"]] == ["/a"]
    assert set_schema(node, schema("a", kind="string", compatibility="none")).changed


def test_limits_of_schemas(node: Node) -> None:
    long = schema("a", message="x")
    long = SchemaRecord(version=0, format="json", definition=" " * DEFINITION_MAX_BYTES + long.definition)
    assert code(node.command(SetSchema(long))) == "invalid-request"
    set_schema(node, schema("a"))
    held = node.driver.state.schemas
    held._versions *= SCHEMA_VERSIONS_MAX
    assert code(node.command(SetSchema(schema("a", "b")))) == "rate-limited"


def test_schemas_survive_restart_and_trim(node: Node) -> None:
    set_schema(node, schema("a", on_invalid="reject"))
    for _ in range(3):
        append(node, b"{}")
    node.command(Trim(5))
    node.tick(20)
    node.tick(20)
    assert node.driver.log.begin_index > 1
    node.restart()
    [held] = node.driver.state.schemas.versions
    assert (held.version, held.index) == (1, 1)
    assert code(append(node, b'{"a": "x"}')) == "schema-mismatch"


def test_a_record_that_does_not_match_refuses_the_whole_append(node: Node) -> None:
    set_schema(node, schema("a", on_invalid="reject"))
    end_index = node.driver.log.end_index
    refusal = append(node, b'{"a": 1}', None, b'{"a": "x"}')
    assert isinstance(refusal, SchemaMismatch)
    assert (refusal.record, refusal.pointer, refusal.version) == (2, "/a", 1)
    rows = pa.RecordBatch.from_pylist([{"value": b'{"a": 1}'}, {"value": b"no"}], schema=BODY_SCHEMA)
    refusal = append_records(node, RecordTable(rows, 10))
    assert isinstance(refusal, SchemaMismatch)
    assert (refusal.record, refusal.pointer) == (1, "")
    assert node.driver.log.end_index == end_index
    assert result(append(node, b'{"a": 1}', None, b'{"b": "x"}')).count == 3


def test_a_record_is_checked_with_the_version_that_it_names(node: Node) -> None:
    set_schema(node, schema("a"))
    set_schema(node, schema("a", kind="string", compatibility="none", on_invalid="reject"))
    old = [("schema-version", b"1")]
    assert result(append(node, b'{"a": 1}', headers=old)).count == 1
    assert code(append(node, b'{"a": 1}')) == "schema-mismatch"
    assert code(append(node, b'{"a": "x"}', headers=old)) == "schema-mismatch"
    refusal = append(node, None, b'{"a": "x"}', headers=[("schema-version", b"7")])
    assert (code(refusal), refusal.record) == ("schema-mismatch", 1)
    assert result(append(node, None, headers=[("schema-version", b"7")])).count == 1


def test_a_retry_of_a_stored_append_is_answered_as_the_first(node: Node) -> None:
    first = result(append(node, b"free text", idempotency_key="k"))
    set_schema(node, schema("a", on_invalid="reject"))
    again = result(append(node, b"free text", idempotency_key="k"))
    assert (again.first_index, again.replayed) == (first.first_index, True)
    assert code(append(node, b"free text", idempotency_key="new")) == "schema-mismatch"
    assert result(append(node, b"{}", idempotency_key="new")).replayed is False


def test_a_schema_applies_to_the_appends_that_arrive_after_it(node: Node) -> None:
    """Also before it is committed, and in one turn with it."""
    answers: list[Any] = []
    node.driver.append(AppendRequest(columns(b"before")), answers.append)
    node.seams.turn()
    node.driver.command(SetSchema(schema("a", on_invalid="reject")), answers.append)
    node.driver.append(AppendRequest(columns(b"after")), answers.append)
    node.seams.run()
    assert result(answers[0]).count == 1
    assert [code(each) for each in answers[1:] if not isinstance(each, CommandResult)] == ["schema-mismatch"]


@pytest.mark.parametrize("as_table", [False, True])
def test_a_large_append_takes_several_turns_and_keeps_its_place(tmp_path: Path, as_table: bool) -> None:
    node = Node(tmp_path, limits=Limits(max_pending_bytes=100 * TURN_COST))
    set_schema(node, schema("a", on_invalid="reject"))
    value = json.dumps({"a": 1, "b": "x" * 1_000}).encode()
    values = [value] * (4 * TURN_COST // len(value))
    large: Any = columns(*values)
    if as_table:
        rows = pa.RecordBatch.from_pylist([{"value": value}] * len(values), schema=BODY_SCHEMA)
        large = RecordTable(rows, large.size_bytes)
    answers: list[Any] = []
    node.driver.append(AppendRequest(large), answers.append)
    node.driver.append(AppendRequest(columns(b"{}")), answers.append)
    turns = 0
    while node.driver.log.end_index < 2:
        node.seams.turn()
        turns += 1
        assert turns < 20
    assert turns >= 4
    node.seams.run()
    first, second = map(result, answers)
    assert (first.count, second.first_index) == (len(values), first.last_index + 1)


def test_records_that_match_are_checked_together_and_one_that_does_not_is_named(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_schema(node, schema("a", on_invalid="reject"))
    assert result(append(node, b"{}")).count == 1  # builds the decoder
    checked: list[int] = []
    whole = RecordDecoder.accepts

    def accepts(decoder: RecordDecoder, values: Any) -> bool:
        checked.append(len(values))
        return whole(decoder, values)

    monkeypatch.setattr(RecordDecoder, "accepts", accepts)
    values = [json.dumps({"a": number}).encode() + b" " * 1_000 for number in range(100)]
    assert result(append(node, *values)).count == 100
    assert checked == [100]
    values[57] = b'{"a":"x"}'
    refusal = append(node, *values)
    assert isinstance(refusal, SchemaMismatch)
    assert (refusal.record, refusal.pointer) == (57, "/a")


def test_slow_checks_end_the_turn(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds a turn's time gone: a turn of the loop checks one part, never none."""
    set_schema(node, schema("a", on_invalid="reject"))
    looked = [0]

    def later() -> int:
        looked[0] += TURN_MS + 1
        return looked[0]

    monkeypatch.setattr(node.driver._queue._gate, "_monotonic_ms", later)
    value = json.dumps({"a": 1, "b": "x" * 1_000}).encode()
    answers: list[Any] = []
    node.driver.append(AppendRequest(columns(*[value] * (8 * PART_COST // len(value)))), answers.append)
    turns = 0
    while node.driver.log.end_index < 2:
        node.seams.turn()
        turns += 1
        assert turns < 30
    assert turns >= 7
    node.seams.run()
    assert result(answers[0]).first_index == 2


def test_a_schema_that_changes_while_an_append_is_checked_decides(node: Node) -> None:
    set_schema(node, schema("a", on_invalid="reject"))
    value = json.dumps({"a": 1, "b": "x" * 1_000}).encode()
    answers: list[Any] = []
    node.driver.append(AppendRequest(columns(*[value] * (3 * TURN_COST // len(value)))), answers.append)
    node.seams.turn()
    node.seams.turn()
    node.driver.command(SetSchema(schema("b", compatibility="none", on_invalid="reject")), answers.append)
    node.seams.run()
    refusal = answers[1]
    assert isinstance(refusal, SchemaMismatch)
    assert (refusal.record, refusal.pointer, refusal.version) == (0, "/b", 2)


def test_nothing_of_a_stream_is_stored_after_a_mismatch(node: Node) -> None:
    set_schema(node, schema("a", on_invalid="reject"))
    stream = AppendStream()
    answers: list[Any] = []
    for value in (b"{}", b"no", b"{}"):
        request = AppendRequest(columns(value), stream=stream)
        node.driver.append(request, answers.append)
    node.seams.run()
    assert sorted(code(each) if isinstance(each, Exception) else "stored" for each in answers) == [
        "request-outstanding",
        "schema-mismatch",
        "stored",
    ]


def test_a_schema_that_cannot_be_read_refuses_and_does_not_stop_the_node(tmp_path: Path) -> None:
    node = Node(tmp_path)
    broken = SchemaRecord(version=0, format="json", definition="{", on_invalid="reject")
    assert set_schema(node, broken).changed
    assert code(append(node, b"{}")) == "schema-mismatch"
    assert code(node.command(SetSchema(schema("a")))) == "invalid-request"
    assert set_schema(node, schema("a", compatibility="none")).changed
    assert result(append(node, b"free")).count == 1
    assert node.seams.failures == []


def asked(node: Node, *values: bytes | None, **options: Any) -> list[Any]:
    """Ask for an append, and do everything but the work of the workers; the list gets the answer."""
    answers: list[Any] = []
    node.driver.append(AppendRequest(columns(*values), digest=b"d" * 16, **options), answers.append)
    node.seams.run()
    return answers


def test_slow_checks_run_beside_the_loop_and_appends_keep_their_order(tmp_path: Path) -> None:
    """The loop neither builds a decoder nor checks a large record, and takes no turns meanwhile."""
    workers = SlowWorkers()
    node = Node(tmp_path, workers=workers)
    set_schema(node, schema("a", on_invalid="reject"))
    large = json.dumps({"a": 1, "b": "x" * ASIDE_COST}).encode()
    first, second, third = asked(node, b"{}"), asked(node, large), asked(node, b'{"a": "x"}')
    assert (first, second, third) == ([], [], [])
    assert not node.seams.soon
    workers.next(node)  # the decoder
    assert (result(first[0]).first_index, second, third) == (2, [], [])
    workers.next(node)
    assert (result(second[0]).first_index, code(third[0])) == (3, "schema-mismatch")
    assert not workers.waiting
    assert code(asked(node, b'{"a": "x"}')[0]) == "schema-mismatch"  # the decoder is known


def test_a_large_record_among_many_small_ones_is_checked_beside_the_loop(tmp_path: Path) -> None:
    workers = SlowWorkers()
    node = Node(tmp_path, workers=workers)
    set_schema(node, schema("a", on_invalid="reject"))
    asked(node, b"{}")
    workers.next(node)
    large = json.dumps({"b": "x" * ASIDE_COST}).encode()
    answers = asked(node, *[b"{}"] * 200, large, b'{"a": "x"}')
    assert answers == []
    workers.next(node)
    assert (code(answers[0]), answers[0].record) == ("schema-mismatch", 201)


def test_a_check_that_takes_too_long_refuses_what_waits_for_it(tmp_path: Path) -> None:
    workers = SlowWorkers()
    node = Node(tmp_path, workers=workers)
    set_schema(node, schema("a", on_invalid="reject"))
    end_index = node.driver.log.end_index
    hasty, patient = asked(node, b'{"a": "x"}', timeout_ms=50), asked(node, b"{}", timeout_ms=5_000)
    node.tick(60)
    assert (code(hasty[0]), patient, node.driver.log.end_index) == ("leader-pending-full", [], end_index)
    workers.next(node)  # for nobody: it does nothing
    assert patient == []
    workers.next(node)
    assert result(patient[0]).first_index == end_index + 1
    assert hasty[1:] == []


def test_the_result_for_an_older_schema_does_not_count(tmp_path: Path) -> None:
    workers = SlowWorkers()
    node = Node(tmp_path, workers=workers)
    set_schema(node, schema("a", on_invalid="reject"))
    answers = asked(node, b'{"a": 1}')
    set_schema(node, schema("a", kind="string", compatibility="none", on_invalid="reject"))
    assert answers == []
    workers.next(node)
    assert answers == []
    workers.next(node)
    assert (code(answers[0]), answers[0].version) == ("schema-mismatch", 2)


def test_workers_that_fail_refuse_the_append_and_do_not_stop_the_node(tmp_path: Path) -> None:
    class Failing:
        def run(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
            then(None, MemoryError("no memory"))

    node = Node(tmp_path, workers=Failing())
    set_schema(node, schema("a", on_invalid="reject"))
    assert code(append(node, b"{}")) == "schema-mismatch"
    assert node.seams.failures == []
