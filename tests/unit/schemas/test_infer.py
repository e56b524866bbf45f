"""A JSON Schema proposed from samples."""

import json
import re

import pyarrow as pa
import pytest

from app.schemas import LogSchema, RecordDecoder, SamplesUnusable, check_new, columns_of, propose
from tests.unit.schemas.support import schema_of


def types_of(schema: LogSchema) -> dict[str, str]:
    return {column.name: column.type for column in columns_of(schema)}


def test_the_proposal_has_the_columns_of_the_samples() -> None:
    samples = [
        b'{"id":1,"ratio":1,"day":"2013-01-31","at":"2013-01-31T10:00:00Z","note":null,"to":{"zip":"1"},"tags":["a"]}',
        b'{"id":2,"ratio":0.5,"day":"2013-02-01","at":"2013-01-31T10:00:00Z","note":"x","to":{"no":3},"tags":[]}',
        b'{"id":3,"ratio":2,"day":"2013-02-02","at":"2013-01-31T10:00:00+01:00","note":"y","to":{},"none":null}',
    ]
    schema = schema_of(propose(samples).definition)
    assert [(column.name, column.type, column.nullable) for column in columns_of(schema)] == [
        ("id", "bigint", False),
        ("ratio", "double", False),
        ("day", "date", False),
        ("at", "timestamp", False),
        ("note", "string", True),
        ("to", "struct<zip:string,no:bigint>", False),
        ("tags", "array<string>", True),
    ]
    assert RecordDecoder({1: schema}, 1).check(samples) is None


def test_fields_without_one_type_are_left_out_and_rescued() -> None:
    samples = [
        b'{"a":1,"b":"x","c":[],"d":{},"day":"2013-01-31"}',
        b'{"a":2,"b":1,"c":[],"d":{},"day":"soon"}',
    ]
    schema = schema_of(propose(samples).definition)
    assert [(column.name, column.type) for column in columns_of(schema)] == [
        ("a", "bigint"),
        ("day", "string"),
    ]
    assert RecordDecoder({1: schema}, 1).check(samples) is None


def test_names_that_cannot_be_columns_are_left_out() -> None:
    samples = [b'{"a":1,"b c":1,"":2,"_key":"k","A":2,"x":{"y":1,"Y":2,"_key":3},"z":{"":1}}']
    schema = schema_of(propose(samples).definition)
    assert types_of(schema) == {"a": "bigint", "x": "struct<y:bigint,_key:bigint>"}
    assert RecordDecoder({1: schema}, 1).check(samples) is None


@pytest.mark.parametrize("levels", [29, 30, 31, 32, 62])
@pytest.mark.parametrize("parts", [('{"a":', "}"), ("[", "]"), ('{"a":', "[", "}", "]")])
def test_parts_nested_deeper_than_a_schema_can_be_are_left_out(parts: tuple[str, ...], levels: int) -> None:
    begins, ends = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    text = "1"
    for level in range(levels):
        text = begins[level % len(begins)] + text + ends[level % len(ends)]
    sample = f'{{"id":1,"deep":{text}}}'.encode()
    schema = schema_of(propose([sample]).definition)
    check_new(schema)
    decoded = RecordDecoder({1: schema}, 1).decode(pa.array([sample], pa.binary()))
    assert decoded.errors == []
    is_described = levels <= 30
    assert ("deep" in types_of(schema)) == is_described
    assert decoded.rescued.to_pylist() == [None if is_described else f'{{"deep":{text}}}']


def test_integers_beyond_64_bits_are_exact() -> None:
    samples = [b'{"a":18446744073709551616,"b":1e3}', b'{"a":1,"b":%d}' % 10**50]
    schema = schema_of(propose(samples).definition)
    assert types_of(schema) == {"a": "decimal(38,0)", "b": "double"}
    assert RecordDecoder({1: schema}, 1).check(samples) is None


def test_samples_that_are_not_objects_are_not_used() -> None:
    samples = [b"no JSON", b'{"a":1}', b"[1]", b'{"a":2}']
    schema = schema_of(propose(samples).definition)
    assert types_of(schema) == {"a": "bigint"}
    errors = RecordDecoder({1: schema}, 1).decode(pa.array(samples, pa.binary())).errors
    assert [each.position for each in errors] == [0, 2]


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([], "no records"),
        ([b"x"], "No record is a JSON object. The first one: The record is not valid JSON at character 0"),
        ([b"[]"], "The first one: It is not a JSON object: []."),
        ([b'{"a":null}'], "No field has one type"),
        ([b'{"a":1}', b'{"a":"x"}'], "No field has one type"),
        ([json.dumps({f"f{n}": n for n in range(2_001)}).encode()], "The schema has more than 2000 fields."),
    ],
)
def test_samples_without_a_column_are_refused(samples: list[bytes], reason: str) -> None:
    with pytest.raises(SamplesUnusable, match=re.escape(reason)):
        propose(samples)


def test_fields_that_are_left_out_are_named_with_their_types() -> None:
    samples = [
        b'{"id":1,"total":1.5,"to":{"a/b":1,"no":null},"lines":[{"sku":"x","tags":[]}],"none":null}',
        b'{"id":2,"total":"n/a","to":{"a/b":"1","zip":"1"},"lines":[],"a b":1}',
    ]
    assert propose(samples).left_out == (
        "/total (number, string)",
        "/to/a~1b (integer, string)",
        "/to/no (null)",
        "/lines/*/tags (array)",
        "/none (null)",
        "/a b (integer)",
    )
    assert propose([b'{"id":1}']).left_out == ()
