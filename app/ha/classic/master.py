"""Core of a classic log at its master (H-06, H-07); roles are configuration. PURE.

Slaves get only what the master itself may acknowledge (on disk with `fsync`): classic frames have no epochs,
so a master that lost what its slaves hold could not be distinguished from a sound one. The master opens an
epoch with a control record when its log is empty, or was written by another master; before that it waits for
the other replicas (opening.py). A slave counts for what it provably holds (slaves.py).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from app.errors import CommitlogError, InvariantError, NoLeader, NotEnoughInSync
from app.ha.classic.opening import Opening, may_lack
from app.ha.classic.slaves import Ranges, Slave, Unfit, held_by, start_of
from app.ha.config import HaConfig
from app.ha.flow import Flow
from app.ha.frames import ClassicFrame, ClassicReport
from app.ha.log import HaLog, held_index, is_empty, offset_after
from app.ha.messages import INCOMING, Closed, Disconnect, Drained, Opened
from app.ha.parts import CoreParts
from app.ha.sending import Sender, Trimmed
from app.ha.static_group import StaticGroup
from app.ha.watermark_reports import WatermarkReports
from app.log.contract import (
    NO_INDEX,
    Acks,
    AppendFate,
    CoreStatus,
    LogOptions,
    PeerStatus,
    PendingAppend,
    Ready,
    Role,
)
from app.log.control_records import TermRecord
from app.log.core_start import CoreStart
from app.log.events import Corruption, RoleChanged, TermKnown
from app.log.facts import SyncFloor
from app.log.pending_appends import PendingAppends
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from app.raft.state import MemberState, committed_at_open
from storage.format.batch import Batch
from storage.log.hard_state import HardState


class ClassicMasterCore(StaticGroup):
    """Satisfies ReplicationCore. Invariants: the committed index never falls; a synchronous append is
    acknowledged only when the number of slaves that it needs provably hold it (H-07)."""

    takes_unreplicated = True
    needs_all_records = True

    may_truncate = False

    def __init__(
        self,
        start: CoreStart,
        log: HaLog,
        *,
        config: HaConfig,
        sync_slaves: int,
        auto_in_sync_replicas: bool,
        options: LogOptions,
        recorded: SyncFloor | None,
    ) -> None:
        """start: its group has all replicas of the log, in their configured order.

        sync_slaves: how many must hold a synchronous append, at least min_in_sync_replicas - 1 (0: every
        append is asynchronous). auto_in_sync_replicas: an append needs only the slaves in sync when they are
        fewer than sync_slaves, never fewer than min_in_sync_replicas - 1. options: with fewer replicas in
        sync than min_in_sync_replicas, the master included, synchronous appends are refused. recorded: by the
        newest epoch of this copy, None: unknown.
        """
        self._log = log
        self._replicas = start.group.voters
        self._config = config
        self._min_slaves = options.min_in_sync_replicas - 1
        self._asked_slaves = sync_slaves
        self._auto = auto_in_sync_replicas
        self._unclean = options.unclean
        self._raised_from = options.raised_from
        self._recorded = recorded
        self._now_ms = 0
        super().__init__(
            MemberState(
                node_id=start.node_id,
                group=start.group,
                durability=start.durability,
                role=Role.MASTER,
                term=max(start.hard_state.term, log.last_term),
                voted_for=None,
                committed_index=committed_at_open(log, start.committed_index),
                leader_id=start.node_id,
            )
        )
        found = start.hard_state
        self._opened_term = found.term if found.voted_for == start.node_id else NO_INDEX
        self._was_slave = found.voted_for not in (None, start.node_id)
        self._may_lack = may_lack(found)
        self._pending = PendingAppends()
        self._slaves: dict[str, Slave] = {}
        self._heard_ms = dict.fromkeys(self._replicas, 0)  # on connections that have ended
        self._proven = {
            Acks.QUORUM: Ranges(),
            Acks.ALL: Ranges(),
        }  # what slaves have held in this incarnation
        self._first_indexes: dict[str, int] = {}  # of replicas that began without the older records
        self._refused: dict[str, Unfit] = {}  # by replica: its last refusal, until it is verified
        self._before_opening: Opening | None = None
        self._opening: TermRecord | None = None
        self._open_index = NO_INDEX  # the epoch is open once this index is durable
        parts = CoreParts(
            member=self._member, log=log, log_id=start.log_id, outbox=self._outbox, config=config
        )
        self._reports = WatermarkReports(parts, self._watermarks, 0)

    # --- what the driver asks ------------------------------------------------------------------------------

    @property
    def accepts_appends(self) -> bool:
        return self._is_open

    @property
    def _is_open(self) -> bool:
        if self._before_opening is not None or self._opening is not None:
            return False
        return NO_INDEX < self._open_index <= self._log.durable_index

    @property
    def refusal(self) -> CommitlogError | None:
        """The refusal of synchronous appends; while the epoch is not open, of all appends."""
        if self._before_opening is not None:
            return NoLeader(f"{self._member.node_id} has not opened its epoch: {self._waits_for}")
        in_sync = 1 + self._slaves_in_sync
        if in_sync <= self._min_slaves:
            return NotEnoughInSync(in_sync, self._min_slaves + 1)
        return None

    @property
    def _waits_for(self) -> str | None:
        if self._before_opening is None:
            return None
        if not (self.electable or self._is_mine):
            return (
                "this copy lacks older records or the log's state before them: make another replica the "
                "master, or set unclean = true to lose them"
            )
        return self._before_opening.reason

    @property
    def _sync_slaves(self) -> int:
        """Number of slaves that a synchronous append waits for when all are in sync."""
        return max(self._asked_slaves, self._min_slaves)

    @property
    def _slaves_in_sync(self) -> int:
        end = offset_after(self._log, self._held_index)
        limit_ms = self._config.ha_max_time_slave_not_catchup_ms
        return sum(slave.in_sync(end, self._now_ms, limit_ms) for slave in self._slaves.values())

    @property
    def _needed(self) -> int:
        """Number of slaves that must hold a synchronous append now."""
        if not self._auto:
            return self._sync_slaves
        return max(min(self._sync_slaves, self._slaves_in_sync), self._min_slaves)

    @property
    def wants_control(self) -> TermRecord | None:
        return self._opening

    def status(self) -> CoreStatus:
        member = self._member
        return CoreStatus(
            role=Role.MASTER,
            term=member.term,
            leader_id=member.node_id,
            committed_index=member.committed_index,
            peers=tuple(
                self._peer(slave_id) for slave_id in self._watermarks() if slave_id != member.node_id
            ),
            master=member.node_id,
            sync_state_set=self._in_sync(),
            epoch=member.term,
            confirm_offset=offset_after(self._log, member.committed_index),
            acks_needed=self._needed,
            waits_for=self._waits_for,
        )

    def _in_sync(self) -> tuple[str, ...]:
        """The master, and the connected slaves that hold all that is committed."""
        me, committed = self._member.node_id, self._member.committed_index
        connected = (slave for slave in self._slaves.values() if slave.sender is not None)
        holders = {slave.id for slave in connected if slave.mark >= committed}
        return (me, *(each for each in self._replicas if each in holders and each != me))

    def _peer(self, slave_id: str) -> PeerStatus:
        slave = next((slave for slave in self._slaves.values() if slave.id == slave_id), None)
        if slave is None:
            refused = self._refused.get(slave_id)
            state, reason = ("DISCONNECTED", None) if refused is None else ("REFUSED", refused.reason)
            heard_ms = self._heard_ms[slave_id]
            return PeerStatus(
                slave_id, state, NO_INDEX, 0, None, in_sync=False, reason=reason, heard_ms=heard_ms
            )
        if slave.sender is None:
            return PeerStatus(slave_id, "READY", NO_INDEX, 0, None, in_sync=False)
        end_offset, limit_ms = self._log.end_offset, self._config.ha_max_time_slave_not_catchup_ms
        return PeerStatus(
            slave_id,
            "TRANSFER",
            slave.mark,
            slave.sender.waiting_batches,
            end_offset - slave.sender.acked_offset,
            acked_offset=slave.sender.acked_offset,
            bytes_per_s=slave.flow.bytes_per_s(self._now_ms),
            in_sync=slave.in_sync(offset_after(self._log, self._held_index), self._now_ms, limit_ms),
            reason=slave.lacks(self._log.begin_index),
        )

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        if term is not None and term != self._member.term:
            return {}
        return {self._member.term: self._watermarks()}

    def _watermarks(self) -> dict[str, int]:
        marks = dict.fromkeys(self._replicas, NO_INDEX)
        for slave in self._slaves.values():
            if slave.sender is not None:
                marks[slave.id] = max(marks.get(slave.id, NO_INDEX), slave.mark)
        marks[self._member.node_id] = self._held_index
        return marks

    @property
    def _held_index(self) -> int:
        return held_index(self._log, self._member.durability)

    # --- events --------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Wait for the other replicas; then continue the epoch of this node, or open the next one."""
        self._now_ms = now_ms
        self._heard_ms = dict.fromkeys(self._replicas, now_ms)
        if self._unclean or len(self._replicas) == 1:
            self._proceed()
        else:
            self._before_opening = self._opening_from(now_ms)
        self._outbox.record(self._member.term, RoleChanged(role=Role.MASTER.value, leader=self.leader_id))
        self._check(now_ms)

    def _opening_from(self, now_ms: int) -> Opening:
        others = [replica for replica in self._replicas if replica != self._member.node_id]
        term = self._member.term
        knows_epoch = term > 0 and term != self._opened_term
        return Opening(
            others,
            required=self._required,
            needs_all=is_empty(self._log) and (self._was_slave or knows_epoch),
            grace_ms=self._config.opening_wait_ms,
            now_ms=now_ms,
        )

    @property
    def _required(self) -> int:
        """Number of the other replicas that must vouch before an epoch is opened: all but those slaves that
        surely held each synchronous append which this copy may lack.

        By the settings, with the smallest floor that the log has had, and by the newest epoch of this copy:
        it holds everything that was acknowledged before that, and a later epoch with fewer needs the settings
        to be known here. A copy that may have lost what it acknowledged itself needs one more.
        """
        if self._is_mine or is_empty(self._log):
            return 0
        others, known = len(self._replicas) - 1, self._recorded
        if known is None:
            return others
        floor = self._raised_from - 1 if self._raised_from else self._min_slaves
        sure = min(self._sure(floor), known.sync_slaves) - self._may_lack
        return min(others, max(0, max(others, known.slaves) - sure))

    def _sure(self, floor: int) -> int:
        """Number of slaves that hold each synchronous append, at least, with this floor."""
        return floor if self._auto else max(self._asked_slaves, floor)

    @property
    def _needs(self) -> tuple[int, int]:
        """(slaves that hold each synchronous append, at least; slaves) by the present settings."""
        return self._sure(self._min_slaves), len(self._replicas) - 1

    @property
    def _is_as_recorded(self) -> bool:
        known = self._recorded
        return known is not None and (known.sync_slaves, known.slaves) == self._needs

    @property
    def _term_record(self) -> TermRecord:
        sync_slaves, slaves = self._needs
        return TermRecord(leader=self._member.node_id, sync_slaves=sync_slaves, slaves=slaves)

    @property
    def _is_mine(self) -> bool:
        """Return whether this copy has opened the newest epoch of the log (A-01).

        The name of its leader proves nothing: a replaced disk may have received the log from another replica.
        """
        epochs, member = self._log.epochs, self._member
        newest = bool(epochs) and (epochs[-1].leader, epochs[-1].term) == (member.node_id, member.term)
        return newest and self._opened_term == member.term

    def _proceed(self) -> None:
        """Continue this node's epoch if its record still holds; or begin the next one, whose number is
        durable before its record."""
        member = self._member
        self._before_opening = None
        if self._is_mine and self._is_as_recorded:
            self._open_index = self._log.end_index
        else:
            member.term += 1
            self._opened_term = member.term
            self._outbox.hard_state = HardState(member.term, member.node_id)
            self._opening = self._term_record
        self._outbox.record(member.term, TermKnown(term=member.term, leader=member.node_id))

    def _proceed_if_complete(self, now_ms: int) -> None:
        waits = self._before_opening
        if waits is not None and (self.electable or self._is_mine) and waits.is_complete(now_ms):
            self._proceed()

    def _object(self, slave: Slave, reason: str) -> None:
        """A replica may hold what this copy lacks: accept no appends and serve no confirmed reads
        meanwhile."""
        log, history = self._log, slave.history
        newer = history is None or (history.epoch, history.end_offset) > (log.last_term, log.end_offset)
        if self._before_opening is None and newer and history is not None and not self._unclean:
            self._before_opening = self._opening_from(self._now_ms)
            self._opening = None
            self._outbox.answers += self._pending.close()
        if self._before_opening is not None and newer:
            self._before_opening.object(slave.id, reason)

    def step(self, source: str, message: Any, now_ms: int) -> None:
        self._now_ms = now_ms
        if isinstance(message, ReadIndexRequest):
            self._outbox.send(source, ReadIndexAnswer(message.term, message.id, self._readable_for(source)))
        elif isinstance(message, Opened):
            if source.startswith(INCOMING):
                self._connected(source, message, now_ms)
        elif (slave := self._slaves.get(source)) is None:
            return
        elif isinstance(message, Closed):
            self._forget(slave)
        elif isinstance(message, Drained):
            slave.room_bytes = self._config.ha_window_bytes
            self._pump(slave, now_ms)
        elif isinstance(message, ClassicReport):
            slave.heard_ms = now_ms
            self._reported(slave, message.max_offset, now_ms)
        else:
            self._drop(slave, f"{type(message).__name__} from a slave")

    def _connected(self, key: str, opened: Opened, now_ms: int) -> None:
        """An identified slave has one connection: it must not count twice (H-07)."""
        is_replica = 0 < opened.replica <= len(self._replicas)
        slave_id = self._replicas[opened.replica - 1] if is_replica else key
        for other in list(self._slaves.values()):
            if other.id == slave_id:
                self._drop(other, "the slave has connected again")
        flow = Flow(self._config.max_transfer_bytes_per_s, now_ms)
        self._slaves[key] = Slave(
            key=key,
            heard_ms=now_ms,
            flow=flow,
            room_bytes=self._config.ha_window_bytes,
            id=slave_id,
            is_replica=is_replica,
            history=opened.history if is_replica else None,
        )

    def _forget(self, slave: Slave) -> None:
        del self._slaves[slave.key]
        if slave.is_replica:
            self._heard_ms[slave.id] = slave.heard_ms

    def _drop(self, slave: Slave, reason: str) -> None:
        self._forget(slave)
        self._outbox.send(slave.key, Disconnect(reason))

    def _reported(self, slave: Slave, max_offset: int, now_ms: int) -> None:
        sender = slave.sender
        if sender is None:
            self._begin(slave, max_offset, now_ms)
            return
        before = sender.acked_index
        problem = sender.acknowledge(max_offset)
        if problem is not None:
            self._drop(slave, problem)
            return
        if sender.acked_index > before and slave.is_replica and not slave.verified:
            self._verified(slave)
        slave.caught_up()
        self._check(now_ms)
        self._pump(slave, now_ms)

    def _begin(self, slave: Slave, max_offset: int, now_ms: int) -> None:
        try:
            start = start_of(self._log, max_offset, slave.history, is_replica=slave.is_replica)
        except Unfit as unfit:
            self._refuse(slave, unfit)
            return
        slave.sender = Sender(self._log, start.next_index, start.offset, start.held_index)
        slave.first_index = start.first_index
        slave.note(offset_after(self._log, self._held_index), now_ms)
        if slave.is_replica and (start.restart or max_offset == 0):
            self._first_indexes[slave.id] = start.first_index
        if start.verified:
            self._verified(slave, empty=start.restart or max_offset == 0)
        if start.restart:
            self._outbox.send(slave.key, ClassicFrame(start.offset, restart=True))
        self._check(now_ms)
        self._pump(slave, now_ms, always=True)

    def _verified(self, slave: Slave, *, empty: bool = False) -> None:
        """The slave holds only a beginning of this log; empty: nothing at all."""
        slave.verified = True
        slave.first_index = self._first_indexes.get(slave.id, 0)
        self._refused.pop(slave.id, None)
        waits = self._before_opening
        if waits is None:
            return
        if empty:
            waits.empty(slave.id)
        elif slave.history is not None and slave.history.in_doubt:
            waits.doubted(slave.id)
        else:
            waits.heard(slave.id)

    def _refuse(self, slave: Slave, unfit: Unfit) -> None:
        """Refuse a slave whose log is not a beginning of this one; nothing of it counts (H-04)."""
        if slave.is_replica:  # the journal records no unidentified peers, and one event for each cause
            known = self._refused.get(slave.id)
            self._refused[slave.id] = unfit
            if known is None or known.kind != unfit.kind:
                found = Corruption(reason=f"slave {slave.id}: {unfit.reason}", slave=slave.id)
                self._outbox.record(self._member.term, found)
            self._object(slave, unfit.reason)
        self._drop(slave, unfit.reason)

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        config = self._config
        self._proceed_if_complete(now_ms)
        for slave in list(self._slaves.values()):
            if slave.is_silent(now_ms, config):
                self._drop(slave, "silent for too long")
            elif slave.is_idle(now_ms, config):
                self._pump(slave, now_ms, always=True)
            elif config.ha_flow_control:
                self._pump(slave, now_ms)
        if self._auto:
            self._check(now_ms)  # a slave may have left the set of slaves in sync
        self._outbox.answers += self._pending.time_out(now_ms, AppendFate.TOO_FEW_SLAVES)
        self._reports.tick(now_ms)

    def propose(self, batch: Batch, appends: Sequence[PendingAppend], now_ms: int) -> None:
        if batch.term != self._member.term:
            raise InvariantError("a batch was proposed in another epoch than the master's")
        if self._opening is not None and batch.is_control:
            self._recorded = SyncFloor(batch.last_index, *self._needs)
            self._opening = None
            self._open_index = batch.last_index
        self._outbox.batches.append(batch)
        self._pending.add(appends)

    def join(self, append: PendingAppend, now_ms: int) -> None:
        self._pending.join(append)
        self._check(now_ms)

    def read_index(self, token: Any, now_ms: int) -> None:
        self._outbox.reads.append((token, self._readable_index))

    def _readable_for(self, source: str) -> int | None:
        """A slave may serve a confirmed read only from records that are this master's."""
        verified = any(slave.id == source and slave.verified for slave in self._slaves.values())
        return self._readable_index if verified else None

    @property
    def _readable_index(self) -> int | None:
        """The master answers by itself. After a restart, records that it found may have been acknowledged,
        also while the slaves that hold them are not connected yet: readers wait for that."""
        return max(self._member.committed_index, self._open_index) if self._is_open else None

    def synced(self, now_ms: int) -> None:
        self._check(now_ms)
        for slave in list(self._slaves.values()):
            self._pump(slave, now_ms)

    def advance(self, ready: Ready, now_ms: int) -> None:
        if ready.batches:
            self.synced(now_ms)

    def abandon(self, ready: Ready, now_ms: int) -> None:
        first = ready.batches[0]
        if first.base_index == self._open_index:  # no space for the opening record: it is retried
            self._open_index = NO_INDEX
            self._opening = self._term_record
        self._outbox.answers += self._pending.drop(first.base_index)

    def stop(self, now_ms: int) -> None:
        self._outbox.answers += self._pending.close()
        for slave in list(self._slaves.values()):
            self._drop(slave, "this node stops")

    def apply_options(self, options: LogOptions, now_ms: int) -> None:
        self._min_slaves = options.min_in_sync_replicas - 1
        self._unclean = options.unclean
        self._raised_from = options.raised_from
        if self._opening is not None:
            self._opening = self._term_record
        if self._before_opening is not None:
            self._before_opening.require(self._required)
            if self._unclean:
                self._proceed()
        super().apply_options(options, now_ms)
        self._check(now_ms)

    # --- sending and acks ----------------------------------------------------------------------------------

    def _pump(self, slave: Slave, now_ms: int, *, always: bool = False) -> None:
        """Send what is available within the limits; always: an empty frame if there is nothing (H-06)."""
        sender = slave.sender
        if sender is None:
            return
        try:
            pieces = slave.take(self._config, self._held_index, now_ms)
        except Trimmed:
            self._drop(slave, "what the slave needs next is trimmed")
            return
        for piece in pieces:
            self._outbox.send(slave.key, ClassicFrame(piece.offset, piece.body))
        if always and not pieces:
            self._outbox.send(slave.key, ClassicFrame(sender.sent_offset))
        if pieces or always:
            slave.sent_ms = now_ms
            slave.note(offset_after(self._log, self._held_index), now_ms)

    def _check(self, now_ms: int) -> None:
        """Commit what the required number of slaves has reached, and answer what they provably hold
        (H-07)."""
        member = self._member
        marks = self._watermarks()
        held = marks.pop(member.node_id)
        reached = sorted(marks.values(), reverse=True)
        needed = self._needed
        index = held
        if needed > 0:
            index = min(held, reached[needed - 1]) if len(reached) >= needed else NO_INDEX
        member.committed_index = max(member.committed_index, index)
        self._outbox.answers += self._pending.release(
            {Acks.LEADER: held, Acks.QUORUM: NO_INDEX, Acks.ALL: NO_INDEX}
        )
        others = [replica for replica in self._replicas if replica != member.node_id]
        replicas = [slave for slave in self._slaves.values() if slave.id in others]
        self._answer(Acks.QUORUM, self._slaves.values(), needed, held)
        self._answer(Acks.ALL, replicas, len(others), held)

    def _answer(self, acks: Acks, slaves: Iterable[Slave], needed: int, held: int) -> None:
        """Answer what `needed` of the slaves provably hold, or held once: a disconnected slave keeps it."""
        proven = self._proven[acks]
        if needed == 0:
            proven.add(0, held)
        stretches = [stretch for slave in slaves if (stretch := slave.stretch) is not None]
        for first, last in held_by(stretches, needed, 0) if needed else ():
            proven.add(first, min(last, held))
        for first, last in proven:
            self._outbox.answers += self._pending.release_between(acks, first, last)
