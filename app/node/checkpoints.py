"""Where a restart begins: the checkpoint (committed index) and the snapshot of the log's state.

The snapshot file holds msgpack [chain, snapshot]: the chain value of the batch that the snapshot was taken
behind, by which a restart sees whether the log still holds that very batch.
"""

import logging
from collections.abc import Callable
from typing import Any

import msgspec

from app.log_state import LogState
from app.replication import NO_INDEX, Disk, DriverConfig
from storage.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.commitlog import Commitlog
from storage.errors import StorageFull

logger = logging.getLogger(__name__)

REPLAY_BYTES = 4 * 1024 * 1024


class _Saved(msgspec.Struct, array_like=True):
    chain: bytes
    snapshot: bytes


class Checkpointer:
    """Saves in the disk thread, at most one save under way; what finds no room is tried again.

    Invariants: a saved committed index is durable in this log; so is the batch a saved snapshot rests on.
    """

    def __init__(
        self,
        log: Commitlog,
        checkpoint_file: CheckpointFile,
        snapshot_file: SnapshotFile,
        disk: Disk,
        config: DriverConfig,
        fail: Callable[[str, BaseException], None],
    ) -> None:
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
        self._taken: tuple[int, bytes] | None = None  # (index, payload), until that index is durable
        self._demanded = False

    def tick(self, state: LogState, committed_index: int, now_ms: int) -> None:
        """Save what is due."""
        if self._checkpoint_ms is None or self._snapshot_ms is None:
            self._checkpoint_ms = self._snapshot_ms = now_ms
        demanded, self._demanded = self._demanded, False
        if now_ms - self._snapshot_ms >= self._config.snapshot_interval_ms or (
            demanded and self._taken is None
        ):
            self._snapshot_ms = now_ms
            self._take(state)
        due = demanded or now_ms - self._checkpoint_ms >= self._config.checkpoint_interval_ms
        if due and not self._saving:
            self._checkpoint_ms = now_ms
            self.save(committed_index)

    @property
    def state_index(self) -> int:
        """The state after this index is safe on the disk; NO_INDEX: none that this life has saved."""
        return self._saved.state_index

    def demand(self) -> None:
        """Save the state with the next tick."""
        self._demanded = True

    def save_all(self, state: LogState, committed_index: int) -> None:
        """Save everything: the last act of a clean stop. The log must be durable by then."""
        self._take(state)
        self.save(committed_index)

    def cut(self) -> None:
        """The log was truncated: a snapshot that is not saved yet may be of what is gone."""
        self._taken = None

    def _take(self, state: LogState) -> None:
        if state.applied_index not in (self._saved.state_index, NO_INDEX):
            payload = msgspec.msgpack.encode(_Saved(self._log.last_chain, state.snapshot()))
            self._taken = (state.applied_index, payload)

    def save(self, committed_index: int) -> None:
        durable_index = self._log.durable_index
        taken = self._taken if self._taken is not None and self._taken[0] <= durable_index else None
        state_index = self._saved.state_index if taken is None else taken[0]
        checkpoint = Checkpoint(min(committed_index, durable_index), state_index)
        if checkpoint == self._saved:
            return
        if taken is not None:
            self._taken = None
        self._saving = True

        def work() -> None:
            if taken is not None:
                self._snapshot_file.save(taken[1])
            self._checkpoint_file.save(checkpoint)

        def then(_result: Any, error: BaseException | None) -> None:
            self._saving = False
            if error is None:
                self._saved = checkpoint
            elif isinstance(error, StorageFull):
                logger.warning("no room for a checkpoint: %s", error)
            else:
                self._fail("checkpoint", error)

        self._disk.submit(work, then)


def load_state(
    log: Commitlog,
    snapshot_file: SnapshotFile,
    *,
    idempotency_ms: int,
    state_type: type[LogState] = LogState,
) -> LogState:
    """Return the state of the log at its end: the snapshot and what came after it.

    A snapshot may rest on a batch that was cut since; then it goes back to what was committed at its time.
    Raises CorruptFile for a damaged snapshot.
    """
    state = state_type(idempotency_ms=idempotency_ms)
    payload = snapshot_file.load()
    if payload is not None:
        saved = msgspec.msgpack.decode(payload, type=_Saved)
        state = state_type.restore(saved.snapshot, idempotency_ms=idempotency_ms)
        index = state.applied_index
        held = log.begin_index <= index <= log.end_index != NO_INDEX
        if not held or log.batch_at(index).header.chain != saved.chain:
            state.truncate_after(state.committed_index)
    index = max(state.applied_index + 1, log.begin_index, 0)
    while index <= log.end_index:
        for batch in log.read_batches(index, REPLAY_BYTES):
            state.apply(batch)
            index = batch.next_index
    return state
