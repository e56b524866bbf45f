"""Groups whose nodes change while everything else fails: replicas are added, replaced, removed, demoted.

Four nodes, of which three keep the log at first. Each node follows the metadata as app/node/metadata/logs.py
does: it opens an empty copy when it is a new replica, and removes its copy when it was taken out. Commands
come late and twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import msgspec

from app.controller.commands import ChangeLog, ChangeReplica, Done, Refusal, ReplicaChange
from app.controller.metadata import Log, LogSpec
from app.errors import CommitlogError, NoLeader
from app.log.contract import AppendRequest, AppendResult
from app.node.metadata.folders import LogFolders
from storage.log.commitlog import Commitlog
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import GENERATION, LOG_NAME, HaPlan, plan_of
from tests.simulation.world.promises import Violation

CHANGE_US = (200_000, 2_000_000)  # between two changes of the log's nodes
ASK_TIMEOUT_MS = 2_000
ELSEWHERE_US = 1_000  # until a node without a copy answers
DRAIN_US = 500_000
OLD_COMMANDS = 20  # kept to be sent again
KEPT_AT_FIRST = 3


@dataclass(frozen=True, kw_only=True)
class ChangingPlan(HaPlan):
    brokers: int = 4

    @property
    def spec(self) -> LogSpec:
        return msgspec.structs.replace(super().spec, replicas=self.broker_names[:KEPT_AT_FIRST], learners=())


def changing_plan_of(seed: int) -> ChangingPlan:
    """The shapes of plan_of with four nodes, and none that may lose what was acknowledged."""
    base = plan_of(seed)
    return ChangingPlan(
        min_in_sync=base.min_in_sync,
        own_controllers=base.own_controllers,
        durability=base.durability,
        links=base.links,
        operates=False,
    )


class ChangingNode(HaSimNode):
    """`is_broker`: whether it keeps a copy now."""

    def start(self) -> None:
        self.is_broker = True  # a node without a copy sends heartbeats, too
        self._is_current = False  # since the start it has known, for once, all that was committed
        self._asks_index = self._dropping = False
        super().start()
        self._cluster.world.after(1, partial(self._follow, self.life), self.life)

    @property
    def _has_copy(self) -> bool:
        return self.files.exists(f"data/logs/{LOG_NAME}/vote")

    def _open_log(self) -> None:
        log = self.state.metadata.log(LOG_NAME)
        spec = self._cluster.plan.spec if log is None else log.spec
        self.is_broker = self.name in self._cluster.plan.broker_names and (
            self._has_copy or self.name in spec.replicas
        )
        if self.is_broker:
            LogFolders(self.files, "data").finish_removals()
            super()._open_log()

    def _follow(self, life: object) -> None:
        self._cluster.world.after(10_000, partial(self._follow, life), self.life)
        log = self.state.metadata.log(LOG_NAME)
        if log is None or self.name not in self._cluster.plan.broker_names:
            return
        if not self._is_current and not self._asks_index:
            self._asks_index = True
            self.controller.read_index(self._confirmed)
        if self.is_broker and self.name not in log.nodes and self._is_current:
            self._close_copy()
        elif not self.is_broker and not self._dropping and self.name in log.spec.replicas:
            self._cluster.checker.counts["copies added"] += 1
            self._cluster.checker.forget(self)
            self.is_broker = True
            super()._open_log()

    def _close_copy(self) -> None:
        """Its files are removed when the disk threads have done what they were given."""
        self._cluster.checker.counts["copies removed"] += 1
        self.lose_copy()
        self.is_broker, self._dropping = False, True
        self.driver.abandon()
        self.managers.detach(LOG_NAME)
        streams = self._cluster.streams
        for end in list(streams.hosts[self.name].ends.values()):
            streams.close(end)
        self._cluster.world.after(DRAIN_US, partial(self._remove_copy, self.log), self.life)

    def _remove_copy(self, log: Commitlog) -> None:
        log.close()
        LogFolders(self.files, "data").drop(LOG_NAME, GENERATION)
        self._dropping = False

    def _confirmed(self, result: int | CommitlogError) -> None:
        self._asks_index = False
        self._is_current = self._is_current or isinstance(result, int)

    def append(self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]) -> None:
        if self.is_broker:
            super().append(request, done)
        else:
            self._cluster.world.after(ELSEWHERE_US, lambda: done(NoLeader()), self.life)

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        if self.is_broker:
            super().read_index(done)


class ChangingCluster(HaCluster):
    """Clients reach all nodes; `brokers`: those that keep a copy."""

    node_type = ChangingNode

    def __init__(self, seed: int, plan: ChangingPlan, *, tell: bool = False) -> None:
        super().__init__(seed, plan, tell=tell)
        self._old: list[ChangeLog | ChangeReplica] = []
        self._changes = 0
        self._changing = True
        self._former: Log | None = None
        self.world.after(1_500_000, self._change)

    @property
    def brokers(self) -> list[HaSimNode]:  # type: ignore[override]
        return [node for node in self._all if node.is_broker and node.name in self._known]

    @brokers.setter
    def brokers(self, nodes: list[HaSimNode]) -> None:
        self._all = nodes

    @property
    def _known(self) -> tuple[str, ...]:
        """The nodes that keep the log by what any controller has committed."""
        checker = getattr(self, "checker", None)
        log = None if checker is None else checker.truth.log(LOG_NAME)
        return self.plan.spec.replicas if log is None else log.nodes

    # --- the operator -------------------------------------------------------------------------------------

    def _change(self) -> None:
        if not self._changing:
            return
        self.world.after(self.world.between(CHANGE_US), self._change)
        chance = self.world.random
        asked = self.nodes[chance.choice(self.plan.names)]
        log = self.checker.truth.log(LOG_NAME)
        if log is None or not asked.alive:
            return
        if self._old and chance.random() < 0.15:
            command = chance.choice(self._old)
        else:
            command = self._one(log) if chance.random() < 0.4 else self._all_nodes(log)
            self._old = [*self._old, command][-OLD_COMMANDS:]
        self.world.note(f"change {command}")
        asked.client.ask(command, self._changed, ASK_TIMEOUT_MS)

    def _changed(self, answer: Done | Refusal | None) -> None:
        kind = "unanswered" if answer is None else "carried out" if isinstance(answer, Done) else "refused"
        self.checker.counts[f"changes {kind}"] += 1

    def _next_id(self) -> str:
        self._changes += 1
        return f"change {self._changes}"

    def _all_nodes(self, log: Log) -> ChangeLog:
        """Other nodes: mostly one is replaced."""
        chance, nodes = self.world.random, list(self.plan.broker_names)
        current = list(log.spec.replicas)
        others = [node for node in nodes if node not in current]
        if others and chance.random() < 0.6:
            current[chance.randrange(len(current))] = chance.choice(others)
        else:
            current = chance.sample(nodes, chance.randint(max(2, log.spec.min_in_sync_replicas), len(nodes)))
        changes = {"replicas": tuple(current), "learners": ()}
        if len(current) > 2 and chance.random() < 0.3:
            changes["learners"] = (chance.choice(current),)
        return ChangeLog(LOG_NAME, changes, self._next_id(), None, log.generation)

    def _one(self, log: Log) -> ChangeReplica:
        chance = self.world.random
        node = chance.choice(self.plan.broker_names)
        kind = chance.choice(list(ReplicaChange))
        return ChangeReplica(LOG_NAME, node, kind, self._next_id(), log.generation)

    # --- running ------------------------------------------------------------------------------------------

    def run_until(self, done: Callable[[], bool], seconds: float) -> bool:
        def looked() -> bool:
            self._check_set()
            return done()

        return super().run_until(looked, seconds)

    def _check_set(self) -> None:
        """A set that had a member never is empty: nothing is forced."""
        log = self.checker.truth.log(LOG_NAME)
        before, self._former = self._former, log
        if before is None or log is None or before is log:
            return
        if before.sync_state_set and not log.sync_state_set:
            raise Violation(f"the set is empty: {before} -> {log}")
        self.checker.counts["changes complete"] += bool(before.leaving) and not log.leaving
        self.checker.counts["nodes changed"] += before.nodes != log.nodes

    def settle(self, seconds: float = 30) -> None:
        """End all faults and changes: soon the nodes that are wanted keep the log, and all are in sync."""
        self._changing = self.nemesis.active = False
        self.network.heal()
        self.streams.heal()
        self._apart.clear()
        for node in self.nodes.values():
            if not node.alive:
                node.start()
        self._await(self._is_complete, seconds)
        super().settle(seconds)

    def _is_complete(self) -> bool:
        log = self.checker.truth.log(LOG_NAME)
        if log is None or log.leaving or sorted(log.set_nodes) != sorted(log.voters):
            return False
        return {node.name for node in self.nodes.values() if node.is_broker} == set(log.nodes)


def run_seed(seed: int, seconds: float, *, tell: bool = False) -> tuple[ChangingCluster, Violation | None]:
    cluster = ChangingCluster(seed, changing_plan_of(seed), tell=tell)
    try:
        cluster.run(seconds)
        cluster.settle()
    except Violation as violation:
        return cluster, violation
    return cluster, None


def run_seeds(seeds: Iterable[int], seconds: float) -> tuple[Counter[str], list[str]]:
    """Counts of all groups, and the violations."""
    counts: Counter[str] = Counter()
    violations: list[str] = []
    for seed in seeds:
        cluster, violation = run_seed(seed, seconds)
        counts.update(cluster.checker.counts)
        if violation is not None:
            violations.append(f"seed {seed} at {cluster.world.now_us / 1e6:.3f} s: {violation}")
    return counts, violations
