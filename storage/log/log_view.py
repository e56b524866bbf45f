"""Read half of a log (storage/log/commitlog.py): its position, and the batches it holds.

Settled batches are read as views of the mapped file, the newest from memory. Both checksums of every batch
that is read from a file are verified.
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Final

from storage.format.batch import FIRST_CHAIN, Batch
from storage.format.epoch_file import Epoch
from storage.format.records import READ_SCHEMA, read_columns
from storage.format.segment_format import ENTRY_SIZE_BYTES, IndexEntry
from storage.log.recovery import Recovered
from storage.log.segment import Segment, StoredBatches
from storage.log.tail import BatchTail
from storage.units import NO_INDEX

OPEN_SEGMENTS: Final = 2  # sealed ones whose files stay open; each needs three descriptors
_TIMESTAMP: Final = READ_SCHEMA.get_field_index("timestamp")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of the log within one segment: first_index to last_index, offset to end_offset (exclusive).

    truncation_count: of the log at the time of the call; settled batches are never truncated, but may be
    trimmed or reset.
    """

    segment: Segment
    first_index: int
    last_index: int
    offset: int
    end_offset: int
    truncation_count: int
    index_position: int | None  # of its first entry in the index file, None: not written yet


class LogView:
    """Read interface of a log for the thread that owns it. Indexes are inclusive; NO_INDEX: none.

    next_index: end_index + 1; of an empty log 0, or the base of the last reset. end_offset: exclusive.
    last_term: of the last record, 0 of an empty log. Only the log itself sets them, and durable_index.
    """

    def __init__(self, folder: str, log_id: int, tail_cache_bytes: int, recovered: Recovered) -> None:
        self._folder = folder
        self._log_id = log_id
        self._disk = recovered.folder
        self._base_index = recovered.manifest.base_index  # of the first batch held, or of the next one
        self._base_offset = recovered.manifest.base_offset
        self._base_term = recovered.manifest.base_term
        self._segments = recovered.segments
        self._open: list[Segment] = []  # sealed ones, the last read at the end
        self._epochs = recovered.epochs
        self._end_with(recovered.last_batch)
        self.durable_index = self.end_index
        self._settled_index = NO_INDEX
        self._tail = BatchTail(tail_cache_bytes)

    # --- begin and end

    def _end_with(self, last: Batch | None) -> None:
        """Move the end to that of `last`; None: the log is empty. Each step of an append reads it."""
        self._last = last
        self.end_index = NO_INDEX if last is None else last.last_index
        self.next_index = self._base_index if last is None else last.next_index
        self.end_offset = self._base_offset if last is None else last.next_offset
        self.last_term = 0 if last is None else last.term

    @property
    def begin_index(self) -> int:
        return NO_INDEX if self._last is None else self._base_index

    @property
    def settled_index(self) -> int:
        """Last index that is known never to be truncated (`Commitlog.settle`); NO_INDEX: none."""
        return self._settled_index

    @property
    def first_index(self) -> int:
        """begin_index; of an empty log next_index. Records before it were never here, trimmed or reset."""
        return self._base_index

    @property
    def folder(self) -> str:
        return self._folder

    @property
    def log_id(self) -> int:
        return self._log_id

    @property
    def truncation_count(self) -> int:
        """Number of truncations and resets since the log was opened."""
        return self._disk.truncation_count

    @property
    def begin_offset(self) -> int:
        return self._base_offset

    @property
    def last_position(self) -> tuple[int, int]:
        """Term and index of the last record; of an empty log those of its beginning: everything before it was
        committed, and the record at the beginning has that term."""
        if self._last is None:
            return self._base_term, self._base_index - 1
        return self._last.term, self._last.last_index

    @property
    def last_chain(self) -> bytes:
        """Chain that the next batch continues."""
        return FIRST_CHAIN if self._last is None else self._last.header.chain

    @property
    def last_segment_index(self) -> int:
        """Index of the newest segment's first record: where a replica without data may begin (A-09, H-06)."""
        return NO_INDEX if self._last is None else self._segments[-1].base_index

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return self._epochs

    @property
    def knows_begin_epoch(self) -> bool:
        """False after a reset to a beginning within an epoch, until `Commitlog.adopt_begin_epoch`."""
        if self._last is None or self._base_offset == 0:
            return True
        return bool(self._epochs) and self._epochs[0].start_offset <= self._base_offset

    # --- reading

    def term_at(self, index: int) -> int:
        """Return the term of the record at `index`; of NO_INDEX 0. Raises IndexError when it is not held."""
        if index == NO_INDEX:
            return 0
        last = self._last
        if last is not None and last.base_index <= index <= last.last_index:
            return last.term
        self._check_range(index)
        if self._tail.reaches(index):
            return self._tail.batch_at(index).term
        return self._entry(index).term

    def last_index_of_term_at_most(self, term: int) -> int:
        """Return the last index whose term is at most `term`, NO_INDEX for none (D-13)."""
        if self.last_term <= term:
            return self.end_index
        for segment in reversed(self._segments):
            if segment.ends[0].term > term:
                continue
            self._note_read(segment)
            segment.verify_order()
            row = segment.index.last_row_of_term_at_most(term)
            if row >= 0:
                return segment.entry(row).last_index
        return NO_INDEX

    def floor_batch_end(self, index: int) -> int:
        """Return the largest last index of a batch that is at most `index`, NO_INDEX for none."""
        if index >= self.end_index:
            return self.end_index
        if index < self.begin_index:
            return NO_INDEX
        entry = self._entry(index)
        if entry.last_index == index:
            return index
        return entry.base_index - 1 if entry.base_index > self.begin_index else NO_INDEX

    def stretch(self, from_index: int, max_bytes: int, until_index: int | None = None) -> Stretch | None:
        """Return the place of settled and durable batches, from the one that holds `from_index`.

        They are in one segment: at least one batch, otherwise within `max_bytes` and `until_index`; None if
        there are none. Raises CorruptLog, DiskError.
        """
        end_index = min(self._settled_index, self.durable_index)
        if until_index is not None:
            end_index = min(end_index, until_index)
        from_index = max(from_index, self.begin_index)
        if self._last is None or from_index > end_index:
            return None
        segment = self._segment_of(from_index)
        row, first = segment.entry_of(from_index)
        end = min(segment.index.row_within(row, max_bytes), segment.index.row_of_index(end_index) + 1)
        last = segment.entry(max(end, row + 1) - 1)
        return Stretch(
            segment,
            first.base_index,
            last.last_index,
            first.offset,
            last.next_offset,
            self._disk.truncation_count,
            (segment.skipped + row) * ENTRY_SIZE_BYTES if segment.mapped else None,
        )

    def holds(self, batch: Batch) -> bool:
        """Return whether this very batch is in the log (D-17)."""
        if not self.begin_index <= batch.base_index <= self.end_index:
            return False
        return self.batch_at(batch.base_index) == batch

    def batch_at(self, index: int) -> Batch:
        """Return the batch that holds `index`. Raises IndexError when it is not held, CorruptLog."""
        return self.read_batches(index, 0)[0]

    def read_batches(self, from_index: int, max_bytes: int, until_index: int | None = None) -> list[Batch]:
        """Return whole batches from the one that holds `from_index`: at least one, otherwise within
        `max_bytes`.

        until_index: stop after the batch that holds it. Settled batches are verified views of the file; the
        newest are those that were appended. Raises IndexError for an index not held, CorruptLog, DiskError.
        """
        self._check_range(from_index)
        if self._tail.reaches(from_index):
            return self._tail.read(from_index, max_bytes, until_index)
        segment, row, end = self._rows(from_index, max_bytes, until_index)
        mapped = segment.entry(end - 1).last_index <= self._settled_index
        return segment.read_rows(row, end, mapped=mapped)

    def stored_batches(self, from_index: int, max_bytes: int, until_index: int) -> StoredBatches | None:
        """Return the place of the batches that `read_batches` would return, as far as they are settled; None
        if they are in memory or not settled.

        Reading them may take long, and may be done in any thread, also if they are trimmed meanwhile. Raises
        IndexError for an index not held, CorruptLog, DiskError.
        """
        self._check_range(from_index)
        if self._tail.reaches(from_index):
            return None
        segment, row, end = self._rows(from_index, max_bytes, min(until_index, self._settled_index))
        if segment.entry(end - 1).last_index > self._settled_index:
            end -= 1
        return None if end == row else segment.stored_rows(row, end, mapped=True)

    def entries(self, from_index: int, until_index: int) -> list[IndexEntry]:
        """Return the entries of the batches that hold these indexes, which must be held. Reads no batch.

        Raises IndexError, CorruptLog, DiskError.
        """
        self._check_range(from_index)
        self._check_range(until_index)
        found = list[IndexEntry]()
        while not found or found[-1].last_index < until_index:
            at = found[-1].last_index + 1 if found else from_index
            segment = self._segment_of(at)
            row, _ = segment.entry_of(at)
            end = segment.index.row_of_index(until_index) + 1
            found += [segment.entry(each) for each in range(row, end)]
        return found

    def _rows(self, from_index: int, max_bytes: int, until_index: int | None) -> tuple[Segment, int, int]:
        """Return a segment and the rows of its batches that `read_batches` returns, the end exclusive."""
        segment = self._segment_of(from_index)
        row, _ = segment.entry_of(from_index)
        end = segment.index.row_within(row, max_bytes)
        if until_index is not None:
            end = min(end, max(row, segment.index.row_of_index(until_index)) + 1)
        return segment, row, end

    def first_index_at_or_after(self, timestamp_ms: int, from_index: int = 0) -> int | None:
        """Return the first index of a data record at or after the time, None when there is none.

        from_index: records before it do not count. Control records are skipped: they carry the leader's time,
        while data records may carry any.
        """
        timestamp_us = timestamp_ms * 1000
        for segment in self._segments:
            last = segment.ends[1]
            if last.last_index < from_index or last.peak_timestamp_us < timestamp_us:
                continue
            self._note_read(segment)
            segment.verify_order()
            row = max(0, segment.index.row_of_index(from_index))
            while (row := segment.index.row_at_or_after(timestamp_us, row)) < segment.index.count:
                batch = segment.batch_of_row(row)
                skipped = max(0, from_index - batch.base_index)
                times = read_columns(batch).column(_TIMESTAMP).view("int64").to_numpy()[skipped:]
                late = times >= timestamp_us
                if late.any():
                    return batch.base_index + skipped + int(late.argmax())
                row += 1  # the record at or after the time is before from_index
        return None

    def _check_range(self, index: int) -> None:
        if self._last is None or not self.begin_index <= index <= self.end_index:
            raise IndexError(f"index {index} is not in [{self.begin_index}, {self.end_index}]")

    def _segment_of(self, index: int) -> Segment:
        segments = self._segments
        if len(segments) == 1:
            return segments[0]
        segment = segments[bisect_right(segments, index, key=lambda segment: segment.base_index) - 1]
        self._note_read(segment)
        return segment

    def _note_read(self, segment: Segment) -> None:
        """Keep the files of a segment open; close those of the sealed one that was not read for longest."""
        if segment.mapped and not (self._open and self._open[-1] is segment):
            self._open = [*(each for each in self._open if each is not segment), segment]
            while len(self._open) > OPEN_SEGMENTS:
                self._open.pop(0).release()

    def _keep(self, segments: list[Segment]) -> None:
        """Make these the segments of the log."""
        self._segments = segments
        self._open = [each for each in self._open if each in segments]

    def _entry(self, index: int) -> IndexEntry:
        return self._segment_of(index).entry_of(index)[1]
