"""Liveness of a classic group: a healthy group acknowledges appends within a bound, also during other faults.

Healthy are the master and as many slaves as an append waits for: they run with the present configuration,
their disks work, and their lines to the master are clear. REASONS excuses the others.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from app.ha.classic.master import ClassicMasterCore
from tests.simulation.raft.liveness import LOOK_US, Bound

if TYPE_CHECKING:
    from tests.simulation.classic.group import ClassicGroup, ClassicNode

WITHIN_US: Final = 5_000_000

# Why a group may not acknowledge appends. Nothing else excuses it.
REASONS: Final = {
    "master-down": "the master is stopped or stalled, or its disk hangs",
    "roles": "a node still runs with an earlier configuration",
    "slaves-down": "too few slaves run with a disk that works",
    "lines": "too few of these slaves are connected to the master",
    "grace": "the master has not opened its epoch: the other replicas have ha_opening_wait_ms to connect",
    "unheard": "the master holds nothing, and a replica that may hold records is down or cut off",
    "operator": "the master refuses a copy, or to open its epoch: an operator decides",
    "recent": "the cause has ended, and the bound has not passed since",
}


class ClassicLiveness:
    """Looks at the group each LOOK_US. idle: looks at a group that acknowledges nothing, by reason."""

    def __init__(self, group: ClassicGroup) -> None:
        self.idle: Counter[str] = Counter()
        self.appends = Bound("no append can be acknowledged", WITHIN_US)
        self._group = group
        group.world.after(LOOK_US, self._tick)

    def _tick(self) -> None:
        reason, healthy = self._reason()
        holds = self._acknowledges()
        if not holds:
            self.idle[reason or "recent"] += 1
        self.appends.judge(holds, healthy, self._group.world.now_us)
        self._group.world.after(LOOK_US, self._tick)

    def _acknowledges(self) -> bool:
        master = self._group.master
        if not master.is_at_work:
            return False
        core = master.driver._core
        in_transfer = sum(peer.state == "TRANSFER" for peer in core.status().peers)
        return core.accepts_appends and core.refusal is None and in_transfer >= self._group.sync_slaves

    def _reason(self) -> tuple[str | None, frozenset[str]]:
        """Return why no append can be acknowledged; None and the healthy nodes when one can."""
        group, master = self._group, self._group.master
        if not master.is_at_work:
            return "master-down", frozenset()
        if any(node.alive and node.names != group.names for node in group.nodes.values()):
            return "roles", frozenset()
        slaves = [node for node in group.nodes.values() if node is not master and node.is_at_work]
        if len(slaves) < group.sync_slaves:
            return "slaves-down", frozenset()
        slaves = [node for node in slaves if not group.network.is_cut(node.name, master.name)]
        if len(slaves) < group.sync_slaves:
            return "lines", frozenset()
        if self._needs_operator(slaves):
            return "operator", frozenset()
        core = master.driver._core
        assert isinstance(core, ClassicMasterCore)
        opening = core._epoch.waiting
        if opening is not None and core._now_ms < opening._until_ms:
            return "grace", frozenset()
        if opening is not None and opening._needs_all and len(slaves) < len(group.nodes) - 1:
            return "unheard", frozenset()
        return None, frozenset(node.name for node in (master, *slaves))

    def _needs_operator(self, slaves: list[ClassicNode]) -> bool:
        """Return whether time alone does not help: a person changes the roles, or removes a copy."""
        core = self._group.master.driver._core
        assert isinstance(core, ClassicMasterCore)
        opening = core._epoch.waiting
        if opening is not None:
            connected = {slave.id for slave in core._slaves.values() if slave.sender is not None}
            all_heard = all(node.name in connected for node in slaves)
            if all_heard and len(opening._heard) < opening._required:
                return True  # one of them began empty, and cannot vouch for what its former disk held
            if opening._objections or not core._epoch.may_proceed:
                return True
        refused = sum(node.name in core._refused for node in slaves)
        return len(slaves) - refused < self._group.sync_slaves
