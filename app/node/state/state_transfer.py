"""Transfer of the log's state (keys, producers, fence, cursors, members) to a replica without earlier
records.

A log that was reset to begin at B > 0 has no record of what was claimed before B. Its replica requests the
state from its leader, in pieces, or from its peers while there is no leader, and may not lead until it has
it. The received state is of a committed index of its sender: it includes the records between B and there, and
LogState.apply skips them. Both sides work in slices: copying, decoding and replaying a large state never
blocks the loop.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from app.log.driver_interfaces import Disk, DriverConfig, Transport
from app.log.restoring import Restoring, WholeRestoring
from app.log.snapshot import Capture
from app.log.state import LogState
from app.node.state.checkpoints import is_whole
from app.raft.messages import StateChunk, StateRequest
from storage.errors import StorageFull
from storage.format.checksum import extend_crc32c
from storage.log.commitlog import Commitlog
from storage.units import KIB, MIB

logger = logging.getLogger(__name__)

ASK_AGAIN_MS: Final = 1_000
ASK_AGAIN_MAX_MS: Final = 16_000  # where the pieces arrive later than that
SERVED_MAX: Final = 4  # snapshots that are sent at one time
SERVED_MS: Final = 60_000  # a snapshot without requests for this long is dropped
COPY_BYTES: Final = 4 * MIB  # of a snapshot, copied in one turn of the loop
REPLAY_BYTES: Final = MIB  # of the log, applied to a received state in one tick
REBUILD_BYTES: Final = 256 * KIB  # of the log, applied in one turn of the loop to a state that is rebuilt


@dataclass(slots=True)
class _Served:
    """A snapshot for one replica, in chunks. id: of its last request for the first chunk."""

    id: int
    capture: Capture
    used_ms: int
    chunk_bytes: int
    chunks: list[bytes] = field(default_factory=list)
    rest: bytearray = field(default_factory=bytearray)  # what does not fill a chunk yet
    size: int = 0
    crc: int = 0
    is_whole: bool = False

    def copy(self, max_bytes: int) -> None:
        """Copy about max_bytes more of the state."""
        pieces = self.capture.take(max_bytes)
        for piece in pieces:
            self.size += len(piece)
            self.crc = extend_crc32c(self.crc, piece)
            self.rest += piece
            while len(self.rest) >= self.chunk_bytes:
                self.chunks.append(bytes(self.rest[: self.chunk_bytes]))
                del self.rest[: self.chunk_bytes]
        if sum(map(len, pieces)) < max_bytes:
            self.is_whole = True
            if self.rest:
                self.chunks.append(bytes(self.rest))
                self.rest.clear()


class StateTransfer:
    """Both sides, for one log at one node. `done` is called when the state is complete."""

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
        self._now_ms = 0
        self._id = 0
        # The received part of the leader's state.
        self._restoring: Restoring[LogState] | WholeRestoring[LogState] | None = None
        self._size = 0  # of that, in bytes
        self._crc = 0
        self._taken: LogState | None = None  # the leader's state, to which this log is being applied
        self._rebuilt: LogState | None = None  # as _taken: of this log alone, while its driver waits
        self._asked_ms: int | None = None
        self._pause_ms = ASK_AGAIN_MS  # before it is requested again
        self._leader_id: str | None = None  # the last one that was known
        self._turn = 0  # whose it is among the peers
        self._served: dict[str, _Served] = {}  # by requesting node, oldest first

    @property
    def is_whole(self) -> bool:
        """True if the state includes everything before the log's first record."""
        return is_whole(self._state, self._log)

    @property
    def holds_untrimmed(self) -> bool:
        """True if the log holds every record that no trim has removed. A copy that began with its master's
        last segment does not, until a trim reaches its own beginning.

        A trim in this log counts although it is not known to be committed: after a crash the checkpoint may
        be older than a trim that was carried out. Whichever copy leads with it in its log commits it.
        """
        return self._log.first_index <= self._state.logged_trim_index

    def accept_loss(self, committed_index: int) -> None:
        """Continue without the records before the log: an operator has accepted their loss (C-05). The
        state is to be rebuilt (`rebuild`).

        committed_index: as in `LogState.committed`; the fewer records may be undone, the less there is to
        keep for that. A state that knows records after the log is of no use: it is forgotten.
        """
        is_ahead = self._state.applied_index >= self._log.next_index
        rebuilt = self._empty_state() if is_ahead else self._state
        rebuilt.pass_over(self._log.first_index)
        rebuilt.committed(committed_index)
        self._asked_ms = self._restoring = self._taken = None
        self._rebuilt = rebuilt

    def epoch_began(self, first_index: int, committed_index: int) -> bool:
        """The next master may lack what the last one had committed: keep no state that knows committed
        records from `first_index` on, where the records of the epoch begin. Return whether it is rebuilt.

        The next master sends what the log cannot restore, also what the last one was asked for. No
        snapshot is sent on that was taken before. committed_index: as in `accept_loss`.
        """
        self._asked_ms = self._restoring = self._taken = None
        self._served.clear()
        if self._state.committed_index < first_index:
            return False
        self._rebuilt = self._empty_state()
        self._rebuilt.committed(committed_index)
        return True

    def _empty_state(self) -> LogState:
        return type(self._state)(idempotency_ms=self._state.idempotency_ms)

    @property
    def is_rebuilding(self) -> bool:
        """True from `accept_loss` or `epoch_began` until `rebuild` has returned True: until then the log must
        not change, and nothing may be decided by the state."""
        return self._rebuilt is not None

    def rebuild(self) -> bool:
        """Apply the next slice of the log to the state that is being rebuilt; return whether it was the
        last, and the state is adopted. Nothing is applied after a gap: the state must be received first."""
        rebuilt = self._rebuilt
        if rebuilt is None or (is_whole(rebuilt, self._log) and not self._apply_next(rebuilt, REBUILD_BYTES)):
            return False
        self._rebuilt = None
        self._state.become(rebuilt)
        return True

    def tick(self, leader_id: str | None, now_ms: int, peers: Sequence[str] = ()) -> None:
        """Request the state if it is missing; after a lost request or answer, again from the beginning.

        peers: that are asked in turn while there is no leader. The state is committed, whichever replica
        sends it; and this may be the one copy with records that the next leader must hold.
        """
        self._now_ms = now_ms
        if leader_id not in (None, self._leader_id):
            self._leader_id, self._pause_ms = leader_id, ASK_AGAIN_MS  # over another link
        for source in [each for each, served in self._served.items() if now_ms - served.used_ms > SERVED_MS]:
            del self._served[source]
        for source, served in self._served.items():
            if not served.is_whole:
                self._copy(source, served)
        if self.is_whole:
            self._asked_ms = self._taken = None
            self._pause_ms = ASK_AGAIN_MS
        elif self._taken is not None:
            self._replay(self._taken)
        elif leader_id is None and not peers:
            self._asked_ms = None
        elif self._asked_ms is None or now_ms - self._asked_ms >= self._pause_ms:
            self._id = max(self._id + 1, now_ms)  # an id that no earlier incarnation has used
            self._begin()
            self._turn += 1
            self._ask(leader_id or peers[self._turn % len(peers)], 0, now_ms)

    def _begin(self) -> None:
        self._restoring = type(self._state).restoring(idempotency_ms=self._state.idempotency_ms)
        self._size = self._crc = 0

    def _ask(self, leader_id: str, offset: int, now_ms: int) -> None:
        self._asked_ms = now_ms
        self._transport.send(leader_id, self._log_id, StateRequest(self._id, offset))

    def log_truncated(self) -> None:
        """The log was truncated: a replay may have applied removed records, and starts again."""
        self._taken = None

    def forget(self) -> None:
        """Let go of every state that is received, rebuilt or sent: the log is closed."""
        self._restoring = self._taken = self._rebuilt = None
        self._served.clear()

    # --- the side that has the state

    def serve(self, source: str, request: StateRequest) -> None:
        """Send a piece of the state as it was when its first piece was requested."""
        served = self._served.get(source)
        if request.offset == 0 and self.is_whole and (served is None or served.id != request.id):
            if served is None or served.is_whole:
                self._served.pop(source, None)
                served = self._served[source] = _Served(
                    request.id, self._state.capture(), self._now_ms, self._chunk_bytes
                )
                while len(self._served) > SERVED_MAX:
                    del self._served[next(iter(self._served))]
            served.id = request.id  # requested again before it was copied: the copy continues
        if served is None or served.id != request.id:
            return
        served.used_ms = self._now_ms
        if served.is_whole:
            self._send(source, served, request.offset)
        elif request.offset == 0:
            self._copy(source, served)

    def _copy(self, source: str, served: _Served) -> None:
        served.copy(COPY_BYTES)
        if served.is_whole:
            self._send(source, served, 0)

    def _send(self, source: str, served: _Served, offset: int) -> None:
        number, skipped = divmod(offset, self._chunk_bytes)
        if number >= len(served.chunks):
            return
        data = served.chunks[number][skipped:]
        self._transport.send(
            source, self._log_id, StateChunk(served.id, offset, served.size, served.crc, data)
        )
        if offset + len(data) >= served.size:
            del self._served[source]

    # --- the side that lacks it

    def take(self, source: str, chunk: StateChunk, now_ms: int) -> None:
        """Take the next piece; after the last one, adopt the leader's state. A piece that was given up too
        early, over a slow link, gives the later ones more time: otherwise none would ever be in time."""
        if self._asked_ms is None or self._restoring is None:
            return
        if chunk.id < self._id:
            self._pause_ms = min(2 * self._pause_ms, ASK_AGAIN_MAX_MS)
        if chunk.id != self._id or chunk.offset != self._size:
            return
        self._size += len(chunk.data)
        self._crc = extend_crc32c(self._crc, chunk.data)
        try:
            self._restoring.feed(chunk.data)
            if self._size < chunk.total:
                self._ask(source, self._size, now_ms)
                return
            restoring, self._restoring = self._restoring, None
            if self._crc != chunk.crc:
                return  # pieces of two snapshots: requested again
            taken = restoring.finish()
        except ValueError as error:
            logger.warning(
                "the state received from %s cannot be read and is requested again: %s", source, error
            )
            self._restoring = None
            return
        self._asked_ms = None
        taken.truncate_after(taken.committed_index)
        if taken.applied_index < self._log.first_index - 1:
            return  # older than what this log lacks: requested again
        self._taken = taken
        self._replay(taken)

    def _replay(self, taken: LogState) -> None:
        """Apply a slice of this log's records after the state; adopt it when all are applied."""
        if self._apply_next(taken, REPLAY_BYTES):
            self._taken = None
            self._state.become(taken)
            self._done()

    def _apply_next(self, state: LogState, max_bytes: int) -> bool:
        """Apply about max_bytes of the log to a state; return whether that was the rest."""
        log = self._log
        index = max(state.applied_index + 1, log.begin_index)
        if index <= log.end_index:
            for batch in log.read_batches(index, max_bytes):
                state.apply(batch)
                index = batch.next_index
        return index > log.end_index


class BeginEpoch:
    """Epoch of the log's beginning, after a reset to a beginning within an epoch: its record is before the
    beginning.

    The replica asks its leader. Both sides, for one log at one node. The ids of its requests are negative,
    those of a state transfer positive.
    """

    def __init__(
        self,
        node_id: str,
        log_id: int,
        log: Commitlog,
        transport: Transport,
        disk: Disk,
        fail: Callable[[str, BaseException], None],
    ) -> None:
        """fail(what, error): the disk has failed: nothing more may be written (R-11)."""
        self._node_id = node_id
        self._log_id = log_id
        self._log = log
        self._transport = transport
        self._disk = disk
        self._fail = fail
        self._id = 0  # of the open request; 0: none
        self._first_id = 0  # of the first request of `_asked`: an answer to it may come after a repetition
        self._asked_ms = 0
        # Of the newest request: leader, its term, and truncation count of the log.
        self._asked: tuple[str, int, int] | None = None
        self._answered: tuple[str, int, int] | None = None

    def tick(self, leader_id: str | None, term: int, now_ms: int) -> None:
        """Ask the leader if the epoch is missing, each second until it has answered. A leader that does not
        know it, or is of an earlier version, is asked once a term: it may be of a later version in the next.
        term: the present one. now_ms: monotonic."""
        log = self._log
        if log.knows_begin_epoch or leader_id is None or leader_id == self._node_id:
            return
        asked = (leader_id, term, log.truncation_count)
        if self._answered == asked:
            return
        if not self._id or now_ms - self._asked_ms >= ASK_AGAIN_MS or self._asked != asked:
            self._id = min(self._id - 1, -now_ms)
            if self._asked != asked:
                self._first_id = self._id
            self._asked_ms, self._asked = now_ms, asked
            request = StateRequest(self._id, 0, log.term_at(log.begin_index))
            self._transport.send(leader_id, self._log_id, request)

    def serve(self, source: str, request: StateRequest) -> None:
        """Answer with the epoch of the term, if this log knows it."""
        known = [epoch for epoch in self._log.epochs if epoch.epoch == request.begin_term]
        answer = StateChunk(request.id, 0, 0, 0, b"", known[0] if known else None)
        self._transport.send(source, self._log_id, answer)

    def take(self, answer: StateChunk) -> None:
        """Adopt the epoch of an answer to the open request; an epoch that does not fit is ignored."""
        log = self._log
        if not self._id or not self._id <= answer.id <= self._first_id:
            return
        self._id = 0
        self._answered = self._asked  # the log may have been reset since to another beginning
        ticket = None if answer.epoch is None else log.adopt_begin_epoch(answer.epoch)
        if ticket is not None:
            self._disk.submit(ticket.move_begin, self._kept)

    def _kept(self, _result: Any, error: BaseException | None) -> None:
        if isinstance(error, StorageFull):  # known until a restart, which asks again; a trim saves it too
            logger.warning("the epoch of the beginning of log %d is not saved: %s", self._log_id, error)
        elif error is not None:
            self._fail("the epoch of the beginning", error)
