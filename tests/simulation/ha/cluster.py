"""Controllers and a group of replicas in one thread: `run` lets them live, `settle` heals them and judges."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

from app.controller.commands import ElectMaster
from app.log.contract import AppendResult
from tests.simulation.checks import Violation
from tests.simulation.ha.checks import HaChecker
from tests.simulation.ha.node import HaSimNode
from tests.simulation.ha.plan import LOG_NAME, HaPlan
from tests.simulation.network import LinkFaults, Network
from tests.simulation.world import NothingDue, World
from tests.unit.ha.clients import Client, Ledger
from tests.unit.ha.streams import StreamNetwork

PAUSE_US = (30_000, 500_000)  # between two faults
LASTING_US = (20_000, 1_200_000)
HANG_UP_US = (100, 50_000)  # after which a closed connection is heard of
ELECT_TIMEOUT_MS = 2_000
WEIGHTS = {
    "operator": 10,  # an election, of anybody or of one
    "crash": 4,
    "crash the active controller": 2,
    "crash all": 1,
    "leave": 2,
    "cut from controllers": 3,  # lost answers and requests alike; the line to master and slaves is left
    "deaf to controllers": 2,  # requests arrive, answers are lost
    "isolate": 3,
    "line": 2,
    "storm": 1,
    "hang up": 2,  # a connection closes and comes back: a node lives that is held for dead
}
LAG_WEIGHT = 24  # of `_lag`, where a part of the set acknowledges
LAG_US = (40_000, 350_000)  # shorter than the time in which a slave leaves the set
STORM = LinkFaults(max_delay_us=40_000, loss=0.3, duplication=0.2, holding=0.2)


class UncleanLedger(Ledger):
    """An unclean election may forget a record that was acknowledged; its repeat is another one then."""

    def note(self, key: str, result: AppendResult) -> None:
        self.acknowledged[key] = result.first_index
        self.highest_index = max(self.highest_index, result.last_index)


class HaCluster:
    """Raises Violation where a promise breaks; the seed and the plan replay it."""

    node_type = HaSimNode

    def __init__(self, seed: int, plan: HaPlan, *, tell: bool = False) -> None:
        self.plan = plan
        self.world = World(seed, tell=tell)
        self.network = Network(self.world, plan.links, lambda _source, _target, _message: None)
        self.streams = StreamNetwork(self.world)
        self.nodes = {name: self.node_type(self, name) for name in plan.names}
        self.brokers = doors = [self.nodes[name] for name in plan.broker_names]
        self.checker = HaChecker(self)
        self.ledger: Ledger = UncleanLedger(loses=True) if plan.unclean else Ledger()
        self.faults = 0
        self._faulty = plan.faults
        self._apart: dict[str, None] = {}  # nodes whose connections to all others are cut
        for node in self.nodes.values():
            node.start()
        for number in range(plan.clients):
            Client(f"k{number}", self.world, doors, self.ledger).start()
        if plan.faults:
            self.world.after(1_000_000, self._strike)

    def connected_to(self, name: str) -> tuple[str, ...]:
        """The nodes whose connection to this one is open."""
        if name in self._apart:
            return (name,)
        return tuple(each for each, node in self.nodes.items() if node.alive and each not in self._apart)

    # --- faults -----------------------------------------------------------------------------------------

    def _strike(self) -> None:
        if not self._faulty:
            return
        world, chance = self.world, self.world.random
        world.after(world.between(PAUSE_US), self._strike)
        name = chance.choice(self.plan.names)
        lasting_us = world.between(LASTING_US)
        weights = WEIGHTS if self.plan.in_sync is None else {**WEIGHTS, "lag": LAG_WEIGHT}
        kind = chance.choices(list(weights), weights=list(weights.values()))[0]
        world.note(f"{kind} {name}")
        self.faults += 1
        match kind:
            case "operator":
                self._elect()
            case "crash":
                self._down(name, lasting_us)
            case "crash the active controller":
                for each in [node.name for node in self.nodes.values() if node.is_active]:
                    self._down(each, lasting_us)
            case "crash all":
                for each in self.plan.names:
                    self._down(each, lasting_us)
            case "leave":
                self._leave(name, lasting_us)
            case "storm":
                self.network.faults = STORM
                world.after(lasting_us, self._calm)
            case "hang up":
                self.hang_up(name)
            case "lag":
                self._lag(lasting_us)
            case _:
                self.cut(kind, name, lasting_us)

    def _elect(self) -> None:
        """By an operator, at any node; sometimes of one replica, and where it is allowed, unclean."""
        chance = self.world.random
        asked = self.nodes[chance.choice(self.plan.names)]
        log = asked.state.metadata.log(LOG_NAME) if asked.alive else None
        if log is None:
            return
        unclean = self.plan.unclean and chance.random() < 0.3
        others = [node for node in log.set_nodes if node != log.master_node]
        among = others if others and chance.random() < 0.7 else self.plan.broker_names
        candidate = chance.choice(among) if chance.random() < 0.95 else None
        command = ElectMaster(LOG_NAME, candidate, unclean, log.master_epoch)
        asked.client.ask(command, lambda _answer: None, ELECT_TIMEOUT_MS)

    def _down(self, name: str, lasting_us: int) -> None:
        node = self.nodes[name]
        if not node.alive:
            return
        node.crash(power=self.world.random.random() < 0.5)
        if self.world.random.random() < 0.7:
            self.hang_up(name)
        self.world.after(lasting_us, lambda: None if node.alive else node.start())

    def _leave(self, name: str, lasting_us: int) -> None:
        node = self.nodes[name]
        if node.alive and node.is_broker:
            node.leave()
            pause_us = self.world.between((1_000, 300_000))
            self.world.after(pause_us, lambda: self._down(name, lasting_us), node.life)

    def _lag(self, lasting_us: int) -> None:
        """Some members fall behind while the others acknowledge; then the master dies, sometimes with a
        holder of the last records."""
        log = self.checker.truth.log(LOG_NAME)
        if log is None or log.master_node is None or len(log.set_nodes) < 3:
            return
        chance, master = self.world.random, log.master_node
        others = [node for node in log.set_nodes if node != master]
        chance.shuffle(others)
        late = others[: chance.randint(1, len(others) - 1)]
        dying = [master, *(others[-1:] if chance.random() < 0.5 else ())]
        for node in late:
            self.streams.cuts[(master, node)] = None

        def fall() -> None:
            for node in late:
                self.streams.cuts.pop((master, node), None)
            for node in dying:
                self._down(node, lasting_us)

        self.world.after(self.world.between(LAG_US), fall)

    def hang_up(self, name: str) -> None:
        """The others hear that the connection of a node has closed."""
        for other in self.nodes.values():
            if other.alive and other.name != name:
                self.world.after(
                    self.world.between(HANG_UP_US),
                    partial(other.server.disconnected, name),
                    other.life,
                )

    def cut(self, kind: str, name: str, lasting_us: int) -> None:
        """kind: isolate, cut from controllers, deaf to controllers, or line (one of master and slaves)."""
        others = [each for each in self.plan.names if each != name]
        messages: list[tuple[str, str]] = []
        lines: list[tuple[str, str]] = []
        if kind == "isolate":
            messages = [*product([name], others), *product(others, [name])]
            lines = [(name, other) for other in others]
        elif kind == "cut from controllers":
            messages = [*product([name], others), *product(others, [name])]
        elif kind == "deaf to controllers":
            messages = [*product(others, [name])]
        else:
            lines = [(name, self.world.random.choice(others))]
        if len(messages) > len(others):
            self._apart[name] = None
            if self.world.random.random() < 0.3:
                self.hang_up(name)
        self.network.cut(messages)
        for line in lines:
            self.streams.cuts[line] = None

        def mend() -> None:
            self.network.mend(messages)
            self._apart.pop(name, None)
            for line in lines:
                self.streams.cuts.pop(line, None)

        self.world.after(lasting_us, mend)

    def _calm(self) -> None:
        self.network.faults = self.plan.links if self._faulty else LinkFaults()

    # --- running ----------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def run_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Live until done() or for so many simulated seconds; whether it was done. Raises Violation."""
        limit_us = self.world.now_us + int(seconds * 1_000_000)
        while not done():
            try:
                life = self.world.step(limit_us)
            except NothingDue:
                return False
            if life is not None:
                self.checker.check(self.nodes[life.name])
            if self.ledger.violation is not None:
                raise Violation(self.ledger.violation)
        return True

    def settle(self, seconds: float = 30) -> None:
        """End all faults: soon every replica holds and has confirmed what was acknowledged, all the same."""
        self._faulty = False
        self.network.heal()
        self.streams.mend()
        self._apart.clear()
        for node in self.nodes.values():
            if not node.alive:
                node.start()
        promised = dict(self.ledger.acknowledged)
        appends = self.checker.counts["appends"]
        self._await(lambda: self.checker.counts["appends"] >= appends + 5, seconds)
        log = self.checker.truth.log(LOG_NAME)
        assert log is not None
        least = max(
            node.driver.committed_index for node in self.brokers if node.core.epoch == log.master_epoch
        )
        self._await(lambda: all(node.driver.committed_index >= least for node in self.brokers), seconds)
        target = min(node.driver.committed_index for node in self.brokers)
        if len({node.log.batch_at(target).header.chain for node in self.brokers}) > 1:
            raise Violation(f"the logs differ at {target}")
        self.checker.finish(promised)

    def _await(self, done: Callable[[], bool], seconds: float) -> None:
        if not self.run_until(done, seconds):
            ends = {n.name: (n.core.epoch, n.driver.committed_index, n.log.end_index) for n in self.brokers}
            raise Violation(f"it does not go on: {ends}, {self.checker.truth.log(LOG_NAME)}")
