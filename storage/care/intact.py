"""Intact batches of a damaged, closed log: what other replicas can repair their logs with (see survey.py)."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from storage.errors import DiskError
from storage.file_system import FileSystem
from storage.format.batch import Batch
from storage.format.segment_format import DamagedIndex, SegmentIndex, index_name, segment_name
from storage.log.log_folder import segment_offsets
from storage.log.scan import Scan

_AFTER_ALL: Final = 1 << 62


def intact_batches(
    files: FileSystem, folder: str, log_id: int, first_index: int, last_index: int, max_bytes: int
) -> tuple[Batch, ...]:
    """Return consecutive batches from the one that begins at `first_index`, at most about max_bytes; none if
    that one is not intact. Each ends at or before `last_index`. Raises DiskError."""
    offsets = segment_offsets(files, folder)
    places = range(len(offsets))
    place = bisect_right(
        places, first_index, key=lambda each: _first_index(files, folder, log_id, offsets[each:])
    )
    found: list[Batch] = []
    size, next_index = 0, first_index
    for offset in offsets[max(0, place - 1) :]:
        path = f"{folder}/{segment_name(offset)}"
        with closing(files.open(path)) as file:
            at = _place_of(files, folder, offset, next_index)
            scan = Scan(path, file, offset, log_id, at, patient=True)
            while not scan.exhausted and size < max_bytes:
                batch = scan.next_batch()
                if batch is None and (found or not scan.skip()):
                    return tuple(found)
                if batch is None or batch.last_index < next_index:
                    continue
                if batch.base_index != next_index or batch.last_index > last_index:
                    return tuple(found)
                found.append(batch)
                size, next_index = size + batch.size_bytes, batch.next_index
        if size >= max_bytes:
            break
    return tuple(found)


def _first_index(files: FileSystem, folder: str, log_id: int, offsets: Sequence[int]) -> int:
    """Return the index of the first intact batch in the segments at these offsets, in order."""
    for offset in offsets:
        path = f"{folder}/{segment_name(offset)}"
        with closing(files.open(path)) as file:
            scan = Scan(path, file, offset, log_id, offset, patient=True)
            while not scan.exhausted:
                batch = scan.next_batch()
                if batch is not None:
                    return batch.base_index
                scan.skip()
    return _AFTER_ALL


def _place_of(files: FileSystem, folder: str, offset: int, index: int) -> int:
    """Return the offset of the batch that begins at `index`, by the index file of its segment; the beginning
    of the segment if that file does not name it."""
    try:
        rows = SegmentIndex(files.read(f"{folder}/{index_name(offset)}"))
        row = rows.row_of_index(index)
        if row >= 0 and (entry := rows.entry(row)).base_index == index and entry.offset >= offset:
            return entry.offset
    except (DiskError, DamagedIndex):
        pass
    return offset
