"""Bodies of appends from columns of records: Arrow where it is installed, otherwise JSON lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from app.client.records import Record, ndjson
from app.extras import naming_the_extra
from app.media_types import ARROW_STREAM, NDJSON

if TYPE_CHECKING:
    import pyarrow as pa


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
    return Body(_stream(pa.RecordBatch.from_pydict(columns)), ARROW_STREAM)


def arrow_body(table: "pa.Table | pa.RecordBatch", max_records: int, max_bytes: int) -> Iterator[Body]:
    """Yield the appends of a table, in order: at most max_records, and about max_bytes each."""
    with naming_the_extra():
        import pyarrow as pa

    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    row_bytes = max(1, whole.nbytes // max(1, whole.num_rows))
    rows = max(1, min(max_records, max_bytes // row_bytes))
    for start in range(0, whole.num_rows, rows):
        yield Body(_stream(whole.slice(start, rows).combine_chunks()), ARROW_STREAM)


def _column(contents: Sequence[str | bytes | None]) -> Any:
    import pyarrow as pa

    encoded = [content.encode() if isinstance(content, str) else content for content in contents]
    return pa.array(encoded, pa.binary())


def _stream(table: "pa.Table | pa.RecordBatch") -> bytes:
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
