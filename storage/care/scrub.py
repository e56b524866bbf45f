"""Scrub: rereads a running log in steps, to find old damage while other replicas have good copies.

    for step in Scrub(files, log):       # in the thread that owns the log
        await in_some_thread(step.run)   # one at a time; a step of 0 bytes in the disk thread: it writes
        await pause(step.size_bytes)

Each round reads every settled batch from the disk (bypassing caches where the system can), verifies both
checksums, index, offset and term, and recomputes the hash chain. It also reads the small files. Damage that
the node can repair by itself (one of two slots, an index file, the epoch file) is repaired. Other damage is
raised as by a read.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Final

from storage.errors import CorruptLog, DiskError
from storage.file_system import FileSystem
from storage.format.batch import Batch, follows_chain
from storage.format.segment_format import ENTRY_SIZE_BYTES, SegmentIndex
from storage.log.checkpoint import MAGIC as CHECKPOINT_MAGIC
from storage.log.checkpoint import SnapshotFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import MAGIC as VOTE_MAGIC
from storage.log.log_folder import MANIFEST_NAME
from storage.log.log_view import Stretch
from storage.log.manifest import MAGIC as MANIFEST_MAGIC
from storage.log.scan import Scan
from storage.log.slots import heal_slots
from storage.units import MIB

_SLOT_FILES: Final = ((MANIFEST_NAME, MANIFEST_MAGIC), ("vote", VOTE_MAGIC), ("checkpoint", CHECKPOINT_MAGIC))


class ScrubStep:
    """One step of a round; `run` once, in any thread, before the next step is requested."""

    def __init__(self, size_bytes: int, work: Callable[[], None]) -> None:
        self.size_bytes = size_bytes  # read from the disk by this step
        self.run = work
        """Raises CorruptLog, CorruptFile, DiskError."""


class Scrub:
    """One round over the log, from `from_index` to `until_index`; records trimmed meanwhile are skipped.

    chain: the chain of the last batch read, computed from the batches.
    """

    def __init__(
        self,
        files: FileSystem,
        log: Commitlog,
        step_bytes: int = MIB,
        *,
        from_index: int = 0,
        until_index: int | None = None,
    ) -> None:
        """until_index: the round ends with the batch that holds it, and omits the small files and the index
        files: it writes nothing."""
        self._files = files
        self._log = log
        self._step_bytes = step_bytes
        self._next_index = from_index
        self._until_index = until_index
        self._last: Batch | None = None
        self._wrong_index: Stretch | None = None
        self.chain: bytes | None = None

    def __iter__(self) -> Iterator[ScrubStep]:
        """Yield the steps. Raises CorruptLog, DiskError, because an index may have to be read."""
        while True:
            wrong, self._wrong_index = self._wrong_index, None
            if wrong is not None and self._is_held(wrong):
                yield from self._rebuilt_index(wrong)
            stretch = self._log.stretch(self._next_index, self._step_bytes, self._until_index)
            if stretch is None:
                break
            self._next_index = stretch.last_index + 1
            yield ScrubStep(stretch.end_offset - stretch.offset, partial(self._read, stretch))
        if self._until_index is None:
            yield ScrubStep(0, self._small_files)

    def _read(self, stretch: Stretch) -> None:
        try:
            self._verify(stretch)
        except (CorruptLog, DiskError):
            if self._is_held(stretch):
                raise

    def _rebuilt_index(self, wrong: Stretch) -> Iterator[ScrubStep]:
        """Yield the steps that write the index file of a segment again, then use that."""
        segment, found = wrong.segment, list[SegmentIndex]()
        size_bytes = segment.end_offset - segment.start_offset
        yield ScrubStep(size_bytes, partial(self._scan, wrong, found))
        if found and self._is_held(wrong):
            yield ScrubStep(0, partial(segment.write_index, found[0]))
            if self._is_held(wrong):
                segment.seal(segment.end_offset)

    def _scan(self, wrong: Stretch, found: list[SegmentIndex]) -> None:
        try:
            found.append(wrong.segment.scanned_index())
        except (CorruptLog, DiskError):
            if self._is_held(wrong):
                raise

    def _is_held(self, stretch: Stretch) -> bool:
        """Return whether nothing of it was trimmed or truncated meanwhile; else the next round checks it."""
        was_trimmed = self._log.begin_offset > stretch.offset
        return not was_trimmed and self._log.truncation_count == stretch.truncation_count

    def _verify(self, stretch: Stretch) -> None:
        segment = stretch.segment
        own = SegmentIndex()
        with closing(self._files.open(segment.path)) as file:
            position = stretch.offset - segment.base_offset
            file.drop_cache(position, stretch.end_offset - stretch.offset)
            scan = Scan(segment.path, file, segment.base_offset, self._log.log_id, stretch.offset)
            while scan.offset < stretch.end_offset:
                offset = scan.offset
                batch = scan.next_batch()
                if batch is None:
                    raise CorruptLog(segment.path, offset, scan.stopped_by)
                if (problem := self._problem(batch, stretch)) is not None:
                    raise CorruptLog(segment.path, offset, problem)
                own.append(batch)
                self._last, self.chain = batch, batch.header.chain
        if self._until_index is None and not self._index_matches(stretch, own):
            self._wrong_index = stretch

    def _problem(self, batch: Batch, stretch: Stretch) -> str | None:
        last = self._last
        if batch.offset == stretch.offset and batch.base_index != stretch.first_index:
            return "a batch of another index"
        if last is None or last.next_offset != batch.offset:
            return None
        if batch.base_index != last.next_index or batch.term < last.term:
            return "a batch of another index or term"
        return None if follows_chain(batch, last.header.chain) else "the hash chain is broken"

    def _index_matches(self, stretch: Stretch, own: SegmentIndex) -> bool:
        """Return whether the index file matches these batches, except for the running maximum of times."""
        path = stretch.segment.index_path
        if stretch.index_position is None:
            return True
        if not self._files.exists(path):
            return False
        with closing(self._files.open(path)) as file:
            return SegmentIndex(file.read(stretch.index_position, own.count * ENTRY_SIZE_BYTES)).matches(own)

    def _small_files(self) -> None:
        folder = self._log.folder
        for name, magic in _SLOT_FILES:
            if self._files.exists(f"{folder}/{name}"):
                heal_slots(self._files, f"{folder}/{name}", magic)
        SnapshotFile(self._files, f"{folder}/state").load()
        self._log.verify_epoch_file()
