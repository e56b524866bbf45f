"""Shared parts of every FastAPI route: the node, the log in the path, answers, and the request."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Final, TypeVar, cast

from fastapi import Depends, Path, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.api.http.in_flight_limit import Reservation
from app.api.http.messages import PageResponse, as_json
from app.api.http.messages import Response as Answer
from app.api.http.query import NoQuery
from app.errors import RequestTimeout
from app.media_types import JSON
from app.names import LOG_NAME, SYSTEM
from app.node.broker import Broker
from app.node.network.http_forwarder import NO_FORWARD
from storage.units import KIB


def broker_of(request: Request) -> Broker:
    return cast(Broker, request.app.state.broker)


async def _node(request: Request) -> Broker:
    """Dependency. FastAPI calls one that is not a coroutine in a thread."""
    return broker_of(request)


def request_id_of(request: Request) -> bytes:
    return cast(bytes, request.scope["commitlog.request_id"])


Result = TypeVar("Result")

RESERVATION: Final = "commitlog.reservation"  # in an ASGI scope
WAITING: Final = "commitlog.waiting"  # likewise: tasks that the connection cancels and removes at its end
ROWS_AT_ONCE: Final = 500  # of a list, rendered on the event loop: some milliseconds
PIECE_BYTES: Final = 256 * KIB  # of a body, written at once

LogName = Annotated[
    str,
    Path(
        description="Name of the log: `[a-z0-9][a-z0-9._-]{0,127}`",
        examples=["default"],
        json_schema_extra={"pattern": f"^({SYSTEM})?{LOG_NAME.pattern.pattern}$"},  # checked by LogLookup
    ),
]
NodeBroker = Annotated[Broker, Depends(_node)]
Nothing = Annotated[NoQuery, Query()]  # no query parameter at all


class ExactResponse(Response):
    """An answer of the framework-free part, sent with exactly its headers.

    A large body is sent in pieces as the client reads it, and counts as bytes in flight until then.
    """

    def __init__(self, answer: Answer | PageResponse) -> None:
        super().__init__(status_code=answer.status)
        self.body = answer.body
        self.raw_headers = answer.headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = memoryview(self.body)
        while len(body) > PIECE_BYTES:
            await send({"type": "http.response.body", "body": body[:PIECE_BYTES], "more_body": True})
            body = body[PIECE_BYTES:]
        await send({"type": "http.response.body", "body": body})


def reserve(request: Request, size_bytes: int) -> None:
    """Count the bytes of an answer as in flight until the client has it. Raises RateLimited."""
    reservation: Reservation = request.scope[RESERVATION]
    reservation.reach(size_bytes)


def hold(request: Request, size_bytes: int) -> None:
    """Count the bytes of the part of an answer that waits for the client. Raises RateLimited."""
    reservation: Reservation = request.scope[RESERVATION]
    reservation.hold(size_bytes)


def json_answer(
    content: object, *, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()
) -> Response:
    return body_answer(as_json(content), JSON, status=status, headers=headers)


async def rows_answer(
    rows: int, content: Callable[[], object], headers: Sequence[tuple[bytes, bytes]]
) -> Response:
    """Return `content()` as json_answer does; of many rows in a thread: the loop also runs replication.

    content: uses nothing that the loop changes.
    """

    def rendered() -> Response:
        return json_answer(content(), headers=headers)

    return rendered() if rows <= ROWS_AT_ONCE else await asyncio.to_thread(rendered)


async def while_connected(request: Request, answer: Coroutine[Any, Any, Result]) -> Result:
    """Return the answer. It is cancelled when the client disconnects before. Raises RequestTimeout.

    For a call whose answer may be cancelled at any point.
    """
    waiting: set[asyncio.Task[Any]] = request.scope.get(WAITING, set())
    answering = asyncio.create_task(answer)
    waiting.add(answering)
    try:
        await asyncio.wait((answering,))
        if answering.cancelled() and answering not in waiting:
            raise RequestTimeout("the client disconnected before the answer")
        return answering.result()
    finally:
        waiting.discard(answering)
        answering.cancel()


def body_answer(
    body: bytes | memoryview,
    media_type: str,
    *,
    status: int = 200,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Response:
    kind, length = (b"content-type", media_type.encode("ascii")), (b"content-length", b"%d" % len(body))
    response = ExactResponse(Answer(status, [kind, length, *headers], b""))
    response.body = body
    return response


def is_here_only(request: Request) -> bool:
    """Return whether the client wants this node's own answer (Commitlog-No-Forward)."""
    return request.headers.get(NO_FORWARD.decode()) == "1"


def target_of(request: Request, query: bytes = b"") -> bytes:
    """Return path and query of the call, with an addition to the query: for a call to another node."""
    path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    queries = b"&".join(part for part in (request.scope["query_string"], query) if part)
    return path + (b"?" + queries if queries else b"")
