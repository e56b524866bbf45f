"""Refusals to a caller: one tree, each class one problem of API.md §2 (RFC 9457).

    CommitlogError
      not applied, the caller's doing: InvalidJson InvalidBody Unauthenticated Forbidden NotFound
        LogNotFound EpochNotFound CursorNotFound MethodNotAllowed NotAcceptable RequestOutstanding SequenceGap
        ProducerFenced IndexTrimmed IndexMismatch TermMismatch Fenced TooLarge UnsupportedMediaType
        IndexOutOfRange NotLeader InvalidRequest IdempotencyKeyReused RateLimited
      not applied, the service's state: NoLeader LeaderPendingFull LeaderTransferring Repairing
        StorageFull ReadIndexUnavailable NotYetReplicated
      outcome unknown: TermChanged QuorumTimeout Internal

A class says code, title, status, whether a repeat may help, and what became of the append; an instance
adds the detail and the fields of its own. Broken invariants and wrong configurations are not refusals:
they stop the node.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, ClassVar

from storage.errors import InvariantError as InvariantError  # the broken promise that stops a node


class ConfigError(Exception):
    """A configuration that cannot work; raised before anything starts (exit code 2)."""


class Outcome(StrEnum):
    """What became of the append. NOT_APPLIED only when that is certain."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class CommitlogError(Exception):
    """A refusal. The docstring of each class is its page at /problems/{code}."""

    code: ClassVar[str]
    title: ClassVar[str]
    http_status: ClassVar[int]
    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    retry_after_s: ClassVar[int | None] = None

    def __init__(self, detail: str | None = None) -> None:
        self.detail = detail or self.title
        super().__init__(self.detail)

    def fields(self) -> dict[str, Any]:
        """What the problem document says beside the common members."""
        return {}

    def headers(self) -> Iterator[tuple[str, str]]:
        """Answer headers that belong to this refusal."""
        if self.retry_after_s is not None:
            yield "retry-after", str(self.retry_after_s)

    def problem(self, instance: str, request_id: str) -> dict[str, Any]:
        """The problem document (API.md §2). instance: path of the request."""
        return {
            "type": f"/problems/{self.code}",
            "title": self.title,
            "status": self.http_status,
            "detail": self.detail,
            "instance": instance,
            "code": self.code,
            "retryable": self.retryable,
            "outcome": self.outcome.value,
            "request_id": request_id,
            **self.fields(),
        }


# --- 4xx: nothing was applied ---------------------------------------------------------------------------


class InvalidJson(CommitlogError):
    """The body is not valid UTF-8 JSON (RFC 8259), or nested deeper than the service reads."""

    code, title, http_status = "invalid-json", "The body is not valid JSON", 400


class InvalidBody(CommitlogError):
    """The body is not what its Content-Type or Content-Encoding says: broken Arrow, batch or compression."""

    code, title, http_status = "invalid-body", "The body is not what its type says", 400


class Unauthenticated(CommitlogError):
    """The request carries no bearer token, or one that the service does not know."""

    code, title, http_status = "unauthenticated", "A known bearer token is needed", 401

    def headers(self) -> Iterator[tuple[str, str]]:
        yield "www-authenticate", 'Bearer realm="commitlog"'


class Forbidden(CommitlogError):
    """The token is known but does not allow this call."""

    code, title, http_status = "forbidden", "The token does not allow this", 403


class NotFound(CommitlogError):
    """No such route."""

    code, title, http_status = "not-found", "There is nothing here", 404


class LogNotFound(CommitlogError):
    """This cluster has no log of that name. `GET /v1/logs` lists them."""

    code, title, http_status = "log-not-found", "No such log", 404

    def __init__(self, log: str) -> None:
        super().__init__(f"there is no log {log!r}")
        self.log = log

    def fields(self) -> dict[str, Any]:
        return {"log": self.log}


class EpochNotFound(CommitlogError):
    """The epoch file of this node has no such epoch."""

    code, title, http_status = "epoch-not-found", "No such epoch at this node", 404

    def __init__(self, epoch: int) -> None:
        super().__init__(f"this node's epoch file has no epoch {epoch}")


class CursorNotFound(CommitlogError):
    """The log has no cursor of that name."""

    code, title, http_status = "cursor-not-found", "No such cursor", 404

    def __init__(self, cursor: str) -> None:
        super().__init__(f"there is no cursor {cursor!r}")


class MethodNotAllowed(CommitlogError):
    """The route exists, the method does not; `Allow` lists those that do."""

    code, title, http_status = "method-not-allowed", "This route does not have that method", 405

    def __init__(self, method: str, allowed: Iterable[str]) -> None:
        self.allowed = tuple(sorted(allowed))
        super().__init__(f"{method} is not one of {', '.join(self.allowed)}")

    def headers(self) -> Iterator[tuple[str, str]]:
        yield "allow", ", ".join(self.allowed)


class NotAcceptable(CommitlogError):
    """None of the types in `Accept` can be given."""

    code, title, http_status = "not-acceptable", "None of the accepted types can be given", 406


class RequestOutstanding(CommitlogError):
    """The first append with this key or sequence is still in flight after the time this repeat would wait."""

    code, title, http_status, retryable = (
        "request-outstanding",
        "The first request is still in flight",
        409,
        True,
    )
    retry_after_s = 1


class SequenceGap(CommitlogError):
    """The producer's sequence neither follows its last one nor repeats one of its last five."""

    code, title, http_status = "sequence-gap", "The producer's sequence does not follow its last one", 409

    def __init__(self, expected_sequence: int) -> None:
        super().__init__(f"the next sequence of this producer and epoch is {expected_sequence}")
        self.expected_sequence = expected_sequence

    def fields(self) -> dict[str, Any]:
        return {"expected_sequence": self.expected_sequence}


class ProducerFenced(CommitlogError):
    """A newer epoch of this producer has appended; the older one may not go on."""

    code, title, http_status = "producer-fenced", "A newer epoch of this producer exists", 409

    def __init__(self, current_epoch: int) -> None:
        super().__init__(f"this producer's epoch is {current_epoch} by now")
        self.current_epoch = current_epoch

    def fields(self) -> dict[str, Any]:
        return {"current_epoch": self.current_epoch}


class IndexTrimmed(CommitlogError):
    """The index was removed by retention or trimming; the log begins at `begin_index`."""

    code, title, http_status = "index-trimmed", "The index has been trimmed away", 410

    def __init__(self, begin_index: int) -> None:
        super().__init__(f"the log begins at index {begin_index}")
        self.begin_index = begin_index

    def fields(self) -> dict[str, Any]:
        return {"begin_index": self.begin_index}


class IndexMismatch(CommitlogError):
    """`match_index` is not the leader's next index (records not yet committed count)."""

    code, title, http_status = "index-mismatch", "The log is not at the expected index", 412

    def __init__(self, expected_index: int, next_index: int) -> None:
        super().__init__(f"the append expects index {expected_index}, the log's next index is {next_index}")
        self.expected_index = expected_index
        self.next_index = next_index

    def fields(self) -> dict[str, Any]:
        return {"expected_index": self.expected_index, "next_index": self.next_index}


class TermMismatch(CommitlogError):
    """`match_term` is not the leader's term."""

    code, title, http_status = "term-mismatch", "The log is not in the expected term", 412

    def __init__(self, expected_term: int, term: int) -> None:
        super().__init__(f"the append expects term {expected_term}, the leader's term is {term}")
        self.expected_term = expected_term
        self.term = term

    def fields(self) -> dict[str, Any]:
        return {"expected_term": self.expected_term, "term": self.term}


class Fenced(CommitlogError):
    """The log is fenced, and the append names another token or none."""

    code, title, http_status = "fenced", "The fencing token is not the log's", 412


class TooLarge(CommitlogError):
    """The body, a record in it, or the number of its records is past a limit of `GET /v1/cluster`."""

    code, title, http_status = "too-large", "The request is past a limit", 413

    def __init__(self, detail: str, limit: int) -> None:
        super().__init__(detail)
        self.limit = limit

    def fields(self) -> dict[str, Any]:
        return {"limit": self.limit}


class UnsupportedMediaType(CommitlogError):
    """The Content-Type or Content-Encoding is missing or none that the service reads."""

    code, title, http_status = "unsupported-media-type", "The service does not read this type of body", 415


class IndexOutOfRange(CommitlogError):
    """The index lies past the visible end of the log."""

    code, title, http_status = "index-out-of-range", "The index is past the end of the log", 416

    def __init__(self, next_index: int) -> None:
        super().__init__(f"the next index of the log is {next_index}")
        self.next_index = next_index

    def fields(self) -> dict[str, Any]:
        return {"next_index": self.next_index}


class NotLeader(CommitlogError):
    """This node does not lead, and the request asked not to be forwarded (D-29). `leader` does."""

    code, title, http_status, retryable = "not-leader", "This node does not lead the log", 421, True

    def __init__(self, leader: str | None, leader_url: str | None = None) -> None:
        super().__init__(f"the leader is {leader}" if leader else "this node does not know the leader")
        self.leader = leader
        self.leader_url = leader_url

    def fields(self) -> dict[str, Any]:
        return {"leader": self.leader, "leader_url": self.leader_url}


class InvalidRequest(CommitlogError):
    """A field, parameter or header is unknown, missing, or out of its bounds. `errors` says which."""

    code, title, http_status = "invalid-request", "The request does not fit the contract", 422

    def __init__(self, *errors: tuple[str, str]) -> None:
        """errors: (JSON pointer, detail); `/query/NAME` and `/headers/NAME` for what is not in the body."""
        super().__init__("; ".join(f"{pointer or '/'}: {detail}" for pointer, detail in errors[:3]))
        self.errors = [{"pointer": pointer, "detail": detail} for pointer, detail in errors]

    def fields(self) -> dict[str, Any]:
        return {"errors": self.errors}


class IdempotencyKeyReused(CommitlogError):
    """The key belongs to an append with other records or conditions."""

    code, title, http_status = "idempotency-key-reused", "The key belongs to another append", 422


class RateLimited(CommitlogError):
    """More requests are open than this node takes at once."""

    code, title, http_status, retryable = "rate-limited", "Too many requests at once", 429, True
    retry_after_s = 1


# --- 5xx ------------------------------------------------------------------------------------------------


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


def _tree(root: type[CommitlogError]) -> Iterator[type[CommitlogError]]:
    for child in root.__subclasses__():
        yield child
        yield from _tree(child)


PROBLEMS: dict[str, type[CommitlogError]] = {problem.code: problem for problem in _tree(CommitlogError)}
