"""One log on disk: segments of whole batches, appended by pwrite, made durable by group commit, read by mmap.

The folder's layout and the steps of recovery, truncation and trim: storage/README.md. Owned by one thread;
only `SyncTicket.run`, `TrimTicket.run`, `truncate_after` and `reset` wait for the disk and may run in the
disk thread, `truncate_after` and `reset` only while the owner changes nothing. Guarantees after a crash:
nothing up to `durable_index` is lost, nothing that was truncated returns, and the rest, from the beginning
on, is a prefix of the appended batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from storage.errors import DiskError, InvariantError
from storage.file_system import FileSystem
from storage.format.batch import Batch, follows_chain
from storage.format.epoch_file import Epoch, epoch_of, epochs_from
from storage.log.log_view import LogView
from storage.log.recovery import Recovered, Recovery
from storage.log.segment import IndexWrite, Segment
from storage.units import KIB, MIB
from storage.units import NO_INDEX as NO_INDEX

DISK_PART: Final = 16  # largest part of a disk for one segment
SEGMENT_MIN_BYTES: Final = 64 * KIB  # minimum on small disks
UNDO: Final = "undo a failed append in"


@dataclass(frozen=True, kw_only=True)
class CommitlogConfig:
    """Sizes in bytes. Raises ValueError for sizes that are not positive."""

    segment_max_bytes: int = 256 * MIB
    """Size at which a segment of a log is closed and the next one begins."""
    mark_interval_bytes: int = 16 * MIB
    """Synced bytes after which the durable point is written; start-up checks at most that much already
    synced data."""
    tail_cache_bytes: int = 8 * MIB
    """Newest batches of each log kept in memory for followers and readers; 0: none."""

    def __post_init__(self) -> None:
        for name in ("segment_max_bytes", "mark_interval_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if self.tail_cache_bytes < 0:
            raise ValueError(f"tail_cache_bytes must not be negative, got {self.tail_cache_bytes}")

    def fit_to(self, disk_bytes: int) -> "CommitlogConfig":
        """Return this configuration with segments of at most a sixteenth of a disk of that size.

        A trim removes only whole segments before the newest one, so a disk filled by one segment could never
        be emptied.
        """
        fitting = max(disk_bytes // DISK_PART, SEGMENT_MIN_BYTES)
        return replace(self, segment_max_bytes=min(self.segment_max_bytes, fitting))


class SyncTicket:
    """The writes before a sync began: `run` in any thread, then `finish_sync` in the owner's."""

    def __init__(self, log: "Commitlog", truncation_count: int, end_index: int, dirty: list[Segment]) -> None:
        self._log = log
        self.truncation_count = truncation_count
        self.end_index = end_index
        self.dirty = dirty
        self.entries: list[IndexWrite] = []
        self.folder_changed = False
        self.mark: tuple[int, int] | None = None  # (index, end offset) of the durable point, None: it stays
        self.no_room = False  # the data is durable, but epochs or durable point could not be written

    def run(self) -> None:
        """Wait until everything is on disk. Raises SyncFailed or DiskError: the node stops (R-11)."""
        self._log.carry_out(self)


@dataclass(frozen=True, slots=True)
class TrimTicket:
    """A begin that has moved in memory: `run` in any thread, or `move_begin` and `remove_oldest` until False.

    Do not use it afterwards.
    """

    log: "Commitlog"
    base_index: int
    base_offset: int
    base_term: int
    epoch: Epoch | None
    holder: Segment
    removed: list[Segment]

    def run(self) -> None:
        """Make the beginning durable, and remove the segments before it. Recovery completes it after a crash.

        Raises StorageFull: run it again when there is space; until then a restart may restore the old begin.
        Raises SyncFailed or DiskError: the node stops.
        """
        self.log.carry_out_trim(self)

    def move_begin(self) -> None:
        """Make the beginning durable. Raises as `run`."""
        self.log.move_begin(self)

    def remove_oldest(self) -> bool:
        """Remove the oldest segment before the beginning; return whether there are more. Raises as `run`."""
        return self.log.remove_oldest()


class Commitlog(LogView):
    """A replicated log's storage; satisfies app.log.contract.ReplicaLog. Indexes inclusive, NO_INDEX:
    none."""

    def __init__(
        self, files: FileSystem, folder: str, log_id: int, config: CommitlogConfig, recovered: Recovered
    ) -> None:
        """Use `open`."""
        super().__init__(folder, log_id, config.tail_cache_bytes, recovered)
        self._files = files
        self._config = config
        self._marked_offset = recovered.manifest.durable_offset  # the durable point
        self._folder_changed = False

    @classmethod
    def open(
        cls,
        files: FileSystem,
        folder: str,
        *,
        log_id: int,
        config: CommitlogConfig | None = None,
        committed_index: int = NO_INDEX,
    ) -> "Commitlog":
        """Recover the log in `folder`, which is created if missing; all of it is durable on return.

        committed_index: of the checkpoint, committed and durable when that was saved. Raises CorruptLog for
        damage at or before it or the durable point, CorruptFile for a damaged manifest, DiskError.
        """
        recovered = Recovery(files, folder, log_id, committed_index).run()
        log = cls(files, folder, log_id, config or CommitlogConfig(), recovered)
        log.settle(committed_index)
        return log

    # --- writing

    def append(self, batches: Sequence[Batch]) -> None:
        """Write the batches at the end, all or none; durable only after a sync.

        Raises StorageFull or DiskError: nothing was stored, unless DiskError has the operation UNDO, after
        which the log must not be used. Raises InvariantError if a batch does not follow.
        """
        epochs = self._check_follow(batches)
        last = self._last
        try:
            start = 0
            for position, batch in enumerate(batches):
                if not self._fits(batch):
                    self._write(batches[start:position])
                    self._roll(batch.offset)
                    start = position
            self._write(batches[start:])
        except DiskError as error:
            try:
                self._truncate_to(last)
            except DiskError as again:
                raise DiskError(self._folder, UNDO, f"{again}, after {error}") from error
            raise
        if epochs:
            self._epochs = epochs_from((*self._epochs, *epochs), self._base_offset)

    def _check_follow(self, batches: Sequence[Batch]) -> list[Epoch]:
        """Return the epochs that the batches open. Raises InvariantError unless they follow the log's end."""
        index, offset, term = self.next_index, self.end_offset, self.last_term
        # After a reset the previous chain is unknown: the first batch is accepted without a check of it.
        chain = None if self._last is None and offset > 0 else self.last_chain
        epochs = []
        for batch in batches:
            header = batch.header
            if header.base_index != index or header.offset != offset or header.term < term:
                raise InvariantError(
                    f"{self._folder}: {batch!r} does not follow index {index - 1} at {offset}"
                )
            if header.log_id != self._log_id or (chain is not None and not follows_chain(batch, chain)):
                raise InvariantError(f"{self._folder}: {batch!r} belongs to another log or history")
            if (epoch := epoch_of(batch)) is not None:
                epochs.append(epoch)
            index, offset, term, chain = batch.next_index, batch.next_offset, header.term, header.chain
        return epochs

    def _fits(self, batch: Batch) -> bool:
        """Return whether the batch fits into the active segment; an empty segment accepts any."""
        if not self._segments:
            return False
        base_offset = self._segments[-1].base_offset
        return (
            batch.next_offset - base_offset <= self._config.segment_max_bytes or batch.offset == base_offset
        )

    def _roll(self, base_offset: int) -> None:
        segment = Segment(self._files, self._folder, base_offset, self._log_id)
        segment.create()
        self._folder_changed = True
        self._segments.append(segment)

    def _write(self, batches: Sequence[Batch]) -> None:
        if not batches:
            return
        self._segments[-1].write(batches)
        self._end_with(batches[-1])
        self._tail.append(batches)

    # --- durability

    def start_sync(self) -> SyncTicket | None:
        """Begin to make everything durable that is written now; None if all of it is durable."""
        if self.durable_index == self.end_index and self._epochs is self._disk.epochs:
            return None
        dirty: list[Segment] = []
        for segment in reversed(self._segments):
            if not segment.dirty:
                break
            segment.dirty = False
            dirty.insert(0, segment)
        ticket = SyncTicket(self, self._disk.truncation_count, self.end_index, dirty)
        ticket.folder_changed, self._folder_changed = self._folder_changed, False
        if self.end_offset - self._marked_offset >= self._config.mark_interval_bytes or len(dirty) > 1:
            self._plan_mark(ticket)
        return ticket

    def _plan_mark(self, ticket: SyncTicket) -> None:
        """Let the sync also move the durable point, with the index entries that a restart needs."""
        for segment in reversed(self._segments):
            if segment.mapped:
                break
            if (entries := segment.take_unflushed()) is not None:
                ticket.entries.append(entries)
        ticket.mark = (ticket.end_index, self.end_offset)

    def carry_out(self, ticket: SyncTicket) -> None:
        """Implement SyncTicket.run."""
        ticket.no_room = not self._disk.sync(
            ticket.truncation_count,
            ticket.dirty,
            ticket.folder_changed,
            self._epochs,
            ticket.entries,
            ticket.mark,
        )

    def finish_sync(self, ticket: SyncTicket) -> None:
        """Record that the ticket's run has succeeded; ignored if the log was truncated meanwhile."""
        if ticket.truncation_count != self._disk.truncation_count:
            return
        self.durable_index = max(self.durable_index, ticket.end_index)
        if ticket.no_room:
            for segment in self._segments:
                if not segment.mapped:
                    segment.restart_flush()
        elif ticket.mark is not None:
            self._marked_offset = max(self._marked_offset, ticket.mark[1])
            for segment in reversed(self._segments[:-1]):
                if segment.mapped:
                    break
                if segment.end_offset <= self._marked_offset:
                    segment.seal(segment.end_offset)

    def verify_epoch_file(self) -> None:
        """Reread the epoch file, in any thread; rewrite it if it is damaged. Raises DiskError."""
        self._disk.verify_epochs()

    def close(self) -> None:
        """Make everything durable, move the durable point to the end, and close the files. Batches in memory
        are let go: who still refers to the log may keep it for days."""
        ticket = self.start_sync()
        if ticket is None:
            ticket = SyncTicket(self, self._disk.truncation_count, self.end_index, [])
        if self.end_offset != self._marked_offset:
            self._plan_mark(ticket)
        try:
            ticket.run()
            self.finish_sync(ticket)
        finally:
            self._tail.drop_from(0)
            for segment in self._segments:
                segment.close()

    # --- truncating and trimming

    def settle(self, committed_index: int) -> None:
        """Record that nothing up to `committed_index` will be truncated (R-07): it is read without a copy."""
        self._settled_index = max(self._settled_index, min(committed_index, self.end_index))

    def truncate_after(self, index: int) -> None:
        """Remove every record after `index`: the last one of a batch, or NO_INDEX for all. Durable on return.

        A truncated tail never returns, also after a crash. Raises InvariantError for an index within a batch
        or below the settled one (R-07); then nothing has changed.
        """
        if index >= self.end_index:
            return
        if index < self._settled_index:
            raise InvariantError(
                f"{self._folder}: truncation after {index}, but {self._settled_index} is committed"
            )
        if index < self.begin_index:
            if index not in (NO_INDEX, self.begin_index - 1):
                raise InvariantError(f"{self._folder}: truncation after {index}, before the log's beginning")
            self._truncate_to(None)
            return
        last = self.batch_at(index)
        if last.last_index != index:
            raise InvariantError(f"{self._folder}: truncation after {index}, within {last!r}")
        self._truncate_to(last)

    def reset(self, base_index: int, base_offset: int, base_term: int = 0) -> None:
        """Empty the log; its next record has `base_index` at byte `base_offset`. Durable on return (D-12).

        base_term: of the next record if that is committed, 0 if unknown.
        """
        self._settled_index = NO_INDEX
        self._base_term = base_term
        self._empty(base_index, base_offset, ())

    def start_trim(self, index: int) -> TrimTicket | None:
        """Move the beginning to the batch that holds `index`, or to the newest settled one before it.

        Readers see the log before or after; `TrimTicket.run` makes the beginning durable. Everything before
        `index` must be durable if the log is synced before that: a sync covers only what is left. None if the
        begin does not move. Raises CorruptLog, DiskError; then nothing has changed.
        """
        index = min(index, self._settled_index)
        if self._last is None or index <= self._base_index:
            return None
        segment = self._segment_of(index)
        _, entry = segment.entry_of(index)
        if entry.base_index == self._base_index:
            return None
        segment.begin_at(entry.offset)
        position = self._segments.index(segment)
        removed = self._segments[:position]
        self._keep(self._segments[position:])
        self._base_index, self._base_offset, self._base_term = entry.base_index, entry.offset, entry.term
        self._marked_offset = max(self._marked_offset, entry.offset)
        epochs = epochs_from(self._epochs, entry.offset)
        self._disk.hold_epochs(self._epochs[: len(self._epochs) - len(epochs)])
        self._epochs = epochs
        self._tail.drop_before(entry.base_index)
        epoch = self._epochs[0] if self._epochs and self._epochs[0].start_offset < entry.offset else None
        return TrimTicket(self, entry.base_index, entry.offset, entry.term, epoch, segment, removed)

    def adopt_begin_epoch(self, epoch: Epoch) -> TrimTicket | None:
        """Record the epoch of the beginning after a reset: it began before the beginning, in another
        replica's log.

        `TrimTicket.move_begin` makes it durable. None if the epoch is known, or another one. Raises
        CorruptLog, DiskError; then nothing has changed.
        """
        if self.knows_begin_epoch or not epoch.begins_before(self._base_index, self._base_offset):
            return None
        if not epoch.epoch == epoch.term == self.term_at(self._base_index):
            return None
        self._epochs = (epoch, *self._epochs)
        return TrimTicket(self, self._base_index, self._base_offset, epoch.term, epoch, self._segments[0], [])

    def carry_out_trim(self, ticket: TrimTicket) -> None:
        """Implement TrimTicket.run."""
        self.move_begin(ticket)
        while self.remove_oldest():
            pass

    def move_begin(self, ticket: TrimTicket) -> None:
        """Implement TrimTicket.move_begin."""
        self._disk.trim(
            ticket.base_index,
            ticket.base_offset,
            ticket.base_term,
            ticket.epoch,
            ticket.holder,
            ticket.removed,
            self._epochs,
        )

    def remove_oldest(self) -> bool:
        """Implement TrimTicket.remove_oldest."""
        return self._disk.remove_oldest()

    def _truncate_to(self, last: Batch | None) -> None:
        """Make `last` the last batch, first in memory: readers see the log before or after."""
        if last is None:
            self._empty(
                self._base_index,
                self._base_offset,
                tuple(epoch for epoch in self._epochs if epoch.start_offset < self._base_offset),
            )
            return
        offset = last.next_offset
        self._disk.truncation_count += 1
        kept = [segment for segment in self._segments if segment.base_offset < offset]
        removed = self._segments[len(kept) :]
        for segment in kept[:-1]:
            if not segment.mapped:
                segment.restart_flush()  # a flush in progress is discarded
        kept[-1].truncate(offset)  # also one that ends there: it will be written
        self._keep(kept)
        self._end_with(last)
        self._tail.drop_from(last.next_index)
        if self._epochs and self._epochs[-1].start_offset >= offset:
            self._epochs = tuple(epoch for epoch in self._epochs if epoch.start_offset < offset)
        self._folder_changed = False
        self._marked_offset = min(self._marked_offset, offset)
        self.durable_index = self.end_index
        unmapped = [segment for segment in kept if not segment.mapped]  # mapped segments were durable before
        self._disk.truncate(self.end_index, offset, removed, unmapped, self._epochs)

    def _empty(self, base_index: int, base_offset: int, epochs: tuple[Epoch, ...]) -> None:
        self._disk.truncation_count += 1
        removed = self._segments
        self._keep([])
        self._base_index, self._base_offset, self._epochs = base_index, base_offset, epochs
        self._end_with(None)
        self._tail.drop_from(0)
        self._folder_changed = False
        self._marked_offset = base_offset
        self.durable_index = NO_INDEX
        self._disk.reset(base_index, base_offset, self._base_term, removed, epochs)
