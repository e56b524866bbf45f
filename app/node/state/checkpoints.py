"""Starting point of a restart: the checkpoint (committed index) and the snapshot of the log's state.

The snapshot file holds msgpack [chain, snapshot]: the chain value of the last batch in the snapshot. It shows
a restart whether the log still holds that very batch.
"""

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from app.log.contract import NO_INDEX
from app.log.driver_interfaces import Disk, DriverConfig
from app.log.snapshot import Capture
from app.log.state import LogState
from storage.errors import Exhausted, NewerFormat, StorageFull
from storage.log.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.log.commitlog import Commitlog
from storage.units import MIB

logger = logging.getLogger(__name__)

READ_BYTES: Final = 4 * MIB  # of the log, at once when it is replayed
SLICE_BYTES: Final = MIB  # of a snapshot, copied in one turn of the loop
SAVED_BYTES_PER_S: Final = MIB  # snapshots of a large state are less frequent than the interval
BIN_MAX: Final = (1 << 32) - 1  # bytes of a msgpack value; a larger state has a head of its own
_SNAPSHOT_BIN = struct.Struct(">BI")  # msgpack: 0xc6, size of what follows
_LARGE = 0xC1  # no msgpack value begins with it
_LARGE_HEAD = struct.Struct(">BBQ")  # _LARGE, size of the chain, size of the state; both follow


class _Saved(msgspec.Struct, array_like=True):
    chain: bytes
    snapshot: memoryview


def _decode_saved(payload: memoryview) -> _Saved:
    """Invert _Taken.payload. Raises ValueError, msgspec.DecodeError."""
    if payload[:1] != bytes((_LARGE,)):
        return msgspec.msgpack.decode(payload, type=_Saved)
    if len(payload) < _LARGE_HEAD.size:
        raise ValueError("not a snapshot: too short")
    _, chain_size, size = _LARGE_HEAD.unpack_from(payload)
    begin = _LARGE_HEAD.size + chain_size
    if len(payload) != begin + size:
        raise ValueError("not a snapshot: its sizes are not those of the file")
    return _Saved(bytes(payload[_LARGE_HEAD.size : begin]), payload[begin:])


@dataclass(slots=True)
class _Taken:
    """A snapshot that is being copied in pieces. chain: of the batch that it was taken after."""

    capture: Capture
    chain: bytes
    pieces: list[bytes] = field(default_factory=list)
    is_whole: bool = False

    @property
    def index(self) -> int:
        return self.capture.index

    @property
    def committed_index(self) -> int:
        """Index up to which nothing of the snapshot can be truncated."""
        return self.capture.committed_index

    def copy(self, max_bytes: int) -> None:
        """Copy about max_bytes more."""
        pieces = self.capture.take(max_bytes)
        self.pieces += pieces
        self.is_whole = sum(map(len, pieces)) < max_bytes

    def payload(self) -> list[bytes]:
        """Return what `load_state` reads, in pieces: msgpack of _Saved, or the sizes, chain and state."""
        size = sum(map(len, self.pieces))
        if size > BIN_MAX:
            return [_LARGE_HEAD.pack(_LARGE, len(self.chain), size) + self.chain, *self.pieces]
        return [b"\x92" + msgspec.msgpack.encode(self.chain) + _SNAPSHOT_BIN.pack(0xC6, size), *self.pieces]


_EVERYTHING: Final = 1 << 62


class Checkpointer:
    """Saves in a disk thread, at most one save in progress; a save without disk space, descriptor or
    memory is repeated.

    Invariants: a saved committed index is durable in this log; so is the last batch of a saved snapshot.
    """

    def __init__(
        self,
        log: Commitlog,
        checkpoint_file: CheckpointFile,
        snapshot_file: SnapshotFile,
        disk: Disk,
        config: DriverConfig,
        fail: Callable[[str, BaseException], None],
        *,
        safe_index: int = NO_INDEX,
    ) -> None:
        """safe_index: of the saved snapshot, as load_state found it."""
        self._log = log
        self._checkpoint_file = checkpoint_file
        self._snapshot_file = snapshot_file
        self._disk = disk
        self._config = config
        self._fail = fail
        self._saved = Checkpoint()
        self._saving = False
        self._checkpoint_ms: int | None = None
        self._snapshot_ms: int | None = None
        self._taken: _Taken | None = None  # until its index is durable
        self._kept = (
            NO_INDEX,
            safe_index,
        )  # index, unknown at first, and committed index of the saved snapshot
        self._demanded = False
        self._saved_bytes = 0  # of the last snapshot

    def tick(self, state: LogState, committed_index: int, now_ms: int) -> None:
        """Save what is due."""
        if self._checkpoint_ms is None or self._snapshot_ms is None:
            self._checkpoint_ms = self._snapshot_ms = now_ms
        demanded, self._demanded = self._demanded, False
        interval_ms = max(self._config.snapshot_interval_ms, self._saved_bytes * 1000 // SAVED_BYTES_PER_S)
        if self._taken is not None and not self._taken.is_whole:
            self._taken.copy(SLICE_BYTES)
        elif now_ms - self._snapshot_ms >= interval_ms or (demanded and self._taken is None):
            self._snapshot_ms = now_ms
            self._take(state)
            if self._taken is not None:
                self._taken.copy(SLICE_BYTES)
        due = demanded or now_ms - self._checkpoint_ms >= self._config.checkpoint_interval_ms
        if due and not self._saving:
            self._checkpoint_ms = now_ms
            self.save(committed_index)

    @property
    def safe_index(self) -> int:
        """Index up to which a restart knows the state, whatever happens to the log; NO_INDEX: nothing is
        saved. The part that was not committed at the snapshot counts only while the log holds it."""
        return self._kept[1]

    def demand(self) -> None:
        """Save the state with the next tick."""
        self._demanded = True

    def save_all(self, state: LogState, committed_index: int) -> None:
        """Save everything: the last step of a clean stop. The log must be durable by then, and the state does
        not change any more: the disk thread copies it."""
        self._take(state)
        self.save(committed_index, is_last=True)

    def log_truncated(self) -> None:
        """The log was truncated: an unsaved snapshot may contain removed batches."""
        self._taken = None

    def _take(self, state: LogState) -> None:
        index, committed_index = state.applied_index, min(state.applied_index, state.committed_index)
        if index != NO_INDEX and (index, committed_index) != self._kept:
            self._taken = _Taken(state.capture(), self._log.last_chain)

    def save(self, committed_index: int, *, is_last: bool = False) -> None:
        durable_index = self._log.durable_index
        taken = self._taken
        if taken is not None and (not (taken.is_whole or is_last) or taken.index > durable_index):
            taken = None
        state_index = self._saved.state_index if taken is None else taken.index
        checkpoint = Checkpoint(min(committed_index, durable_index), state_index)
        if checkpoint == self._saved and taken is None:
            return
        if taken is not None:
            self._taken = None
        self._saving = True

        def work() -> None:
            if taken is not None:
                if not taken.is_whole:
                    taken.copy(_EVERYTHING)
                self._snapshot_file.save(*taken.payload())
            self._checkpoint_file.save(checkpoint)

        def then(_result: Any, error: BaseException | None) -> None:
            self._saving = False
            if error is None:
                self._saved = checkpoint
                if taken is not None:
                    self._saved_bytes = sum(map(len, taken.pieces))
                    self._kept = taken.index, taken.committed_index
            elif isinstance(error, StorageFull | Exhausted):
                logger.warning("a checkpoint is not stored, the next one will be: %s", error)
            else:
                self._fail("checkpoint", error)

        self._disk.submit(work, then)


def is_whole(state: LogState, log: Commitlog) -> bool:
    """Return whether the state includes every record before the log's first one."""
    return state.applied_index >= log.first_index - 1


class LoadedState(NamedTuple):
    """The state of a log at its end. safe_index: as in Checkpointer, of the saved snapshot."""

    state: LogState
    safe_index: int


def load_state(
    log: Commitlog,
    snapshot_file: SnapshotFile,
    *,
    idempotency_ms: int,
    state_type: type[LogState] = LogState,
    may_lose_committed: bool = False,
) -> LoadedState:
    """Return the state of the log at its end: the snapshot and the batches after it.

    If the last batch of the snapshot was truncated since, the state is rolled back to what was committed
    then. may_lose_committed: an unclean election may have lost committed records since. Then a snapshot that
    is still beyond the log's end is removed: other records may take those indexes. Raises CorruptFile for a
    damaged snapshot.
    """
    safe_index = NO_INDEX
    found = load_snapshot(snapshot_file, idempotency_ms=idempotency_ms, state_type=state_type)
    if found is None:
        state = state_type(idempotency_ms=idempotency_ms)
    else:
        state, chain = found
        index = state.applied_index
        safe_index = min(index, state.committed_index)
        held = log.begin_index <= index <= log.end_index != NO_INDEX
        if not held or log.batch_at(index).header.chain != chain:
            state.truncate_after(state.committed_index)
            if may_lose_committed and state.applied_index >= log.next_index:
                snapshot_file.remove()
                safe_index = NO_INDEX
                state = state_type(idempotency_ms=idempotency_ms)
    index = max(state.applied_index + 1, log.begin_index, 0)
    while index <= log.end_index:
        for batch in log.read_batches(index, READ_BYTES):
            state.apply(batch)
            index = batch.next_index
    return LoadedState(state, safe_index)


def load_snapshot(
    snapshot_file: SnapshotFile, *, idempotency_ms: int, state_type: type[LogState] = LogState
) -> tuple[LogState, bytes] | None:
    """Return the saved state, and the chain of its last batch; None if none was saved.

    Raises CorruptFile for damage, NewerFormat for an intact file that this version cannot read, DiskError.
    """
    payload = snapshot_file.load()
    if payload is None:
        return None
    try:
        saved = _decode_saved(memoryview(payload))
        restoring = state_type.restoring(idempotency_ms=idempotency_ms)
        for start in range(0, len(saved.snapshot), SLICE_BYTES):
            restoring.feed(saved.snapshot[start : start + SLICE_BYTES])
        return restoring.finish(), saved.chain
    except (ValueError, msgspec.DecodeError) as error:
        raise NewerFormat(snapshot_file.path, str(error)) from error
