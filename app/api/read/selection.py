"""Selection of a read: its start, its visible end, and the matching records.

Whole batches are read without copying (app/api/read/reader.py); records are selected and filtered here, and
rendered elsewhere (app/api/read/rendering.py), from Arrow columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
import pyarrow as pa

from storage.format.batch import Batch
from storage.format.records import READ_SCHEMA, HeaderColumns, runs
from storage.log.commitlog import Commitlog
from storage.units import MIB

SCAN_MAX_BYTES: Final = 64 * MIB  # of stored batches that one answer reads
WINDOW: Final = 1024  # records read in one step when counting back
_KEY: Final = READ_SCHEMA.get_field_index("key")
_VALUE: Final = READ_SCHEMA.get_field_index("value")
_HEADERS: Final = READ_SCHEMA.get_field_index("headers")


class Consistency(StrEnum):
    LINEARIZABLE = "linearizable"
    COMMITTED = "committed"
    LOCAL = "local"


class Encoding(StrEnum):
    AUTO = "auto"
    TEXT = "text"
    JSON = "json"
    BASE64 = "base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Filter and limits of the records of a range.

    `limit` records, `max_bytes` of value, key and headers.
    """

    limit: int = 1_000
    max_bytes: int = 4 * MIB
    include_control: bool = False
    key: bytes | None = None
    term: int | None = None

    def has(self, batch: Batch) -> bool:
        """Return whether records of the batch may be selected."""
        return (self.include_control or not batch.is_control) and self.term in (None, batch.term)


@dataclass(slots=True)
class RecordPage:
    """Selected records. columns: READ_SCHEMA. next_index: one after the last index read."""

    next_index: int
    columns: list[pa.RecordBatch] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0
    full: bool = False


def select(batches: Sequence[Batch], page: RecordPage, end_index: int, wanted: Selection) -> None:
    """Read the records of `batches` from page.next_index to end_index (inclusive); add the matching ones.

    Pure and independent of the event loop: may run in a thread. Stops when the page is full.
    """
    columns = HeaderColumns(batches)
    for run in runs(batches, wanted.has):
        if page.next_index > end_index:
            return
        first, last_index = run[0].base_index, min(run[-1].last_index, end_index)
        if wanted.has(run[0]):
            rows = columns.read(run).slice(page.next_index - first, last_index - page.next_index + 1)
            if wanted.key is not None:
                import pyarrow.compute as pc  # 8 MiB of memory, which other reads do not need

                rows = rows.filter(pc.equal(rows.column(_KEY), pa.scalar(wanted.key, pa.binary())))
            if rows.num_rows and not _take(rows, page, wanted):
                return
        page.next_index = last_index + 1


def _take(rows: pa.RecordBatch, page: RecordPage, wanted: Selection) -> bool:
    """Add as many rows as fit, at least one to an empty page; return whether all did."""
    sizes = record_sizes(rows)
    room = min(wanted.limit - page.count, rows.num_rows)
    if page.size_bytes + int(sizes.sum()) > wanted.max_bytes:
        room = min(room, int(np.searchsorted(sizes.cumsum(), wanted.max_bytes - page.size_bytes, "right")))
        if page.count == 0:
            room = max(room, 1)
    if room > 0:
        taken = rows if room == rows.num_rows else rows.slice(0, room)
        page.columns.append(taken)
        page.count += room
        page.size_bytes += int(sizes[:room].sum())
        page.next_index = taken.column(0)[room - 1].as_py() + 1
    if room < rows.num_rows or page.count >= wanted.limit or page.size_bytes >= wanted.max_bytes:
        page.full = True
    return bool(room == rows.num_rows)


def record_sizes(rows: pa.RecordBatch) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the bytes of value, key and headers of each row."""
    sizes = _lengths(rows.column(_VALUE)) + _lengths(rows.column(_KEY))
    headers = rows.column(_HEADERS)
    if headers.null_count < len(headers):
        ends = _offsets(headers)
        pairs = headers.values
        within = np.concatenate(([0], (_lengths(pairs.field(0)) + _lengths(pairs.field(1))).cumsum()))
        sizes = sizes + within[ends[1:]] - within[ends[:-1]]
    return sizes


def _offsets(array: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    width = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return width.astype(np.int64)


def _lengths(array: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    if array.null_count == len(array):
        return np.zeros(len(array), np.int64)
    return np.diff(_offsets(array))


def window_of_last(log: Commitlog, end_index: int, wanted: int) -> tuple[int, int]:
    """Count data records back from end_index, over one window.

    Return (start, missing): `missing` 0 when the `wanted` last data records begin at `start`, else how
    many are still wanted before `start`.
    """
    entries = log.entries(max(log.begin_index, end_index - WINDOW + 1), end_index)
    for entry in reversed(entries):
        if not entry.is_control:
            rows = min(entry.last_index, end_index) - entry.base_index + 1
            if rows >= wanted:
                return entry.base_index + rows - wanted, 0
            wanted -= rows
    return entries[0].base_index, wanted
