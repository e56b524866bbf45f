"""Names of a log's files, and the index beside each segment.

A segment is `OFFSET.log`: batches one after the other, nothing between them; its index is `OFFSET.index`.
OFFSET is the byte position of the first batch in the log, 20 digits. One index entry a batch, little-endian:

     0 base_index i64 | 8 offset i64 | 16 term i64 | 24 timestamp_ms i64 | 32 max_timestamp_us i64
    40 peak_timestamp_us i64 | 48 count u32 | 52 size u32 | 56 flags u32 | 60 crc u32 (CRC32C of bytes 0..60)

peak_timestamp_us is the largest max_timestamp_us of the segment up to this batch: it only rises, so the
first batch with a record at or after a time is found by bisection. The index holds nothing that
is not in the segment.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np

from storage.file_system import Bytes
from storage.format.batch import FLAG_CONTROL, Batch
from storage.format.checksum import crc32c

SEGMENT_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
OFFSET_DIGITS: Final = 20
ENTRY_SIZE_BYTES: Final = 64

INDEX_DTYPE: Final = np.dtype(
    [
        ("base_index", "<i8"),
        ("offset", "<i8"),
        ("term", "<i8"),
        ("timestamp_ms", "<i8"),
        ("max_timestamp_us", "<i8"),
        ("peak_timestamp_us", "<i8"),
        ("count", "<u4"),
        ("size", "<u4"),
        ("flags", "<u4"),
        ("crc", "<u4"),
    ]
)
_ENTRY = struct.Struct("<qqqqqqIIII")
_FIELDS = struct.Struct("<qqqqqqIII")
_CRC = struct.Struct("<I")
_NO_PEAK = -(1 << 63)


def segment_name(offset: int) -> str:
    """Return the file name of the segment whose first batch is at `offset`."""
    return f"{offset:0{OFFSET_DIGITS}d}{SEGMENT_SUFFIX}"


def index_name(offset: int) -> str:
    """Return the file name of that segment's index."""
    return f"{offset:0{OFFSET_DIGITS}d}{INDEX_SUFFIX}"


def segment_offset(name: str) -> int | None:
    """Return the first offset of the segment with this file name, None for any other file."""
    return _offset(name, SEGMENT_SUFFIX)


def index_offset(name: str) -> int | None:
    """Return the first offset of the segment whose index has this file name, None for any other file."""
    return _offset(name, INDEX_SUFFIX)


def _offset(name: str, suffix: str) -> int | None:
    digits = name.removesuffix(suffix)
    if digits == name or len(digits) != OFFSET_DIGITS or not digits.isdecimal() or not digits.isascii():
        return None
    return int(digits)


def is_index_size(size_bytes: int) -> bool:
    """Return whether the index file of a segment with batches may have this size."""
    return size_bytes > 0 and size_bytes % ENTRY_SIZE_BYTES == 0


class IndexEntry(NamedTuple):
    """Place and content of one batch; units as in the table above."""

    base_index: int
    offset: int
    term: int
    timestamp_ms: int
    max_timestamp_us: int
    peak_timestamp_us: int
    record_count: int
    size: int
    flags: int
    crc: int

    @property
    def last_index(self) -> int:
        return self.base_index + self.record_count - 1

    @property
    def next_offset(self) -> int:
        return self.offset + self.size

    @property
    def is_control(self) -> bool:
        return bool(self.flags & FLAG_CONTROL)


class DamagedIndex(Exception):
    """An entry fails its checksum or contradicts its neighbours: rebuild the index from the segment."""


class SegmentIndex:
    """The entries of one segment, in memory or over a mapped file. Rows count from 0.

    The checksum of an entry is verified before use. Searches depend on the order of the columns, which
    `check_order` verifies as a whole.
    """

    __slots__ = ("_buffer", "_columns", "_peak", "count")

    def __init__(self, data: Bytes = b"") -> None:
        """data: entries as on disk; copied only when entries are added, which requires a `cut` before."""
        self.count = len(data) // ENTRY_SIZE_BYTES
        self._use(data if self.count else bytearray(16 * ENTRY_SIZE_BYTES))
        self._peak = _NO_PEAK

    def _use(self, buffer: Bytes) -> None:
        self._buffer = buffer
        whole = len(buffer) - len(buffer) % ENTRY_SIZE_BYTES
        self._columns: np.ndarray[Any, Any] = np.frombuffer(buffer, INDEX_DTYPE, whole // ENTRY_SIZE_BYTES)

    def append(self, batch: Batch) -> None:
        """Add the entry of the next batch."""
        header = batch.header
        at = self.count * ENTRY_SIZE_BYTES
        if not isinstance(self._buffer, bytearray) or at == len(self._buffer):
            grown = bytearray(max(16 * ENTRY_SIZE_BYTES, 2 * at))
            grown[:at] = self._buffer[:at]
            self._use(grown)
        if header.max_timestamp_us > self._peak:
            self._peak = header.max_timestamp_us
        fields = _FIELDS.pack(
            header.base_index,
            header.offset,
            header.term,
            header.timestamp_ms,
            header.max_timestamp_us,
            self._peak,
            header.count,
            header.size,
            header.flags,
        )
        self._buffer[at : at + ENTRY_SIZE_BYTES] = fields + _CRC.pack(crc32c(fields))  # type: ignore[index]
        self.count += 1

    def truncate(self, count: int) -> None:
        """Forget all entries from row `count` on."""
        self.count = count
        self._peak = self.entry(count - 1).peak_timestamp_us if count else _NO_PEAK

    def entry(self, row: int) -> IndexEntry:
        """Return the entry of a row, 0 <= row < count. Raises DamagedIndex."""
        at = row * ENTRY_SIZE_BYTES
        entry = IndexEntry._make(_ENTRY.unpack_from(self._buffer, at))
        if crc32c(bytes(self._buffer[at : at + 60])) != entry.crc:
            raise DamagedIndex(f"entry {row}")
        return entry

    def encoded(self, first: int, end: int) -> bytes:
        """Return the entries of rows first..end-1 as stored on disk."""
        return bytes(self._buffer[first * ENTRY_SIZE_BYTES : end * ENTRY_SIZE_BYTES])

    def matches(self, own: "SegmentIndex") -> bool:
        """Return whether these entries equal those of `own`, except for the running maximum, and are
        complete."""
        mine, its = self._columns[: self.count], own._columns[: own.count]
        names = [name for name in INDEX_DTYPE.names or () if name not in ("peak_timestamp_us", "crc")]
        if self.count != own.count or not all(np.array_equal(mine[name], its[name]) for name in names):
            return False
        try:
            for row in range(self.count):
                self.entry(row)
        except DamagedIndex:
            return False
        return True

    def begin_at(self, offset: int) -> int:
        """Forget the entries before `offset`, which were trimmed; return how many. Raises DamagedIndex."""
        offsets = self._columns["offset"][: self.count]
        skipped = int(offsets.searchsorted(offset, "left"))
        if skipped < self.count and self.entry(skipped).offset != offset:
            raise DamagedIndex("has no such beginning")
        if skipped:
            rest = self._buffer[skipped * ENTRY_SIZE_BYTES : self.count * ENTRY_SIZE_BYTES]
            self.count -= skipped
            self._use(rest if self.count else bytearray(16 * ENTRY_SIZE_BYTES))
        return skipped

    def check_order(self, start_offset: int, end_offset: int) -> None:
        """Raise DamagedIndex unless the entries cover start_offset to end_offset without gaps, in order."""
        if self.count == 0 and start_offset == end_offset:
            return
        rows = self._columns[: self.count]
        ends = rows["offset"] + rows["size"]
        if self.count == 0 or rows["offset"][0] != start_offset or ends[-1] != end_offset:
            raise DamagedIndex("does not cover the segment")
        if not (
            np.array_equal(ends[:-1], rows["offset"][1:])
            and np.array_equal(rows["base_index"][:-1] + rows["count"][:-1], rows["base_index"][1:])
            and bool(np.all(rows["term"][:-1] <= rows["term"][1:]))
            and bool(np.all(rows["peak_timestamp_us"][:-1] <= rows["peak_timestamp_us"][1:]))
        ):
            raise DamagedIndex("entries out of order")

    def row_of_index(self, index: int) -> int:
        """Return the last row whose base index is at most `index`; -1 for none."""
        return int(self._columns["base_index"][: self.count].searchsorted(index, "right")) - 1

    def rows_until(self, end_offset: int) -> int:
        """Return the number of rows up to the one that ends at `end_offset`. Raises DamagedIndex.

        Bytes after them are ignored: entries that were written but never became durable.
        """
        rows = self._columns[: self.count]
        found = np.flatnonzero(rows["offset"] + rows["size"] == end_offset)
        if not len(found):
            raise DamagedIndex("has no such end")
        return int(found[0]) + 1

    def last_row_of_term_at_most(self, term: int) -> int:
        """Return the last row whose term is at most `term`; -1 for none."""
        return int(self._columns["term"][: self.count].searchsorted(term, "right")) - 1

    def row_at_or_after(self, timestamp_us: int, first: int = 0) -> int:
        """Return the row of data from `first` on that holds a record at or after the time; count for none."""
        row = int(self._columns["peak_timestamp_us"][: self.count].searchsorted(timestamp_us, "left"))
        row = max(row, first)
        if row == self.count or self._is_late_data(row, timestamp_us):
            return row
        # The peak may belong to a batch before `first`, to a trimmed batch or to a control record.
        rest = self._columns[row : self.count]
        later = (rest["max_timestamp_us"] >= timestamp_us) & (rest["flags"] & FLAG_CONTROL == 0)
        return row + int(later.argmax()) if later.any() else self.count

    def _is_late_data(self, row: int, timestamp_us: int) -> bool:
        entry = self._columns[row]
        return bool(entry["max_timestamp_us"] >= timestamp_us and not entry["flags"] & FLAG_CONTROL)

    def row_within(self, first: int, max_bytes: int) -> int:
        """Return the end (exclusive) of the rows from `first` that fit into `max_bytes`, at least one."""
        offsets = self._columns["offset"][: self.count]
        limit = int(offsets[first]) + max_bytes
        if offsets[-1] + self._columns["size"][self.count - 1] <= limit:
            return self.count
        return max(first + 1, int(offsets.searchsorted(limit, "right")) - 1)

    def control_rows(self) -> list[int]:
        """Return the rows of control batches, in order."""
        rows: list[int] = np.flatnonzero(self._columns["flags"][: self.count] & FLAG_CONTROL).tolist()
        return rows
