"""Exceptions of the client: one tree, built from the service's problem documents (API, RFC 9457).

ClientError
  NoAnswer              no node answered, or a response was incomplete
    InvalidAnswer       a response is damaged, or does not hold what was asked for
      OtherLog          a response is of another log of the same name
    NoReplica           none of the endpoints answered in time
    Untrusted           no TLS connection: the certificate is not trusted by this machine, or there is none
  RecordRefused         a producer did not send a record: the service accepts smaller ones only
  ProducerFailed        the producer has ended: an earlier append has failed
  Problem               a node refused the request with a problem document
    ConditionFailed     412: match_index, match_term or the fence
    NotFound            404, 410, 416: the log, index or epoch does not exist
    InvalidRequest      400, 406, 413, 415, 422: a retry would fail again
    Unavailable         421, 429, 503, 504, 507: retry at another node, or later
    OutcomeUnknown      the append may or may not have been stored
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any


class ClientError(Exception):
    """A failed call. outcome: outcome of the append, "not_applied", "applied" or "unknown"."""

    outcome = "not_applied"
    retryable = False

    @property
    def may_pass(self) -> bool:
        """Return whether another node, or a later attempt, may answer a read that failed with this error."""
        return self.retryable

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error as it is: its constructor takes other arguments than its message."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[ClientError], arguments: tuple[Any, ...], fields: Mapping[str, Any]) -> ClientError:
    """Return an error that was pickled."""
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


class NoAnswer(ClientError):
    """No node answered. The outcome is unknown when the request may have reached one.

    refused: the machine answered that no process listens at the address.
    """

    retryable = True

    def __init__(self, detail: str, *, sent: bool, refused: bool = False) -> None:
        super().__init__(detail)
        self.outcome = "unknown" if sent else "not_applied"
        self.refused = refused


class InvalidAnswer(NoAnswer):
    """A response that is incomplete, damaged or not the one asked for. The same call may succeed at another
    node."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, sent=True)


class OtherLog(InvalidAnswer):
    """The log was deleted and created again: since it was read last, or the node does not know it yet. A
    retry that waits for the log of before would not end."""

    retryable = False

    @property
    def may_pass(self) -> bool:
        return True  # at another node, which knows it


class NoReplica(NoAnswer):
    """No endpoint answered a read for give_up_s. errors: endpoints and their errors in the last round."""

    def __init__(self, errors: Sequence[tuple[str, ClientError]], give_up_s: float) -> None:
        self.errors = list(errors)
        last = "; ".join(
            f"{endpoint}: {error.status} {error}" if isinstance(error, Problem) else str(error)
            for endpoint, error in errors
        )
        super().__init__(
            f"no replica could answer for {give_up_s:.0f} s. Is the cluster up, with a majority of its "
            f"nodes? Last: {last}",
            sent=False,
        )


class Untrusted(NoAnswer):
    """No TLS connection could be made: the certificate of the node is not trusted by this machine, or the
    node does not use TLS. Nothing was sent, and a retry at this node would fail again."""

    retryable = False

    def __init__(self, detail: str) -> None:
        super().__init__(detail, sent=False)

    @property
    def may_pass(self) -> bool:
        return True  # at another node


class RecordRefused(ClientError):
    """A record that a producer did not send, because the service accepts smaller ones only."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"the service accepts records of at most {limit_bytes} bytes (max_record_bytes), got {size_bytes}"
        )
        self.size_bytes, self.limit_bytes = size_bytes, limit_bytes


class ProducerFailed(ClientError):
    """A record that a producer did not send, because an earlier append has failed: `reason`."""

    def __init__(self, reason: ClientError) -> None:
        super().__init__(f"an earlier append of this producer has failed: {reason}")
        self.reason = reason


class Problem(ClientError):
    """A refusal with its problem document."""

    def __init__(self, status: int, document: Mapping[str, Any], retry_after_s: float = 0.0) -> None:
        self.status = status
        self.document = dict(document)
        self.code = str(document.get("code", f"http-{status}"))
        self.detail = str(document.get("detail") or document.get("title") or f"HTTP status {status}")
        self.outcome = outcome_in(status, document)
        self.retryable = bool(document.get("retryable", status in (421, 429, 502, 503, 504)))
        self.retry_after_s = retry_after_s
        super().__init__(f"{self.code}: {self.detail}{self._places()}")

    @property
    def may_pass(self) -> bool:
        return self.status in (421, 429) or self.status >= 500

    def _places(self) -> str:
        """Return the invalid parts of the request that the detail does not mention."""
        found = self.document.get("errors")
        errors = [
            error
            for error in (found if isinstance(found, list) else ())
            if isinstance(error, Mapping) and str(error.get("detail", "")) not in self.detail
        ]
        places = [f"{error.get('pointer', '')} {error.get('detail', '')}".strip() for error in errors]
        return f" ({'; '.join(places)})" if places else ""


def outcome_in(status: int, document: Mapping[str, Any]) -> str:
    """Return the outcome of the append: of the first one with its key, if that is still in flight."""
    known = document.get("first_outcome", document.get("outcome"))
    return str(known or ("not_applied" if status < 500 else "unknown"))


class ConditionFailed(Problem):
    """A condition of the append was not met."""


class NotFound(Problem):
    """The log, record or epoch does not exist."""


class InvalidRequest(Problem):
    """The request is invalid and cannot succeed unchanged."""


class Unavailable(Problem):
    """The service is unavailable at present; nothing was stored."""


class OutcomeUnknown(Problem):
    """The append may have been stored. A retry is safe only with an idempotency key or a producer."""


_BY_STATUS: dict[int, type[Problem]] = {
    412: ConditionFailed,
    **dict.fromkeys((404, 410, 416), NotFound),
    **dict.fromkeys((400, 406, 413, 415, 422), InvalidRequest),
    **dict.fromkeys((421, 429, 503, 504, 507), Unavailable),
}


_FOREIGN = "a proxy or another program has answered, not a commitlog node"


def problem_of(status: int, body: bytes, retry_after: str | None = None) -> Problem:
    """Return the exception for a response with status 400 or above, with any body."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        text = " ".join(body.decode("utf-8", "replace").split())[:200]  # of a proxy, for example
        document = {"detail": f"{_FOREIGN}: {text}" if text else f"HTTP status {status}"}
    pause_s = float(retry_after) if retry_after and retry_after.isdecimal() else 0.0
    if outcome_in(status, document) == "unknown":
        return OutcomeUnknown(status, document, pause_s)
    return _BY_STATUS.get(status, Problem)(status, document, pause_s)
