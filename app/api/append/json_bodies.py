"""JSON bodies of an append (docs/api.md §2, §3): strict shapes, and JSON pointers to errors.

Numbers of `value_json` are never read as floats: the text is kept, without its whitespace and with its
strings in plain UTF-8.
"""

import io
import re
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from app.api.http.json_decoding import Name, Ordinal, decode
from app.errors import InvalidRequest, TooLarge
from app.settings.model import Limits
from storage.format.records import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS, RecordColumns

TimestampMs = Annotated[int, msgspec.Meta(ge=MIN_TIMESTAMP_MS, le=MAX_TIMESTAMP_MS)]


class HeaderBytes(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


class RecordIn(msgspec.Struct, forbid_unknown_fields=True):
    """A record in a client's notation: exactly one of the three values; null is a tombstone."""

    value: str | UnsetType | None = UNSET
    value_json: Raw | UnsetType = UNSET
    value_base64: bytes | UnsetType = UNSET
    key: str | None = None
    key_base64: bytes | None = None
    timestamp: TimestampMs | None = None
    headers: list[tuple[str, str | HeaderBytes]] | None = None


class PlainRecordIn(msgspec.Struct, forbid_unknown_fields=True):
    """The usual record: text, with or without key and time. A subset of RecordIn, decoded at once for a whole
    body."""

    value: str | None
    key: str | None = None
    timestamp: TimestampMs | None = None


class ProducerIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Name
    epoch: Ordinal
    sequence: Ordinal
    allow_gap: bool = False


class AppendIn(RecordIn, forbid_unknown_fields=True):
    """An append request, or (without `records`) one record by itself."""

    records: list[RecordIn] | UnsetType = UNSET
    match_index: Ordinal | None = None
    match_term: Ordinal | None = None
    fencing_token: Name | None = None
    producer: ProducerIn | None = None

    @property
    def has_conditions(self) -> bool:
        return any(getattr(self, name) is not None for name in _CONDITIONS)


_APPEND = msgspec.json.Decoder(AppendIn)
_RECORD = msgspec.json.Decoder(RecordIn)
_PLAIN_RECORD = msgspec.json.Decoder(PlainRecordIn)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NEWLINE, _OPENING, _CLOSING = b"\n{}"
_CONDITIONS: Final = ("match_index", "match_term", "fencing_token", "producer")


def decode_append(body: bytes) -> AppendIn:
    """Read an application/json body. Raises InvalidJson or InvalidRequest."""
    request: AppendIn = decode(_APPEND, body, "")
    if request.records is UNSET:
        extra = [name for name in _CONDITIONS if getattr(request, name) is not None]
        if extra:
            raise InvalidRequest(("/records", "is required in an append request"))
    else:
        extra = [
            name
            for name in RecordIn.__struct_fields__
            if getattr(request, name) is not (UNSET if name.startswith("value") else None)
        ]
        if extra:
            raise InvalidRequest(
                *(
                    (f"/{name}", "is a field of a record; it cannot be used together with `records`")
                    for name in extra
                )
            )
    return request


def records_of(request: AppendIn, limits: Limits) -> RecordColumns:
    """Return the records of a decoded append. Raises InvalidRequest or TooLarge."""
    columns = RecordColumns()
    records = request.records
    if isinstance(records, UnsetType):
        add_record(columns, request, "", limits)
        return columns
    if not records:
        raise InvalidRequest(("/records", "must contain at least one record"))
    if len(records) > limits.max_request_records:
        raise too_many(limits)
    if all(map(_is_plain, records)) and (plain := _plain_columns(records, limits)) is not None:
        return plain
    for position, record in enumerate(records):
        add_record(columns, record, f"/records/{position}", limits)
    return columns


def decode_lines(body: bytes, limits: Limits) -> RecordColumns:
    """Read an application/x-ndjson body: one record per line; pointers begin with the line.

    Raises InvalidJson, InvalidRequest or TooLarge.
    """
    return plain_lines(body, limits) or _lines_one_by_one(body, limits)


def plain_lines(body: bytes, limits: Limits) -> RecordColumns | None:
    """Return the records if all are plain and within the limits; None: `_lines_one_by_one` finds why."""
    if not body:
        return None
    text = np.frombuffer(body, np.uint8)
    breaks = np.flatnonzero(text[1:-1] == _NEWLINE)  # each one position before its place in the body
    if text[0] != _OPENING or (text[breaks] != _CLOSING).any() or (text[breaks + 2] != _OPENING).any():
        return None  # the decoder also takes values that share a line, or span several
    try:
        records = _PLAIN_RECORD.decode_lines(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(records) != len(breaks) + 1 or len(records) > limits.max_request_records:
        return None
    return _plain_columns(records, limits)


def _is_plain(record: RecordIn) -> bool:
    return (
        record.value is not UNSET
        and record.value_json is UNSET
        and record.value_base64 is UNSET
        and record.key_base64 is None
        and record.headers is None
    )


def _plain_columns(records: Sequence[Any], limits: Limits) -> RecordColumns | None:
    """Return plain records as columns, None if one of them is too large."""
    values = [None if record.value is None else record.value.encode() for record in records]
    keys = [None if record.key is None else record.key.encode() for record in records]
    columns = RecordColumns()
    largest_bytes = columns.add_all(values, keys, [record.timestamp for record in records])
    return columns if largest_bytes <= limits.max_record_bytes else None


def _lines_one_by_one(body: bytes, limits: Limits) -> RecordColumns:
    columns = RecordColumns()
    for position, line in enumerate(io.BytesIO(body)):  # one by one: no other task runs during a split
        if line and not line.isspace():
            if columns.count == limits.max_request_records:
                raise too_many(limits)
            pointer = f"/{position}"
            add_record(columns, decode(_RECORD, line, pointer), pointer, limits)
    if columns.count == 0:
        raise InvalidRequest(("", "the body must contain at least one record"))
    return columns


def too_many(limits: Limits) -> TooLarge:
    limit = limits.max_request_records
    return TooLarge(f"a request may have at most {limit} records, got more", limit, "max_request_records")


def check_record_size(size_bytes: int, pointer: str, limits: Limits) -> None:
    """size_bytes: value + key + headers. Raises TooLarge."""
    limit = limits.max_record_bytes
    if size_bytes > limit:
        raise TooLarge(
            f"{pointer or 'the record'}: a record may have at most {limit} bytes, got {size_bytes}",
            limit,
            "max_record_bytes",
        )


def add_record(columns: RecordColumns, record: RecordIn, pointer: str, limits: Limits) -> None:
    """Add one decoded record. Raises InvalidRequest or TooLarge, prefixed with `pointer`."""
    values = [
        value
        for value in (record.value, record.value_json, record.value_base64)
        if not isinstance(value, UnsetType)
    ]
    if len(values) != 1:
        raise InvalidRequest((pointer, "must have exactly one of value, value_json and value_base64"))
    value = values[0]
    if isinstance(value, str):
        value = value.encode()
    elif isinstance(value, Raw):
        value = compact_json(bytes(value))
    key = record.key_base64
    if record.key is not None:
        if key is not None:
            raise InvalidRequest((f"{pointer}/key", "key and key_base64 cannot be used together"))
        key = record.key.encode()
    headers = None
    if record.headers:
        headers = [
            (name, content.base64 if isinstance(content, HeaderBytes) else content.encode())
            for name, content in record.headers
        ]
    before = columns.size_bytes
    columns.add(value, key, record.timestamp, headers)
    check_record_size(columns.size_bytes - before, pointer, limits)


def compact_json(text: bytes) -> bytes:
    """Return valid JSON text without whitespace, its strings in plain UTF-8; numbers are unchanged."""
    compact = msgspec.json.format(text, indent=-1)
    if b"\\" not in compact:
        return compact
    return _STRING.sub(_plain_string, compact)


def _plain_string(match: re.Match[bytes]) -> bytes:
    text = match.group()
    return msgspec.json.encode(msgspec.json.decode(text)) if b"\\" in text else text
