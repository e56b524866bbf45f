"""Refusals that come from the state of the service, status 5xx."""

from typing import Any

from app.errors.base import CommitlogError, Outcome


class Internal(CommitlogError):
    """The service failed; its log names the request id."""

    code, title, http_status, outcome = "internal", "The service failed", 500, Outcome.UNKNOWN


class NoLeader(CommitlogError):
    """The group has no leader right now: it elects one, or lacks a majority."""

    code, title, http_status, retryable = "no-leader", "The log has no leader right now", 503, True
    retry_after_s = 1


class Repairing(CommitlogError):
    """This node's copy of the log is damaged or being repaired; others may answer."""

    code, title, http_status, retryable = "repairing", "This node repairs its copy of the log", 503, True
    retry_after_s = 5


class LogUnsupported(CommitlogError):
    """A newer version created the log, with a setting that this node's version does not know.

    The node leaves the log and its files alone; a node of the newer version answers.
    """

    code, title, http_status = "log-unsupported", "This version does not support the log", 501

    def __init__(self, log: str, reason: str) -> None:
        super().__init__(f"log {log!r} is not supported by this node's version: {reason}")


class LeaderPendingFull(CommitlogError):
    """As many appends wait for their acknowledgement as the leader takes (D-29)."""

    code, title, http_status, retryable = (
        "leader-pending-full",
        "The leader has no room for another append",
        503,
        True,
    )
    retry_after_s = 1


class LeaderTransferring(CommitlogError):
    """The leader is handing over and takes no new append."""

    code, title, http_status, retryable = "leader-transferring", "The leader is handing over", 503, True
    retry_after_s = 1


class TermChanged(CommitlogError):
    """The term ended while the append waited (D-23): whether it will be committed is not known."""

    code, title, http_status, retryable = "term-changed", "The term ended while the append waited", 503, True
    outcome = Outcome.UNKNOWN
    retry_after_s = 1


class ReadIndexUnavailable(CommitlogError):
    """No majority confirmed the leader in time, so that a linearizable read cannot be given (R-08)."""

    code, title, http_status, retryable = (
        "read-index-unavailable",
        "No majority confirmed the leader in time",
        503,
        True,
    )
    retry_after_s = 1


class QuorumTimeout(CommitlogError):
    """The acknowledgements did not come in time (D-26); the append may still be committed."""

    code, title, http_status, retryable = (
        "quorum-timeout",
        "The append was not acknowledged in time",
        504,
        True,
    )
    outcome = Outcome.UNKNOWN

    def __init__(self, first_index: int | None, detail: str | None = None) -> None:
        """first_index: where the append stands; None when it was lost on the way to the leader."""
        super().__init__(detail)
        self.first_index = first_index

    def fields(self) -> dict[str, Any]:
        return {"first_index": self.first_index}


class NotEnoughInSync(CommitlogError):
    """The SyncStateSet is smaller than the log's `min_in_sync_replicas` (C-12): nothing was appended."""

    code, title, http_status, retryable = "not-enough-in-sync", "Too few replicas are in sync", 503, True
    retry_after_s = 1

    def __init__(self, in_sync: int, min_in_sync_replicas: int) -> None:
        super().__init__(f"{in_sync} replicas are in sync, the log asks for {min_in_sync_replicas}")
        self.in_sync = in_sync
        self.min_in_sync_replicas = min_in_sync_replicas

    def fields(self) -> dict[str, Any]:
        return {"in_sync": self.in_sync, "min_in_sync_replicas": self.min_in_sync_replicas}


class FlushSlaveTimeout(CommitlogError):
    """The master of a classic log has the append durably, but too few slaves took it in time (H-07)."""

    code, title, http_status, retryable = (
        "flush-slave-timeout",
        "Too few slaves took the append in time; the master keeps it",
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
        "This node has not got that far yet",
        504,
        True,
    )

    def __init__(self, next_index: int) -> None:
        super().__init__(f"this node's next visible index is {next_index}")
        self.next_index = next_index

    def fields(self) -> dict[str, Any]:
        return {"next_index": self.next_index}


class StorageFull(CommitlogError):
    """The leader's disk has no room; nothing was stored."""

    code, title, http_status = "storage-full", "The leader's disk is full", 507
