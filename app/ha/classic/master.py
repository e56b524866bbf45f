"""Core of a classic log at its master (H-06, H-07); roles are configuration. PURE.

Slaves get only what the master itself may acknowledge (on disk with `fsync`): classic frames have no epochs,
so a master that lost what its slaves hold could not be distinguished from a sound one. The master opens an
epoch when its log is empty, or was written by another master (master_epoch.py). A slave counts for what it
provably holds (slaves.py).
"""

from collections.abc import Iterable, Sequence
from typing import Any

from app.errors import CommitlogError, InvariantError, NoLeader, NotEnoughInSync
from app.ha.classic.master_epoch import MasterEpoch
from app.ha.classic.needs import SlaveNeeds
from app.ha.classic.opening import FoundCopy
from app.ha.classic.slaves import Ranges, Slave, Unfit, held_by, start_of
from app.ha.config import HaConfig
from app.ha.flow import Flow
from app.ha.frames import ClassicFrame, ClassicReport
from app.ha.log import HaLog, held_index, offset_after
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
from app.log.events import Corruption, RoleChanged
from app.log.pending_appends import PendingAppends
from app.log.recorded_values import SyncFloor
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from app.raft.state import MemberState, committed_at_open
from storage.format.batch import Batch


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
        begins: bool,
    ) -> None:
        """start: its group has all replicas of the log, in their configured order.

        sync_slaves: how many must hold a synchronous append, at least min_in_sync_replicas - 1 (0: every
        append is asynchronous). auto_in_sync_replicas: an append needs only the slaves in sync when they are
        fewer than sync_slaves, never fewer than min_in_sync_replicas - 1. options: with fewer replicas in
        sync than min_in_sync_replicas, the master included, synchronous appends are refused. recorded: by the
        newest epoch of this copy, None: unknown. begins: as in FoundCopy.
        """
        self._log = log
        self._replicas = start.group.voters
        self._config = config
        self._needs = SlaveNeeds(sync_slaves, auto_in_sync_replicas, options.min_in_sync_replicas - 1)
        self._now_ms = self._ticked_ms = 0
        self._below_floor_ms = 0
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
        self._epoch = MasterEpoch(
            self._member,
            log,
            self._outbox,
            found=FoundCopy(start.hard_state, recorded, begins),
            needs=self._needs,
            options=options,
            grace_ms=config.opening_wait_ms,
        )
        self._pending = PendingAppends()
        self._slaves: dict[str, Slave] = {}
        self._heard_ms = dict.fromkeys(self._replicas, 0)  # on connections that have ended
        self._last_marks: dict[str, int] = {}  # likewise; shown, never counted
        self._proven = {
            Acks.QUORUM: Ranges(),
            Acks.ALL: Ranges(),
        }  # what slaves have held in this incarnation
        self._first_indexes: dict[str, int] = {}  # of replicas that began without the older records
        self._refused: dict[str, Unfit] = {}  # by replica: its last refusal, until it is verified
        parts = CoreParts(
            member=self._member, log=log, log_id=start.log_id, outbox=self._outbox, config=config
        )
        self._reports = WatermarkReports(parts, self._shown_watermarks, 0)

    # --- what the driver asks ------------------------------------------------------------------------------

    @property
    def accepts_appends(self) -> bool:
        return self._epoch.is_open and not self.pauses_appends

    @property
    def is_transferring(self) -> bool:
        """True while the node stops and a slave in sync lacks records of this log, also those not durable."""
        return self.pauses_appends and any(
            self._is_in_sync(slave) and slave.acked_offset < self._log.end_offset
            for slave in self._slaves.values()
        )

    @property
    def refusal(self) -> CommitlogError | None:
        """The refusal of synchronous appends; while the epoch is not open, of all appends."""
        reason = self._epoch.waits_for
        if reason is not None:
            return NoLeader(f"{self._member.node_id} has not opened its epoch: {reason}")
        in_sync = 1 + self._slaves_in_sync
        if in_sync <= self._needs.floor:
            return NotEnoughInSync(in_sync, self._needs.floor + 1)
        return None

    @property
    def _slaves_in_sync(self) -> int:
        return sum(map(self._is_in_sync, self._slaves.values()))

    def _is_in_sync(self, slave: Slave) -> bool:
        end_offset = offset_after(self._log, self._held_index)
        return slave.in_sync(end_offset, self._now_ms, self._config.ha_max_time_slave_not_catchup_ms)

    @property
    def _needed(self) -> int:
        """Number of slaves that must hold a synchronous append now."""
        return self._needs.now(self._slaves_in_sync)

    @property
    def wants_control(self) -> TermRecord | None:
        return self._epoch.control

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
            waits_for=self._epoch.waits_for,
            below_floor_ms=self._below_floor_ms,
        )

    def _in_sync(self) -> tuple[str, ...]:
        """The master, and the connected slaves that hold all that is committed."""
        me, committed = self._member.node_id, self._member.committed_index
        connected = (slave for slave in self._slaves.values() if slave.sender is not None)
        holders = {slave.id for slave in connected if slave.mark >= committed}
        return (me, *(each for each in self._replicas if each in holders and each != me))

    def _peer(self, slave_id: str) -> PeerStatus:
        slave = next((slave for slave in self._slaves.values() if slave.id == slave_id), None)
        mark = self._last_marks.get(slave_id, NO_INDEX)
        if slave is None:
            refused = self._refused.get(slave_id)
            state, reason = ("DISCONNECTED", None) if refused is None else ("REFUSED", refused.reason)
            heard_ms = self._heard_ms[slave_id]
            return PeerStatus(slave_id, state, mark, 0, None, in_sync=False, reason=reason, heard_ms=heard_ms)
        if slave.sender is None:
            return PeerStatus(slave_id, "READY", mark, 0, None, in_sync=False, is_node=slave.is_replica)
        return PeerStatus(
            slave_id,
            "TRANSFER",
            slave.mark,
            slave.sender.waiting_batches,
            self._log.end_offset - slave.sender.acked_offset,
            acked_offset=slave.sender.acked_offset,
            bytes_per_s=slave.flow.bytes_per_s(self._now_ms),
            in_sync=self._is_in_sync(slave),
            reason=slave.lacks(self._log.begin_index),
            is_node=slave.is_replica,
        )

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        if term is not None and term != self._member.term:
            return {}
        return {self._member.term: self._shown_watermarks()}

    def _shown_watermarks(self) -> dict[str, int]:
        """As `_watermarks`, with what a slave without a connection had acknowledged before."""
        connected = {slave.id for slave in self._slaves.values() if slave.sender is not None}
        ended = {each: mark for each, mark in self._last_marks.items() if each not in connected}
        return self._watermarks() | ended

    def _watermarks(self) -> dict[str, int]:
        """Return, by node, what it is assumed to hold; NO_INDEX without a connection."""
        marks = dict.fromkeys(self._replicas, NO_INDEX)
        for slave in self._slaves.values():
            if slave.sender is not None:
                marks[slave.id] = max(marks.get(slave.id, NO_INDEX), slave.mark)
        marks[self._member.node_id] = self._held_index
        return marks

    @property
    def _held_index(self) -> int:
        return held_index(self._log, self._member)

    # --- events --------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        self._now_ms = self._ticked_ms = now_ms
        self._heard_ms = dict.fromkeys(self._replicas, now_ms)
        self._epoch.start(now_ms)
        self._outbox.record(self._member.term, RoleChanged(role=Role.MASTER.value, leader=self.leader_id))
        self._check()

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
            if slave.sender is not None:
                self._last_marks[slave.id] = slave.mark

    def _drop(self, slave: Slave, reason: str) -> None:
        self._forget(slave)
        self._outbox.send(slave.key, Disconnect(reason, slave.id if slave.is_replica else ""))

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
        self._check()
        self._pump(slave, now_ms)

    def _begin(self, slave: Slave, max_offset: int, now_ms: int) -> None:
        try:
            start = start_of(self._log, max_offset, slave.history, is_replica=slave.is_replica)
        except Unfit as unfit:
            self._refuse(slave, unfit)
            return
        if slave.history is not None and slave.history.for_earlier:
            # Its begin may be left out. After a frame the slave connects soon, and names it.
            self._outbox.send(slave.key, ClassicFrame(max_offset))
            self._drop(slave, "its history is written for a master of an earlier version")
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
        self._check()
        self._pump(slave, now_ms, always=True)

    def _verified(self, slave: Slave, *, empty: bool = False) -> None:
        """The slave holds only a beginning of this log; empty: nothing at all."""
        slave.verified = True
        began_at = self._first_indexes.get(slave.id, 0)
        slave.first_index = began_at if slave.history is None else max(began_at, slave.first_index)
        self._refused.pop(slave.id, None)
        self._epoch.verified(slave, empty=empty)

    def _refuse(self, slave: Slave, unfit: Unfit) -> None:
        """Refuse a slave whose log is not a beginning of this one; nothing of it counts (H-04)."""
        if slave.is_replica:  # the journal records no unidentified peers, and one event for each cause
            known = self._refused.get(slave.id)
            self._refused[slave.id] = unfit
            self._last_marks.pop(slave.id, None)  # it was that of another copy
            if known is None or known.kind != unfit.kind:
                found = Corruption(reason=f"slave {slave.id}: {unfit.reason}", slave=slave.id)
                self._outbox.record(self._member.term, found)
            self._object(slave, unfit.reason)
        self._drop(slave, unfit.reason)

    def _object(self, slave: Slave, reason: str) -> None:
        """Accept no appends and serve no confirmed reads while a replica may hold what this copy lacks."""
        was_waiting = self._epoch.waiting is not None
        self._epoch.object(slave, reason, self._now_ms)
        if self._epoch.waiting is not None and not was_waiting:
            self._outbox.answers += self._pending.close()

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        if isinstance(self.refusal, NotEnoughInSync):
            self._below_floor_ms += now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        config = self._config
        self._epoch.tick(now_ms)
        for slave in list(self._slaves.values()):
            if slave.is_silent(now_ms, config):
                self._drop(slave, "silent for too long")
            elif slave.is_idle(now_ms, config):
                self._pump(slave, now_ms, always=True)
            elif config.ha_flow_control:
                self._pump(slave, now_ms)
        if self._needs.automatic:
            self._check()  # a slave may have left the set of slaves in sync
        held_index = self._held_index  # what the disk has not stored yet may be lost
        self._outbox.answers += [
            (append, fate if append.last_index <= held_index else AppendFate.TIMED_OUT)
            for append, fate in self._pending.time_out(now_ms, AppendFate.TOO_FEW_SLAVES)
        ]
        self._reports.tick(now_ms)

    def propose(self, batch: Batch, appends: Sequence[PendingAppend], now_ms: int) -> None:
        if batch.term != self._member.term:
            raise InvariantError("a batch was proposed in another epoch than the master's")
        self._epoch.proposed(batch)
        self._outbox.batches.append(batch)
        self._pending.add(appends)

    def join(self, append: PendingAppend, now_ms: int) -> None:
        self._pending.join(append)
        self._check()

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
        epoch = self._epoch
        return max(self._member.committed_index, epoch.open_index) if epoch.is_open else None

    def synced(self, now_ms: int) -> None:
        self._check()
        for slave in list(self._slaves.values()):
            self._pump(slave, now_ms)

    def advance(self, ready: Ready, now_ms: int) -> None:
        if ready.batches:
            self.synced(now_ms)

    def abandon(self, ready: Ready, now_ms: int) -> None:
        first = ready.batches[0]
        self._epoch.abandoned(first, now_ms)
        self._outbox.answers += self._pending.drop(first.base_index)

    def hand_over(self, now_ms: int) -> None:
        self.pauses_appends = True

    def stop(self, now_ms: int) -> None:
        self._outbox.answers += self._pending.close()
        for slave in list(self._slaves.values()):
            self._drop(slave, "this node stops")

    def apply_options(self, options: LogOptions, now_ms: int) -> None:
        self._needs.floor = options.min_in_sync_replicas - 1
        self._epoch.apply_options(options)
        super().apply_options(options, now_ms)
        self._check()

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

    def _check(self) -> None:
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
        for first, last in held_by(stretches, needed) if needed else ():
            proven.add(first, min(last, held))
        for first, last in proven:
            self._outbox.answers += self._pending.release_between(acks, first, last)
