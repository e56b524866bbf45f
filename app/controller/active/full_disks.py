"""Masters whose disks are full, while other members of their SyncStateSets have space (C-05). PURE."""

from typing import NamedTuple

from app.controller import replica_changes
from app.controller.complete_copies import counts_all
from app.controller.liveness import Liveness
from app.controller.metadata import Log


class _FullMaster(NamedTuple):
    """The master of that epoch has no disk space since then; end: of its log at its last such report, in
    bytes."""

    epoch: int
    end: int
    since_ms: int


class FullDisks:
    """Masters that have no disk space, and when each node was last known to have none.

    A replica notices a full disk by a refused write alone, and reports it for a short time. So a master whose
    writers pause for longer has no space until its log grows, and the report of a slave that was not sent
    anything may be wrong. Each node that turns out to be full is remembered: where all disks are full, the
    role does not move on and on.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._masters: dict[str, _FullMaster] = {}  # by log
        self._full_ms: dict[str, int] = {}  # node -> when a copy there last had none

    def forget(self, log: str) -> None:
        """Forget a deleted log."""
        self._masters.pop(log, None)

    def left_out(self, log: Log, now_ms: int, *, is_begun: bool) -> tuple[str, ...]:
        """Return the nodes of the log without disk space, if the set can do without them and the master has
        been one of them for long enough; else none.

        is_begun: the master is asked to give up its epoch already, so it has no appends that could show that
        its disk is full. With `in_sync_replicas` the others are not known to hold everything, so the master
        stays.
        """
        config = self._liveness.config
        forgotten_ms = now_ms - config.full_disk_remembered_ms
        is_full = self._take_reports(log, forgotten_ms, now_ms)
        master = self._masters.get(log.name)
        if master is None or not (is_full or is_begun):
            return ()
        if now_ms - master.since_ms < config.full_disk_timeout_ms or not counts_all(log):
            return ()
        if log.is_opening or log.lost_history:
            return ()
        full = tuple(node for node in log.nodes if self._full_ms.get(node, forgotten_ms) > forgotten_ms)
        is_possible = replica_changes.why_not_without(log, full, self._liveness, now_ms) is None
        return full if is_possible else ()

    def _take_reports(self, log: Log, forgotten_ms: int, now_ms: int) -> bool:
        """Note what the copies report; return whether the master reports that it has no space."""
        is_full, end = False, 0
        for replica in log.copies():
            report = self._liveness.report(replica.node, log.name, log.generation, replica.id)
            if report is not None and not report.has_room:
                self._full_ms[replica.node] = now_ms
            if report is not None and replica.id == log.master:
                is_full, end = not report.has_room, report.max_offset
        known = self._masters.get(log.name)
        if is_full:
            since_ms = now_ms if known is None or known.epoch != log.master_epoch else known.since_ms
            self._masters[log.name] = _FullMaster(log.master_epoch, end, since_ms)
        elif known is not None:
            is_outdated = self._full_ms.get(log.master_node or "", forgotten_ms) <= forgotten_ms
            if end > known.end or is_outdated:
                self.forget(log.name)
        return is_full
