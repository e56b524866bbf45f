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

from storage.errors import CorruptBatch, CorruptLog, ForeignLog, StorageFull
from storage.file_system import FileSystem, write_durably
from storage.format.batch import FIRST_CHAIN, Batch, follows_chain
from storage.format.epoch_file import Epoch, decode_epochs, encode_epochs, epoch_of, epochs_from
from storage.format.segment_format import segment_name, segment_offset
from storage.log.log_folder import (
    EPOCHS_NAME,
    MANIFEST_NAME,
    LogFolder,
    cut_files,
    remove_segments,
    remove_trimmed,
    segment_offsets,
)
from storage.log.manifest import Intent, Manifest, ManifestFile
from storage.log.scan import Scan
from storage.log.segment import Segment

REWRITE_BYTES: Final = 4 * 1024 * 1024


@dataclass(slots=True)
class Recovered:
    """A log's folder that is whole, and what is known of it. All batches are durable.

    manifest: as it stands on disk; on a full disk its durable point and the epoch file may be behind.
    """

    folder: LogFolder
    manifest: Manifest
    segments: list[Segment]
    epochs: tuple[Epoch, ...]
    last_batch: Batch | None


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

    def run(self) -> Recovered:
        """Return the log as it is from now on. Raises CorruptLog, CorruptFile, DiskError."""
        saved = self.prepare()
        self._take_durable_segments()
        self._read_epochs()
        self._scan_tail()
        end_index = saved.base_index - 1 if self._last is None else self._last.last_index
        end_offset = saved.base_offset if self._last is None else self._last.next_offset
        epochs = epochs_from(self._epochs, saved.base_offset)
        room = self._keep(replace(self._manifest, durable_index=end_index, durable_offset=end_offset), epochs)
        folder = LogFolder(self._files, self._folder, self._manifest_file, self._manifest)
        folder.epochs = epochs if room else None
        return Recovered(folder, self._manifest, self._segments, epochs, self._last)

    def has_torn_tail(self) -> bool:
        """Return whether bytes that are no batch follow the last valid one; none are removed.

        Without a checkpoint nothing tells whether they were committed. Raises as `run` does.
        """
        self.prepare()
        self._take_durable_segments()
        try:
            return self._walk_tail()[2]
        finally:
            for segment in self._segments:
                segment.close()

    def prepare(self) -> Manifest:
        """Finish what was begun when the log was last used, and return its manifest. Raises as `run` does."""
        self._files.make_folders(self._folder)
        self._read_manifest()
        self._finish_intent()
        return self._manifest

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
            raise ForeignLog(self._folder, 0, "the folder belongs to another log")
        self._manifest = manifest

    def _finish_intent(self) -> None:
        manifest = self._manifest
        if manifest.intent is Intent.TRUNCATE:
            cut_files(self._files, self._folder, manifest.cut_offset)
        elif manifest.intent is Intent.RESET:
            remove_segments(self._files, self._folder, 0)
            write_durably(self._files, f"{self._folder}/{EPOCHS_NAME}", encode_epochs(()))
        else:
            remove_trimmed(self._files, self._folder, manifest.base_offset)
            return
        self._manifest = replace(manifest, intent=Intent.NONE, cut_offset=0)
        self._manifest_file.save(self._manifest)

    def _take_durable_segments(self) -> None:
        """Take every segment that begins before the durable point; verify the batch that ends there.

        Sealed ones are known by name and size, none is opened. The first one may begin with what was trimmed.
        """
        manifest = self._manifest
        base_offset, durable_offset = manifest.base_offset, manifest.durable_offset
        sizes = self._files.sizes(self._folder)
        offsets = [o for o in map(segment_offset, sizes) if o is not None and o < durable_offset]
        if not offsets and durable_offset == base_offset:
            return
        if not offsets or offsets[0] > base_offset:
            raise self._damaged(base_offset, "the first segment is missing")
        for offset, end in zip(offsets, [*offsets[1:], durable_offset], strict=True):
            segment = Segment(self._files, self._folder, offset, self._log_id, base_offset)
            size = sizes[segment_name(offset)]
            sealed = end != durable_offset
            if size < end - offset or (sealed and size > end - offset):
                raise CorruptLog(segment.path, offset, f"has {size} bytes, not {end - offset}")
            if sealed:
                segment.seal(end)
            else:
                segment.load_index(end)
            self._segments.append(segment)
        if durable_offset > base_offset:
            last = self._segments[-1]
            self._last = last.batch_of_row(last.index.count - 1)
            if self._last.last_index != manifest.durable_index:
                raise self._damaged(
                    durable_offset, f"index {self._last.last_index} ends at the durable point"
                )

    def _read_epochs(self) -> None:
        """Take the epochs up to the durable point from their file, or make them anew from the log."""
        path = f"{self._folder}/{EPOCHS_NAME}"
        manifest = self._manifest
        if manifest.epoch is not None:
            self._epochs.append(manifest.epoch)
        try:
            if not self._files.exists(path):
                raise ValueError("missing")
            self._epochs += [
                epoch
                for epoch in decode_epochs(self._files.read(path))
                if manifest.base_offset <= epoch.start_offset < manifest.durable_offset
            ]
        except ValueError:
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
        end_offset, stopped_by, torn = self._walk_tail()
        next_index = self._manifest.base_index if self._last is None else self._last.next_index
        if next_index <= self._committed_index:
            reason = f"{stopped_by}; index {self._committed_index} was committed"
            raise self._damaged(end_offset, reason)
        if torn:
            self._cut(end_offset)

    def _walk_tail(self) -> tuple[int, str, bool]:
        """Accept valid batches from the durable point on. Return where they end, why, and whether bytes are
        left over."""
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
        return end_offset, stopped_by, torn or bool(later)

    def _scan_segment(self, segment: Segment) -> tuple[int, str, bool]:
        """Accept what is valid. Return where it ends, why, and whether bytes are left over."""
        scan = Scan(segment.file, segment.base_offset, self._log_id, segment.end_offset)
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

    def _keep(self, manifest: Manifest, epochs: tuple[Epoch, ...]) -> bool:
        """Make what the scan accepted durable and say so in the manifest; False: no room to say so."""
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
            self._write_epochs(epochs)
            if manifest != self._manifest:
                self._files.sync_folder(self._folder)
                self._manifest_file.save(manifest)
                self._manifest = manifest
        except StorageFull:  # the log is durable without them, and a sync will write them when there is room
            for segment in dirty:
                segment.flush_anew()
            return False
        return True

    def _write_epochs(self, epochs: tuple[Epoch, ...]) -> None:
        """Write the epoch file when it differs; its name is durable, as loading the manifest synced it."""
        path = f"{self._folder}/{EPOCHS_NAME}"
        data = encode_epochs(epochs)
        if not self._files.exists(path) or self._files.read(path) != data:
            write_durably(self._files, path, data)

    def _rewrite(self, segment: Segment) -> None:
        """Write what was scanned once more: after a sync that failed, its pages may pass for clean (R-11)."""
        start = max(self._manifest.durable_offset, segment.base_offset)
        for offset in range(start, segment.end_offset, REWRITE_BYTES):
            size = min(REWRITE_BYTES, segment.end_offset - offset)
            place = offset - segment.base_offset
            segment.file.pwrite(segment.file.read(place, size), place)
