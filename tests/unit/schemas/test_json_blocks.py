"""Blocks of JSON records that Arrow's parser reads give what the exact way gives."""

import json
import random
from functools import lru_cache

import pyarrow as pa
import pytest

from app.schemas import RecordDecoder, arrow_schema_of
from app.schemas.json_records import JsonReader
from tests.unit.schemas.random_records import NUMBERS, TEXTS
from tests.unit.schemas.support import schema_of

DDL = "a int NOT NULL, b bigint, c double, d float, e string, f boolean, g date, h timestamp, i timestamp_ntz"
WHOLE = {
    "a": 1, "b": -(2**40), "c": -0.5, "d": 0.1, "e": "Zürich", "f": True, "g": "2013-01-31",
    "h": "2013-01-31T10:00:00.25Z", "i": "2013-01-31T10:00:00",
}  # fmt: skip
LIMITS = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 1, "exclusiveMaximum": 9},
        "c": {"type": ["number", "null"], "minimum": 0.1, "maximum": 5},
        "e": {"type": "string", "enum": ["x", "é"]},
        "k": {"type": "string", "minLength": 1, "maxLength": 2},
    },
    "required": ["a", "c"],
}


@lru_cache
def reader_of(definition: str) -> tuple[JsonReader, pa.Schema]:
    schema = schema_of(definition)
    return JsonReader(schema), arrow_schema_of(schema)


def read(definition: str, *values: bytes) -> list[tuple[object, ...]] | None:
    """Return the rows of a block, None if the block reader does not decide."""
    reader, schema = reader_of(definition)
    arrays = reader.block(pa.array(values, pa.binary()))
    if arrays is None:
        return None
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    rows.validate(full=True)
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def exactly(definition: str, *values: bytes) -> list[tuple[object, ...]]:
    reader, schema = reader_of(definition)
    columns = zip(*(reader.exact_row(value)[0] for value in values), strict=True)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return list(zip(*(array.to_pylist() for array in arrays), strict=True))


def to_json(**fields: object) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


@pytest.mark.parametrize("spaces", [(",", ":"), (", ", ": ")])
def test_plain_values_of_all_types_are_read_as_a_block(spaces: tuple[str, str]) -> None:
    nothing = dict.fromkeys(WHOLE, None)
    fields = [WHOLE, {**WHOLE, "e": "a, b:{}, c"}, {**nothing, "a": 3}, {**WHOLE, "a": 0, "d": 16777217}]
    values = [json.dumps(each, ensure_ascii=False, separators=spaces).encode() for each in fields]
    assert str(read(DDL, *values)) == str(exactly(DDL, *values))
    shuffled = [to_json(d=number, a=-number, e=str(number)) for number in range(3, 9)]
    assert str(read(DDL, *shuffled)) == str(exactly(DDL, *shuffled))
    sliced = pa.array([b"no JSON", *shuffled, None], pa.binary()).slice(1, len(shuffled))
    assert reader_of(DDL)[0].block(sliced) is not None


@pytest.mark.parametrize(
    "values",
    [
        [b'{"a":1,"b":2}', b'{"b":2,"a":1}'],
        [b'{"a":1,"b":2}', b'{"a":1, "b":2}'],
        [b'{"a":1,"b":2}', b'{"a":1,"b": 2}'],
        [b'{"a":1,"b":2}', b'{"a":1}'],
        [b'{"a":1,"b":2}', b'{"a":1,"b":2,"c":3}', b'{"a":1}'],
        [b'{"a":1,"b":2}', b'{"a":1}', b'{"a":1,"b":2,"c":3}'],
        [b'{"a":1,"e":"x,"}', b'{"a":1,"e":"x"}'],
        [b'{"a":1,"e":"x,","f":true}'],
        [b'{"a":1,"e":"x"y"}'],
        [b'{"a":1,"e":"}'],
        [b'{"a":1,"e":"x\x01"}', b'{"a":1,"e":"y"}'],
        [b'{"a":1\x01"b":2}', b'{"a":1,"b":2}'],
        [b'\xef\xbb\xbf{"a":1}', b'{"a":1}'],
        [b'{"a":1}}', b'{"a":1}'],
        [b'{{"a":1}', b'{"a":1}'],
        [b'{"a":-0}', b'{"a":0x1}', b'{"a":007}'],
        [b'{"a":1,"c":+1}', b'{"a":1,"c":.5}'],
        [b'{"a":1,"f":True}'],
        [b"{}", b"{}"],
        [b"{", b"}"],
    ],
)
def test_a_block_of_several_layouts_is_left_to_other_ways(values: list[bytes]) -> None:
    assert read(DDL, *values) is None


@pytest.mark.parametrize(
    "values",
    [
        [b'{"a":1}{"a":2}', b" "],
        [b'{"a":1}{"a":2}', b"{}"],
        [b'{"a":1,"e":"}', b'{"}'],
        [b'{"a":1', b',"b":2}'],
        [b'{"a":1,"e":"x\ny"}'],
        [b'{"a":1}\n'],
        [b'{"a":1}\0{'],
        [b'{"a":1,"a":2}'],
        [b'{"a":1,"\\u0061":2}'],
        [b'{"a":1,"e":"\\ud800"}'],
        [b'{"a":1,"e":"\xff"}'],
        [b'{"a":1,"z":2}'],
        [b'{"b":1}'],
        [b'{"a":null}'],
        [b'{"a":1,"b":"2"}'],
        [b'{"a":2147483648}'],
        [b'{"a":1,"b":9223372036854775808}'],
        [b'{"a":1,"c":1e400}'],
        [b'{"a":1,"d":1e39}'],
        [b'{"a":1,"c":NaN}'],
        [b'{"a":01}'],
        [b'{"a":1,}'],
        [b'{"a":1,"g":"2013-02-30"}'],
        [b'{"a":1,"g":"0000-01-01"}'],
        [b'{"a":1,"h":"2013-01-31"}'],
        [b'{"a":1,"h":"2013-01-31T10:00:00"}'],
        [b'{"a":1,"h":"0000-12-31T10:00:00Z"}'],
        [b'{"a":1,"h":"2013-01-31T24:00:00Z"}'],
        [b'{"a":1,"i":"2013-01-31T10:00:00Z"}'],
        [b"[]"],
        [b""],
    ],
)
def test_a_block_with_a_record_in_doubt_is_left_to_the_exact_way(values: list[bytes]) -> None:
    assert read(DDL, *values) is None
    assert read(DDL, *[to_json(**WHOLE)] * 3, *values) is None


def test_a_missing_field_differs_from_null() -> None:
    definition = json.dumps(
        {
            "type": "object",
            "properties": {name: {"type": kind} for name, kind in NULLS.items()},
            "required": ["required_null", "always"],
        }
    )
    whole = to_json(always=1, required_null=2, optional=3)
    assert read(definition, whole, to_json(always=1, required_null=None, optional=3)) is not None
    assert read(definition, *[to_json(always=1, required_null=None)] * 2) == [(1, None, None)] * 2
    for wrong in (
        to_json(always=1, required_null=2),  # valid, but of another layout
        to_json(always=1, optional=3),
        to_json(always=1, required_null=2, optional=None),
        to_json(always=None, required_null=2, optional=3),
    ):
        assert read(definition, whole, wrong) is None
    assert read(definition, to_json(always=1, optional=3)) is None


NULLS: dict[str, object] = {"always": "integer", "required_null": ["integer", "null"], "optional": "integer"}


def test_limits_lengths_and_lists_of_values_are_checked() -> None:
    definition = json.dumps(LIMITS)
    whole = {"a": 8, "c": 0.5, "e": "é", "k": "éé"}
    assert read(definition, to_json(**whole), to_json(a=1, c=4.9, e="x", k="x")) is not None
    for name, wrong in [("a", 0), ("a", 9), ("c", 0.05), ("c", 5.1), ("e", "y"), ("k", ""), ("k", "xyz")]:
        assert read(definition, to_json(**whole), to_json(**{**whole, name: wrong})) is None, (name, wrong)
    patterned = json.dumps({"type": "object", "properties": {"a": {"type": "string", "pattern": "^x"}}})
    assert read(patterned, b'{"a":"x"}') is None


@pytest.mark.parametrize("seed", range(2))
def test_random_blocks_have_the_rows_of_the_exact_way(seed: int) -> None:
    chance = random.Random(seed)
    texts = [f'"{text}"' for text in (*TEXTS, "a,", "a, ", ",", ', "')]
    read_as_block = 0
    for _ in range(300):
        names = sorted(WHOLE)
        for name in chance.sample(names, chance.choice((0, 0, 1))):
            names.remove(name)
        comma, colon = chance.choice(((",", ":"), (", ", ": ")))
        values = []
        for _ in range(chance.randrange(1, 4)):
            parts = {name: json.dumps(WHOLE[name], ensure_ascii=False) for name in names}
            for name in chance.sample(names, chance.choice((0, 1, 1, 2))):
                pool = NUMBERS if name in "abcd" else texts
                parts[name] = chance.choice([*pool, "null", "true"])
            text = comma.join(f'"{name}"{colon}{part}' for name, part in parts.items())
            values.append(f"{{{text}}}".encode("utf-8", "surrogatepass"))
        found = read(DDL, *values)
        if found is not None:
            read_as_block += 1
            assert str(found) == str(exactly(DDL, *values)), values
    assert read_as_block > 50


def test_a_block_with_some_bad_records_is_read_in_smaller_ones() -> None:
    decoder = RecordDecoder({1: schema_of(DDL)}, 1)
    values = [to_json(a=number) for number in range(3_000)]
    values[1_700], values[2_999] = b'{"a":"x"}', b'{"a":2999,"more":[1]}'
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert [error.position for error in decoded.errors] == [1_700]
    assert decoded.positions.to_pylist() == [at for at in range(3_000) if at != 1_700]
    assert decoded.rows["a"].to_pylist() == decoded.positions.to_pylist()
    assert {at: text for at, text in enumerate(decoded.rescued.to_pylist()) if text} == {
        2_998: '{"more":[1]}'
    }
