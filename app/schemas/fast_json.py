"""Fast reading of JSON records: one call of msgspec a record, for the records that provably match.

A record that this module accepts has the same row by `json_values`, which decides about all others. What
msgspec does not check by itself is proved here:

- A name that occurs twice, and a field that the schema does not have: each adds a `":` to the text beyond
  the number of fields that were read. Text with white space before a colon, which could hide one, is not
  accepted.
- Times at the ends of the calendar, whose offset could lead out of it.
- Keywords of JSON Schema that msgspec does not have: schemas with them have no fast reader.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Context, Decimal
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import astuple

from app.schemas.data_types import (
    DECIMAL_DIGITS_MAX,
    INTEGERS,
    DataType,
    DecimalType,
    Field,
    ListType,
    MapType,
    Primitive,
    Row,
    StructType,
    contains_type,
    integer_range,
)
from app.schemas.json_schema import count_rules
from app.schemas.json_text import NESTING_MAX, count_pairs, count_sign, has_edge_times
from app.schemas.json_values import FLOAT_MAX, RAW_OBJECT, rescuer_of

_TIME_COLONS: Final = 2
"""Colons of a time, at least; one with an offset may have 3."""
_EDGE_YEARS: Final = frozenset({1, 9999})
"""Years with times that an offset may lead out of the calendar."""
_ANY: Final = msgspec.json.Decoder()
_UNREAD: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_BIG: Final = 1 << 63

TEXT_RULES: Final = {
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
}
"""Keywords for which a number with a fraction may be a double: they compare no numbers of the record."""

_TIME_TYPES: Final = (Primitive("timestamp"), Primitive("timestamp_ntz"))


class Unproved(Exception):
    """This module does not know that the record matches."""


class FastReader:
    """Reads the records of one schema. Thread-safe."""

    def __init__(self, kind: StructType, validator: Any) -> None:
        """validator: of jsonschema-rs for the keywords that msgspec does not check, None without any."""
        self._kind = kind
        self._validator = validator
        self._rescue = rescuer_of(kind)
        self._names = {field.name for field in kind.fields}
        self._is_open = not _has_closed(kind)
        self._strict = msgspec.json.Decoder(_struct_type(kind, is_strict=True))
        self._loose = msgspec.json.Decoder(_struct_type(kind, is_strict=False))
        self._pairs = _pair_counter(kind)
        self._is_flat = not any(_has_pairs(field.type) for field in kind.fields)
        self._has_times = _has_times(kind)
        self._has_inner_times = any(
            _has_times(field.type) for field in kind.fields if field.type not in _TIME_TYPES
        )
        self._times = [
            (attrgetter(f"f{at}"), attrgetter(f"f{at}.year"), field.required and not field.nullable)
            for at, field in enumerate(kind.fields)
            if field.type in _TIME_TYPES
        ]
        plain = ((at, _plain_of(field.type, field.nullable)) for at, field in enumerate(kind.fields))
        self._plain = [(at, convert) for at, convert in plain if convert is not None]
        self._checked = [(at, convert) for at, convert in self._plain if _has_decimal(kind.fields[at].type)]
        self.has_decimals = bool(self._checked)
        self.has_validator = validator is not None

    def columns(self, values: Sequence[bytes]) -> list[Sequence[Any]]:
        """Return the columns of records that all match and have no unknown fields. Raises Unproved."""
        records, is_strict = self._records(values)
        columns: list[Sequence[Any]] = list(zip(*map(astuple, records), strict=True))
        if not is_strict:
            columns = [
                [None if item is UNSET else item for item in column] if UNSET in column else column
                for column in columns
            ]
        for at, convert in self._plain:
            columns[at] = [None if item is None else convert(item) for item in columns[at]]
        return columns

    def check(self, values: Sequence[bytes]) -> None:
        """Raise Unproved unless all records match and have no unknown fields."""
        records, _ = self._records(values)
        if self._checked:
            for record in records:
                self._check(record)

    def check_one(self, value: bytes) -> None:
        """Raise Unproved unless the record matches; it may have unknown fields."""
        record, _ = self._record(value)
        if self._checked:
            self._check(record)

    def _check(self, record: Any) -> None:
        row = astuple(record)
        for at, convert in self._checked:
            item = row[at]
            if item is not None and item is not UNSET:
                convert(item)

    def row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the row of a record that matches, and its unknown fields as JSON. Raises Unproved."""
        record, has_unknown = self._record(value)
        rescued = self._rescue(value) if has_unknown else None
        row = [None if item is UNSET else item for item in astuple(record)]
        for at, convert in self._plain:
            if row[at] is not None:
                row[at] = convert(row[at])
        return tuple(row), rescued

    def _records(self, values: Sequence[bytes]) -> tuple[list[Any], bool]:
        try:
            records, is_strict = list(map(self._strict.decode, values)), True
        except _UNREAD:
            try:
                records, is_strict = list(map(self._loose.decode, values)), False
            except _UNREAD:
                raise Unproved from None
        if is_strict and self._is_flat:
            pairs = len(values) * len(self._kind.fields)
        else:
            pairs = sum(map(self._pairs, records))
        data = b"".join(values)
        time_colons, years = self._times_in(records)
        is_usual = not self._has_inner_times and _EDGE_YEARS.isdisjoint(years) and b"\\" not in data
        if self._has_times and not is_usual and has_edge_times(data):
            raise Unproved
        # the signs are those of the pairs, and those in times
        if count_sign(data, b":") != pairs + time_colons and count_pairs(data) != pairs:
            raise Unproved
        if self._validator is not None and not all(map(self._is_valid, values)):
            raise Unproved
        return records, is_strict

    def _times_in(self, records: Sequence[Any]) -> tuple[int, set[int]]:
        """Return how many colons the times in columns of their own have at least, and their years."""
        count = 0
        years: set[int] = set()
        for get, get_year, is_always in self._times:
            timed = records if is_always else [each for each in records if isinstance(get(each), datetime)]
            count += len(timed)
            years.update(map(get_year, timed))
        return _TIME_COLONS * count, years

    def _is_valid(self, value: bytes) -> bool:
        return bool(self._validator.is_valid(_ANY.decode(value)))

    def _record(self, value: bytes) -> tuple[Any, bool]:
        """Return a record that matches, and true if it has unknown fields. Raises Unproved."""
        try:
            record = self._loose.decode(value)
            pairs, found = self._pairs(record), self._count(value)
            if found != pairs:
                self._check_unknown(value, pairs, found)
            if self._validator is not None and not self._is_valid(value):
                raise Unproved
        except _UNREAD:
            raise Unproved from None
        return record, found != pairs

    def _count(self, data: bytes) -> int:
        if self._has_times and has_edge_times(data):
            raise Unproved
        pairs = count_pairs(data)
        if pairs is None:
            raise Unproved
        return pairs

    def _check_unknown(self, value: bytes, pairs: int, found: int) -> None:
        """Raise Unproved unless the unknown fields of a record account for all further pairs of its text.

        pairs: in the known fields. found: `":` in the text.
        """
        if not self._is_open:
            raise Unproved
        if self._is_flat:
            members = RAW_OBJECT.decode(value)
            unknown = members.keys() - self._names
            inner = sum(_pairs_of(_ANY.decode(members[name]), NESTING_MAX - 1) for name in unknown)
            counted = pairs + len(unknown) + inner
        else:
            counted = _pairs_of(_ANY.decode(value), NESTING_MAX)
        if counted != found:
            raise Unproved


def fast_reader(kind: StructType, document: object, validator: Any) -> FastReader | None:
    """Return a reader for the columns `kind`, None where only `json_values` can decide.

    document: the JSON Schema whose keywords must be checked, and its validator; None without any.
    """
    if contains_type(kind, _has_escaped_name):
        return None
    if is_covered(kind, document):
        return FastReader(kind, None)
    if count_rules(document).keys() <= TEXT_RULES:
        return FastReader(kind, validator)
    return None


def _has_escaped_name(kind: DataType) -> bool:
    """Return true for a struct with a field that has another name in JSON text: msgspec refuses it."""
    return isinstance(kind, StructType) and any(set('"\\') & set(field.name) for field in kind.fields)


def is_covered(kind: StructType, document: object) -> bool:
    """Return true if the types and `rules_of` check all keywords of a JSON Schema. document: as of
    `fast_reader`."""
    return document is None or (not kind.rules and _is_checked(kind))


def _pairs_of(document: Any, levels: int) -> int:
    """Return the pairs in a document. Raises Unproved below `levels` levels, and for huge integers."""
    if type(document) is dict:
        items: Iterable[Any] = document.values()
        pairs = len(document)
    elif type(document) is list:
        items, pairs = document, 0
    else:
        if type(document) is int and not -_BIG <= document < _BIG:
            raise Unproved
        return 0
    if levels == 0:
        raise Unproved
    for item in items:
        if type(item) in (dict, list, int):
            pairs += _pairs_of(item, levels - 1)
    return pairs


def _pair_counter(kind: StructType) -> Callable[[Any], int]:
    count = len(kind.fields)
    inner = [(at, _pairs_in(field.type)) for at, field in enumerate(kind.fields) if _has_pairs(field.type)]

    def counted(record: Any) -> int:
        row = astuple(record)
        pairs = count - row.count(UNSET)
        for at, counter in inner:
            if row[at] is not None and row[at] is not UNSET:
                pairs += counter(row[at])
        return pairs

    return counted


def _pairs_in(kind: DataType) -> Callable[[Any], int]:
    match kind:
        case StructType():
            return _pair_counter(kind)
        case ListType(element):
            of_element = _pairs_in(element)
            return lambda items: sum(of_element(item) for item in items if item is not None)
        case MapType(_, value) if _has_pairs(value):
            of_value = _pairs_in(value)
            return lambda entries: (
                len(entries) + sum(of_value(item) for item in entries.values() if item is not None)
            )
    return len


def _has_pairs(kind: DataType) -> bool:
    return isinstance(kind, StructType | MapType) or (isinstance(kind, ListType) and _has_pairs(kind.element))


def _has_decimal(kind: DataType) -> bool:
    return contains_type(kind, lambda each: isinstance(each, DecimalType))


def _has_times(kind: DataType) -> bool:
    return contains_type(kind, lambda each: each in _TIME_TYPES)


def _has_closed(kind: DataType) -> bool:
    return contains_type(kind, lambda each: isinstance(each, StructType) and each.is_closed)


def _struct_type(kind: StructType, *, is_strict: bool) -> Any:
    fields: list[Any] = []
    renamed = {}
    for at, field in enumerate(kind.fields):
        name = f"f{at}"
        renamed[name] = field.name
        kind_of_field = _with_rules(field, _type_of(field.type))
        if field.nullable and not isinstance(field.type, DecimalType):
            kind_of_field = kind_of_field | None
        if field.required or is_strict:
            fields.append((name, kind_of_field))
        else:
            fields.append((name, kind_of_field | UnsetType, UNSET))
    required_first = sorted(fields, key=len)
    if required_first != fields:  # defaults in any order need keywords
        return msgspec.defstruct("Record", fields, rename=renamed, gc=False, kw_only=True)
    return msgspec.defstruct("Record", fields, rename=renamed, gc=False)


def _type_of(kind: DataType) -> Any:
    match kind:
        case Primitive(name) if name in INTEGERS:
            bits = INTEGERS[name] - 1
            return Annotated[int, Meta(ge=-(1 << bits), le=(1 << bits) - 1)]
        case Primitive("float"):
            return Annotated[float, Meta(gt=-FLOAT_MAX, lt=FLOAT_MAX)]
        case Primitive(name):
            return _TYPES[name]
        case DecimalType():
            return Raw
        case ListType(element, nullable):
            return list[_nullable(element, nullable)]  # type: ignore[misc]
        case MapType(_, value, nullable):
            return dict[str, _nullable(value, nullable)]  # type: ignore[misc]
        case StructType():
            return _struct_type(kind, is_strict=False)


_TYPES: Final[dict[str, Any]] = {
    "boolean": bool,
    "double": float,
    "string": str,
    "binary": bytes,
    "date": date,
    "timestamp": Annotated[datetime, Meta(tz=True)],
    "timestamp_ntz": Annotated[datetime, Meta(tz=False)],
}


def _nullable(kind: DataType, nullable: bool) -> Any:
    found = _type_of(kind)
    return found | None if nullable and not isinstance(kind, DecimalType) else found


def _is_checked(kind: DataType) -> bool:
    """Return true if the types of `_with_rules` check the keywords of all fields."""
    match kind:
        case StructType(fields):
            return all(
                (not field.rules or rules_of(field) is not None) and _is_checked(field.type)
                for field in fields
            )
        case ListType(element):
            return not kind.rules and _is_checked(element)
        case MapType(_, value):
            return not kind.rules and _is_checked(value)
    return True


def rules_of(field: Field) -> dict[str, Any] | None:
    """Return the keywords of a field, None for those that only the validator checks."""
    if not field.rules:
        return None
    try:
        rules: dict[str, Any] = json.loads(field.rules)
    except ValueError:  # of more than one schema
        return None
    match field.type:
        case Primitive(name) if name in INTEGERS or name in ("float", "double"):
            allowed = _LIMITS
        case Primitive("string"):
            allowed = _LENGTHS if "enum" not in rules else {"enum"}
            texts = [item for item in rules.get("enum", ("",)) if item is not None]
            if not texts or not all(type(item) is str for item in texts):
                return None  # msgspec has no type without values
            if any(rules[key] >= _BIG for key in _LENGTHS & rules.keys()):
                return None
        case _:
            return None
    if not rules.keys() <= allowed:
        return None
    if field.type.name in INTEGERS:
        low, high = integer_range(field.type.name, rules)
        if low > high:
            return None  # no value matches
    return rules


_LIMITS: Final = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_LENGTHS: Final = {"minLength", "maxLength"}


def _with_rules(field: Field, kind: Any) -> Any:
    rules = rules_of(field)
    if not rules:
        return kind
    if "enum" in rules:
        return Literal[tuple(item for item in rules["enum"] if item is not None)]
    if field.type == Primitive("string"):
        return Annotated[
            str, Meta(min_length=_whole(rules, "minLength"), max_length=_whole(rules, "maxLength"))
        ]
    assert isinstance(field.type, Primitive)
    if field.type.name not in INTEGERS:
        # Rounding keeps the order: a double above the rounded limit is read from a number above the limit.
        lows = [float(rules[key]) for key in ("minimum", "exclusiveMinimum") if key in rules]
        highs = [float(rules[key]) for key in ("maximum", "exclusiveMaximum") if key in rules]
        if field.type.name == "float":
            lows, highs = [*lows, -FLOAT_MAX], [*highs, FLOAT_MAX]
        return Annotated[float, Meta(gt=max(lows, default=None), lt=min(highs, default=None))]
    low, high = integer_range(field.type.name, rules)
    return Annotated[int, Meta(ge=low, le=high)]


def _whole(rules: dict[str, Any], key: str) -> int | None:
    return int(rules[key]) if key in rules else None


def _plain_of(kind: DataType, nullable: bool) -> Callable[[Any], Any] | None:
    """Return the function from a value of msgspec to a value for Arrow, None where they are the same."""
    match kind:
        case DecimalType():
            return _decimal_of(kind, nullable)
        case ListType(element, element_nullable):
            of_element = _plain_of(element, element_nullable)
            if of_element is None:
                return None
            return lambda items: [None if item is None else of_element(item) for item in items]
        case MapType(_, value, value_nullable):
            of_value = _plain_of(value, value_nullable)
            if of_value is None:
                return lambda entries: list(entries.items())
            return lambda entries: [
                (key, None if item is None else of_value(item)) for key, item in entries.items()
            ]
        case StructType(fields):
            return _dict_of(fields)
    return None


def _dict_of(fields: Sequence[Field]) -> Callable[[Any], dict[str, Any]]:
    parts = [(field.name, _plain_of(field.type, field.nullable)) for field in fields]

    def converted(record: Any) -> dict[str, Any]:
        return {
            name: None if item is None or item is UNSET else item if convert is None else convert(item)
            for (name, convert), item in zip(parts, astuple(record), strict=True)
        }

    return converted


def _decimal_of(kind: DecimalType, nullable: bool) -> Callable[[Raw], Decimal | None]:
    """Return the function from the text of a number, in quotes or not, that has few enough digits."""
    before, after = kind.precision - kind.scale, kind.scale
    whole = rf"-?\d{{1,{before}}}" if before else "-?0"
    number = re.compile(whole + (rf"(?:\.\d{{1,{after}}})?" if after else ""), re.ASCII)
    unit = Decimal((0, (1,), -after))
    context = Context(prec=DECIMAL_DIGITS_MAX)

    def converted(raw: Raw) -> Decimal | None:
        text = str(bytes(raw), "ascii", "replace")
        if nullable and text == "null":
            return None
        written = "string" if text[0] == '"' else "number"
        if not number.fullmatch(text.strip('"')) or kind.written not in ("", written):
            raise Unproved
        found = Decimal(text.strip('"')).quantize(unit, context=context)
        return found or abs(found)

    return converted
