"""The leader's dispatcher of one peer (D-01 to D-14): finds where the logs agree, then pushes the rest.

COMPARE --equal, nothing after it--> APPEND --INCONSISTENT_STATE, new term--> COMPARE
COMPARE --equal, but more after it; or nothing in common--> TRUNCATE --done--> APPEND
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.log.contract import NO_INDEX, Durability, PeerStatus, ReplicaLog
from app.raft.config import RaftConfig
from app.raft.messages import PushAnswer, PushCode, PushRequest, PushType
from app.raft.quorum import QuorumChecker
from app.raft.state import MemberState, Outbox
from storage.format.batch import Batch


class DispatcherState(StrEnum):
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"


@dataclass(slots=True)
class Push:
    """Batches in flight, up to `last_index`; `next_offset` is the byte position after them."""

    last_index: int
    next_offset: int
    size_bytes: int
    sent_ms: int


class Dispatcher:
    """Brings one peer to the leader's log. `step` does what can be done now; repeated calls are harmless.

    Invariants: pending pushes are consecutive and end at write_index - 1; a watermark is set only from an
    answer of this term and session.
    """

    def __init__(
        self,
        peer: str,
        state: MemberState,
        log: ReplicaLog,
        outbox: Outbox,
        quorum: QuorumChecker,
        config: RaftConfig,
        session: int = 0,
    ) -> None:
        """session: the last one with this peer that this process has begun."""
        self.peer = peer
        self.state = DispatcherState.COMPARE
        self._member = state
        self._log = log
        self._outbox = outbox
        self._quorum = quorum
        self._config = config
        self._term = -1
        self._leader_id: str | None = None
        self.session = session
        self.peer_may_lead = False  # from its last answer of this term
        self._peer_is_sound = True  # the same
        self._incarnation = 0
        self._asked_ms: int | None = None  # when the COMPARE or TRUNCATE in flight was sent
        self._compare_index = NO_INDEX
        self._truncate_index = NO_INDEX
        self._reset = False
        self._write_index = 0
        self._pending: dict[int, Push] = {}  # by base index
        self._pending_bytes = 0
        self._acked_offset = 0  # byte position after the watermark, to the push
        self._sent_committed = NO_INDEX
        self._last_push_ms = 0
        self._last_leak_check_ms = 0
        self._throttled = False
        self._quota_from_ms = 0
        self._quota_used_bytes = 0

    def step(self, now_ms: int, fresh: Sequence[Batch] = ()) -> None:
        """Do what can be done now. fresh: batches just written, pushed without reading them back."""
        if not self._refresh():
            return
        if self.state is DispatcherState.APPEND:
            self._append(now_ms, fresh)
        elif self.state is DispatcherState.COMPARE:
            self._compare(now_ms)
        else:
            self._truncate(now_ms)

    def answer(self, answer: PushAnswer, now_ms: int) -> None:
        """Handle an answer of the current term; a stale one, of an earlier session, changes nothing."""
        if not self._refresh() or answer.session != self.session:
            return
        self.peer_may_lead, self._peer_is_sound = answer.may_lead, answer.sound
        self._quorum.set_sound(self.peer, answer.sound)
        if self.state is DispatcherState.APPEND:
            if answer.type in (PushType.APPEND, PushType.COMMIT):
                self._acknowledged(answer)
        elif self.state is DispatcherState.COMPARE:
            if answer.type is PushType.COMPARE and answer.index == self._compare_index:
                self._compared(answer)
        elif answer.type is PushType.TRUNCATE:
            self._truncated(answer)
        self.step(now_ms)

    def revive(self) -> None:
        """The peer answers again after a silence: requests in flight are probably lost, so repeat them."""
        self._asked_ms = None
        self._last_push_ms = -self._config.idle_commit_interval_ms
        if (push := self._first_pending()) is not None:
            push.sent_ms = -self._config.max_push_timeout_ms - 1

    def status(self, heard_ms: int, *, has_room: bool) -> PeerStatus:
        """Return the progress of the peer. heard_ms: when it last answered. has_room: on its disk."""
        known = self.state is DispatcherState.APPEND
        lag_bytes = max(0, self._log.end_offset - self._acked_offset) if known else None
        watermark = self._quorum.watermarks.get(self.peer, NO_INDEX)
        return PeerStatus(
            self.peer,
            self.state.value,
            watermark,
            len(self._pending),
            lag_bytes,
            heard_ms=heard_ms,
            has_room=has_room,
        )

    @property
    def is_level(self) -> bool:
        """Return whether the peer could lead soon: it holds nearly all of the log, by `level_lag_bytes`."""
        lag_bytes = self._log.end_offset - self._acked_offset
        near = self.state is DispatcherState.APPEND and lag_bytes <= self._config.level_lag_bytes
        return near and self.peer_may_lead

    # --- D-01 to D-03: the state ---------------------------------------------------------------------------

    def _refresh(self) -> bool:
        """Return whether this node leads; a new term or leader starts the comparison again (D-02)."""
        member = self._member
        if not member.leads:
            return False
        if self._term != member.term or self._leader_id != member.leader_id:
            self._term, self._leader_id = member.term, member.leader_id
            self._sent_committed = NO_INDEX
            self.peer_may_lead = False
            self._enter_compare()
        return True

    def _change(self, state: DispatcherState) -> None:
        self.state = state
        self.session += 1

    def _enter_compare(self) -> None:
        self._change(DispatcherState.COMPARE)
        self._incarnation = 0
        self._compare_index = NO_INDEX
        self._asked_ms = None
        self._pending.clear()
        self._pending_bytes = 0

    def _enter_truncate(self, index: int, *, reset: bool) -> None:
        self._change(DispatcherState.TRUNCATE)
        self._compare_index = NO_INDEX
        self._asked_ms = None
        self._truncate_index, self._reset = index, reset
        if reset:  # its acknowledgements end with the log that it gives up
            self._quorum.set_watermark(self.peer, NO_INDEX)

    def _enter_append(self, index: int) -> None:
        if index < self._log.begin_index:  # trimmed since the question was sent
            self._enter_compare()
            return
        self._change(DispatcherState.APPEND)
        self._compare_index = NO_INDEX
        self._quorum.set_watermark(self.peer, index)
        self._acked_offset = self._log.batch_at(index).next_offset
        self._write_index = index + 1
        self._throttled = False

    # --- D-04 to D-10: APPEND ------------------------------------------------------------------------------

    def _append(self, now_ms: int, fresh: Sequence[Batch]) -> None:
        log, config = self._log, self._config
        if self._window_is_full():
            self._throttle(now_ms)
            self._drop_acknowledged()
        elif now_ms - self._last_leak_check_ms >= config.leak_check_interval_ms:
            self._last_leak_check_ms = now_ms
            self._drop_acknowledged()
        while self._write_index <= log.end_index:
            if self._write_index < log.begin_index:  # trimmed meanwhile: restart at the beginning (D-12 7)
                self._enter_compare()
                self._compare(now_ms)
                return
            if self._window_is_full() or not self._has_quota(now_ms):
                break
            if fresh and fresh[0].base_index == self._write_index:
                batches = fresh
            else:
                batches = log.read_batches(self._write_index, config.push_max_bytes)
            self._write_index = batches[-1].next_index
            self._push(batches, now_ms)
        else:
            self._commit(now_ms)
        self._retry_lost(now_ms)

    def _window_is_full(self) -> bool:
        config = self._config
        return len(self._pending) >= config.max_pending or self._pending_bytes >= config.max_pending_bytes

    def _is_far_behind(self) -> bool:
        return self._log.end_offset - self._acked_offset > self._config.peer_push_throttle_point_bytes

    def _throttle(self, now_ms: int) -> None:
        """Limit the rate of a peer that has filled its window and lags far behind (D-09)."""
        if not self._throttled and self._is_far_behind():
            self._throttled = True
            self._quota_from_ms, self._quota_used_bytes = now_ms, 0

    def _has_quota(self, now_ms: int) -> bool:
        if self._throttled and not self._is_far_behind():
            self._throttled = False
        if not self._throttled:
            return True
        if now_ms - self._quota_from_ms >= 1_000:
            self._quota_from_ms, self._quota_used_bytes = now_ms, 0
        return self._quota_used_bytes < self._config.peer_push_quota_bytes_per_s

    def _push(self, batches: Sequence[Batch], now_ms: int) -> None:
        first, last = batches[0], batches[-1]
        size_bytes = last.next_offset - first.offset
        index, index_term = self._before(first.base_index)
        self._send(PushType.APPEND, index, index_term, now_ms, batches=tuple(batches))
        self._quota_used_bytes += size_bytes
        if first.base_index not in self._pending:
            self._pending_bytes += size_bytes
            self._pending[first.base_index] = Push(last.last_index, last.next_offset, size_bytes, now_ms)

    def _commit(self, now_ms: int) -> None:
        """Send the committed index, as everything is pushed; check that the peer holds what it reported."""
        is_due = self._sent_committed < self._member.committed_index or not self._peer_is_sound
        config = self._config
        interval_ms = config.commit_interval_ms if is_due else config.idle_commit_interval_ms
        if now_ms - self._last_push_ms >= interval_ms:
            index, index_term = self._before(self._quorum.watermarks[self.peer] + 1)
            if index < self._log.begin_index:
                index = NO_INDEX
            self._send(PushType.COMMIT, index, index_term, now_ms)

    def _first_pending(self) -> Push | None:
        return next(iter(self._pending.values()), None)

    def _retry_lost(self, now_ms: int) -> None:
        """Repeat the push directly after the watermark if its answer is overdue (D-07)."""
        push = self._first_pending()
        if push is None or now_ms - push.sent_ms <= self._config.max_push_timeout_ms:
            return
        from_index = self._quorum.watermarks[self.peer] + 1
        if from_index < self._log.begin_index:  # trimmed meanwhile
            self._enter_compare()
        elif from_index <= push.last_index:
            push.sent_ms = now_ms
            batches = self._log.read_batches(from_index, self._config.push_max_bytes, push.last_index)
            index, index_term = self._before(from_index)
            self._send(PushType.APPEND, index, index_term, now_ms, batches=tuple(batches))

    def _drop_acknowledged(self) -> None:
        """Remove pushes at or below the watermark from the window (D-08, D-10)."""
        watermark = self._quorum.watermarks[self.peer]
        for base_index, push in list(self._pending.items()):
            if push.last_index > watermark:
                break
            del self._pending[base_index]
            self._pending_bytes -= push.size_bytes
            self._acked_offset = push.next_offset

    def _acknowledged(self, answer: PushAnswer) -> None:
        """D-10. Any code but the two named below is left to D-07."""
        if answer.code is PushCode.SUCCESS and answer.index <= self._log.end_index:
            self._quorum.raise_watermark(self.peer, answer.index)
            self._drop_acknowledged()
        elif answer.code in (PushCode.SUCCESS, PushCode.INCONSISTENT_STATE):
            self._enter_compare()  # an ack beyond the leader's end belongs to another log

    # --- D-11 to D-13: COMPARE -----------------------------------------------------------------------------

    def _compare(self, now_ms: int) -> None:
        log = self._log
        if log.end_index == NO_INDEX or self._is_waiting(now_ms):
            return
        if not log.begin_index <= self._compare_index <= log.end_index:
            self._compare_index = log.end_index
        self._asked_ms = now_ms
        self._send(PushType.COMPARE, self._compare_index, log.term_at(self._compare_index), now_ms)

    def _is_waiting(self, now_ms: int) -> bool:
        """Return whether a COMPARE or TRUNCATE is in flight and not yet overdue."""
        return self._asked_ms is not None and now_ms - self._asked_ms < self._config.compare_timeout_ms

    def _compared(self, answer: PushAnswer) -> None:
        """D-12, case by case. b, e: the follower's beginning and end; B, E: the leader's."""
        log, compared = self._log, self._compare_index
        self._asked_ms = None
        self._incarnation = answer.incarnation
        if answer.code is PushCode.SUCCESS:
            if compared == answer.end_index:
                self._enter_append(compared)  # (1)
            else:
                self._enter_truncate(compared, reset=False)  # (2)
            return
        if answer.code is not PushCode.INCONSISTENT_STATE:
            return
        if answer.end_index < log.begin_index or answer.begin_index > log.end_index:
            self._enter_truncate(self._reset_index(answer), reset=True)  # (3) disjoint
        elif compared < answer.begin_index:
            self._enter_truncate(log.begin_index, reset=True)  # (4)
        else:
            self._compare_index = self._further_back(answer)  # (5), (6)
            if self._compare_index < log.begin_index:
                self._enter_truncate(log.begin_index, reset=True)  # (7)

    def _reset_index(self, answer: PushAnswer) -> int:
        """Return where the log of a disjoint peer begins after its reset: at our beginning, or, if an earlier
        reset has left it empty, at the later beginning of that. Otherwise it would forget that everything
        before the later one was committed, and could elect a removed member that lacks it (R-02)."""
        log = self._log
        is_empty = answer.end_index < answer.begin_index
        keeps = is_empty and log.begin_index <= answer.begin_index <= log.end_index
        return answer.begin_index if keeps else log.begin_index

    def _further_back(self, answer: PushAnswer) -> int:
        """Return the next index to compare: one step per term, not per record (D-13).

        After the follower's conflict index its terms are newer than ours, and after our last record of its
        conflict term ours are newer than its: no record there can match.
        """
        if answer.conflict_index == NO_INDEX:
            return NO_INDEX
        ours = self._log.last_index_of_term_at_most(answer.conflict_term)
        index = min(self._compare_index - 1, answer.end_index, answer.conflict_index, ours)
        return self._log.floor_batch_end(index) if index >= self._log.begin_index else NO_INDEX

    # --- D-14: TRUNCATE ------------------------------------------------------------------------------------

    def _truncate(self, now_ms: int) -> None:
        if self._is_waiting(now_ms):
            return
        if self._truncate_index < self._log.begin_index:  # trimmed meanwhile
            self._enter_compare()
            self._compare(now_ms)
            return
        batch = self._log.batch_at(self._truncate_index)
        self._truncate_index = batch.last_index
        index, index_term = self._before(batch.base_index)
        self._asked_ms = now_ms
        self._send(PushType.TRUNCATE, index, index_term, now_ms, reset=self._reset, batches=(batch,))

    def _truncated(self, answer: PushAnswer) -> None:
        """Enter APPEND only if the peer's end is the truncate index; otherwise stay and repeat."""
        if answer.code is PushCode.SUCCESS and answer.end_index == self._truncate_index:
            self._enter_append(self._truncate_index)
        elif answer.code is PushCode.INCONSISTENT_STATE:
            self._enter_compare()

    # --- D-06: every push ----------------------------------------------------------------------------------

    def _before(self, base_index: int) -> tuple[int, int]:
        """Return index and term of the record before `base_index`; term 0 if the leader does not hold it."""
        index = base_index - 1
        return index, self._log.term_at(index) if index >= max(self._log.begin_index, 0) else 0

    def _send(
        self,
        kind: PushType,
        index: int,
        index_term: int,
        now_ms: int,
        *,
        reset: bool = False,
        batches: tuple[Batch, ...] = (),
    ) -> None:
        member = self._member
        self._last_push_ms = now_ms
        self._sent_committed = member.committed_index
        request = PushRequest(
            member.term,
            kind,
            member.node_id,
            member.committed_index,
            self.session,
            self._incarnation,
            index,
            index_term,
            self._log.begin_index,
            reset,
            member.durability is Durability.FSYNC,
            batches,
        )
        self._outbox.send(self.peer, request)
