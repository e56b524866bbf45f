"""A JSON Schema proposed from sample records."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.schemas.data_types import (
    DECIMAL_DIGITS_MAX,
    DEPTH_MAX,
    RESERVED_NAMES,
    Primitive,
    folded,
    is_column_name,
)
from app.schemas.errors import SchemaInvalid, ValueInvalid, pointer_of
from app.schemas.json_schema import DRAFT, TYPE_KEYWORD, read_json_schema
from app.schemas.json_text import read_json, shown
from app.schemas.json_values import converter_of

_FORMATS: Final = {
    "date": converter_of(Primitive("date")),
    "date-time": converter_of(Primitive("timestamp")),
}
_LEVELS_MAX: Final = DEPTH_MAX - 1  # of objects and arrays; a definition has two levels for each object
_BIGINT: Final = 1 << 63  # from here on an integer has more than 64 bits
_NAMES: Final = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}


class SamplesUnusable(Exception):
    """No JSON Schema follows from the samples."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A JSON Schema (JSON text). left_out: pointer and types of each field of the samples that it lacks."""

    definition: str
    left_out: tuple[str, ...]


def propose(values: Sequence[bytes]) -> Proposal:
    """Return a JSON Schema that all samples match that are JSON objects, but for fields without a
    type of their own. Other samples are not used.

    Fields that are in all samples are required. A field that is null in some samples is nullable. Texts that
    are dates or times in all samples get that format. Fields that are null or empty in all samples, or that
    have different types, are left out: their values are in `_rescued`. Raises SamplesUnusable for no samples,
    no JSON object among them, no field with one type, or more fields than a schema may have.
    """
    if not values:
        raise SamplesUnusable("There are no records with a value.")
    shape = _Shape()
    reasons = []
    for value in values:
        try:
            record = read_json(value)
        except ValueInvalid as error:
            reasons.append(error.reason)
            continue
        if isinstance(record, dict):
            shape.add(record)
        else:
            reasons.append(f"It is not a JSON object: {shown(record)}.")
    if len(reasons) == len(values):
        raise SamplesUnusable(f"No record is a JSON object. The first one: {reasons[0]}")
    schema = shape.schema(RESERVED_NAMES)
    if schema is None:
        raise SamplesUnusable("No field has one type in all records.")
    definition = json.dumps({"$schema": DRAFT, **schema}, indent=2, ensure_ascii=False)
    try:
        read_json_schema(definition)
    except SchemaInvalid as error:  # objects whose names are keys
        raise SamplesUnusable(f"A schema of all fields of the records cannot be used: {error}") from error
    return Proposal(definition, tuple(shape.left_out(schema, "")))


class _Shape:
    """Types, formats and parts of the values at one place."""

    def __init__(self) -> None:
        self.types: set[str] = set()
        self.formats: set[str] = set(_FORMATS)
        self.digits = 0  # of the longest integer beyond 64 bits
        self.objects = 0
        self.fields: dict[str, _Shape] = {}
        self.seen: dict[str, int] = {}
        self.element: _Shape | None = None

    def add(self, value: Any) -> None:
        kind = "null" if value is None else _NAMES.get(type(value), "number")
        self.types.add(kind)
        if kind == "integer":
            if not -_BIGINT <= value < _BIGINT:
                self.digits = max(self.digits, len(str(abs(value))))
        elif kind == "string":
            self.formats = {name for name in self.formats if _matches(name, value)}
        elif kind == "array":
            self.element = self.element or _Shape()
            for item in value:
                self.element.add(item)
        elif kind == "object":
            self.objects += 1
            for name, item in value.items():
                self.fields.setdefault(name, _Shape()).add(item)
                self.seen[name] = self.seen.get(name, 0) + 1

    def _columns(self, refused: frozenset[str]) -> Iterator[tuple[str, "_Shape"]]:
        """Yield the fields whose names can be columns, of names that differ only in case the first one."""
        seen = set(refused)
        for name, shape in self.fields.items():
            if is_column_name(name) and folded(name) not in seen:
                seen.add(folded(name))
                yield name, shape

    def schema(
        self, refused: frozenset[str] = frozenset(), levels: int = _LEVELS_MAX
    ) -> dict[str, Any] | None:
        """Return the schema of this place, None without a type of its own. refused: names of no field.
        levels: of objects and arrays that the schema may have from here on."""
        kinds = self.types - {"null"}
        if kinds == {"integer", "number"} or self.digits > DECIMAL_DIGITS_MAX:
            kinds = kinds - {"integer"} | {"number"}
        if len(kinds) != 1:
            return None
        kind = kinds.pop()
        if kind in ("array", "object") and levels == 0:
            return None
        schema: dict[str, Any] = {"type": [kind, "null"] if "null" in self.types else kind}
        if kind == "string" and len(self.formats) == 1:
            schema["format"] = next(iter(self.formats))
        elif kind == "integer" and self.digits:
            schema[TYPE_KEYWORD] = f"decimal({DECIMAL_DIGITS_MAX},0)"
        elif kind == "array":
            items = self.element.schema(levels=levels - 1) if self.element else None
            if items is None:
                return None
            schema["items"] = items
        elif kind == "object":
            parts = ((name, shape.schema(levels=levels - 1)) for name, shape in self._columns(refused))
            properties = {name: part for name, part in parts if part is not None}
            if not properties:
                return None
            schema["properties"] = properties
            required = [name for name in properties if self.seen[name] == self.objects]
            if required:
                schema["required"] = required
        return schema

    def left_out(self, schema: Mapping[str, Any], path: str) -> Iterator[str]:
        """Yield pointer and types of each field that `schema`, the schema of this place, does not have."""
        properties = schema.get("properties", {})
        for name, shape in self.fields.items():
            pointer = path + pointer_of([name])
            if name in properties:
                yield from shape.left_out(properties[name], pointer)
            else:
                yield f"{pointer} ({', '.join(sorted(shape.types))})"
        if self.element is not None and "items" in schema:
            yield from self.element.left_out(schema["items"], f"{path}/*")


def _matches(name: str, value: str) -> bool:
    try:
        _FORMATS[name](value)
    except ValueInvalid:
        return False
    return True
