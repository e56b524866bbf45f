"""Refusals of log management: creating, changing and deleting logs, and electing their masters."""

from app.errors.base import CommitlogError


class LogExists(CommitlogError):
    """A log with this name exists with other settings. Choose another name, or change the log with
    `PATCH`."""

    code, title, http_status = "log-exists", "A log with this name exists", 409


class LogDeleting(CommitlogError):
    """The log is being deleted. Its name can be used again once the deletion is complete."""

    code, title, http_status = "log-deleting", "The log is being deleted", 409

    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r} is being deleted")


class ConfigChanged(CommitlogError):
    """The version of the log's settings differs from `If-Match`: another client has changed them. Read the
    settings again, and repeat the change with their ETag."""

    code, title, http_status = "config-changed", "The log's settings have changed", 412


class NoEligibleReplica(CommitlogError):
    """No replica can be elected master: no in-sync replica is alive, or the requested one is not eligible.

    `unclean` permits a replica that is not in sync. Records that only other replicas hold are lost then.
    """

    code, title, http_status = "no-eligible-replica", "No replica is eligible as master", 409


class NodeAlive(CommitlogError):
    """The node is alive: only the metadata of a dead node are cleaned. `force` overrides it."""

    code, title, http_status = "node-alive", "The node is alive", 409


class LastInSync(CommitlogError):
    """Without the replica too few in-sync replicas would be left: none, or fewer than `min_in_sync_replicas`.

    `force` overrides it. Records that only this replica holds are lost then.
    """

    code, title, http_status = "last-in-sync", "Too few in-sync replicas would be left", 409
