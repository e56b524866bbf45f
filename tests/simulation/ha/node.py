"""One node over all its lives: a replica of the controllers' log, and perhaps of a log in controller mode.

Everything is production: drivers, cores, controller server and client, replicas managers, files, codecs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa

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
from app.log.contract import AppendRequest, AppendResult, Durability, GroupConfig, Role
from app.node.metadata.controller_client import ControllerClient
from app.node.metadata.controller_server import ControllerServer
from app.node.metadata.replica_managers import ReplicasManagers
from app.node.opening.open_replica import LogIdentity, open_replica
from app.node.opening.replica_modes import AutoSwitchMode, RaftMode
from app.node.repair.ha_loss import roll_back
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from storage.errors import StorageError
from storage.format.batch import log_id_of
from storage.log.commitlog import Commitlog
from tests.simulation.checks import Violation
from tests.simulation.disk import DiskThread, DiskTiming
from tests.simulation.ha.plan import CONTROLLERS, DRIVER, GENERATION, HA, LOG_NAME, RAFT, STORAGE, TICK_US
from tests.simulation.plans import SimulatedLimits
from tests.simulation.world import Life, WorldClock, WorldScheduler
from tests.support.markers import removes_marker
from tests.support.memory_files import MemoryFiles
from tests.unit.ha.streams import Host

if TYPE_CHECKING:
    from tests.simulation.ha.cluster import HaCluster

CONTROLLER_LOG_ID = log_id_of("ha", CONTROLLER_LOG)
LOG_ID = log_id_of("ha", LOG_NAME)
DISK = DiskTiming(slow_us=60_000)


class Link:
    """app.log.contract.Transport of one life: connections of HA, and messages between nodes."""

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


class HaSimNode:
    """Its disk outlives its lives. Where no replica of the log is kept, `driver` and `core` are not set."""

    controller: LogDriver
    driver: LogDriver
    core: AutoSwitchCore
    log: Commitlog

    def __init__(self, cluster: HaCluster, name: str) -> None:
        self.name = name
        self.files = MemoryFiles(Random(cluster.world.random.getrandbits(64)))
        self.life = Life(name, alive=False)
        self.is_broker = name in cluster.plan.broker_names
        self._is_controller = name in cluster.plan.controller_names
        self._cluster = cluster
        self._fsync = cluster.plan.durability is Durability.FSYNC
        self.sound = True  # at the next start: no repair has found that records may be lost

    @property
    def alive(self) -> bool:
        return self.life.alive

    @property
    def held_index(self) -> int:
        """What no crash of this run takes away."""
        return self.log.durable_index if self._fsync else self.log.end_index

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
        """Whether it is master with a lease now; `accepts_appends` is as of the core's last event."""
        if not (self.alive and self.is_broker and self.core.accepts_appends):
            return False
        return not self.core._is_fenced(self._clock.monotonic_ms())

    # --- lives ------------------------------------------------------------------------------------------

    def start(self) -> None:
        cluster, world = self._cluster, self._cluster.world
        life = self.life = Life(self.name)
        host = cluster.streams.attach(self.name, life, self._from_stream)
        cluster.network.attach(self.name, life, self._receive)
        self._clock = WorldClock(world)
        self._disk = DiskThread(world, life, DISK, self._fail)
        self._scheduler = WorldScheduler(world, life)
        self._link = Link(cluster, self.name, life, host)
        try:
            self._open_controller()
            if self.is_broker:
                self._open_log()
        except StorageError as error:
            raise Violation(f"{self.name} cannot come back: {error!r}") from error
        world.after(world.between((0, TICK_US)), partial(self._tick, life), life)

    def _open_controller(self) -> None:
        cluster, plan = self._cluster, self._cluster.plan
        learners = tuple(name for name in plan.names if name not in plan.controller_names)
        services = self._new_services()
        mode = RaftMode(
            configured=GroupConfig(voters=plan.controller_names, learners=learners),
            config=RAFT,
            state_type=MetadataLogState,
        )
        log = LogIdentity(name=CONTROLLER_LOG, log_id=CONTROLLER_LOG_ID, durability=Durability.FSYNC)
        events = removes_marker(services, CONTROLLER_LOG)
        self.controller = open_replica(services, log, mode, events=events).driver
        self.server = ControllerServer(
            node_id=self.name,
            config=CONTROLLERS,
            brokers=plan.broker_names,
            configured={LOG_NAME: plan.spec},
            make_log_id=lambda _name, _generation: LOG_ID,
            replica=lambda: self.controller,
            connected=lambda: cluster.connected_to(self.name),
            send=self._send,
            clock=self._clock,
            scheduler=self._scheduler,
        )
        self.client = ControllerClient(
            config=CONTROLLERS,
            controllers=plan.controller_names,
            leader=lambda: self.controller.leader_id,
            send=self._send,
            reports=lambda: (self.state.metadata.applied_index, self.managers.reports()),
            heartbeat_answered=lambda answer, sent_ms: self.managers.heartbeat_answered(answer, sent_ms),
            clock=self._clock,
            random=self._new_random(),
        )
        self.managers = ReplicasManagers(
            node_id=self.name,
            config=CONTROLLERS,
            metadata=lambda: self.state.metadata,
            client=self.client,
            files=self.files,
            data_folder="data",
            disk=self._disk,
            clock=self._clock,
            random=self._new_random(),
            fail=self._fail,
        )
        if not self.is_broker:
            self.client.stop()
        self.controller.start()

    def _open_log(self) -> None:
        plan = self._cluster.plan
        log = LogIdentity(name=LOG_NAME, log_id=LOG_ID, durability=plan.durability)
        mode = AutoSwitchMode(
            replicas=plan.broker_names,
            config=HA,
            address=self.name,
            min_in_sync_replicas=plan.min_in_sync,
            sound=self.sound,
        )
        opened = open_replica(self._new_services(), log, mode)
        self.sound = True
        driver = self.driver = opened.driver
        self.core, self.log = opened.core, driver.log
        driver.start()
        driver.change_options(plan.options)
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
            driver=DRIVER,
        )

    def _new_random(self) -> Random:
        return Random(self._cluster.world.random.getrandbits(64))

    def _tick(self, life: Life) -> None:
        self.controller.tick()
        self.server.tick()
        if self.is_broker:
            self.driver.tick()
        self.managers.tick()
        self.client.tick()
        self._cluster.world.after(TICK_US, partial(self._tick, life), life)

    def _fail(self, what: str, error: BaseException) -> None:
        raise Violation(f"{self.name} stopped: {what}: {error!r}") from error

    def crash(self, *, power: bool) -> None:
        """kill -9, or (where fsync survives it) a power failure."""
        self.life.alive = False
        self._cluster.streams.crashed(self.name)
        if power and self._fsync:
            self.files.crash()

    def leave(self) -> None:
        """A planned stop: the mastership is given up first."""
        self.managers.leave()

    def roll_back(self) -> None:
        """What the node does when an unclean election has lost what its log has confirmed; then it starts
        anew."""
        rollback = self.core.wanted_rollback
        assert rollback is not None
        self.life.alive = False
        self._cluster.streams.crashed(self.name)
        self.log.close()
        roll_back(self.files, "data", LOG_NAME, log_id=LOG_ID, storage=STORAGE, rollback=rollback)
        self.start()

    def receipts(self) -> list[str]:
        """The values in all receipts of this node."""
        found: list[str] = []
        for name in self.files.list(f"data/receipts/{LOG_NAME}"):
            table = pa.ipc.open_file(self.files.read(f"data/receipts/{LOG_NAME}/{name}")).read_all()
            found += [value.decode() for value in table.column("value").to_pylist()]
        return found

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

        if self.alive:
            self.driver.append(request, answered)

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        if self.alive:
            self.driver.read_index(done)

    @property
    def is_master(self) -> bool:
        return self.is_broker and self.driver.role is Role.MASTER
