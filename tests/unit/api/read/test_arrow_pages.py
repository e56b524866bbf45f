"""Pages of records as Arrow: one buffer of exactly their size, which any reader of Arrow streams opens."""

import pyarrow as pa
import pytest

from app.api.read.rendering import as_arrow
from app.api.read.selection import RecordPage, Selection, _take
from storage.format.batch import FIRST_CHAIN, stamp
from storage.format.records import READ_SCHEMA, RecordColumns, encode_body, read_columns


def rows(count: int, base_index: int) -> pa.RecordBatch:
    records = RecordColumns()
    for number in range(count):
        records.add(b"v" * number, None if number % 3 else b"k", None, [("n", b"h")] if number % 5 else None)
    stamped = {"log_id": 1, "base_index": base_index, "term": 2, "timestamp_ms": 5, "offset": 0}
    return read_columns(stamp(encode_body(records), **stamped, previous_chain=FIRST_CHAIN))


@pytest.mark.parametrize("counts", [(), (1,), (700, 600), (3, 5, 7), (600, 1)])
def test_a_page_is_an_arrow_stream_of_its_records(counts: tuple[int, ...]) -> None:
    columns = [rows(count, 10 * position) for position, count in enumerate(counts)]
    if len(columns) > 1:
        columns[-1] = columns[-1].slice(0, max(1, counts[-1] // 2))
    page = as_arrow(columns)
    assert pa.ipc.open_stream(page).read_all().equals(pa.Table.from_batches(columns, READ_SCHEMA))
    assert bytes(page).endswith(b"\xff\xff\xff\xff\x00\x00\x00\x00")  # the end of a stream, and no byte more


def test_a_page_holds_the_records_that_fill_its_bytes_exactly() -> None:
    rows = [
        {"index": index, "term": 1, "offset": 0, "timestamp": 0, "value": b"x" * 10, "type": "data"}
        for index in range(3)
    ]
    page = RecordPage(0)
    assert not _take(pa.RecordBatch.from_pylist(rows, READ_SCHEMA), page, Selection(max_bytes=20))
    assert (page.count, page.size_bytes, page.next_index) == (2, 20, 2)
