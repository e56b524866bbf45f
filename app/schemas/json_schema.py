"""JSON Schema (draft 2020-12) to columns. Keywords that are not listed here are refused by name."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from app.schemas.data_types import (
    DEPTH_MAX,
    DataType,
    DecimalType,
    Field,
    FieldCount,
    ListType,
    MapType,
    Primitive,
    StructType,
    ddl_of,
)
from app.schemas.ddl import type_of_ddl
from app.schemas.errors import SchemaInvalid, SchemaLibraryMissing, ValueInvalid, pointer_of
from app.schemas.json_text import read_json, shown

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
TYPE_KEYWORD: Final = "x-type"
STRUCTURE: Final = {
    "type": 'type of the column; `[TYPE, "null"]` makes it nullable, `["integer", "number"]` is `number`',
    "properties": "columns of the record, fields of a struct",
    "required": "columns that are never missing; NOT NULL unless the type allows null",
    "items": "element type of an array",
    "additionalProperties": "`false` refuses unknown fields; a schema, without `properties`, gives a map",
    "format": "`date` is a date, `date-time` a timestamp (RFC 3339, with offset); others are not checked",
    "contentEncoding": "`base64` gives binary",
    TYPE_KEYWORD: "another column type in Spark DDL, e.g. `int`, `decimal(10,2)`, `timestamp_ntz`",
    "$ref": "`#`, `#/$defs/NAME` or another pointer into the same document; recursion is refused",
    "$defs": "definitions for `$ref`",
    "definitions": "older name of `$defs`",
    "anyOf": "only `[SCHEMA, {\"type\": \"null\"}]`: a nullable column",
    "oneOf": "as `anyOf`; null matches only one of the schemas",
    "allOf": "only with one schema",
}  # fmt: skip
"""Keywords that decide about columns, and how."""
VALIDATION: Final = (
    "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties",
)  # fmt: skip
"""Keywords that refuse records and change no column."""
ANNOTATIONS: Final = (
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
    "$schema", "$id", "contentMediaType",
)  # fmt: skip
"""Keywords without effect, except `description` (or `title`): the comment of the column."""
PATTERN_MAX_BYTES: Final = 1024 * 1024
"""Size of one compiled pattern of a new schema."""
SMALL_PATTERN_MAX_BYTES: Final = 128 * 1024
"""Size of a compiled pattern that a new schema may have in any number."""
LARGE_PATTERNS_MAX: Final = 20
"""Larger patterns of a new schema."""
_NO_SCHEMAS: Final = ("default", "examples", "enum", "const")  # keywords with values of records
JSON_TYPES: Final = {
    "boolean": ("boolean",),
    "integer": ("bigint", "int", "smallint", "tinyint", "decimal"),
    "number": ("double", "float", "decimal"),
    "string": ("string", "binary", "date", "timestamp", "timestamp_ntz", "decimal"),
}
"""JSON types with the columns that they can become: the first by default, the others by `x-type`."""


def read_json_schema(definition: str) -> tuple[StructType, dict[str, Any]]:
    """Return the columns of a JSON Schema, and the schema as a document.

    Raises SchemaInvalid with the pointer of the fault, SchemaLibraryMissing without jsonschema-rs.
    """
    try:
        document = read_json(definition.encode("utf-8", "surrogatepass"), "definition")
    except ValueInvalid as error:
        raise SchemaInvalid("", error.reason) from None
    if not isinstance(document, dict):
        raise SchemaInvalid("", "The definition must be a JSON object or a Spark DDL string.")
    if str(document.get("$schema", DRAFT)).rstrip("#") != DRAFT:
        raise SchemaInvalid("/$schema", f"Only {DRAFT} is supported.")
    _check_form(document)
    columns = _Reader(document).columns()
    compile_validator(document)
    return columns, document


def _check_form(document: dict[str, Any]) -> None:
    """Raise SchemaInvalid unless the keywords have values of the form that the draft defines."""
    try:
        import jsonschema_rs
    except ImportError:
        raise SchemaLibraryMissing("jsonschema-rs", "json") from None
    try:
        jsonschema_rs.meta.validate(document)
    except jsonschema_rs.ValidationError as error:
        place = pointer_of(error.instance_path)
        if place.endswith("/type"):
            raise SchemaInvalid(place, f"Unknown type {shown(error.instance)}.") from None
        raise SchemaInvalid(place, f"Not valid as JSON Schema: {shown(error.message)}.") from None
    except ValueError as error:
        raise SchemaInvalid("", f"Not valid as JSON Schema: {shown(str(error))}.") from None


def compile_validator(document: dict[str, Any], pattern_bytes: int = 10 * 1024 * 1024) -> Any:
    """Return the validator of jsonschema-rs: without network, regular expressions in linear time.

    pattern_bytes: limit of the size of each compiled regular expression.
    Raises SchemaInvalid for a document that is not a JSON Schema, SchemaLibraryMissing.
    """
    try:
        import jsonschema_rs
    except ImportError:
        raise SchemaLibraryMissing("jsonschema-rs", "json") from None
    try:
        return jsonschema_rs.Draft202012Validator(
            document,
            validate_formats=False,
            offline=True,
            pattern_options=jsonschema_rs.RegexOptions(size_limit=pattern_bytes),
        )
    except jsonschema_rs.ValidationError as error:
        raise SchemaInvalid(
            pointer_of(error.instance_path), f"Not valid as JSON Schema: {shown(error.message)}."
        ) from None
    except ValueError as error:
        raise SchemaInvalid("", f"Not valid as JSON Schema: {shown(str(error))}.") from None


class _Reader:
    """Reads one document. `refs` are the pointers that lead to a schema: a repeated one is a recursion."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._count = FieldCount()

    def columns(self) -> StructType:
        field = self._field("", self._document, "", required=True, refs=("#",))
        if field.nullable:
            raise SchemaInvalid("/type", "A record is an object, never null (a tombstone has no value).")
        if not isinstance(field.type, StructType):
            raise SchemaInvalid("", "A record must be an object with `properties`.")
        return replace(field.type, rules=field.rules)

    def _field(
        self, name: str, schema: object, pointer: str, *, required: bool, refs: tuple[str, ...]
    ) -> Field:
        self._count.add()
        if not isinstance(schema, dict):
            raise SchemaInvalid(pointer, f"Expected a schema (an object), got {shown(schema)}.")
        self._check_keywords(schema, pointer)
        if len(refs) > 2 * DEPTH_MAX or pointer.count("/") > 4 * DEPTH_MAX:
            raise SchemaInvalid(pointer, f"The schema has more than {DEPTH_MAX} levels.")
        rules = json.dumps(
            {key: schema[key] for key in VALIDATION if key in schema}, default=float, sort_keys=True
        )
        comment = str(schema.get("description") or schema.get("title") or "")
        excludes_null = "enum" in schema and None not in schema["enum"]
        target = self._indirect(schema, pointer, refs)
        if target is not None:
            inner_schema, inner_pointer, inner_refs, nulls = target
            inner = self._field(name, inner_schema, inner_pointer, required=required, refs=inner_refs)
            return Field(
                name,
                inner.type,
                nullable=_matches_null(schema, nulls + inner.nullable) and not excludes_null,
                required=required,
                comment=comment or inner.comment,
                rules=_both(rules, inner.rules),
            )
        json_type, nullable = self._type(schema, pointer)
        kind = self._kind(json_type, schema, pointer, refs)
        return Field(
            name,
            kind,
            nullable=nullable and not excludes_null,
            required=required,
            comment=comment,
            rules="" if rules == "{}" else rules,
        )

    def _check_keywords(self, schema: Mapping[str, Any], pointer: str) -> None:
        for key in schema:
            if key in STRUCTURE or key in VALIDATION or key in ANNOTATIONS or key.startswith("x-"):
                continue
            raise SchemaInvalid(
                f"{pointer}/{key}",
                f"The keyword `{key}` is not supported; docs/schemas.md lists the keywords.",
            )
        if schema is not self._document and ("$id" in schema or "$schema" in schema):
            raise SchemaInvalid(pointer, "`$id` and `$schema` are only supported at the root.")

    def _indirect(
        self, schema: Mapping[str, Any], pointer: str, refs: tuple[str, ...]
    ) -> tuple[object, str, tuple[str, ...], int] | None:
        """Return (schema, pointer, refs) of the schema that defines the type, and how many beside it are of
        null."""
        used = [key for key in ("$ref", "anyOf", "oneOf", "allOf") if key in schema]
        if not used:
            return None
        beside = [key for key in schema if key in STRUCTURE and key not in (*used, "$defs", "definitions")]
        if len(used) > 1 or beside:
            raise SchemaInvalid(
                pointer,
                f"`{used[0]}` is only supported without {', '.join(f'`{k}`' for k in used[1:] + beside)}.",
            )
        key = used[0]
        if key == "$ref":
            return (*self._referenced(schema[key], f"{pointer}/{key}", refs), 0)
        choices = schema[key]
        if not isinstance(choices, list) or not choices:
            raise SchemaInvalid(f"{pointer}/{key}", "Expected a list of schemas.")
        if key == "allOf":
            if len(choices) > 1:
                raise SchemaInvalid(f"{pointer}/{key}", "`allOf` is only supported with one schema.")
            return choices[0], f"{pointer}/{key}/0", refs, 0
        others = [at for at, choice in enumerate(choices) if not _is_null(choice)]
        if len(others) != 1:
            raise SchemaInvalid(
                f"{pointer}/{key}",
                f'`{key}` of different types is not supported, only one schema and {{"type": "null"}}.',
            )
        at = others[0]
        return choices[at], f"{pointer}/{key}/{at}", refs, len(choices) - 1

    def _referenced(
        self, ref: object, pointer: str, refs: tuple[str, ...]
    ) -> tuple[object, str, tuple[str, ...]]:
        if not isinstance(ref, str) or not (ref == "#" or ref.startswith("#/")):
            raise SchemaInvalid(
                pointer, f"Only references into the document (`#/$defs/NAME`), got {shown(ref)}."
            )
        if ref in refs:
            raise SchemaInvalid(pointer, f"{ref} refers to itself; recursive types have no columns.")
        found: Any = self._document
        for part in ref[2:].split("/") if ref != "#" else []:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and part in found:
                found = found[part]
            elif isinstance(found, list) and part.isdigit() and int(part) < len(found):
                found = found[int(part)]
            else:
                raise SchemaInvalid(pointer, f"{ref} is not in the document.")
        return found, ref[1:], (*refs, ref)

    def _type(self, schema: Mapping[str, Any], pointer: str) -> tuple[str, bool]:
        """Return the JSON type of a schema, and true if null matches."""
        given = schema.get("type")
        if given is None:
            given = sorted({_type_of_value(value) for value in _listed(schema, pointer)})
            if not given:
                given = ["object"] if "properties" in schema else []
        types = [given] if isinstance(given, str) else list(given)
        nullable = "null" in types
        others = [kind for kind in types if kind != "null"]
        if sorted(others) == ["integer", "number"]:
            others = ["number"]
        if len(others) != 1 or not isinstance(others[0], str):
            reason = 'one type and "null"' if others else "a type besides null"
            raise SchemaInvalid(f"{pointer}/type", f"A column needs {reason}, got {shown(given)}.")
        return others[0], nullable

    def _kind(
        self, json_type: str, schema: Mapping[str, Any], pointer: str, refs: tuple[str, ...]
    ) -> DataType:
        if json_type == "object":
            return self._object(schema, pointer, refs)
        if json_type == "array":
            if "items" not in schema:
                raise SchemaInvalid(pointer, "An array needs `items`: the type of its elements.")
            element = self._field("element", schema["items"], f"{pointer}/items", required=True, refs=refs)
            return ListType(element.type, element.nullable, element.rules)
        if json_type not in JSON_TYPES:
            raise SchemaInvalid(f"{pointer}/type", f"Unknown type {shown(json_type)}.")
        wanted = schema.get(TYPE_KEYWORD)
        if wanted is not None:
            return self._narrowed(json_type, wanted, f"{pointer}/{TYPE_KEYWORD}")
        if json_type == "string":
            if schema.get("format") == "date":
                return Primitive("date")
            if schema.get("format") == "date-time":
                return Primitive("timestamp")
            if "contentEncoding" in schema:
                if schema["contentEncoding"] != "base64":
                    raise SchemaInvalid(f"{pointer}/contentEncoding", "Only base64 is supported.")
                return Primitive("binary")
        return Primitive(JSON_TYPES[json_type][0])

    def _narrowed(self, json_type: str, wanted: object, pointer: str) -> DataType:
        try:
            kind = type_of_ddl(str(wanted))
        except SchemaInvalid as error:
            raise SchemaInvalid(pointer, error.reason) from None
        name = "decimal" if isinstance(kind, DecimalType) else ddl_of(kind)
        if name not in JSON_TYPES[json_type]:
            raise SchemaInvalid(
                pointer,
                f"A JSON {json_type} can be one of {', '.join(JSON_TYPES[json_type])}, got {shown(wanted)}.",
            )
        if isinstance(kind, DecimalType):
            if json_type == "integer" and kind.scale:
                raise SchemaInvalid(pointer, f"A JSON integer is a decimal of scale 0, got {shown(wanted)}.")
            return replace(kind, written="string" if json_type == "string" else "number")
        return kind

    def _object(self, schema: Mapping[str, Any], pointer: str, refs: tuple[str, ...]) -> DataType:
        properties = schema.get("properties")
        others = schema.get("additionalProperties", True)
        required = schema.get("required", [])
        if properties:
            if not isinstance(others, bool):
                raise SchemaInvalid(
                    f"{pointer}/additionalProperties", "With `properties` it must be true or false."
                )
            for name in required:
                if name not in properties:
                    raise SchemaInvalid(f"{pointer}/required", f"{shown(name)} is not one of the properties.")
            return StructType(
                tuple(
                    self._field(
                        name, child, f"{pointer}/properties/{name}", required=name in required, refs=refs
                    )
                    for name, child in properties.items()
                ),
                is_closed=not others,
            )
        if isinstance(others, dict):
            value = self._field("value", others, f"{pointer}/additionalProperties", required=True, refs=refs)
            return MapType(Primitive("string"), value.type, value.nullable, value.rules)
        raise SchemaInvalid(
            pointer, "An object needs `properties` (columns), or a schema in `additionalProperties` (a map)."
        )


def _listed(schema: Mapping[str, Any], pointer: str) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum", [])
    if not isinstance(listed, list):
        raise SchemaInvalid(f"{pointer}/enum", "Expected a list of values.")
    return listed


def _type_of_value(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case str():
            return "string"
        case list():
            return "array"
        case dict():
            return "object"
    return "number"


def _matches_null(schema: Mapping[str, Any], nulls: int) -> bool:
    """Return true if null matches a schema. nulls: how many schemas inside match null."""
    return nulls == 1 if "oneOf" in schema else nulls > 0


def _is_null(schema: object) -> bool:
    return isinstance(schema, dict) and schema.get("type") == "null"


def _both(outer: str, inner: str) -> str:
    return "".join(text for text in (outer, inner) if text != "{}")


def count_rules(document: object) -> Counter[str]:
    """Return how often a schema has each keyword of VALIDATION, its definitions included."""
    found: Counter[str] = Counter()
    if isinstance(document, list):
        for item in document:
            found += count_rules(item)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key in VALIDATION:
                found[key] += 1
            elif key in ("properties", "$defs", "definitions"):
                found += count_rules(list(value.values()))
            elif key not in ("default", "examples"):
                found += count_rules(value)
    return found


def check_patterns(document: dict[str, Any]) -> None:
    """Check the size of the regular expressions of a valid schema: it decides about the time and memory to
    compile them, and about the time to match them. Raises SchemaInvalid.

    Matching is linear in the text, with the size of the compiled expression as a factor: `a[ab]{5000}c` takes
    50 s for 1 MiB of text. The limits apply to a schema that is set, not to one that a log has.
    """
    large = 0
    seen: set[str] = set()
    for pointer, pattern in _patterns_of(document, ""):
        if pattern in seen or _fits(pattern, SMALL_PATTERN_MAX_BYTES):
            continue
        seen.add(pattern)
        large += 1
        if not _fits(pattern, PATTERN_MAX_BYTES):
            raise SchemaInvalid(
                pointer,
                f"The pattern {shown(pattern)} has more than {PATTERN_MAX_BYTES} bytes when it is compiled. "
                "For the length of a string use `maxLength` instead of a repetition.",
            )
        if large > LARGE_PATTERNS_MAX:
            raise SchemaInvalid(
                pointer,
                f"More than {LARGE_PATTERNS_MAX} patterns have more than {SMALL_PATTERN_MAX_BYTES} bytes "
                "when they are compiled. For the length of a string use `maxLength` instead of a repetition.",
            )


def _patterns_of(schema: Any, pointer: str) -> Iterator[tuple[str, str]]:
    """Yield (pointer, pattern) for each pattern of a schema and its definitions."""
    if isinstance(schema, list):
        for at, item in enumerate(schema):
            yield from _patterns_of(item, f"{pointer}/{at}")
    elif isinstance(schema, dict):
        for key, value in schema.items():
            if key == "pattern" and isinstance(value, str):
                yield f"{pointer}/{key}", value
            elif key in ("properties", "$defs", "definitions") and isinstance(value, dict):
                for name, child in value.items():
                    yield from _patterns_of(child, f"{pointer}/{key}/{name}")
            elif key not in _NO_SCHEMAS:
                yield from _patterns_of(value, f"{pointer}/{key}")


def _fits(pattern: str, size_bytes: int) -> bool:
    try:
        compile_validator({"pattern": pattern}, pattern_bytes=size_bytes)
    except SchemaInvalid:
        return False
    return True
