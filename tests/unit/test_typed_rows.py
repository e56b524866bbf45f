"""From rows of `entries` to rows of the typed tables, without Spark."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DoubleType, IntegerType, LongType, StringType, StructType

from app.schemas import LogSchema
from spark_jobs.materialize.typed import complete_before
from spark_jobs.tables.schemas import ENTRIES, arrow_schema
from spark_jobs.typed.decoding import TypedDecoder, TypedRows
from spark_jobs.typed.indexed_rows import _end_of_piece
from spark_jobs.typed.layout import ColumnChange, changes, compatibility_groups

Header = tuple[str, bytes]


def versions(*definitions: str, indexes: Sequence[int], **options: Any) -> list[LogSchema]:
    return [
        LogSchema(number, index, "json", definition, compatibility="none", **options)
        for number, (index, definition) in enumerate(zip(indexes, definitions, strict=True), 1)
    ]


def entries(*records: tuple[int, Any] | tuple[int, Any, Header]) -> pa.Table:
    rows = [
        {
            "log": "default",
            "index": index,
            "term": 1,
            "offset": index,
            "timestamp": index * 1_000,
            "key": b"k",
            "value": None if value is None else json.dumps(value).encode(),
            "headers": [{"name": name, "value": content} for name, content in header] or None,
        }
        for index, value, *header in records
    ]
    return pa.Table.from_pylist(rows, arrow_schema(ENTRIES))


def decoded(schemas: list[LogSchema], *records: Any, version: int | None = None) -> TypedRows:
    return TypedDecoder(schemas, compatibility_groups(schemas)).decode(entries(*records), version)


def test_a_record_is_read_with_the_schema_in_force_at_its_index() -> None:
    schemas = versions("a INT", "a BIGINT, b STRING", indexes=(5, 10))
    found = decoded(schemas, (1, {"a": 1}), (9, {"a": 2**40}), (11, {"a": 2**40, "b": "x"}), (12, None))
    assert found.records[1].select(["_index", "_schema_version", "a", "b"]).to_pylist() == [
        {"_index": 1, "_schema_version": 1, "a": 1, "b": None},
        {"_index": 11, "_schema_version": 2, "a": 2**40, "b": "x"},
    ]
    assert found.dead_letters["index"].to_pylist() == [9]


def test_unknown_fields_are_rescued_in_the_row_of_their_record() -> None:
    found = decoded(versions("a INT", indexes=(0,)), (1, {"a": 1}), (2, {"a": "x"}), (3, {"a": 3, "b": [4]}))
    assert found.records[1].select(["_index", "_key", "_rescued", "a"]).to_pylist() == [
        {"_index": 1, "_key": b"k", "_rescued": None, "a": 1},
        {"_index": 3, "_key": b"k", "_rescued": '{"b":[4]}', "a": 3},
    ]


def test_a_named_version_counts_from_its_control_record_on() -> None:
    schemas = versions("a INT", "a BIGINT", indexes=(5, 10))

    def named(index: int, version: bytes) -> TypedRows:
        return decoded(schemas, (index, {"a": 1}, ("schema-version", version)))

    assert named(1, b"1").records[1]["_schema_version"].to_pylist() == [1]
    assert named(11, b"1").records[1]["_schema_version"].to_pylist() == [1]
    for index, version, expected in ((9, b"2", 2), (11, b"3", 3), (11, b"x", None), (11, b"0", None)):
        dead = named(index, version).dead_letters
        assert dead.select(["index", "schema_version"]).to_pylist() == [
            {"index": index, "schema_version": expected}
        ]


@pytest.mark.parametrize("cut", range(6))
def test_rows_do_not_depend_on_how_a_range_is_divided(cut: int) -> None:
    schemas = versions("a INT", "a BIGINT", "a STRING", indexes=(2, 4, 6))
    records = [(1, {"a": 1}), (3, {"a": 2}), (5, {"a": "x"}), (5, {"a": 3}), (7, {"a": "y"}), (8, None)]
    whole, parts = decoded(schemas, *records), [records[:cut], records[cut:]]
    pieces = [decoded(schemas, *part) for part in parts]
    for first in (1, 3):
        held = [piece.records[first] for piece in pieces if first in piece.records]
        assert pa.concat_tables(held) == whole.records[first]
    assert pa.concat_tables([piece.dead_letters for piece in pieces]) == whole.dead_letters


@pytest.mark.parametrize("cut", range(5))
def test_a_prefix_names_a_version_of_avro_between_versions_of_json(cut: int) -> None:
    avro = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]})
    wider = avro.replace("}]}", '}, {"name": "b", "type": "string"}]}')
    formats = (("json", "a STRING"), ("avro", avro), ("avro", wider), ("json", "a STRING"))
    schemas = [
        LogSchema(number, 10 * number, format, definition, compatibility="none")
        for number, (format, definition) in enumerate(formats, 1)
    ]
    records = entries((11, {"a": "x"}), (31, "?"), (32, "?"), (41, {"a": "y"}))
    values = [records["value"][0].as_py(), b"\0\0\0\0\2\2x", b"\2x\2y", records["value"][3].as_py()]
    place = records.schema.get_field_index("value")
    records = records.set_column(place, "value", pa.array(values, pa.binary()))
    reader = TypedDecoder(schemas, compatibility_groups(schemas))
    pieces = [reader.decode(records.slice(0, cut)), reader.decode(records.slice(cut))]
    assert [piece.dead_letters.num_rows for piece in pieces] == [0, 0]
    found = pa.concat_tables(
        rows.select(["_index", "_schema_version"]) for piece in pieces for rows in piece.records.values()
    )
    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [
        (11, 1),
        (31, 2),
        (32, 3),
        (41, 4),
    ]


def test_versions_that_one_table_can_hold_form_a_compatibility_group() -> None:
    schemas = versions(
        "a INT", "a BIGINT, b STRING", "a BIGINT", "a BIGINT, c DATE", indexes=(1, 2, 3, 4), cluster_by=("a",)
    )
    found = compatibility_groups(schemas)
    assert [(each.first, each.last, each.from_index) for each in found] == [(1, 2, 0), (3, 4, 3)]
    assert [each.records().name for each in found] == ["records", "records_v3"]
    assert [each.current().name for each in found] == ["current", "current_v3"]
    assert found[0].records().cluster_by == ("a",)
    assert found[1].records().schema.fieldNames()[-2:] == ["a", "c"]


def test_a_version_that_was_compatible_when_it_was_set_begins_no_table() -> None:
    def schema(version: int, base: str, unit: str, compatibility: str) -> LogSchema:
        fields = [{"name": "at", "type": {"type": base, "logicalType": unit}}]
        definition = json.dumps({"type": "record", "name": "R", "fields": fields})
        return LogSchema(version, version, "avro", definition, compatibility=compatibility)

    old = schema(1, "int", "time-millis", "none")
    for compatibility, groups in (("backward", 1), ("none", 2)):  # `backward` refuses it by now
        new = schema(2, "long", "time-micros", compatibility)
        assert len(compatibility_groups([old, new])) == groups


def test_changes_name_nested_columns() -> None:
    held = StructType().add("a", IntegerType()).add("l", ArrayType(StructType().add("x", IntegerType())))
    inner = StructType().add("x", LongType()).add("y", StringType())
    wanted = StructType().add("l", ArrayType(inner)).add("a", DoubleType()).add("n", StringType())
    assert list(changes(held, wanted)) == [
        ColumnChange(("l", "element", "x"), LongType(), held=IntegerType()),
        ColumnChange(("l", "element", "y"), StringType(), held=None),
        ColumnChange(("a",), DoubleType(), held=IntegerType()),
        ColumnChange(("n",), StringType(), held=None),
    ]
    assert list(changes(wanted, wanted)) == []


def test_the_tables_are_complete_up_to_the_end_of_the_newest_group() -> None:
    assert complete_before([0], [-1]) == 0
    assert complete_before([0], [41]) == 42
    assert complete_before([0, 50], [99, -1]) == 50  # a row of the second may be missing
    assert complete_before([0, 50], [30, -1]) == 31
    assert complete_before([0, 50], [30, 70]) == 71
    assert complete_before([0, 50, 60], [30, 55, -1]) == 56


@pytest.mark.parametrize(
    ("until", "begins", "end"),
    [
        (1_250, [0, 900], 1_250),  # the rest is no piece of its own
        (1_251, [0], 1_000),
        (5_000, [0, 999, 1_999], 999),
        (5_000, [0, 1_000], 1_000),
        (5_000, [0, 300, 1_001], 1_000),  # a short piece costs a commit
        (5_000, [0, 501], 501),
        (5_000, [], 1_000),
    ],
)
def test_a_piece_ends_where_a_file_begins(until: int, begins: list[int], end: int) -> None:
    assert _end_of_piece(0, until, 1_000, begins) == end
    assert _end_of_piece(7, until + 7, 1_000, [begin + 7 for begin in begins]) == end + 7
