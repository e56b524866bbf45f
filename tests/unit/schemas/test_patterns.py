"""Patterns of a JSON Schema that would take too much time or memory are refused when the schema is set."""

import json
from typing import Any

import pytest

from app.api.schemas.documents import check_valid
from app.errors import InvalidRequest
from app.log.control_records import SchemaRecord
from app.schemas.json_schema import LARGE_PATTERNS_MAX


def check(properties: dict[str, Any], **keywords: Any) -> None:
    document = {"type": "object", "properties": properties, **keywords}
    check_valid(SchemaRecord(version=0, format="json", definition=json.dumps(document)))


def text(pattern: str) -> dict[str, str]:
    return {"type": "string", "pattern": pattern}


USUAL = (
    r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
    r"^[\w.+-]+@[\w-]+\.[\w.]+$",
    r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})$",
    r"^\p{Lu}\p{L}+$",
    r"^\w{1,255}$",
)


def test_usual_patterns_are_accepted_in_any_number() -> None:
    check({f"c{number}": text(USUAL[number % len(USUAL)]) for number in range(200)})
    check(
        {"pattern": {"type": "string"}, "a": {"type": "string", "enum": ["x"], "default": {"pattern": "("}}}
    )


@pytest.mark.parametrize("pattern", [r"a[ab]{50000}c", r"[\p{L}\p{N}]{200}", r"(\w{100}){500}"])
def test_a_large_pattern_is_refused_with_its_place(pattern: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check({"a": {"type": "array", "items": text(pattern)}})
    assert refused.value.errors[0]["pointer"] == "/definition/properties/a/items/pattern"
    with pytest.raises(InvalidRequest):
        check({"a": {"$ref": "#/$defs/x"}}, **{"$defs": {"x": text(pattern)}})


def test_few_patterns_may_be_rather_large() -> None:
    large = [text(rf"^\p{{L}}{{1,8}}{number}$") for number in range(LARGE_PATTERNS_MAX + 1)]
    check({f"c{number}": each for number, each in enumerate(large[1:] * 2)})
    with pytest.raises(InvalidRequest, match="More than 20 patterns"):
        check({f"c{number}": each for number, each in enumerate(large)})
