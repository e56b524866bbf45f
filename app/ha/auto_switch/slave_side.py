"""AutoSwitch at a slave: READY, HANDSHAKE (epochs compared, log truncated), TRANSFER (A-02, A-04, A-06,
A-10).

PURE. One object for each master and epoch that the replica follows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from app.ha.assembly import Assembler
from app.ha.epochs import spans, truncation_point
from app.ha.frames import Ack, Frame, Handshake, HandshakeAnswer, TransferFrame
from app.ha.log import (
    Boundaries,
    LogEnd,
    epoch_spans,
    held_index,
    index_before,
    is_empty,
    may_begin,
    offset_after,
)
from app.ha.messages import Connect, Disconnect
from app.ha.parts import CoreParts
from app.ha.roles import KnownReplica
from app.log.contract import NO_INDEX, Reset, TruncateAfter
from app.log.events import Corruption, Truncated
from storage.errors import CorruptBatch
from storage.format.batch import Batch
from storage.format.epoch_file import epoch_of

REFUSED_PAUSES = 10  # reconnect intervals after a refusal that time alone will not repair


class Step(Enum):
    """Progress of the slave between its states."""

    READY = auto()  # waits until it is time to connect
    CONNECTING = auto()
    HANDSHAKE = auto()  # waits for the master's epochs
    TRUNCATING = auto()  # waits for the truncation, then for the disk, to report
    TRANSFER = auto()


@dataclass(frozen=True, slots=True)
class Rollback:
    """The log must remove confirmed records after `index`, which an unclean election has lost (A-04).

    The node does it with the log closed: the loss receipt, then the truncation. epoch: of that election.
    """

    index: int
    epoch: int


class SlaveSide:
    """Follows one master. Everything to be sent is put into the outbox.

    Invariant: an ack on a connection that was not opened as a learner's is of a copy that may lead: it has
    the log's state, and every record that was not trimmed. Such an ack lets the copy join the SyncStateSet,
    from which masters are elected.
    """

    def __init__(
        self,
        parts: CoreParts,
        *,
        me: KnownReplica,
        master: KnownReplica,
        unclean_epoch: int,
        new_key: Callable[[], str],
        may_lead: Callable[[], bool],
        now_ms: int,
    ) -> None:
        """new_key(): of the next connection. may_lead(): whether this copy has all that a master needs."""
        self._member = parts.member
        self._log = parts.log
        self._log_id = parts.log_id
        self._outbox = parts.outbox
        self._config = parts.config
        self._me = me
        self._master = master
        self._unclean_epoch = unclean_epoch
        self._new_key = new_key
        self._may_lead = may_lead
        self.step = Step.READY
        self.rollback: Rollback | None = None
        self._key = ""
        self._as_learner = False  # how this connection identified itself
        self._retry_ms = now_ms
        self._heard_ms = now_ms
        self._reported_ms = now_ms
        self._reported_offset = 0
        self._next_offset: int | None = None  # of this connection's stream, once it has begun
        self._may_replace = False  # the first batch of this connection may replace the whole log
        self._stored_offset = 0  # end of the log when this connection's transfer began
        self._must_search = True  # for the confirmed index, until it covers what was stored before
        self._is_compared = False  # this log is a beginning of the master's
        self._assembler = Assembler()
        self._confirmable = Boundaries()  # ends of batches after the committed index
        self._confirm_offset = 0

    @property
    def may_hold_lost(self) -> bool:
        """True until the log is compared with the master's, if an unclean election came after its last
        record: then the two may differ, also in what is confirmed here."""
        return not self._is_compared and self._unclean_epoch > self._log.last_term

    # --- connection ----------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        config = self._config
        if self.step is Step.READY:
            if now_ms >= self._retry_ms and self.rollback is None:
                self._connect(now_ms)
        elif now_ms - self._heard_ms > config.ha_housekeeping_interval_ms:
            self._leave("the master is silent", now_ms)
        elif self._as_learner and not self._is_learner:
            self._leave("this copy may lead from now on", now_ms, pauses=0)
        elif self.step is Step.TRANSFER and (
            now_ms - self._reported_ms >= config.ha_send_heartbeat_interval_ms
        ):
            self._report(now_ms)

    def _connect(self, now_ms: int) -> None:
        self._key = self._new_key()
        self.step = Step.CONNECTING
        self._heard_ms = now_ms
        self._outbox.send(self._key, Connect(self._master.address, node=self._master.node))

    def opened(self, key: str, now_ms: int) -> None:
        if key != self._key or self.step is not Step.CONNECTING:
            return
        self.step = Step.HANDSHAKE
        self._heard_ms = now_ms
        config = self._config
        number = self._me.id if config.speaks_by_number(self._me.address) else 0
        self._as_learner = self._is_learner
        hello = Handshake(self._me.address, config.ha_sync_from_last_file, self._as_learner, number)
        self._outbox.send(key, hello)

    @property
    def _is_learner(self) -> bool:
        return self._me.learner or not self._may_lead()

    def closed(self, key: str, now_ms: int) -> None:
        if key == self._key and self.step is not Step.READY:
            self._forget(now_ms, pauses=1)

    def leave(self, reason: str, now_ms: int) -> None:
        """Stop following."""
        if self.step is not Step.READY:
            self._leave(reason, now_ms)

    def _leave(self, reason: str, now_ms: int, *, pauses: int = 1) -> None:
        self._outbox.send(self._key, Disconnect(reason, self._master.node))
        self._forget(now_ms, pauses=pauses)

    def _forget(self, now_ms: int, *, pauses: int) -> None:
        self.step = Step.READY
        self._retry_ms = now_ms + pauses * self._config.ha_reconnect_interval_ms
        self._assembler.clear()
        self._confirmable.clear()
        self._next_offset, self._may_replace, self._must_search = None, False, True

    def received(self, key: str, frame: Frame, now_ms: int) -> None:
        if key != self._key:
            return
        self._heard_ms = now_ms
        if isinstance(frame, HandshakeAnswer) and self.step is Step.HANDSHAKE:
            self._compare(frame, now_ms)
        elif isinstance(frame, TransferFrame) and self.step is Step.TRANSFER:
            self._take(frame, now_ms)
        else:
            self._leave(f"{type(frame).__name__} while {self.step.name}", now_ms)

    # --- handshake -----------------------------------------------------------------------------------------

    def _compare(self, answer: HandshakeAnswer, now_ms: int) -> None:
        """A-04: find where the logs diverge, and truncate ours there.

        Only in the epoch that the metadata here name: they also show whether an unclean election came
        between, and records that it has lost must not be truncated without a receipt.
        """
        log, member = self._log, self._member
        if answer.epoch != member.term or answer.epoch < log.last_term:
            self._leave(f"the master is in epoch {answer.epoch}, not {member.term}", now_ms)
            return
        self.step = Step.TRUNCATING
        if is_empty(log):
            self._may_replace = True
        else:
            point = truncation_point(epoch_spans(log), spans(answer.epochs, answer.max_offset))
            if point is None or point <= log.begin_offset:
                self._may_replace = True
                if not is_empty(log) and self._loses_confirmed(NO_INDEX):
                    self._roll_back(NO_INDEX, now_ms)
                    return
            elif point < log.end_offset and not self._cut(point, now_ms):
                return
        self._begin_if_durable(now_ms)

    def _cut(self, point: int, now_ms: int) -> bool:
        """Truncate at the byte `point`; return whether the slave may continue."""
        log, member = self._log, self._member
        index = index_before(log, point)
        if offset_after(log, index) != point:
            self._refuse(f"the logs part at {point}, where no record ends", now_ms)
            return False
        if self._loses_confirmed(index):
            self._roll_back(index, now_ms)
            return False
        if index < member.committed_index:
            self._refuse(f"{member.committed_index} is confirmed, the logs part after {index}", now_ms)
            return False
        self._outbox.truncate = TruncateAfter(index)
        member.unsynced_index = min(member.unsynced_index, index)
        self._record_truncation(index, point, reset=False)
        return True

    def _record_truncation(self, after_index: int, offset: int, *, reset: bool) -> None:
        truncated = Truncated(
            from_index=after_index + 1,
            to_index=self._log.end_index,
            reset=reset,
            leader=self._master.node,
            offset=offset,
        )
        self._outbox.record(self._member.term, truncated)

    def _loses_confirmed(self, index: int) -> bool:
        """Return whether an unclean election came after the records beyond `index`: then they may have
        been confirmed, whether this replica knows that or not, and are not removed without a receipt
        (A-04)."""
        log = self._log
        first_index = max(index + 1, log.begin_index)
        return first_index <= log.end_index and self._unclean_epoch > log.term_at(first_index)

    def _roll_back(self, index: int, now_ms: int) -> None:
        self.rollback = Rollback(index, self._unclean_epoch)
        self._leave("confirmed records were lost by an unclean election", now_ms)

    def _refuse(self, reason: str, now_ms: int) -> None:
        """An invariant does not hold: record an error, change nothing."""
        found = Corruption(reason=reason, master=self._master.node)
        self._outbox.record(self._member.term, found)
        self._leave(reason, now_ms, pauses=REFUSED_PAUSES)

    def written(self, now_ms: int) -> None:
        """The driver has truncated or appended: the log is as requested."""
        if self.step is Step.TRANSFER:
            self._learn_confirmed(self._confirm_offset)
        self.synced(now_ms)

    def synced(self, now_ms: int) -> None:
        if self.step is Step.TRUNCATING:
            self._begin_if_durable(now_ms)
        elif self.step is Step.TRANSFER and self._held_offset != self._reported_offset:
            self._report(now_ms)

    def _begin_if_durable(self, now_ms: int) -> None:
        """Our first report determines where the transfer begins: all that we hold must be durable by then."""
        log = self._log
        if not self._outbox.is_writing and (is_empty(log) or may_begin(log, self._member)):
            self.step = Step.TRANSFER
            self._stored_offset = log.end_offset
            self._report(now_ms)

    @property
    def _held_offset(self) -> int:
        log = self._log
        if self._may_replace or is_empty(log):  # nothing that counts
            return 0
        return offset_after(log, held_index(log, self._member))

    def _report(self, now_ms: int) -> None:
        if self._is_learner and not self._as_learner:
            self._leave("this copy lacks state or older records: it follows as a learner", now_ms)
            return
        self._reported_ms = now_ms
        self._reported_offset = self._held_offset
        self._is_compared = self._is_compared or not self._may_replace
        self._outbox.send(self._key, Ack(self._reported_offset))

    # --- transfer ------------------------------------------------------------------------------------------

    def _take(self, frame: TransferFrame, now_ms: int) -> None:
        """Store what a frame completes. Anything that does not fit exactly ends the connection."""
        problem = self._why_not(frame)
        end = LogEnd(self._log)
        batches: list[Batch] = []
        replaces = False
        if problem is None:
            try:
                batches = self._assembler.feed(frame.body)
                if batches and self._replaces_confirmed(batches[0]):
                    first = batches[0].base_index
                    confirmed = self._member.committed_index
                    self._refuse(f"{confirmed} is confirmed, the master begins at {first}", now_ms)
                    return
                replaces = self._may_replace and bool(batches) and not self._follows(batches[0], end)
                if replaces:
                    end.start_at(batches[0])
                for batch in batches:
                    problem = problem or self._admit(batch, frame, end)
            except CorruptBatch as error:
                problem = error.reason
        if problem is not None:
            self._outbox.batches.clear()
            self._outbox.truncate = None
            self._leave(f"from the master: {problem}", now_ms)
        elif replaces:
            self._replace_all(batches[0])
        elif not batches:
            self._learn_confirmed(frame.confirm_offset)
        self._confirm_offset = frame.confirm_offset

    def _replaces_confirmed(self, batch: Batch) -> bool:
        """Return whether the first batch of this connection would replace confirmed records.

        A log that began with the last segment may hold none of those that are confirmed (A-09).
        """
        confirmed = self._member.committed_index
        holds_confirmed = not is_empty(self._log) and self._log.begin_index <= confirmed
        return self._may_replace and holds_confirmed and batch.base_index <= confirmed

    def _follows(self, batch: Batch, end: LogEnd) -> bool:
        """Return whether an empty log can take the batch as it is."""
        return is_empty(self._log) and (batch.base_index, batch.offset) == (end.next_index, end.offset)

    def _why_not(self, frame: TransferFrame) -> str | None:
        """Return why the frame cannot come next on this connection, None when it can."""
        if not self._log.last_term <= frame.epoch <= self._member.term:
            return f"a frame of epoch {frame.epoch} in epoch {self._member.term}"
        if not frame.body:
            return None
        if self._next_offset is None:
            end_offset = self._log.end_offset
            if not self._may_replace and frame.offset < end_offset:
                return f"a frame at {frame.offset}, not at {end_offset}"
            # Beyond our end: the master has trimmed the records between, which all had confirmed.
            self._may_replace = self._may_replace or frame.offset > end_offset
            self._next_offset = frame.offset
        if frame.offset != self._next_offset:
            return f"a frame at {frame.offset}, not at {self._next_offset}"
        self._next_offset += len(frame.body)
        return None

    def _admit(self, batch: Batch, frame: TransferFrame, end: LogEnd) -> str | None:
        """Accept a batch for the log's end; return why it cannot be accepted, None when it can."""
        opens = epoch_of(batch) is not None and batch.offset == frame.epoch_start_offset
        if not (self._may_replace or opens) and batch.term > end.epoch:
            return f"epoch {batch.term} does not open with {batch!r}"
        if batch.term != frame.epoch:
            return f"{batch!r} in a frame of epoch {frame.epoch}"
        if (problem := end.why_not(batch, self._log_id)) is not None:
            return problem
        self._may_replace = False
        end.pass_by(batch)
        self._outbox.batches.append(batch)
        self._confirmable.add(batch)
        return None

    def _replace_all(self, first: Batch) -> None:
        """The log is replaced by the master's, from this batch on. What precedes its beginning may be
        arriving again."""
        member = self._member
        member.committed_index = min(member.committed_index, first.base_index - 1)
        member.unsynced_index = NO_INDEX
        self._outbox.truncate = Reset(first.base_index, first.offset)
        self._record_truncation(NO_INDEX, first.offset, reset=True)

    def not_written(self, now_ms: int) -> None:
        """The disk is full: the received bytes are dropped, and requested again later."""
        self._leave("the disk is full", now_ms)

    def _learn_confirmed(self, confirm_offset: int) -> None:
        """Adopt the master's confirm offset as far as we hold its log (A-10). It never falls.

        A log that is about to be replaced is not the master's: its bytes at those offsets are different.
        """
        member, log = self._member, self._log
        if self._may_replace:
            return
        if self._must_search:  # batches that were stored before this connection
            self._must_search = confirm_offset < self._stored_offset
            index = index_before(log, confirm_offset)
            self._confirmable.take_until(confirm_offset)
        else:
            reached = self._confirmable.take_until(confirm_offset)
            index = NO_INDEX if reached is None else reached[1]
        member.committed_index = max(member.committed_index, index)
