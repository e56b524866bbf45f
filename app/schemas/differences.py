"""Differences between two versions of a schema: those that tables follow in place, and the others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from app.schemas.columns import struct_of
from app.schemas.data_types import (
    INTEGERS,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Primitive,
    StructType,
    ddl_of,
    folded,
)
from app.schemas.schema import LogSchema

ALLOWED_KINDS: Final = {
    "added_optional": "a new column or field that records may lack",
    "widened": "a type that holds all values of the older type (Delta type widening)",
    "made_optional": "null is allowed, or the field may be missing",
    "rules_changed": "validation-only keywords differ: records keep the version that they were checked with",
}
"""Kinds of differences that tables follow in place: the new version reads what the old one wrote."""
REFUSED_KINDS: Final = {
    "added_required": "a new column that older records lack",
    "removed": "a column or field is not there any more",
    "narrowed": "the type does not hold all values of the older type",
    "type_changed": "the types have nothing in common",
    "made_required": "null or a missing field was allowed before",
    "format_changed": "records have another format",
    "key_changed": "rows of `current` are identified by other columns",
    "unit_changed": "times of day are in milliseconds or in microseconds",
    "number_changed": "the Protobuf field has another number, or another field had this one",
    "encoding_changed": "the Protobuf field has another encoding, enum or oneof: older producers are misread",
}
"""Kinds of differences that need `compatibility: none`."""
_FOLLOWED_KINDS: Final = {*ALLOWED_KINDS, "encoding_changed"}
_DIGITS: Final = {"tinyint": 10, "smallint": 10, "int": 10, "bigint": 20}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. path: of the field, as a JSON pointer in the columns; detail: one sentence."""

    path: str
    kind: str
    detail: str

    @property
    def is_allowed(self) -> bool:
        """True if `compatibility: backward` allows it; tables follow it in place."""
        return self.kind in ALLOWED_KINDS

    @property
    def is_followed(self) -> bool:
        """True if tables follow it in place: the columns are those of an allowed one."""
        return self.kind in _FOLLOWED_KINDS


def incompatibilities(old: LogSchema, new: LogSchema) -> list[Difference]:
    """Return the differences that `compatibility: backward` refuses. Raises as `differences`."""
    return [difference for difference in differences(old, new) if not difference.is_allowed]


def differences(old: LogSchema, new: LogSchema) -> list[Difference]:
    """Return all differences between two versions, also the allowed ones (`is_allowed`).

    The order of columns, comments, `cluster_by` and `on_invalid` are not differences. Raises SchemaInvalid
    for a schema that cannot be read.
    """
    found = []
    if old.format != new.format:
        found.append(Difference("", "format_changed", f"The format was {old.format}, it is {new.format}."))
    if old.key_columns != new.key_columns:
        detail = (
            f"The key columns were ({', '.join(old.key_columns)}), they are ({', '.join(new.key_columns)})."
        )
        found.append(Difference("", "key_changed", detail))
    return [*found, *_structs("", struct_of(old), struct_of(new))]


def _structs(path: str, old: StructType, new: StructType) -> Iterator[Difference]:
    before = {field.name: field for field in old.fields}
    after = {field.name: field for field in new.fields}
    known = {folded(name): name for name in before}
    for field in new.fields:
        place = f"{path}/{field.name}"
        earlier = before.get(field.name)
        if earlier is not None:
            yield from _fields(place, earlier, field)
        elif (other := known.get(folded(field.name))) is not None:
            yield Difference(place, "type_changed", f"`{other}` is the same column: tables ignore case.")
        elif field.is_optional:
            yield Difference(place, "added_optional", f"New: {ddl_of(field.type)}.")
        else:
            yield Difference(place, "added_required", f"New and NOT NULL: {ddl_of(field.type)}.")
        if field.number:
            holder = next((other for other in old.fields if other.number == field.number), None)
            if holder is not None and holder.name != field.name:
                detail = f"Number {field.number} was `{holder.name}`."
                yield Difference(place, "number_changed", detail)
    for field in old.fields:
        if field.name not in after:
            yield Difference(f"{path}/{field.name}", "removed", f"It was {ddl_of(field.type)}.")
    yield from _oneofs(path, before, new)
    if old.is_closed != new.is_closed:
        state = "refused" if new.is_closed else "rescued"
        yield Difference(path, "rules_changed", f"Unknown fields are {state} now.")


def _fields(path: str, old: Field, new: Field) -> Iterator[Difference]:
    yield from _types(path, old.type, new.type)
    if old.is_optional and not new.is_optional:
        yield Difference(path, "made_required", "It is NOT NULL now.")
    elif new.is_optional and not old.is_optional:
        yield Difference(path, "made_optional", "It may be null now.")
    elif (old.nullable, old.required) != (new.nullable, new.required):
        yield Difference(path, "rules_changed", "Another rule for null and missing fields.")
    if old.number != new.number:
        yield Difference(path, "number_changed", f"The number was {old.number}, it is {new.number}.")
    yield from _encodings(path, old, new)
    yield from _rules(path, old.rules, new.rules)


def _encodings(path: str, old: Field, new: Field) -> Iterator[Difference]:
    """Yield what a producer with the older Protobuf descriptor writes, and readers of the new one misread."""
    if old.encoding and new.encoding and not _is_read(old.encoding, new.encoding):
        detail = f"The encoding was {old.encoding}, it is {new.encoding}."
        yield Difference(path, "encoding_changed", detail)
    names = dict(old.symbols)
    numbers = {name: number for number, name in old.symbols}
    for number, name in new.symbols:
        if names.get(number, name) != name:
            detail = f"Number {number} of the enum was {names[number]}, it is {name}."
            yield Difference(path, "encoding_changed", detail)
        elif numbers.get(name, number) != number:
            detail = f"{name} of the enum was number {numbers[name]}, it is {number}."
            yield Difference(path, "encoding_changed", detail)


def _is_read(old: str, new: str) -> bool:
    """Return whether a reader of the encoding `new` finds the values that were written in `old`: numbers
    without a sign are the same with one, if the type holds them. Those of a map have two parts."""
    written, read = old.split(" to "), new.split(" to ")
    return len(written) == len(read) and all(
        one in (other, other.replace("signed ", "")) for one, other in zip(written, read, strict=True)
    )


def _oneofs(path: str, before: Mapping[str, Field], new: StructType) -> Iterator[Difference]:
    """Yield the fields that a record could have together, and of which only the last one is read now."""
    for field in new.fields:
        earlier = before.get(field.name)
        if earlier is None or not field.oneof:
            continue
        for other in new.fields:
            partner = before.get(other.name)
            if other.oneof != field.oneof or other.number <= field.number or partner is None:
                continue
            if not earlier.oneof or earlier.oneof != partner.oneof:
                detail = f"It and `{other.name}` exclude each other now: they are in `{field.oneof}`."
                yield Difference(f"{path}/{field.name}", "encoding_changed", detail)


def _types(path: str, old: DataType, new: DataType) -> Iterator[Difference]:
    match old, new:
        case StructType(), StructType():
            yield from _structs(path, old, new)
        case ListType(), ListType():
            yield from _types(f"{path}/element", old.element, new.element)
            yield from _nulls(f"{path}/element", old.element_nullable, new.element_nullable)
            yield from _rules(f"{path}/element", old.rules, new.rules)
        case MapType(), MapType():
            yield from _types(f"{path}/key", old.key, new.key)
            yield from _types(f"{path}/value", old.value, new.value)
            yield from _nulls(f"{path}/value", old.value_nullable, new.value_nullable)
            yield from _rules(f"{path}/value", old.rules, new.rules)
        case Primitive(), Primitive() if old.unit and new.unit and old.unit != new.unit:
            yield Difference(path, "unit_changed", f"It was {old.unit}, it is {new.unit}.")
        case _ if old != new:
            kind = "widened" if widens(old, new) else "narrowed" if widens(new, old) else "type_changed"
            yield Difference(path, kind, f"The type was {ddl_of(old)}, it is {ddl_of(new)}.")


def _rules(path: str, old: str, new: str) -> Iterator[Difference]:
    if old != new:
        yield Difference(path, "rules_changed", f"The rules were {old or '{}'}, they are {new or '{}'}.")


def _nulls(path: str, old: bool, new: bool) -> Iterator[Difference]:
    if old and not new:
        yield Difference(path, "made_required", "Null is not allowed any more.")
    elif new and not old:
        yield Difference(path, "made_optional", "It may be null now.")


def widens(old: DataType, new: DataType) -> bool:
    """Return true if Delta's type widening changes a column of type `old` to `new` without a rewrite."""
    match old, new:
        case Primitive(before), DecimalType(precision, scale) if before in _DIGITS:
            return precision - scale >= _DIGITS[before]
        case DecimalType(), DecimalType():
            more = new.scale - old.scale
            return more >= 0 and new.precision - old.precision >= more and old != new
        case Primitive(before), Primitive(after):
            if before in INTEGERS and after in INTEGERS:
                return INTEGERS[before] < INTEGERS[after]
            if after == "double":
                return before in ("tinyint", "smallint", "int", "float")
            return (before, after) == ("date", "timestamp_ntz")
    return False
