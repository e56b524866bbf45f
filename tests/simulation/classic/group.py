"""Classic HA under faults and under its operator: `commitlog sim --mode classic`.

Whatever was acknowledged synchronously is held by the master and by as many slaves as were asked for, with
that very history (H-04, H-07). Everything that was acknowledged or returned by a confirmed read, at any
node, stays the same record at every node that serves it. After each round of faults the group recovers by
itself, but for what needs an operator: refused copies, and a master that must not open its epoch.
"""

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

import click

from app.errors import CommitlogError
from app.ha.config import HaConfig
from app.ha.messages import INCOMING, Opened
from app.log.contract import AppendRequest, AppendResult, Durability
from app.node.opening.open_replica import LogIdentity, open_replica
from app.node.opening.replica_modes import ClassicMode
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from storage.errors import StorageError, StorageFull
from tests.simulation.classic.checks import ClassicChecker
from tests.simulation.classic.liveness import ClassicLiveness
from tests.simulation.classic.operators import EVENTS, Nemesis
from tests.simulation.controller.node import DISK, LOG_ID, RESTART_US
from tests.simulation.controller.plan import DRIVER, LOG_NAME, STORAGE
from tests.simulation.controller.run import rare_events
from tests.simulation.raft.plans import SimulatedLimits
from tests.simulation.seed_options import seed_options
from tests.simulation.world.disk import DiskThread
from tests.simulation.world.process import SimulatedProcess
from tests.simulation.world.promises import Violation, unexpected
from tests.simulation.world.sick_files import SickFiles
from tests.simulation.world.world import STANDSTILLS_END_S, Life, NothingDue, World, WorldScheduler
from tests.support.committed import values_of
from tests.unit.ha.clients import Client, Ledger
from tests.unit.ha.streams import StreamNetwork

SECONDS = 200.0
ROUND_S = 60.0  # of faults, before the group must recover
SETTLE_S = 30.0  # the operator helps after 5 s, perhaps more than once; 15.8 s is the longest of 420 rounds
FULL_SEEDS, FULL_SECONDS = 120, 900.0  # 30 hours of cluster life
THINK_US = (5_000, 700_000)  # a client's pause between two appends
MOST_RECORDS = 50  # of an append
TICK_US = 100_000
IN_FLIGHT_US = 20_000  # an acknowledgement may be on its way when the disk that it is of is replaced
HA = HaConfig(ha_transfer_batch_size=1024, ha_window_bytes=4096)  # the times of the defaults


class ClassicNode(SimulatedProcess):
    """The master or a slave."""

    driver: LogDriver

    def __init__(self, group: "ClassicGroup", name: str) -> None:
        super().__init__(group.world, name)
        self.names = group.names  # as in the configuration of its incarnation, with the two settings
        self.sync_slaves, self.auto = group.sync_slaves, group.auto
        self.unclean = False  # in the configuration of its next incarnation
        self.lost_us: int | None = None  # when its copy was replaced, if it has not started since
        self.copies: dict[
            str, tuple[str, LogDriver]
        ] = {}  # by the key of a connection from it, in this incarnation
        self.files = SickFiles(Random(group.world.random.getrandbits(64)))
        self._group = group

    @property
    def has_healthy_disk(self) -> bool:
        return super().has_healthy_disk and not self.files.is_ill

    @property
    def place(self) -> int:
        return self.names.index(self.name) + 1

    @property
    def state(self) -> tuple[object, ...]:
        core = self.driver.status().core
        log = self.driver.log
        waits = core.waits_for or (None if core.link is None else core.link)
        return (self.alive, core.role.value, log.begin_index, core.committed_index, log.end_index, waits)

    def start(self) -> None:
        group, world = self._group, self._group.world
        self.names = group.names
        self.sync_slaves, self.auto = group.sync_slaves, group.auto
        self.copies = {}
        life = self.life = Life(self.name)
        host = self._host = group.network.attach(self.name, life, self._deliver)
        self._disk = DiskThread(world, life, DISK, self._fail, self._disk_hang)
        services = NodeServices(
            node_id=self.name,
            version="simulated",
            data_folder="data",
            files=self.files,
            storage=STORAGE,
            limits=SimulatedLimits(),
            clock=self.machine.clock(),
            disk=self._disk,
            transport=host,
            scheduler=WorldScheduler(world, life),
            random=Random(world.random.getrandbits(64)),
            fail=self._fail,
            driver=DRIVER,
        )
        log = LogIdentity(name=LOG_NAME, log_id=LOG_ID, durability=group.durability)
        mode = ClassicMode(
            replicas=self.names,
            config=HA,
            master_id=self.names[0],
            master_address=self.names[0],
            sync_slaves=self.sync_slaves,
            auto_in_sync_replicas=self.auto,
            unclean=self.unclean,
        )
        try:
            self.driver = open_replica(services, log, mode).driver
        except StorageError as error:
            self._fail("start", error)
            return
        self.unclean = False
        self.lost_us = None
        self.driver.start()
        self._tick(life)

    def _tick(self, life: Life) -> None:
        self.driver.tick()
        self._group.world.after(TICK_US, partial(self._tick, life), life)

    def _deliver(self, source: str, message: Any) -> None:
        if isinstance(message, Opened) and source.startswith(INCOMING):
            peer = self._group.nodes[self._host.ends[source].peer.host.name]
            self.copies[source] = (peer.name, peer.driver)
            message = Opened(peer.place, message.history)  # the preface has its place among its own replicas
        self.driver.deliver(source, message)

    def _fail(self, what: str, error: BaseException) -> None:
        """A disk without room may end the process: it starts again until there is some."""
        if not isinstance(error, StorageFull):
            raise Violation(f"{self.name} stopped: {what}: {error!r}") from error
        self._group.counts["ended by a full disk"] += 1
        if self.alive:
            self.crash(power=False)
        self._group.nemesis.back(self, RESTART_US)

    def crash(self, *, power: bool) -> None:
        self.life.alive = False
        self._group.network.crashed(self.name)
        if power:
            self.files.crash()
            self.machine.reboot()

    def append(self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]) -> None:
        def answered(answer: AppendResult | CommitlogError) -> None:
            if isinstance(answer, AppendResult):
                self._group.acknowledged(self, answer)
            done(answer)

        if self.alive:
            self.driver.append(request, answered)

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        driver = self.driver

        def answered(answer: int | CommitlogError) -> None:
            if isinstance(answer, int):
                self._group.checker.read(driver, answer)
            done(answer)

        if self.alive:
            driver.read_index(answered)


class ClassicGroup:
    """names: as in the configuration, the master first; an operator changes it. master: of the newest one."""

    def __init__(self, seed: int, *, faults: bool = True, clients: int = 2) -> None:
        self.world = World(seed)
        self.names = tuple(f"n{number + 1}" for number in range(2 + seed % 2))
        self.sync_slaves = (1, 1, 0, 2)[seed // 2 % 4] if len(self.names) == 3 else 1 - (seed % 12 == 6)
        self.auto = seed % 5 == 4
        self.durability = Durability.REPLICATED if seed % 7 == 3 else Durability.FSYNC
        self.network = StreamNetwork(self.world, classic=True)
        self.nodes = {name: ClassicNode(self, name) for name in self.names}
        self.master = self.nodes[self.names[0]]
        self.ledger = Ledger()
        self.checker = ClassicChecker(self.ledger)
        for node in self.nodes.values():
            node.start()
        for number in range(clients):
            doors = list(self.nodes.values())
            Client(f"k{number}", self.world, doors, self.ledger, THINK_US, MOST_RECORDS).start()
        self.nemesis = Nemesis(self)
        self.nemesis.active = faults
        self.counts = self.nemesis.counts
        self.liveness = ClassicLiveness(self)

    # --- running -----------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def run_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Live until done() or for so many simulated seconds; whether it was done. Raises Violation."""
        limit_us = self.world.now_us + int(seconds * 1_000_000)
        while not done():
            try:
                self.world.step(limit_us)
            except NothingDue:
                return False
            problem = self.checker.problem or self.ledger.violation
            if problem is not None:
                raise Violation(problem)
        return True

    def settle(self) -> None:
        """End all faults: within a time every node holds what was acknowledged, and appends go on."""
        self.nemesis.stop()
        self.run_until(lambda: all(node.is_at_work for node in self.nodes.values()), STANDSTILLS_END_S)
        before = self.counts["appends"]

        def even() -> bool:
            if any(not node.alive for node in self.nodes.values()):
                return False
            target = max(self.ledger.highest_index, 0)
            return self.counts["appends"] > before + 5 and all(
                node.driver.committed_index >= target for node in self.nodes.values()
            )

        began_us = self.world.now_us
        if not self.run_until(even, SETTLE_S):
            states = {name: node.state for name, node in self.nodes.items()}
            raise Violation(
                f"not even after {SETTLE_S} s: {states}, {self.ledger.highest_index} acknowledged"
            )
        self.counts["rounds"] += 1
        self.counts["longest recovery ms"] = max(
            self.counts["longest recovery ms"], (self.world.now_us - began_us) // 1_000
        )
        for node in self.nodes.values():
            self.checker.check_all(node.driver)
        self._check_acknowledged()

    def _check_acknowledged(self) -> None:
        places = {place: key for key, place in self.ledger.acknowledged.items()}
        for place, key in places.items():
            for node in self.nodes.values():
                if place < node.driver.log.begin_index:
                    continue
                batch = node.driver.log.batch_at(place)
                if values_of(batch)[place - batch.base_index] != key:
                    raise Violation(f"{node.name}: {key} was acknowledged at {place} and is not there")

    # --- what must hold ------------------------------------------------------------------------------------

    def acknowledged(self, master: ClassicNode, result: AppendResult) -> None:
        self.counts["appends"] += 1
        index = result.last_index
        there = self.checker.chain_at(master.driver, index)
        holders = {
            name
            for name, copy in self._copies(master)
            if copy.held_index >= index and self.checker.chain_at(copy, index) == there
        }
        needed = 1 if master.auto else 1 + master.sync_slaves
        if not result.replayed:
            self.checker.acknowledged(master.driver, index, sorted(holders), needed)

    def _copies(self, master: ClassicNode) -> Iterator[tuple[str, LogDriver]]:
        """(node, copy) of those whose acks may count: the copies that are there, and those lost ones whose
        connections the master still has. It reads what they acknowledged before it reads of their end: after
        a stall, or over a line that is half-open, long after their disks were replaced."""
        recent_us = self.world.now_us - IN_FLIGHT_US
        for name, node in self.nodes.items():
            if node.lost_us is None or node.lost_us >= recent_us:
                yield name, node.driver
        core: Any = master.driver._core
        for key in core._slaves:
            yield master.copies[key]


def run_seed(seed: int, seconds: float) -> tuple[ClassicGroup, Violation | None]:
    """Rounds of faults, each ended by a time without any in which the group must recover."""
    group = ClassicGroup(seed)
    try:
        while group.world.now_us < seconds * 1_000_000:
            group.nemesis.active = True
            group.run(min(ROUND_S, seconds))
            group.settle()
    except Violation as violation:
        return group, violation
    except Exception as error:
        return group, unexpected(error)
    return group, None


def run_seeds(seeds: Iterable[int], seconds: float) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    violations: list[str] = []
    for seed in seeds:
        group, violation = run_seed(seed, seconds)
        longest = max(counts["longest recovery ms"], group.counts["longest recovery ms"])
        counts.update(group.counts)
        counts["longest recovery ms"] = longest
        counts["reads"] += group.checker.reads
        counts.update({f"idle, {reason}": count for reason, count in group.liveness.idle.items()})
        counts["simulated seconds"] += group.world.now_us // 1_000_000
        if violation is not None:
            violations.append(f"seed {seed} at {group.world.now_us / 1e6:.3f} s: {violation}")
    return counts, violations


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@seed_options(SECONDS)
@click.option("--full", is_flag=True, help=f"Run {FULL_SEEDS:,} seeds of {FULL_SECONDS:,.0f} seconds.")
def main(seed: int | None, seeds: int, first: int, seconds: float, full: bool) -> None:
    """Simulate classic groups under faults and under their operator.

    The last line is one JSON document. Exit code 1: a promise was broken, or --full met an event too rarely.
    """
    logging.disable(logging.CRITICAL)
    is_full = full and seed is None
    if seed is not None:
        first, seeds = seed, 1
    elif full:
        first, seeds, seconds = 0, FULL_SEEDS, FULL_SECONDS
    counts, violations = run_seeds(range(first, first + seeds), seconds)
    if is_full:
        violations += rare_events(counts, EVENTS)
    sys.stdout.write(json.dumps({**counts, "violations": violations}) + "\n")
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
