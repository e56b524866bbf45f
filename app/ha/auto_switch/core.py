"""The core of one log at one replica in controller mode: AutoSwitch HA (A), and C-07, C-08, C-11, C-12.

Pure (app/log/contract.py describes how a driver runs it). The controller decides who is master; the
ReplicasManager passes the decision on (roles.py). The core switches between MasterSide and SlaveSide; at most
one of them is active. The master epoch is the log's term.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from app.errors import CommitlogError, InvariantError, NotEnoughInSync
from app.ha.auto_switch.disk_watch import DiskWatch
from app.ha.auto_switch.lease import HeldLease
from app.ha.auto_switch.master_side import MasterSide
from app.ha.auto_switch.slave_side import Rollback, SlaveSide
from app.ha.auto_switch.sync_state_set import SyncStateSet
from app.ha.config import HaConfig
from app.ha.frames import Ack, Handshake, HandshakeAnswer, TransferFrame
from app.ha.log import HaLog, held_index, offset_after
from app.ha.messages import INCOMING, OUTGOING, Closed, Disconnect, Drained, Opened
from app.ha.parts import CoreParts
from app.ha.roles import (
    KnownReplica,
    Lease,
    MasterRole,
    RoleMessage,
    SetRequest,
    SlaveRole,
    SyncStateSetUpdate,
    nodes_of,
)
from app.ha.static_group import StaticGroup
from app.log.contract import (
    NO_INDEX,
    CoreStatus,
    LogOptions,
    PendingAppend,
    Ready,
    Role,
)
from app.log.control_records import TermRecord
from app.log.core_start import CoreStart
from app.raft.config import RaftConfig
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from app.raft.reads import FollowerReads
from app.raft.state import MemberState, committed_at_open
from storage.format.batch import Batch
from storage.log.hard_state import HardState

AutoSwitchFrame = Handshake | HandshakeAnswer | TransferFrame | Ack  # of frames.Frame, those of this mode


class AutoSwitchCore(StaticGroup):
    """One replica of one log. Satisfies ReplicationCore and roles.HaView.

    Invariants: the epoch never decreases, across restarts; an epoch is opened at most once, by one
    incarnation; the committed (confirmed) index never decreases, except by a recorded rollback with the log
    closed.
    """

    decider = "the controllers"
    needs_all_records = True

    def __init__(
        self,
        start: CoreStart,
        log: HaLog,
        *,
        address: str,
        config: HaConfig,
        min_in_sync_replicas: int,
    ) -> None:
        """address: of this replica's HA listener. min_in_sync_replicas: the minimum of C-12, 1 for none."""
        hard_state = start.hard_state
        self._log = log
        self._min_in_sync = min_in_sync_replicas
        self._in_sync = 0
        super().__init__(
            MemberState(
                node_id=start.node_id,
                group=start.group,
                durability=start.durability,
                role=Role.SLAVE,
                term=max(hard_state.term, log.last_term),
                voted_for=hard_state.voted_for if hard_state.term >= log.last_term else None,
                committed_index=committed_at_open(log, start.committed_index),
            )
        )
        self._parts = CoreParts(
            member=self._member, log=log, log_id=start.log_id, outbox=self._outbox, config=config
        )
        reads = RaftConfig(read_index_timeout_ms=config.ha_read_index_timeout_ms)
        self._disk = DiskWatch(self._parts)
        self._reads = FollowerReads(self._member, self._outbox, reads, start.random)
        self._me = KnownReplica(0, start.node_id, address)  # it has no id before its first role
        self._master: MasterSide | None = None
        self._slave: SlaveSide | None = None
        self._followed: SlaveRole | None = None
        self._opening: TermRecord | None = None
        self._opening_index = NO_INDEX
        self.lease = HeldLease()
        self._now_ms = 0
        self._connections = 0
        self._needs_election = False

    # --- what the driver asks ------------------------------------------------------------------------------

    @property
    def accepts_appends(self) -> bool:
        return self._is_open and not self._is_fenced(self._now_ms)

    @property
    def refusal(self) -> CommitlogError | None:
        """The refusal of new appends although this replica is master; None when they are accepted."""
        master = self._master
        if master is not None and master.below_floor:
            return NotEnoughInSync(len(master.set.members), self._min_in_sync)
        return None

    @property
    def wants_control(self) -> TermRecord | None:
        return self._opening

    def status(self) -> CoreStatus:
        member, master = self._member, self._master
        return CoreStatus(
            role=member.role,
            term=member.term,
            leader_id=member.leader_id,
            committed_index=member.committed_index,
            peers=() if master is None else master.peers(),
            learners=tuple(replica.node for replica in self._replicas if replica.learner),
            master=member.leader_id,
            epoch=member.term,
            sync_state_set=self._sync_state_set,
            confirm_offset=self.confirm_offset,
            without_lease=master is not None and not self.accepts_appends,
            below_floor_ms=self.lease.below_floor_ms,
        )

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        """Return the watermarks by epoch and replica; only the master has them, for its own epoch."""
        member = self._member
        if self._master is None or (term is not None and term != member.term):
            return {}
        return {member.term: self._master.watermarks()}

    # --- what the manager asks (roles.HaView) --------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self._member.term

    @property
    def log_epoch(self) -> int:
        held = self._reported_index
        return self._log.term_at(held) if self._log.begin_index <= held != NO_INDEX else 0

    @property
    def max_offset(self) -> int:
        return offset_after(self._log, self._reported_index)

    @property
    def _reported_index(self) -> int:
        """As held_index, without the opening of an epoch that is not open: its master may be replaced."""
        held = held_index(self._log, self._member)
        is_opening = self._master is not None and not self._is_open and self._opening is None
        return min(held, self._opening_index - 1) if is_opening else held

    @property
    def confirm_offset(self) -> int:
        return offset_after(self._log, self._member.committed_index)

    @property
    def set_request(self) -> SetRequest | None:
        return None if self._master is None else self._master.set_request

    @property
    def needs_election(self) -> bool:
        return self._needs_election

    @property
    def wanted_rollback(self) -> Rollback | None:
        """Confirmed records that an unclean election has lost: the node removes them
        (app/node/repair/ha_loss.py)."""
        return None if self._slave is None else self._slave.rollback

    # --- events --------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._settle(now_ms)

    def step(self, source: str, message: Any, now_ms: int) -> None:
        """Handle a message of the manager, of a connection, or (reads) of another node."""
        self._now_ms = now_ms
        if isinstance(message, RoleMessage):
            self._instruct(message, now_ms)
        elif isinstance(message, ReadIndexRequest):
            index = self._readable_index(now_ms) if message.term == self._member.term else None
            self._outbox.send(source, ReadIndexAnswer(self._member.term, message.id, index))
        elif isinstance(message, ReadIndexAnswer):
            if source == self._member.leader_id:
                self._reads.answered(message, now_ms)
        elif source.startswith(INCOMING):
            self._from_slave(source, message, now_ms)
        elif source.startswith(OUTGOING):
            self._from_master(source, message, now_ms)
        self._settle(now_ms)

    def _instruct(self, message: RoleMessage, now_ms: int) -> None:
        if isinstance(message, Lease):
            self._take_lease(message)
        elif isinstance(message, SyncStateSetUpdate):
            if message.master_epoch == self._member.term:
                self.sync_state_set_changed(message.epoch, message.members, now_ms, message.acks)
        else:
            self.change_role(message, now_ms)

    def _from_slave(self, source: str, message: Any, now_ms: int) -> None:
        master = self._master
        if master is None:
            if not isinstance(message, Closed):
                self._outbox.send(source, Disconnect("not the master"))
        elif isinstance(message, Opened):
            master.connected(source, now_ms, message.node)
        elif isinstance(message, Closed):
            master.closed(source)
        elif isinstance(message, Drained):
            master.drained(source, now_ms)
        elif isinstance(message, AutoSwitchFrame):
            master.received(source, message, now_ms)

    def _from_master(self, source: str, message: Any, now_ms: int) -> None:
        slave = self._slave
        if slave is None:
            return
        if isinstance(message, Opened):
            slave.opened(source, now_ms)
        elif isinstance(message, Closed):
            slave.closed(source, now_ms)
        elif isinstance(message, AutoSwitchFrame):
            slave.received(source, message, now_ms)

    def tick(self, now_ms: int) -> None:
        self._now_ms = now_ms
        is_open, master = self._is_open, self._master
        has_lease = is_open and not self._is_fenced(now_ms)
        below_floor = master is not None and master.below_floor
        self.lease.measure(now_ms, is_open=is_open, has_lease=has_lease, below_floor=below_floor)
        if self._disk.hangs(now_ms, self._master):
            self._end_roles("the disk of this master hangs", now_ms)
            self._needs_election = True
        if self._master is not None:
            self._master.tick(now_ms, fenced=self._is_fenced(now_ms))
        if self._slave is not None:
            self._slave.tick(now_ms)
        self._reads.tick(now_ms)
        self._settle(now_ms)

    def propose(self, batch: Batch, appends: Sequence[PendingAppend], now_ms: int) -> None:
        """Adopt a batch that the driver stamped for the log's end, in this epoch; appends: those in it."""
        master = self._master
        if master is None or batch.term != self._member.term:
            raise InvariantError("a batch was proposed to a replica that is not master of its epoch")
        if self._opening is not None and batch.is_control:
            self._opening = None
            self._opening_index = batch.last_index
        self._outbox.batches.append(batch)
        master.pending.add(appends)

    def join(self, append: PendingAppend, now_ms: int) -> None:
        if self._master is None:
            raise InvariantError("a repeat waits at a replica that is not master")
        self._master.pending.join(append)
        self._master.needs_check = True
        self._settle(now_ms)

    def read_index(self, token: Any, now_ms: int) -> None:
        """A master with a valid lease answers; a slave asks the master. No other read is linearizable.

        A slave with records that an unclean election may have lost answers none: the index of the master is
        of another history.
        """
        self._now_ms = now_ms
        if self._master is not None:
            self._outbox.reads.append((token, self._readable_index(now_ms)))
        elif self._slave is not None and self._slave.may_hold_lost:
            self._outbox.reads.append((token, None))
        else:
            self._reads.ask(token, now_ms)
        self._settle(now_ms)

    def _readable_index(self, now_ms: int) -> int | None:
        """The confirmed index, once it covers the opening of this epoch, while the lease holds (A-11)."""
        index = self._member.committed_index
        if not self._is_open or self._is_fenced(now_ms) or index < self._opening_index:
            return None
        return index

    def synced(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._log_moved(now_ms)
        if self._slave is not None:
            self._slave.synced(now_ms)
        self._settle(now_ms)

    def advance(self, ready: Ready, now_ms: int) -> None:
        if self._master is not None and ready.batches:
            self._log_moved(now_ms)
            if self._master.open:
                self._master.pump(now_ms)
        if self._slave is not None and (ready.batches or ready.truncate is not None):
            self._slave.written(now_ms)
        self._settle(now_ms)

    def abandon(self, ready: Ready, now_ms: int) -> None:
        if self._slave is not None:
            self._slave.not_written(now_ms)
        elif self._master is not None and not self._master.open:
            self._end_roles("the epoch could not be opened", now_ms)  # no space for its first record
            self._needs_election = True
        elif self._master is not None:
            self._outbox.answers += self._master.pending.drop(ready.batches[0].base_index)
        self._settle(now_ms)

    def stop(self, now_ms: int) -> None:
        self._end_roles("this node stops", now_ms)
        self._reads.fail()
        self._announce()

    def apply_options(self, options: LogOptions, now_ms: int) -> None:
        self._min_in_sync = options.min_in_sync_replicas
        self._in_sync = options.in_sync_replicas
        if self._master is not None:
            self._master.min_in_sync_replicas = options.min_in_sync_replicas
            self._master.in_sync_replicas = options.in_sync_replicas
            self._master.needs_check = True
        super().apply_options(options, now_ms)

    # --- roles ---------------------------------------------------------------------------------------------

    def change_role(self, role: MasterRole | SlaveRole, now_ms: int) -> None:
        """Adopt a role from the controller (C-10). It may come at any moment, repeatedly; older epochs are
        ignored."""
        if role.master_epoch < self._member.term:
            return
        self._me = next((each for each in role.replicas if each.node == self._member.node_id), self._me)
        if isinstance(role, MasterRole):
            self._become_master(role, now_ms)
        else:
            self._become_slave(role, now_ms)

    def sync_state_set_changed(
        self, epoch: int, members: tuple[int, ...], now_ms: int, acks: int = 0
    ) -> None:
        """Adopt the controller's set; until it answers, old and new count together (C-12)."""
        if self._master is not None:
            self._master.set_changed(epoch, members, now_ms, acks)

    def _take_lease(self, lease: Lease) -> None:
        """Adopt a lease, unless it belongs to another epoch (A-11)."""
        if lease.master_epoch in (None, self._member.term):
            self.lease.bind(is_bound=lease.master_epoch is not None)
            self.lease_until(lease.until_ms)

    def lease_until(self, monotonic_ms: int) -> None:
        """The lease of this replica lasts until then (A-11)."""
        if self.lease.extend(monotonic_ms) and self._master is not None:
            self._master.needs_check = True

    def _become_master(self, role: MasterRole, now_ms: int) -> None:
        member, master = self._member, self._master
        if master is not None and role.master_epoch == member.term:
            master.replicas_changed(role.replicas)
            master.set_changed(role.sync_state_set_epoch, role.sync_state_set, now_ms, role.acks)
            return
        had_it = role.master_epoch == member.term and member.voted_for == member.node_id
        self._end_roles("this replica is master of a newer epoch", now_ms)
        if had_it or self._log.last_term >= role.master_epoch:
            self._needs_election = True
            return
        if not self.electable and role.unclean_epoch != role.master_epoch:
            self._adopt_epoch(role.master_epoch, None)  # not opened by this copy
            self._needs_election = True
            return
        self._adopt_epoch(role.master_epoch, member.node_id)
        self.lease.begin_epoch()
        self._needs_election = False
        member.role, member.leader_id = Role.MASTER, member.node_id
        unclean = role.unclean_epoch == role.master_epoch
        self._opening = TermRecord(leader=member.node_id, unclean=True if unclean else UNSET)
        self._master = MasterSide(
            self._parts,
            me=self._me.id,
            min_in_sync_replicas=self._min_in_sync,
            sync_state_set=SyncStateSet(
                self._me.id, role.sync_state_set, role.sync_state_set_epoch, role.acks
            ),
            in_sync_replicas=self._in_sync,
            replicas=role.replicas,
            now_ms=now_ms,
        )

    def _become_slave(self, role: SlaveRole, now_ms: int) -> None:
        member = self._member
        if self._master is None and self._follows(role):
            self._followed = role
            return
        self._end_roles("another master is elected", now_ms)
        if role.master_epoch > member.term:
            self._adopt_epoch(role.master_epoch, None)
        self._needs_election = False
        self._followed = role
        master = role.find(role.master_id)
        if master is None or master.node == member.node_id:
            return
        member.leader_id = master.node
        self._slave = SlaveSide(
            self._parts,
            me=self._me,
            master=master,
            unclean_epoch=role.unclean_epoch,
            new_key=self._new_key,
            may_lead=lambda: self.electable,
            now_ms=now_ms,
        )

    def _follows(self, role: SlaveRole) -> bool:
        """Return whether the role changes nothing for the connection."""
        now, me = self._followed, self._me.id
        return now is not None and all(
            (
                role.master_id == now.master_id,
                role.master_epoch == self._member.term,
                role.find(role.master_id) == now.find(now.master_id),
                role.find(me) == now.find(me),
                role.unclean_epoch == now.unclean_epoch,
            )
        )

    def _end_roles(self, reason: str, now_ms: int) -> None:
        """End both roles, and answer the waiting callers."""
        if self._master is not None:
            self._master.close(reason, now_ms)
        if self._slave is not None:
            self._slave.leave(reason, now_ms)
        self._master, self._slave, self._followed, self._opening = None, None, None, None
        self._reads.fail()
        self._member.leader_id = None
        self._member.role = Role.LEARNER if self._me.learner else Role.SLAVE

    def _adopt_epoch(self, epoch: int, opened_by: str | None) -> None:
        """opened_by: this replica, which must not open it again in a later incarnation."""
        self._member.term, self._member.voted_for = epoch, opened_by
        self._outbox.hard_state = HardState(epoch, opened_by)

    def _new_key(self) -> str:
        self._connections += 1
        return f"{OUTGOING}{self._connections}"

    @property
    def _replicas(self) -> tuple[KnownReplica, ...]:
        if self._master is not None:
            return self._master.replicas
        return () if self._followed is None else self._followed.replicas

    @property
    def _sync_state_set(self) -> tuple[str, ...]:
        if self._master is not None:
            return self._master.set_nodes
        followed = self._followed
        return () if followed is None else nodes_of(followed.sync_state_set, followed.replicas)

    @property
    def _is_open(self) -> bool:
        return self._master is not None and self._master.open

    def _is_fenced(self, now_ms: int) -> bool:
        return self.lease.is_over(now_ms)

    def _log_moved(self, now_ms: int) -> None:
        """The master's log has grown, or more of it is durable: its epoch may be open now (A-01)."""
        master = self._master
        if master is None:
            return
        master.needs_check = True
        opened = self._opening is None and self._opening_index != NO_INDEX
        if not master.open and opened and self._log.durable_index >= self._opening_index:
            master.opened(now_ms)

    # --- after every event ---------------------------------------------------------------------------------

    def _settle(self, now_ms: int) -> None:
        if self._master is not None and self._master.needs_check:
            self._master.judge(now_ms, fenced=self._is_fenced(now_ms))
        self._announce()
