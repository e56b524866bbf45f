"""Strict JSON of requests: one shape, and a JSON pointer to every error."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
import msgspec.inspect
from msgspec import Raw

from app.errors import InvalidJson, InvalidRequest
from app.log.producers import NUMBER_MAX
from app.schemas.errors import pointer_of
from app.schemas.json_text import shown
from storage.units import KIB

MAX_ORDINAL: Final = NUMBER_MAX
Ordinal = Annotated[int, msgspec.Meta(ge=0, le=MAX_ORDINAL)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]

_SYNTAX = msgspec.json.Decoder(Raw)
_T = TypeVar("_T")
_S = TypeVar("_S", bound=msgspec.Struct)
_NO_CHOICE: Final = "Invalid enum value"
_TRUNCATED: Final = "Input data was truncated"
_LONE_SURROGATE = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?:[^\\]|\\[^u])")
_END_BYTES: Final = 64  # of a text: the half of a surrogate pair, less than the other half, and backslashes
_PLACE = re.compile(r"^(?P<detail>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_SHOWN_MAX_BYTES: Final = 64 * KIB  # of a body that is decoded again to show the value that was refused
_UNSHOWN = frozenset(  # secrets, and data
    ("token", "match_token", "key", "key_base64", "value", "value_base64", "value_json", "headers")
)
_FIELD = re.compile(r"Object (?P<kind>contains unknown|missing required) field `(?P<name>.*)`", re.DOTALL)


def decode_as(kind: type[_S], body: bytes) -> _S:
    """Read a JSON body. Raises InvalidJson or InvalidRequest."""
    return decode(msgspec.json.Decoder(kind), body, "")


def decode(decoder: msgspec.json.Decoder[_T], text: bytes, pointer: str) -> _T:
    if not text:
        raise InvalidJson("the body is empty")
    try:
        text.decode()  # msgspec checks only the strings that it creates
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        _check_syntax(text, pointer)  # the decoder stops at the first error, whatever follows
        raise InvalidRequest(_placed(str(error), pointer, text, decoder.type)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid_json(error, text, pointer) from error


def _check_syntax(text: bytes, pointer: str) -> None:
    """Raise InvalidJson unless `text` is one JSON value."""
    try:
        _SYNTAX.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid_json(error, text, pointer) from error


def _invalid_json(error: Exception, text: bytes, pointer: str) -> InvalidJson:
    detail = "JSON is nested too deeply" if isinstance(error, RecursionError) else str(error)
    if detail == _TRUNCATED:
        # Only so near the end does msgspec call it truncated. A search in all of a large body takes seconds.
        pair = _LONE_SURROGATE.search(text, max(0, len(text) - _END_BYTES))
        detail = "JSON is malformed: " + ("invalid utf-16 surrogate pair" if pair else "it ends too early")
    return InvalidJson(f"{pointer}: {detail}" if pointer else detail)


def _placed(complaint: str, pointer: str, text: bytes, kind: Any) -> tuple[str, str]:
    """Return msgspec's error about `text`, which is not a `kind`, as (JSON pointer, detail)."""
    match = _PLACE.match(complaint)
    assert match is not None  # the pattern matches any text
    detail = match["detail"]
    steps = _STEP.findall(match["path"] or "")
    parts = [name or number for name, number in steps if number != "..."]  # a value of unknown key
    if field := _FIELD.fullmatch(detail):
        known = ", ".join(_fields(kind, parts))
        parts.append(field["name"])
        unknown = f"unknown field; the fields are {known}" if known else "unknown field"
        detail = unknown if "unknown" in field["kind"] else "required field is missing"
    elif detail.startswith(_NO_CHOICE) and (choices := _choices(kind, parts)):
        detail = f"must be one of {', '.join(choices)}{_received(text, parts, detail)}"
    elif (
        parts
        and len(text) <= _SHOWN_MAX_BYTES
        and "..." not in match["path"]
        and not _UNSHOWN.intersection(parts)
    ):
        detail += _received(text, parts, detail)
    elif parts[-1:] == ["value"] and "value_json" in _fields(kind, parts[:-1]):
        detail += "; `value_json` takes any JSON value"
    return pointer + pointer_of(parts), detail


def _choices(kind: Any, parts: Sequence[str]) -> Sequence[str]:
    """Return the values that the field at `parts` of an object of `kind` may have; none for other fields."""
    info = _type_at(kind, parts)
    return [str(value) for value in info.values] if isinstance(info, msgspec.inspect.LiteralType) else ()


def _fields(kind: Any, parts: Sequence[str]) -> Sequence[str]:
    """Return the names of the fields of the object at `parts` of a `kind`; none for other values."""
    info = _type_at(kind, parts)
    fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
    return [field.encode_name for field in fields]


def _type_at(kind: Any, parts: Sequence[str]) -> msgspec.inspect.Type:
    """Return the type of the value at `parts` of a `kind`; of several types that of an object or a list."""
    info = _nested(msgspec.inspect.type_info(kind))
    for part in parts:
        if isinstance(info, msgspec.inspect.ListType):
            info = _nested(info.item_type)
            continue
        fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
        found = (field.type for field in fields if field.encode_name == part)
        info = _nested(next(found, msgspec.inspect.AnyType()))
    return info


def _nested(info: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return the first type of a union that is an object or a list; the type itself if none is."""
    kinds = (msgspec.inspect.StructType, msgspec.inspect.ListType)
    types = info.types if isinstance(info, msgspec.inspect.UnionType) else ()
    return next((each for each in types if isinstance(each, kinds)), info)


def _received(text: bytes, parts: Sequence[str], detail: str) -> str:
    """Return the end of a detail: the value that was refused, if it is a number, a text or a boolean."""
    try:
        value = _value_at(text, parts)
    except (LookupError, msgspec.DecodeError):  # an integer that no type of Python's decoder holds
        return ""
    if value is None or isinstance(value, dict | list):
        return ""
    return f": {shown(value)}" if "got `" in detail else f", got {shown(value)}"


def _value_at(text: bytes, parts: Sequence[str]) -> object:
    """Return the value at `parts`, the steps of its JSON pointer."""
    value = msgspec.json.decode(text)
    for part in parts:
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value
