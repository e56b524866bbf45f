"""Reader of a log's files on this machine: the same records as over HTTP, without a copy.

The files belong to a running node: they are opened for reading, and only complete batches are used. A replica
reports the batch that ends the committed range. A batch with an equal header ends the same history, since the
header contains a digest of everything before it (storage/format/batch.py). Committed bytes are never
truncated, so only they are mapped; everything else is copied first.
"""

import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa

from storage.errors import PartialBatch, StorageError
from storage.file_system import File, FileSystem
from storage.format.batch import Batch, decode_batch, follows_chain
from storage.format.records import READ_SCHEMA, read_columns, runs
from storage.format.segment_format import DamagedIndex, SegmentIndex, index_name, segment_name, segment_offset
from storage.log.scan import Scan
from storage.units import KIB, MIB

LOOK_BYTES = 64 * KIB  # read at first for a single batch
PAGE_BYTES = 4 * MIB  # of stored batches in one table
WINDOW_BYTES = 64 * MIB  # loaded from the disk at once; larger than any batch


class NotHere(Exception):
    """These files do not hold the range, or not as the replicas have it: read it over HTTP. States the
    reason."""


class LocalLog:
    """Files of one log in a node's data folder. log_id: the log of every batch."""

    def __init__(self, files: FileSystem, data_folder: str, log: str, log_id: int) -> None:
        self._files = files
        self._folder = f"{data_folder.rstrip('/')}/logs/{log}"
        self._log_id = log_id

    def read(self, first: int, last: Batch) -> Iterator[pa.Table]:
        """Yield all records from `first` to the end of `last`, a committed batch, as tables of READ_SCHEMA.

        Nothing is returned before `last` was found here. Raises NotHere, at any time: what was returned
        before is right.
        """
        try:
            offset = self._find(first).offset
            if self._find(last.base_index, offset) != last:
                raise NotHere(f"{self._folder} holds another batch at index {last.base_index}")
            yield from self._tables(offset, first, last)
        except (StorageError, ValueError) as error:
            raise NotHere(f"{self._folder}: {error}") from error

    def _tables(self, offset: int, first: int, last: Batch) -> Iterator[pa.Table]:
        """Yield the mapped batches from `offset` to `last`, PAGE_BYTES at once."""
        page: list[pa.RecordBatch] = []
        size = 0
        for run in runs(self._joined(offset, last)):
            page.append(read_columns(*run).slice(max(0, first - run[0].base_index)))
            size += sum(batch.size_bytes for batch in run)
            if size >= PAGE_BYTES:
                yield pa.Table.from_batches(page, READ_SCHEMA)
                page, size = [], 0
        if page:
            yield pa.Table.from_batches(page, READ_SCHEMA)

    def _joined(self, offset: int, last: Batch) -> Iterator[Batch]:
        """Yield the mapped batches from `offset` to `last`, each of which follows the one before. Raises
        NotHere."""
        before: Batch | None = None
        for batch in self._mapped(offset, last.next_offset):
            if before is not None and not follows_chain(batch, before.header.chain):
                raise NotHere(f"{self._folder}: another history from index {batch.base_index} on")
            before = batch
            yield batch
        if before != last:
            raise NotHere(f"{self._folder}: another history before index {last.base_index}")

    def _mapped(self, offset: int, until_offset: int) -> Iterator[Batch]:
        """Yield the batches from one place in the log to another, views of the files."""
        starts = [*self._segments(), sys.maxsize]
        while offset < until_offset:
            at = bisect_right(starts, offset) - 1
            base, end = starts[at], min(starts[at + 1], until_offset)
            with closing(self._open(base)) as file:
                while offset < end:
                    yield from (found := self._window(file, base, offset, end))
                    offset = found[-1].next_offset

    def _window(self, file: File, base: int, offset: int, end: int) -> list[Batch]:
        """Return the complete batches of the next WINDOW_BYTES, at least one, views of the file."""
        rest = file.view(offset - base, min(WINDOW_BYTES, end - offset))
        found: list[Batch] = []
        while len(rest):
            try:
                batch = decode_batch(rest, log_id=self._log_id)
            except PartialBatch:
                break
            if batch.offset != offset:
                raise NotHere(f"{self._folder}: a batch of another place at {offset}")
            found.append(batch)
            rest = rest[batch.size_bytes :]
            offset = batch.next_offset
        if not found:
            raise NotHere(f"{self._folder}: no whole batch at {offset}")
        return found

    def _find(self, index: int, known_offset: int = 0) -> Batch:
        """Return the batch that holds an index, a copy. known_offset: of a batch not after it. Raises
        NotHere."""
        starts = self._segments()
        at = bisect_right(starts, index, key=self._base_index) - 1
        if at < 0:
            raise NotHere(f"{self._folder} begins after index {index}")
        base = starts[at]
        with closing(self._open(base)) as file:
            hint = max(known_offset, self._hint(file, base, index))
            scan = Scan(f"{self._folder}/{segment_name(base)}", file, base, self._log_id, hint)
            while (batch := scan.next_batch()) is not None:
                if batch.base_index <= index <= batch.last_index:
                    return batch
        raise NotHere(f"{self._folder} ends before index {index}: {scan.stopped_by}")

    def _hint(self, file: File, base: int, index: int) -> int:
        """Return the offset of a batch at or before an index: the index file may lag, or be damaged."""
        try:
            rows = SegmentIndex(self._files.read(f"{self._folder}/{index_name(base)}"))
            row = rows.row_of_index(index)
            entry = rows.entry(row) if row >= 0 else None
            if entry is None or entry.base_index > index:
                return base
            batch = self._copy(file, entry.offset - base)
        except (StorageError, DamagedIndex, ValueError):
            return base
        return entry.offset if batch.base_index == entry.base_index else base

    def _base_index(self, base: int) -> int:
        file = self._open(base)
        try:
            return self._copy(file, 0).base_index
        except PartialBatch:
            return sys.maxsize  # the node has created the file, and not written yet
        finally:
            file.close()

    def _copy(self, file: File, position: int) -> Batch:
        """Return the batch at a position of a segment. Raises CorruptBatch."""
        size = LOOK_BYTES
        while True:
            block = file.read(position, size)
            try:
                return decode_batch(block, log_id=self._log_id)
            except PartialBatch:
                if len(block) < size:
                    raise
                size *= 4

    def _segments(self) -> list[int]:
        """Return the begins of the segments, as offsets in the log, in order."""
        found = (segment_offset(name) for name in self._files.list(self._folder))
        return sorted(offset for offset in found if offset is not None)

    def _open(self, base: int) -> File:
        return self._files.open(f"{self._folder}/{segment_name(base)}")
