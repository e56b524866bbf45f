"""One segment of a log and its index file (all I/O through storage/file_system.py)."""

import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from storage.errors import CorruptBatch, CorruptLog, InvariantError, NewerBatch, NewerFormat, StorageFull
from storage.file_system import Bytes, File, FileSystem, write_durably
from storage.format.batch import Batch, decode_batch
from storage.format.segment_format import (
    ENTRY_SIZE_BYTES,
    DamagedIndex,
    IndexEntry,
    SegmentIndex,
    index_name,
    is_index_size,
    segment_name,
)
from storage.log.scan import Scan

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class IndexWrite:
    """Entries that are missing in an index file; `write` in any thread."""

    files: FileSystem
    path: str
    position: int
    data: bytes
    end_offset: int  # log offset after the last of these batches

    def write(self) -> None:
        """Write and sync them, and end the file there; a new name is durable after the folder's sync."""
        with closing(self.files.open(self.path, create=True)) as file:
            file.pwrite(self.data, self.position)
            file.truncate(self.position + len(self.data))
            file.sync()


@dataclass(frozen=True, slots=True)
class StoredBatches:
    """The place of consecutive batches in the file of a segment.

    offset: of the first one in the log. size_bytes: of all. load: reads their bytes.
    """

    path: str
    log_id: int
    base_index: int
    offset: int
    size_bytes: int
    load: Callable[[], Bytes]

    def read(self) -> list[Batch]:
        """Read and verify them; of a mapped file in any thread. Raises CorruptLog for damage, NewerFormat,
        DiskError."""
        rest = memoryview(self.load())
        index, offset, stop = self.base_index, self.offset, self.offset + self.size_bytes
        batches = []
        while offset < stop:
            try:
                batch = decode_batch(rest, log_id=self.log_id)
            except CorruptBatch as error:
                if isinstance(error, NewerBatch) and error.place == (self.log_id, offset):
                    raise NewerFormat(self.path, f"log offset {offset}: {error.reason}") from error
                raise CorruptLog(self.path, offset, error.reason) from error
            if batch.offset != offset or batch.base_index != index:
                raise CorruptLog(self.path, offset, "a batch of another place")
            batches.append(batch)
            rest = rest[batch.size_bytes :]
            offset, index = batch.next_offset, batch.next_index
        return batches


def _row_and_entry(index: int, rows: SegmentIndex) -> tuple[int, IndexEntry]:
    """Return row and entry of the batch that holds `index`. Raises DamagedIndex if none does."""
    row = rows.row_of_index(index)
    entry = rows.entry(row)
    if not entry.base_index <= index <= entry.last_index:
        raise DamagedIndex("has no such index")
    return row, entry


class Segment:
    """A file of whole batches. Positions are log offsets; `end_offset` is exclusive.

    start_offset: beginning of its batches; after base_offset, the beginning of the file, when batches between
    the two were trimmed. Trimmed batches are never read, and their entries (`skipped`) stay only in the index
    file. `dirty`: written since the last sync. `flushed`: number of entries that the index file holds.
    `mapped`: all batches are durable, and the index is read from the file's bytes at its first use, so
    start-up opens no sealed segment; `release` closes it again.
    """

    def __init__(
        self, files: FileSystem, folder: str, base_offset: int, log_id: int, start_offset: int = 0
    ) -> None:
        self._files = files
        self._log_id = log_id
        self.base_offset = base_offset
        self.start_offset = max(base_offset, start_offset)
        self.end_offset = self.start_offset
        self.path = f"{folder}/{segment_name(base_offset)}"
        self.index_path = f"{folder}/{index_name(base_offset)}"
        self.mapped = False
        self.ordered = True  # the order of the index was verified, or the index was built here
        self.dirty = False
        self.flushed = 0
        self.skipped = 0
        self._index: SegmentIndex | None = SegmentIndex()
        self._ends: tuple[IndexEntry, IndexEntry] | None = None  # while mapped, also without its files
        self._file: File | None = None
        self._use = threading.RLock()  # `truncate`, in the disk thread, against reads and `release`
        self._index_file = threading.Lock()  # a scrub may replace it while a reader's damaged one is rebuilt

    @property
    def file(self) -> File:
        file = self._file
        if file is None:
            file = self._file = self._files.open(self.path)
        return file

    @property
    def index(self) -> SegmentIndex:
        """Index of the segment. Raises DiskError, CorruptLog if a rebuild finds the segment damaged."""
        index = self._index  # `release` may be called in another thread
        return self._map_index() if index is None else index

    @property
    def ends(self) -> tuple[IndexEntry, IndexEntry]:
        """First and last entry, which exist. Leaves closed files closed. Raises CorruptLog, DiskError."""
        if not self.mapped:
            return self.entry(0), self.entry(self.index.count - 1)
        if self._ends is None:
            was_open = self._index is not None
            self._ends = self.entry(0), self.entry(self.index.count - 1)
            if not was_open:
                self.release()
        return self._ends

    @property
    def base_index(self) -> int:
        return self.ends[0].base_index

    def create(self) -> None:
        """Create the empty file; its name is durable after the next sync of the folder."""
        self._file = self._files.open(self.path, create=True)

    def write(self, batches: Sequence[Batch]) -> None:
        """Write whole batches at the end, not synced. Raises DiskError; then the end is as before. Raises
        InvariantError for a sealed segment: a sync would not reach the batches."""
        if self.mapped:
            raise InvariantError(f"{self.path} is sealed")
        self.dirty = True
        self.file.pwrite([batch.data for batch in batches], self.end_offset - self.base_offset)
        for batch in batches:
            self.index.append(batch)
        self.end_offset = batches[-1].next_offset

    def truncate(self, end_offset: int) -> None:
        """Forget, in memory, everything from `end_offset` on, a batch boundary after the base.

        The segment may be written again: it is not mapped any more. Raises CorruptLog, DiskError.
        """
        with self._use:
            rows = self._from_index(lambda index: index.rows_until(end_offset))
            if self.mapped:  # not the file's bytes any more: the file will be written
                self._index, self.mapped = SegmentIndex(self.index.encoded(0, rows)), False
            self.index.truncate(rows)
            self.restart_flush()  # a flush may have been in progress
            self.end_offset = end_offset

    def restart_flush(self) -> None:
        """Make the next flush write the whole index file."""
        self.flushed = self.skipped = 0

    def begin_at(self, start_offset: int) -> None:
        """Forget, in memory, everything before `start_offset`, a batch boundary."""
        dropped = self._from_index(lambda index: index.begin_at(start_offset))
        self.start_offset, self._ends = start_offset, None
        if dropped <= self.flushed:
            self.skipped, self.flushed = self.skipped + dropped, self.flushed - dropped
        else:
            self.restart_flush()

    def sync(self) -> None:
        """Make written bytes durable; no effect if the segment was closed, because it left the log."""
        file = self._file
        if file is not None:
            file.sync()

    def take_unflushed(self) -> IndexWrite | None:
        """Return the entries that the index file lacks, and count them as written; None if it lacks none."""
        first, self.flushed = self.flushed, self.index.count
        if first == self.index.count:
            return None
        data = self.index.encoded(first, self.index.count)
        return IndexWrite(
            self._files, self.index_path, (self.skipped + first) * ENTRY_SIZE_BYTES, data, self.end_offset
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- reading

    def entry_of(self, index: int) -> tuple[int, IndexEntry]:
        """Return row and entry of the batch that holds `index`, which must be in range. Raises CorruptLog."""
        return self._from_index(partial(_row_and_entry, index))

    def _from_index(self, read: Callable[[SegmentIndex], Found]) -> Found:
        """Return what is read from the index in its order; a damaged one is rebuilt. Raises CorruptLog."""
        self.verify_order()
        with suppress(DamagedIndex):  # since its order was verified
            return read(self.index)
        return read(self.rebuild_index())

    def entry(self, row: int) -> IndexEntry:
        """Return the entry of a row, which must exist. Raises CorruptLog."""
        try:
            return self.index.entry(row)
        except DamagedIndex:
            self.rebuild_index()
            return self.index.entry(row)

    def verify_order(self) -> None:
        """Verify the order of a mapped index, once; rebuild a wrong one. Raises CorruptLog."""
        if self.ordered:
            return
        with self._use:
            try:
                self.index.check_order(self.start_offset, self.end_offset)
                self.ordered = True
            except DamagedIndex:
                self.rebuild_index()

    def read_rows(self, first: int, end: int, *, mapped: bool) -> list[Batch]:
        """Return the batches of rows first..end-1, verified. mapped: views of the file, otherwise copies.

        Raises CorruptLog for damage, DiskError.
        """
        return self.stored_rows(first, end, mapped=mapped).read()

    def stored_rows(self, first: int, end: int, *, mapped: bool) -> StoredBatches:
        """Return the place of the batches of rows first..end-1. Raises CorruptLog, DiskError."""
        entry = self.entry(first)
        size = self.entry(end - 1).next_offset - entry.offset
        position = entry.offset - self.base_offset
        load: Callable[[], Bytes] = (
            self.file.later_view(position, size) if mapped else partial(self.file.read, position, size)
        )
        return StoredBatches(self.path, self._log_id, entry.base_index, entry.offset, size, load)

    def batch_of_row(self, row: int) -> Batch:
        return self.read_rows(row, row + 1, mapped=False)[0]

    def control_rows(self) -> list[int]:
        """Return the rows of control batches. Raises CorruptLog."""
        self.verify_order()
        return self.index.control_rows()

    # --- recovery

    def load_index(self, end_offset: int) -> None:
        """Take the entries up to `end_offset`, a batch boundary, from the index file, or rebuild them."""
        self.end_offset = end_offset
        try:
            index = SegmentIndex(self._index_bytes())
            index.truncate(index.rows_until(end_offset))
            self.skipped = index.begin_at(self.start_offset)
            index.check_order(self.start_offset, end_offset)
            self._index, self.ordered, self.flushed = index, True, index.count
        except DamagedIndex:
            self.rebuild_index()

    def seal(self, end_offset: int) -> None:
        """Use the index file from now on: all batches up to `end_offset`, the segment's end, are durable.

        The files are opened again by the next read: a log may have more segments than a process has
        descriptors.
        """
        self.end_offset, self._ends = end_offset, None
        self.mapped, self.ordered = True, False
        self.release()

    def release(self) -> None:
        """Close the files of a sealed segment until its next read: they are closed once no thread reads
        them."""
        with self._use:
            if self.mapped:
                self._index = self._file = None

    def _map_index(self) -> SegmentIndex:
        """Use the index file of a sealed segment if it exists; only its ends are read now."""
        with self._use:
            if self._index is not None:
                return self._index
            try:
                index = SegmentIndex(self._index_bytes(mapped=True))
                self.skipped = index.begin_at(self.start_offset)
                if index.count == 0 or index.entry(0).offset != self.start_offset:
                    raise DamagedIndex("does not begin with the segment")
                if index.entry(index.count - 1).next_offset != self.end_offset:
                    raise DamagedIndex("does not end with the segment")
                self._index, self.flushed = index, index.count
            except DamagedIndex:
                index = self.rebuild_index()
            return index

    def _index_bytes(self, *, mapped: bool = False) -> bytes | memoryview:
        """Return the index file. Raises DamagedIndex if it is missing or, mapped, does not have whole
        entries."""
        if not self._files.exists(self.index_path):
            raise DamagedIndex("missing")
        if not mapped:
            return self._files.read(self.index_path)
        with closing(self._files.open(self.index_path)) as file:
            size = file.size()
            if not is_index_size(size):
                raise DamagedIndex("size")
            return file.view(0, size)

    def rebuild_index(self) -> SegmentIndex:
        """Rebuild the index from the durable batches up to `end_offset`, and its file. Unless that is
        written, it stays in memory. Raises CorruptLog, DiskError."""
        with self._use:
            index, is_written = self.scanned_index(), False
            self.ordered = True
            self.flushed = self.skipped = 0
            try:
                self.write_index(index)
                self.flushed, is_written = index.count, True
            except StorageFull:
                pass  # written when the durable point moves; until then it is rebuilt at each start
            finally:
                self._index, self.mapped = index, self.mapped and is_written
            return index

    def scanned_index(self) -> SegmentIndex:
        """Return the entries of the batches in the file, in any thread: many take seconds. Raises CorruptLog,
        DiskError."""
        index, end_offset = SegmentIndex(), self.end_offset
        with closing(self._files.open(self.path)) as file:
            scan = Scan(self.path, file, self.base_offset, self._log_id, self.start_offset)
            while scan.offset < end_offset:
                batch = scan.next_batch()
                if batch is None:
                    raise CorruptLog(self.path, scan.offset, scan.stopped_by)
                index.append(batch)
        return index

    def write_index(self, index: SegmentIndex) -> None:
        """Replace the index file of a sealed segment, in the disk thread or the owner's; `seal` makes the
        owner use it. Raises DiskError."""
        with self._index_file:
            write_durably(self._files, self.index_path, index.encoded(0, index.count))

    def accept(self, batch: Batch) -> None:
        """Count a batch at the end of what was recovered so far."""
        self.index.append(batch)
        self.end_offset = batch.next_offset
