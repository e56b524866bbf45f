"""Avro: columns, rows, the prefix of registries, and damaged records."""

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from app.schemas import (
    Column,
    LogSchema,
    RecordDecoder,
    SchemaInvalid,
    columns_of,
    incompatibilities,
    version_of,
)
from tests.unit.schemas.support import rows_of

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long", "doc": "Number of the order"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        },
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-micros"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "uid", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "states", "type": {"type": "map", "values": "State"}},
        {
            "name": "lines",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Line",
                    "fields": [{"name": "day", "type": {"type": "int", "logicalType": "date"}}],
                },
            },
        },
    ],
}
VALUE = {
    "id": 7,
    "note": None,
    "price": Decimal("-1.50"),
    "at": dt.datetime(2013, 1, 31, 10, 0, 0, 5_000, dt.UTC),
    "local": dt.datetime(2013, 1, 31, 10, 0, 0, 7),
    "day": dt.date(2013, 1, 31),
    "uid": "8f1e5b7e-0f0a-4c1c-9a7e-0d6f2d1c0a11",
    "state": "PAID",
    "hash": b"ab",
    "tags": ["x", None],
    "states": {"a": "NEW"},
    "lines": [{"day": dt.date(1999, 12, 31)}],
}


def avro_of(document: Any, **settings: Any) -> LogSchema:
    return LogSchema(
        **{"version": 3, "index": 0, "format": "avro", "definition": json.dumps(document), **settings}
    )


def encoded(document: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(json.dumps(document))), value)
    return target.getvalue()


def decoder(**settings: Any) -> RecordDecoder:
    return RecordDecoder({3: avro_of(ORDER, **settings)}, 3)


def test_each_type_gives_its_column() -> None:
    assert columns_of(avro_of(ORDER)) == (
        Column("id", "bigint", False, "Number of the order"),
        Column("note", "string", True),
        Column("price", "decimal(10,2)", False),
        Column("at", "timestamp", False),
        Column("local", "timestamp_ntz", True),
        Column("day", "date", False),
        Column("uid", "string", False),
        Column("state", "string", False),
        Column("hash", "binary", False),
        Column("tags", "array<string>", False),
        Column("states", "map<string,string>", False),
        Column("lines", "array<struct<day:date>>", False),
    )


@pytest.mark.parametrize("prefix", [b"", b"\x00\x00\x00\x00\x03"])
def test_a_record_is_its_row_with_and_without_prefix(prefix: bytes) -> None:
    value = prefix + encoded(ORDER, VALUE)
    assert decoder().check([value, None]) is None
    expected = {**VALUE, "states": [("a", "NEW")]}
    assert rows_of(decoder(), value) == [expected]


def test_a_plain_record_that_begins_like_a_prefix_is_read() -> None:
    document = {"type": "record", "name": "N", "fields": [{"name": name, "type": "int"} for name in "abcdef"]}
    schema = avro_of(document)
    value = {**dict.fromkeys("abcdef", 0), "e": -2}  # -2 is the byte 3: it looks like version 3
    assert encoded(document, value)[:5] == b"\x00\x00\x00\x00\x03"
    assert rows_of(RecordDecoder({3: schema}, 3), encoded(document, value)) == [value]


def test_damaged_records_do_not_match() -> None:
    value = encoded(ORDER, VALUE)
    reader = decoder()
    for size in range(len(value)):
        assert reader.check([value[:size]]) is not None
    found = reader.check([value, value + b"x"])
    assert found is not None
    assert (found.position, found.reason) == (1, "1 bytes follow the end of the record.")


STATE = {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}
CHOICES = {
    "type": "record",
    "name": "Choices",
    "fields": [
        {"name": "state", "type": STATE},
        {"name": "count", "type": ["null", "int"]},
        {"name": "again", "type": ["State", "null"]},
        {"name": "many", "type": {"type": "array", "items": ["null", "State"]}},
        {"name": "named", "type": {"type": "map", "values": "State"}},
    ],
}


def test_an_index_of_a_union_or_an_enum_is_never_counted_from_its_end() -> None:
    value = {"state": "PAID", "count": 7, "again": "NEW", "many": ["PAID"], "named": {"a": "NEW"}}
    record = encoded(CHOICES, value)
    reader = RecordDecoder({3: avro_of(CHOICES)}, 3)
    assert rows_of(reader, record) == [{**value, "named": [("a", "NEW")]}]
    places = [0, 1, 3, 4, 6, 7, 12]  # of an index, by the encoding
    assert [record[place] for place in places] == [2, 2, 0, 0, 2, 2, 0]
    for place in places:
        for index in (-1, -2, -3, 2, 63):
            damaged = bytearray(record)
            damaged[place] = 2 * index if index >= 0 else -2 * index - 1
            found = reader.check([bytes(damaged)])
            assert found is not None
            assert found.reason == f"A union or an enum of the schema has no index {index}."


NUMBERS = {
    "type": "record",
    "name": "Numbers",
    "fields": [
        {"name": "long", "type": "long"},
        {"name": "text", "type": "string"},
        {"name": "state", "type": ["null", STATE]},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "list", "type": {"type": "array", "items": "int"}},
        {"name": "map", "type": {"type": "map", "values": "State"}},
        {"name": "is_new", "type": ["null", {"type": "boolean"}]},
        {"name": "are_new", "type": {"type": "array", "items": "boolean"}},
    ],
}
NUMBERS_VALUE = {
    "long": 7,
    "text": "a",
    "state": "NEW",
    "hash": b"hi",
    "list": [5],
    "map": {"b": "PAID"},
    "is_new": True,
    "are_new": [False, True],
}
NUMBERS_ROW = {**NUMBERS_VALUE, "map": [("b", "PAID")]}


def test_a_number_of_more_than_64_bits_does_not_match() -> None:
    record = encoded(NUMBERS, NUMBERS_VALUE)
    reader = RecordDecoder({3: avro_of(NUMBERS)}, 3)
    assert rows_of(reader, record) == [NUMBERS_ROW]
    assert record[:16] == b"\x0e\x02a\x02\x00hi\x02\x0a\x00\x02\x02b\x02\x00\x02"
    for place in (0, 1, 3, 4, 7, 8, 9, 10, 11, 13, 14, 15):
        begin, end = record[:place] + bytes([record[place] | 0x80]) + b"\x80" * 8, record[place + 1 :]
        assert rows_of(reader, begin + b"\x00" + end) == [NUMBERS_ROW]  # 64 bits, of which more are 0
        for beyond in (b"\x02", b"\x80\x00"):
            found = reader.check([begin + beyond + end])
            assert found is not None
            assert found.reason == f"The number at byte {place} has more than 64 bits."


def test_a_block_of_an_impossible_size_does_not_match() -> None:
    record = encoded(NUMBERS, {**NUMBERS_VALUE, "list": []})
    assert record[7] == 0  # the end of the list
    found = RecordDecoder({3: avro_of(NUMBERS)}, 3).check(
        [record[:7] + b"\xff" * 9 + b"\x01\x00" + record[7:]]
    )
    assert found is not None
    assert "more items" in found.reason


def test_records_with_runs_of_high_bytes_are_read() -> None:
    value = {**NUMBERS_VALUE, "long": -(2**63), "text": "日本語テキスト", "hash": b"\xff\xff"}
    record = encoded(NUMBERS, value)
    assert record[36:39] == b"\x02\x0a\x00"
    reader = RecordDecoder({3: avro_of(NUMBERS)}, 3)
    in_blocks = record[:36] + b"\x01\x02\x0a\x02\x0c\x00" + record[39:]
    row = {**NUMBERS_ROW, **value, "map": NUMBERS_ROW["map"]}
    assert rows_of(reader, record, in_blocks) == [row, {**row, "list": [5, 6]}]


def test_the_last_value_of_a_key_that_a_map_has_twice_counts() -> None:
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "x", "type": {"type": "map", "values": "int"}}],
    }
    twice = b"\x04\x02a\x02\x02a\x04\x00"
    assert rows_of(RecordDecoder({3: avro_of(schema)}, 3), twice) == [{"x": [("a", 2)]}]


@pytest.mark.parametrize("byte", [2, 0x80, 0x81, 0xFF])
def test_a_boolean_of_another_byte_does_not_match(byte: int) -> None:
    record = encoded(NUMBERS, NUMBERS_VALUE)
    reader = RecordDecoder({3: avro_of(NUMBERS)}, 3)
    assert record[-6:] == b"\x02\x01\x04\x00\x01\x00"
    for place, pointer in ((-5, "/is_new"), (-3, "/are_new/0")):
        damaged = bytearray(record)
        damaged[place] = byte
        found = reader.check([bytes(damaged)])
        assert found is not None
        assert (found.pointer, found.reason) == (pointer, f"A boolean is the byte 0 or 1, got {byte}.")


def test_times_outside_the_calendar_do_not_match() -> None:
    raw = json.loads(json.dumps(ORDER).replace('"logicalType": "timestamp-millis"', '"doc": ""'))
    for millis in (-62_135_596_800_001, 253_402_300_800_000, 1 << 62):
        found = decoder().check([encoded(raw, {**VALUE, "at": millis})])
        assert found is not None
        assert found.pointer == "/at"


def test_numbers_beyond_an_int_do_not_match() -> None:
    document = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "n", "type": "int"},
            {"name": "list", "type": {"type": "array", "items": ["null", "int"]}},
            {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
        ],
    }
    wide = json.loads(json.dumps(document).replace('"int"', '"long"').replace('"time-millis"', '""'))
    ends = {"n": -(2**31), "list": [None, 2**31 - 1], "time": 0}
    reader = RecordDecoder({3: avro_of(document)}, 3)
    assert rows_of(reader, encoded(wide, ends)) == [ends]
    for change, pointer in (
        ({"n": 2**31}, "/n"),
        ({"list": [1, -(2**40)]}, "/list/1"),
        ({"time": 2**62}, "/time"),
    ):
        value = encoded(wide, {**ends, **change})
        found = reader.decode(pa.array([value], pa.binary())).errors
        assert found == [reader.check([value])]
        assert found[0].pointer == pointer


def test_a_key_column_that_is_null_does_not_match() -> None:
    found = decoder(key_columns=("note",)).check([encoded(ORDER, VALUE)])
    assert found is not None
    assert (found.pointer, found.reason) == ("/note", "Null is not allowed here.")


def record(*types: Any) -> dict[str, Any]:
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(types)]
    return {"type": "record", "name": "R", "fields": fields}


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (record(["null", "int", "string"]), "union"),
        (record(["null", "R"]), "recursive"),
        (record({"type": "array", "items": "R"}), "recursive"),
        (record({"type": "array", "items": "null"}), "not the type of a column"),
        (record("null"), "not the type of a column"),
        (record({"type": "fixed", "name": "F", "size": 0}), "at least one byte"),
        (record({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}), "no fields"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 39}), "precision"),
        (record("nope"), "Not valid as Avro schema"),
        ("int", "type record"),
        ({"type": "record", "name": "R", "fields": [{"name": "_key", "type": "int"}]}, "every typed table"),
    ],
)
def test_types_without_a_column_are_refused(document: Any, reason: str) -> None:
    with pytest.raises(SchemaInvalid, match=reason):
        columns_of(avro_of(document))


def test_a_definition_that_is_not_json_is_not_called_a_record() -> None:
    with pytest.raises(SchemaInvalid, match="The definition is not valid JSON at character 0"):
        columns_of(avro_of(None, definition="x"))


def test_the_version_of_a_record() -> None:
    assert version_of(None, b"\x00\x00\x00\x00\x07abc", "avro") == 7
    assert version_of({b"schema-version": b"2"}, b"\x00\x00\x00\x00\x07abc", "avro") == 2
    assert version_of({b"schema-version": b"two"}, b"{}", "json") == -1
    assert version_of({b"schema-version": "٣".encode()}, b"{}", "json") == -1
    assert version_of({}, b"\x00\x00\x00\x00\x07", "json") is None
    assert version_of({}, b"\x00\x01\x00\x00\x07", "avro") is None
    assert version_of({}, b"\x00\x00\x00\x00\x00", "avro") is None
    assert version_of({}, None, "avro") is None


def test_records_that_use_each_other_are_bounded() -> None:
    inner: Any = "int"
    for level in range(14):
        name = f"R{level}"
        again = inner if isinstance(inner, str) else inner["name"]
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": again}]
        inner = {"type": "record", "name": name, "fields": fields}
    with pytest.raises(SchemaInvalid, match="2000 fields"):
        columns_of(avro_of(inner))


def test_a_time_of_day_keeps_its_unit() -> None:
    def schema(base: str, unit: str) -> LogSchema:
        time = {"type": base, "logicalType": unit}
        return avro_of(record(time, {"type": "array", "items": time}))

    old, new = schema("int", "time-millis"), schema("long", "time-micros")
    found = incompatibilities(old, new)
    assert [(each.path, each.kind) for each in found] == [
        ("/f0", "unit_changed"),
        ("/f1/element", "unit_changed"),
    ]
    assert incompatibilities(old, avro_of(record("long", {"type": "array", "items": "long"}))) == []
