"""The core of a classic log at its master (H-06, H-07), which is so for ever: roles are configuration. PURE.

Slaves get only what the master itself may acknowledge (on disk with `fsync`): classic frames know no epochs,
so a master that lost what its slaves hold could not be told from a sound one. The master opens an epoch with
a control record when its log is empty, or was written by another master before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import InvariantError
from app.ha.config import HaConfig
from app.ha.frames import ClassicFrame, ClassicReport
from app.ha.log import HaLog, held_index, index_before, offset_after
from app.ha.messages import INCOMING, Closed, Disconnect, Drained, Opened
from app.ha.pending import PendingAppends
from app.ha.sending import Sender, Trimmed
from app.ha.static_group import StaticGroup
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from app.raft.state import MemberState
from app.replication import (
    NO_INDEX,
    Acks,
    AppendFate,
    CoreStatus,
    Durability,
    GroupConfig,
    PeerStatus,
    PendingAppend,
    Ready,
    Role,
)
from storage.batch import Batch
from storage.hard_state import HardState


@dataclass(slots=True)
class _Slave:
    """One connection. id: of its node if it said so, else the connection's key: strangers may follow too."""

    key: str
    id: str
    heard_ms: int
    room_bytes: int
    sender: Sender | None = None  # since its first report
    sent_ms: int = 0


class ClassicMasterCore(StaticGroup):
    """Satisfies ReplicationCore. Invariant: the committed index never falls."""

    def __init__(
        self,
        *,
        node_id: str,
        replicas: tuple[str, ...],
        log: HaLog,
        durability: Durability,
        hard_state: HardState,
        committed_index: int,
        config: HaConfig,
        sync_slaves: int,
    ) -> None:
        """replicas: all of the log, in their configured order. sync_slaves: how many must hold a synchronous
        append (0: every append is asynchronous). committed_index: of the checkpoint."""
        self._log = log
        self._replicas = replicas
        self._config = config
        self._sync_slaves = sync_slaves
        super().__init__(
            MemberState(
                node_id=node_id,
                group=GroupConfig(voters=replicas),
                durability=durability,
                role=Role.MASTER,
                term=max(hard_state.term, log.last_term),
                voted_for=None,
                committed_index=min(committed_index, log.end_index),
                leader_id=node_id,
            )
        )
        self._pending = PendingAppends()
        self._slaves: dict[str, _Slave] = {}
        self._opening: dict[str, Any] | None = None
        self._open_index = NO_INDEX  # the epoch is open once this index is durable
        self._published_ms = 0
        self._published: tuple[int, dict[str, int]] = (NO_INDEX, {})

    # --- what the driver asks ------------------------------------------------------------------------------

    @property
    def accepts_appends(self) -> bool:
        return self._is_open

    @property
    def _is_open(self) -> bool:
        return self._opening is None and NO_INDEX < self._open_index <= self._log.durable_index

    @property
    def wants_control(self) -> dict[str, Any] | None:
        return self._opening

    @property
    def pending_appends(self) -> int:
        return len(self._pending)

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
        )

    def _in_sync(self) -> tuple[str, ...]:
        """The master, and the slaves that hold all that is committed."""
        marks, committed = self._watermarks(), self._member.committed_index
        slaves = (each for each in self._replicas if marks[each] >= committed)
        return (self._member.node_id, *(each for each in slaves if each != self._member.node_id))

    def _peer(self, slave_id: str) -> PeerStatus:
        slave = next((slave for slave in self._slaves.values() if slave.id == slave_id), None)
        if slave is None:
            return PeerStatus(slave_id, "DISCONNECTED", NO_INDEX, 0, None)
        if slave.sender is None:
            return PeerStatus(slave_id, "READY", NO_INDEX, 0, None)
        sender = slave.sender
        lag_bytes = self._log.end_offset - sender.acked_offset
        return PeerStatus(slave_id, "TRANSFER", sender.acked_index, sender.waiting_batches, lag_bytes)

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        if term is not None and term != self._member.term:
            return {}
        return {self._member.term: self._watermarks()}

    def _watermarks(self) -> dict[str, int]:
        marks = dict.fromkeys(self._replicas, NO_INDEX)
        for slave in self._slaves.values():
            if slave.sender is not None:
                marks[slave.id] = max(marks.get(slave.id, NO_INDEX), slave.sender.acked_index)
        marks[self._member.node_id] = self._held_index
        return marks

    @property
    def _held_index(self) -> int:
        return held_index(self._log, self._member.durability)

    # --- events --------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Go on with the epoch that this node has opened, or open the next one."""
        log, member = self._log, self._member
        last = log.epochs[-1] if log.epochs else None
        if last is not None and last.leader == member.node_id and last.term == member.term:
            self._open_index = log.end_index
        else:
            member.term += 1
            self._outbox.hard_state = HardState(member.term, member.node_id)
            self._opening = {"kind": "term", "leader": member.node_id}
        self._outbox.tell("term", member.term, {"term": member.term, "leader": member.node_id})
        self._outbox.tell("role", member.term, {"role": Role.MASTER.value, "leader": member.node_id})
        self._check(now_ms)

    def step(self, source: str, message: Any, now_ms: int) -> None:
        if isinstance(message, ReadIndexRequest):
            self._outbox.send(source, ReadIndexAnswer(message.term, message.id, self._readable_index))
        elif isinstance(message, Opened):
            if source.startswith(INCOMING):
                self._connected(source, message.replica, now_ms)
        elif (slave := self._slaves.get(source)) is None:
            return
        elif isinstance(message, Closed):
            del self._slaves[source]
        elif isinstance(message, Drained):
            slave.room_bytes = self._config.ha_window_bytes
            self._pump(slave, now_ms)
        elif isinstance(message, ClassicReport):
            slave.heard_ms = now_ms
            self._reported(slave, message.max_offset, now_ms)
        else:
            self._drop(slave, f"{type(message).__name__} from a slave")

    def _connected(self, key: str, place: int, now_ms: int) -> None:
        """A slave that says who it is has one connection: it must not count twice (H-07)."""
        slave_id = self._replicas[place - 1] if 0 < place <= len(self._replicas) else key
        for other in list(self._slaves.values()):
            if other.id == slave_id:
                self._drop(other, "the slave has connected anew")
        self._slaves[key] = _Slave(key, slave_id, now_ms, self._config.ha_window_bytes)

    def _drop(self, slave: _Slave, reason: str) -> None:
        del self._slaves[slave.key]
        self._outbox.send(slave.key, Disconnect(reason))

    def _reported(self, slave: _Slave, max_offset: int, now_ms: int) -> None:
        sender = slave.sender
        if sender is None:
            self._begin(slave, max_offset, now_ms)
            return
        problem = sender.acknowledge(max_offset)
        if problem is not None:
            self._drop(slave, problem)
            return
        self._check(now_ms)
        self._pump(slave, now_ms)

    def _begin(self, slave: _Slave, max_offset: int, now_ms: int) -> None:
        """H-06: a slave without data starts at the newest segment, any other at the byte it reports."""
        log = self._log
        if max_offset == 0:
            index = max(log.last_segment_index, 0)
            slave.sender = Sender(log, index, offset_after(log, index - 1), NO_INDEX)
        elif not log.begin_offset <= max_offset <= log.end_offset:
            reason = f"a slave at {max_offset}, the log is [{log.begin_offset}, {log.end_offset}]"
            if slave.id in self._replicas:  # of strangers the journal keeps nothing
                self._outbox.tell("corruption", self._member.term, {"reason": reason, "slave": slave.id})
            self._drop(slave, reason)
            return
        else:
            held = index_before(log, max_offset)
            next_index = log.begin_index if held == NO_INDEX else held + 1
            slave.sender = Sender(log, next_index, max_offset, held)
        self._check(now_ms)
        self._pump(slave, now_ms, always=True)

    def tick(self, now_ms: int) -> None:
        config = self._config
        for slave in list(self._slaves.values()):
            if slave.sender is None:
                limit_ms = config.ha_handshake_timeout_ms
            else:
                limit_ms = config.ha_housekeeping_interval_ms
            if now_ms - slave.heard_ms > limit_ms:  # H-05
                self._drop(slave, "silent for too long")
            elif now_ms - slave.sent_ms >= config.ha_send_heartbeat_interval_ms:
                self._pump(slave, now_ms, always=True)
        self._outbox.answers += self._pending.time_out(now_ms, AppendFate.TOO_FEW_SLAVES)
        quiet_ms = now_ms - self._published_ms
        if quiet_ms >= config.ha_watermarks_interval_ms or (
            quiet_ms >= config.ha_watermarks_moving_interval_ms and self._published != self._standing()
        ):
            self._publish(now_ms)

    def propose(self, batch: Batch, appends: Sequence[PendingAppend], now_ms: int) -> None:
        if batch.term != self._member.term:
            raise InvariantError("a batch was proposed in another epoch than the master's")
        if self._opening is not None and batch.is_control:
            self._opening = None
            self._open_index = batch.last_index
        self._outbox.batches.append(batch)
        self._pending.add(appends)

    def join(self, append: PendingAppend, now_ms: int) -> None:
        self._pending.join(append)
        self._check(now_ms)

    def read_index(self, token: Any, now_ms: int) -> None:
        self._outbox.reads.append((token, self._readable_index))

    @property
    def _readable_index(self) -> int | None:
        """The master is the only one there is: it knows. After a restart what it found may have been
        acknowledged, also where the slaves that say so are not back yet: readers wait for that."""
        return max(self._member.committed_index, self._open_index) if self._is_open else None

    def synced(self, now_ms: int) -> None:
        self._grown(now_ms)

    def advance(self, ready: Ready, now_ms: int) -> None:
        if ready.batches:
            self._grown(now_ms)

    def abandon(self, ready: Ready, now_ms: int) -> None:
        first = ready.batches[0]
        if first.base_index == self._open_index:  # no room for the opening record: it is tried again
            self._open_index = NO_INDEX
            self._opening = {"kind": "term", "leader": self._member.node_id}
        self._outbox.answers += self._pending.drop(first.base_index)

    def stop(self, now_ms: int) -> None:
        self._outbox.answers += self._pending.close()
        for slave in list(self._slaves.values()):
            self._drop(slave, "this node stops")

    # --- sending and acks ----------------------------------------------------------------------------------

    def _grown(self, now_ms: int) -> None:
        self._check(now_ms)
        for slave in list(self._slaves.values()):
            self._pump(slave, now_ms)

    def _pump(self, slave: _Slave, now_ms: int, *, always: bool = False) -> None:
        """Send what there is, as far as there is room; always: an empty frame if there is nothing (H-06)."""
        sender = slave.sender
        if sender is None:
            return
        try:
            pieces = sender.pieces(slave.room_bytes, self._config.ha_transfer_batch_size, self._held_index)
        except Trimmed:
            self._drop(slave, "what comes next is trimmed")
            return
        for piece in pieces:
            slave.room_bytes -= len(piece.body)
            self._outbox.send(slave.key, ClassicFrame(piece.offset, piece.body))
        if always and not pieces:
            self._outbox.send(slave.key, ClassicFrame(sender.sent_offset))
        if pieces or always:
            slave.sent_ms = now_ms

    def _check(self, now_ms: int) -> None:
        """Commit and answer what the configured number of slaves has reached (H-07)."""
        member = self._member
        marks = self._watermarks()
        held = marks.pop(member.node_id)
        reached = sorted(marks.values(), reverse=True)
        needed = self._sync_slaves
        index = held
        if needed > 0:
            index = min(held, reached[needed - 1]) if len(reached) >= needed else NO_INDEX
        member.committed_index = max(member.committed_index, index)
        every = [marks[replica] for replica in self._replicas if replica != member.node_id]
        committed = member.committed_index
        waits = {Acks.LEADER: held, Acks.QUORUM: committed, Acks.ALL: min(committed, *every, held)}
        self._outbox.answers += self._pending.release(waits)

    def _standing(self) -> tuple[int, dict[str, int]]:
        return (self._member.committed_index, self._watermarks())

    def _publish(self, now_ms: int) -> None:
        """Tell the journal where everybody stands, as Raft's leader does (D-22)."""
        self._published_ms = now_ms
        self._published = self._standing()
        committed_index, peers = self._published
        data = {
            "role": Role.MASTER.value,
            "begin_index": self._log.begin_index,
            "end_index": self._log.end_index,
            "committed_index": committed_index,
            "peers": peers,
        }
        self._outbox.tell("watermarks", self._member.term, data)
