"""Values of JSON to values of columns, one record at a time. Faster ways must give the same result."""

import base64
import binascii
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import msgspec

from app.schemas.data_types import (
    INTEGERS,
    Convert,
    DataType,
    DecimalType,
    ListType,
    MapType,
    Primitive,
    StructType,
)
from app.schemas.errors import ValueInvalid
from app.schemas.json_text import shown

FLOAT_MAX: Final = 3.4028235677973366e38  # from here on the nearest 4-byte float is infinite
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_DATE_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|z|[+-]\d\d:?\d\d)?", re.ASCII
)
_DECIMAL: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d{1,3})?", re.ASCII)
_MISSING: Final = object()
RAW_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODE: Final = msgspec.json.Encoder().encode
_RAW_LIST: Final = msgspec.json.Decoder(list[msgspec.Raw])


def converter_of(kind: DataType) -> Convert:
    """Return the function from a value of `read_json` (never null) to a value for Arrow.

    It raises ValueInvalid with the path to the part that does not match.
    """
    match kind:
        case Primitive(name):
            if name in INTEGERS:
                return _integer_of(name, INTEGERS[name])
            return _PRIMITIVES[name]
        case DecimalType():
            return _decimal_of(kind)
        case ListType(element, element_nullable):
            return _list_of(_nullable(converter_of(element), element_nullable))
        case MapType(_, value, value_nullable):
            return _map_of(_nullable(converter_of(value), value_nullable))
        case StructType():
            return struct_converter(kind)


def _nullable(convert: Convert, nullable: bool) -> Convert:
    def converted(value: Any) -> Any:
        if value is None:
            if nullable:
                return None
            raise ValueInvalid("Null is not allowed here.")
        return convert(value)

    return converted


def struct_converter(kind: StructType) -> Convert:
    """Return the function from an object to a dict with all fields of the struct."""
    fields = [(field.name, converter_of(field.type), field.nullable, field.required) for field in kind.fields]
    names = {field.name for field in kind.fields}
    is_closed = kind.is_closed

    def converted(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected("an object", value)
        row: dict[str, Any] = {}
        for name, convert, nullable, required in fields:
            part = value.get(name, _MISSING)
            if part is None:
                if not nullable:
                    raise ValueInvalid("Null is not allowed here.", (name,))
                row[name] = None
            elif part is _MISSING:
                if required:
                    raise ValueInvalid(f"The field {shown(name)} is required.")
                row[name] = None
            else:
                try:
                    row[name] = convert(part)
                except ValueInvalid as error:
                    error.path.insert(0, name)
                    raise
        if is_closed and not value.keys() <= names:
            unknown = next(name for name in value if name not in names)
            raise ValueInvalid(f"The field {shown(unknown)} is not allowed.")
        return row

    return converted


def _list_of(convert: Convert) -> Convert:
    def converted(value: Any) -> Any:
        if type(value) is not list:
            raise _expected("an array", value)
        elements = []
        for position, element in enumerate(value):
            try:
                elements.append(convert(element))
            except ValueInvalid as error:
                error.path.insert(0, position)
                raise
        return elements

    return converted


def _map_of(convert: Convert) -> Convert:
    def converted(value: Any) -> Any:
        if type(value) is not dict:
            raise _expected("an object", value)
        entries = []
        for name, part in value.items():
            try:
                entries.append((name, convert(part)))
            except ValueInvalid as error:
                error.path.insert(0, name)
                raise
        return entries

    return converted


def _integer_of(name: str, bits: int) -> Convert:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def converted(value: Any) -> Any:
        if type(value) is Decimal and value == value.to_integral_value():
            value = int(value)
        if type(value) is not int:
            raise _expected("an integer", value)
        if not low <= value <= high:
            raise ValueInvalid(f"{shown(value)} is outside the range of {name}.")
        return value

    return converted


def _decimal_of(kind: DecimalType) -> Convert:
    limit = Decimal(10) ** (kind.precision - kind.scale)

    def converted(value: Any) -> Any:
        number = value
        if kind.written and (type(value) is str) is not (kind.written == "string"):
            raise _expected(f"a decimal number as a {kind.written}", value)
        if type(value) is str:
            if not _DECIMAL.fullmatch(value) or len(value) > 100:
                raise _expected("a decimal number", value)
            number = Decimal(value)
        elif type(value) is int:
            number = Decimal(value)
        elif type(value) is not Decimal:
            raise _expected("a decimal number", value)
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        if number and (
            number.copy_abs() >= limit or (exponent < -kind.scale and any(digits[exponent + kind.scale :]))
        ):
            raise ValueInvalid(f"{shown(value)} does not fit decimal({kind.precision},{kind.scale}) exactly.")
        return _scaled(number, kind.scale)

    return converted


def _scaled(number: Decimal, scale: int) -> Decimal:
    """Return the number with `scale` digits after the point; the caller knows that this is exact."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    shift = exponent + scale
    unscaled = unscaled * 10**shift if shift >= 0 else unscaled // 10**-shift if unscaled else 0
    return Decimal((sign if unscaled else 0, tuple(map(int, str(unscaled))), -scale))


def _double(value: Any) -> Any:
    if type(value) not in (int, Decimal, float):
        raise _expected("a number", value)
    try:
        return float(value)
    except OverflowError:
        raise ValueInvalid(f"{shown(value)} is beyond the range of a double.") from None


def _float(value: Any) -> Any:
    number = _double(value)
    if abs(number) >= FLOAT_MAX:
        raise ValueInvalid(f"{shown(value)} is beyond the range of a float.")
    return number


def _boolean(value: Any) -> Any:
    if type(value) is not bool:
        raise _expected("true or false", value)
    return value


def _string(value: Any) -> Any:
    if type(value) is not str:
        raise _expected("a string", value)
    return value


def _binary(value: Any) -> Any:
    try:
        return base64.b64decode(_string(value).encode(), validate=True)
    except (binascii.Error, ValueInvalid):
        raise _expected("a base64 string", value) from None


def _date(value: Any) -> Any:
    found = _DATE.fullmatch(value) if type(value) is str else None
    if found is not None:
        try:
            return date(*map(int, found.groups()))
        except ValueError:
            pass
    raise _expected("a date such as 2013-01-31", value)


def _timestamp(value: Any) -> Any:
    moment, offset = _moment(value)
    if moment is None or offset is None:
        raise _expected("a time with offset such as 2013-01-31T10:00:00Z", value)
    try:
        return (moment - offset).replace(tzinfo=UTC)
    except OverflowError:
        raise ValueInvalid(f"{shown(value)} is outside the years 1 to 9999 in UTC.") from None


def _timestamp_ntz(value: Any) -> Any:
    moment, offset = _moment(value)
    if moment is None or offset is not None:
        raise _expected("a time without offset such as 2013-01-31T10:00:00", value)
    return moment


def _moment(value: Any) -> tuple[datetime | None, timedelta | None]:
    """Return the local time of a text, and its offset. It is rounded to microseconds."""
    found = _DATE_TIME.fullmatch(value) if type(value) is str else None
    if found is None:
        return None, None
    day, time, fraction, zone = found.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{time}.{(fraction or '')[:6]:0<6}")
        if fraction is not None and fraction[6:7] >= "5":
            moment += timedelta(microseconds=1)
    except (ValueError, OverflowError):
        return None, None
    if zone is None:
        return moment, None
    if zone in "Zz":
        return moment, timedelta(0)
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    if hours > 23 or minutes > 59:
        return None, None
    offset = timedelta(hours=hours, minutes=minutes)
    return moment, -offset if zone[0] == "-" else offset


_PRIMITIVES: Final[dict[str, Convert]] = {
    "boolean": _boolean,
    "float": _float,
    "double": _double,
    "string": _string,
    "binary": _binary,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}


def _expected(what: str, value: object) -> ValueInvalid:
    return ValueInvalid(f"Expected {what}, got {shown(value)}.")


Rescue = Callable[[bytes], str | None]


def rescuer_of(kind: StructType) -> Rescue:
    """Return the function from a valid record to its fields that the schema does not have, as a JSON object.

    It returns None without any. The text of each field is that of the record. Fields in nested objects have
    the same path there; elements of arrays have their position as name: `{"items": {"0": {"hue": "red"}}}`.
    """
    names = {field.name for field in kind.fields}
    inner = {
        field.name: rescue for field in kind.fields if (rescue := _inner_rescuer(field.type)) is not None
    }

    def rescued(value: bytes) -> str | None:
        parts = {}
        for name, raw in RAW_OBJECT.decode(value).items():
            if name not in names:
                parts[name] = str(bytes(raw), "utf-8")
            elif name in inner and (text := inner[name](bytes(raw))) is not None:
                parts[name] = text
        return _object_of(parts)

    return rescued


def _inner_rescuer(kind: DataType) -> Rescue | None:
    """Return the function for a nested value (which may be null), None for a type without structs."""
    match kind:
        case StructType():
            of_struct = rescuer_of(kind)
            return lambda value: None if _is_null(value) else of_struct(value)
        case ListType(element):
            of_element = _inner_rescuer(element)
            if of_element is not None:
                return lambda value: _rescued_parts(_RAW_LIST, value, of_element)
        case MapType(_, item):
            of_item = _inner_rescuer(item)
            if of_item is not None:
                return lambda value: _rescued_parts(RAW_OBJECT, value, of_item)
    return None


def _rescued_parts(decoder: msgspec.json.Decoder[Any], value: bytes, rescue: Rescue) -> str | None:
    if _is_null(value):
        return None
    found = decoder.decode(value)
    items = found.items() if isinstance(found, dict) else enumerate(found)
    texts = ((str(key), rescue(bytes(raw))) for key, raw in items)
    return _object_of({key: text for key, text in texts if text is not None})


def _object_of(parts: dict[str, str]) -> str | None:
    if not parts:
        return None
    return "{" + ",".join(f"{str(_ENCODE(name), 'utf-8')}:{text}" for name, text in parts.items()) + "}"


def _is_null(value: bytes) -> bool:
    return value.strip() == b"null"


def _has_struct(kind: DataType) -> bool:
    match kind:
        case StructType():
            return True
        case ListType(element):
            return _has_struct(element)
        case MapType(_, value):
            return _has_struct(value)
    return False


def has_unknown(value: Any, kind: DataType) -> bool:
    """Return true if a converted document has a field that its schema does not have."""
    match kind:
        case StructType(fields):
            known = 0
            for field in fields:
                part = value.get(field.name, _MISSING)
                if part is not _MISSING:
                    known += 1
                    if part is not None and _has_struct(field.type) and has_unknown(part, field.type):
                        return True
            return known != len(value)
        case ListType(element) if _has_struct(element):
            return any(part is not None and has_unknown(part, element) for part in value)
        case MapType(_, item) if _has_struct(item):
            return any(part is not None and has_unknown(part, item) for part in value.values())
    return False
