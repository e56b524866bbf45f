"""The outermost ASGI layer: what applies to every call.

Request id, tokens, HEAD as GET without a body, counting, and a problem document for every failure. Appends
that the lane takes do not pass here (app/api/append/lane.py).
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.access.administration import SAFE_METHODS, RefusedEntries, observed, refusal_entry
from app.api.access.caller import TO_APPEND, Caller
from app.api.access.rules import CALLER
from app.api.access.tokens import Tokens, is_open
from app.api.http.dependencies import RESERVATION
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.lane_call import log_of_records
from app.api.http.messages import REQUEST_ID, RawHeaders, Response, given_or_new_id, problem_response
from app.api.http.query import query_refusal
from app.api.http.single_headers import check_single_headers
from app.api.http.tracing import PROBES
from app.api.read.outlet import OUTLET, Write
from app.controller.metadata import AUDIT_LOG
from app.errors import (
    CommitlogError,
    CrossOrigin,
    Forbidden,
    Internal,
    MethodNotAllowed,
    NotFound,
    RequestTimeout,
    Unauthenticated,
)
from app.names import SYSTEM
from app.node.network.http_forwarder import Lost
from app.telemetry import Meter

logger = logging.getLogger(__name__)


class TokenRevoked(Exception):
    """The token of a call was removed, or lost rights, while its answer was being sent."""


class HttpMiddleware:
    """ASGI application that serves `inner` under tokens, limits, counting and problem documents."""

    def __init__(
        self,
        inner: ASGIApp,
        tokens: Tokens,
        meter: Meter,
        in_flight: InFlightLimit,
        actions: Mapping[str, Sequence[str]],
        audit: Callable[[dict[str, Any]], None],
    ) -> None:
        """in_flight: limit of everything but probes and appends, which have their own. actions: methods by
        name. audit: writes an entry of the audit log."""
        self._inner = inner
        self._tokens = tokens
        self._meter = meter
        self._in_flight = in_flight
        self._actions = actions
        self._audit = audit
        self._refused_entries = RefusedEntries(time.monotonic)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        request_id = scope["commitlog.request_id"] = given_or_new_id(headers.get(REQUEST_ID))
        method, path = scope["method"], scope["path"]
        log = log_of_records(path) if method == "POST" else None
        counted = log is None and path not in PROBES
        try:
            caller = scope[CALLER] = self._tokens.caller(path, self._authorization(path, scope["headers"]))
            if log is not None:
                caller.require(TO_APPEND, log)
            self._check_action(method, path)
            if log is None:  # appends are refused by their handler, an unknown log before that
                _check_not_ours(method, path)
            _check_origin(method, headers)
            check_single_headers(scope["headers"])
            if (refusal := query_refusal(scope["query_string"])) is not None:
                raise refusal
            caller.enter()
        except CommitlogError as error:
            if log is None:
                self._audit_refusal(error, scope, request_id)
            await self._refuse(error, scope, send, request_id)
            return
        try:
            if counted:
                await self._counted(scope, receive, send, request_id)
            else:
                scope[RESERVATION] = self._in_flight.reservation()
                await self._through(scope, receive, send, request_id)
        finally:
            caller.leave()

    async def _counted(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        """Pass on a call that counts as a read in progress."""
        try:
            self._in_flight.enter(0)
        except CommitlogError as error:
            await self._refuse(error, scope, send, request_id)
            return
        reservation = scope[RESERVATION] = self._in_flight.reservation()
        try:
            await self._through(scope, receive, send, request_id)
        finally:
            self._in_flight.leave(reservation.bytes)

    async def _refuse(self, error: CommitlogError, scope: Scope, send: Send, request_id: bytes) -> None:
        method = scope["method"]
        answer = problem_response(error, instance=scope["path"], request_id=request_id)
        await _send_whole(answer, send, head=method == "HEAD")
        self._meter.answered(method, "refused", error.http_status)

    def _authorization(self, path: str, headers: RawHeaders) -> bytes | None:
        """Raise Unauthenticated for more than one: two nodes must not find two identities in one call."""
        found = [value for name, value in headers if name == b"authorization"]
        if len(found) > 1 and self._tokens.needed and not is_open(path):
            raise Unauthenticated("the request has more than one Authorization header")
        return found[0] if found else None

    def _audit_refusal(self, error: CommitlogError, scope: Scope, request_id: bytes) -> None:
        """Record that an identified caller tried to change what it may not change."""
        forbidden = isinstance(error, Forbidden | CrossOrigin) and scope["method"] not in SAFE_METHODS
        if forbidden and self._refused_entries.allowed():
            self._audit(refusal_entry(scope, scope[CALLER], request_id, error))

    def _check_action(self, method: str, path: str) -> None:
        """The last part of a path may end in `:action`, which must not be taken for a part of a name.

        Raises NotFound, MethodNotAllowed.
        """
        _, separator, action = path.rpartition("/")[2].rpartition(":")
        if not separator:
            return
        methods = self._actions.get(action)
        if methods is None:
            raise NotFound(f"there is nothing at {path}")
        if ("GET" if method == "HEAD" else method) not in methods:
            raise MethodNotAllowed(method, (*methods, "HEAD") if "GET" in methods else methods)

    async def _through(self, scope: Scope, receive: Receive, send: Send, request_id: bytes) -> None:
        """Pass the call to FastAPI. A HEAD is a GET whose body is dropped."""
        method = scope["method"]
        head = method == "HEAD"
        if head:
            scope = {**scope, "method": "GET", "commitlog.head": True}
        status = 0
        caller: Caller = scope[CALLER]
        granted = caller.grant
        write: Write | None = scope.get(OUTLET)
        if write is not None:
            scope[OUTLET] = lambda data: caller.holds(granted) and write(data)
        observation = observed(scope, receive)
        if observation is not None:
            receive = observation.receive

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                # The outcome of a change is sent in any case.
                if method in SAFE_METHODS and not caller.holds(granted):
                    raise TokenRevoked
                status = message["status"]
                names = [name.lower() for name, _ in message["headers"]]
                if REQUEST_ID not in names:
                    message = {**message, "headers": [*message["headers"], (REQUEST_ID, request_id)]}
            elif message.get("more_body") and not caller.holds(granted):  # a stream may last for days
                raise TokenRevoked
            elif head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            elif observation is not None:
                observation.sent(message)
            await send(message)

        try:
            await self._inner(scope, receive, send_on)
        except Exception as error:
            revoked_from = None if caller.holds(granted) else caller.name
            call = {"method": method, "path": scope["path"], "request_id": request_id.decode("ascii")}
            _log_failure(error, call, revoked_from, has_begun=status != 0)
            if status == 0:
                refusal = caller.revocation() if revoked_from is not None else _refusal_of(error)
                status = refusal.http_status
                answer = problem_response(refusal, instance=scope["path"], request_id=request_id)
                await _send_whole(answer, send, head=head)
        if observation is not None:
            entry = observation.entry(scope, caller, request_id, status)
            if entry is not None and (status < 300 or self._refused_entries.allowed()):
                self._audit(entry)
        if log_of_records(scope["path"]) is None or method != "POST":  # streams count themselves
            route = getattr(scope.get("route"), "path", "unknown")
            self._meter.answered(method, route, status)


def _refusal_of(error: Exception) -> CommitlogError:
    if isinstance(error, ClientDisconnect):
        return RequestTimeout("the client disconnected before all of the body had arrived")
    return Internal()


def _log_failure(
    error: Exception, call: Mapping[str, str], revoked_from: str | None, *, has_begun: bool
) -> None:
    """Log why a call failed, in its `except`. call: fields of the log line. revoked_from: caller whose token
    lost its rights meanwhile. has_begun: the answer had begun."""
    if revoked_from is not None:
        logger.info(
            "call ended: its token was removed or lost rights", extra={**call, "caller": revoked_from}
        )
    elif isinstance(error, ClientDisconnect):
        logger.info("client disconnected within its request", extra=call)
    elif isinstance(error, Lost) and has_begun:
        logger.warning("forwarded answer cut off", extra={**call, "reason": str(error)})
    else:
        logger.exception("request failed", extra=call)


def _check_origin(method: str, headers: Mapping[bytes, bytes]) -> None:
    """A browser names the page's origin in requests that change something: a foreign page must not use the
    reader's network position or credentials. Programs send no Origin. Raises CrossOrigin."""
    origin = headers.get(b"origin")
    if origin is None or method in SAFE_METHODS:
        return
    if origin.partition(b"://")[2] != headers.get(b"host"):
        raise CrossOrigin(f"requests from pages of {origin[:100].decode('latin-1')} may only read")


def _check_not_ours(method: str, path: str) -> None:
    """The system's logs are read-only for clients, except the settings of the audit log. Raises Forbidden."""
    if (
        path.startswith(f"/v1/logs/{SYSTEM}")
        and method not in ("GET", "HEAD")
        and (method, path) != ("PATCH", f"/v1/logs/{AUDIT_LOG}")
    ):
        raise Forbidden("the system alone writes to its logs")


async def _send_whole(answer: Response, send: Send, *, head: bool) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": b"" if head else answer.body})
