"""How the REST listener ends the answers of the application, where uvicorn alone would do it wrong."""

import asyncio
from functools import partial
from typing import Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.api.http.dependencies import WAITING
from app.api.read.outlet import OUTLET, write_chunks


def ended_by_close(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Return the application for a request of HTTP/1.0: a body without a length ends with the connection, not
    in chunks, which its client does not know (RFC 9112, section 6.3)."""

    async def ended(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = False

        async def send_on(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
                cycle.chunked_encoding = None if has_length else False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))  # uvicorn compares it
            await send(message)

        await app(scope, receive, send_on)

    return ended


def closed_when_cut_off(cycle: RequestResponseCycle, app: ASGIApp) -> ASGIApp:
    """Return the application, which gets the outlet of its answer, and the set of tasks for end_waiting.

    An answer that it does not complete ends with the connection. It sends nothing on a connection that has
    ended: uvloop raises an error at a write before it reports the end.
    """
    tasks: set[asyncio.Task[Any]] = set()
    cast("dict[str, Any]", cycle.scope)[WAITING] = tasks

    async def closed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["http_version"] != "1.0":
            scope = {**scope, OUTLET: partial(write_chunks, cycle)}

        async def send_on(message: Message) -> None:
            if cycle.transport.is_closing():
                cycle.disconnected = True  # uvicorn drops the message
            await send(message)

        await app(scope, receive, send_on)
        if cycle.response_started and not (cycle.response_complete or cycle.disconnected):
            cycle.disconnected = True  # HttpMiddleware has logged the reason; uvicorn would log an error
            cycle.transport.close()

    return closed


def end_waiting(cycle: RequestResponseCycle) -> None:
    """Cancel what the call waits for: its client has disconnected."""
    waiting: set[asyncio.Task[Any]] = cast("dict[str, Any]", cycle.scope).get(WAITING, set())
    while waiting:
        waiting.pop().cancel()
