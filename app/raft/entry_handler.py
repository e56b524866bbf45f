"""The follower's entry handler (D-15 to D-21): takes pushes, in order, and acknowledges what it holds."""

from dataclasses import dataclass

from app.log.contract import NO_INDEX, ReplicaLog, Reset, TruncateAfter
from app.log.events import Truncated
from app.raft.config import RaftConfig
from app.raft.messages import PushAnswer, PushCode, PushRequest, PushType
from app.raft.state import MemberState, Outbox, committed_at_open, is_of_term


@dataclass(slots=True)
class Waiting:
    """An append that arrived before its predecessor (D-16)."""

    request: PushRequest
    received_ms: int


@dataclass(slots=True)
class Deferred:
    """A COMPARE or TRUNCATE that is answered once everything up to `index` may be acknowledged (D-14)."""

    request: PushRequest
    index: int


class EntryHandler:
    """Handles pushes of the current leader only: core.py has refused all others (D-21).

    Invariants: `matched_index` is the last index that is known to be the leader's, too; the committed index
    never exceeds it (R-12), and no acknowledgement names more than what is both matched and held.
    """

    def __init__(
        self, state: MemberState, log: ReplicaLog, outbox: Outbox, config: RaftConfig, incarnation: int
    ) -> None:
        """incarnation: drawn at random; pushes to an earlier incarnation of this member have another one."""
        self._incarnation = incarnation
        self._term = NO_INDEX
        self._stated_term = NO_INDEX  # the last one in which a leader had committed a record of it
        self._session = 0
        self._member = state
        self._log = log
        self._outbox = outbox
        self._config = config
        self.reset()

    def reset(self) -> None:
        """Start again after a change of term or leader: nothing is matched yet, nothing waits.

        The session stays for the whole term: a late TRUNCATE must be recognized also after a silence.
        """
        if self._term != self._member.term:
            self._term, self._session = self._member.term, 0
        self.matched_index = NO_INDEX
        self._waiting: dict[int, Waiting] = {}  # by base index
        self._waiting_bytes = 0
        self._synced_push_index = NO_INDEX  # of the last append that asked for `fsync`
        self._deferred: Deferred | None = None
        self._storing: PushRequest | None = None  # its batches are being written
        self._truncating = False
        self._owes_ack = False
        self._acked_index = NO_INDEX  # the last one received since the last comparison
        self._leader_committed = NO_INDEX
        self._is_vouched = False
        self._vouched_index = NO_INDEX  # the first committed index after a comparison with this incarnation
        self._last_check_ms = 0

    def handle(self, request: PushRequest, now_ms: int) -> None:
        """Handle a push of the leader that this member follows."""
        if request.session < self._session:
            return  # late: the leader has compared again since; a TRUNCATE would remove what counts by now
        if request.incarnation != self._incarnation and request.type is not PushType.COMPARE:
            self._answer(request, PushCode.INCONSISTENT_STATE, request.index)
            return
        self._session = request.session
        self._take_durability(request)
        self._leader_committed = max(self._leader_committed, request.committed_index)
        if request.type in (PushType.APPEND, PushType.COMMIT) and not self._is_vouched:
            self._is_vouched = True  # later ones would move on with each append
            self._vouched_index = request.committed_index
        if request.type is PushType.APPEND:
            self._append(request, now_ms)
        elif request.type is PushType.COMMIT:
            self._commit(request)
        else:  # D-15
            self._waiting.clear()
            self._waiting_bytes = 0
            self._acked_index = NO_INDEX
            if request.type is PushType.COMPARE:
                self._deferred = Deferred(request, self._log.end_index)
                self._answer_deferred()
            else:
                self._truncate(request)
        if not self._outbox.is_writing:
            self.adopt_committed(self._leader_committed)

    def _take_durability(self, request: PushRequest) -> None:
        """Adopt the durability of the leader's log. A weaker one counts only from an append after all those
        that asked for `fsync`: pushes of before a change may arrive after it."""
        is_append = request.type is PushType.APPEND
        if request.syncs:
            self._member.leader_syncs = True
            if is_append:
                self._synced_push_index = max(self._synced_push_index, request.batches[-1].last_index)
        elif is_append and request.batches[0].base_index > self._synced_push_index:
            self._member.leader_syncs = False

    def adopt_committed(self, index: int) -> None:
        """Follow the leader's committed index as far as this log is known to be the leader's (D-20, R-12).

        A leader that has committed a record of its term decides how long the log is: what earlier leaders
        have stated beyond that is lost.
        """
        member = self._member
        self._leader_committed = stated = max(self._leader_committed, index)
        member.stated_index, member.stated_by = max(member.stated_index, stated), member.leader_id
        index = min(index, self.matched_index)
        if index > member.committed_index and index >= self._log.begin_index != NO_INDEX:
            member.committed_index = index
        if self._stated_term < member.term and is_of_term(self._log, member.committed_index, member.term):
            self._stated_term, member.stated_index = member.term, stated

    @property
    def holds_all_committed(self) -> bool:
        """True if no committed record can be missing here: the condition that an unsound member must reach.

        A record of the leader's term follows everything that was committed before that term. What the
        leader's own term has committed with acknowledgements of an earlier incarnation of this member is
        covered too: the leader sent its committed index after the comparison with this incarnation, and from
        then on counts no acknowledgement of the earlier one.
        """
        index = self._acknowledged_index
        vouched = self._is_vouched and index >= self._vouched_index
        return vouched and is_of_term(self._log, index, self._member.term)

    def written(self, now_ms: int) -> None:
        """The log is as the last push requires; not necessarily on disk."""
        request, self._storing = self._storing, None
        if request is None:
            return
        if self._truncating:
            self._truncated(request)
            self.matched_index = request.truncate_index
            self._deferred = Deferred(request, request.truncate_index)
            self._answer_deferred()
        else:
            self.matched_index = max(self.matched_index, request.batches[-1].last_index)
            self._owes_ack = True
            self._acknowledge()
        self.adopt_committed(self._leader_committed)  # D-19: the answer first
        if self._log.next_index in self._waiting:
            self._take_waiting(self._log.next_index, now_ms)

    def not_written(self) -> None:
        """The disk is full: nothing of the last push stays, and the leader will repeat it (D-07)."""
        request, self._storing = self._storing, None
        if request is not None and self._truncating:
            self._truncated(request)
        self.matched_index = min(self.matched_index, self._log.end_index)
        if request is not None:
            self._answer(request, PushCode.BUSY, request.index)

    def _truncated(self, request: PushRequest) -> None:
        """The log is truncated. Everything before the beginning of a reset was committed: this member must
        know that also without the first record (elections.py)."""
        self._truncating = False
        if request.reset:
            member = self._member
            begun = committed_at_open(self._log, member.committed_index)
            member.committed_index = max(member.committed_index, begun)

    def synced(self) -> None:
        """More of the log is on disk: send the answers that waited for it (D-14, R-11)."""
        self._answer_deferred()
        self._acknowledge()

    def tick(self, now_ms: int) -> None:
        """Check waiting appends, at most every `fast_forward_timeout_ms` (D-17, D-18)."""
        timeout_ms = self._config.fast_forward_timeout_ms
        if not self._waiting or now_ms - self._last_check_ms < timeout_ms:
            return
        self._last_check_ms = now_ms
        for first_index in sorted(self._waiting):
            waiting = self._waiting[first_index]
            if first_index > self._log.end_index:
                if now_ms - waiting.received_ms > timeout_ms:
                    self._answer(waiting.request, PushCode.INCONSISTENT_STATE, first_index)
                return
            self._take_waiting(first_index, now_ms)
            if self._outbox.is_writing:
                return

    # --- appends -------------------------------------------------------------------------------------------

    def _append(self, request: PushRequest, now_ms: int) -> None:
        log = self._log
        first_index = request.batches[0].base_index
        if first_index > log.next_index:
            self._wait(request, now_ms)
            return
        held = [batch for batch in request.batches if batch.last_index <= log.end_index]
        new = request.batches[len(held) :]
        fits = all(log.holds(batch) for batch in held)  # D-17
        if new and fits:
            fits = new[0].base_index == log.next_index
            if not held:
                fits = fits and self._agrees(request.index, request.index_term)
        if not fits:
            self._answer(request, PushCode.INCONSISTENT_STATE, first_index)
        elif new:
            self._outbox.batches.extend(new)
            self._storing = request
        else:
            self.matched_index = max(self.matched_index, held[-1].last_index)
            if held[-1].last_index <= self._acknowledged_index:
                self._answer(request, PushCode.SUCCESS, self._acknowledged_index)
            else:
                self._owes_ack = True

    def _wait(self, request: PushRequest, now_ms: int) -> None:
        """Keep an append until its predecessor has arrived; a second push replaces the first (D-16)."""
        first_index = request.batches[0].base_index
        replaced = self._waiting.get(first_index)
        size_bytes = _size_bytes(request) - (0 if replaced is None else _size_bytes(replaced.request))
        full = len(self._waiting) >= self._config.max_waiting and replaced is None
        if full or self._waiting_bytes + size_bytes > self._config.max_waiting_bytes:
            self._answer(request, PushCode.BUSY, first_index)
            return
        self._waiting_bytes += size_bytes
        if replaced is None:
            self._waiting[first_index] = Waiting(request, now_ms)
        else:
            replaced.request = request  # it still waits since the first one arrived: D-18
            self._answer(request, PushCode.REPEATED_PUSH, first_index)

    def _take_waiting(self, first_index: int, now_ms: int) -> None:
        request = self._waiting.pop(first_index).request
        self._waiting_bytes -= _size_bytes(request)
        self._append(request, now_ms)

    def _agrees(self, index: int, term: int) -> bool:
        """Return whether the record at `index` is the leader's, so that everything before it is, too
        (R-06)."""
        log = self._log
        if index == NO_INDEX:
            return log.next_index == 0 or log.begin_index == 0
        return is_of_term(log, index, term)

    # --- COMPARE, TRUNCATE, COMMIT ------------------------------------------------------------------------

    def _commit(self, request: PushRequest) -> None:
        """Check the index that the leader believes this member to hold: if it is too high, it must compare
        again."""
        if request.index != NO_INDEX and not self._agrees(request.index, request.index_term):
            self._answer(request, PushCode.INCONSISTENT_STATE, request.index)
            return
        self.matched_index = max(self.matched_index, request.index)
        self._answer(request, PushCode.SUCCESS, self._acknowledged_index)

    def _truncate(self, request: PushRequest) -> None:
        """Let the log end with the carried batch (D-14), unless that would remove a committed record
        (R-07)."""
        log, batch, committed = self._log, request.batches[0], self._member.committed_index
        if log.holds(batch):
            keep_index, carried = batch.last_index, False
        elif request.reset:
            keep_index, carried = NO_INDEX, True
        elif self._agrees(request.index, request.index_term):
            keep_index, carried = request.index, True
        else:
            self._answer(request, PushCode.INCONSISTENT_STATE, request.truncate_index)
            return
        resets = carried and request.reset
        if resets:  # an empty log has nothing that a reset could remove
            allowed = NO_INDEX in (committed, log.end_index) or request.leader_begin > committed
        else:
            allowed = keep_index >= committed
        self._record_truncate(request, keep_index, resets, allowed)
        if not allowed:
            self._answer(request, PushCode.REFUSED, request.truncate_index)
            return
        if resets:
            # A leader's beginning is committed: trims end before what is not. A log may begin at 0 before
            # that.
            base_term = batch.term if batch.base_index > 0 else 0
            self._outbox.truncate = Reset(batch.base_index, batch.offset, base_term)
        elif keep_index < log.end_index:
            self._outbox.truncate = TruncateAfter(keep_index)
        if carried:
            self._outbox.batches.append(batch)
        self._storing, self._truncating = request, True
        if not self._outbox.is_writing:
            self.written(0)

    def _record_truncate(self, request: PushRequest, keep_index: int, resets: bool, allowed: bool) -> None:
        if keep_index < self._log.end_index or not allowed:
            truncated = Truncated(
                from_index=keep_index + 1,
                to_index=self._log.end_index,
                committed_index=self._member.committed_index,
                leader=request.leader_id,
                reset=resets,
                refused=not allowed,
            )
            self._outbox.record(self._member.term, truncated)

    def _answer_deferred(self) -> None:
        deferred = self._deferred
        if deferred is None or self._member.held_index(self._log) < deferred.index:
            return
        self._deferred = None
        request = deferred.request
        if request.type is PushType.TRUNCATE:
            self._answer(request, PushCode.SUCCESS, request.truncate_index)
        elif self._agrees(request.index, request.index_term):
            self.matched_index = max(self.matched_index, request.index)
            self._answer(request, PushCode.SUCCESS, request.index)
        else:
            self._answer_conflict(request)

    def _answer_conflict(self, request: PushRequest) -> None:
        """Report the last place where the logs may still match (D-13)."""
        log = self._log
        index = min(request.index, log.last_index_of_term_at_most(request.index_term))
        term = log.term_at(index) if index >= log.begin_index != NO_INDEX else 0
        self._answer(request, PushCode.INCONSISTENT_STATE, request.index, term, index if term else NO_INDEX)

    # --- answers -------------------------------------------------------------------------------------------

    @property
    def _acknowledged_index(self) -> int:
        """The index that may be acknowledged now: matched, and as durable as the log requires."""
        return min(self.matched_index, self._member.held_index(self._log))

    def _acknowledge(self) -> None:
        """One cumulative SUCCESS for every append stored since the last one (D-19)."""
        leader, index = self._member.leader_id, self._acknowledged_index
        if not self._owes_ack or leader is None or index <= self._acked_index:
            return
        self._owes_ack = index < self.matched_index
        self._acked_index = index
        self._send(leader, PushType.APPEND, PushCode.SUCCESS, self._session, index)

    def _answer(
        self,
        request: PushRequest,
        code: PushCode,
        index: int,
        conflict_term: int = 0,
        conflict_index: int = NO_INDEX,
    ) -> None:
        leader = request.leader_id
        if code is PushCode.SUCCESS:
            self._acked_index = max(self._acked_index, index)
        self._send(leader, request.type, code, request.session, index, conflict_term, conflict_index)

    def _send(
        self,
        leader: str,
        kind: PushType,
        code: PushCode,
        session: int,
        index: int,
        conflict_term: int = 0,
        conflict_index: int = NO_INDEX,
    ) -> None:
        log = self._log
        end_index = min(log.end_index, self._member.held_index(log))
        answer = PushAnswer(
            self._member.term,
            kind,
            code,
            session,
            self._incarnation,
            index,
            log.first_index,
            end_index,
            conflict_term,
            conflict_index,
            self._member.sound and self._member.electable,
            self._member.sound,
        )
        self._outbox.send(leader, answer)


def _size_bytes(request: PushRequest) -> int:
    return sum(batch.size_bytes for batch in request.batches)
