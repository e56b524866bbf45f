"""Survey: reads every batch of a closed log, reports the damage, and repairs what needs no replica.

    survey -> damages, each fetched from a replica -> patch (storage/care/patch.py) -> Commitlog.open
    survey -> a damage that all replicas have trimmed -> begin_with (storage/care/begin.py) -> survey
    survey -> a damage that was never committed -> end_before (storage/care/end.py) -> Commitlog.open
    survey -> structural, or a patch that was refused -> set_aside -> Commitlog.open: an empty log

After a damage, batches are found by their magic, log id and offset, which a checksum covers. Index and epoch
files that contradict the batches are removed; they are rebuilt when the log is opened.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from storage.errors import CorruptFile, CorruptLog, DiskError
from storage.file_system import FileSystem
from storage.format.batch import FIRST_CHAIN, Batch, follows_chain
from storage.format.segment_format import (
    SegmentIndex,
    index_name,
    segment_name,
    segment_offset,
)
from storage.log.log_folder import EPOCHS_NAME
from storage.log.manifest import Manifest
from storage.log.recovery import Recovery
from storage.log.scan import Scan

NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of batches that must be in the log and are missing or damaged, between intact neighbours.

    first_index, last_index: the records of these batches, inclusive. first_offset: the end of the neighbour
    before. next_offset: the beginning of the neighbour after; NO_OFFSET if there is none, that is, the log
    ends in this damage. previous_chain, previous_term: of the neighbour before; None and 0 if the damage is
    at the beginning of the log and the batch before it is unknown.
    """

    first_index: int
    last_index: int
    first_offset: int
    next_offset: int
    reason: str
    previous_chain: bytes | None
    previous_term: int


@dataclass(frozen=True, slots=True)
class Survey:
    """structural: the reason why the log cannot be patched, empty if it can. Files and folders that are not
    part of a log are left alone."""

    damages: tuple[Damage, ...] = ()
    structural: str = ""
    healed: tuple[str, ...] = ()  # repaired by the survey, for the operator


def survey(files: FileSystem, folder: str, log_id: int, committed_index: int = -1) -> Survey:
    """Read the whole closed log in `folder`; report the damage up to its durable point and `committed_index`.

    committed_index: of the checkpoint. Recovery judges what is after both. An unfinished truncation is
    completed first. Raises NewerFormat, DiskError when the disk refuses more than single blocks.
    """
    files.make_folders(folder)
    try:
        manifest = Recovery(files, folder, log_id, committed_index).prepare()
    except (CorruptLog, CorruptFile) as error:
        return Survey(structural=str(error))
    names = files.list(folder)
    sizes = files.sizes(folder)
    offsets = []
    for name in names:
        offset = segment_offset(name)
        if offset is not None:
            if name not in sizes:
                return Survey(structural=f"{folder}/{name} is not a file")
            offsets.append(offset)
    walk = _Walk(manifest, max(committed_index, manifest.durable_index))
    healed = []
    for place, offset in enumerate(offsets):
        end = offsets[place + 1] if place + 1 < len(offsets) else None
        index = _walk_segment(files, folder, log_id, offset, end, walk)
        trimmed = offset < manifest.base_offset
        if index is not None and _remove_wrong_index(
            files, folder, index_name(offset), index, trimmed=trimmed
        ):
            healed.append(index_name(offset))
        if end is not None and walk.at_offset == end < offset + sizes[segment_name(offset)]:
            end_segment(files, folder, offset, end)
            healed.append(segment_name(offset))
    walk.end()
    if files.exists(f"{folder}/{EPOCHS_NAME}"):
        files.remove(f"{folder}/{EPOCHS_NAME}")  # rebuilt from the log
        files.sync_folder(folder)
    return Survey(tuple(walk.damages), healed=tuple(healed))


@dataclass(slots=True)
class _Walk:
    """Follows the batches in the order of their offsets, and records the ranges that do not fit."""

    manifest: Manifest
    required_index: int
    damages: list[Damage] = field(default_factory=list)
    last: Batch | None = None
    previous: Batch | None = None  # the batch before it
    doubtful: bool = False  # the last batch follows a damage, and no batch has followed it yet
    reason: str = ""  # why the first missing byte is missing
    stopped: bool = False

    @property
    def at_offset(self) -> int:
        return self.manifest.base_offset if self.last is None else self.last.next_offset

    @property
    def at_index(self) -> int:
        return self.manifest.base_index if self.last is None else self.last.next_index

    def found(self, batch: Batch, reason: str) -> bool:
        """Take a valid batch. reason: the error before it. Return whether the batch belongs to the log."""
        if self.stopped or batch.offset < self.at_offset:
            return False
        if batch.offset == self.at_offset:
            if self._follows(batch):
                self.previous, self.last, self.doubtful = self.last, batch, False
                return True
            if self.at_index > self.required_index:
                self.stopped = True
            elif self.doubtful:  # found after a damage and now contradicted: it was an old block
                self.last = self.previous
                return self._found_after(batch, self.damages.pop())
            else:  # one of the two is an old block; which one is unknown
                self.last, self.reason = self.previous, "the hash chain is broken"
            return False
        if self.at_index > self.required_index:
            self.stopped = True  # a torn tail
            return False
        return self._found_after(batch, self._damage(batch.base_index - 1, batch.offset, reason))

    def _found_after(self, batch: Batch, damage: Damage) -> bool:
        if batch.base_index <= damage.first_index or batch.term < damage.previous_term:
            return False
        self.damages.append(
            Damage(
                damage.first_index,
                batch.base_index - 1,
                damage.first_offset,
                batch.offset,
                damage.reason,
                damage.previous_chain,
                damage.previous_term,
            )
        )
        self.previous, self.last, self.doubtful, self.reason = self.last, batch, True, ""
        return True

    def end(self) -> None:
        """End of the batches: required indexes after the last one are damage."""
        if self.at_index <= self.required_index:
            self.damages.append(self._damage(self.required_index, NO_OFFSET, "the log ends here"))

    def _follows(self, batch: Batch) -> bool:
        last = self.last
        if last is None:
            first = self.manifest.base_offset > 0 or follows_chain(batch, FIRST_CHAIN)
            return first and batch.base_index == self.manifest.base_index
        in_order = batch.base_index == last.next_index and batch.term >= last.term
        return in_order and follows_chain(batch, last.header.chain)

    def _damage(self, last_index: int, next_offset: int, reason: str) -> Damage:
        last = self.last
        chain = FIRST_CHAIN if self.manifest.base_offset == 0 else None
        return Damage(
            self.at_index,
            last_index,
            self.at_offset,
            next_offset,
            self.reason or reason,
            chain if last is None else last.header.chain,
            0 if last is None else last.term,
        )


def _walk_segment(
    files: FileSystem, folder: str, log_id: int, offset: int, end: int | None, walk: _Walk
) -> SegmentIndex | None:
    """Pass every batch of one segment to the walk. Return its index, None if the segment is not intact."""
    path = f"{folder}/{segment_name(offset)}"
    file = files.open(path)
    index = SegmentIndex()
    whole = True
    try:
        if (size := walk.manifest.durable_offset - offset) > 0:
            file.drop_cache(0, size)  # after a failed sync the cache may have what the disk lacks
        begin = max(offset, walk.manifest.base_offset)
        scan = Scan(path, file, offset, log_id, begin, patient=True)
        for batch, reason in _batches(scan):
            if end is not None and batch.next_offset > end:
                break
            if walk.found(batch, reason):
                index.append(batch)
                whole = whole and not walk.doubtful
            else:
                whole = False
    finally:
        file.close()
    return index if whole and index.count else None


def _batches(scan: Scan) -> Iterator[tuple[Batch, str]]:
    """Yield every valid batch at its offset, and the reason why bytes before it were skipped."""
    reason = ""
    while True:
        batch = scan.next_batch()
        if batch is not None:
            yield batch, reason
            reason = ""
            continue
        reason = reason or scan.stopped_by
        if not scan.skip():
            return


def _remove_wrong_index(
    files: FileSystem, folder: str, name: str, index: SegmentIndex, *, trimmed: bool
) -> bool:
    """Remove an index file that contradicts an intact segment; return whether it did.

    trimmed: the file may have entries that the segment lacks, so it is rebuilt without a comparison.
    """
    if name not in files.sizes(folder):
        return False
    expected = index.encoded(0, index.count)
    try:
        found = files.read(f"{folder}/{name}")
    except DiskError:
        found = b""
    size = min(len(found), len(expected))
    if found and not trimmed and found[:size] == expected[:size]:
        return False
    files.remove(f"{folder}/{name}")
    files.sync_folder(folder)
    return True


def end_segment(files: FileSystem, folder: str, offset: int, end_offset: int) -> None:
    """Truncate a sealed segment at its end; the next segment holds what follows."""
    with closing(files.open(f"{folder}/{segment_name(offset)}")) as file:
        if file.size() > end_offset - offset:
            file.truncate(end_offset - offset)
            file.sync()
