"""One log on disk: segments of whole batches, appended by pwrite, made durable by group commit, read by mmap.

The folder's layout and the steps of recovery and truncation: storage/README.md. Owned by one thread; only
`SyncTicket.run`, `truncate_after` and `reset` wait for the disk and may run in the disk thread, the latter
two while the owner changes nothing. What is promised after a crash: nothing up to `durable_index` is lost,
nothing that was cut returns, and what remains is a prefix of what was appended.
"""

import threading
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from storage.batch import FIRST_CHAIN, Batch, follows_chain
from storage.epoch_file import Epoch, encode_epochs, epoch_of
from storage.errors import DiskError, InvariantError, StorageFull
from storage.file_system import File, FileSystem, write_durably
from storage.manifest import Intent, Manifest
from storage.records import READ_SCHEMA, read_columns
from storage.recovery import EPOCHS_NAME, Recovered, Recovery, cut_files, remove_segments, write_epochs
from storage.segment import IndexWrite, Segment
from storage.segment_format import IndexEntry

NO_INDEX: Final = -1
MIB: Final = 1024 * 1024
_TIMESTAMP: Final = READ_SCHEMA.get_field_index("timestamp")


@dataclass(frozen=True, kw_only=True)
class CommitlogConfig:
    """Sizes in bytes.

    mark_interval_bytes: after so much has been synced the durable point moves up: start-up reads at most that
    much more than what was never synced. tail_cache_bytes: newest batches kept in memory, so that followers
    and readers at the tail are served without the disk.
    """

    segment_max_bytes: int = 256 * MIB
    mark_interval_bytes: int = 16 * MIB
    tail_cache_bytes: int = 8 * MIB

    def __post_init__(self) -> None:
        if min(self.segment_max_bytes, self.mark_interval_bytes) <= 0 or self.tail_cache_bytes < 0:
            raise ValueError("storage: sizes must be positive")


class SyncTicket:
    """What was written when a sync began: `run` in any thread, then `finish_sync` in the owner's."""

    def __init__(self, log: "Commitlog", generation: int, end_index: int, dirty: list[File]) -> None:
        self._log = log
        self.generation = generation
        self.end_index = end_index
        self.dirty = dirty
        self.entries: list[IndexWrite] = []
        self.folder_changed = False
        self.epochs: bytes | None = None
        self.manifest: Manifest | None = None
        self.no_room = False  # the data is durable, but epochs or durable point could not be written

    def run(self) -> None:
        """Wait until it is on disk. Raises SyncFailed or DiskError: the node stops (R-11)."""
        self._log.carry_out(self)


class Commitlog:
    """A replicated log's storage; satisfies app.replication.ReplicaLog. Indexes inclusive, NO_INDEX: none."""

    def __init__(
        self, files: FileSystem, folder: str, log_id: int, config: CommitlogConfig, recovered: Recovered
    ) -> None:
        """Use `open`."""
        self._files = files
        self._folder = folder
        self._log_id = log_id
        self._config = config
        self._manifest_file = recovered.manifest_file
        self._manifest = recovered.manifest
        self._segments = recovered.segments
        self._epochs = recovered.epochs
        self._epochs_changed = recovered.no_room
        self._folder_changed = False
        self._last = recovered.last_batch
        self._durable_index = self.end_index
        self._settled_index = NO_INDEX
        self._generation = 0  # counts cuts: a sync that began before one proves nothing
        self._disk = threading.Lock()  # held by whoever changes manifest, epoch file or names
        self._tail: list[Batch] = []
        self._tail_bases: list[int] = []
        self._tail_bytes = 0

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
        """Recover the log in `folder`, which is made when missing; all of it is durable then.

        committed_index: of the checkpoint, committed and durable when that was saved. Raises CorruptLog for
        damage at or before it or the durable point, CorruptFile for a damaged manifest, DiskError.
        """
        recovered = Recovery(files, folder, log_id, committed_index).run()
        log = cls(files, folder, log_id, config or CommitlogConfig(), recovered)
        log.settle(committed_index)
        return log

    # --- where it stands

    @property
    def begin_index(self) -> int:
        return NO_INDEX if self._last is None else self._manifest.base_index

    @property
    def end_index(self) -> int:
        return NO_INDEX if self._last is None else self._last.last_index

    @property
    def durable_index(self) -> int:
        return self._durable_index

    @property
    def next_index(self) -> int:
        """end_index + 1; of an empty log 0, or the base of the last reset."""
        return self._manifest.base_index if self._last is None else self._last.next_index

    @property
    def begin_offset(self) -> int:
        return self._manifest.base_offset

    @property
    def end_offset(self) -> int:
        return self._manifest.base_offset if self._last is None else self._last.next_offset

    @property
    def last_term(self) -> int:
        return 0 if self._last is None else self._last.term

    @property
    def last_chain(self) -> bytes:
        """What the next batch is chained to."""
        return FIRST_CHAIN if self._last is None else self._last.header.chain

    @property
    def epochs(self) -> tuple[Epoch, ...]:
        return tuple(self._epochs)

    # --- writing

    def append(self, batches: Sequence[Batch]) -> None:
        """Write the batches at the end, all or none; durable only after a sync.

        Raises StorageFull or DiskError: nothing was stored. Raises InvariantError if a batch does not follow.
        """
        epochs = self._check_follow(batches)
        index, offset, last = self.end_index, self.end_offset, self._last
        try:
            start = 0
            for position, batch in enumerate(batches):
                if not self._fits(batch, batches[start].offset if start < position else batch.offset):
                    self._write(batches[start:position])
                    self._roll(batch.offset)
                    start = position
            self._write(batches[start:])
        except DiskError as error:
            try:
                self._cut_to(index, offset, last)
            except DiskError as again:
                raise InvariantError(f"a failed append could not be undone: {again}") from error
            raise
        if epochs:
            self._epochs.extend(epochs)
            self._epochs_changed = True

    def _check_follow(self, batches: Sequence[Batch]) -> list[Epoch]:
        """Return the epochs that the batches open. Raises InvariantError unless they follow the log's end."""
        index, offset, term = self.next_index, self.end_offset, self.last_term
        # After a reset the chain of what went before is not known: the first batch is taken as it is.
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

    def _fits(self, batch: Batch, run_offset: int) -> bool:
        """Whether the batch, after those from run_offset on, fits into the active segment."""
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
        self._last = batches[-1]
        for batch in batches:
            self._tail.append(batch)
            self._tail_bases.append(batch.base_index)
            self._tail_bytes += batch.size_bytes
        if self._tail_bytes > 2 * self._config.tail_cache_bytes:
            self._shrink_tail()

    def _shrink_tail(self) -> None:
        """Drop the older half, so that each batch is moved about once."""
        keep = len(self._tail)
        size = 0
        while keep > 0 and size + self._tail[keep - 1].size_bytes <= self._config.tail_cache_bytes:
            keep -= 1
            size += self._tail[keep].size_bytes
        del self._tail[:keep], self._tail_bases[:keep]
        self._tail_bytes = size

    # --- durability

    def start_sync(self) -> SyncTicket | None:
        """Begin to make everything durable that is written now; None when all of it is."""
        if self._durable_index == self.end_index and not self._epochs_changed:
            return None
        dirty = [segment for segment in self._segments if segment.dirty]
        for segment in dirty:
            segment.dirty = False
        ticket = SyncTicket(self, self._generation, self.end_index, [segment.file for segment in dirty])
        ticket.folder_changed, self._folder_changed = self._folder_changed, False
        if self._epochs_changed:
            ticket.epochs, self._epochs_changed = encode_epochs(self._epochs), False
        moved = self.end_offset - self._manifest.durable_offset
        if moved >= self._config.mark_interval_bytes or len(dirty) > 1:
            self._plan_mark(ticket)
        return ticket

    def _plan_mark(self, ticket: SyncTicket) -> None:
        """Let the sync also move the durable point up, with the index entries that a restart will want."""
        for segment in reversed(self._segments):
            if (entries := segment.take_unflushed()) is not None:
                ticket.entries.append(entries)
            elif segment.mapped:
                break
        ticket.manifest = replace(
            self._manifest, durable_index=ticket.end_index, durable_offset=self.end_offset
        )

    def carry_out(self, ticket: SyncTicket) -> None:
        """What SyncTicket.run does."""
        with self._disk:
            if ticket.generation != self._generation:
                return  # a cut came in between, and synced what it left
            for file in ticket.dirty:
                file.sync()
            if ticket.folder_changed:
                self._files.sync_folder(self._folder)
            try:
                self._carry_out_mark(ticket)
            except StorageFull:
                ticket.no_room = True  # all of it can be made anew: tried again with the next sync

    def _carry_out_mark(self, ticket: SyncTicket) -> None:
        for entries in ticket.entries:
            entries.write()
        if any(entries.position == 0 for entries in ticket.entries):
            self._files.sync_folder(self._folder)
        if ticket.epochs is not None:
            write_durably(self._files, f"{self._folder}/{EPOCHS_NAME}", ticket.epochs)
        if ticket.manifest is not None:
            self._manifest_file.save(ticket.manifest)

    def finish_sync(self, ticket: SyncTicket) -> None:
        """Take note that the ticket's run has ended well; ignored when the log was cut meanwhile."""
        if ticket.generation != self._generation:
            return
        self._durable_index = max(self._durable_index, ticket.end_index)
        if ticket.no_room:
            self._epochs_changed = True
            for segment in self._segments:
                if not segment.mapped:
                    segment.flushed = 0
        elif ticket.manifest is not None:
            self._manifest = ticket.manifest
            for segment in reversed(self._segments[:-1]):
                if segment.mapped:
                    break
                if segment.end_offset <= ticket.manifest.durable_offset:
                    segment.map_index(segment.end_offset)

    def close(self) -> None:
        """Make everything durable, move the durable point to the end, and give the files back."""
        ticket = self.start_sync()
        if ticket is None:
            ticket = SyncTicket(self, self._generation, self.end_index, [])
        if self.end_offset != self._manifest.durable_offset:
            self._plan_mark(ticket)
        ticket.run()
        self.finish_sync(ticket)
        for segment in self._segments:
            segment.close()

    # --- cutting

    def settle(self, committed_index: int) -> None:
        """Take note that nothing up to `committed_index` will be cut (R-07): it is read without a copy."""
        self._settled_index = max(self._settled_index, min(committed_index, self.end_index))

    def truncate_after(self, index: int) -> None:
        """Remove every record past `index`, a batch's last one, or NO_INDEX: all. Durable on return.

        A cut tail never returns, whenever a crash comes. Raises InvariantError for an index within a batch or
        below the settled one (R-07); then nothing has changed.
        """
        if index >= self.end_index:
            return
        if index < self._settled_index:
            raise InvariantError(f"{self._folder}: cut after {index}, but {self._settled_index} is committed")
        if index < self.begin_index:
            if index not in (NO_INDEX, self.begin_index - 1):
                raise InvariantError(f"{self._folder}: cut after {index}, before the log's begin")
            self._cut_to(NO_INDEX, self._manifest.base_offset, None)
            return
        last = self.batch_at(index)
        if last.last_index != index:
            raise InvariantError(f"{self._folder}: cut after {index}, within {last!r}")
        self._cut_to(index, last.next_offset, last)

    def reset(self, base_index: int, base_offset: int) -> None:
        """Empty the log; its next record has `base_index` at byte `base_offset`. Durable on return (D-12)."""
        manifest = Manifest(self._log_id, base_index, base_offset, base_index - 1, base_offset, Intent.RESET)
        removed = self._forget(0, None)
        self._settled_index = NO_INDEX
        self._manifest = replace(manifest, intent=Intent.NONE)
        self._durable_index = NO_INDEX
        with self._disk:
            self._manifest_file.save(manifest)
            for segment in removed:
                segment.close()
            remove_segments(self._files, self._folder, 0)
            write_durably(self._files, f"{self._folder}/{EPOCHS_NAME}", encode_epochs(()))
            self._manifest_file.save(self._manifest)

    def _cut_to(self, index: int, offset: int, last: Batch | None) -> None:
        """Intent, cut, sync, clear. In memory first: readers see the log before or after, never between."""
        manifest = self._manifest
        epochs = len(self._epochs)
        removed = self._forget(offset, last)
        if last is None:
            index = manifest.base_index - 1
        if offset < manifest.durable_offset:
            manifest = replace(manifest, durable_index=index, durable_offset=offset)
        self._manifest = manifest
        self._durable_index = self.end_index
        with self._disk:
            self._manifest_file.save(replace(manifest, intent=Intent.TRUNCATE, cut_offset=offset))
            for segment in removed:
                segment.close()
            cut_files(self._files, self._folder, offset)
            for segment in self._segments:
                if not segment.mapped:  # what is mapped was durable before
                    segment.file.sync()
                    segment.dirty = False
            if len(self._epochs) < epochs:
                try:
                    write_epochs(self._files, self._folder, self._epochs)
                except StorageFull:  # recovery drops what is too much in it; a sync will write it
                    self._epochs_changed = True
            self._files.sync_folder(self._folder)
            self._manifest_file.save(manifest)

    def _forget(self, offset: int, last: Batch | None) -> list[Segment]:
        """Drop from memory everything at or past `offset`. Return the segments that go."""
        self._generation += 1
        kept = [segment for segment in self._segments if segment.base_offset < offset]
        removed = self._segments[len(kept) :]
        for segment in kept:
            if segment.end_offset > offset:
                segment.cut(offset)
            elif not segment.mapped:
                segment.flushed = 0  # a flush that was on its way is dropped
        self._segments = kept
        self._last = last
        count = 0 if last is None else bisect_right(self._tail_bases, last.base_index)
        self._tail_bytes -= sum(batch.size_bytes for batch in self._tail[count:])
        del self._tail[count:], self._tail_bases[count:]
        self._epochs = [epoch for epoch in self._epochs if epoch.start_offset < offset]
        self._epochs_changed = bool(self._epochs)  # a sync that was on its way to write them is dropped
        self._folder_changed = False
        return removed

    # --- reading

    def term_at(self, index: int) -> int:
        """Return the term of the record at `index`; of NO_INDEX 0. Raises IndexError when it is not held."""
        if index == NO_INDEX:
            return 0
        if self._tail_bases and self._tail_bases[0] <= index <= self.end_index:
            return self._tail[bisect_right(self._tail_bases, index) - 1].term
        self._check_range(index)
        return self._entry(index).term

    def last_index_of_term_at_most(self, term: int) -> int:
        """Return the last index whose term is at most `term`, NO_INDEX for none (D-13)."""
        if self.last_term <= term:
            return self.end_index
        for segment in reversed(self._segments):
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

    def holds(self, batch: Batch) -> bool:
        """Whether this very batch stands in the log (D-17)."""
        if not self.begin_index <= batch.base_index <= self.end_index:
            return False
        return self.batch_at(batch.base_index) == batch

    def batch_at(self, index: int) -> Batch:
        """Return the batch that holds `index`. Raises IndexError when it is not held, CorruptLog."""
        return self.read_batches(index, 0)[0]

    def read_batches(self, from_index: int, max_bytes: int, until_index: int | None = None) -> list[Batch]:
        """Return whole batches from the one that holds `from_index`: at least one, else within `max_bytes`.

        until_index: stop after the batch that holds it. Settled batches are views of the file, verified; the
        newest are those that were appended. Raises IndexError for an index not held, CorruptLog, DiskError.
        """
        self._check_range(from_index)
        if self._tail_bases and self._tail_bases[0] <= from_index:
            return self._read_tail(from_index, max_bytes, until_index)
        segment = self._segment_of(from_index)
        row, _ = segment.entry_of(from_index)
        end = segment.index.row_within(row, max_bytes)
        if until_index is not None:
            end = min(end, max(row, segment.index.row_of_index(until_index)) + 1)
        mapped = segment.entry(end - 1).last_index <= self._settled_index
        return segment.read_rows(row, end, mapped=mapped)

    def _read_tail(self, from_index: int, max_bytes: int, until_index: int | None) -> list[Batch]:
        first = bisect_right(self._tail_bases, from_index) - 1
        end = len(self._tail)
        if until_index is not None:
            end = max(first + 1, bisect_right(self._tail_bases, until_index))
        size = self._tail[first].size_bytes
        for position in range(first + 1, end):
            size += self._tail[position].size_bytes
            if size > max_bytes:
                return self._tail[first:position]
        return self._tail[first:end]

    def first_index_at_or_after(self, timestamp_ms: int) -> int | None:
        """Return the first index whose timestamp is at or after the time, None when there is none."""
        timestamp_us = timestamp_ms * 1000
        for segment in self._segments:
            if segment.entry(segment.index.count - 1).peak_timestamp_us < timestamp_us:
                continue
            segment.verify_order()
            batch = segment.batch_of_row(segment.index.row_at_or_after(timestamp_us))
            times = read_columns(batch).column(_TIMESTAMP).view("int64").to_numpy()
            return batch.base_index + int((times >= timestamp_us).argmax())
        return None

    def _check_range(self, index: int) -> None:
        if self._last is None or not self.begin_index <= index <= self.end_index:
            raise IndexError(f"index {index} is not in [{self.begin_index}, {self.end_index}]")

    def _segment_of(self, index: int) -> Segment:
        segments = self._segments
        if len(segments) == 1:
            return segments[0]
        return segments[bisect_right(segments, index, key=lambda segment: segment.base_index) - 1]

    def _entry(self, index: int) -> IndexEntry:
        return self._segment_of(index).entry_of(index)[1]
