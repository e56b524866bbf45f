"""Refusals of what operators and readers ask of a log: members, lead, trims, cursors."""

from typing import Any

from app.errors.base import CommitlogError


class ChangeInProgress(CommitlogError):
    """The previous change of the group, or the leader's first record, is not committed yet."""

    code, title, http_status = "change-in-progress", "The group is changing already", 409
    retry_after_s = 1


class NotCaughtUp(CommitlogError):
    """The learner does not hold nearly all of the log yet; as a voter it would hold up commits."""

    code, title, http_status = "not-caught-up", "The learner has not caught up", 409

    def __init__(self, member: str) -> None:
        super().__init__(f"{member} has not caught up with the log")


class WouldLoseQuorum(CommitlogError):
    """After the change too few voters would be in reach to commit anything."""

    code, title, http_status = "would-lose-quorum", "The group would lose its majority", 409


class TransferFailed(CommitlogError):
    """The chosen node did not take over the lead; the old leader goes on."""

    code, title, http_status = "transfer-failed", "The lead was not handed over", 409


class AlreadyLeader(CommitlogError):
    """The chosen node leads already."""

    code, title, http_status = "already-leader", "The node leads already", 409

    def __init__(self, node: str) -> None:
        super().__init__(f"{node} leads already")


class NotMaterialized(CommitlogError):
    """A cursor that fences the log stands before the index: its reader has not got that far."""

    code, title, http_status = "not-materialized", "A reader still needs these records", 409

    def __init__(self, cursor: str, index: int) -> None:
        super().__init__(f"cursor {cursor!r} stands at index {index}")
        self.cursor = cursor
        self.index = index

    def fields(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "index": self.index}


class CursorMoved(CommitlogError):
    """The cursor is not at the version that `If-Match` names: somebody else has moved it."""

    code, title, http_status = "cursor-moved", "The cursor was moved meanwhile", 412

    def __init__(self, cursor: str) -> None:
        super().__init__(f"cursor {cursor!r} is not at the version named")
