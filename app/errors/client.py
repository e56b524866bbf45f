"""Refusals that are the caller's doing, status 4xx: nothing was applied."""

from collections.abc import Iterable, Iterator
from typing import Any

from app.errors.base import CommitlogError


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


class EventsTrimmed(CommitlogError):
    """The events were removed by the retention of the journal; it begins at `first_seq`."""

    code, title, http_status = "events-trimmed", "The events have been trimmed away", 410

    def __init__(self, first_seq: int) -> None:
        super().__init__(f"the node's journal begins at event {first_seq}")
        self.first_seq = first_seq

    def fields(self) -> dict[str, Any]:
        return {"first_seq": self.first_seq}


class IndexMismatch(CommitlogError):
    """A data record is at `match_index` or after it, or `match_index` is beyond the leader's next index.

    Uncommitted records count; control records do not."""

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
