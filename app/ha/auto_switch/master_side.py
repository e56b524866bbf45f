"""AutoSwitch at the master: a state machine per slave connection, the set, the confirm offset, acks.

PURE. One object per epoch: core.py creates it when the epoch's opening record is durable (A-01), and discards
it when the epoch is over.
"""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field

from app.ha.auto_switch.sync_state_set import SyncStateSet
from app.ha.flow import Flow
from app.ha.frames import Ack, EpochStart, Frame, Handshake, HandshakeAnswer, HaState, TransferFrame
from app.ha.log import epoch_starts, held_index, index_before, offset_after
from app.ha.messages import Disconnect
from app.ha.parts import CoreParts
from app.ha.roles import KnownReplica, SetRequest, acks_needed, nodes_of
from app.ha.sending import Sender, Trimmed
from app.ha.slave_link import SlaveLink
from app.ha.watermark_reports import WatermarkReports
from app.log.contract import NO_INDEX, Acks, AppendFate, PeerStatus
from app.log.events import SyncStateSetPublished
from app.log.pending_appends import PendingAppends

NOTES_MAX = 64  # samples of position and time for one slave


@dataclass(slots=True, kw_only=True)
class SlaveConnection(SlaveLink):
    """One connection of a slave. replica: None until it has identified itself. node: the proved node at the
    other end, None if the connection proves none."""

    node: str | None = None
    state: HaState = HaState.READY
    handshake: Handshake | None = None
    replica: KnownReplica | None = None
    is_learner: bool = False
    sent_confirm: int = 0
    notes: deque[tuple[int, int]] = field(default_factory=deque)  # (master's end, when), C-07


class MasterSide:
    """One epoch of a master. Everything to be sent is put into the outbox."""

    def __init__(
        self,
        parts: CoreParts,
        *,
        me: int,
        min_in_sync_replicas: int,
        in_sync_replicas: int,
        sync_state_set: SyncStateSet,
        replicas: tuple[KnownReplica, ...],
        now_ms: int,
    ) -> None:
        """me: the replica id of this copy. in_sync_replicas: number of members of the set that must hold
        an append, 0 for all; it applies once the controllers have recorded it with the set."""
        self._member = parts.member
        self._me = me
        self._log = parts.log
        self._outbox = parts.outbox
        self._config = parts.config
        self.min_in_sync_replicas = min_in_sync_replicas
        self.in_sync_replicas = in_sync_replicas
        self.set = sync_state_set
        self._replicas = replicas
        self.open = False
        self.pending = PendingAppends()
        self.confirm_offset = offset_after(parts.log, parts.member.committed_index)
        self._connections: dict[str, SlaveConnection] = {}
        self._heard_ms = {replica.id: now_ms for replica in replicas}  # on connections that have ended
        self._last_acked: dict[int, int] = {}  # index, on connections that have ended; shown, never counted
        self._caught_up_ms = {replica.id: now_ms for replica in replicas}  # C-07; learners have none
        self._acked_most: dict[int, int] = {}  # replica id -> the most that it has acknowledged, byte end
        self._epochs: tuple[EpochStart, ...] = ()
        self._epoch_starts: dict[int, int] = {}  # the same by epoch
        self.needs_check = False
        self._opening_index = NO_INDEX
        self._now_ms = now_ms
        self._reports = WatermarkReports(parts, self.watermarks, now_ms)

    # --- what the core asks --------------------------------------------------------------------------------

    @property
    def below_floor(self) -> bool:
        """True if the set may be smaller than min_in_sync_replicas: appends are refused (C-12)."""
        return self.set.certain_size < self.min_in_sync_replicas

    @property
    def set_request(self) -> SetRequest | None:
        wanted = self.set.wanted
        if wanted is None:
            return None
        return SetRequest(self._member.term, self.set.epoch, wanted, self.set.wanted_acks)

    @property
    def replicas(self) -> tuple[KnownReplica, ...]:
        return self._replicas

    @property
    def set_nodes(self) -> tuple[str, ...]:
        """The members of the set as nodes, this one first."""
        return nodes_of(self.set.members, self._replicas)

    def watermarks(self) -> dict[str, int]:
        """Return, by node, the last index that its copy has acknowledged in this epoch, connected or not."""
        marks = self._last_acked | self._connected_marks()
        return {replica.node: marks.get(replica.id, NO_INDEX) for replica in self._replicas}

    def _marks(self) -> dict[int, int]:
        """Return, by replica id, the last index acknowledged on a connection of that very copy."""
        return {replica.id: NO_INDEX for replica in self._replicas} | self._connected_marks()

    def _connected_marks(self) -> dict[int, int]:
        """As `_marks`, only of this node and of replicas with a connection."""
        marks = {
            connection.replica.id: connection.sender.acked_index
            for connection in self._connections.values()
            if connection.replica is not None and connection.sender is not None
        }
        marks[self._me] = self._held_index
        return marks

    def peers(self) -> tuple[PeerStatus, ...]:
        by_id = {c.replica.id: c for c in self._connections.values() if c.replica is not None}
        found = []
        for replica in self._replicas:
            if replica.id == self._me:
                continue
            connection = by_id.get(replica.id)
            sender = None if connection is None else connection.sender
            found.append(
                PeerStatus(
                    replica.node,
                    "DISCONNECTED" if connection is None else connection.state.name,
                    self._last_acked.get(replica.id, NO_INDEX) if sender is None else sender.acked_index,
                    0 if sender is None else sender.waiting_batches,
                    None if sender is None else self._log.end_offset - sender.acked_offset,
                    acked_offset=None if sender is None else sender.acked_offset,
                    bytes_per_s=None if connection is None else connection.flow.bytes_per_s(self._now_ms),
                    in_sync=replica.id in self.set.members,
                    heard_ms=None if connection is not None else self._heard_ms[replica.id],
                )
            )
        return tuple(found)

    @property
    def _held_index(self) -> int:
        return held_index(self._log, self._member)

    # --- the epoch -----------------------------------------------------------------------------------------

    def opened(self, now_ms: int) -> None:
        """The opening record, the log's last one, is durable: accept connections and appends (A-01)."""
        self.open = True
        self._opening_index = self._log.end_index
        self._epochs = epoch_starts(self._log)
        self._epoch_starts = {start.epoch: start.start_offset for start in self._epochs}
        self._caught_up_ms = dict.fromkeys(self._caught_up_ms, now_ms)
        for connection in list(self._connections.values()):
            if connection.handshake is not None:
                self._answer(connection)
        self.needs_check = True
        self._publish_set()
        self._reports.record(now_ms)

    def close(self, reason: str, now_ms: int) -> None:
        """The epoch is over: the outcome of waiting appends is unknown."""
        if self.open:
            self._reports.record(now_ms)
        self._outbox.answers += self.pending.close()
        for key in list(self._connections):
            self._drop(key, reason)

    # --- connections ---------------------------------------------------------------------------------------

    def replicas_changed(self, replicas: tuple[KnownReplica, ...]) -> None:
        """Adopt the registered replicas. Acknowledgements of a copy that is not registered any more do not
        count: a half-open connection may outlive its copy, and the node has another copy by then."""
        known = {replica.id: replica for replica in replicas}
        self._replicas = replicas
        for connection in list(self._connections.values()):
            if connection.replica is not None and known.get(connection.replica.id) != connection.replica:
                self._drop(connection.key, "the copy is not registered as it was")
        self._caught_up_ms = {each: ms for each, ms in self._caught_up_ms.items() if each in known}
        self._heard_ms = {each: self._heard_ms.get(each, self._now_ms) for each in known}
        self._last_acked = {each: index for each, index in self._last_acked.items() if each in known}
        self.needs_check = True

    def connected(self, key: str, now_ms: int, node: str | None = None) -> None:
        config = self._config
        flow = Flow(config.max_transfer_bytes_per_s, now_ms)
        self._connections[key] = SlaveConnection(
            key=key, heard_ms=now_ms, flow=flow, room_bytes=config.ha_window_bytes, node=node
        )

    def closed(self, key: str) -> None:
        self._forget(key)
        self.needs_check = True

    def drained(self, key: str, now_ms: int) -> None:
        connection = self._connections.get(key)
        if connection is not None:
            connection.room_bytes = self._config.ha_window_bytes
            self._pump(connection, now_ms)

    def received(self, key: str, frame: Frame, now_ms: int) -> None:
        connection = self._connections.get(key)
        if connection is None:
            return
        connection.heard_ms = now_ms
        if isinstance(frame, Handshake) and connection.state is HaState.READY and not connection.handshake:
            connection.handshake = frame
            if self.open:
                self._answer(connection)
        elif isinstance(frame, Ack) and connection.state is HaState.HANDSHAKE:
            self._begin_transfer(connection, frame.max_offset, now_ms)
        elif isinstance(frame, Ack) and connection.sender is not None:
            self._acknowledged(connection, frame.max_offset, now_ms)
        else:
            self._drop(key, f"{type(frame).__name__} in state {connection.state.name}")

    def _forget(self, key: str) -> SlaveConnection | None:
        connection = self._connections.pop(key, None)
        if connection is not None and connection.replica is not None:
            self._heard_ms[connection.replica.id] = connection.heard_ms
            if connection.sender is not None:
                self._last_acked[connection.replica.id] = connection.sender.acked_index
        return connection

    def _drop(self, key: str, reason: str) -> None:
        connection = self._forget(key)
        if connection is not None:
            self.needs_check = True
            node = connection.node if connection.replica is None else connection.replica.node
            self._outbox.send(key, Disconnect(reason, node or ""))

    def _answer(self, connection: SlaveConnection) -> None:
        """Send a slave our epochs (A-07); an older connection of the same copy is over.

        This decides whose acks the connection carries. A slave that sends a number names its copy. A slave
        that sends an address is the copy that is registered now: its first ack comes after this answer, so an
        earlier copy of that node, which was closed before this one was registered, cannot have sent it. A
        later copy, of which this node does not know yet, can: what it acknowledges is on that node all the
        same.
        """
        handshake = connection.handshake
        assert handshake is not None
        replica = self._replica_of(handshake)
        if replica is None or replica.id == self._me:
            self._drop(connection.key, "not a registered slave of this log")
            return
        if connection.node not in (None, replica.node):
            self._drop(connection.key, f"{connection.node} does not keep replica {replica.id} of this log")
            return
        for other in list(self._connections.values()):
            if other is not connection and other.replica is not None and other.replica.id == replica.id:
                self._drop(other.key, "the slave has connected again")
        connection.replica = replica
        connection.is_learner = replica.learner or handshake.is_learner
        connection.state = HaState.HANDSHAKE
        log = self._log
        self._outbox.send(
            connection.key, HandshakeAnswer(log.end_offset, self._member.term, epoch_starts(log))
        )

    def _replica_of(self, handshake: Handshake) -> KnownReplica | None:
        for replica in self._replicas:
            if handshake.number and handshake.number == replica.id:
                return replica
            if not handshake.number and handshake.address == replica.address:
                return replica
        return None

    def _begin_transfer(self, connection: SlaveConnection, max_offset: int, now_ms: int) -> None:
        """The slave's log is a prefix of ours up to max_offset; 0 asks for everything (A-09)."""
        log = self._log
        assert connection.handshake is not None
        if max_offset == 0 or max_offset < log.begin_offset:
            index = log.begin_index
            if max_offset == 0 and connection.handshake.sync_from_last_file:
                # Everything before a log's beginning was confirmed: a restart of the slave depends on that.
                confirmed = self._member.committed_index
                index = max(index, min(log.last_segment_index, confirmed + 1))
            connection.sender = Sender(log, index, offset_after(log, index - 1), NO_INDEX)
        else:
            held = index_before(log, max_offset)
            if offset_after(log, held) != max_offset:
                self._drop(connection.key, f"no record ends at {max_offset}")
                return
            if held == NO_INDEX:  # it ends exactly where this log begins
                held = log.begin_index - 1
            connection.sender = Sender(log, held + 1, max_offset, held)
        connection.state = HaState.TRANSFER
        self._caught_up(connection)
        self.needs_check = True
        self._pump(connection, now_ms, always=True)

    def _acknowledged(self, connection: SlaveConnection, max_offset: int, now_ms: int) -> None:
        sender = connection.sender
        assert sender is not None
        moved = max_offset != sender.acked_offset
        problem = sender.acknowledge(max_offset)
        if problem is not None:
            self._drop(connection.key, problem)
            return
        self._caught_up(connection)
        if moved:
            self.needs_check = True
            self._pump(connection, now_ms)

    def _caught_up(self, connection: SlaveConnection) -> None:
        """C-07: when an ack reaches a recorded end, the recorded time becomes the slave's caught-up time."""
        sender, replica = connection.sender, connection.replica
        if connection.is_learner:
            return
        assert sender is not None
        assert replica is not None
        most = self._acked_most.get(replica.id, 0)
        self._acked_most[replica.id] = max(most, sender.acked_offset)
        while connection.notes and sender.acked_offset >= connection.notes[0][0]:
            noted_ms = connection.notes.popleft()[1]
            self._caught_up_ms[replica.id] = max(self._caught_up_ms.get(replica.id, 0), noted_ms)

    # --- sending -------------------------------------------------------------------------------------------

    def pump(self, now_ms: int) -> None:
        """The log has grown."""
        for connection in list(self._connections.values()):
            self._pump(connection, now_ms)

    def _pump(self, connection: SlaveConnection, now_ms: int, *, always: bool = False) -> None:
        """Send what is available within the limits; always: an empty frame if there is nothing."""
        sender = connection.sender
        if sender is None:
            return
        try:
            limited = not self._is_counted(connection)
            pieces = connection.take(self._config, self._log.end_index, now_ms, limited=limited)
        except Trimmed:
            self._drop(connection.key, "what the slave needs next is trimmed")
            return
        for piece in pieces:
            self._transfer(connection, piece.epoch, piece.offset, piece.body)
        if always and not pieces:
            self._transfer(connection, self._epoch_at(sender.sent_offset), sender.sent_offset, b"")
        if pieces or always:
            connection.sent_ms = now_ms
            self._note(connection, now_ms)

    def _is_counted(self, connection: SlaveConnection) -> bool:
        """Return whether appends wait for this slave. Flow control limits the others, which catch up."""
        return connection.replica is not None and connection.replica.id in self.set.counted

    def _epoch_at(self, offset: int) -> int:
        """Return the epoch of a byte of the log, or of the next one after it."""
        return self._epochs[bisect_right(self._epochs, offset, key=lambda each: each.start_offset) - 1].epoch

    def _transfer(self, connection: SlaveConnection, epoch: int, offset: int, body: bytes) -> None:
        connection.sent_confirm = self.confirm_offset
        frame = TransferFrame(offset, epoch, self._epoch_starts[epoch], self.confirm_offset, body)
        self._outbox.send(connection.key, frame)

    def _note(self, connection: SlaveConnection, now_ms: int) -> None:
        """C-07: record our end and the time. Under load samples are merged, or no ack would ever reach
        one."""
        notes, end = connection.notes, self._log.end_offset
        spacing_ms = self._config.ha_max_time_slave_not_catchup_ms // NOTES_MAX
        if not notes or (now_ms - notes[-1][1] > spacing_ms and notes[-1][0] != end):
            notes.append((end, now_ms))
        elif notes[-1][0] == end:
            notes[-1] = (end, now_ms)
        if len(notes) > NOTES_MAX:
            notes.popleft()

    # --- time ----------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, *, fenced: bool) -> None:
        config = self._config
        self._now_ms = now_ms
        for connection in list(self._connections.values()):
            transferring = connection.state is HaState.TRANSFER
            if connection.is_silent(now_ms, config):
                self._drop(connection.key, "silent for too long")
            elif transferring and (
                connection.is_idle(now_ms, config) or connection.sent_confirm != self.confirm_offset
            ):
                self._pump(connection, now_ms, always=True)
            elif transferring and config.ha_flow_control:
                self._pump(connection, now_ms)
        self._outbox.answers += self.pending.time_out(now_ms, AppendFate.TIMED_OUT)
        self.judge(now_ms, fenced=fenced)
        self._reports.tick(now_ms)

    def _publish_set(self) -> None:
        published = SyncStateSetPublished(
            epoch=self._member.term,
            set_epoch=self.set.epoch,
            master=self._member.node_id,
            members=list(self.set_nodes),
            acks=acks_needed(len(self.set.members), self.set.acks),
            confirm_offset=self.confirm_offset,
        )
        self._outbox.record(self._member.term, published)

    # --- the set -------------------------------------------------------------------------------------------

    def judge(self, now_ms: int, *, fenced: bool) -> None:
        """Determine the set (C-07, C-08), then confirm what its members hold, and answer.

        What the present members hold is confirmed before: a slave that has just left the set because it
        hangs holds all that was confirmed while appends waited for it, and would join again at once.
        """
        if not self.open:
            return
        self.confirm(fenced=fenced)
        # The previous master confirmed records below our opening record: a slave without that must not join
        # yet.
        may_grow = not fenced and self._member.committed_index >= self._opening_index
        oldest_ms = now_ms - self._config.ha_max_time_slave_not_catchup_ms
        acked = self._acked()
        learners = self._learners()
        wanted = [self._me]
        for replica in self._replicas:
            offset = acked.get(replica.id)
            if replica.id == self._me:
                continue
            if replica.id in self.set.members:
                # A member of a set that counts all holds what is confirmed, otherwise what it has
                # acknowledged.
                held = self.confirm_offset if self.set.counts_all else self._acked_most.get(replica.id, 0)
                fell_back = offset is not None and offset < held
                fell_back = fell_back or replica.id in learners
                keeps = self._caught_up_ms.get(replica.id, 0) >= oldest_ms and not fell_back
            else:
                keeps = may_grow and offset is not None and offset >= self.confirm_offset
            if keeps:
                wanted.append(replica.id)
        self.set.want(tuple(wanted), self.in_sync_replicas, ready=self._hold_all(wanted))
        self.confirm(fenced=fenced)

    def _hold_all(self, members: list[int]) -> bool:
        """Return whether each of them holds everything that is confirmed. While the set counts all, its
        members do, also without a connection; the others were checked before (C-08)."""
        if self.set.counts_all:
            return True
        marks = self._marks()
        return all(marks.get(member, NO_INDEX) >= self._member.committed_index for member in members)

    def _learners(self) -> frozenset[int]:
        """Replicas that receive the log and do not count, some of them only until they may lead."""
        connections = self._connections.values()
        return frozenset(each.replica.id for each in connections if each.replica and each.is_learner)

    def _acked(self) -> dict[int, int]:
        """Positions of the slaves that may be in the set (C-11)."""
        return {
            connection.replica.id: connection.sender.acked_offset
            for connection in self._connections.values()
            if connection.replica is not None and connection.sender is not None and not connection.is_learner
        }

    def set_changed(self, epoch: int, members: tuple[int, ...], now_ms: int, acks: int) -> None:
        """Adopt the controller's set (C-12). New members count as caught up at this time."""
        before = self.set.members
        if self.set.changed(epoch, members, acks):
            for member in self.set.members:
                if member not in before:
                    self._caught_up_ms[member] = now_ms
            self.needs_check = True
            self._publish_set()

    # --- confirm offset and acks ---------------------------------------------------------------------------

    def confirm(self, *, fenced: bool) -> None:
        """The confirm offset is what enough of the counted members hold (C-08); it never falls. Answer
        (C-12)."""
        self.needs_check = False
        if fenced or not self.open:
            return
        marks = self._marks()
        marks.update(dict.fromkeys(self._learners(), NO_INDEX))
        index = self.set.confirmed(marks)
        if index > self._member.committed_index:
            self._member.committed_index = index
            self.confirm_offset = offset_after(self._log, index)
        if not self.below_floor:
            committed = self._member.committed_index
            held_by_all = committed
            if not self.set.counts_all:
                held_by_all = min(committed, *(marks.get(member, NO_INDEX) for member in self.set.counted))
            reached = {Acks.LEADER: self._held_index, Acks.QUORUM: committed, Acks.ALL: held_by_all}
            self._outbox.answers += self.pending.release(reached)
