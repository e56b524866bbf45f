"""The log's state (keys, producers, fence, cursors, members) for a replica whose log begins after the past.

A log that was reset to begin at B > 0 has no record of what was claimed before B. Its replica asks its leader
for the state, piece by piece, and may not lead until it has it. The state that comes is of a committed index
of the leader: what lies between B and there is in it already, and LogState.apply passes over it.
"""

from collections.abc import Callable
from typing import Final

from app.log_state import LogState
from app.raft.messages import StateChunk, StateRequest
from app.replication import NO_INDEX, DriverConfig, Transport
from storage.checksum import crc32c
from storage.commitlog import Commitlog

ASK_AGAIN_MS: Final = 1_000
SERVED_MAX: Final = 4  # snapshots that are being read at one time
REPLAY_BYTES: Final = 4 * 1024 * 1024


class StateTransfer:
    """Both sides, for one log at one node. `done` is called when the state has become whole."""

    def __init__(
        self,
        log_id: int,
        log: Commitlog,
        state: LogState,
        transport: Transport,
        done: Callable[[], None],
        chunk_bytes: int = DriverConfig.state_chunk_bytes,
    ) -> None:
        self._log_id = log_id
        self._log = log
        self._state = state
        self._transport = transport
        self._done = done
        self._chunk_bytes = chunk_bytes
        self._id = 0
        self._parts: list[bytes] = []
        self._asked_ms: int | None = None
        self._served: dict[tuple[str, int], bytes] = {}  # (asking node, id) -> snapshot, oldest first

    @property
    def is_whole(self) -> bool:
        """Whether the state knows everything before the log's first record."""
        return self._state.applied_index >= self._first_index - 1

    @property
    def holds_untrimmed(self) -> bool:
        """Whether the log holds every record that no committed trim has removed. A copy that began with its
        master's last segment does not, until a trim reaches its own begin."""
        return self._first_index <= self._state.trim_index

    @property
    def _first_index(self) -> int:
        """Index of the log's first record; of an empty log the index that it will get."""
        log = self._log
        return log.next_index if log.end_index == NO_INDEX else log.begin_index

    def accept_loss(self) -> None:
        """Go on without what precedes the log: an operator has accepted that it is lost (C-05)."""
        self._state.pass_over(self._first_index)
        self._asked_ms, self._parts = None, []
        self._replay()

    def tick(self, leader_id: str | None, now_ms: int) -> None:
        """Ask the leader, if need be; a lost question or answer is asked for again from the beginning."""
        if self.is_whole or leader_id is None:
            self._asked_ms = None
        elif self._asked_ms is None or now_ms - self._asked_ms >= ASK_AGAIN_MS:
            self._id = max(self._id + 1, now_ms)  # as no earlier life has asked
            self._parts = []
            self._ask(leader_id, 0, now_ms)

    def _ask(self, leader_id: str, offset: int, now_ms: int) -> None:
        self._asked_ms = now_ms
        self._transport.send(leader_id, self._log_id, StateRequest(self._id, offset))

    def serve(self, source: str, request: StateRequest) -> None:
        """Give a piece of the state as it stood when its first piece was asked for."""
        key = (source, request.id)
        if request.offset == 0 and key not in self._served and self.is_whole:
            self._served[key] = self._state.snapshot()
            while len(self._served) > SERVED_MAX:
                del self._served[next(iter(self._served))]
        snapshot = self._served.get(key)
        if snapshot is None:
            return
        data = snapshot[request.offset : request.offset + self._chunk_bytes]
        if request.offset + len(data) >= len(snapshot):
            del self._served[key]
        self._transport.send(
            source,
            self._log_id,
            StateChunk(request.id, request.offset, len(snapshot), crc32c(snapshot), data),
        )

    def take(self, source: str, chunk: StateChunk, now_ms: int) -> None:
        """Take the next piece; with the last one the state becomes the leader's."""
        size = sum(map(len, self._parts))
        if self._asked_ms is None or chunk.id != self._id or chunk.offset != size:
            return
        self._parts.append(chunk.data)
        size += len(chunk.data)
        if size < chunk.total:
            self._ask(source, size, now_ms)
            return
        self._asked_ms = None
        snapshot = b"".join(self._parts)
        self._parts = []
        if crc32c(snapshot) != chunk.crc:
            return  # pieces of two snapshots: asked for again
        taken = type(self._state).restore(snapshot, idempotency_ms=self._state.idempotency_ms)
        taken.truncate_after(taken.committed_index)
        if taken.applied_index < self._first_index - 1:
            return  # older than what this log lacks: asked for again
        self._state.become(taken)
        self._replay()
        self._done()

    def _replay(self) -> None:
        """Apply what this log holds beyond the state."""
        log, state = self._log, self._state
        index = max(state.applied_index + 1, log.begin_index)
        while index <= log.end_index:
            for batch in log.read_batches(index, REPLAY_BYTES):
                state.apply(batch)
                index = batch.next_index
