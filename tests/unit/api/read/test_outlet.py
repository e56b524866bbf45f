"""The outlet of a response: chunks to its client past ASGI."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from app.api.access.tokens import Tokens
from app.api.http.in_flight_limit import InFlightLimit
from app.api.read.outlet import OUTLET, as_chunk
from app.listener.connection import Connection
from app.listener.listener import Listener
from app.middleware import HttpMiddleware
from app.settings.model import HttpSettings
from app.telemetry import Meter
from tests.support.connections import FakeTransport, connect

GET = b"GET /v1/logs/x/records HTTP/%s\r\nhost: n1\r\nauthorization: Bearer t\r\n\r\n"


def test_an_outlet_writes_while_the_client_reads_and_its_token_holds(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("t read\n")
    tokens = Tokens.load(file)
    written: list[bool] = []

    async def application(scope: Any, _receive: Any, send: Any) -> None:
        write = scope[OUTLET]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        written.append(write(as_chunk(b"two ") + as_chunk(b"x" * 16)))
        connection.pause_writing()
        written.append(write(as_chunk(b"while the client does not read")))
        connection.resume_writing()
        await send({"type": "http.response.body", "body": b"three", "more_body": True})
        file.write_text("t append\n")
        await tokens.refresh()
        await tokens.refresh()  # a changed file is used after two reads
        written.append(write(as_chunk(b"without the right")))
        file.write_text("t read\n")
        await tokens.refresh()
        await tokens.refresh()
        written.append(write(as_chunk(b"four")))
        transport.closing = True
        written.append(write(as_chunk(b"after the end")))
        connection.connection_lost(None)
        written.append(write(as_chunk(b"after the end")))

    async def run() -> None:
        nonlocal connection, transport
        connection, transport = _connection(
            HttpMiddleware(application, tokens, Meter(), InFlightLimit(9, 1 << 20), {}, lambda _: None)
        )
        connection.data_received(GET % b"1.1")
        await asyncio.gather(*connection.tasks)

    connection: Any = None
    transport: Any = None
    asyncio.run(run())
    assert written == [True, False, False, True, False, False]
    chunks = b"3\r\none\r\n4\r\ntwo \r\n10\r\n" + b"x" * 16 + b"\r\n5\r\nthree\r\n4\r\nfour\r\n"
    assert bytes(transport.sent).partition(b"\r\n\r\n")[2] == chunks


@pytest.mark.parametrize(("version", "expected"), [(b"1.1", True), (b"1.0", False)])
def test_a_response_without_chunks_has_no_outlet(version: bytes, expected: bool) -> None:
    found = []

    async def application(scope: Any, _receive: Any, _send: Any) -> None:
        found.append(OUTLET in scope)

    async def run() -> None:
        connection, _ = _connection(application)
        connection.data_received(GET % version)
        await asyncio.gather(*connection.tasks)

    asyncio.run(run())
    assert found == [expected]


def _connection(application: Any) -> tuple[Any, FakeTransport]:
    listener = Listener(HttpSettings(), 100, Meter())
    protocol: Any = partial(Connection, listener)
    config = uvicorn.Config(application, http=protocol, lifespan="off", log_config=None, access_log=False)
    config.load()
    return connect(listener, config)
