"""Bodies of appends from columns of records: Arrow where it is installed, otherwise JSON lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from app.arguments import check_instance, check_whole
from app.client.records import Record, ndjson
from app.extras import naming_the_extra
from app.media_types import ARROW_STREAM, NDJSON

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = {"value", "key", "timestamp", "headers"}  # of a table that is appended


@dataclass(frozen=True)
class Body:
    """Encoded records, with their media type."""

    content: bytes
    media_type: str


def pack(
    values: Sequence[str | bytes | None], keys: Sequence[str | bytes | None], others: Sequence[Record] | None
) -> Body:
    """Return the body of an append. others: all records, if one of them has headers or a timestamp."""
    if others is not None or not _has_arrow():
        records = others if others is not None else [Record(*pair) for pair in zip(values, keys, strict=True)]
        return Body(ndjson(records), NDJSON)
    import pyarrow as pa

    columns = {"value": _column(values)}
    if any(key is not None for key in keys):
        columns["key"] = _column(keys)
    return Body(arrow_stream(pa.RecordBatch.from_pydict(columns)), ARROW_STREAM)


def check_arrow(name: str, table: object) -> None:
    """Raise TypeError for anything but an Arrow table or record batch, ValueError for columns that no record
    has."""
    with naming_the_extra():
        import pyarrow as pa

    check_instance(name, table, pa.Table, pa.RecordBatch, remedy="; append_frame takes data frames")
    columns = cast("pa.Table", table).schema.names
    if "value" not in columns or not COLUMNS.issuperset(columns):
        found = ", ".join(columns)
        raise ValueError(
            f"{name} must have a column value, and may have key, timestamp, headers; got {found}"
        )


def arrow_body(table: "pa.Table | pa.RecordBatch", max_records: int, max_bytes: int) -> Iterator[Body]:
    """Yield the appends of a table, in order: at most max_records, and about max_bytes each, unless one row
    has more."""
    import pyarrow as pa

    check_whole("max_records", max_records, 1)
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    row_bytes = max(1, whole.nbytes // max(1, whole.num_rows))
    rows = max(1, min(max_records, max_bytes // row_bytes))
    for start in range(0, whole.num_rows, rows):
        yield from _halves(whole.slice(start, rows), max_bytes)


def _halves(table: "pa.Table", max_bytes: int) -> Iterator[Body]:
    """Yield the appends of rows, of which some may be far larger than the average. Rows that share their
    bytes, as those of a dictionary or a view, stay together."""
    middle = table.num_rows // 2
    if middle and table.nbytes > max_bytes * 3 // 2:
        halves = table.slice(0, middle), table.slice(middle)
        if sum(half.nbytes for half in halves) < table.nbytes * 3 // 2:  # else each has the shared bytes
            for half in halves:
                yield from _halves(half, max_bytes)
            return
    yield Body(arrow_stream(table.combine_chunks()), ARROW_STREAM)


def _column(contents: Sequence[str | bytes | None]) -> Any:
    import pyarrow as pa

    encoded = [content.encode() if isinstance(content, str) else content for content in contents]
    return pa.array(encoded, pa.binary())


def arrow_stream(table: "pa.Table | pa.RecordBatch") -> bytes:
    """Return the IPC stream of a table. The client installs without pyarrow: check_arrow reports that."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return bytes(sink.getvalue().to_pybytes())


@cache
def _has_arrow() -> bool:
    try:
        import pyarrow
    except ImportError:
        return False
    return bool(pyarrow.__version__)
