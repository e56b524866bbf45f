"""Core of a classic log at a slave (H-01 to H-05, H-08), which never becomes master by itself. PURE.

The slave stores the master's log byte for byte. It commits, and serves, what it holds: the master sends only
what it holds durably itself, and nothing of a classic log is ever truncated. Its history is sent with the
connection (frames.py), so that a master with another log refuses it; then it retries at growing intervals.

A copy that may lack what it acknowledged (opening.may_lack), as an empty one, holds it again once it has
everything up to an index that its master confirms while they are connected: what counted on the lost records
is at or below it.
"""

from collections.abc import Sequence
from typing import Any, Final

from app.errors import InvariantError
from app.ha.assembly import Assembler
from app.ha.classic.opening import may_lack
from app.ha.config import HaConfig
from app.ha.flow import Flow
from app.ha.frames import ClassicFrame, ClassicReport, History
from app.ha.log import HaLog, LogEnd, held_index, is_empty, may_begin, offset_after
from app.ha.messages import INCOMING, OUTGOING, Closed, Connect, Disconnect, Opened
from app.ha.static_group import StaticGroup
from app.log.contract import (
    NO_INDEX,
    CoreStatus,
    MasterLink,
    PendingAppend,
    Ready,
    Reset,
    Role,
)
from app.log.control_records import TermRecord
from app.log.core_start import CoreStart
from app.log.events import Corruption, RoleChanged
from app.log.terms import is_plausible_term
from app.raft.config import RaftConfig
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from app.raft.reads import Confirmation, FollowerReads
from app.raft.state import MemberState, committed_at_open
from storage.errors import CorruptBatch
from storage.format.batch import FIRST_CHAIN, Batch
from storage.format.epoch_file import epoch_of
from storage.log.hard_state import HardState

_FLAGGED: Final = 3  # consecutive connections with newer flags before one for an earlier version


class ClassicSlaveCore(StaticGroup):
    """Satisfies ReplicationCore. Invariants: its log is a prefix of the master's, from where it began; the
    offset that it reports is as durable as the log asks for."""

    accepts_appends = False
    runs_ahead = True
    needs_all_records = True
    wants_control: TermRecord | None = None

    def __init__(
        self,
        start: CoreStart,
        log: HaLog,
        *,
        master_id: str,
        master_address: str,
        config: HaConfig,
    ) -> None:
        """master_address: host:port where the master accepts slaves; "": the transport finds it."""
        self._log = log
        self._log_id = start.log_id
        self._config = config
        self._address = master_address
        super().__init__(
            MemberState(
                node_id=start.node_id,
                group=start.group,
                durability=start.durability,
                role=Role.SLAVE,
                term=log.last_term,
                voted_for=None,
                committed_index=committed_at_open(log, start.committed_index),
                leader_id=master_id,
            )
        )
        reads = RaftConfig(read_index_timeout_ms=config.ha_read_index_timeout_ms)
        self._reads = FollowerReads(self._member, self._outbox, reads, start.random)
        self._doubt = Confirmation() if may_lack(start.hard_state) or is_empty(log) else None
        self._term = max(start.hard_state.term, 1)  # of the vote that records the doubt, or its end
        self._assembler = Assembler()
        self._connections = 0
        self._key = ""
        self._connected = False
        self._connecting = False
        self._retry_ms = 0
        self._heard_ms = 0
        self._reported_ms = 0
        self._reported_offset: int | None = None  # on this connection
        self._next_offset: int | None = None  # of this connection's stream, once it has begun
        self._restarts = False  # the master has trimmed all that this log holds: the next batch replaces it
        self._heard_frame = False  # on this connection
        self._fruitless = 0  # consecutive connections that ended before a frame
        self._left: str | None = None  # why the last connection ended
        self._recorded_refusal: str | None = None  # the kind of refusal that the journal has
        self._now_ms = 0
        self._flow = Flow(None, 0)

    # --- what the driver asks ------------------------------------------------------------------------------

    def status(self) -> CoreStatus:
        member = self._member
        return CoreStatus(
            role=Role.SLAVE,
            term=member.term,
            leader_id=member.leader_id,
            committed_index=member.committed_index,
            master=member.leader_id,
            sync_state_set=(),
            epoch=member.term,
            confirm_offset=offset_after(self._log, member.committed_index),
            link=self._link(),
        )

    def _link(self) -> MasterLink:
        state = "TRANSFER" if self._connected else "CONNECTING" if self._connecting else "WAITING"
        reason = None if self._heard_frame else self._left
        if reason is not None and self._fruitless:
            reason = (
                f"{self._fruitless} connections ended before anything was transferred, the last: {reason}"
            )
        return MasterLink(state, self._reported_offset, self._flow.bytes_per_s(self._now_ms), reason)

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        """Return nothing: only the master has watermarks."""
        return {}

    # --- connection ----------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        self._retry_ms = now_ms
        self._learn()
        role = RoleChanged(role=Role.SLAVE.value, leader=self._member.leader_id)
        self._outbox.record(self._member.term, role)
        if self._doubt is not None:
            self._outbox.hard_state = HardState(self._term)

    def tick(self, now_ms: int) -> None:
        config = self._config
        self._now_ms = now_ms
        if not (self._connected or self._connecting):
            if now_ms >= self._retry_ms and self._all_held:
                self._connect(now_ms)
        elif now_ms - self._heard_ms > config.ha_housekeeping_interval_ms:  # H-05
            self._leave("the master is silent", now_ms)
        elif self._connected and (
            now_ms - self._reported_ms >= config.ha_send_heartbeat_interval_ms  # H-02
        ):
            self._report(now_ms)
        self._reads.tick(now_ms)
        self._ask_for_end_of_doubt(now_ms)

    def _ask_for_end_of_doubt(self, now_ms: int) -> None:
        """Ask for the index only after a frame: from then on the master counts this connection alone."""
        doubt = self._doubt
        if doubt is not None and doubt.index is None and self._heard_frame and not doubt.is_asked:
            doubt.is_asked = True
            self._reads.ask(doubt, now_ms)

    def _end_doubt(self) -> None:
        doubt = self._doubt
        if doubt is None or doubt.index is None:
            return
        if doubt.index <= held_index(self._log, self._member):
            self._doubt = None
            self._outbox.hard_state = HardState(self._term, self._member.leader_id)

    def _connect(self, now_ms: int) -> None:
        self._connections += 1
        self._key = f"{OUTGOING}{self._connections}"
        self._connecting = True
        self._heard_ms = now_ms
        self._outbox.send(self._key, Connect(self._address, self._history, self._member.leader_id or ""))

    @property
    def _history(self) -> History:
        """The end of this log, the doubt about it, and its beginning if it lacks records. A master of an
        earlier version refuses their flags, and could not be upgraded under appends: after three connections
        without a frame they are written for it. A master of this version, which may have ended them before
        its log was open, ends that one after a frame: the next one has the flags again."""
        log, in_doubt = self._log, self._doubt is not None
        begin_index = 0 if self._member.electable or is_empty(log) else log.begin_index
        for_earlier = (in_doubt or begin_index > 0) and self._fruitless % (_FLAGGED + 1) == _FLAGGED
        if is_empty(log):
            return History(0, 0, 0, FIRST_CHAIN, in_doubt, for_earlier)
        end = (log.end_offset, log.next_index, log.last_term, log.last_chain)
        return History(*end, in_doubt, for_earlier, begin_index)

    def _leave(self, reason: str, now_ms: int, *, refused: bool = False) -> None:
        self._outbox.send(self._key, Disconnect(reason, self._member.leader_id or ""))
        self._forget(reason, now_ms, refused=refused)

    def _forget(self, reason: str, now_ms: int, *, refused: bool = False) -> None:
        """The connection has ended. After one that was refused, or closed before a frame, wait longer."""
        pause_ms = self._config.ha_reconnect_interval_ms  # H-01
        if refused or (self._connected and not self._heard_frame):
            self._fruitless += 1
            pause_ms = min(pause_ms << min(self._fruitless, 16), self._config.ha_refused_interval_max_ms)
        else:
            self._fruitless = 0
        self._left = reason
        self._connected = self._connecting = self._heard_frame = self._restarts = False
        self._reported_offset = self._next_offset = None
        self._retry_ms = now_ms + pause_ms
        self._assembler.clear()

    def step(self, source: str, message: Any, now_ms: int) -> None:
        self._now_ms = now_ms
        if isinstance(message, ReadIndexAnswer):
            if source == self._member.leader_id:
                self._reads.answered(message, now_ms)
                self._end_doubt()
        elif isinstance(message, ReadIndexRequest):
            self._outbox.send(source, ReadIndexAnswer(message.term, message.id, None))
        elif source.startswith(INCOMING):
            if not isinstance(message, Closed):
                self._outbox.send(source, Disconnect("not the master"))
        elif source != self._key or not (self._connected or self._connecting):
            return
        elif isinstance(message, Opened):
            self._connected, self._connecting = True, False
            self._heard_ms = now_ms
            self._report(now_ms)
        elif isinstance(message, Closed):
            self._forget(message.reason, now_ms)
        elif isinstance(message, ClassicFrame):
            self._heard_ms = now_ms
            self._flow.sent(len(message.body), now_ms)
            self._take(message, now_ms)
            self._ask_for_end_of_doubt(now_ms)

    # --- reports -------------------------------------------------------------------------------------------

    @property
    def _held_offset(self) -> int:
        if is_empty(self._log):
            return 0
        return offset_after(self._log, held_index(self._log, self._member))

    @property
    def _all_held(self) -> bool:
        return held_index(self._log, self._member) == self._log.end_index

    def _report(self, now_ms: int) -> None:
        """Report the end of this log (H-02). The first report is where the transfer begins: then all is
        durable."""
        if self._reported_offset is not None or may_begin(self._log, self._member):
            self._reported_ms = now_ms
            self._reported_offset = self._held_offset
            self._outbox.send(self._key, ClassicReport(self._reported_offset))

    def _learn(self) -> None:
        """Adopt the term of the log, and commit everything held."""
        member = self._member
        member.term = max(member.term, self._log.last_term)
        member.committed_index = max(member.committed_index, held_index(self._log, member))

    # --- the stream ----------------------------------------------------------------------------------------

    def _take(self, frame: ClassicFrame, now_ms: int) -> None:
        """Store what a frame completes; data that does not fit ends the connection and is not stored
        (H-04)."""
        if self._reported_offset is None:
            self._refuse("order", "a frame before this slave's report", now_ms)
            return
        if frame.restart and not self._heard_frame and frame.offset > self._log.end_offset:
            self._restarts = self._heard_frame = True
            self._next_offset = frame.offset
            return
        problem = self._why_not(frame)
        if problem is not None:
            self._refuse("gap", problem, now_ms)
            return
        try:
            batches = self._assembler.feed(frame.body)
        except CorruptBatch as error:
            self._refuse("corrupt", error.reason, now_ms)
            return
        problem = self._why_not_these(batches)
        if problem is not None:
            self._refuse("history", problem, now_ms)
            return
        self._heard_frame = True
        if batches:
            self._restarts = False
            self._recorded_refusal = None
        self._outbox.batches += batches

    def _refuse(self, kind: str, reason: str, now_ms: int) -> None:
        """Leave a master whose bytes do not fit; the journal gets one event for each cause."""
        self._outbox.truncate = None
        if self._recorded_refusal != kind:
            self._recorded_refusal = kind
            found = Corruption(reason=reason, master=self._member.leader_id)
            self._outbox.record(self._member.term, found)
        self._leave(reason, now_ms, refused=True)

    def _why_not(self, frame: ClassicFrame) -> str | None:
        """Return why the frame cannot come next on this connection, None when it can."""
        if frame.restart:
            return f"the master asks to begin at {frame.offset}, this slave is at {self._log.end_offset}"
        expected = self._next_offset
        if expected is None and not is_empty(self._log):
            expected = self._log.end_offset
        if expected is not None and frame.offset != expected:
            return f"the master is at {frame.offset}, this slave at {expected}"
        if frame.body:
            self._next_offset = frame.offset + len(frame.body)
        return None

    def _why_not_these(self, batches: Sequence[Batch]) -> str | None:
        end = LogEnd(self._log)
        restarts = self._restarts
        for batch in batches:
            if not is_plausible_term(self._member.term, batch.term):
                return f"epoch {batch.term} is beyond any that follows epoch {self._member.term}"
            if restarts:
                restarts = False
                if batch.base_index <= self._log.end_index or batch.term < self._log.last_term:
                    return f"{batch!r} cannot follow what the master has trimmed"
                self._reset(batch, end)
            elif end.epoch == 0:  # an empty log begins anywhere
                if (batch.base_index, batch.offset) != (end.next_index, end.offset):
                    # A crash amid a restart can leave an empty log that begins beyond this batch.
                    member = self._member
                    member.committed_index = min(member.committed_index, batch.base_index - 1)
                    self._reset(batch, end)
            elif batch.term > end.epoch and epoch_of(batch) is None:
                return f"epoch {batch.term} does not open with {batch!r}"
            if (problem := end.why_not(batch, self._log_id)) is not None:
                return problem
            end.pass_by(batch)
        return None

    def _reset(self, batch: Batch, end: LogEnd) -> None:
        """Let the log begin with the batch."""
        self._outbox.truncate = Reset(batch.base_index, batch.offset)
        self._member.unsynced_index = NO_INDEX
        end.start_at(batch)

    # --- what the driver has done --------------------------------------------------------------------------

    def synced(self, now_ms: int) -> None:
        self._learn()
        self._end_doubt()
        if self._connected and self._reported_offset != self._held_offset:
            self._report(now_ms)

    def advance(self, ready: Ready, now_ms: int) -> None:
        if ready.batches:
            self.synced(now_ms)

    def abandon(self, ready: Ready, now_ms: int) -> None:
        self._leave("the disk is full", now_ms)

    def stop(self, now_ms: int) -> None:
        if self._connected or self._connecting:
            self._leave("this node stops", now_ms)
        self._reads.fail()

    # --- what a slave does not do --------------------------------------------------------------------------

    def propose(self, batch: Batch, appends: Sequence[PendingAppend], now_ms: int) -> None:
        raise InvariantError("a batch was proposed to a slave")

    def join(self, append: PendingAppend, now_ms: int) -> None:
        raise InvariantError("a repeat waits at a slave")

    def read_index(self, token: Any, now_ms: int) -> None:
        """Ask the master for the index of a linearizable read."""
        self._reads.ask(token, now_ms)
