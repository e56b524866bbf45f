"""Records as Arrow: encodes what clients send, and reads what is stored, without an object per record.

The body of a batch is one Arrow IPC record-batch message of BODY_SCHEMA, uncompressed. A record without a
timestamp has the batch's; a record without a value is a tombstone. Untrusted bytes:
storage/format/arrow_input.py.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from storage.errors import CorruptBatch, InvalidRecords
from storage.file_system import Bytes
from storage.format.batch import Batch, BatchHeader, EncodedBody
from storage.format.checksum import crc32c
from storage.units import KIB

MIN_TIMESTAMP_MS: Final = -62_135_596_800_000  # year 1: what every reader of the tables can show
MAX_TIMESTAMP_MS: Final = 253_402_300_799_999  # the end of year 9999

TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
HEADERS_TYPE: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
BODY_SCHEMA: Final = pa.schema(
    [("timestamp", TIMESTAMP_TYPE), ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE)]
)
READ_SCHEMA: Final = pa.schema(
    [
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP_TYPE),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS_TYPE),
        ("type", pa.string()),
    ]
)

RECORD_OVERHEAD_BYTES: Final = 32  # timestamp, offsets and validity of a record in a body, at most
HEADER_OVERHEAD_BYTES: Final = 9  # two offsets and validity of a header
ROWS_TOGETHER: Final = 512  # with fewer, and with fewer bytes, reading a batch costs more than copying it
BYTES_TOGETHER: Final = 512 * KIB
BYTES_ALONE: Final = 192 * KIB  # of a batch that costs more to copy than to read
LONE_VALUE_MAX_BYTES: Final = 64 * KIB  # whose surroundings in a body are remembered

Headers = Sequence[tuple[str, bytes]]


class RecordColumns:
    """Rows to be encoded, column by column. All lists have one element per record.

    size_bytes: of values, keys and headers (names in UTF-8) together. packed_bytes: upper bound of the body,
    including offsets.
    """

    __slots__ = ("headers", "keys", "packed_bytes", "size_bytes", "timestamps_ms", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps_ms: list[int | None] = []
        self.headers: list[Headers | None] = []
        self.size_bytes = 0
        self.packed_bytes = 0

    @property
    def count(self) -> int:
        return len(self.values)

    def add(
        self,
        value: bytes | None,
        key: bytes | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> None:
        """Add one record. Raises InvalidRecords for a timestamp outside the years 1 to 9999."""
        if timestamp_ms is not None and not MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS:
            raise InvalidRecords("timestamp: outside the years 1 to 9999")
        size = 0 if value is None else len(value)
        if key is not None:
            size += len(key)
        if headers is not None:
            size += sum(len(name.encode()) + len(content) for name, content in headers)
        self.keys.append(key)
        self.values.append(value)
        self.timestamps_ms.append(timestamp_ms)
        self.headers.append(headers)
        self.size_bytes += size
        self.packed_bytes += size + RECORD_OVERHEAD_BYTES + HEADER_OVERHEAD_BYTES * len(headers or ())

    def add_all(
        self,
        values: list[bytes | None],
        keys: list[bytes | None],
        timestamps_ms: list[int | None],
    ) -> int:
        """Add records without headers, of checked timestamps; return the bytes of the largest."""
        sizes = [
            (0 if value is None else len(value)) + (0 if key is None else len(key))
            for value, key in zip(values, keys, strict=True)
        ]
        size_bytes = sum(sizes)
        self.values += values
        self.keys += keys
        self.timestamps_ms += timestamps_ms
        self.headers += [None] * len(values)
        self.size_bytes += size_bytes
        self.packed_bytes += size_bytes + RECORD_OVERHEAD_BYTES * len(values)
        return max(sizes, default=0)

    @property
    def lone_value(self) -> bytes | None:
        """The value of a single record that has nothing else; None for any other records."""
        if len(self.values) != 1 or self.size_bytes > LONE_VALUE_MAX_BYTES:
            return None
        plain = self.keys[0] is None and self.timestamps_ms[0] is None and self.headers[0] is None
        return self.values[0] if plain else None

    def extend(self, other: "RecordColumns") -> None:
        """Add all records of `other`, in order."""
        self.keys.extend(other.keys)
        self.values.extend(other.values)
        self.timestamps_ms.extend(other.timestamps_ms)
        self.headers.extend(other.headers)
        self.size_bytes += other.size_bytes
        self.packed_bytes += other.packed_bytes


class RecordTable:
    """A client's own record batch of BODY_SCHEMA, validated. Its records stay in one batch of the log.

    size_bytes: of values, keys and headers together. packed_bytes: of its columns, including offsets.
    """

    __slots__ = ("count", "packed_bytes", "records", "size_bytes")

    def __init__(self, records: pa.RecordBatch, size_bytes: int) -> None:
        self.records = records
        self.size_bytes = size_bytes
        self.count = int(records.num_rows)
        # get_total_buffer_size counts bytes once that several columns share; nbytes takes twice as long.
        self.packed_bytes = sum(
            buffer.size for column in records.columns for buffer in column.buffers() if buffer is not None
        )


def joined(tables: Sequence[RecordTable]) -> pa.RecordBatch:
    """Return the records of at least one table, in order."""
    if len(tables) == 1:
        return tables[0].records
    return pa.concat_batches([table.records for table in tables])


@lru_cache(maxsize=1024)
def _nulls(count: int, column: int) -> pa.Array:
    return pa.nulls(count, BODY_SCHEMA.field(column).type)


def _column(values: list[Any], column: int) -> pa.Array:
    """Return the list as an Arrow array; a column of nulls, the usual case, is created once per length."""
    count = len(values)
    if values.count(None) == count:
        return _nulls(count, column) if count <= 4096 else pa.nulls(count, BODY_SCHEMA.field(column).type)
    return pa.array(values, BODY_SCHEMA.field(column).type)


def encode_body(records: RecordColumns | RecordTable | pa.RecordBatch) -> EncodedBody:
    """Encode at least one record as a body. A record batch must be of BODY_SCHEMA."""
    if isinstance(records, RecordColumns):
        value = records.lone_value
        if value is None:
            return _encode_columns(records)
        before, after = _around(len(value))
        data = b"".join((before, value, after))
        return EncodedBody(data, 1, crc32c(data), None, False)
    rows = records.records if isinstance(records, RecordTable) else records
    stamps = rows.column(0)
    latest: int | None = None
    if stamps.null_count < rows.num_rows:
        known = stamps.drop_null() if stamps.null_count else stamps
        latest = int(known.view(pa.int64()).to_numpy().max())
    return _encoded(rows, latest, stamps.null_count == 0)


@lru_cache(maxsize=1024)
def _around(size_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes of a body before and after the value of a single record that has nothing else.

    They depend on the value's size only. Arrow takes longer to build them than a leader for the rest of the
    append: nothing of its code is in the processor's cache when appends arrive one by one.
    """
    value, records = b"\xff" * size_bytes, RecordColumns()
    records.add(value)
    body = bytes(_encode_columns(records).data)
    start = body.rfind(value)  # the first bytes of a body are 0xff too; after the value are zeros
    return body[:start], body[start + size_bytes :]


def _encode_columns(records: RecordColumns) -> EncodedBody:
    stamps = records.timestamps_ms
    untimed = stamps.count(None)
    latest: int | None = None
    if untimed == len(stamps):
        times = _column(stamps, 0)
    else:
        times = pa.array([None if ms is None else ms * 1000 for ms in stamps], TIMESTAMP_TYPE)
        latest = max(ms for ms in stamps if ms is not None) * 1000
    columns = [times, _column(records.keys, 1), _column(records.values, 2), _column(records.headers, 3)]
    return _encoded(pa.RecordBatch.from_arrays(columns, schema=BODY_SCHEMA), latest, untimed == 0)


def _encoded(rows: pa.RecordBatch, latest_us: int | None, all_timestamped: bool) -> EncodedBody:
    data = memoryview(rows.serialize())
    padding = -len(data) & 7
    if padding:  # Arrow pads to 8 by itself; the format must not depend on that
        data = memoryview(bytes(data) + bytes(padding))
    return EncodedBody(data, rows.num_rows, crc32c(data), latest_us, all_timestamped)


def encode_control(value: dict[str, Any] | msgspec.Struct) -> EncodedBody:
    """Encode a control record: its value as compact JSON, keys or fields in the given order."""
    records = RecordColumns()
    records.add(msgspec.json.encode(value))
    return encode_body(records)


def control_value(batch: Batch) -> dict[str, Any]:
    """Return the value of a control batch's record. Raises CorruptBatch."""
    rows = decode_body(batch.header, batch.body)
    try:
        return msgspec.json.decode(rows.column(2)[0].as_py() or b"", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise CorruptBatch(f"control record: {error}") from error


def decode_body(header: BatchHeader, body: Bytes, *, untrusted: bool = False) -> pa.RecordBatch:
    """Return the records of a body, columns BODY_SCHEMA, views of `body`.

    untrusted: a client encoded the body: verify every offset and length in it. Stored bodies were verified
    when they arrived, and their checksum shows that they are unchanged. Raises CorruptBatch.
    """
    try:
        rows = pa.ipc.read_record_batch(pa.py_buffer(body), BODY_SCHEMA)
        if untrusted:
            rows.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise CorruptBatch(f"body: {error}") from error
    if rows.num_rows != header.count:
        raise CorruptBatch("body: its number of records differs from the header")
    return rows


def repeated(text: str, count: int) -> pa.Array:
    """Return an Arrow array of `count` times the same text."""
    return _repeated(text, 1 << max(0, count - 1).bit_length()).slice(0, count)


@lru_cache(maxsize=256)
def _repeated(text: str, count: int) -> pa.Array:
    data = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(data * count)])


def int64_array(values: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> pa.Array:
    """Return the numbers as an Arrow array, not copied.

    pa.array and pa.scalar would import pandas first, which costs a third of a second at the start of every
    process that only reads a log, on a node or in Spark.
    """
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def runs(
    batches: Iterable[Batch], alike: Callable[[Batch], object] = attrgetter("is_control")
) -> Iterator[list[Batch]]:
    """Group consecutive batches for `read_columns`: large ones alone, small ones together; data and control
    records never, nor batches for which `alike` differs."""
    run: list[Batch] = []
    rows = size = 0
    for batch in batches:
        if run:
            is_full = rows >= ROWS_TOGETHER or size >= BYTES_TOGETHER
            has_large = max(batch.size_bytes, run[-1].size_bytes) >= BYTES_ALONE
            same_kind = batch.is_control == run[0].is_control and alike(batch) == alike(run[0])
            if is_full or has_large or not same_kind:
                yield run
                run, rows, size = [], 0, 0
        run.append(batch)
        rows += batch.header.count
        size += batch.size_bytes
    if run:
        yield run


class HeaderColumns:
    """The columns of consecutive batches that depend on their headers alone, computed for all of them
    at once: for batches of 100 records that takes half as long as for one after the other."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._headers = [batch.header for batch in batches]
        self._counts = np.array([header.count for header in self._headers], np.int64)
        self._first = first = batches[0].base_index
        self._index = int64_array(np.arange(first, batches[-1].next_index))
        self._term = self._spread([header.term for header in self._headers])
        self._offset = self._spread([header.offset for header in self._headers])
        self._stamps: pa.Array | None = None

    def read(self, run: Sequence[Batch]) -> pa.RecordBatch:
        """Return the records of consecutive ones of the batches, as `read_columns`."""
        bodies = [decode_body(batch.header, batch.body) for batch in run]
        rows = bodies[0] if len(bodies) == 1 else pa.concat_batches(bodies)
        start, count = run[0].base_index - self._first, rows.num_rows
        times = rows.column(0)
        if times.null_count:
            stamps = self._timestamps().slice(start, count)
            times = stamps if times.null_count == count else times.fill_null(stamps)
        return pa.RecordBatch.from_arrays(
            [
                self._index.slice(start, count),
                self._term.slice(start, count),
                self._offset.slice(start, count),
                times,
                rows.column(1),
                rows.column(2),
                rows.column(3),
                repeated("control" if run[0].is_control else "data", count),
            ],
            schema=READ_SCHEMA,
        )

    def _timestamps(self) -> pa.Array:
        if self._stamps is None:
            values = [header.timestamp_ms * 1000 for header in self._headers]
            self._stamps = self._spread(values).view(TIMESTAMP_TYPE)
        return self._stamps

    def _spread(self, values: Sequence[int]) -> pa.Array:
        """Return each batch's value as often as the batch has records."""
        return int64_array(np.repeat(np.array(values, np.int64), self._counts))


def read_columns(*batches: Batch) -> pa.RecordBatch:
    """Return the records of consecutive batches, all of data or all of control records, with index, term and
    offset, columns READ_SCHEMA (docs/api.md §5).

    Key, value and headers of a single batch are views of its bytes. Raises CorruptBatch.
    """
    return HeaderColumns(batches).read(batches)
