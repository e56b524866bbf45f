"""Differences between two versions, and which of them tables follow in place."""

from typing import Any

import pytest

from app.schemas import differences, incompatibilities
from app.schemas.ddl import type_of_ddl
from app.schemas.differences import widens
from tests.unit.schemas.support import schema_of

OLD = "id bigint NOT NULL, a int, s struct<x: int, y: string>, l array<struct<x: date>>, m map<string,float>"


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (OLD, []),
        ("a int COMMENT 'c', " + OLD.replace("a int, ", ""), []),
        (f"{OLD}, n string", [("/n", "added_optional")]),
        (f"{OLD}, n string NOT NULL", [("/n", "added_required")]),
        (OLD.replace("a int, ", ""), [("/a", "removed")]),
        (OLD.replace("a int", "a long"), [("/a", "widened")]),
        (OLD.replace("a int", "a short"), [("/a", "narrowed")]),
        (OLD.replace("a int", "a string"), [("/a", "type_changed")]),
        (OLD.replace("a int", "A int"), [("/A", "type_changed"), ("/a", "removed")]),
        (OLD.replace("a int", "a int NOT NULL"), [("/a", "made_required")]),
        (OLD.replace(" NOT NULL", ""), [("/id", "made_optional")]),
        (OLD.replace("x: int", "x: bigint, z: int"), [("/s/x", "widened"), ("/s/z", "added_optional")]),
        (OLD.replace("date", "timestamp_ntz"), [("/l/element/x", "widened")]),
        (OLD.replace("date", "timestamp"), [("/l/element/x", "type_changed")]),
        (OLD.replace("float", "double"), [("/m/value", "widened")]),
        (OLD.replace("array<struct<x: date>>", "struct<x: date>"), [("/l", "type_changed")]),
    ],
)
def test_each_difference_has_its_path_and_kind(new: str, expected: list[tuple[str, str]]) -> None:
    found = differences(schema_of(OLD), schema_of(new))
    assert [(each.path, each.kind) for each in found] == expected
    allowed = {"added_optional", "widened", "made_optional"}
    refused = [each for each in expected if each[1] not in allowed]
    assert [(each.path, each.kind) for each in incompatibilities(schema_of(OLD), schema_of(new))] == refused


def json_schema(**field: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": field}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (json_schema(type="integer"), json_schema(type="integer", minimum=1)),
        (json_schema(enum=["x", "y"]), json_schema(enum=["x"])),
        (json_schema(type="string"), {**json_schema(type="string"), "additionalProperties": False}),
        (json_schema(type="string"), json_schema(type=["string", "null"])),
        (
            json_schema(type="array", items={"type": "string"}),
            json_schema(type="array", items={"type": "string", "maxLength": 3}),
        ),
    ],
)
def test_rules_may_change_because_records_keep_their_version(old: Any, new: Any) -> None:
    for found in (differences(schema_of(old), schema_of(new)), differences(schema_of(new), schema_of(old))):
        assert [each.kind for each in found] == ["rules_changed"]
        assert all(each.is_allowed for each in found)


def test_key_and_format_do_not_change() -> None:
    keyed = schema_of("id bigint, a int", key_columns=("id",))
    found = incompatibilities(schema_of("id bigint, a int"), keyed)
    assert [each.kind for each in found] == ["key_changed", "made_required"]
    assert (
        incompatibilities(keyed, schema_of("id bigint, a int", key_columns=("id",), cluster_by=("a",))) == []
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("byte", "short", True),
        ("short", "long", True),
        ("long", "int", False),
        ("int", "double", True),
        ("long", "double", False),
        ("float", "double", True),
        ("int", "float", False),
        ("int", "decimal(10,0)", True),
        ("int", "decimal(11,2)", False),
        ("long", "decimal(20,0)", True),
        ("long", "decimal(19,0)", False),
        ("decimal(5,2)", "decimal(7,4)", True),
        ("decimal(5,2)", "decimal(6,4)", False),
        ("decimal(5,2)", "decimal(6,2)", True),
        ("decimal(5,2)", "decimal(5,2)", False),
        ("date", "timestamp_ntz", True),
        ("date", "timestamp", False),
        ("string", "binary", False),
    ],
)
def test_types_widen_as_deltas_do(old: str, new: str, expected: bool) -> None:
    assert widens(type_of_ddl(old), type_of_ddl(new)) is expected
