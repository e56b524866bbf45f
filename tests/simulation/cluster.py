"""A whole cluster in one thread: production core, driver, store, state, journal, codec; simulated seams."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from app.errors import CommitlogError
from app.node.driver import LogDriver
from app.node.open_log import open_raft_log
from app.raft.config import RaftConfig
from app.replication import (
    NO_INDEX,
    AppendRequest,
    AppendResult,
    DriverConfig,
    Durability,
    GroupConfig,
    Role,
)
from storage.batch import Batch, log_id_of
from storage.commitlog import Commitlog, CommitlogConfig
from storage.errors import StorageError
from storage.records import decode_body
from tests.simulation.checks import SafetyChecker, Violation
from tests.simulation.clients import Client, Ledger, Reader
from tests.simulation.disk import DiskThread, DiskTiming
from tests.simulation.faults import FaultPlan, Nemesis
from tests.simulation.network import LinkFaults, Network, NodeTransport
from tests.simulation.world import Life, World, WorldClock, WorldScheduler
from tests.support.memory_files import MemoryFiles

LOG_NAME = "default"
LOG_ID = log_id_of("simulation", LOG_NAME)
SECOND_US = 1_000_000
SMALL_SEGMENTS = CommitlogConfig(segment_max_bytes=64 * 1024, mark_interval_bytes=16 * 1024)
# Twice as slow as the defaults, with a coarser timer: nothing depends on it but how often nothing happens.
CALM_TIMING = RaftConfig(
    tick_interval_ms=100,
    heartbeat_interval_ms=300,
    election_timeout_ms=(1_000, 2_000),
    commit_interval_ms=100,
)
CALM_LINKS = LinkFaults(loss=0.02, duplication=0.02, holding=0.02)
CALM_DISK = DiskTiming()
CALM_FAULTS = FaultPlan()
STORM_TIMING = RaftConfig(tick_interval_ms=50, heartbeat_interval_ms=100, election_timeout_ms=(250, 500))
STORM_LINKS = LinkFaults(max_delay_us=60_000, loss=0.05, duplication=0.1, holding=0.05)
STORM_FAULTS = FaultPlan(pause_us=(10_000, 800_000), lasting_us=(10_000, 900_000), crash_weight=6)
STORM_DISK = DiskTiming(sync_us=(50, 20_000), slow_chance=0.05, slow_us=300_000)


@dataclass(frozen=True, kw_only=True)
class SimulatedLimits:
    max_pending_requests: int = 1_000
    max_pending_bytes: int = 16 * 1024 * 1024
    idempotency_ms: int = 24 * 60 * 60 * 1000


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """What one run is made of."""

    nodes: int = 3
    clients: int = 4
    durability: Durability = Durability.FSYNC
    raft: RaftConfig = CALM_TIMING
    think_us: tuple[int, int] = (1_000, 1_200_000)  # of each client
    read_pause_us: tuple[int, int] | None = None  # of the one that only reads, anywhere; None: there is none
    links: LinkFaults = CALM_LINKS
    disk: DiskTiming = CALM_DISK
    faults: FaultPlan | None = CALM_FAULTS


def storm(nodes: int, durability: Durability = Durability.FSYNC) -> ClusterPlan:
    """Slow links, a slow disk, impatient members and a fault every moment: elections all the time."""
    return ClusterPlan(
        nodes=nodes,
        durability=durability,
        raft=STORM_TIMING,
        think_us=(1_000, 150_000),
        read_pause_us=(1_000, 30_000),
        links=STORM_LINKS,
        disk=STORM_DISK,
        faults=STORM_FAULTS,
    )


class SimulatedNode:
    """One node over all its lives; its disk outlives them.

    driver, log: of this life, or of the last one while the node is down; there from the first `start` on.
    """

    driver: LogDriver
    log: Commitlog

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        self.name = name
        self.life_number = 0
        self.files = MemoryFiles(Random(cluster.world.random.getrandbits(64)))
        self._cluster = cluster
        self._life = Life(name, alive=False)
        self._fsync = cluster.plan.durability is Durability.FSYNC

    @property
    def alive(self) -> bool:
        return self._life.alive

    @property
    def role(self) -> Role:
        return self.driver.role

    @property
    def term(self) -> int:
        return self.driver.term

    @property
    def committed_index(self) -> int:
        return self.driver.committed_index

    @property
    def held_index(self) -> int:
        """What no crash of this run takes away: with `replicated` the operating system lives on."""
        return self.log.durable_index if self._fsync else self.log.end_index

    def watermarks(self) -> Mapping[str, int]:
        return self.driver.watermarks().get(self.term, {})

    def start(self) -> None:
        cluster = self._cluster
        self.life_number += 1
        life = self._life = Life(self.name)
        try:
            driver = self._open(life)
        except StorageError as error:
            raise Violation(f"{self.name} cannot come back: {error!r}") from error
        self.driver, self.log = driver, driver.log
        cluster.network.attach(self.name, life, lambda source, _log, message: driver.deliver(source, message))
        driver.start()
        self._tick(life)

    def _open(self, life: Life) -> LogDriver:
        cluster, world = self._cluster, self._cluster.world
        return open_raft_log(
            files=self.files,
            data_folder="data",
            log_name=LOG_NAME,
            log_id=LOG_ID,
            node_id=self.name,
            group=GroupConfig(voters=cluster.names),
            durability=cluster.plan.durability,
            raft=cluster.plan.raft,
            storage=SMALL_SEGMENTS,
            limits=SimulatedLimits(),
            clock=WorldClock(world),
            disk=DiskThread(world, life, cluster.plan.disk),
            transport=NodeTransport(cluster.network, self.name, life),
            scheduler=WorldScheduler(world, life),
            random=Random(world.random.getrandbits(64)),
            fail=self._fail,
            version="simulated",
            config=DriverConfig(snapshot_interval_ms=5_000),
        )

    def _tick(self, life: Life) -> None:
        if life.alive:
            self.driver.tick()
            tick_us = self._cluster.plan.raft.tick_interval_ms * 1_000
            self._cluster.world.after(tick_us, lambda: self._tick(life), life)

    def _fail(self, what: str, error: BaseException) -> None:
        raise Violation(f"{self.name} stopped: {what}: {error!r}") from error

    def crash(self) -> None:
        """kill -9, and with `fsync` every other time a power cut too: what was not synced is lost or torn."""
        self._life.alive = False
        if self._fsync and self._cluster.world.random.random() < 0.5:
            self.files.crash()

    # --- the door for clients: a request to a dead node, and the answer of a node that dies, are lost

    def append(self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]) -> None:
        if self.alive:
            self.driver.append(request, done)

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        if self.alive:
            self.driver.read_index(done)


class SimulatedCluster:
    """`run` lets it live under faults; `settle` heals it and proves that everything acknowledged is there."""

    def __init__(self, seed: int, plan: ClusterPlan | None = None) -> None:
        self.plan = plan or ClusterPlan()
        self.world = World(seed)
        self.network = Network(self.world, self.plan.links)
        self.names = tuple(f"n{number + 1}" for number in range(self.plan.nodes))
        self.nodes = {name: SimulatedNode(self, name) for name in self.names}
        self.ledger = Ledger()
        self.checker = SafetyChecker()
        self.nemesis = Nemesis(self.world, self, self.plan.faults) if self.plan.faults else None
        for node in self.nodes.values():
            node.start()
        doors = list(self.nodes.values())
        for number in range(self.plan.clients):
            Client(f"c{number}", self.world, doors, self.ledger, self.plan.think_us).start()
        if self.plan.read_pause_us is not None:
            Reader(self.world, doors, self.ledger, self.plan.read_pause_us).start()
        if self.nemesis is not None:
            self.nemesis.start()

    def is_up(self, name: str) -> bool:
        return self.nodes[name].alive

    def crash(self, name: str) -> None:
        self.world.note(f"crash {name}")
        self.nodes[name].crash()
        self.checker.check(self.nodes[name], self.nodes)

    def restart(self, name: str) -> None:
        self.world.note(f"restart {name}")
        self.nodes[name].start()
        self.checker.check(self.nodes[name], self.nodes)

    def run(self, seconds: float) -> None:
        """Live for so many simulated seconds. Raises Violation, whose seed replays it."""
        self._run_until(self.world.now_us + int(seconds * SECOND_US), lambda: False)

    def settle(self, within_seconds: float = 60) -> None:
        """End all faults; within that time every node has committed all that was promised."""
        if self.nemesis is not None:
            self.nemesis.stop()
        self.network.faults = LinkFaults()
        promised, target = dict(self.ledger.acknowledged), self.ledger.highest_index
        limit_us = self.world.now_us + int(within_seconds * SECOND_US)
        self._run_until(limit_us, lambda: all(node.committed_index >= target for node in self.nodes.values()))
        for node in self.nodes.values():
            if node.committed_index < target:
                raise Violation(f"{node.name} has not caught up: {node.committed_index} of {target}")
            self._check_acknowledged(node, promised)

    def leader(self) -> SimulatedNode | None:
        """The living leader of the newest term."""
        leaders = [node for node in self.nodes.values() if node.alive and node.role is Role.LEADER]
        return max(leaders, key=lambda node: node.term, default=None)

    def _run_until(self, limit_us: int, done: Callable[[], bool]) -> None:
        world = self.world
        while not done():
            next_us = world.next_us
            if next_us is None or next_us > limit_us:
                break
            life = world.step()
            if life is not None:
                self.checker.check(self.nodes[life.name], self.nodes)
            if self.ledger.violation is not None:
                raise Violation(self.ledger.violation)

    def _check_acknowledged(self, node: SimulatedNode, promised: Mapping[str, int]) -> None:
        """Every acknowledged record stands once, where the answer said; every key at most once."""
        places: dict[str, int] = {}
        index = max(node.log.begin_index, 0)
        while index <= node.committed_index:
            batch = node.log.batch_at(index)
            if not batch.is_control:
                for place, value in enumerate(values_of(batch), batch.base_index):
                    if places.setdefault(value, place) != place:
                        raise Violation(f"{node.name}: {value} stands at {places[value]} and at {place}")
            index = batch.next_index
        for key, index in promised.items():
            if places.get(key, NO_INDEX) != index:
                raise Violation(
                    f"{node.name}: {key} was acknowledged at {index}, stands at {places.get(key)}"
                )


def values_of(batch: Batch) -> list[str]:
    return [value.decode() for value in decode_body(batch.header, batch.body).column("value").to_pylist()]
