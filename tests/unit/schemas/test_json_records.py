"""The fast way to read JSON records gives what the exact way gives, for every record that it accepts."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from app.schemas import RecordDecoder, arrow_schema_of
from app.schemas.errors import ValueInvalid
from app.schemas.json_records import JsonReader
from tests.unit.schemas.random_records import RandomRecords
from tests.unit.schemas.support import decoder_of, rows_of, schema_of


def in_utc(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)
    if isinstance(value, dict):
        return {name: in_utc(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [in_utc(item) for item in value]
    return value


def exact(reader: JsonReader, value: bytes) -> tuple[Any, ...] | None:
    try:
        row, rescued = reader.exact_row(value)
    except ValueInvalid:
        return None
    return str(in_utc(row)), rescued, row


@pytest.mark.parametrize("first_seed", range(0, 120, 20))
def test_both_ways_agree(first_seed: int) -> None:
    matched = fast = 0
    for seed in range(first_seed, first_seed + 20):
        records = RandomRecords(seed)
        schema = schema_of(records.definition)
        reader, decoder = JsonReader(schema), RecordDecoder({1: schema}, 1)
        values = [records.record() for _ in range(25)]
        expected = [exact(reader, value) for value in values]
        for value, row in zip(values, expected, strict=True):
            context = (seed, records.definition, value)
            assert (decoder.check([value]) is None) is (row is not None), context
            if row is not None:
                matched += 1
                found, rescued = reader.row(value)
                assert (str(in_utc(found)), rescued) == row[:2], context
                columns = reader.columns([value])
                if columns is not None:
                    fast += 1
                    assert str(in_utc([column[0] for column in columns])) == row[0], context
        decoded = decoder.decode(pa.array(values, pa.binary()))
        decoded.rows.validate(full=True)
        rows = [(at, row) for at, row in enumerate(expected) if row is not None]
        assert decoded.positions.to_pylist() == [at for at, _ in rows]
        assert decoded.rescued.to_pylist() == [row[1] for _, row in rows]
        assert [error.position for error in decoded.errors] == [
            at for at, row in enumerate(expected) if row is None
        ]
        types = arrow_schema_of(schema).types
        columns = list(zip(*(row[2] for _, row in rows), strict=True))
        arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=bool(columns))]
        assert str(decoded.rows.to_pydict() if rows else {}) == str(
            dict(zip(decoded.rows.schema.names, (array.to_pylist() for array in arrays), strict=bool(rows)))
        )
    assert matched > 50
    assert fast > 20


def test_a_batch_is_accepted_together_only_if_each_record_is_one() -> None:
    reader = JsonReader(schema_of("a int, b array<int>"))
    whole = [b'{"a":1,"b":[1]}', b'{"a":2,"b":[]}']
    assert reader.accepts(whole)
    assert reader.columns(whole) == [(1, 2), ([1], [])]
    for values in ([b'{"a":1},{"a":2', b"}"], [b'{"a":1,"b":[1', b"2]}"], [b'{"a":1}{"a":2}', b" "]):
        assert not reader.accepts(values)
        assert reader.columns(values) is None


def test_a_missing_field_does_not_hide_a_repeated_one() -> None:
    decoder = RecordDecoder({1: schema_of("a int, b int")}, 1)
    assert decoder.check([b'{"a":1,"a":2}']) is not None
    assert decoder.check([b'{"a" :1,"a":2}']) is not None
    assert decoder.check([b'{"a":1,"b":2}', b'{"a":1,"a":2}', b'{"a":1}']) is not None


def test_names_that_json_escapes_are_read() -> None:
    decoder = decoder_of('`"q"` INT, `b\\c` STRUCT<`"`: STRING>, `x` INT')
    record = rb'{"\"q\"": 1, "b\\c": {"\"": "v"}, "\u0078": 2}'
    assert rows_of(decoder, record) == [{'"q"': 1, "b\\c": {'"': "v"}, "x": 2}]
    assert decoder.check([record[:-1] + b', "x": 3}']) is not None


def test_a_colon_in_a_time_does_not_hide_a_repeated_name() -> None:
    decoder = RecordDecoder({1: schema_of("a int, t timestamp")}, 1)
    time = b"2013-01-31T10:00:00Z"
    assert decoder.check([b'{"a":1,"t":"%s"}' % time]) is None
    assert decoder.check([b'{"a":1,"a":1,"t":"%s"}' % time]) is not None
    assert decoder.check([b'{"a":1,"a":1,"t":"%s"}' % time.replace(b":", rb"\u003a", 1)]) is not None
    assert decoder.check([b'{"a":1,"a":1,"t":null}', b'{"a":1,"t":"%s"}' % time]) is not None


POSITIVE = {"$defs": {"positive": {"type": "integer", "minimum": 1}}}
TWICE = {"a": {"$ref": "#/$defs/positive"}, "b": {"$ref": "#/$defs/positive"}}


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@pytest.mark.parametrize(
    ("definition", "value", "pointer"),
    [
        (object_of(**TWICE, c={"type": "array", "items": {"type": "integer", "minimum": 5}}), [4], "/c/0"),
        (
            object_of(**TWICE, c={"type": "object", "additionalProperties": {"enum": ["x"]}}),
            {"k": "y"},
            "/c/k",
        ),
        (object_of(**TWICE, c={"type": "string", "pattern": "^x"}), "y", "/c"),
        ({**object_of(**TWICE, c={"type": "string"}), "minProperties": 4}, "y", ""),
        (object_of(c={"anyOf": [{"type": "string"}, {"type": "null"}], "enum": ["x"]}), None, "/c"),
        (object_of(c={"oneOf": [{"type": ["string", "null"]}, {"type": "null"}]}), None, "/c"),
        (object_of(c={"type": "array", "items": {"$ref": "#/$defs/positive"}}), [1, 0], "/c/1"),
    ],
)
def test_no_rule_hides_another_one(definition: dict[str, Any], value: Any, pointer: str) -> None:
    record = json.dumps({"a": 1, "b": 2, "c": value}, separators=(",", ":")).encode()
    decoder = decoder_of({**definition, **POSITIVE} if "$ref" in str(definition) else definition)
    assert not decoder.accepts([record])
    found = decoder.decode(pa.array([record] * 2, pa.binary())).errors
    assert [(error.position, error.pointer) for error in found] == [(0, pointer), (1, pointer)]
    assert decoder.check([record]) == found[0]


@pytest.mark.parametrize(
    ("field", "refused"),
    [
        ({"type": ["string", "null"], "enum": [None]}, '"x"'),
        ({"type": "string", "enum": []}, '"x"'),
        ({"type": "string", "minLength": 1 << 63}, '"x"'),
        ({"type": "string", "maxLength": 10**30}, "1"),
    ],
)
def test_rules_that_msgspec_does_not_have_are_checked(field: dict[str, Any], refused: str) -> None:
    found = decoder_of(object_of(c=field)).check([b'{"c":%s}' % refused.encode()])
    assert found is not None
    assert found.pointer == "/c"
