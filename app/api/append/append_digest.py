"""Digest of an append in 16 bytes: distinguishes a retry from another append (docs/api.md §3).

Computed over the decoded records and the conditions, so it does not depend on the content type, the
compression or the order of JSON fields.
"""

import hashlib
import struct
from collections.abc import Iterable

import pyarrow as pa

from app.log.contract import AppendRequest
from storage.format.records import Headers, RecordColumns, RecordTable

_NUMBER = struct.Struct("<q")
_NONE = _NUMBER.pack(-1)


def append_digest(request: AppendRequest) -> bytes:
    """Return the digest of an append's records and conditions; acks and timeout do not count."""
    digest = hashlib.blake2b(digest_size=16)
    update = digest.update
    producer = request.producer
    conditions = (
        request.match_index,
        request.match_term,
        request.fencing_token,
        None if producer is None else producer.id,
        None if producer is None else producer.epoch,
        None if producer is None else producer.sequence,
    )
    for condition in conditions:
        update(_text(None if condition is None else str(condition).encode()))
    for timestamp_us, key, value, headers in _rows(request.records):
        update(_NONE if timestamp_us is None else b"t" + _NUMBER.pack(timestamp_us))
        update(_text(key))
        update(_text(value))
        if not headers:
            update(_NONE)
        else:
            update(_NUMBER.pack(len(headers)))
            for name, content in headers:
                update(_text(name.encode()))
                update(_text(content))
    return digest.digest()


def _text(data: bytes | None) -> bytes:
    """Return length and content, so that no two sequences of fields have the same bytes."""
    return _NONE if data is None else _NUMBER.pack(len(data)) + data


_Row = tuple[int | None, bytes | None, bytes | None, Headers | None]


def _rows(records: RecordColumns | RecordTable) -> Iterable[_Row]:
    if isinstance(records, RecordColumns):
        stamps = [None if ms is None else ms * 1000 for ms in records.timestamps_ms]
        return zip(stamps, records.keys, records.values, records.headers, strict=True)
    table = records.records
    stamps = table.column(0).view(pa.int64()).to_pylist()
    headers = [
        None if row is None else [(pair["name"], pair["value"]) for pair in row]
        for row in table.column(3).to_pylist()
    ]
    return zip(stamps, table.column(1).to_pylist(), table.column(2).to_pylist(), headers, strict=True)
