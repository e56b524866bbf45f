"""Calls of the application by the REST listener."""

import asyncio
import logging
from functools import partial
from typing import Any

import pytest
import uvicorn

from app.listener.connection import Connection
from app.listener.listener import Listener
from app.settings.model import HttpSettings
from app.telemetry import Meter
from tests.support.connections import FakeTransport, connect

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(("parts", "body"), [(0, b""), (1, b""), (2, b"o")])
def test_a_client_that_disconnects_within_the_answer_is_no_failure(
    parts: int, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """parts: of the answer that are written before the end."""

    async def run() -> bytes:
        transport: FakeTransport

        async def application(_scope: Any, _receive: Any, send: Any) -> None:
            messages = [
                {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]},
                {"type": "http.response.body", "body": b"o", "more_body": True},
                {"type": "http.response.body", "body": b"k"},
            ]
            for number, message in enumerate(messages):
                if number == parts:
                    transport.close()
                await send(message)

        listener = Listener(HttpSettings(), 100, Meter())
        protocol: Any = partial(Connection, listener)
        config = uvicorn.Config(application, http=protocol, lifespan="off", log_config=None)
        config.load()
        connection, transport = connect(listener, config)
        connection.data_received(GET)
        await asyncio.gather(*connection.tasks)
        return bytes(transport.sent)

    with caplog.at_level(logging.WARNING):
        sent = asyncio.run(run())
    assert caplog.messages == []
    assert sent.partition(b"\r\n\r\n")[2] == body
