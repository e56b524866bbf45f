"""Answers that last: a stream ends when its token loses rights."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.api.access.tokens import Tokens
from app.api.http.in_flight_limit import InFlightLimit
from app.middleware import HttpMiddleware
from app.telemetry import Meter

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
