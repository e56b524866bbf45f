"""Observation of a call that may administer the cluster, for the audit log.

The route is known only when the call has been carried out: a call that turns out to be none leaves no entry.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from app.api.access.caller import Caller
from app.api.access.rules import administers
from app.errors import CommitlogError, Outcome
from storage.units import KIB

OBSERVED: Final = "commitlog.observed"  # in an ASGI scope
BODY_MAX_BYTES: Final = 4 * KIB  # of a request or a problem, kept for the entry
TARGET_MAX: Final = 512  # characters of a path or a query in an entry; those of routes are shorter
REFUSED_PER_S: Final = 10  # entries about refused calls at a node, so that no client floods the log
SAFE_METHODS: Final = ("GET", "HEAD", "OPTIONS")  # they change nothing (RFC 9110, section 9.2.1)


class ObservedCall:
    """One call: its request and its answer as they pass by."""

    __slots__ = ("_answer", "_body", "_receive", "forwarded")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._body = b""
        self._answer = b""
        self.forwarded = False  # the whole call was carried out by another node, which writes the entry

    async def receive(self) -> Message:
        message = await self._receive()
        self._body = (self._body + message.get("body", b""))[: BODY_MAX_BYTES + 1]
        return message

    def sent(self, message: Message) -> None:
        """Note a part of the answer."""
        if len(self._answer) <= BODY_MAX_BYTES:
            self._answer += bytes(message.get("body", b""))

    def entry(self, scope: Scope, caller: Caller, request_id: bytes, status: int) -> dict[str, Any] | None:
        """Return the entry about the call, None if it is not administration that this node has answered."""
        template = getattr(scope.get("route"), "path", None)
        if self.forwarded or template is None or not administers(scope["method"], template):
            return None
        problem = _json_of(self._answer) if status >= 300 else None
        refused = problem if isinstance(problem, dict) else {}
        return entry_of(
            scope,
            caller,
            request_id,
            status=status,
            outcome="done" if status < 300 else str(refused.get("outcome", Outcome.UNKNOWN)),
            code=refused.get("code"),
            request=_json_of(self._body),
        )


def observed(scope: Scope, receive: Receive) -> ObservedCall | None:
    """Return the observation of a call that may change something; None for others."""
    if scope["method"] in SAFE_METHODS:
        return None
    call = scope[OBSERVED] = ObservedCall(receive)
    return call


def mark_forwarded(request: Request) -> None:
    """Note that another node carries out the whole call."""
    call = request.scope.get(OBSERVED)
    if call is not None:
        call.forwarded = True


def entry_of(
    scope: Scope,
    caller: Caller,
    request_id: bytes,
    *,
    status: int,
    outcome: str,
    code: str | None,
    request: Any,
) -> dict[str, Any]:
    client = scope.get("client")
    return {
        "caller": caller.name,
        "client": None if client is None else client[0],
        "method": scope["method"],
        "path": _shortened(scope["path"]),
        "query": _shortened(scope["query_string"].decode("latin-1")),
        "request": request,
        "status": status,
        "outcome": outcome,
        "code": code,
        "request_id": request_id.decode("ascii"),
    }


def refusal_entry(scope: Scope, caller: Caller, request_id: bytes, error: CommitlogError) -> dict[str, Any]:
    """Return the entry about a call that was refused before it reached its route."""
    return entry_of(
        scope,
        caller,
        request_id,
        status=error.http_status,
        outcome=Outcome.NOT_APPLIED,
        code=error.code,
        request=None,
    )


class RefusedEntries:
    """Limit of entries about refused calls. Allows REFUSED_PER_S in each second of the clock."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._second = 0
        self._count = 0

    def allowed(self) -> bool:
        second = int(self._clock_s())
        if second != self._second:
            self._second, self._count = second, 0
        self._count += 1
        return self._count <= REFUSED_PER_S


def _shortened(text: str) -> str:
    """Return at most TARGET_MAX characters: a caller must not make an entry too large to be stored."""
    return text if len(text) <= TARGET_MAX else f"{text[: TARGET_MAX - 1]}…"


def _json_of(data: bytes) -> Any:
    """Return the JSON value of a body; None if it is absent, too long or not JSON.

    Strict, as the routes are: `json` takes halves of surrogate pairs and NaN, which no entry can hold.
    """
    if not data or len(data) > BODY_MAX_BYTES:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
