"""Records as JSON: in portions, so that many headers do not stop the node, and always the same text."""

import msgspec
import pyarrow as pa
import pytest

from app.api.read import rendering
from app.api.read.selection import Encoding
from storage.format.records import READ_SCHEMA


def rows(*counts: int | None) -> pa.RecordBatch:
    """Records with so many headers; None: no list of them."""
    records = [
        {
            "index": index,
            "term": 1,
            "offset": 0,
            "timestamp": 0,
            "key": None,
            "value": b"v",
            "headers": None if count is None else [{"name": "n", "value": b"%d" % at} for at in range(count)],
            "type": "data",
        }
        for index, count in enumerate(counts)
    ]
    return pa.RecordBatch.from_pylist(records, READ_SCHEMA)


@pytest.mark.parametrize(
    "columns",
    [
        [],
        [rows(0, None, 3)],
        [rows(None, None), rows(7, 1, 0, None, 9, 4, 4, 4, 30), rows(1)],
        [rows(5, 9, None, 8, 2, 40).slice(1, 4)],
        [rows(11), rows(11).slice(1)],
    ],
)
def test_portions_are_the_same_text(columns: list[pa.RecordBatch], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_HEADERS_AT_ONCE", 8)
    objects = rendering.record_objects(columns, Encoding.AUTO)
    array = rendering.as_array(columns, Encoding.AUTO)
    assert bytes(array) == msgspec.json.encode(objects)
    assert rendering.as_lines(columns, Encoding.AUTO) == b"".join(
        msgspec.json.encode(record) + b"\n" for record in objects
    )
    sizes = [len(part.column(6).flatten()) for part in rendering._portions(columns) if part.num_rows > 1]
    assert all(size <= 8 for size in sizes)
