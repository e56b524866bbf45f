"""Recovery of a log's folder before use: completes unfinished changes and makes the tail valid.

    1. read the manifest; complete the truncation or reset that it announces
    2. accept the segments up to the durable point by name and size
    3. verify the last durable batch, then scan from there: the longest prefix of valid batches stays
    4. truncate the rest, by the same crash-safe steps as any truncation; sync; move the durable point

Nothing at or before the durable point is ever truncated: damage there raises CorruptLog. A second recovery
changes nothing.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from storage.errors import CorruptBatch, CorruptLog, DiskError, ForeignLog, StorageFull
from storage.file_system import FileSystem, write_durably
from storage.format.batch import FIRST_CHAIN, Batch, follows_chain
from storage.format.epoch_file import Epoch, decode_epochs, encode_epochs, epoch_of, epochs_from
from storage.format.segment_format import index_name, is_index_size, segment_name, segment_offset
from storage.log.log_folder import (
    EPOCHS_NAME,
    MANIFEST_NAME,
    LogFolder,
    remove_segments,
    remove_trimmed,
    segment_offsets,
    truncate_files,
)
from storage.log.manifest import Intent, Manifest, ManifestFile
from storage.log.scan import Scan
from storage.log.segment import Segment
from storage.units import MIB

REWRITE_BYTES: Final = 4 * MIB


@dataclass(slots=True)
class Recovered:
    """A log's folder after recovery. All batches are durable.

    manifest: as saved on disk; on a full disk its durable point and the epoch file may lag.
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
        self._opened: list[Segment] = []  # also those that do not belong to the log
        self._epochs: list[Epoch] = []
        self._last: Batch | None = None

    def run(self) -> Recovered:
        """Return the recovered log. Raises CorruptLog, CorruptFile, NewerFormat, DiskError; then no file
        stays open: a failed opening is often repeated."""
        try:
            return self._recover()
        except Exception:
            self._close()
            raise

    def _recover(self) -> Recovered:
        saved = self.prepare()
        self._take_durable_segments()
        self._read_epochs()
        self._scan_tail()
        end_index = saved.base_index - 1 if self._last is None else self._last.last_index
        end_offset = saved.base_offset if self._last is None else self._last.next_offset
        epochs = epochs_from(self._epochs, saved.base_offset)
        is_saved = self._keep(
            replace(self._manifest, durable_index=end_index, durable_offset=end_offset), epochs
        )
        folder = LogFolder(self._files, self._folder, self._manifest_file, self._manifest)
        folder.epochs = epochs if is_saved else None
        return Recovered(folder, self._manifest, self._segments, epochs, self._last)

    def has_torn_tail(self) -> bool:
        """Return whether bytes that are not a batch follow the last valid one; none are removed.

        Without a checkpoint it is unknown whether they were committed. Raises as `run` does.
        """
        try:
            self.prepare()
            self._take_durable_segments()
            return self._walk_tail()[2]
        finally:
            self._close()

    def _close(self) -> None:
        for segment in self._opened:
            with suppress(DiskError):  # nothing was written to it
                segment.close()

    def _segment(self, offset: int, start_offset: int = 0) -> Segment:
        segment = Segment(self._files, self._folder, offset, self._log_id, start_offset)
        self._opened.append(segment)
        return segment

    def prepare(self) -> Manifest:
        """Complete an interrupted change, and return the manifest. Raises as `run` does."""
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
            truncate_files(self._files, self._folder, manifest.truncate_offset)
        elif manifest.intent is Intent.RESET:
            remove_segments(self._files, self._folder, 0)
            write_durably(self._files, f"{self._folder}/{EPOCHS_NAME}", encode_epochs(()))
        if manifest.intent is not Intent.NONE:
            self._manifest = replace(manifest, intent=Intent.NONE, truncate_offset=0)
            self._manifest_file.save(self._manifest)
        remove_trimmed(self._files, self._folder, manifest.base_offset)

    def _take_durable_segments(self) -> None:
        """Accept every segment that begins before the durable point; verify the batch that ends there.

        Sealed segments are accepted by name and size; none is opened, except to rebuild an index file that is
        missing or has a part of an entry: its first reader would wait for that on the event loop. The first
        segment may begin with trimmed batches.
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
            segment = self._segment(offset, base_offset)
            size = sizes[segment_name(offset)]
            sealed = end != durable_offset
            if size < end - offset or (sealed and size > end - offset):
                raise CorruptLog(segment.path, offset, f"has {size} bytes, not {end - offset}")
            if sealed:
                segment.seal(end)
                if not is_index_size(sizes.get(index_name(offset), 0)):
                    with suppress(CorruptLog, DiskError):  # its first reader tries again
                        segment.write_index(segment.scanned_index())
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
        """Read the epochs up to the durable point from their file, or rebuild them from the log."""
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
                segment.release()  # a process may have fewer descriptors than a log has segments

    def _note_epoch(self, path: str, batch: Batch) -> None:
        try:
            epoch = epoch_of(batch)
        except CorruptBatch as error:
            raise CorruptLog(path, batch.offset, error.reason) from error
        if epoch is not None:
            self._epochs.append(epoch)

    def _scan_tail(self) -> None:
        """Accept valid batches from the durable point on; truncate the rest, unless it was committed."""
        end_offset, stopped_by, torn = self._walk_tail()
        next_index = self._manifest.base_index if self._last is None else self._last.next_index
        if next_index <= self._committed_index:
            reason = f"{stopped_by}; index {self._committed_index} was committed"
            raise self._damaged(end_offset, reason)
        if torn:
            self._truncate(end_offset)

    def _walk_tail(self) -> tuple[int, str, bool]:
        """Accept valid batches from the durable point on. Return their end, the reason why the scan stopped,
        and whether bytes are left over."""
        offsets = segment_offsets(self._files, self._folder)
        end_offset = self._manifest.durable_offset
        later = [offset for offset in offsets if offset >= end_offset]
        stopped_by = "the log ends here"
        torn = False
        if self._segments:
            end_offset, stopped_by, torn = self._scan_segment(self._segments[-1])
        while later and not torn and later[0] == end_offset:
            segment = self._segment(later.pop(0))
            end_offset, stopped_by, torn = self._scan_segment(segment)
            if segment.index.count:
                self._segments.append(segment)
            else:
                torn = True
                segment.close()
        return end_offset, stopped_by, torn or bool(later)

    def _scan_segment(self, segment: Segment) -> tuple[int, str, bool]:
        """Accept valid batches. Return their end, the reason why the scan stopped, and whether bytes are left
        over."""
        scan = Scan(segment.path, segment.file, segment.base_offset, self._log_id, segment.end_offset)
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
        """Return why a batch that is valid by itself cannot follow the last one, None when it can."""
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

    def _truncate(self, end_offset: int) -> None:
        """Remove the torn tail as a truncation would."""
        self._manifest = replace(self._manifest, intent=Intent.TRUNCATE, truncate_offset=end_offset)
        self._manifest_file.save(self._manifest)
        truncate_files(self._files, self._folder, end_offset)
        for segment in self._segments:
            segment.close()
        self._manifest = replace(self._manifest, intent=Intent.NONE, truncate_offset=0)
        self._manifest_file.save(self._manifest)

    def _keep(self, manifest: Manifest, epochs: tuple[Epoch, ...]) -> bool:
        """Make the accepted batches durable and update the manifest; False: no space for the update."""
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
        except StorageFull:  # the log is durable without them; a later sync writes them when there is space
            for segment in dirty:
                segment.restart_flush()
            return False
        return True

    def _write_epochs(self, epochs: tuple[Epoch, ...]) -> None:
        """Write the epoch file if it differs; its name is durable, because loading the manifest synced it."""
        path = f"{self._folder}/{EPOCHS_NAME}"
        data = encode_epochs(epochs)
        if not self._files.exists(path) or self._files.read(path) != data:
            write_durably(self._files, path, data)

    def _rewrite(self, segment: Segment) -> None:
        """Write the scanned batches once more: after a failed sync the kernel may treat their pages as clean
        (R-11)."""
        start = max(self._manifest.durable_offset, segment.base_offset)
        for offset in range(start, segment.end_offset, REWRITE_BYTES):
            size = min(REWRITE_BYTES, segment.end_offset - offset)
            place = offset - segment.base_offset
            segment.file.pwrite(segment.file.read(place, size), place)
