"""Answers that last: a stream ends when its token loses rights, or the node that it comes from is lost."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import StreamingResponse

from app.api.access.tokens import Tokens
from app.api.http import problems
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.log_call import AnsweredElsewhere
from app.listener.connection import Connection
from app.listener.listener import Listener
from app.middleware import HttpMiddleware
from app.node.network.http_forwarder import Lost
from app.settings.model import HttpSettings
from app.telemetry import Meter
from tests.support.connections import connect

PATH = "/v1/logs/x/records"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("t read logs=x", [b"1", b"2", b"3"]),
        ("t read append logs=x rate=9", [b"1", b"2", b"3"]),
        ("t append logs=x", [b"1"]),
        ("t read logs=y", [b"1"]),
        ("other read", [b"1"]),
    ],
)
def test_a_stream_of_events_ends_when_its_token_loses_rights(
    tmp_path: Path, line: str, expected: list[bytes]
) -> None:
    file = tmp_path / "tokens"
    file.write_text("t read logs=x\n")
    tokens = Tokens.load(file)
    sent: list[bytes] = []

    async def inner(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"1", "more_body": True})
        file.write_text(line + "\n")
        await tokens.refresh()
        await tokens.refresh()  # a changed file is used after two reads
        await send({"type": "http.response.body", "body": b"2", "more_body": True})
        await send({"type": "http.response.body", "body": b"3"})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            sent.append(message["body"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    limit = InFlightLimit(10, 1 << 20)
    middleware = HttpMiddleware(inner, tokens, Meter(), limit, {}, lambda _entry: None)
    headers = [(b"host", b"n1"), (b"authorization", b"Bearer t")]
    scope = {
        "type": "http",
        "method": "GET",
        "path": PATH,
        "raw_path": PATH.encode(),
        "query_string": b"",
        "headers": headers,
    }
    asyncio.run(middleware(scope, receive, send))
    assert sent == expected
    assert limit.requests == 0


@pytest.mark.parametrize("has_length", [True, False])
def test_a_forwarded_answer_whose_node_is_lost_ends_with_the_connection_and_one_warning(
    has_length: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI(openapi_url=None)
    problems.install(app)

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        raise Lost("n2: connection reset")

    @app.get(PATH)
    async def read() -> None:
        headers = {"content-length": "10"} if has_length else None
        raise AnsweredElsewhere(StreamingResponse(pieces(), headers=headers))

    async def run() -> tuple[bytes, bool]:
        asgi = HttpMiddleware(app, Tokens(None, ""), Meter(), InFlightLimit(9, 1 << 20), {}, lambda _: None)
        listener = Listener(HttpSettings(), 100, Meter())
        protocol: Any = partial(Connection, listener)
        config = uvicorn.Config(asgi, http=protocol, lifespan="off", log_config=None, access_log=False)
        config.load()
        connection, transport = connect(listener, config)
        connection.data_received(f"GET {PATH} HTTP/1.1\r\nhost: n1\r\n\r\n".encode())
        async with asyncio.timeout(5):
            while not transport.closing:  # noqa: ASYNC110  # a transport has no event
                await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)
        return bytes(transport.sent), transport.closing

    with caplog.at_level(logging.WARNING):
        sent, is_closed = asyncio.run(run())
    assert is_closed
    assert sent.endswith(b"first" if has_length else b"5\r\nfirst\r\n")
    (line,) = caplog.records
    assert (line.levelname, line.getMessage(), line.exc_info) == ("WARNING", "forwarded answer cut off", None)
    assert vars(line)["reason"] == "n2: connection reset"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_an_unexpected_failure_of_a_route_is_a_problem_document(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Starlette itself would answer it with text."""
    app = FastAPI(openapi_url=None)
    problems.install(app)

    @app.get(PATH)
    async def read() -> None:
        raise ZeroDivisionError

    answer = _answer(app, method, PATH)
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    if method == "GET":
        problem = answer.json()
        assert (problem["code"], problem["outcome"]) == ("internal", "unknown")
        assert problem["request_id"] == answer.headers["x-request-id"]
    assert [record.message for record in caplog.records] == ["request failed"]


def test_a_client_that_disconnects_within_its_request_is_no_failure_of_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each wrote a traceback of 8 KB, and counted as a 500, of which operators are alerted."""
    meter, sent = Meter(), list[Any]()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive, send).body()

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    path = "/v1/logs/x/schema"
    scope = {"type": "http", "method": "PUT", "path": path, "raw_path": path.encode(), "query_string": b""}
    headers = [(b"host", b"n1")]
    middleware = HttpMiddleware(
        inner, Tokens(None, ""), meter, InFlightLimit(9, 1 << 20), {}, lambda _entry: None
    )
    with caplog.at_level(logging.INFO):
        asyncio.run(middleware({**scope, "headers": headers}, receive, send))
    assert meter.answers == {("PUT", "unknown", 408): 1}
    (line,) = caplog.records
    assert (line.levelname, line.exc_info) == ("INFO", None)


@pytest.mark.parametrize("name", ["a%23b", "a%3Fb", "a%0A"])
def test_a_problem_has_the_whole_path_and_the_methods_of_its_route(name: str) -> None:
    app = FastAPI(openapi_url=None)
    problems.install(app)
    for path, method in (("/v1/logs/{log}", "PATCH"), ("/v1/logs/{log}/tail", "GET")):
        app.add_api_route(path, lambda log: log, methods=[method])
    app.state.routes = [each for each in app.routes if isinstance(each, APIRoute)]
    answer = _answer(app, "POST", f"/v1/logs/{name}/tail")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    assert answer.json()["instance"] == f"/v1/logs/{name}/tail"


def _answer(app: FastAPI, method: str, target: str) -> httpx.Response:
    async def run() -> httpx.Response:
        asgi = HttpMiddleware(app, Tokens(None, ""), Meter(), InFlightLimit(9, 1 << 20), {}, lambda _: None)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url="http://n1") as client:
            return await client.request(method, target)

    return asyncio.run(run())
