"""Controllers and a group of replicas in one thread: `run` lets them live, `settle` heals them and judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from app.errors import CommitlogError
from app.log.contract import AppendResult
from app.log.state import DAY_MS
from tests.simulation.controller.checks import HaChecker
from tests.simulation.controller.liveness import HaLiveness
from tests.simulation.controller.nemesis import STORM, Nemesis
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import LOG_NAME, HaPlan
from tests.simulation.controller.unclean_reads import UncleanReader
from tests.simulation.raft.clients import Client, Ledger, OneShotClient, ProducingClient, Reader
from tests.simulation.world.network import LinkFaults, Network
from tests.simulation.world.promises import Violation
from tests.simulation.world.world import STANDSTILLS_END_S, NothingDue, World
from tests.unit.ha.clients import Client as KeyedClient
from tests.unit.ha.clients import Ledger as SimpleLedger
from tests.unit.ha.streams import StreamNetwork

HANG_UP_US = (100, 50_000)  # after which a closed connection is heard of


class Heard:
    """Reports of clients and reads beside their answers (tests.simulation.raft.sometimes.Sometimes)."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def hit(self, point: str) -> None:
        self._counts[point] += 1

    def answered(self, _node: str, _answer: AppendResult | CommitlogError) -> None:
        """Every answer is counted elsewhere."""

    def read(self, _answer: int | CommitlogError) -> None:
        """Every answer is counted elsewhere."""


class UncleanLedger(SimpleLedger):
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
        self.brokers = self._doors = [self.nodes[name] for name in plan.broker_names]
        self.checker = HaChecker(self)
        self._apart: dict[str, None] = {}  # nodes whose connections to all others are cut
        for node in self.nodes.values():
            node.start()
        self.ledger: Any = self._unclean_clients() if plan.unclean else self._clients()
        self.nemesis = Nemesis(self)
        self.liveness = HaLiveness(self) if plan.faults and plan.operates else None

    def _unclean_clients(self) -> SimpleLedger:
        """Their records may be lost. One client only reads."""
        plan, checker = self.plan, self.checker
        ledger = UncleanLedger(loses=True)
        for number in range(plan.clients):
            KeyedClient(f"k{number}", self.world, self._doors, ledger, plan.timing.think_us).start()
        if plan.clients:
            UncleanReader(
                self.world,
                self._doors,
                checker.unclean_reads,
                lambda: checker.unclean_epoch,
                plan.timing.read_pause_us,
            ).start()
        return ledger

    def _clients(self) -> Ledger:
        """Clients of every kind: with keys, with producers and sequences, asking once; one only reads."""
        plan, heard = self.plan, Heard(self.checker.counts)
        records: Any = self.checker.records
        ledger = Ledger(records, heard, DAY_MS, reads_cursors=True)  # type: ignore[arg-type]
        kinds = (Client, ProducingClient, OneShotClient)
        for number in range(plan.clients):
            kind = kinds[number % len(kinds)]
            kind(f"c{number}", self.world, self._doors, ledger, plan.timing.think_us).start()
        if plan.clients:
            Reader(self.world, self._doors, ledger, plan.timing.read_pause_us).start()
        return ledger

    def connected_to(self, name: str) -> tuple[str, ...]:
        """The nodes whose connection to this one is open."""
        if name in self._apart:
            return (name,)
        return tuple(each for each, node in self.nodes.items() if node.alive and each not in self._apart)

    # --- faults -----------------------------------------------------------------------------------------

    def bring_up(self, node: HaSimNode) -> None:
        if not node.alive:
            node.start()

    def hang_up(self, name: str) -> None:
        """The others hear that the connection of a node has closed."""
        for other in self.nodes.values():
            if other.alive and other.name != name:
                self.world.after(
                    self.world.between(HANG_UP_US),
                    partial(other.server.disconnected, name),
                    other.life,
                )

    def cut(self, kind: str, name: str, lasting_us: int, *, keeps: bool = False) -> None:
        """kind: isolate, cut from controllers, deaf to controllers, or line (one of master and slaves).

        keeps: the last messages between nodes arrive some time after the cut has ended.
        """
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
        self.network.cut(messages, keeps=keeps)
        self.streams.cut(lines)

        def heal() -> None:
            self.network.heal_links(messages)
            self._apart.pop(name, None)
            self.streams.heal_lines(lines)

        self.world.after(lasting_us, heal)

    def calm(self) -> None:
        """End a storm."""
        self.network.faults = self.plan.links if self.nemesis.active else LinkFaults()

    @property
    def is_stormy(self) -> bool:
        return self.network.faults is STORM

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
            self._verify_clients()
        return True

    def _verify_clients(self) -> None:
        ledger = self.ledger
        if isinstance(ledger, Ledger):
            if ledger.news:
                ledger.verify()
        elif ledger.violation is not None:
            raise Violation(ledger.violation)
        else:
            self.checker.check_reads()

    def settle(self, seconds: float = 30) -> None:
        """End all faults: soon every replica holds and has confirmed what was acknowledged, all the same."""
        self.nemesis.active = False
        self.network.heal()
        self.streams.heal()
        self._apart.clear()
        for node in self.nodes.values():
            node.files.recover()
            self.bring_up(node)
        self.run_until(lambda: all(node.is_at_work for node in self.nodes.values()), STANDSTILLS_END_S)
        promised = dict(self.ledger.acknowledged)
        appends = self.checker.counts["appends"]
        self._await(lambda: self.checker.counts["appends"] >= appends + 5, seconds)
        log = self.checker.truth.log(LOG_NAME)
        assert log is not None
        least = max(
            node.driver.committed_index for node in self.brokers if node.core.epoch == log.master_epoch
        )
        self._await(lambda: all(node.driver.committed_index >= least for node in self.brokers), seconds)
        self.await_joined(seconds)
        target = min(node.driver.committed_index for node in self.brokers)
        if len({node.log.batch_at(target).header.chain for node in self.brokers}) > 1:
            raise Violation(f"the logs differ at {target}")
        self.checker.finish(promised)
        if isinstance(self.ledger, Ledger):
            self.ledger.verify_refusals()

    def await_joined(self, seconds: float) -> None:
        """Wait until every replica is in the SyncStateSet, except configured learners (C-08).

        No plan sets `ha_sync_from_last_file`, so no copy has to wait for a trim that reaches its beginning.
        """

        def missing() -> list[str]:
            log = self.checker.truth.log(LOG_NAME)
            assert log is not None
            electable = [node for node in self.brokers if not log.is_learner(node.name)]
            return [node.name for node in electable if node.copy_id not in log.sync_state_set]

        if not self.run_until(lambda: not missing(), seconds):
            raise Violation(f"not in the SyncStateSet: {missing()}, {self.checker.truth.log(LOG_NAME)}")

    def _await(self, done: Callable[[], bool], seconds: float) -> None:
        if not self.run_until(done, seconds):
            ends = {n.name: (n.core.epoch, n.driver.committed_index, n.log.end_index) for n in self.brokers}
            raise Violation(f"it does not go on: {ends}, {self.checker.truth.log(LOG_NAME)}")
