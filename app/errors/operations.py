"""Refusals of operations on a log: membership changes, leadership transfers, trims, cursors."""

from typing import Any

from app.errors.base import CommitlogError


class ChangeInProgress(CommitlogError):
    """The previous membership change, or the leader's first record, is not committed yet. Repeat the call
    later."""

    code, title, http_status = "change-in-progress", "A membership change is in progress", 409
    retry_after_s = 1


class NotCaughtUp(CommitlogError):
    """The learner is too far behind the end of the log; as a voter it would delay commits. Repeat the call
    when it has caught up."""

    code, title, http_status = "not-caught-up", "The learner has not caught up", 409

    def __init__(self, member: str, *, answers: bool) -> None:
        silent = "" if answers else ", and does not answer the leader"
        super().__init__(f"{member} has not caught up with the log{silent}")


class WouldLoseQuorum(CommitlogError):
    """After the change the reachable voters would be fewer than a majority: nothing could be committed. Start
    the voters that do not answer first."""

    code, title, http_status = "would-lose-quorum", "The group would lose its majority", 409


class TransferFailed(CommitlogError):
    """The target node did not become leader in time. The current leader continues."""

    code, title, http_status = "transfer-failed", "The leadership was not transferred", 409


class AlreadyLeader(CommitlogError):
    """The target node is already the leader."""

    code, title, http_status = "already-leader", "The node is already the leader", 409

    def __init__(self, node: str) -> None:
        super().__init__(f"{node} is already the leader")


class NotMaterialized(CommitlogError):
    """A fencing cursor is before the index: its reader has not read these records yet. Wait until it has, or
    set `force`: then it misses them."""

    code, title, http_status = "not-materialized", "A reader still needs these records", 409

    def __init__(self, cursor: str, index: int, until_index: int) -> None:
        super().__init__(
            f"until_index must be at most {index}, where the fencing cursor {cursor!r} is, "
            f"got {until_index}; wait until the cursor has moved, or set force"
        )
        self.cursor = cursor
        self.index = index

    def fields(self) -> dict[str, Any]:
        return {"cursor": self.cursor, "index": self.index}


class CursorMoved(CommitlogError):
    """The version of the cursor differs from `If-Match`: another client has moved it. Read the cursor again;
    of two readers with one name, stop one."""

    code, title, http_status = "cursor-moved", "The cursor has moved", 412

    def __init__(self, cursor: str, version: int | None, *, wanted_none: bool) -> None:
        """version: None: there is no such cursor. wanted_none: the call requires that there is none."""
        if version is None:
            detail = f"cursor {cursor!r} does not exist; the call requires a version of it"
        elif wanted_none:
            detail = f"cursor {cursor!r} exists, at version {version}"
        else:
            detail = f"cursor {cursor!r} is at version {version}; the call requires another version"
        super().__init__(detail)
