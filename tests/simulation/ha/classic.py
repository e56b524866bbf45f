"""Classic HA under crashes, power failures and cut lines: `commitlog sim --mode classic`.

After every step a slave's log is a beginning of the master's, and whatever was acknowledged synchronously is
durable at the master and at as many slaves as were asked for (H-04, H-07).
"""

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from app.errors import CommitlogError
from app.ha.messages import INCOMING, Opened
from app.node.driver import LogDriver
from app.node.open_ha_log import HaNode, open_classic_log
from app.replication import NO_INDEX, AppendRequest, AppendResult, Durability
from storage.errors import StorageError
from tests.simulation.checks import Violation
from tests.simulation.disk import DiskThread
from tests.simulation.ha.node import DISK, LOG_ID
from tests.simulation.ha.plan import DRIVER, HA, LOG_NAME, STORAGE, TICK_US
from tests.simulation.plans import SimulatedLimits
from tests.simulation.world import Life, World, WorldClock, WorldScheduler
from tests.support.committed import values_of
from tests.support.memory_files import MemoryFiles
from tests.unit.ha.clients import Client, Ledger
from tests.unit.ha.streams import Host, StreamNetwork

SECONDS = 30.0
PAUSE_US = (30_000, 600_000)  # between two faults
LASTING_US = (20_000, 900_000)


class ClassicNode:
    """The master or a slave over all its lives; its disk outlives them."""

    driver: LogDriver

    def __init__(self, group: "ClassicGroup", name: str) -> None:
        self.name = name
        self.life = Life(name, alive=False)
        self.files = MemoryFiles(Random(group.world.random.getrandbits(64)))
        self._group = group

    @property
    def alive(self) -> bool:
        return self.life.alive

    def start(self) -> None:
        group, world = self._group, self._group.world
        life = self.life = Life(self.name)
        host = self._host = group.network.attach(self.name, life, self._deliver)
        node = HaNode(
            files=self.files,
            data_folder="data",
            node_id=self.name,
            storage=STORAGE,
            limits=SimulatedLimits(),
            ha=HA,
            clock=WorldClock(world),
            disk=DiskThread(world, life, DISK, self._fail),
            transport=host,
            scheduler=WorldScheduler(world, life),
            random=Random(world.random.getrandbits(64)),
            fail=self._fail,
            version="simulated",
            driver=DRIVER,
        )
        try:
            self.driver = open_classic_log(
                node,
                log_name=LOG_NAME,
                log_id=LOG_ID,
                replicas=group.names,
                master_id=group.names[0],
                master_address=group.names[0],
                sync_slaves=group.sync_slaves,
                durability=Durability.FSYNC,
            )
        except StorageError as error:
            raise Violation(f"{self.name} cannot come back: {error!r}") from error
        self.driver.start()
        self._tick(life)

    def _tick(self, life: Life) -> None:
        self.driver.tick()
        self._group.world.after(TICK_US, partial(self._tick, life), life)

    def _deliver(self, source: str, message: Any) -> None:
        if isinstance(message, Opened) and source.startswith(INCOMING):
            message = Opened(self._place_of(self._host, source), message.history)
        self.driver.deliver(source, message)

    def _place_of(self, host: Host, key: str) -> int:
        """What the preface of a connection says: the slave's place among the replicas."""
        return self._group.names.index(host.ends[key].peer.host.name) + 1

    def _fail(self, what: str, error: BaseException) -> None:
        raise Violation(f"{self.name} stopped: {what}: {error!r}") from error

    def crash(self, *, power: bool) -> None:
        self.life.alive = False
        self._group.network.crashed(self.name)
        if power:
            self.files.crash()

    def append(self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]) -> None:
        def answered(answer: AppendResult | CommitlogError) -> None:
            if isinstance(answer, AppendResult):
                self._group.acknowledged(answer)
            done(answer)

        if self.alive:
            self.driver.append(request, answered)

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        if self.alive:
            self.driver.read_index(done)


class ClassicGroup:
    """n1 is the master, the others are slaves, for ever."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.names = tuple(f"n{number + 1}" for number in range(2 + seed % 2))
        self.sync_slaves = (1, 1, 0, 2)[seed % 4] if len(self.names) == 3 else 1
        self.network = StreamNetwork(self.world, classic=True)
        self.nodes = {name: ClassicNode(self, name) for name in self.names}
        self.master = self.nodes[self.names[0]]
        self.ledger = Ledger()
        self.counts: Counter[str] = Counter()
        self._faulty = True
        self._problem: str | None = None
        for node in self.nodes.values():
            node.start()
        for number in range(2):
            Client(f"k{number}", self.world, [self.master], self.ledger).start()
        self.world.after(500_000, self._strike)

    # --- faults ------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        if not self._faulty:
            return
        chance = self.world.random
        self.world.after(self.world.between(PAUSE_US), self._strike)
        name = chance.choice(self.names)
        lasting_us = self.world.between(LASTING_US)
        kind = chance.choices(["crash", "power failure of all", "line"], weights=[4, 1, 3])[0]
        self.counts[kind] += 1
        if kind == "crash":
            self._down(name, lasting_us, power=chance.random() < 0.5)
        elif kind == "line":
            line = (name, chance.choice(self.names))
            self.network.cuts[line] = None
            self.world.after(lasting_us, lambda: self.network.cuts.pop(line, None) and None)
        else:
            for each in self.names:
                self._down(each, lasting_us, power=True)

    def _down(self, name: str, lasting_us: int, *, power: bool) -> None:
        node = self.nodes[name]
        if node.alive:
            node.crash(power=power)
            self.world.after(lasting_us, lambda: None if node.alive else node.start())

    # --- running -----------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def run_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Live until done() or for so many simulated seconds; whether it was done. Raises Violation."""
        limit_us = self.world.now_us + int(seconds * 1_000_000)
        while not done():
            try:
                life = self.world.step(limit_us)
            except IndexError:
                return False
            if life is not None and life.name != self.master.name:
                self._check_prefix(self.nodes[life.name])
            problem = self._problem or self.ledger.violation
            if problem is not None:
                raise Violation(problem)
        return True

    def settle(self) -> None:
        """End all faults: soon every slave holds what was acknowledged."""
        self._faulty = False
        self.network.mend()
        for node in self.nodes.values():
            if not node.alive:
                node.start()
        target = self.ledger.highest_index

        def even() -> bool:
            return all(node.driver.committed_index >= target for node in self.nodes.values())

        if not self.run_until(even, 20):
            ends = {
                name: (n.driver.committed_index, n.driver.log.end_index) for name, n in self.nodes.items()
            }
            raise Violation(f"not even: {ends}, {target} was acknowledged")
        places: dict[int, str] = {place: key for key, place in self.ledger.acknowledged.items()}
        for place, key in places.items():
            for node in self.nodes.values():
                batch = node.driver.log.batch_at(place)
                if values_of(batch)[place - batch.base_index] != key:
                    raise Violation(f"{node.name}: {key} was acknowledged at {place} and is not there")

    # --- what must hold ------------------------------------------------------------------------------------

    def _check_prefix(self, node: ClassicNode) -> None:
        log, master = node.driver.log, self.master.driver.log
        if log.end_index == NO_INDEX or log.end_index > master.end_index:
            if log.end_index > master.end_index and self.master.alive:
                raise Violation(f"{node.name} is at {log.end_index}, past its master's {master.end_index}")
            return
        if log.last_chain != master.batch_at(log.end_index).header.chain:
            raise Violation(f"{node.name} has another log than its master at {log.end_index}")

    def acknowledged(self, result: AppendResult) -> None:
        self.counts["appends"] += 1
        index = result.last_index
        holders = [name for name, node in self.nodes.items() if node.driver.log.durable_index >= index]
        if self.master.name not in holders or len(holders) <= self.sync_slaves:
            self._problem = f"{index} was acknowledged, held by {holders} only"


def run_seed(seed: int, seconds: float) -> tuple[ClassicGroup, Violation | None]:
    group = ClassicGroup(seed)
    try:
        group.run(seconds)
        group.settle()
    except Violation as violation:
        return group, violation
    return group, None


def run_seeds(seeds: range, seconds: float) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    violations: list[str] = []
    for seed in seeds:
        group, violation = run_seed(seed, seconds)
        counts.update(group.counts)
        if violation is not None:
            violations.append(f"seed {seed} at {group.world.now_us / 1e6:.3f} s: {violation}")
    return counts, violations


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="commitlog sim --mode classic", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, to replay it")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds, from 0 on")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="simulated seconds of a seed")
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    one = options.seed is not None
    seeds = range(options.seed, options.seed + 1) if one else range(options.seeds)
    counts, violations = run_seeds(seeds, options.seconds)
    sys.stdout.write(json.dumps({**counts, "violations": violations}) + "\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
