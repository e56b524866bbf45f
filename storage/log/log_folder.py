"""Changes that the disk thread makes to the files of a log: sync, truncate, reset, trim, one at a time.

After a failed change all later ones are refused: the data of a failed sync may be lost, so nothing after it
may count as durable (R-11). A full disk is not a failure if only epochs or the durable point wait for space.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

from storage.errors import DiskError, DiskRefused, StorageFull, SyncFailed
from storage.file_system import FileSystem, write_durably, write_pieces_durably
from storage.format.epoch_file import Epoch, encode_epochs, epochs_from
from storage.format.segment_format import index_name, index_offset, segment_name, segment_offset
from storage.log.manifest import Intent, Manifest, ManifestFile
from storage.log.segment import IndexWrite, Segment
from storage.units import MIB

MANIFEST_NAME: Final = "manifest"
EPOCHS_NAME: Final = "epochs"
_COPY_BYTES: Final = 8 * MIB


def segment_offsets(files: FileSystem, folder: str) -> list[int]:
    """Return the first offsets of the segments in the folder, in order."""
    offsets = (segment_offset(name) for name in files.list(folder))
    return sorted(offset for offset in offsets if offset is not None)


def remove_segments(files: FileSystem, folder: str, from_offset: int) -> None:
    """Remove the segments that begin at or after `from_offset`, the newest first; durable on return."""
    for offset in reversed(segment_offsets(files, folder)):
        if offset >= from_offset:
            index_path = f"{folder}/{index_name(offset)}"
            if files.exists(index_path):
                files.remove(index_path)
            files.remove(f"{folder}/{segment_name(offset)}")
    files.sync_folder(folder)


def remove_trimmed(files: FileSystem, folder: str, base_offset: int) -> None:
    """Remove the segments that another one follows at or before `base_offset`, the oldest first; durable on
    return."""
    trimmed = _trimmed_names(files, folder, base_offset)
    for names in trimmed:
        _remove(files, folder, names)
    if trimmed:
        files.sync_folder(folder)


def remove_oldest_trimmed(files: FileSystem, folder: str, base_offset: int) -> bool:
    """Remove the oldest of the segments that `remove_trimmed` removes; return whether there are more.

    The removals are durable when none is left. The removal of a large file may take long, so a caller may do
    other work between two steps.
    """
    trimmed = _trimmed_names(files, folder, base_offset)
    if not trimmed:
        return False
    _remove(files, folder, trimmed[0])
    if len(trimmed) == 1:
        files.sync_folder(folder)
    return len(trimmed) > 1


def _trimmed_names(files: FileSystem, folder: str, base_offset: int) -> list[list[str]]:
    """Return the file names of each segment that another one follows at or before `base_offset`, the oldest
    first."""
    first, found = 0, dict[int, list[str]]()
    for name in files.list(folder):
        if (offset := segment_offset(name)) is not None and offset <= base_offset:
            first = max(first, offset)
        elif offset is None:
            offset = index_offset(name)
        if offset is not None:
            found.setdefault(offset, []).append(name)
    return [found[offset] for offset in sorted(found) if offset < first]


def _remove(files: FileSystem, folder: str, names: list[str]) -> None:
    for name in names:
        files.remove(f"{folder}/{name}")


def truncate_files(files: FileSystem, folder: str, truncate_offset: int) -> None:
    """Remove every byte of the log at or after `truncate_offset`; durable on return, and may be repeated."""
    remove_segments(files, folder, truncate_offset)
    for offset in segment_offsets(files, folder)[-1:]:
        with closing(files.open(f"{folder}/{segment_name(offset)}")) as file:
            if file.size() > truncate_offset - offset:
                file.truncate(truncate_offset - offset)
            file.sync()


def replace_by_copy(files: FileSystem, folder: str, offset: int) -> None:
    """Replace the segment that holds the byte at `offset` by a copy; durable on return, and may be repeated.

    Views of the segment (File.view) stay valid then, whatever is truncated.
    """
    base_offset = max(each for each in segment_offsets(files, folder) if each <= offset)
    path = f"{folder}/{segment_name(base_offset)}"
    copy_segment(files, path, path)


def copy_segment(files: FileSystem, path: str, target: str, position: int = 0) -> None:
    """Copy the bytes of a file from `position` on; durable on return. target: may be the file itself."""
    with closing(files.open(path)) as source:
        pieces = range(position, source.size(), _COPY_BYTES)
        write_pieces_durably(
            files, target, ((each - position, source.read(each, _COPY_BYTES)) for each in pieces)
        )


class LogFolder:
    """Invariants: nothing at or after the manifest's truncation offset remains when the intent is cleared;
    the epoch file holds all epochs from the recorded begin to the durable point when either moves; no
    beginning is recorded before it is durable."""

    def __init__(self, files: FileSystem, path: str, manifest_file: ManifestFile, manifest: Manifest) -> None:
        """manifest: as `manifest_file` holds it."""
        self.files = files
        self.path = path
        self.truncation_count = 0  # a sync that began before a truncation proves nothing
        self.epochs: tuple[Epoch, ...] | None = None  # content of the epoch file, None: unknown
        self._manifest_file = manifest_file
        self._manifest = manifest
        self._held: tuple[Epoch, ...] = ()  # trimmed in memory; their end may be after the recorded beginning
        self._lock = threading.Lock()
        self._failed: DiskError | None = None

    @contextmanager
    def _change(self, *, may_wait: bool = False) -> Iterator[None]:
        """may_wait: if the disk is full, the change may be repeated later without loss."""
        with self._lock:
            if self._failed is not None:
                raise SyncFailed(self.path, "sync", f"not after a failure: {self._failed}")
            try:
                yield
            except DiskError as error:
                if not (may_wait and isinstance(error, StorageFull)):
                    self._failed = error
                raise

    def _save(self, manifest: Manifest) -> None:
        self._manifest_file.save(manifest)
        self._manifest = manifest

    def hold_epochs(self, trimmed: Sequence[Epoch]) -> None:
        """Keep epochs in the file until the beginning that a trim moves after them is recorded: after a crash
        the log begins at the recorded one."""
        self._held = epochs_from((*self._held, *trimmed), self._manifest.base_offset)

    def _with_held(self, epochs: tuple[Epoch, ...]) -> tuple[Epoch, ...]:
        """Return the epochs of the log from the recorded beginning on. epochs: from the beginning in memory
        on."""
        held = [epoch for epoch in self._held if not epochs or epoch.start_offset < epochs[0].start_offset]
        recorded = epochs_from((*held, *epochs), self._manifest.base_offset)
        return recorded if len(recorded) > len(epochs) else epochs

    def write_epochs(self, epochs: tuple[Epoch, ...]) -> None:
        """Bring the epoch file up to date. Raises StorageFull."""
        epochs = self._with_held(epochs)
        if epochs is not self.epochs:
            write_durably(self.files, f"{self.path}/{EPOCHS_NAME}", encode_epochs(epochs))
            self.epochs = epochs

    def verify_epochs(self) -> None:
        """Rewrite the epoch file if it does not hold what was written to it."""
        with self._lock:
            path = f"{self.path}/{EPOCHS_NAME}"
            epochs = self.epochs
            if epochs is None:
                return  # a sync will write it
            try:
                found = self.files.read(path) if self.files.exists(path) else b""
            except DiskRefused:
                raise
            except DiskError:
                found = b""
        if found != encode_epochs(epochs):
            with self._change(may_wait=True):
                if self.epochs is epochs:
                    self.epochs = None
                    self.write_epochs(epochs)

    def _try_epochs(self, epochs: tuple[Epoch, ...]) -> None:
        """Write the epoch file; on a full disk leave it to a later sync: recovery ignores surplus epochs."""
        try:
            self.write_epochs(epochs)
        except StorageFull:
            self.epochs = None

    def sync(
        self,
        truncation_count: int,
        dirty: Sequence[Segment],
        folder_changed: bool,
        epochs: tuple[Epoch, ...],
        entries: list[IndexWrite],
        mark: tuple[int, int] | None,
    ) -> bool:
        """Make the segments durable; return whether there was room for epochs and durable point too.

        mark: (index, end offset) of the new durable point, with `entries`, the index entries up to it; None
        leaves it unchanged. If the log was truncated since it had this count, nothing is done: the
        truncation synced what it left.
        """
        with self._change():
            if truncation_count != self.truncation_count:
                return True
            for segment in dirty:
                segment.sync()
            if folder_changed:
                self.files.sync_folder(self.path)
            entries = [each for each in entries if each.end_offset > self._manifest.base_offset]
            try:
                for each in entries:
                    each.write()
                if any(each.position == 0 for each in entries):
                    self.files.sync_folder(self.path)
                self.write_epochs(epochs)
                if mark is not None and mark[1] > self._manifest.durable_offset:  # a trim may have moved it
                    self._save(replace(self._manifest, durable_index=mark[0], durable_offset=mark[1]))
            except StorageFull:
                return False  # all of it can be rebuilt: repeated with the next sync
            return True

    def truncate(
        self,
        last_index: int,
        truncate_offset: int,
        removed: Sequence[Segment],
        kept: Sequence[Segment],
        epochs: tuple[Epoch, ...],
    ) -> None:
        """Set the intent, truncate, sync, clear: the log now ends with `last_index`, at `truncate_offset`."""
        with self._change():
            manifest = self._manifest
            if truncate_offset < manifest.durable_offset:
                manifest = replace(manifest, durable_index=last_index, durable_offset=truncate_offset)
            self._save(replace(manifest, intent=Intent.TRUNCATE, truncate_offset=truncate_offset))
            for segment in removed:
                segment.close()
            truncate_files(self.files, self.path, truncate_offset)
            for segment in kept:
                segment.sync()
                segment.dirty = False
            self._try_epochs(epochs)
            self.files.sync_folder(self.path)
            self._save(manifest)

    def reset(
        self,
        base_index: int,
        base_offset: int,
        base_term: int,
        removed: Sequence[Segment],
        epochs: tuple[Epoch, ...],
    ) -> None:
        """Set the intent, remove, clear: the log is empty and begins at `base_index`.

        base_term: as `Manifest.base_term`. epochs: none, or the one that began before the base.
        """
        manifest = Manifest(
            self._manifest.log_id,
            base_index,
            base_offset,
            base_index - 1,
            base_offset,
            epoch=epochs[0] if epochs else None,
            base_term=base_term,
        )
        with self._change():
            self._save(replace(manifest, intent=Intent.RESET))
            self._held = ()
            for segment in removed:
                segment.close()
            remove_segments(self.files, self.path, 0)
            self._try_epochs(epochs)
            self._save(manifest)

    def trim(
        self,
        base_index: int,
        base_offset: int,
        base_term: int,
        epoch: Epoch | None,
        holder: Segment,
        removed: Sequence[Segment],
        epochs: tuple[Epoch, ...],
    ) -> None:
        """Make a new beginning durable; may be repeated. `remove_oldest` removes what is before it.

        base_term, epoch: as in `Manifest`. holder: the segment that contains the beginning.
        """
        with self._change(may_wait=True):
            for segment in removed:
                segment.close()
            manifest = self._manifest
            if base_offset < manifest.base_offset:
                return  # a later beginning was made durable in between
            if base_offset > manifest.durable_offset:
                holder.sync()
                self.files.sync_folder(self.path)
                manifest = replace(manifest, durable_index=base_index - 1, durable_offset=base_offset)
            self._save(
                replace(
                    manifest,
                    base_index=base_index,
                    base_offset=base_offset,
                    base_term=base_term,
                    epoch=epoch,
                )
            )
            self._try_epochs(epochs)

    def remove_oldest(self) -> bool:
        """Remove the oldest segment before the beginning; return whether there are more."""
        with self._change(may_wait=True):
            return remove_oldest_trimmed(self.files, self.path, self._manifest.base_offset)
