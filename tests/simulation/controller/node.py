"""A node over all its incarnations: a replica of the controllers' log, perhaps one in controller mode.

Everything is production: drivers, cores, controller server and client, replicas managers, files, codecs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from app.api.read.selection import Consistency
from app.controller.log_state import MetadataLogState
from app.controller.messages import (
    AnyControllerMessage,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CommandAnswer,
    CommandRequest,
)
from app.controller.metadata import CONTROLLER_LOG
from app.errors import CommitlogError
from app.ha.auto_switch.core import AutoSwitchCore
from app.ha.messages import INCOMING, OUTGOING
from app.log.commands import Command, CommandResult
from app.log.contract import AppendRequest, AppendResult, Durability, GroupConfig, LogOptions, Role
from app.node.metadata.controller_client import ControllerClient
from app.node.metadata.controller_server import ControllerServer, ControllerSetup
from app.node.metadata.replica_managers import ReplicasManagers
from app.node.opening.open_replica import LogIdentity, open_replica
from app.node.opening.replica_modes import AutoSwitchMode, RaftMode
from app.node.repair.ha_loss import roll_back
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from storage.errors import StorageError, StorageFull
from storage.format.batch import log_id_of
from storage.log.commitlog import Commitlog
from tests.simulation.controller.plan import GENERATION, LOG_NAME, STORAGE
from tests.simulation.raft.plans import SimulatedLimits
from tests.simulation.raft.reads import CursorDone, NodeReads, PageDone
from tests.simulation.world.disk import DiskThread, DiskTiming
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.promises import Violation
from tests.simulation.world.sick_files import SickFiles
from tests.simulation.world.world import Life, WorldScheduler
from tests.simulation.world.world_loop import WorldLoop
from tests.support.committed import values_in_receipts
from tests.support.markers import removes_marker
from tests.unit.ha.streams import Host

if TYPE_CHECKING:
    from tests.simulation.controller.cluster import HaCluster

CONTROLLER_LOG_ID = log_id_of("ha", CONTROLLER_LOG)
LOG_ID = log_id_of("ha", LOG_NAME)
DISK = DiskTiming(slow_us=60_000)
RESTART_US = 500_000  # after a disk without room has ended the process


class Link:
    """app.log.driver_interfaces.Transport of one incarnation: HA connections, messages between nodes."""

    def __init__(self, cluster: HaCluster, name: str, life: Life, host: Host) -> None:
        self._cluster = cluster
        self._name = name
        self._life = life
        self._host = host

    def send(self, target: str, log_id: int, message: Any) -> None:
        if target.startswith((INCOMING, OUTGOING)):
            self._host.send(target, log_id, message)
        elif self._life.alive:
            self._cluster.network.send(self._name, target, log_id, message)


class HaSimNode(SimulatedProcess):
    """`driver` and `core` are set where a replica of the log is kept.

    copy_id: the replica id of the copy on its disk, 0 while that is not registered. controllers_from: up to
    where the controllers' log must be held before an emptied disk counts as filled again, None for whole.
    """

    controller: LogDriver
    driver: LogDriver
    core: AutoSwitchCore
    log: Commitlog

    def __init__(self, cluster: HaCluster, name: str) -> None:
        super().__init__(cluster.world, name)
        self.files = SickFiles(Random(cluster.world.random.getrandbits(64)))
        self.is_broker = name in cluster.plan.broker_names
        self.is_controller = name in cluster.plan.controller_names
        self._cluster = cluster
        self.sound = True  # at the next start: no repair has found that records may be lost
        self.copy_id = 0
        self.doubtful = False  # its copy was restored from an older one, and may lack what it acknowledged
        self.controllers_from: int | None = None
        # A power failure may take the log's end: it was opened with `replicated`, or has changed to it since.
        self.loose = cluster.plan.durability is Durability.REPLICATED
        self._loop: WorldLoop | None = None

    @property
    def has_healthy_disk(self) -> bool:
        return super().has_healthy_disk and not self.files.is_ill

    @property
    def held_index(self) -> int:
        """State that survives every crash of this run."""
        return self.log.end_index if self.loose else self.log.durable_index

    @property
    def readable_index(self) -> int | None:
        """The index that a linearizable read at this master may return now; None while none is answered."""
        return self.core._readable_index(self._clock.monotonic_ms())

    @property
    def floor(self) -> int:
        """min_in_sync_replicas as this copy counts it."""
        return self.core._min_in_sync

    @property
    def state(self) -> MetadataLogState:
        state = self.controller.state
        assert isinstance(state, MetadataLogState)
        return state

    @property
    def is_active(self) -> bool:
        return self.alive and self.server.is_active

    @property
    def acknowledges(self) -> bool:
        """Return True if it is master with a lease now; `accepts_appends` is as of the core's last event."""
        if not (self.alive and self.is_broker and self.core.accepts_appends):
            return False
        return not self.core._is_fenced(self._clock.monotonic_ms())

    # --- incarnations ---------------------------------------------------------------------------------------

    def start(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        life = self.life = Life(self.name)
        host = cluster.streams.attach(self.name, life, self._from_stream)
        cluster.network.attach(self.name, life, self._receive)
        self._clock = self.machine.clock()
        self._disk = DiskThread(world, life, DISK, self._fail, self._disk_hang)
        self._loop = WorldLoop(world, life)
        self._reads = NodeReads(lambda: self.driver if self.alive and self.is_broker else None)
        self._options: LogOptions | None = None
        self._followed_index = -1
        self._scheduler = WorldScheduler(world, life)
        self._link = Link(cluster, self.name, life, host)
        try:
            self._open_controller()
            if self.is_broker:
                self._open_log()
        except StorageError as error:
            self._fail("start", error)
            return
        world.after(world.between((0, cluster.plan.timing.tick_us)), partial(self._tick, life), life)

    def _open_controller(self) -> None:
        cluster, plan = self._cluster, self._cluster.plan
        learners = tuple(name for name in plan.names if name not in plan.controller_names)
        services = self._new_services()
        mode = RaftMode(
            configured=GroupConfig(voters=plan.controller_names, learners=learners),
            config=plan.timing.raft,
            state_type=MetadataLogState,
        )
        log = LogIdentity(name=CONTROLLER_LOG, log_id=CONTROLLER_LOG_ID, durability=Durability.FSYNC)
        events = removes_marker(services, CONTROLLER_LOG)
        self.controller = open_replica(services, log, mode, events=events).driver
        self.server = ControllerServer(
            setup=ControllerSetup(
                node_id=self.name,
                config=plan.timing.controllers,
                brokers=plan.broker_names,
                configured={LOG_NAME: plan.spec},
                make_log_id=lambda _name, _generation: LOG_ID,
            ),
            replica=lambda: self.controller,
            connected=lambda: cluster.connected_to(self.name),
            send=self._send,
            clock=self._clock,
            scheduler=self._scheduler,
        )
        self.client = ControllerClient(
            config=plan.timing.controllers,
            controllers=plan.controller_names,
            leader=lambda: self.controller.leader_id,
            send=self._send,
            reports=lambda: (self._followed_index, self.managers.reports()),
            heartbeat_answered=lambda answer, sent_ms: self.managers.heartbeat_answered(answer, sent_ms),
            clock=self._clock,
            random=self._new_random(),
        )
        self.managers = ReplicasManagers(
            self._new_services(),
            plan.timing.controllers,
            metadata=lambda: self.state.metadata,
            controller=lambda: self.controller,
            client=self.client,
        )
        if not self.is_broker:
            self.client.stop()
        self.controller.start()

    def _open_log(self) -> None:
        """With the durability that this node knows: its folder's note is of that from then on."""
        plan = self._cluster.plan
        known = self.state.metadata.log(LOG_NAME)
        durability = plan.durability if known is None else Durability(known.spec.durability)
        self.loose = durability is Durability.REPLICATED
        log = LogIdentity(name=LOG_NAME, log_id=LOG_ID, durability=durability)
        mode = AutoSwitchMode(
            replicas=plan.broker_names,
            config=plan.timing.ha,
            address=self.name,
            min_in_sync_replicas=plan.min_in_sync,
            sound=self.sound,
        )
        opened = open_replica(self._new_services(), log, mode)
        self.sound = True
        driver = self.driver = opened.driver
        self.core, self.log = opened.core, driver.log
        driver.start()
        driver.change_options(replace(plan.options, durability=durability))
        self.managers.attach(
            LOG_NAME, GENERATION, driver, self.core, self.name, lambda: self.driver is driver
        )

    def _new_services(self) -> NodeServices:
        return NodeServices(
            node_id=self.name,
            version="simulated",
            data_folder="data",
            files=self.files,
            storage=STORAGE,
            limits=SimulatedLimits(),
            clock=self._clock,
            disk=self._disk,
            transport=self._link,
            scheduler=self._scheduler,
            random=self._new_random(),
            fail=self._fail,
            driver=self._cluster.plan.timing.driver,
        )

    def _new_random(self) -> Random:
        return Random(self._cluster.world.random.getrandbits(64))

    def _tick(self, life: Life) -> None:
        self.controller.tick()
        self.server.tick()
        if self.is_broker:
            self.driver.tick()
        self._take_settings()
        self.managers.tick()
        self.client.tick()
        self._cluster.world.after(self._cluster.plan.timing.tick_us, partial(self._tick, life), life)

    def _take_settings(self) -> None:
        """Take up what was changed in the log's settings, as MetadataLogs does."""
        metadata = self.state.metadata
        log = metadata.log(LOG_NAME)
        if log is not None and self.is_broker:
            durability = Durability(log.spec.durability)
            options = LogOptions(
                durability=durability,
                min_in_sync_replicas=log.spec.min_in_sync_replicas,
                preferred=log.spec.preferred,
                in_sync_replicas=log.spec.in_sync_replicas or 0,
            )
            if options != self._options:
                self._options = options
                self.loose = self.loose or durability is Durability.REPLICATED
                self.driver.change_options(options)
        self._followed_index = metadata.applied_index

    def note_copy(self) -> None:
        """See which replica the copy on the disk is."""
        if self.is_broker and self.alive:
            replica_id = self.managers._replicas[LOG_NAME].manager.replica_id
            if replica_id:
                holds_all = self.held_index >= self._cluster.checker.records.committed_index
                if self.doubtful and (replica_id != self.copy_id or holds_all):
                    self.doubtful = False
                self.copy_id = replica_id
        if self.controllers_from is not None and self.alive:
            controller = self.controller
            if controller.sound and controller.committed_index >= self.controllers_from:
                self.controllers_from = None

    def _fail(self, what: str, error: BaseException) -> None:
        """A disk without room may end the process: it starts again until there is some."""
        if not isinstance(error, StorageFull):
            raise Violation(f"{self.name} stopped: {what}: {error!r}") from error
        self._cluster.checker.counts["ended by a full disk"] += 1
        if self.alive:
            self.crash(power=False)
        self._world.after(RESTART_US, partial(self._cluster.bring_up, self))

    def crash(self, *, power: bool) -> None:
        """kill -9, or a power failure. One that may take what was acknowledged makes the copy another one."""
        self.life.alive = False
        if self._loop is not None:
            self._loop.end()
        self._cluster.streams.crashed(self.name)
        if power:
            if self.is_broker and self.loose:
                self.lose_copy()
            self.files.crash()
            self.machine.reboot()

    def lose_copy(self) -> None:
        """The records on disk may be fewer than those that this copy has acknowledged."""
        self._cluster.checker.copy_is_lost(self)
        self.copy_id = 0

    def stop(self) -> None:
        """A planned stop: the mastership is given up, then all is synced."""
        life = self.life
        self.managers.leave()
        open_logs = [self.driver, self.controller] if self.is_broker else [self.controller]

        def stopped(log: LogDriver) -> None:
            open_logs.remove(log)
            if not open_logs and life.alive and life is self.life:
                self.crash(power=False)

        def give_up() -> None:
            self.client.stop()
            for log in list(open_logs):
                log.stop(partial(stopped, log))

        self._cluster.world.after(self._cluster.world.between((1_000, 300_000)), give_up, life)

    def leave(self) -> None:
        """A planned stop: the mastership is given up first."""
        self.managers.leave()

    def roll_back(self) -> None:
        """The node's reaction when an unclean election has lost confirmed records of its log; then it starts
        again."""
        rollback = self.core.wanted_rollback
        assert rollback is not None
        self.crash(power=False)
        self.log.close()
        roll_back(self.files, "data", LOG_NAME, log_id=LOG_ID, storage=STORAGE, rollback=rollback)
        self.start()

    def receipts(self) -> list[str]:
        """The values in all receipts of this node."""
        return values_in_receipts(self.files, LOG_NAME)

    # --- messages ---------------------------------------------------------------------------------------

    def _send(self, target: str, message: AnyControllerMessage) -> None:
        if target == self.name:
            self._scheduler.call_soon(lambda: self._take(target, message))
        else:
            self._link.send(target, CONTROLLER_LOG_ID, message)

    def _take(self, source: str, message: AnyControllerMessage) -> None:
        if isinstance(message, CommandRequest | BrokerHeartbeat):
            self.server.take(source, message)
        else:
            self.client.take(source, message)

    def _receive(self, source: str, log_id: int, message: Any) -> None:
        if isinstance(message, CommandRequest | BrokerHeartbeat | CommandAnswer | BrokerHeartbeatAnswer):
            self._take(source, message)
        elif log_id == CONTROLLER_LOG_ID:
            self.controller.deliver(source, message)
        elif self.is_broker:
            self.driver.deliver(source, message)

    def _from_stream(self, source: str, message: Any) -> None:
        if self.is_broker:
            self.driver.deliver(source, message)

    # --- the door for clients: a request to a dead node, and the answer of a node that dies, are lost ---

    def append(self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]) -> None:
        def answered(answer: AppendResult | CommitlogError) -> None:
            if isinstance(answer, AppendResult):
                self._cluster.checker.acknowledged(self, answer)
            done(answer)

        self._when_awake(lambda: self.driver.append(request, answered))

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        self._when_awake(lambda: self.driver.read_index(done))

    def read_page(self, start_index: int, consistency: Consistency, done: PageDone) -> None:
        self._when_awake(lambda: self._begin(self._reads.page(start_index, consistency, done)))

    def read_cursor(self, name: str, done: CursorDone) -> None:
        self._when_awake(lambda: self._begin(self._reads.cursor(name, done)))

    def command(self, command: Command, done: Callable[[CommandResult | CommitlogError], None]) -> None:
        self._when_awake(lambda: self.driver.command(command, done))

    def _begin(self, read: Coroutine[Any, Any, None]) -> None:
        assert self._loop is not None
        self._loop.create_task(read)

    def _when_awake(self, ask: Callable[[], None]) -> None:
        self._world.when_awake(self.life, lambda: ask() if self.is_broker else None)

    @property
    def is_master(self) -> bool:
        return self.is_broker and self.driver.role is Role.MASTER
