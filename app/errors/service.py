"""Refusals caused by the state of the service, status 5xx."""

from typing import Any

from app.errors.base import CommitlogError, Outcome


class Internal(CommitlogError):
    """An internal error. The node's log has the details under the `request_id`."""

    code, title, http_status, outcome = "internal", "Internal error", 500, Outcome.UNKNOWN


class NoLeader(CommitlogError):
    """The log has no leader: an election is running, or a majority of the voters is unreachable. Repeat the
    call; if this lasts, `commitlog status` shows which nodes do not answer."""

    code, title, http_status, retryable = "no-leader", "The log has no leader at present", 503, True
    retry_after_s = 1


class Repairing(CommitlogError):
    """This node's copy of the log is damaged or under repair. Other nodes may be able to answer."""

    code, title, http_status, retryable = "repairing", "This node is repairing its copy of the log", 503, True
    retry_after_s = 5


class LogUnsupported(CommitlogError):
    """A newer version created the log with a setting that this node's version does not support.

    The node does not touch the log and its files. Nodes of the newer version serve the log.
    """

    code, title, http_status = "log-unsupported", "This version does not support the log", 501

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(f"log {log!r} is not supported by this node's version: {reason}")


class LeaderPendingFull(CommitlogError):
    """The number of unacknowledged appends at the leader has reached its limit (D-29)."""

    code, title, http_status, retryable = (
        "leader-pending-full",
        "Too many unacknowledged appends at the leader",
        503,
        True,
    )
    retry_after_s = 1


class LeaderTransferring(CommitlogError):
    """The leader is transferring its leadership and accepts no new appends."""

    code, title, http_status, retryable = "leader-transferring", "Leadership transfer in progress", 503, True
    retry_after_s = 1


class TermChanged(CommitlogError):
    """The term ended while the append waited for its commit (D-23). Its outcome is unknown. Repeat it with
    the same key, or with its producer and sequence: it is not stored twice."""

    code, title, http_status, retryable = "term-changed", "The term ended while the append waited", 503, True
    outcome = Outcome.UNKNOWN
    retry_after_s = 1


class ReadIndexUnavailable(CommitlogError):
    """No majority confirmed the leader in time, so a linearizable read is not possible (R-08)."""

    code, title, http_status, retryable = (
        "read-index-unavailable",
        "No majority confirmed the leader in time",
        503,
        True,
    )
    retry_after_s = 1


class QuorumTimeout(CommitlogError):
    """The acknowledgements did not arrive in time. The command may still be committed. Repeat an append with
    the same key, or with its producer and sequence: it is not stored twice."""

    code, title, http_status, retryable = (
        "quorum-timeout",
        "Too few nodes acknowledged it in time",
        504,
        True,
    )
    outcome = Outcome.UNKNOWN

    def __init__(self, first_index: int | None, detail: str | None = None) -> None:
        """first_index: index of the append's first record; None when unknown."""
        super().__init__(detail)
        self.first_index = first_index

    def fields(self) -> dict[str, Any]:
        return {"first_index": self.first_index}


class NotEnoughInSync(CommitlogError):
    """The SyncStateSet is smaller than the log's `min_in_sync_replicas` (C-12): nothing was appended."""

    code, title, http_status, retryable = "not-enough-in-sync", "Too few replicas are in sync", 503, True
    retry_after_s = 1

    def __init__(self, in_sync: int, min_in_sync_replicas: int) -> None:
        super().__init__(f"the log needs {min_in_sync_replicas} replicas in sync, it has {in_sync}")
        self.in_sync = in_sync
        self.min_in_sync_replicas = min_in_sync_replicas

    def fields(self) -> dict[str, Any]:
        return {"in_sync": self.in_sync, "min_in_sync_replicas": self.min_in_sync_replicas}


class FlushSlaveTimeout(CommitlogError):
    """The append is durable at the master of a classic log; too few slaves confirmed it in time (H-07)."""

    code, title, http_status, retryable = (
        "flush-slave-timeout",
        "Too few slaves confirmed the append in time; the master keeps it",
        504,
        True,
    )
    outcome = Outcome.APPLIED

    def __init__(self, first_index: int) -> None:
        super().__init__()
        self.first_index = first_index

    def fields(self) -> dict[str, Any]:
        return {"first_index": self.first_index}


class NotYetReplicated(CommitlogError):
    """This node did not reach the index of `Commitlog-Min-Index` in time."""

    code, title, http_status, retryable = (
        "not-yet-replicated",
        "This node has not reached the index yet",
        504,
        True,
    )

    def __init__(self, next_index: int, min_index: int, wait_ms: int) -> None:
        super().__init__(
            f"the call requires index {min_index}; the next visible index of this node is {next_index}, "
            f"after {wait_ms} ms"
        )
        self.next_index = next_index

    def fields(self) -> dict[str, Any]:
        return {"next_index": self.next_index}


class StorageFull(CommitlogError):
    """The disk of the leader, or the disks of so many replicas that no majority has space, are full; nothing
    was stored. Make space on the nodes that `detail` names: trim logs, shorten their retention, or enlarge
    the disk. Appends continue without a restart."""

    code, title, http_status = "storage-full", "The leader's disk is full", 507

    def __init__(self, *nodes: str) -> None:
        """nodes: those without space, as far as the leader knows."""
        disks = "the disk of node" if len(nodes) == 1 else "the disks of nodes"
        super().__init__(
            f"{disks} {', '.join(nodes)}: no space for more records. Nothing was stored. Make space by "
            "`commitlog trim`, a shorter retention or a larger disk; appends continue without a restart"
        )
