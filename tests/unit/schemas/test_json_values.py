"""JSON records: which value each type takes, and what is refused with its pointer."""

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from app.schemas import Mismatch
from tests.unit.schemas.support import decoder_of, rows_of

AT = dt.datetime(2013, 1, 31, 10, 0, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "true", True),
        ("tinyint", "-128", -128),
        ("smallint", "32767", 32767),
        ("int", "1.0", 1),
        ("bigint", "9223372036854775807", 9223372036854775807),
        ("bigint", "9007199254740993.0", 9007199254740993),
        ("bigint", "1e3", 1000),
        ("float", "0.1", struct.unpack("f", struct.pack("f", 0.1))[0]),
        ("float", "3.4028235677973362e38", struct.unpack("f", b"\xff\xff\x7f\x7f")[0]),
        ("double", "1", 1.0),
        ("double", "1e-400", 0.0),
        ("decimal(5,2)", "1.10", Decimal("1.10")),
        ("decimal(5,2)", '"-999.99"', Decimal("-999.99")),
        ("decimal(5,2)", "1.1000", Decimal("1.10")),
        ("decimal(38,0)", "1" * 38, Decimal("1" * 38)),
        ("decimal(38,0)", f"-{'9' * 38}.0", Decimal(f"-{'9' * 38}")),
        ("decimal(29,29)", f"{'9' * 29}e-29", Decimal(f"0.{'9' * 29}")),
        ("string", '"\\ud83d\\ude00\\u0000"', "😀\0"),
        ("binary", '"YWI="', b"ab"),
        ("date", '"2013-01-31"', dt.date(2013, 1, 31)),
        ("timestamp", '"2013-01-31T10:00:00Z"', AT),
        ("timestamp", '"2013-01-31 15:30:00+05:30"', AT),
        ("timestamp", '"2013-01-31T10:00:00.1234565z"', AT.replace(microsecond=123457)),
        ("timestamp_ntz", '"2013-01-31T10:00:00"', AT.replace(tzinfo=None)),
        ("array<int>", "[1, null]", [1, None]),
        ("map<string,int>", '{"b": 1, "a": null}', [("b", 1), ("a", None)]),
        ("struct<x int, y string>", '{"y": "a"}', {"x": None, "y": "a"}),
        ("int", "null", None),
    ],
)
def test_a_value_is_read(kind: str, text: str, value: Any) -> None:
    decoder = decoder_of(f"a {kind}")
    record = f'{{"a":{text}}}'.encode()
    assert decoder.check([record]) is None
    assert rows_of(decoder, record, f' {{ "a" : {text} }}\n'.encode()) == [{"a": value}] * 2


@pytest.mark.parametrize(
    ("kind", "text", "pointer", "reason"),
    [
        ("boolean", '"true"', "/a", "Expected true or false"),
        ("tinyint", "128", "/a", "outside the range of tinyint"),
        ("bigint", "9223372036854775808", "/a", "outside the range"),
        ("bigint", "1" * 400, "", "beyond the range of a double"),
        ("int", "1.5", "/a", "Expected an integer"),
        ("int", '"1"', "/a", "Expected an integer"),
        ("int", "true", "/a", "Expected an integer"),
        ("float", "1e39", "/a", "beyond the range of a float"),
        ("float", "3.4028235677973366e38", "/a", "beyond the range of a float"),  # rounds to infinity
        ("double", "1e999", "", "beyond the range of a double"),
        ("double", "NaN", "", "NaN is not a JSON number"),
        ("double", '"NaN"', "/a", "Expected a number"),
        ("double", "-Infinity", "", "not a JSON number"),
        ("decimal(5,2)", "1.101", "/a", "exactly"),
        ("decimal(5,2)", "1000", "/a", "exactly"),
        ("decimal(38,0)", f"1{'0' * 38}.0", "/a", "exactly"),
        ("decimal(5,2)", '"1_0"', "/a", "decimal number"),
        ("string", "1", "/a", "Expected a string"),
        ("string", '"\\ud800"', "", "surrogate"),
        ("string", '"\t"', "", "not valid JSON"),
        ("binary", '"Y"', "/a", "base64"),
        ("date", '"2013-02-30"', "/a", "date"),
        ("timestamp", '"2013-01-31T10:00:00"', "/a", "offset"),
        ("timestamp", '"2013-01-31T10:00:60Z"', "/a", "offset"),
        ("timestamp", '"0001-01-01T00:00:00+01:00"', "/a", "years 1 to 9999"),
        ("timestamp", '"\\u0030001-01-01T00:00:00+01:00"', "/a", "years 1 to 9999"),
        ("timestamp", '"9999-12-31T23:59:59-01:00"', "/a", "years 1 to 9999"),
        ("timestamp", "1356998400", "/a", "offset"),
        ("timestamp_ntz", '"2013-01-31T10:00:00Z"', "/a", "without offset"),
        ("array<struct<x int>>", '[{"x":1},{"x":"b"}]', "/a/1/x", "Expected an integer"),
        ("map<string,int>", '{"k/~":"b"}', "/a/k~1~0", "Expected an integer"),
        ("map<string,int>", '{"k":1,"k":2}', "", "occurs twice"),
        ("int", '1,"a":2', "", '"a" occurs twice'),
        ("int", '1,"b":{"x":1,"x":2}', "", '"x" occurs twice'),
        ("int", '1,"\\u0061":2', "", "occurs twice"),
        ("int", '1,"b":"\\udcff"', "", "surrogate"),
        ("int", '1,"\\ud800":1,"\\ud800":2', "", '"\\ud800" occurs twice'),
        ("int", '1,"b":1e999', "", "beyond the range"),
        ("int", '1,"b":' + "[" * 64 + "]" * 64, "", "nested deeper than 64"),
        ("int", '1,"b":' + "[" * 100_000 + "]" * 100_000, "", "nested deeper than 64"),
        ("int NOT NULL", "null", "/a", "Null is not allowed"),
        ("int", "1}{", "", "not valid JSON"),
    ],
)
def test_a_value_is_refused(kind: str, text: str, pointer: str, reason: str) -> None:
    decoder = decoder_of(f"a {kind}")
    record = f'{{"a":{text}}}'.encode()
    found = decoder.check([None, b'{"a":null}' if "NOT NULL" not in kind else None, record])
    assert found is not None
    assert (found.position, found.pointer) == (2, pointer)
    assert reason in found.reason
    assert len(found.reason.encode()) < 200  # a column holds texts in UTF-8
    assert decoder.decode(pa.array([None, None, record], pa.binary())).errors == [found]


@pytest.mark.parametrize(
    "record", [b"", b" ", b"1", b"[]", b'"a"', b"null", b"\xef\xbb\xbf{}", b'{"b":"\xff"}']
)
def test_a_record_is_one_object_in_utf_8(record: bytes) -> None:
    assert decoder_of("a int").check([record]) is not None


def test_tombstones_are_neither_rows_nor_errors() -> None:
    decoded = decoder_of("a int").decode(pa.array([None, b'{"a":1}', None, b"x"], pa.binary()))
    assert decoded.positions.to_pylist() == [1]
    assert [error.position for error in decoded.errors] == [3]
    empty = decoder_of("a int").decode(pa.array([None, None], pa.binary()))
    assert (empty.rows.num_rows, empty.positions.to_pylist(), empty.errors) == (0, [], [])
    assert empty.rows.schema.names == ["a"]


@pytest.mark.parametrize(
    ("definition", "record", "rescued"),
    [
        ("a int", '{"b": 1.10, "a": 1, "c": [1e5, {"d": "é"}]}', '{"b":1.10,"c":[1e5, {"d": "é"}]}'),
        ("a struct<x int>", '{"a":{"x":1,"y":{"z":2}}}', '{"a":{"y":{"z":2}}}'),
        ("a array<struct<x int>>", '{"a":[{"x":1},null,{"q":2}]}', '{"a":{"2":{"q":2}}}'),
        ("a map<string,struct<x int>>", '{"a":{"k":{"q":2}},"A":1}', '{"a":{"k":{"q":2}},"A":1}'),
        ("a struct<x int>", '{"a":null,"b":18446744073709551616}', '{"b":18446744073709551616}'),
        ("a int", '{"a":1}', None),
    ],
)
def test_unknown_fields_are_rescued_as_they_are(definition: str, record: str, rescued: str | None) -> None:
    decoder = decoder_of(definition)
    assert decoder.check([record.encode()]) is None
    assert decoder.decode(pa.array([record.encode()], pa.binary())).rescued.to_pylist() == [rescued]


def test_rules_of_a_json_schema_are_checked() -> None:
    properties = {
        "month": {"type": "integer", "minimum": 1, "maximum": 12},
        "carrier": {"type": "string", "pattern": "^[A-Z]{2}$"},
        "state": {"enum": ["new", "paid"]},
        "price": {"type": "number", "multipleOf": 0.01},
    }
    decoder = decoder_of({"type": "object", "properties": properties, "additionalProperties": False})
    good = b'{"month":1,"carrier":"UA","state":"new","price":19.99}'
    assert decoder.check([good]) is None
    for record, pointer in [
        (b'{"month":13}', "/month"),
        (b'{"carrier":"ua"}', "/carrier"),
        (b'{"state":"gone"}', "/state"),
        (b'{"price":0.001}', "/price"),
        (b'{"other":1}', ""),
    ]:
        found = decoder.check([good, record])
        assert found == Mismatch(1, pointer, found.reason if found else "")
