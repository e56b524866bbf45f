"""Decoder of the Arrow bytes of a client: returns a RecordTable, or refuses bytes that fail a check.

Dangers and their countermeasures: offsets and lengths that point elsewhere (full validation); buffers that
decompress to more than the limit (the declared sizes of all batches are added up before decompression, and
Arrow never writes more than declared); columns that grow in a cast (only types that do not are accepted);
row counts without rows (counted before any cast).
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from storage.errors import BodyTooLarge, CorruptBatch, EmptyBody, InvalidRecords
from storage.file_system import Bytes
from storage.format.arrow_messages import is_little_endian, unpacked_size
from storage.format.batch import decode_batch
from storage.format.records import (
    BODY_SCHEMA,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    RecordTable,
    decode_body,
)

_BINARY: Final = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
_VIEWS: Final = (pa.binary_view(), pa.string_view())  # many of one buffer may grow without bound in a cast
_PADDING_BYTES: Final = 8  # a body has fewer after its message
_ERRORS: Final = (pa.ArrowException, OSError, EOFError, ValueError, TypeError, OverflowError)


def table_from_stream(
    data: Bytes, *, max_records: int, max_bytes: int, max_record_bytes: int, max_record_headers: int
) -> RecordTable:
    """Return the records of an Arrow IPC stream, at least one (docs/api.md §3).

    Columns: `value`, and optionally `key`, `timestamp` (a timestamp, or integer milliseconds since 1970) and
    `headers`, in any order. max_bytes: limit for values, keys and headers together; max_record_bytes: the
    same for a single record, max_record_headers: for its headers. Raises InvalidRecords, BodyTooLarge.
    """
    try:
        rows = _cast(_joined(list(_stream_batches(data, max_records, max_bytes))))
    except _ERRORS as error:
        raise _invalid(error) from error
    return _table(rows, max_bytes, max_record_bytes, max_record_headers)


def table_from_batches(
    data: Bytes, *, max_records: int, max_bytes: int, max_record_bytes: int, max_record_headers: int
) -> RecordTable:
    """Return the records of one or more encoded batches, one after the other, as one table.

    Of the headers only sizes, counts and checksums are used: the leader stamps its own.
    Raises InvalidRecords, BodyTooLarge.
    """
    rest = memoryview(data)
    batches = []
    count = unpacked = 0
    while len(rest):
        try:
            batch = decode_batch(rest)
            if batch.is_control or batch.header.appends_size:
                raise InvalidRecords("a packed batch holds data records only")
            count += batch.count
            if count > max_records:
                raise _too_many(max_records)
            body = pa.BufferReader(batch.body)
            unpacked = unpacked_size(pa.ipc.read_message(body), unpacked, max_records, max_bytes)
            if body.size() - body.tell() >= _PADDING_BYTES:
                raise InvalidRecords("a packed batch holds one Arrow message; bytes follow it")
            batches.append(decode_body(batch.header, batch.body, untrusted=True))
        except CorruptBatch as error:
            raise InvalidRecords(f"packed batch: {error}") from error
        except _ERRORS as error:
            raise _invalid(error) from error
        rest = rest[batch.size_bytes :]
    return _table(_joined(batches), max_bytes, max_record_bytes, max_record_headers)


def _too_many(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"more than {limit} records", limit, "max_request_records")


def _invalid(error: BaseException) -> InvalidRecords:
    return InvalidRecords(
        f"not a valid Arrow stream: {str(error).splitlines()[0] if str(error) else 'unreadable'}"
    )


def _stream_batches(data: Bytes, max_records: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the record batches that have rows, each verified; the schema is verified first."""
    source = pa.BufferReader(data)
    reader = pa.ipc.MessageReader.open_stream(source)
    first = next(reader, None)
    if first is None or first.type != "schema":
        raise InvalidRecords("not a valid Arrow stream: it does not begin with a schema")
    schema = pa.ipc.read_schema(first)
    if not is_little_endian(first):
        raise InvalidRecords("the Arrow stream is not little-endian")
    _check_schema(schema)
    count = unpacked = 0
    for message in reader:
        if message.type != "record batch":
            raise InvalidRecords(f"not a valid Arrow stream: unexpected {message.type} message")
        unpacked = unpacked_size(message, unpacked, max_records, max_bytes)
        rows = pa.ipc.read_record_batch(message, schema)
        count += rows.num_rows
        if count > max_records:
            raise _too_many(max_records)
        rows.validate(full=True)
        if rows.num_rows:
            yield rows
    if source.tell() < source.size():
        raise InvalidRecords(
            f"the Arrow stream ends at byte {source.tell()} of {source.size()}; send one stream per request"
        )


def _check_schema(schema: pa.Schema) -> None:
    names = schema.names
    known = BODY_SCHEMA.names
    for name in names:
        if name not in known:
            raise InvalidRecords(f"unknown column {name!r}; known are {', '.join(known)}")
        if names.count(name) > 1:
            raise InvalidRecords(f"column {name!r} occurs twice")
    if "value" not in names:
        raise InvalidRecords("no column 'value'")
    for field in schema:
        if pa.types.is_null(field.type):
            continue
        if field.name == "timestamp":
            if not (pa.types.is_timestamp(field.type) or pa.types.is_integer(field.type)):
                raise InvalidRecords(
                    f"column 'timestamp' is {field.type}, not a timestamp or integer milliseconds"
                )
        elif field.name == "headers":
            _check_headers_type(field.type)
        elif field.type not in _BINARY:
            reason = f"column {field.name!r} is {field.type}, not binary or string"
            if field.type in _VIEWS:
                reason += "; write it without views, in polars with CompatLevel.oldest()"
            raise InvalidRecords(reason)


def _check_headers_type(kind: pa.DataType) -> None:
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_struct(kind.value_type):
        fields = [kind.value_type.field(k) for k in range(kind.value_type.num_fields)]
        if [field.name for field in fields] == ["name", "value"] and all(f.type in _BINARY for f in fields):
            return
    raise InvalidRecords(f"column 'headers' is {kind}, not list<struct<name: string, value: binary>>")


def _cast(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the validated rows in BODY_SCHEMA; a missing column is null. Raises on any loss."""
    if rows.schema.equals(BODY_SCHEMA):
        return rows
    columns = []
    recast = False
    for field in BODY_SCHEMA:
        place = rows.schema.get_field_index(field.name)
        if place < 0:
            columns.append(pa.nulls(rows.num_rows, field.type))
        else:
            column = rows.column(place)
            if pa.types.is_integer(column.type):  # only a timestamp may be one: milliseconds since 1970
                import pyarrow.compute as pc  # 8 MiB of memory, which other columns do not need

                column = pc.multiply_checked(column.cast(pa.int64()), 1_000)
            if column.type != field.type:
                column = column.cast(field.type)
                recast = True
            columns.append(column)
    cast = pa.RecordBatch.from_arrays(columns, schema=BODY_SCHEMA)
    if recast:
        cast.validate(full=True)  # binary was cast to string: verify UTF-8
    return cast


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of all batches as one. Raises EmptyBody."""
    if not batches:
        raise EmptyBody("no records")
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _table(
    rows: pa.RecordBatch, max_bytes: int, max_record_bytes: int, max_record_headers: int
) -> RecordTable:
    """Validate the content of the columns. rows: in BODY_SCHEMA, at least one."""
    _check_timestamps(rows.column(0))
    sizes, headers = _record_sizes(rows), _lengths(rows.column(3))
    size_bytes = int(sizes.sum())
    if size_bytes > max_bytes:
        raise BodyTooLarge(f"more than {max_bytes} bytes", max_bytes, "max_request_bytes")
    if int(sizes.max()) > max_record_bytes:
        raise BodyTooLarge(
            f"record {sizes.argmax()}: a record may have at most {max_record_bytes} bytes, got {sizes.max()}",
            max_record_bytes,
            "max_record_bytes",
        )
    if int(headers.max()) > max_record_headers:
        raise BodyTooLarge(
            f"record {headers.argmax()}: a record may have at most {max_record_headers} headers, "
            f"got {headers.max()}",
            max_record_headers,
            "max_record_headers",
        )
    return RecordTable(rows, size_bytes)


def _check_timestamps(times: pa.Array) -> None:
    if times.null_count == len(times):
        return
    stored = np.frombuffer(times.buffers()[1], np.int64)[times.offset : times.offset + len(times)]
    known = stored[_are_valid(times)] if times.null_count else stored
    if known.min() < MIN_TIMESTAMP_MS * 1000 or known.max() // 1000 > MAX_TIMESTAMP_MS:
        raise InvalidRecords("column 'timestamp': outside the years 1 to 9999")


def _are_valid(values: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each value of an array with nulls whether it is not null."""
    bits = np.unpackbits(np.frombuffer(values.buffers()[0], np.uint8), bitorder="little")
    return bits[values.offset : values.offset + len(values)].astype(np.bool_)


def _lengths(values: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the length of each string, byte string or list, 0 for null. Of the types of BODY_SCHEMA: their
    offsets have 32 bits."""
    count = len(values)
    if values.null_count == count:
        return np.zeros(count, np.int64)
    ends = np.frombuffer(values.buffers()[1], np.int32, count + 1, 4 * values.offset)
    lengths = (ends[1:] - ends[:-1]).astype(np.int64)  # np.diff takes three times as long
    return lengths * _are_valid(values) if values.null_count else lengths


def _record_sizes(rows: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the bytes of each record: value, key and headers. Raises InvalidRecords for nulls in headers."""
    sizes = _lengths(rows.column(1)) + _lengths(rows.column(2))
    headers = rows.column(3)
    if headers.null_count == rows.num_rows:
        return sizes
    pairs = headers.flatten()  # lengths of the lists that are not null
    names, values = pairs.field(0), pairs.field(1)
    if pairs.null_count or names.null_count or values.null_count:
        raise InvalidRecords("column 'headers': a header without name or value")
    ends = np.concatenate(([0], np.cumsum(_lengths(names) + _lengths(values))))
    places = np.concatenate(([0], np.cumsum(_lengths(headers))))
    return sizes + ends[places[1:]] - ends[places[:-1]]
