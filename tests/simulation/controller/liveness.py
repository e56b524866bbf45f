"""Liveness of a group in controller mode: a healthy group has a master within a bound.

A new active controller knows nothing of how long a master has been silent, or has not opened its epoch: the
bound counts from its election. While an elected copy that has failed since keeps its epoch from being open,
which a controller ends after two broker timeouts, it does not count. A longer one counts through all of that.
Healthy are a majority of the controllers and a copy that may be elected; REASONS excuses the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from typing import TYPE_CHECKING

from app.controller.complete_copies import counts_all, reports_needed
from app.controller.metadata import Log
from tests.simulation.controller.plan import LOG_NAME
from tests.simulation.raft.liveness import COMMIT_FACTOR, LOOK_US, Bound

if TYPE_CHECKING:
    from tests.simulation.controller.cluster import HaCluster
    from tests.simulation.controller.node import HaSimNode

ACTIVE_FACTOR = 3  # as often may the active controller change before a master has to be there

# Why a log may be without a master. Nothing else excuses it.
REASONS: dict[str, str] = {
    "storm": "every link loses a large share of its messages",
    "controllers-down": "no majority of the controllers runs: stopped or stalled",
    "controllers-disk": "no majority of the controllers that run has a disk that works",
    "controllers-not-whole": "no majority of the controllers may vote: their disks were replaced",
    "controllers-network": "no majority of the healthy controllers is connected both ways",
    "no-copy": "no copy that may win a clean election runs with a working disk",
    "lost-history": "the controllers do not know the last set, and a replica is down or lost its disk",
    "copy-network": "too few such copies are connected both ways to a healthy majority of the controllers",
    "recent": "the cause has ended, and the bound has not passed since",
}


class HaLiveness:
    """Looks at the group each LOOK_US. masterless: looks without a master, by reason."""

    def __init__(self, cluster: HaCluster) -> None:
        within_us = cluster.plan.timing.master_within_us
        self.masterless: Counter[str] = Counter()
        self.looks = 0
        self.active = Bound("no active controller", within_us)
        self.master = Bound("no master under one active controller", within_us)
        self.any_master = Bound("no master", ACTIVE_FACTOR * within_us)
        self.commit = Bound("no confirmed read at the master", COMMIT_FACTOR * within_us)
        self._cluster = cluster
        self._active: tuple[str, int] | None = None
        self._confirmed_offset = 0  # as far as any copy that runs knows
        self._tick()

    def _tick(self) -> None:
        self.judge()
        self._cluster.world.after(LOOK_US, self._tick)

    def judge(self) -> None:
        """Raises Violation when a healthy group has been without a master for too long."""
        cluster = self._cluster
        self.looks += 1
        log = cluster.checker.truth.log(LOG_NAME)
        reason, healthy = self._reason(log)
        masters = [
            node
            for node in cluster.brokers
            if node.acknowledges
            and not node.is_stalled
            and log is not None
            and node.core.epoch == log.master_epoch
        ]
        if not masters:
            self.masterless[reason or "recent"] += 1
        active = self._active_controller()
        if active != self._active:
            self._active = active
            self.master.restart()
        self.active.judge(active is not None, healthy, cluster.world.now_us)
        expected = frozenset() if self._elected_copy_failed(log, healthy) else healthy
        had_master = bool(masters) or self._has_confirmed_more()
        self.master.judge(had_master, expected, cluster.world.now_us)
        self.any_master.judge(had_master, healthy, cluster.world.now_us)
        readable = any(node.readable_index is not None for node in masters)
        self.commit.judge(readable, healthy, cluster.world.now_us)

    def _has_confirmed_more(self) -> bool:
        """Return True if a master has confirmed records since the last look. It may have ended meanwhile."""
        running = [node.core.confirm_offset for node in self._cluster.brokers if node.alive]
        before, self._confirmed_offset = self._confirmed_offset, max(self._confirmed_offset, *running, 0)
        return self._confirmed_offset > before

    def _elected_copy_failed(self, log: Log | None, healthy: frozenset[str]) -> bool:
        """Return True if the new epoch is not open, and its master is down, stalled or cut off, or its disk
        hangs."""
        if log is None or not log.is_opening:
            return False
        elected = [node for node in self._cluster.brokers if node.copy_id == log.master]
        return not any(node.is_at_work and node.name in healthy for node in elected)

    def _active_controller(self) -> tuple[str, int] | None:
        """Return the active controller and its term; None if none acts."""
        terms = [
            (node.controller.term, node.name)
            for node in self._cluster.nodes.values()
            if node.is_controller and node.is_active and not node.is_stalled
        ]
        return (max(terms)[1], max(terms)[0]) if terms else None

    def _reason(self, log: Log | None) -> tuple[str | None, frozenset[str]]:
        """Return why no master can be expected; None and the healthy nodes when one can."""
        cluster = self._cluster
        if cluster.is_stormy:
            return "storm", frozenset()
        controllers = [node for node in cluster.nodes.values() if node.is_controller]
        majority = len(controllers) // 2 + 1
        voters = [node for node in controllers if node.alive and not node.is_stalled]
        if len(voters) < majority:
            return "controllers-down", frozenset()
        voters = [node for node in voters if node.has_healthy_disk]
        if len(voters) < majority:
            return "controllers-disk", frozenset()
        voters = [node for node in voters if node.controller.sound and node.controller._core.electable]
        if len(voters) < majority:
            return "controllers-not-whole", frozenset()
        cliques = [each for each in _groups(voters, majority) if self._is_clear(each)]
        if not cliques:
            return "controllers-network", frozenset()
        copies = [node for node in cluster.brokers if log is not None and self._may_win(log, node)]
        if not copies:
            return "no-copy", frozenset()
        assert log is not None
        if log.lost_history and len(copies) < len(log.nodes):
            return "lost-history", frozenset()
        for clique in cliques:
            reached = [node for node in copies if self._is_clear((node, *clique))]
            if self._is_enough(log, reached):
                return None, frozenset(node.name for node in (*clique, *reached))
        return "copy-network", frozenset()

    @staticmethod
    def _is_enough(log: Log, reached: list[HaSimNode]) -> bool:
        """Return True if these copies together prove what was acknowledged, so that one of them may win."""
        if log.lost_history:
            return len(reached) == len(log.nodes)
        counted = log.former_set if log.is_opening else log.sync_state_set
        if counts_all(log):  # any member may win, but no copied folder beside a member that is none
            any_member = log.is_opening or not log.originals(counted)
            return any(any_member or node.copy_id not in log.copied for node in reached)
        return sum(node.copy_id in counted for node in reached) >= reports_needed(log)

    @staticmethod
    def _may_win(log: Log, node: HaSimNode) -> bool:
        if not node.is_at_work or node.doubtful or not log.is_current(node.copy_id):
            return False
        if log.never_open:
            return node.name in log.voters
        if not log.lost_history:
            return node.copy_id in log.holders
        earlier = [each for each in log.replicas if each.node == node.name and each.id < node.copy_id]
        lost_disk = node.log.end_index < 0 and any(each.registered for each in earlier)
        return node.name in log.nodes and not lost_disk  # a learner may have been promoted since

    def _is_clear(self, nodes: Iterable[HaSimNode]) -> bool:
        network = self._cluster.network
        names = dict.fromkeys(node.name for node in nodes)
        pairs = [(one, other) for one in names for other in names if one != other]
        if any(network.is_late(one, name) for one in self._cluster.nodes for name in names):
            return False
        return all(network.is_clear(*pair) for pair in pairs)


def _groups(voters: list[HaSimNode], majority: int) -> list[tuple[HaSimNode, ...]]:
    """Every group of at least a majority, the largest first."""
    return [each for size in range(len(voters), majority - 1, -1) for each in combinations(voters, size)]
