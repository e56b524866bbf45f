"""JSON Schema to columns: the accepted keywords, and the refused ones by name."""

from typing import Any

import pytest

from app.schemas import Column, SchemaInvalid, columns_of
from tests.unit.schemas.support import schema_of

ORDERS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "description": "Number of the order"},
        "price": {"type": "number", "x-type": "decimal(10,2)"},
        "ratio": {"type": ["number", "null"]},
        "paid": {"type": "boolean"},
        "day": {"type": "string", "format": "date"},
        "at": {"type": "string", "format": "date-time"},
        "state": {"enum": ["new", "paid", None]},
        "photo": {"type": "string", "contentEncoding": "base64"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "to": {"$ref": "#/$defs/address"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Note", "default": None},
    },
    "required": ["id", "price", "ratio"],
    "$defs": {
        "address": {"type": "object", "properties": {"zip": {"type": "string"}, "no": {"type": "integer"}}}
    },
}


def test_each_keyword_gives_its_column() -> None:
    assert columns_of(schema_of(ORDERS, key_columns=("id",), cluster_by=("day",))) == (
        Column("id", "bigint", False, "Number of the order"),
        Column("price", "decimal(10,2)", False),
        Column("ratio", "double", True),
        Column("paid", "boolean", True),
        Column("day", "date", True),
        Column("at", "timestamp", True),
        Column("state", "string", True),
        Column("photo", "binary", True),
        Column("tags", "array<string>", True),
        Column("counts", "map<string,bigint>", True),
        Column("to", "struct<zip:string,no:bigint>", True),
        Column("note", "string", True, "Note"),
    )


def with_field(**field: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": field}}


@pytest.mark.parametrize(
    ("document", "pointer", "reason"),
    [
        (with_field(type="string", patternProperties={}), "/properties/a/patternProperties", "`patternProp"),
        (
            with_field(anyOf=[{"type": "string"}, {"type": "integer"}]),
            "/properties/a/anyOf",
            "different types",
        ),
        (
            with_field(**{"$ref": "http://example.com/a"}),
            "/properties/a/$ref",
            "references into the document",
        ),
        (with_field(**{"$ref": "#"}), "/properties/a/$ref", "recursive"),
        (with_field(**{"$ref": "#/$defs/x"}), "/properties/a/$ref", "not in the document"),
        (with_field(type="object"), "/properties/a", "needs `properties`"),
        (with_field(type="array"), "/properties/a", "needs `items`"),
        (with_field(type=["string", "integer"]), "/properties/a/type", "one type"),
        (with_field(type="text"), "/properties/a/type", "Unknown type"),
        (with_field(type="string", pattern="("), "/properties/a/pattern", "Not valid as JSON Schema"),
        (with_field(type="string", **{"x-type": "int"}), "/properties/a/x-type", "can be one of"),
        (with_field(), "/properties/a/type", "besides null"),
        ({**with_field(type="string"), "requires": ["a"]}, "/requires", "`requires` is not supported"),
        ({**with_field(type="string"), "required": ["b"]}, "/required", "not one of the properties"),
        ({"type": "object", "properties": {"a": {"type": "string"}, "A": {"type": "string"}}}, "/A", "case"),
        ({"type": "object", "properties": {"_Index": {"type": "string"}}}, "/_Index", "every typed table"),
        ({"type": "object", "properties": {"a b": {"type": "string"}}}, "/a b", "cannot be the name"),
        ({"type": "array", "items": {"type": "string"}}, "", "must be an object"),
        ({"type": "object"}, "", "needs `properties`"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/$schema", "Only"),
        ('{"type": "object", "type": "array"}', "", "occurs twice"),
        ('{"type": }', "", "The definition is not valid JSON at character 9"),
        ({"$schema": 5}, "/$schema", "Only"),
        ({"type": 5}, "/type", "Unknown type 5"),
        ({"type": "object", "properties": 5}, "/properties", "Not valid as JSON Schema"),
        ({**with_field(type="string"), "required": "a"}, "/required", "Not valid as JSON Schema"),
        (with_field(enum=5), "/properties/a/enum", "Not valid as JSON Schema"),
        (with_field(type="string", **{"x-type": 5}), "/properties/a/x-type", "expected a type"),
        (with_field(type="integer", minimum="1"), "/properties/a/minimum", "Not valid as JSON Schema"),
        (with_field(type="string", pattern="(a{999}){999}"), "/properties/a/pattern", "Not valid as JSON"),
    ],
)
def test_the_rest_is_refused_by_name(document: Any, pointer: str, reason: str) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        columns_of(schema_of(document))
    assert refused.value.pointer == pointer
    assert reason in refused.value.reason


def test_definitions_that_refer_to_each_other_are_bounded() -> None:
    levels = 25
    definitions: dict[str, Any] = {f"d{levels}": {"type": "string"}}
    for level in range(levels):
        ref = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"type": "object", "properties": {"a": ref, "b": ref}}
    with pytest.raises(SchemaInvalid, match="2000 fields"):
        columns_of(schema_of({"$ref": "#/$defs/d0", "$defs": definitions}))
