"""Masters whose disks are full, while other members of their SyncStateSets have space (C-05). PURE."""

from app.controller import replica_changes
from app.controller.complete_copies import counts_all
from app.controller.liveness import Liveness
from app.controller.metadata import Log


class FullDisks:
    """Since when masters have had no disk space, and when each node was last known to have none.

    A replica notices a full disk by a refused write alone, so the report of a slave that was not sent
    anything may be wrong. Each node that turns out to be full is remembered: where all disks are full, the
    role does not move on and on.
    """

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._since_ms: dict[str, tuple[int, int]] = {}  # log -> master epoch, since when it has no space
        self._full_ms: dict[str, int] = {}  # node -> when a copy there last had none

    def forget(self, log: str) -> None:
        """Forget a deleted log."""
        self._since_ms.pop(log, None)

    def left_out(self, log: Log, now_ms: int, *, is_begun: bool) -> tuple[str, ...]:
        """Return the nodes of the log without disk space, if the set can do without them and the master has
        been one of them for long enough; else none.

        is_begun: the master is asked to give up its epoch already, so it has no appends that could show that
        its disk is full. With `in_sync_replicas` the others are not known to hold everything, so the master
        stays.
        """
        config = self._liveness.config
        for replica in log.copies():
            report = self._liveness.report(replica.node, log.name, log.generation, replica.id)
            if report is not None and not report.has_room:
                self._full_ms[replica.node] = now_ms
        epoch, since_ms = self._since_ms.get(log.name, (0, 0))
        if log.master_node is None or not (is_begun or self._full_ms.get(log.master_node) == now_ms):
            self.forget(log.name)
            return ()
        if epoch != log.master_epoch:
            self._since_ms[log.name] = (log.master_epoch, now_ms)
            return ()
        if now_ms - since_ms < config.full_disk_timeout_ms or not log.elects or not counts_all(log):
            return ()
        if log.is_opening or log.lost_history:
            return ()
        remembered_ms = now_ms - config.full_disk_remembered_ms
        full = tuple(node for node in log.nodes if self._full_ms.get(node, remembered_ms) > remembered_ms)
        is_possible = replica_changes.why_not_without(log, full, self._liveness, now_ms) is None
        return full if is_possible else ()
