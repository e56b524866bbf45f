"""What happens to a log's folder before the log is used: unfinished cuts are finished, the tail made valid.

    1. read the manifest; finish the truncation or reset that it announces
    2. take the segments up to the durable point on trust of their index, with a check of its ends
    3. verify the last durable batch, then scan from there: the longest prefix of valid batches stays
    4. cut what is behind it, by the same crash-safe steps as any truncation; sync; move the durable point up

Nothing at or before the durable point is ever cut: damage there raises CorruptLog. A second recovery finds
nothing to do and changes nothing.
"""

from dataclasses import dataclass, replace
from typing import Final

from storage.batch import FIRST_CHAIN, Batch, follows_chain
from storage.epoch_file import Epoch, decode_epochs, encode_epochs, epoch_of
from storage.errors import CorruptBatch, CorruptLog, StorageFull
from storage.file_system import FileSystem, write_durably
from storage.manifest import Intent, Manifest, ManifestFile
from storage.segment import Scan, Segment
from storage.segment_format import index_name, segment_name, segment_offset

MANIFEST_NAME: Final = "manifest"
EPOCHS_NAME: Final = "epochs"
REWRITE_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Recovered:
    """A log's folder that is whole, and what is known of it. All batches are durable.

    no_room: the disk is full, and the epoch file may be behind.
    """

    manifest_file: ManifestFile
    manifest: Manifest
    segments: list[Segment]
    epochs: list[Epoch]
    last_batch: Batch | None
    no_room: bool


def segment_offsets(files: FileSystem, folder: str) -> list[int]:
    """Return the first offsets of the segments in the folder, in order."""
    offsets = (segment_offset(name) for name in files.list(folder))
    return sorted(offset for offset in offsets if offset is not None)


def remove_segments(files: FileSystem, folder: str, from_offset: int) -> None:
    """Remove the segments that begin at or past `from_offset`, the newest first; durable on return."""
    for offset in reversed(segment_offsets(files, folder)):
        if offset >= from_offset:
            index_path = f"{folder}/{index_name(offset)}"
            if files.exists(index_path):
                files.remove(index_path)
            files.remove(f"{folder}/{segment_name(offset)}")
    files.sync_folder(folder)


def cut_files(files: FileSystem, folder: str, cut_offset: int) -> None:
    """Remove every byte of the log at or past `cut_offset`; durable on return, and may be repeated."""
    remove_segments(files, folder, cut_offset)
    for offset in segment_offsets(files, folder)[-1:]:
        file = files.open(f"{folder}/{segment_name(offset)}")
        try:
            if file.size() > cut_offset - offset:
                file.truncate(cut_offset - offset)
            file.sync()
        finally:
            file.close()


class Recovery:
    """One recovery of one folder; `run` once."""

    def __init__(self, files: FileSystem, folder: str, log_id: int, committed_index: int) -> None:
        self._files = files
        self._folder = folder
        self._log_id = log_id
        self._committed_index = committed_index
        self._manifest_file = ManifestFile(files, f"{folder}/{MANIFEST_NAME}")
        self._manifest = Manifest(log_id)
        self._segments: list[Segment] = []
        self._epochs: list[Epoch] = []
        self._last: Batch | None = None
        self._no_room = False

    def run(self) -> Recovered:
        """Return the log as it is from now on. Raises CorruptLog, CorruptFile, DiskError."""
        self._files.make_folders(self._folder)
        self._read_manifest()
        self._finish_intent()
        saved = self._manifest
        self._take_durable_segments()
        self._read_epochs()
        self._scan_tail()
        end_index = saved.base_index - 1 if self._last is None else self._last.last_index
        end_offset = saved.base_offset if self._last is None else self._last.next_offset
        self._keep(replace(self._manifest, durable_index=end_index, durable_offset=end_offset))
        return Recovered(
            self._manifest_file, self._manifest, self._segments, self._epochs, self._last, self._no_room
        )

    def _damaged(self, offset: int, reason: str) -> CorruptLog:
        return CorruptLog(self._folder, offset, reason)

    def _read_manifest(self) -> None:
        manifest = self._manifest_file.load()
        if manifest is None:
            if segment_offsets(self._files, self._folder):
                raise self._damaged(0, "segments without a manifest")
            write_durably(self._files, f"{self._folder}/{EPOCHS_NAME}", encode_epochs(()))
            self._manifest_file.save(self._manifest)
            return
        if manifest.log_id != self._log_id:
            raise self._damaged(0, "the folder belongs to another log")
        self._manifest = manifest

    def _finish_intent(self) -> None:
        manifest = self._manifest
        if manifest.intent is Intent.TRUNCATE:
            cut_files(self._files, self._folder, manifest.cut_offset)
        elif manifest.intent is Intent.RESET:
            remove_segments(self._files, self._folder, 0)
            write_durably(self._files, f"{self._folder}/{EPOCHS_NAME}", encode_epochs(()))
        else:
            return
        self._manifest = replace(manifest, intent=Intent.NONE, cut_offset=0)
        self._manifest_file.save(self._manifest)

    def _take_durable_segments(self) -> None:
        """Open every segment that begins before the durable point, and verify the batch that ends there."""
        manifest = self._manifest
        durable_offset = manifest.durable_offset
        offsets = [o for o in segment_offsets(self._files, self._folder) if o < durable_offset]
        if durable_offset == manifest.base_offset:
            if offsets:
                raise self._damaged(offsets[0], "a segment before the log's begin")
            return
        if not offsets or offsets[0] != manifest.base_offset:
            raise self._damaged(manifest.base_offset, "the first segment is missing")
        expected_index = manifest.base_index
        for offset, end in zip(offsets, [*offsets[1:], durable_offset], strict=True):
            segment = Segment(self._files, self._folder, offset, self._log_id)
            size = segment.file.size()
            sealed = end != durable_offset
            if size < end - offset or (sealed and size > end - offset):
                raise CorruptLog(segment.path, offset, f"has {size} bytes, not {end - offset}")
            if sealed:
                segment.close()  # opened again when it is read
                segment.map_index(end)
            else:
                segment.load_index(end)
            if segment.base_index != expected_index:
                raise CorruptLog(segment.path, offset, f"begins at index {segment.base_index}")
            expected_index = segment.next_index
            self._segments.append(segment)
        if expected_index != manifest.durable_index + 1:
            raise self._damaged(durable_offset, f"index {expected_index - 1} stands at the durable point")
        self._last = self._segments[-1].batch_of_row(self._segments[-1].index.count - 1)

    def _read_epochs(self) -> None:
        """Take the epochs up to the durable point from their file, or make them anew from the log."""
        path = f"{self._folder}/{EPOCHS_NAME}"
        durable_offset = self._manifest.durable_offset
        try:
            if not self._files.exists(path):
                raise ValueError("missing")
            epochs = decode_epochs(self._files.read(path))
            self._epochs = [epoch for epoch in epochs if epoch.start_offset < durable_offset]
            return
        except ValueError:
            self._epochs = []
        for segment in self._segments:
            for row in segment.control_rows():
                self._note_epoch(segment.path, segment.batch_of_row(row))

    def _note_epoch(self, path: str, batch: Batch) -> None:
        try:
            epoch = epoch_of(batch)
        except CorruptBatch as error:
            raise CorruptLog(path, batch.offset, error.reason) from error
        if epoch is not None:
            self._epochs.append(epoch)

    def _scan_tail(self) -> None:
        """Accept valid batches from the durable point on; cut the rest, unless it had been committed."""
        offsets = segment_offsets(self._files, self._folder)
        end_offset = self._manifest.durable_offset
        later = [offset for offset in offsets if offset >= end_offset]
        stopped_by = "the log ends here"
        torn = False
        if self._segments:
            end_offset, stopped_by, torn = self._scan_segment(self._segments[-1])
        while later and not torn and later[0] == end_offset:
            segment = Segment(self._files, self._folder, later.pop(0), self._log_id)
            end_offset, stopped_by, torn = self._scan_segment(segment)
            if segment.index.count:
                self._segments.append(segment)
            else:
                torn = True
                segment.close()
        next_index = self._manifest.base_index if self._last is None else self._last.next_index
        if next_index <= self._committed_index:
            reason = f"{stopped_by}; index {self._committed_index} was committed"
            raise self._damaged(end_offset, reason)
        if torn or later:
            self._cut(end_offset)

    def _scan_segment(self, segment: Segment) -> tuple[int, str, bool]:
        """Accept what is valid. Return where it ends, why, and whether bytes are left over."""
        scan = Scan(segment, self._log_id)
        while (batch := scan.next_batch()) is not None:
            problem = self._problem(batch)
            if problem is not None:
                return segment.end_offset, problem, True
            self._note_epoch(segment.path, batch)
            segment.accept(batch)
            segment.dirty = True
            self._last = batch
        return segment.end_offset, scan.stopped_by, not scan.exhausted

    def _problem(self, batch: Batch) -> str | None:
        """Why a batch that is valid by itself cannot follow the last one, None when it can."""
        last = self._last
        if last is None:
            if batch.base_index != self._manifest.base_index:
                return "a batch of another index"
            if self._manifest.base_offset == 0 and not follows_chain(batch, FIRST_CHAIN):
                return "the hash chain is broken"
            return None
        if batch.base_index != last.next_index or batch.term < last.term:
            return "a batch of another index or term"
        return None if follows_chain(batch, last.header.chain) else "the hash chain is broken"

    def _cut(self, end_offset: int) -> None:
        """Remove the torn tail as a truncation would."""
        self._manifest = replace(self._manifest, intent=Intent.TRUNCATE, cut_offset=end_offset)
        self._manifest_file.save(self._manifest)
        cut_files(self._files, self._folder, end_offset)
        for segment in self._segments:
            segment.close()
        self._manifest = replace(self._manifest, intent=Intent.NONE, cut_offset=0)
        self._manifest_file.save(self._manifest)

    def _keep(self, manifest: Manifest) -> None:
        """Make what the scan accepted durable, and say so in the manifest."""
        dirty = [segment for segment in self._segments if segment.dirty]
        for segment in dirty:
            self._rewrite(segment)
            segment.file.sync()
            segment.dirty = False
        if dirty:
            self._files.sync_folder(self._folder)
        try:
            for segment in dirty:
                if (entries := segment.take_unflushed()) is not None:
                    entries.write()
            write_epochs(self._files, self._folder, self._epochs)
            if manifest != self._manifest:
                self._files.sync_folder(self._folder)
                self._manifest_file.save(manifest)
                self._manifest = manifest
        except StorageFull:  # the log is durable without them, and a sync will write them when there is room
            self._no_room = True
            for segment in dirty:
                segment.flushed = 0

    def _rewrite(self, segment: Segment) -> None:
        """Write what was scanned once more: after a sync that failed, its pages may pass for clean (R-11)."""
        start = max(self._manifest.durable_offset, segment.base_offset)
        for offset in range(start, segment.end_offset, REWRITE_BYTES):
            size = min(REWRITE_BYTES, segment.end_offset - offset)
            place = offset - segment.base_offset
            segment.file.pwrite(segment.file.read(place, size), place)


def write_epochs(files: FileSystem, folder: str, epochs: list[Epoch]) -> None:
    """Bring the epoch file up to date; it is written only when it differs."""
    path = f"{folder}/{EPOCHS_NAME}"
    data = encode_epochs(epochs)
    if not files.exists(path) or files.read(path) != data:
        write_durably(files, path, data)
