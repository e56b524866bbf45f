"""Refusals about logs as such: creating, changing and deleting them, and choosing their masters."""

from app.errors.base import CommitlogError


class LogExists(CommitlogError):
    """A log of that name exists with other settings."""

    code, title, http_status = "log-exists", "A log of that name exists", 409


class LogDeleting(CommitlogError):
    """The log is being deleted; when that is done its name is free again."""

    code, title, http_status = "log-deleting", "The log is being deleted", 409

    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r} is being deleted")


class ConfigChanged(CommitlogError):
    """The log's settings are not at the version that `If-Match` names: somebody else has changed them."""

    code, title, http_status = "config-changed", "The log's settings were changed meanwhile", 412


class NoEligibleReplica(CommitlogError):
    """Nobody may become master: no replica in sync is alive, or not the one that was named.

    `unclean` allows one that is not in sync; what only the others hold is lost then.
    """

    code, title, http_status = "no-eligible-replica", "No replica may become master", 409
