"""JSON bodies of an append (docs/api.md §2, §3): strict shapes, and JSON pointers to errors.

Numbers of `value_json` are never read as floats: the text is kept, without its whitespace and with its
strings in plain UTF-8.

A body of 15 MB may have millions of records or headers, which take gigabytes, and half a second in one call
of the decoder, in which no other thread of the node runs. So a body with very many brackets is decoded into
types with a hook for each record and header: the hook ends at the limits, and lets other threads run.
"""

import io
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Raw, UnsetType

from app.api.http.json_decoding import Name, Ordinal, decode
from app.errors import InvalidRequest, TooLarge
from app.schemas.json_text import count_sign
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


class _CountedHeader(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A header of a body with very many brackets; it unpacks as that of RecordIn."""

    name: str
    content: str | HeaderBytes

    def __post_init__(self) -> None:
        _LEFT.headers -= 1
        if _LEFT.headers < 0:
            raise too_many_headers(_LEFT.limits, "a record")

    def __iter__(self) -> Iterator[str | HeaderBytes]:
        return iter((self.name, self.content))


class _CountedRecordIn(RecordIn, forbid_unknown_fields=True):
    """A record of a body with very many brackets."""

    headers: list[_CountedHeader] | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        _LEFT.headers = _LEFT.limits.max_record_headers
        _LEFT.records -= 1
        if _LEFT.records < 0:
            raise too_many(_LEFT.limits)


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


class _CountedAppendIn(AppendIn, forbid_unknown_fields=True):
    """An append request with very many brackets."""

    headers: list[_CountedHeader] | None = None  # type: ignore[assignment]
    records: list[_CountedRecordIn] | UnsetType = UNSET  # type: ignore[assignment]


class _Left(threading.local):
    """Records, and headers of the current record, that the decoder of this thread may still return."""

    records: int
    headers: int
    limits: Limits


_LEFT = _Left()
_BRACKETS_MAX: Final = 50_000  # of a body that is decoded in one call
_APPEND: Final[msgspec.json.Decoder[AppendIn]] = msgspec.json.Decoder(AppendIn)
_RECORD: Final[msgspec.json.Decoder[RecordIn]] = msgspec.json.Decoder(RecordIn)
_COUNTED_APPEND: Final[msgspec.json.Decoder[AppendIn]] = msgspec.json.Decoder(_CountedAppendIn)
_COUNTED_RECORD: Final[msgspec.json.Decoder[RecordIn]] = msgspec.json.Decoder(_CountedRecordIn)
_PLAIN_RECORD = msgspec.json.Decoder(PlainRecordIn)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NEWLINE, _OPENING, _CLOSING = b"\n{}"
_CONDITIONS: Final = ("match_index", "match_term", "fencing_token", "producer")


def decode_append(body: bytes, limits: Limits) -> AppendIn:
    """Read an application/json body. Raises InvalidJson or InvalidRequest; TooLarge for one with very many
    records or headers."""
    request = decode(_COUNTED_APPEND if _counts(body, limits) else _APPEND, body, "")
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


def _counts(text: bytes, limits: Limits) -> bool:
    """Return whether records and headers are counted while the text is decoded, and prepare for that."""
    if count_sign(text, b"{") + count_sign(text, b"[") <= _BRACKETS_MAX:
        return False
    _LEFT.records, _LEFT.headers, _LEFT.limits = limits.max_request_records, limits.max_record_headers, limits
    return True


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
    if not body or count_sign(body, b"\n") > limits.max_request_records:
        return None
    if count_sign(body, b"{") > _BRACKETS_MAX:
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
            decoder = _COUNTED_RECORD if _counts(line, limits) else _RECORD
            add_record(columns, decode(decoder, line, pointer), pointer, limits)
    if columns.count == 0:
        raise InvalidRequest(("", "must contain at least one record"))
    return columns


def too_many(limits: Limits) -> TooLarge:
    limit = limits.max_request_records
    return TooLarge(f"a request may have at most {limit} records, got more", limit, "max_request_records")


def too_many_headers(limits: Limits, record: str) -> TooLarge:
    limit = limits.max_record_headers
    return TooLarge(f"{record} may have at most {limit} headers, got more", limit, "max_record_headers")


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
        if len(record.headers) > limits.max_record_headers:
            raise too_many_headers(limits, pointer or "the record")
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
