"""Records as a client gives them, and their JSON form (docs/api.md §2)."""

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from types import NoneType
from typing import Any

import msgspec

from app.arguments import check_instance, check_whole, kind_of
from storage.units import MIB

BATCH_RECORDS = 500
BATCH_BYTES = 4 * MIB
_INT_DIGITS = 4_300  # that Python reads by default
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # the years 1 to 9999
_ESCAPED = bytes(set(range(32)) - set(b"\b\t\n\f\r"))  # by JSON, with six characters each
CONTENTS = (str, bytes, bytearray, NoneType)  # of a value and of a key


@dataclass(frozen=True, slots=True)
class Record:
    """One record. value None is a tombstone; bytes that are not text, or mostly control characters, travel
    as base64.

    timestamp: milliseconds since 1970 UTC, None for the leader's clock.
    """

    value: str | bytes | None
    key: str | bytes | None = None
    headers: Sequence[tuple[str, str | bytes]] = ()
    timestamp: int | None = None

    @property
    def size_bytes(self) -> int:
        """Approximate size of the record in a request."""
        return len(self.value or b"") + len(self.key or b"") + 64 * (1 + len(self.headers))

    def to_json(self) -> dict[str, Any]:
        """Return the record in JSON form."""
        document: dict[str, Any] = {**_field("value", self.value)}
        if self.key is not None:
            document.update(_field("key", self.key))
        check_details(self)
        if self.headers:
            document["headers"] = [[name, _header(value)] for name, value in self.headers]
        if self.timestamp is not None:
            document["timestamp"] = self.timestamp
        return document


RecordLike = Record | str | bytes | Mapping[str, Any]


def check_content(name: str, content: object) -> None:
    """Raise TypeError for a value or a key that no record can have."""
    if not isinstance(content, CONTENTS):
        raise TypeError(f"the {name} of a record must be text, bytes or None, got {type(content).__name__}")


def check_list(records: object) -> None:
    """Raise TypeError for anything but several records, also for one record."""
    if isinstance(records, str | bytes | bytearray | Mapping | Record):
        raise TypeError(f"a list of records is required, got one {kind_of(records)}: [record]")
    if not isinstance(records, Iterable):
        raise TypeError(f"a list of records is required, got {kind_of(records)}")


def check_details(record: Record) -> None:
    """Raise TypeError and ValueError for headers or a timestamp that no record can have."""
    check_instance("headers", record.headers, tuple, list)
    for header in record.headers:
        if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str):
            raise TypeError(f"a header of a record must be a pair (name, value), got {header!r}")
        if not isinstance(header[1], str | bytes | bytearray):
            kind = type(header[1]).__name__
            raise TypeError(f"the value of a header must be text or bytes, got {kind}")
    if record.timestamp is not None:
        name = "the timestamp of a record, milliseconds since 1970 UTC,"
        check_whole(name, record.timestamp, _FIRST_MS, _LAST_MS)


def kept(record: Record) -> Record:
    """Return the record with copies of what its owner may change."""
    value, key, headers = record.value, record.key, record.headers
    pairs = tuple((name, bytes(part) if isinstance(part, bytearray) else part) for name, part in headers)
    value, key = (bytes(part) if isinstance(part, bytearray) else part for part in (value, key))
    return Record(value, key, pairs, record.timestamp)


def _float(text: str) -> float | Decimal:
    number = float(text)
    if math.isinf(number) or (number == 0 and Decimal(text) != 0):
        return Decimal(text)
    return number


def _int(text: str) -> int | Decimal:
    return int(text) if len(text) <= _INT_DIGITS else Decimal(text)


EXACT_NUMBERS: Mapping[str, Any] = {"parse_float": _float, "parse_int": _int}  # options of json.loads


def _is_finite(number: float | Decimal) -> bool:
    """Return whether JSON has the number: also a decimal that no float holds."""
    return number.is_finite() if isinstance(number, Decimal) else math.isfinite(number)


def check_json(content: object) -> None:
    """Raise ValueError for a number that JSON does not have: it would be stored as null. Raise TypeError for
    bytes: they would be stored as their base64."""
    if isinstance(content, bytes | bytearray | memoryview):
        raise TypeError("a mapping must not contain bytes: use a Record, or value_base64 and key_base64")
    if isinstance(content, float | Decimal) and not _is_finite(content):
        raise ValueError(f"a record must not contain {content}, which JSON does not have: use null or text")
    if isinstance(content, Mapping):
        for part in content.values():
            check_json(part)
    elif isinstance(content, list | tuple | set | frozenset):
        for part in content:
            check_json(part)


def stored_bytes(record: Record) -> int:
    """Return the bytes that the service counts of a record: of its value, key and headers."""
    parts = [record.value, record.key, *(part for header in record.headers for part in header)]
    return sum(len(part.encode() if isinstance(part, str) else part) for part in parts if part is not None)


def record_document(record: RecordLike) -> Mapping[str, Any]:
    """Return a record's JSON object: from a Record, a bare value, or a mapping that is one already."""
    if isinstance(record, Mapping):
        check_json(record)
        return record
    return (record if isinstance(record, Record) else Record(record)).to_json()


def ndjson(records: Iterable[RecordLike]) -> bytes:
    """Return one JSON object per line. Raises TypeError for anything but a list of records, and for a part
    that no record can have."""
    check_list(records)
    encoder = msgspec.json.Encoder(decimal_format="number")
    return encoder.encode_lines([record_document(record) for record in records])


def in_batches(
    records: Iterable[Record], max_records: int = BATCH_RECORDS, max_bytes: int = BATCH_BYTES
) -> Iterator[list[Record]]:
    """Divide a stream of records into appends of at most `max_records` and about `max_bytes`, in order."""
    check_list(records)
    check_whole("max_records", max_records, 1)
    check_whole("max_bytes", max_bytes, 1)
    batch: list[Record] = []
    size = 0
    for record in records:
        check_instance("a record", record, Record)
        if batch and (len(batch) >= max_records or size + record.size_bytes > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record.size_bytes
    if batch:
        yield batch


def _field(name: str, content: str | bytes | None) -> dict[str, Any]:
    if content is None or isinstance(content, str):
        return {name: content}
    check_content(name, content)
    escaped = len(content) - len(content.translate(None, _ESCAPED))
    if 5 * escaped <= len(content) // 3:  # otherwise base64 is shorter
        with suppress(UnicodeDecodeError):
            return {name: content.decode()}
    return {f"{name}_base64": base64.b64encode(content).decode("ascii")}


def _header(content: str | bytes) -> str | dict[str, str]:
    if isinstance(content, str):
        return content
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode("ascii")}
