"""Types of columns: the tree that the definitions of all formats are read into, and its Spark DDL."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import date
from typing import Any, Final

from app.schemas.errors import SchemaInvalid, ValueInvalid

Convert = Callable[[Any], Any]
"""Function from a value of a record to the value of its column; it raises ValueInvalid."""
Row = tuple[Any, ...]
"""Values of one record, in the order of the columns."""
RESERVED_NAMES: Final = frozenset({"_index", "_term", "_timestamp", "_key", "_schema_version", "_rescued"})
"""Columns of every typed table; a schema's own columns have other names."""
FIELDS_MAX: Final = 2_000
"""Fields of a schema, nested ones included."""
DEPTH_MAX: Final = 32
"""Levels of nesting of a schema."""
INTEGERS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
"""Integer types and their bits."""
PRIMITIVES: Final = (
    "boolean", *INTEGERS, "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz",
)  # fmt: skip
_INT_LIMIT: Final = 1 << INTEGERS["int"] - 1
DECIMAL_DIGITS_MAX: Final = 38
DAY_MICROS: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1).toordinal()
FIRST_DAY: Final = date(1, 1, 1).toordinal() - _EPOCH
LAST_DAY: Final = date(9999, 12, 31).toordinal() - _EPOCH
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_REFUSED_IN_NAMES: Final = re.compile(r"[ ,;{}()=\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type without parts: one of PRIMITIVES. unit: of numbers that records have in several units."""

    name: str
    unit: str = dataclass_field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class DecimalType:
    """A decimal number: `precision` digits, `scale` of them after the point.

    written: the JSON type that records have for it, "number" or "string"; "" for both.
    """

    precision: int
    scale: int
    written: str = dataclass_field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class ListType:
    """An array. element_nullable: an element may be null. rules: of the elements."""

    element: "DataType"
    element_nullable: bool = True
    rules: str = dataclass_field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class MapType:
    """A map; keys are never null. value_nullable: a value may be null. rules: of the values."""

    key: "DataType"
    value: "DataType"
    value_nullable: bool = True
    rules: str = dataclass_field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class StructType:
    """Named fields in order. is_closed: a record with a field that is not listed does not match. rules: of
    a record as a whole; those of a nested object are in its field."""

    fields: tuple["Field", ...]
    is_closed: bool = False
    rules: str = dataclass_field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Field:
    """One field. nullable: the value null matches. required: a record without the field does not match.

    rules: validation-only keywords of JSON Schema, as JSON text. Of a Protobuf field only: number; encoding:
    of its values on the wire; oneof: the name of the one that it is in; symbols: number and name of the
    values of its enum.
    """

    name: str
    type: "DataType"
    nullable: bool = True
    required: bool = False
    comment: str = ""
    number: int = 0
    rules: str = ""
    encoding: str = ""
    oneof: str = ""
    symbols: tuple[tuple[int, str], ...] = ()

    @property
    def is_optional(self) -> bool:
        """True if the column may be null."""
        return self.nullable or not self.required


DataType = Primitive | DecimalType | ListType | MapType | StructType


def ddl_of(kind: DataType) -> str:
    """Return a type as Spark DDL, with Spark's simple names. Nested fields are always nullable there."""
    match kind:
        case Primitive(name):
            return name
        case DecimalType(precision, scale):
            return f"decimal({precision},{scale})"
        case ListType(element):
            return f"array<{ddl_of(element)}>"
        case MapType(key, value):
            return f"map<{ddl_of(key)},{ddl_of(value)}>"
        case StructType(fields):
            return f"struct<{','.join(f'{quoted(field.name)}:{ddl_of(field.type)}' for field in fields)}>"


def quoted(name: str) -> str:
    """Return a name for DDL, in backquotes where it needs them."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


class FieldCount:
    """Bound on the fields of a schema while it is read: definitions that refer to each other give many."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def add(self) -> None:
        """Count one field. Raises SchemaInvalid above FIELDS_MAX."""
        self._left -= 1
        if self._left < 0:
            raise SchemaInvalid("", f"The schema has more than {FIELDS_MAX} fields.")


def check_columns(columns: StructType) -> None:
    """Check names, number and depth of the fields of a schema. Raises SchemaInvalid."""
    if not columns.fields:
        raise SchemaInvalid("", "The schema has no columns.")
    for field in columns.fields:
        if field.name.lower() in RESERVED_NAMES:
            raise SchemaInvalid(f"/{field.name}", f"`{field.name}` is a column of every typed table.")
    count = 0
    for path, fields in _structs(columns, ()):
        if len(path) > DEPTH_MAX:
            raise SchemaInvalid(f"/{'/'.join(path)}", f"The schema has more than {DEPTH_MAX} levels.")
        count += len(fields)
        if count > FIELDS_MAX:
            raise SchemaInvalid("", f"The schema has more than {FIELDS_MAX} fields.")
        _check_names(path, fields)


def is_column_name(name: str) -> bool:
    """Return true if a field may have this name in a Delta table."""
    return bool(name) and not _REFUSED_IN_NAMES.search(name)


def _check_names(path: tuple[str, ...], fields: Sequence[Field]) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        pointer = "/" + "/".join((*path, field.name))
        if not is_column_name(field.name):
            raise SchemaInvalid(
                pointer,
                f"`{field.name}` cannot be the name of a column: the characters ' ,;{{}}()=', control "
                "characters and the empty name are not allowed.",
            )
        _check_distinct(pointer, seen.setdefault(field.name.lower(), field.name), field.name)


def check_new_names(columns: StructType) -> None:
    """Check that no two names of a new schema are the same for Spark (`folded`). Raises SchemaInvalid."""
    for path, fields in _structs(columns, ()):
        seen: dict[str, str] = {} if path else {name: name for name in RESERVED_NAMES}
        for field in fields:
            pointer = "/" + "/".join((*path, field.name))
            _check_distinct(pointer, seen.setdefault(folded(field.name), field.name), field.name)


def _check_distinct(pointer: str, other: str, name: str) -> None:
    if other is not name:
        raise SchemaInvalid(
            pointer, f"`{other}` and `{name}` are the same column: tables ignore the case of names."
        )


def folded(name: str) -> str:
    """Return a name as Spark compares it: character by character, without case. So the long s (U+017F) is an
    s, and an i with or without its dot (U+0130, U+0131) is an i."""
    return "".join(_lower(_upper(character)) for character in name)


def _upper(character: str) -> str:
    upper = character.upper()
    return upper if len(upper) == 1 else character  # as U+00DF, of which two characters are the upper case


def _lower(character: str) -> str:
    return character.lower()[0]  # of U+0130 without the dot


def _structs(kind: DataType, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Sequence[Field]]]:
    match kind:
        case StructType(fields):
            yield path, fields
            for field in fields:
                yield from _structs(field.type, (*path, field.name))
        case ListType(element):
            yield from _structs(element, (*path, "element"))
        case MapType(key, value):
            yield from _structs(key, (*path, "key"))
            yield from _structs(value, (*path, "value"))
        case _:
            yield path, ()


def contains_type(kind: DataType, test: Callable[[DataType], bool]) -> bool:
    """Return true if the type, or one inside it, passes the test."""
    if test(kind):
        return True
    match kind:
        case StructType(fields):
            return any(contains_type(field.type, test) for field in fields)
        case ListType(element):
            return contains_type(element, test)
        case MapType(_, value):
            return contains_type(value, test)
    return False


def integer_range(name: str, rules: dict[str, Any]) -> tuple[int, int]:
    """Return the least and the greatest integer that the type and the rules allow."""
    bits = INTEGERS[name] - 1
    low, high = -(1 << bits), (1 << bits) - 1
    if "minimum" in rules:
        low = max(low, math.ceil(rules["minimum"]))
    if "exclusiveMinimum" in rules:
        low = max(low, math.floor(rules["exclusiveMinimum"]) + 1)
    if "maximum" in rules:
        high = min(high, math.floor(rules["maximum"]))
    if "exclusiveMaximum" in rules:
        high = min(high, math.ceil(rules["exclusiveMaximum"]) - 1)
    return low, high


def check_int(value: int) -> int:
    """Return a number that an `int` column holds. Raises ValueInvalid for another one."""
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        raise ValueInvalid(f"{value} is outside the range of int.")
    return value


def check_days(value: int) -> int:
    """Return a number of days since 1970-01-01. Raises ValueInvalid outside the calendar."""
    if not FIRST_DAY <= value <= LAST_DAY:
        raise ValueInvalid(f"{value} days since 1970-01-01 are outside the years 1 to 9999.")
    return value


def check_micros(value: int) -> int:
    """Return a number of microseconds since 1970-01-01. Raises ValueInvalid outside the calendar."""
    if not FIRST_DAY * DAY_MICROS <= value < (LAST_DAY + 1) * DAY_MICROS:
        raise ValueInvalid(f"{value} microseconds since 1970-01-01 are outside the years 1 to 9999.")
    return value
