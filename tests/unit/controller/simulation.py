"""Controllers and replicas managers in one thread: crashes, cuts, lost answers, lost disks; all by one seed.

The controllers' log is a list that a quorum of one object keeps: a round is stored when its place and term
still fit, or lost, and the active controller may be cut off from the knowledge of it. Managers are the
production ones; their cores are small models that fence by lease and take a master epoch up once in an
incarnation.
"""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from app.controller.active.controller import ActiveController
from app.controller.active.rounds import Round
from app.controller.commands import AnyCommand, CreateLog, Done, Refusal
from app.controller.config import ControllerConfig
from app.controller.events import AnyEvent, MasterElected, decode_event, encode_event
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.metadata import Log, LogSpec
from app.controller.replicas_manager import (
    ControllerRequest,
    CopyIdentity,
    HeartbeatNow,
    ReplicasManager,
    Save,
    SendToCore,
)
from app.controller.state_machine import Metadata
from app.ha.roles import Lease, MasterRole, SetRequest, SlaveRole, SyncStateSetUpdate
from app.log.contract import Role
from tests.unit.controller.support import hash_of

CONFIG = ControllerConfig()
STEP_MS = 20
LOG = "a"


class ModelCore:
    """The view that a manager has of an AutoSwitch core, with only the rules that the manager depends on."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.role = Role.SLAVE
        self.epoch = 0
        self.members: tuple[int, ...] = ()
        self.asked: tuple[int, ...] = ()  # ever, under this set epoch: any of it may have come true
        self.set_epoch = 0
        self.lease_ms = -1
        self.needs_election = False
        self.followed: str | None = None
        self.replicas: dict[str, int] = {}  # node -> replica id, as the newest role has them

    electable = True
    has_room = True

    @property
    def log_epoch(self) -> int:
        return self._node.log_epoch

    @property
    def max_offset(self) -> int:
        return self._node.offset

    @property
    def confirm_offset(self) -> int:
        return min(self._node.offset, self._node.confirmed)

    @property
    def set_request(self) -> SetRequest | None:
        wanted = self.wanted_sync_state_set
        if wanted is None:
            return None
        self.asked = tuple(sorted({*self.asked, *wanted}))
        return SetRequest(self.epoch, self.set_epoch, wanted)

    @property
    def must_hold(self) -> list[int]:
        """The replicas that must hold a record before it is acknowledged (C-12)."""
        return sorted({*self.members, *self.asked})

    @property
    def wanted_sync_state_set(self) -> tuple[int, ...] | None:
        """Add replicas that hold everything, remove those that have been unreachable for a while."""
        if self.role is not Role.MASTER:
            return None
        names = [self._node.name, *sorted(self._node.world.caught_up(self._node))]
        in_sync = [self.replicas[name] for name in names if name in self.replicas]
        return tuple(in_sync) if sorted(in_sync) != sorted(self.members) else None

    @property
    def holders(self) -> list[str]:
        """The nodes of must_hold."""
        return [node for node, replica_id in self.replicas.items() if replica_id in self.must_hold]

    def take(self, message: object) -> None:
        if isinstance(message, (MasterRole, SlaveRole)) and message.master_epoch >= self.epoch:
            self.replicas = {replica.node: replica.id for replica in message.replicas}
        if isinstance(message, MasterRole):
            if message.master_epoch < self.epoch or self.role is Role.MASTER:
                return
            self.epoch = message.master_epoch
            self.needs_election = message.master_epoch <= max(self._node.opened, self._node.log_epoch)
            if not self.needs_election:
                self.role, self.lease_ms = Role.MASTER, -1
                self._node.open_epoch(message.master_epoch)
                self.members, self.set_epoch = message.sync_state_set, message.sync_state_set_epoch
                self.asked = ()
        elif isinstance(message, SlaveRole):
            if message.master_epoch < self.epoch:
                return
            self.role, self.epoch, self.needs_election = Role.SLAVE, message.master_epoch, False
            followed = message.find(message.master_id)
            self.followed = None if followed is None else followed.node
        elif isinstance(message, SyncStateSetUpdate):
            mine = self.role is Role.MASTER and message.master_epoch == self.epoch
            if mine and message.epoch > self.set_epoch:
                self.members, self.set_epoch, self.asked = message.members, message.epoch, ()
        elif isinstance(message, Lease) and message.master_epoch == self.epoch:
            self.lease_ms = max(self.lease_ms, message.until_ms)


@dataclass
class Node:
    """A broker. offset, log_epoch, confirmed, opened and identity stand on its disk."""

    world: "World"
    name: str
    alive: bool = True
    offset: int = 0
    log_epoch: int = 0
    confirmed: int = 0
    opened: int = 0
    identity: CopyIdentity | None = None
    known: int = 0  # events of the controllers' log that it has applied
    metadata: Metadata = field(default_factory=Metadata)
    cut_off: bool = False  # from the controllers

    def start(self) -> None:
        self.alive = True
        self.core = ModelCore(self)
        self.manager: ReplicasManager | None = None
        self.heartbeat_ms = 0

    def open_epoch(self, epoch: int) -> None:
        self.world.epoch_opened(self, epoch)
        self.opened = self.log_epoch = epoch

    @property
    def acknowledges(self) -> bool:
        return self.alive and self.core.role is Role.MASTER and self.world.now_ms <= self.core.lease_ms

    def act(self) -> None:
        log = self.metadata.log(LOG)
        if self.manager is None:
            if log is None:
                return
            self.manager = ReplicasManager(
                log=LOG,
                generation=log.generation,
                node=self.name,
                address=f"{self.name}:1",
                identity=self.identity,
                config=CONFIG,
                random=self.world.random,
            )
        for action in self.manager.step(
            self.metadata, self.core, self.world.now_ms, self.metadata.applied_index
        ):
            match action:
                case SendToCore():
                    self.core.take(action.message)
                case HeartbeatNow():
                    self.heartbeat_ms = 0
                case Save():
                    self.identity = action.identity
                    self.manager.saved(action.identity)
                case ControllerRequest():
                    self.world.asked(self, action.command)


class World:
    """One run. Every violated promise is an AssertionError that names the seed."""

    def __init__(self, seed: int, nodes: int = 3) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = 1_000_000
        self.events: list[AnyEvent] = []  # what is committed
        self.term = 0
        self.active: ActiveController | None = None
        self.old: list[tuple[ActiveController, int]] = []  # that do not know that they are it no longer
        self.metadata = Metadata()
        self.nodes = {name: Node(self, name) for name in (f"n{k}" for k in range(1, nodes + 1))}
        self.asks: list[tuple[int, Node, ReplicasManager, AnyCommand]] = []
        self.epochs_opened: dict[int, str] = {}
        self.acknowledged = 0
        self.master_changes = 0
        for node in self.nodes.values():
            node.start()
        self.elect_controller()
        assert self.active is not None
        self.active.ask(None, _create(tuple(self.nodes)))

    # --- the controllers ----------------------------------------------------------------------------------

    def elect_controller(self) -> None:
        """Another controller becomes active, with everything that is committed."""
        if self.active is not None and self.random.random() < 0.5:
            self.old.append((self.active, self.now_ms + 1_000))  # until its own check-quorum
        self.term += 1
        self.metadata = self._committed()
        self.active = ActiveController(
            node_id=f"c{self.term}",
            config=CONFIG,
            metadata=self.metadata,
            brokers=tuple(self.nodes),
            configured={},
            make_log_id=hash_of,
            connected=[node.name for node in self.nodes.values() if node.alive and not node.cut_off],
            now_ms=self.now_ms,
        )

    def _committed(self) -> Metadata:
        metadata = Metadata()
        for index, event in enumerate(self.events):
            metadata.apply(index, decode_event(encode_event(event)))
        return metadata

    def controllers_act(self) -> None:
        active = self.active
        if active is None:
            return
        round_ = active.next_round(
            term=self.term, next_index=len(self.events), now_ms=self.now_ms, time_ms=self.now_ms
        )
        if round_ is None:
            return
        if round_.events:
            self._store(active, round_)
        else:
            self._answer(round_.answers)

    def _store(self, active: ActiveController, round_: Round) -> None:
        fate = self.random.random()
        if fate < 0.03:
            active.not_stored()
            return
        if fate < 0.06:  # lost with its controller, stored or not
            if self.random.random() < 0.5:
                self._commit(round_)
            self.elect_controller()
            return
        self._commit(round_)
        self._answer(active.applied(round_.last_index))

    def _commit(self, round_: Round) -> None:
        assert round_.first_index == len(self.events)
        for event in round_.events:
            self.check_event(event)
            self.events.append(event)
            self.metadata.apply(len(self.events) - 1, decode_event(encode_event(event)))

    def _answer(self, answers: list[tuple[Any, Done | Refusal]]) -> None:
        for token, answer in answers:
            if token is not None and self.random.random() < 0.9:
                node, manager, command = token
                if node.alive and node.manager is manager and not node.cut_off:
                    manager.answered(command, answer, self.now_ms)

    def asked(self, node: Node, command: AnyCommand) -> None:
        assert node.manager is not None
        if not node.cut_off and self.active is not None and self.random.random() < 0.9:
            self.active.ask((node, node.manager, command), command)
            if self.random.random() < 0.1:  # doubled on the way
                self.active.ask((node, node.manager, command), command)
        self.asks.append((self.now_ms + 300, node, node.manager, command))

    # --- time ---------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += STEP_MS
            self.misfortune()
            self.old = [(old, until) for old, until in self.old if until > self.now_ms]
            for node in self.nodes.values():
                self.node_acts(node)
            self.controllers_act()
            self.replicate()
            self.check()

    def node_acts(self, node: Node) -> None:
        if not node.alive:
            return
        while node.known < len(self.events) and not node.cut_off and self.random.random() < 0.8:
            event = self.events[node.known]
            node.metadata.apply(node.known, decode_event(encode_event(event)))
            node.known += 1
        for due, asker, manager, command in [ask for ask in self.asks if ask[0] <= self.now_ms]:
            self.asks.remove((due, asker, manager, command))
            if asker.alive and asker.manager is manager:
                manager.answered(command, None, self.now_ms)
        node.act()
        if self.now_ms >= node.heartbeat_ms:
            node.heartbeat_ms = self.now_ms + CONFIG.heartbeat_interval_ms
            self.heartbeat(node)

    def heartbeat(self, node: Node) -> None:
        """To the active controller, or to one that believes to be it: but such a one confirms nothing."""
        if node.cut_off or self.active is None or self.random.random() < 0.05:
            return
        if self.old and self.random.random() < 0.3:
            return  # it asked the old one, which could not confirm its lead
        reports = [] if node.manager is None else [node.manager.report(node.core)]
        answer = self.active.heartbeat(1, node.name, node.known - 1, reports, self.now_ms)
        sent_ms = self.now_ms - self.random.choice((0, 0, 0, 40, 200))
        if node.manager is not None and self.random.random() < 0.95:
            self.deliver(node, answer, sent_ms)

    def deliver(self, node: Node, answer: BrokerHeartbeatAnswer, sent_ms: int) -> None:
        assert node.manager is not None
        node.manager.heartbeat_answered(
            answer.granted, answer.withheld, answer.alive, sent_ms, answer.leases, answer.withheld_epochs
        )

    def caught_up(self, master: Node) -> list[str]:
        return [
            node.name
            for node in self.nodes.values()
            if node is not master
            and node.alive
            and node.core.followed == master.name
            and node.log_epoch == master.log_epoch
            and node.offset >= master.confirmed
        ]

    def replicate(self) -> None:
        """Masters append, slaves follow; what every member of the set holds is acknowledged (C-12)."""
        for master in self.nodes.values():
            if not master.alive or master.core.role is not Role.MASTER:
                continue
            master.offset += self.random.randrange(3)
            for slave in self.nodes.values():
                follows = slave is not master and slave.alive and slave.core.followed == master.name
                if follows and slave.core.epoch == master.core.epoch and self.random.random() < 0.7:
                    slave.offset, slave.log_epoch = master.offset, master.log_epoch
            holders = [self.nodes[member] for member in master.core.holders]
            same = [holder.log_epoch == master.log_epoch for holder in holders]
            held = [holder.offset for holder in holders]
            if all(same) and master.acknowledges:
                master.confirmed = max(master.confirmed, min([master.offset, *held]))
                self.acknowledge(master)

    # --- what goes wrong ------------------------------------------------------------------------------------

    def misfortune(self) -> None:
        chance = self.random.random()
        node = self.random.choice(list(self.nodes.values()))
        if chance < 0.004:
            if node.alive:
                node.alive = False
                if self.active is not None and self.random.random() < 0.7:
                    self.active.liveness.disconnected(node.name)
        elif chance < 0.02:
            if not node.alive:
                node.start()
        elif chance < 0.023:
            node.cut_off = not node.cut_off
            if node.cut_off and self.active is not None:
                self.active.liveness.disconnected(node.name)
        elif chance < 0.026:
            node.cut_off = False
        elif chance < 0.028:
            self.elect_controller()
        elif chance < 0.0283 and not node.alive:  # its disk is lost, all of it
            node.offset = node.log_epoch = node.confirmed = node.opened = node.known = 0
            node.identity, node.metadata = None, Metadata()

    # --- promises -------------------------------------------------------------------------------------------

    def promise(self, kept: bool, what: str) -> None:
        assert kept, f"seed {self.seed}, {self.now_ms} ms: {what}"

    def check_event(self, event: AnyEvent) -> None:
        """C-04 and C-05, at the moment when an election is committed."""
        if not isinstance(event, MasterElected):
            return
        log = self.metadata.log(event.log)
        assert log is not None
        self.master_changes += 1
        self.promise(event.master_epoch == log.master_epoch + 1, "an epoch that does not grow by one")
        self.promise(log.is_current(event.master), "a master whose copy is gone")
        if log.master_epoch and not event.unclean:
            self.promise(event.master in log.sync_state_set, "a master from outside the set")
        self.promise(not event.unclean, "an unclean election that nobody allowed")
        for node in self.nodes.values():
            if node.acknowledges and node.core.epoch == log.master_epoch:
                replica = log.replica(event.master)
                self.promise(
                    replica is not None and replica.node == node.name,
                    f"{node.name} holds a lease while another one is elected",
                )

    def epoch_opened(self, node: Node, epoch: int) -> None:
        before = self.epochs_opened.setdefault(epoch, node.name)
        self.promise(before == node.name, f"epoch {epoch} was opened by {before} and by {node.name}")

    def acknowledge(self, master: Node) -> None:
        log: Log | None = self.metadata.log(LOG)
        assert log is not None
        self.promise(
            master.core.epoch == log.master_epoch, f"{master.name} acknowledges in an epoch that is over"
        )
        self.promise(
            set(log.sync_state_set) <= set(master.core.must_hold),
            "an acknowledgement that the controllers' set does not hold",
        )
        self.acknowledged += 1

    def check(self) -> None:
        masters = [node.name for node in self.nodes.values() if node.acknowledges]
        self.promise(len(masters) <= 1, f"{masters} acknowledge at one time")


def _create(replicas: tuple[str, ...]) -> AnyCommand:
    return CreateLog(LOG, LogSpec(replication="controller", replicas=replicas), "create")
