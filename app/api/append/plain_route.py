"""The plain route of appends, in FastAPI: for every request that the lane does not take.

The lane (lane.py) reads a request in another way, and gives it to the same handler.
"""

import asyncio
import time
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response as StarletteResponse
from starlette.types import Receive, Scope

from app.api.append.call import AppendCall, AppendHead
from app.api.append.handler import AppendHandler
from app.api.append.openapi import OPENAPI_EXTRA, RESPONSES
from app.api.http.dependencies import ExactResponse, LogName
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.lane_call import RECORDS_ROUTE, log_of_records
from app.api.http.messages import REQUEST_ID, Response, given_or_new_id
from app.errors import CommitlogError, InvalidBody, TooLarge
from app.futures import settle
from app.pauses import rest
from app.settings.model import Limits


def late_body(timeout_ms: int) -> InvalidBody:
    return InvalidBody(f"the body did not arrive within {timeout_ms / 1000:g} s")


class PlainRoute:
    """`POST /v1/logs/{log}/records`. `end_late_bodies` runs beside it."""

    def __init__(self, handler: AppendHandler, limits: Limits, body_timeout_ms: int) -> None:
        self._handler = handler
        self._in_flight = handler.in_flight
        self._limits = limits
        self._body_timeout_ms = body_timeout_ms
        self._reading: dict[asyncio.Task[Any], float] = {}  # calls that wait for a body, since when

    def router(self) -> APIRouter:
        """Return the route, and its documentation."""
        router = APIRouter(tags=["records"])

        @router.post(
            RECORDS_ROUTE,
            summary="Append records",
            description="The append is atomic: all of its records are committed at consecutive indexes, or "
            "none.",
            responses=RESPONSES,
            openapi_extra=OPENAPI_EXTRA,
            response_class=StarletteResponse,
        )
        async def append(request: Request, log: LogName) -> StarletteResponse:
            answer = await self.answer(request.scope, request.receive)
            return StarletteResponse(status_code=204) if answer is None else ExactResponse(answer)

        return router

    async def answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Read the call and wait for its answer; None when the client has disconnected before it was
        complete."""
        headers = scope["headers"]
        length = request_id = None
        for name, value in headers:
            if name == b"content-length":
                length = value
            elif name == REQUEST_ID:
                request_id = value
        request_id = scope.get("commitlog.request_id") or given_or_new_id(request_id)
        log = log_of_records(scope["path"])
        assert log is not None
        try:
            self._handler.check_log(log)
            announced = self._announced(length)
            self._in_flight.enter(announced)
        except CommitlogError as error:
            return self._handler.refusal(error, scope["path"], request_id)
        incoming = _IncomingBody(self._in_flight, announced, self._limits.max_request_bytes)
        task = asyncio.current_task()
        assert task is not None
        self._reading[task] = time.monotonic()
        future: asyncio.Future[Response] | None = None
        try:
            body = await incoming.whole(receive)
            if body is None:
                return None
            del self._reading[task]
            future = asyncio.get_running_loop().create_future()
            self._handler.handle(
                AppendCall(
                    AppendHead(log, scope["path"], scope["query_string"], headers),
                    body,
                    request_id,
                    incoming.reserved,
                ),
                partial(settle, future),  # without effect once the client's task was cancelled
            )
        except CommitlogError as error:
            return self._handler.refusal(error, scope["path"], request_id)
        except asyncio.CancelledError:
            if task in self._reading:
                raise
            task.uncancel()
            late = late_body(self._body_timeout_ms)
            return self._handler.refusal(late, scope["path"], request_id)
        finally:
            self._reading.pop(task, None)
            if future is None:  # the handler has not taken it over
                self._in_flight.leave(incoming.reserved)
        return await future

    async def end_late_bodies(self) -> None:
        """End, until cancelled, the wait for bodies that do not arrive: one timer for all of them."""
        timeout_s = self._body_timeout_ms / 1000
        while True:
            await rest(min(1.0, timeout_s / 2))
            oldest = time.monotonic() - timeout_s
            for task, since in list(self._reading.items()):
                if since < oldest:
                    del self._reading[task]
                    task.cancel()

    def _announced(self, length: bytes | None) -> int:
        """Return the Content-Length, a number for the HTTP parser; 0 for a chunked body. Raises TooLarge."""
        if length is None:
            return 0
        limit = self._limits.max_request_bytes
        announced = int(length)
        if announced > limit:
            raise _too_large(limit, str(announced))
        return announced


def _too_large(limit: int, got: str) -> TooLarge:
    return TooLarge(f"the body may have at most {limit} bytes, got {got}", limit, "max_request_bytes")


class _IncomingBody:
    """A body on its way in. `reserved` is what it has added to the in-flight limit so far."""

    __slots__ = ("_in_flight", "_limit", "reserved")

    def __init__(self, in_flight: InFlightLimit, announced: int, limit: int) -> None:
        self.reserved = announced
        self._in_flight = in_flight
        self._limit = limit

    async def whole(self, receive: Receive) -> bytes | None:
        """Return the whole body, None when the client disconnects. Raises TooLarge or RateLimited."""
        message = await receive()
        body: bytes = message.get("body", b"")
        if message["type"] == "http.request" and not message.get("more_body", False):
            self._take(len(body))
            return body
        parts: list[bytes] = []
        size = 0
        while message["type"] != "http.disconnect":
            part: bytes = message.get("body", b"")
            parts.append(part)
            size += len(part)
            self._take(size)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await receive()
        return None

    def _take(self, size: int) -> None:
        if size > self._limit:
            raise _too_large(self._limit, "more")
        if size > self.reserved:
            self._in_flight.grow(size - self.reserved, self.reserved)
            self.reserved = size
