"""Many logs over one disk: three machines, a group of replicas each, and one disk a machine for all of them.

Each log has its own clients, safety checker and liveness bound. The disk serves the lanes of the logs with a
few threads; it is slow, and hangs now and then. A machine that crashes takes all its replicas along.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from app.api.read.selection import Consistency
from app.errors import CommitlogError
from app.log.commands import Command, CommandResult
from app.log.contract import (
    AppendRequest,
    AppendResult,
    Durability,
    GroupConfig,
    Role,
)
from app.log.driver_interfaces import DriverConfig
from app.node.opening.open_replica import LogIdentity, open_replica
from app.node.opening.replica_modes import RaftMode
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from app.raft.config import RaftConfig
from storage.format.batch import log_id_of
from storage.log.commitlog import Commitlog
from tests.simulation.raft.checks import SafetyChecker
from tests.simulation.raft.clients import Client, Ledger, ProducingClient
from tests.simulation.raft.faults import FaultPlan, Nemesis, draw_faults
from tests.simulation.raft.liveness import LivenessChecker
from tests.simulation.raft.plans import DAY_MS, SMALL_SEGMENTS, SimulatedLimits
from tests.simulation.raft.reads import CursorDone, NodeReads, PageDone
from tests.simulation.raft.sometimes import Sometimes
from tests.simulation.world.disk import DiskThread, DiskTiming
from tests.simulation.world.network import LinkFaults, Network, NodeTransport
from tests.simulation.world.promises import Violation
from tests.simulation.world.sick_files import SickFiles
from tests.simulation.world.world import Life, NothingDue, Standstill, World, WorldClock, WorldScheduler
from tests.simulation.world.world_loop import WorldLoop
from tests.support.markers import removes_marker

SECOND_US = 1_000_000
SETTLE_S = 20
WEIGHTS = {
    "kill": 4, "power": 4, "power_all": 1, "stall": 2, "slow_disk": 4, "hang_disk": 4, "isolate": 2,
    "link": 2, "reconnect": 2, "halves": 1, "slow_links": 1, "clock_rate": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ManyLogsPlan:
    """threads: that wait for the disk of a machine at one time. Times of the disk are microseconds."""

    machines: int = 3
    logs: int = 20
    threads: int = 4
    disk: DiskTiming = field(default_factory=lambda: DiskTiming(work_us=(200, 2_000), sync_us=(2_000, 8_000)))
    raft: RaftConfig = field(default_factory=lambda: RaftConfig(tick_interval_ms=50))
    think_us: tuple[int, int] = (200_000, 4_000_000)
    links: LinkFaults = field(default_factory=lambda: LinkFaults(loss=0.01, duplication=0.01, holding=0.01))
    faults: FaultPlan | None = field(
        default_factory=lambda: FaultPlan(pause_us=(500_000, 6_000_000), weights=WEIGHTS)
    )
    leader_within_us: int = 5_000_000


class Device:
    """One disk and the threads that wait for it."""

    def __init__(self, world: World, life: Life, threads: int, hang: Standstill) -> None:
        self.slowness = 1
        self.hang = hang
        self._world = world
        self._life = life
        self._free = threads
        self._queue: deque[tuple[int, Callable[[], None]]] = deque()

    def run(self, delay_us: int, action: Callable[[], None]) -> None:
        """Do `action` after the time that the work takes, once a thread is free."""
        self._queue.append((delay_us, action))
        self._start()

    def _start(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            delay_us, action = self._queue.popleft()
            self._world.after(delay_us * self.slowness, partial(self._end, action), self._life)

    def _end(self, action: Callable[[], None]) -> None:
        late_us = self.hang.until_us - self._world.now_us
        if late_us > 0:
            self._world.after(late_us, partial(self._end, action), self._life)
            return
        self._free += 1
        action()
        self._start()


class Lane(DiskThread):
    """The lane of one log: its work in order, at most one piece at the device."""

    def __init__(
        self,
        world: World,
        life: Life,
        timing: DiskTiming,
        fail: Callable[[str, BaseException], None],
        device: Device,
    ) -> None:
        super().__init__(world, life, timing, fail, device.hang)
        self._device = device

    def _later(self, range_us: tuple[int, int], action: Callable[[], None]) -> None:
        self._device.run(self._world.between(range_us), partial(self._done, action))


class Lanes:
    """app.log.driver_interfaces.Lanes of one incarnation of a machine."""

    def __init__(self, new_lane: Callable[[], Lane]) -> None:
        self._new_lane = new_lane
        self._lanes: dict[str, Lane] = {}

    def lane(self, name: str) -> Lane:
        if name not in self._lanes:
            self._lanes[name] = self._new_lane()
        return self._lanes[name]


class Replica:
    """One log at one machine. Satisfies Member, LiveMember and Door of the other files here."""

    driver: LogDriver
    log: Commitlog

    def __init__(self, machine: "Machine", log_name: str) -> None:
        self.name = machine.name
        self.log_name = log_name
        self.log_id = log_id_of("simulation", log_name)
        self.may_lack = False
        self._machine = machine

    @property
    def alive(self) -> bool:
        return self._machine.life.alive

    @property
    def is_stalled(self) -> bool:
        return self._machine.life.stall.until_us > self._machine.world.now_us

    @property
    def has_healthy_disk(self) -> bool:
        machine = self._machine
        return machine.slowness == 1 and machine.hang.until_us <= machine.world.now_us

    @property
    def held_index(self) -> int:
        return self.log.durable_index

    def append(self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]) -> None:
        self._machine.when_awake(lambda: self.driver.append(request, done))

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        self._machine.when_awake(lambda: self.driver.read_index(done))

    def command(self, command: Command, done: Callable[[CommandResult | CommitlogError], None]) -> None:
        self._machine.when_awake(lambda: self.driver.command(command, done))

    def read_page(self, start_index: int, consistency: Consistency, done: PageDone) -> None:
        self._machine.when_awake(
            lambda: self._machine.loop.create_task(self._reads.page(start_index, consistency, done))
        )

    def read_cursor(self, name: str, done: CursorDone) -> None:
        self._machine.when_awake(lambda: self._machine.loop.create_task(self._reads.cursor(name, done)))

    @property
    def _reads(self) -> NodeReads:
        return NodeReads(lambda: self.driver if self.alive else None)


class Machine:
    """One node over all its incarnations, with a replica of each log."""

    def __init__(self, cluster: "ManyLogs", name: str, log_names: Sequence[str]) -> None:
        self.name = name
        self.world = cluster.world
        self.files = SickFiles(Random(cluster.world.random.getrandbits(64)))
        self.clock = WorldClock(cluster.world)
        self.life = Life(name, alive=False)
        self.replicas = {log: Replica(self, log) for log in log_names}
        self.slowness = 1
        self.hang = Standstill()  # of the disk; it outlasts a restart
        self._cluster = cluster
        self._by_id = {replica.log_id: replica for replica in self.replicas.values()}

    def start(self) -> None:
        plan, world = self._cluster.plan, self.world
        self.life = Life(self.name)
        self.loop = WorldLoop(world, self.life)
        self.device = Device(world, self.life, plan.threads, self.hang)
        self.device.slowness = self.slowness
        transport = NodeTransport(self._cluster.network, self.name, self.life)
        disk = Lanes(partial(Lane, world, self.life, plan.disk, self._fail, self.device))
        for replica in self.replicas.values():
            services = NodeServices(
                node_id=self.name,
                version="simulated",
                data_folder="data",
                files=self.files,
                storage=SMALL_SEGMENTS,
                limits=SimulatedLimits(),
                clock=self.clock,
                disk=disk,
                transport=transport,
                scheduler=WorldScheduler(world, self.life),
                random=Random(world.random.getrandbits(64)),
                fail=self._fail,
                driver=DriverConfig(snapshot_interval_ms=5_000),
            )
            name = replica.log_name
            log = LogIdentity(name=name, log_id=replica.log_id, durability=Durability.FSYNC)
            mode = RaftMode(configured=GroupConfig(voters=self._cluster.names), config=plan.raft)
            replica.driver = open_replica(services, log, mode, events=removes_marker(services, name)).driver
            replica.log = replica.driver.log
        self._cluster.network.attach(self.name, self.life, self._receive)
        for replica in self.replicas.values():
            self._cluster.checkers[replica.log_name].begin_life(replica)
            replica.driver.start()
        self._tick(self.life)

    def crash(self, *, power: bool) -> None:
        self.life.alive = False
        self.world.after(0, self.loop.end)
        if power:
            self.files.crash()
        for replica in self.replicas.values():
            self._cluster.checkers[replica.log_name].end_life(replica)

    def when_awake(self, ask: Callable[[], Any]) -> None:
        self.world.when_awake(self.life, ask)

    def _fail(self, what: str, error: BaseException) -> None:
        raise Violation(f"{self.name} stopped: {what}: {error!r}") from error

    def _receive(self, source: str, log_id: int, message: Any) -> None:
        self._by_id[log_id].driver.deliver(source, message)

    def _tick(self, life: Life) -> None:
        for replica in self.replicas.values():
            replica.driver.tick()
        tick_us = self._cluster.plan.raft.tick_interval_ms * 1_000
        self.world.after(tick_us, partial(self._tick, life), life)


class ManyLogs:
    """The machines, their logs and what happens to them. Satisfies Victims for the kinds in WEIGHTS."""

    def __init__(self, seed: int, plan: ManyLogsPlan | None = None, *, seconds: float = 0) -> None:
        self.plan = plan or ManyLogsPlan()
        self.world = World(seed)
        self.names = tuple(f"n{number + 1}" for number in range(self.plan.machines))
        log_names = [f"log{number}" for number in range(self.plan.logs)]
        self.network = Network(self.world, self.plan.links, lambda _source, _target, _message: None)
        self.checkers: dict[str, SafetyChecker] = {}
        self.ledgers: dict[str, Ledger] = {}
        self.machines = {name: Machine(self, name, log_names) for name in self.names}
        self.liveness: list[LivenessChecker] = []
        for log in log_names:
            members = {name: machine.replicas[log] for name, machine in self.machines.items()}
            sometimes = Sometimes(members)
            self.checkers[log] = SafetyChecker(members, sometimes)
            self.ledgers[log] = Ledger(self.checkers[log], sometimes, DAY_MS, reads_cursors=False)
        for machine in self.machines.values():
            machine.start()
        for number, log in enumerate(log_names):
            doors = [machine.replicas[log] for machine in self.machines.values()]
            kind = (Client, ProducingClient)[number % 2]
            kind(log, self.world, doors, self.ledgers[log], self.plan.think_us).start()
            members = {door.name: door for door in doors}
            bound_us = self.plan.leader_within_us
            self.liveness.append(LivenessChecker(self.world, members, self.network, within_us=bound_us))
            self.liveness[-1].start()
        faults = self.plan.faults
        drawn = (
            []
            if faults is None
            else draw_faults(Random(seed), faults, len(self.names), int(seconds * SECOND_US))
        )
        self.nemesis = Nemesis(self.world, self, drawn)  # type: ignore[arg-type]
        self.nemesis.start()

    # --- what the nemesis does

    def leading(self) -> int | None:
        """The machine that leads most logs."""
        counts = [
            sum(replica.alive and replica.driver.role is Role.LEADER for replica in machine.replicas.values())
            for machine in self.machines.values()
        ]
        return counts.index(max(counts)) if any(counts) else None

    def is_up(self, name: str) -> bool:
        return self.machines[name].life.alive

    def crash(self, name: str, *, power: bool) -> None:
        self.machines[name].crash(power=power)

    def restart(self, name: str) -> None:
        if not self.is_up(name):
            self.machines[name].start()

    def stall(self, name: str, lasting_us: int) -> None:
        if self.is_up(name):
            self.machines[name].life.stall.extend(self.world.now_us + lasting_us)

    def set_clock_rate(self, name: str, rate: float) -> None:
        self.machines[name].clock.set_rate(rate)

    def slow_disk(self, name: str, slowness: int) -> None:
        machine = self.machines[name]
        machine.slowness = machine.device.slowness = slowness

    def hang_disk(self, name: str, lasting_us: int) -> None:
        self.machines[name].hang.extend(self.world.now_us + lasting_us)

    def cure_disk(self, name: str) -> None:
        """No disk errs here."""

    # --- time

    def run(self, seconds: float) -> None:
        """Live for so many simulated seconds. Raises Violation."""
        limit_us = self.world.now_us + int(seconds * SECOND_US)
        while self._step(limit_us):
            pass

    def settle(self) -> None:
        """End all faults; every replica has committed what was acknowledged within SETTLE_S."""
        self.nemesis.stop()
        limit_us = self.world.now_us + SETTLE_S * SECOND_US
        targets = {log: ledger.highest_index for log, ledger in self.ledgers.items()}
        while late := [
            f"{replica.log_name} at {machine.name}"
            for machine in self.machines.values()
            for replica in machine.replicas.values()
            if not replica.alive or replica.driver.committed_index < targets[replica.log_name]
        ]:
            if not all(self._step(limit_us) for _ in range(256)):
                raise Violation(f"have not caught up: {', '.join(late)}")

    def close(self) -> None:
        for machine in self.machines.values():
            machine.loop.end()

    def _step(self, limit_us: int) -> bool:
        try:
            life = self.world.step(limit_us)
        except NothingDue:
            return False
        if life is not None and life.alive:
            for log, replica in self.machines[life.name].replicas.items():
                self.checkers[log].check(replica)
        for ledger in self.ledgers.values():
            if ledger.news:
                ledger.verify()
        return True


def without_faults(logs: int) -> ManyLogsPlan:
    """Return a plan that only starts so many logs, and hardly writes to them."""
    return replace(ManyLogsPlan(), logs=logs, faults=None, think_us=(2 * SECOND_US, 20 * SECOND_US))


def run_many_logs(seed: int, seconds: float) -> tuple[str | None, Counter[str]]:
    """Let the logs of the seed live and heal. Return the violation, None for none, and what was done."""
    cluster = ManyLogs(seed, seconds=seconds)
    violation = None
    try:
        cluster.run(seconds)
        cluster.settle()
    except Violation as broken:
        violation = f"many logs, seed {seed} at {cluster.world.now_us / 1e6:.3f} s: {broken}"
    finally:
        cluster.close()
    counts = Counter(
        log_seconds=len(cluster.ledgers) * cluster.world.now_us // SECOND_US,
        appends=sum(len(ledger.acknowledged) for ledger in cluster.ledgers.values()),
        faults=sum(cluster.nemesis.counts.values()),
    )
    return violation, counts
