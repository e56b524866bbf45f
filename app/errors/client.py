"""Refusals caused by the request, status 4xx: nothing was applied."""

from collections.abc import Iterable, Iterator
from typing import Any

from app.errors.base import CommitlogError, Outcome


class BadRequest(CommitlogError):
    """The bytes on the connection are not an HTTP/1.1 request. The connection is closed."""

    code, title, http_status = "bad-request", "The request is not valid HTTP", 400


class RequestTimeout(CommitlogError):
    """The head or the body of the request did not arrive in time. The connection is closed."""

    code, title, http_status = "request-timeout", "The request did not arrive in time", 408


class HeadTooLarge(CommitlogError):
    """The request line and the headers exceed the limit of this node. The connection is closed."""

    code, title, http_status = "head-too-large", "The request head is too large", 431


class CrossOrigin(CommitlogError):
    """A browser sent the request from a page of another origin; only GET and HEAD are accepted from there. A
    node on loopback without tokens answers no request whose Host is a foreign name."""

    code, title, http_status = "cross-origin", "The request comes from another website", 403


class InvalidJson(CommitlogError):
    """The body is not valid UTF-8 JSON (RFC 8259), or is nested too deeply."""

    code, title, http_status = "invalid-json", "The body is not valid JSON", 400


class InvalidBody(CommitlogError):
    """The body cannot be decoded as its Content-Type or Content-Encoding specifies.

    The Arrow stream, the packed batch or the compressed data is malformed or truncated.
    """

    code, title, http_status = "invalid-body", "The body does not match its content type", 400


class Unauthenticated(CommitlogError):
    """The request has no bearer token, or its token is not in the service's tokens file."""

    code, title, http_status = "unauthenticated", "A valid bearer token is required", 401

    def headers(self) -> Iterator[tuple[str, str]]:
        yield "www-authenticate", 'Bearer realm="commitlog"'


class Forbidden(CommitlogError):
    """The token is valid but does not have the scope that this call requires, or not for this log."""

    code, title, http_status = "forbidden", "The token does not permit this call", 403


class NotFound(CommitlogError):
    """The path is not a route of this API. `GET /docs` lists the routes."""

    code, title, http_status = "not-found", "Not found", 404


class LogNotFound(CommitlogError):
    """The cluster has no log with this name. `commitlog logs` and `GET /v1/logs` list all logs."""

    code, title, http_status = "log-not-found", "Log not found", 404

    def __init__(self, log: str) -> None:
        super().__init__(f"log {log!r} does not exist; `commitlog logs` and GET /v1/logs list all logs")
        self.log = log

    def fields(self) -> dict[str, Any]:
        return {"log": self.log}


class EpochNotFound(CommitlogError):
    """The epoch file of this node does not contain this epoch. `GET /v1/logs/{log}/epochs` lists all
    epochs."""

    code, title, http_status = "epoch-not-found", "Epoch not found at this node", 404

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the epoch file of this node does not contain epoch {epoch}")


class CursorNotFound(CommitlogError):
    """The log has no cursor with this name. `GET /v1/logs/{log}/cursors` lists all cursors."""

    code, title, http_status = "cursor-not-found", "Cursor not found", 404

    def __init__(self, cursor: str) -> None:
        super().__init__(f"cursor {cursor!r} does not exist")


class MethodNotAllowed(CommitlogError):
    """The route does not support this method. The `Allow` header lists the supported methods."""

    code, title, http_status = "method-not-allowed", "Method not allowed", 405

    def __init__(self, method: str, allowed: Iterable[str]) -> None:
        self.allowed = tuple(sorted(allowed))
        super().__init__(f"the method must be one of {', '.join(self.allowed)}, got {method}")

    def headers(self) -> Iterator[tuple[str, str]]:
        yield "allow", ", ".join(self.allowed)


class NotAcceptable(CommitlogError):
    """The route cannot produce any of the content types in `Accept`."""

    code, title, http_status = "not-acceptable", "No acceptable content type", 406


class RequestOutstanding(CommitlogError):
    """The first append with this key or sequence is still in flight, and this retry's timeout has passed.

    `outcome` is that of this request, which has stored nothing. The first append may still be applied
    (`first_outcome` is `unknown`): repeat it with the same key or sequence. In a stream also an append after
    a refused one; then there is no `first_outcome`.
    """

    code, title, http_status, retryable = (
        "request-outstanding",
        "The first request is still in flight",
        409,
        True,
    )
    retry_after_s = 1

    def __init__(self, detail: str | None = None, *, has_first: bool = True) -> None:
        super().__init__(detail)
        self._has_first = has_first

    def fields(self) -> dict[str, Any]:
        return {"first_outcome": Outcome.UNKNOWN.value} if self._has_first else {}


class SequenceGap(CommitlogError):
    """The producer's sequence is neither its last one + 1 nor one of its last five. It must be
    `expected_sequence`: an append before this one is missing, or this one is older than the last five."""

    code, title, http_status = "sequence-gap", "Producer sequence out of order", 409

    def __init__(self, expected_sequence: int, sequence: int) -> None:
        super().__init__(
            f"the next sequence of this producer and epoch must be {expected_sequence}, got {sequence}"
        )
        self.expected_sequence = expected_sequence

    def fields(self) -> dict[str, Any]:
        return {"expected_sequence": self.expected_sequence}


class ProducerFenced(CommitlogError):
    """A newer epoch of this producer has appended. Appends of older epochs are refused. Another writer uses
    this producer: stop this one, or begin a higher epoch."""

    code, title, http_status = "producer-fenced", "A newer epoch of this producer exists", 409

    def __init__(self, current_epoch: int, epoch: int) -> None:
        super().__init__(f"the current epoch of this producer is {current_epoch}, got {epoch}")
        self.current_epoch = current_epoch

    def fields(self) -> dict[str, Any]:
        return {"current_epoch": self.current_epoch}


class IndexTrimmed(CommitlogError):
    """The record was removed by retention or trimming. The log begins at `begin_index`. Read from there. A
    cursor with `fence` keeps what its reader has not read."""

    code, title, http_status = "index-trimmed", "The index has been trimmed", 410

    def __init__(self, begin_index: int) -> None:
        super().__init__(f"the log begins at index {begin_index}")
        self.begin_index = begin_index

    def fields(self) -> dict[str, Any]:
        return {"begin_index": self.begin_index}


class EventsTrimmed(CommitlogError):
    """The events were removed by the retention of the journal. The journal begins at `first_seq`."""

    code, title, http_status = "events-trimmed", "The events have been trimmed", 410

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
    """`match_term` is not the leader's term. Read the term and what the new leader holds, then decide
    again."""

    code, title, http_status = "term-mismatch", "The log is not in the expected term", 412

    def __init__(self, expected_term: int, term: int) -> None:
        super().__init__(f"the append expects term {expected_term}, the leader's term is {term}")
        self.expected_term = expected_term
        self.term = term

    def fields(self) -> dict[str, Any]:
        return {"expected_term": self.expected_term, "term": self.term}


class Fenced(CommitlogError):
    """The log has a fencing token, and the append has a different one or none. Another writer has taken over:
    stop this one, or set a token of its own with `:fence`."""

    code, title, http_status = "fenced", "The fencing token does not match", 412


class TooLarge(CommitlogError):
    """The body, one record, or the number of records exceeds a limit. `GET /v1/cluster` lists the limits, of
    which `limit_name` is one."""

    code, title, http_status = "too-large", "The request exceeds a limit", 413

    def __init__(self, detail: str, limit: int, limit_name: str | None = None) -> None:
        super().__init__(detail)
        self.limit, self.limit_name = limit, limit_name

    def fields(self) -> dict[str, Any]:
        named = {} if self.limit_name is None else {"limit_name": self.limit_name}
        return {"limit": self.limit, **named}


class UnsupportedMediaType(CommitlogError):
    """The Content-Type is missing, or the Content-Type or Content-Encoding is not supported."""

    code, title, http_status = "unsupported-media-type", "Unsupported content type or encoding", 415

    def __init__(self, detail: str, *, types: Iterable[str] = (), encodings: Iterable[str] = ()) -> None:
        """types, encodings: those that the route accepts, of the one that was refused (RFC 9110, section
        15.5.16)."""
        super().__init__(detail)
        self._accepted = {"accept": ", ".join(types), "accept-encoding": ", ".join(encodings)}

    def headers(self) -> Iterator[tuple[str, str]]:
        yield from ((name, value) for name, value in self._accepted.items() if value)


class IndexOutOfRange(CommitlogError):
    """The index is beyond the visible end of the log."""

    code, title, http_status = "index-out-of-range", "The index is beyond the end of the log", 416

    def __init__(self, index: int, next_index: int) -> None:
        super().__init__(f"index {index} is beyond the log, whose next index is {next_index}")
        self.next_index = next_index

    def fields(self) -> dict[str, Any]:
        return {"next_index": self.next_index}


class NotLeader(CommitlogError):
    """This node is not the leader of the log, and the request forbids forwarding (D-29).

    Send the request to `leader_url`, the base URL of the node `leader`. Both are null when unknown.
    """

    code, title, http_status, retryable = "not-leader", "This node is not the leader of the log", 421, True

    def __init__(self, leader: str | None, leader_url: str | None = None) -> None:
        super().__init__(f"the leader is {leader}" if leader else "this node does not know the leader")
        self.leader = leader
        self.leader_url = leader_url

    def fields(self) -> dict[str, Any]:
        return {"leader": self.leader, "leader_url": self.leader_url}

    def headers(self) -> Iterator[tuple[str, str]]:
        if self.leader_url is not None:
            yield "commitlog-leader", self.leader_url


class InvalidRequest(CommitlogError):
    """A field, parameter or header is unknown, missing, or out of range. `errors` lists each one."""

    code, title, http_status = "invalid-request", "Invalid request", 422

    def __init__(self, *errors: tuple[str, str]) -> None:
        """errors: (JSON pointer, detail); `/query/NAME` and `/headers/NAME` for parameters and headers."""
        super().__init__("; ".join(f"{pointer or 'the body'}: {detail}" for pointer, detail in errors[:3]))
        self.errors = [{"pointer": pointer, "detail": detail} for pointer, detail in errors]

    def fields(self) -> dict[str, Any]:
        return {"errors": self.errors}


class IdempotencyKeyReused(CommitlogError):
    """The idempotency key was used for an append with other records or conditions. Use a new key for each
    append, and repeat an append only as it was sent first."""

    code, title, http_status = "idempotency-key-reused", "The key belongs to another append", 422


class RateLimited(CommitlogError):
    """The number or the size of the requests in flight, or of the connections, exceeds this node's limit, or
    the requests of one token exceed the limits of its line in the tokens file."""

    code, title, http_status, retryable = "rate-limited", "Too many requests", 429, True

    def __init__(self, detail: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(detail)
        self._retry_after_s = retry_after_s

    def headers(self) -> Iterator[tuple[str, str]]:
        yield "retry-after", str(self._retry_after_s)
