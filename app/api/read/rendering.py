"""Records in the formats of clients: JSON objects, lines, Arrow, Parquet. Pure: may run in a thread."""

import base64
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from app.api.read.selection import Encoding
from storage.format.records import READ_SCHEMA

_ENCODER = msgspec.json.Encoder()
_RAW = msgspec.json.Decoder(msgspec.Raw)
_HEADERS_AT_ONCE: Final = 5_000  # some milliseconds
_SMALL_ROWS: Final = 64  # Arrow batches with fewer rows on average are joined before they are sent


def record_objects(columns: Sequence[pa.RecordBatch], encoding: Encoding) -> list[dict[str, Any]]:
    """Return records in the form of docs/api.md §2; bytes according to `encoding`."""
    return [record for rows in columns for record in _objects(rows, encoding)]


def as_array(columns: Sequence[pa.RecordBatch], encoding: Encoding) -> msgspec.Raw:
    """Return records as a part of a JSON document: an array of `record_objects`."""
    parts = (_ENCODER.encode(list(_objects(rows, encoding)))[1:-1] for rows in _portions(columns))
    return msgspec.Raw(b"[%b]" % b",".join(parts))


def _portions(columns: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Divide records with many headers: no other thread runs while Arrow or the encoder handle a portion."""
    for rows in columns:
        headers = rows.column(6)
        if headers.null_count == rows.num_rows or len(headers.flatten()) <= _HEADERS_AT_ONCE:
            if rows.num_rows:
                yield rows
            continue
        offsets = headers.offsets.to_numpy()
        start = 0
        while start < rows.num_rows:
            last = int(np.searchsorted(offsets, offsets[start] + _HEADERS_AT_ONCE, "right")) - 1
            end = min(max(last, start + 1), rows.num_rows)
            yield rows.slice(start, end - start)
            start = end


def _objects(rows: pa.RecordBatch, encoding: Encoding) -> Iterator[dict[str, Any]]:
    plain = partial(_text, encoding=encoding)
    stamps = rows.column(3).view(pa.int64())
    for index, term, offset, timestamp_us, key, value, headers, kind in zip(
        rows.column(0).to_pylist(),
        rows.column(1).to_pylist(),
        rows.column(2).to_pylist(),
        stamps.to_pylist(),
        rows.column(4).to_pylist(),
        rows.column(5).to_pylist(),
        rows.column(6).to_pylist(),
        rows.column(7).to_pylist(),
        strict=True,
    ):
        record: dict[str, Any] = {
            "index": index,
            "term": term,
            "offset": offset,
            "timestamp": timestamp_us // 1000,
        }
        _put(record, "key", key, encoding)
        if encoding is Encoding.JSON and value is not None and (raw := _raw_json(value)) is not None:
            record["value_json"] = raw
        else:
            _put(record, "value", value, encoding)
        record["headers"] = (
            [] if headers is None else [[pair["name"], plain(pair["value"])] for pair in headers]
        )
        record["type"] = kind
        yield record


def _put(record: dict[str, Any], name: str, data: bytes | None, encoding: Encoding) -> None:
    """Set `name` where the bytes are text or null, otherwise `name`_base64."""
    text = None if data is None else _text(data, encoding)
    if isinstance(text, dict):
        record[f"{name}_base64"] = text["base64"]
    else:
        record[name] = text


def _text(data: bytes | None, encoding: Encoding) -> str | dict[str, str] | None:
    if data is None:
        return None
    if encoding is not Encoding.BASE64:
        try:
            return data.decode()
        except UnicodeDecodeError:
            if encoding is Encoding.TEXT:
                return data.decode(errors="replace")
    return {"base64": base64.b64encode(data).decode("ascii")}


def _raw_json(value: bytes) -> msgspec.Raw | None:
    """Return the value as part of a JSON document, None when it is not JSON."""
    try:
        value.decode()
        return _RAW.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def as_lines(columns: Sequence[pa.RecordBatch], encoding: Encoding) -> bytes:
    return b"".join(_ENCODER.encode_lines(list(_objects(rows, encoding))) for rows in _portions(columns))


def as_arrow(columns: Sequence[pa.RecordBatch]) -> memoryview:
    """Return an Arrow IPC stream of READ_SCHEMA."""
    rows = sum(batch.num_rows for batch in columns)
    if rows < _SMALL_ROWS * len(columns):
        columns = pa.Table.from_batches(columns, READ_SCHEMA).combine_chunks().to_batches()
    size = pa.MockOutputStream()
    _write_stream(size, columns)
    whole = pa.allocate_buffer(size.size())  # at once: a sink that grows copies megabytes again and again
    _write_stream(pa.FixedSizeBufferWriter(whole), columns)
    return memoryview(whole)


def _write_stream(sink: pa.NativeFile, columns: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_stream(sink, READ_SCHEMA) as stream:
        for batch in columns:
            stream.write_batch(batch)


def as_parquet(columns: Sequence[pa.RecordBatch]) -> bytes:
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches(columns, READ_SCHEMA), sink)
    return bytes(sink.getvalue().to_pybytes())
