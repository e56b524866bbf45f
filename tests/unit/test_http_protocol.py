"""Connections of clients by raw sockets: what a client can hold is bounded, and what is answered stays so."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from app.http_protocol import Listener
from app.settings.model import HttpSettings
from app.telemetry import Meter

LIMITS = HttpSettings(
    head_timeout_ms=200, idle_timeout_ms=1_000, body_timeout_ms=1, write_timeout_ms=300, max_head_bytes=8_192
)
GET = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"
SLOW = b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture(autouse=True)
def sweeping_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http_protocol.SWEEP_S", 0.02)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is awaited has no event
            await asyncio.sleep(0.01)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """/echo: the header `commitlog-key`; /slow: its body, after a moment; /large: 64 MiB."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    else:
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(0.1)
    elif scope["path"] == "/large":
        body = bytes(64 << 20)
    else:
        body = dict(scope["headers"]).get(b"commitlog-key", b"none")
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})


@dataclass
class Server:
    port: int
    meter: Meter

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def exchange(self, *pieces: bytes) -> bytes:
        """Everything that comes back until the server closes."""
        reader, writer = await self.connect()
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        answer = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return answer


@asynccontextmanager
async def serving(max_connections: int = 100) -> AsyncIterator[Server]:
    meter = Meter()
    listener = Listener(LIMITS, max_connections, meter)
    config = uvicorn.Config(
        application,
        http=listener.protocol,  # type: ignore[arg-type]
        port=0,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=LIMITS.idle_timeout_ms // 1000,
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    sweep = asyncio.create_task(listener.sweep())
    try:
        (port,) = {socket.getsockname()[1] for each in server.servers for socket in each.sockets}
        yield Server(port, meter)
    finally:
        sweep.cancel()
        await server.shutdown()


def run(test: Callable[[Server], Awaitable[None]], **options: int) -> None:
    async def main() -> None:
        async with serving(**options) as server:
            await test(server)

    asyncio.run(main())


def problem(answer: bytes) -> tuple[int, str]:
    """(status, code) of one refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["code"]


def test_blanks_around_a_header_value_are_not_part_of_it() -> None:
    async def test(server: Server) -> None:
        request = b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\nCommitlog-Key:  k 1 \t\r\n\r\n"
        assert (await server.exchange(request)).endswith(b"\r\n\r\nk 1")

    run(test)


@pytest.mark.parametrize(
    "pieces",
    [
        (b"GET /" + b"x" * 9_000,),
        (b"GET / HTTP/1.1\r\na: ", *[b"b" * 1_000] * 9),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n",),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 9_000 + b"\r\n\r\n",),
    ],
    ids=["url", "value-in-pieces", "count", "value"],
)
def test_a_head_has_a_largest_size(pieces: tuple[bytes, ...]) -> None:
    async def test(server: Server) -> None:
        assert problem(await server.exchange(*pieces)) == (431, "head-too-large")

    run(test)


def test_a_head_and_a_body_that_do_not_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http_protocol._BODY_GRACE_S", 0.3)

    async def test(server: Server) -> None:
        head = server.exchange(b"GET / HTTP/1.1\r\nho")
        body = server.exchange(b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        idle = server.exchange()
        answers = await asyncio.gather(head, body, idle)
        assert [problem(answer) for answer in answers[:2]] == [(408, "request-timeout")] * 2
        assert answers[2] == b""

    run(test)


def test_a_stream_of_appends_may_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.http_protocol._BODY_GRACE_S", 0.0)

    async def test(server: Server) -> None:
        reader, writer = await server.connect()
        head = b"POST /v1/logs/default/records:stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        writer.write(head + b"content-length: 2\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)
        writer.write(b"ok")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()

    run(test)


@pytest.mark.rule("D-23")
def test_junk_behind_a_request_does_not_replace_its_answer() -> None:
    async def test(server: Server) -> None:
        for junk in (
            b"\x00\x01junk\r\n\r\n",
            b"POST /slow HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ):
            answer = await server.exchange(SLOW, junk)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"\r\n\r\nok")
            assert answer.count(b"HTTP/1.1") == 1

    run(test)


def test_junk_and_a_broken_body_are_refused() -> None:
    async def test(server: Server) -> None:
        assert problem(await server.exchange(b"\x16\x03\x01\x00junk")) == (400, "bad-request")
        head = b"POST /slow HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
        assert problem(await server.exchange(head)) == (400, "bad-request")
        both = head.replace(b"transfer-encoding", b"content-length: 2\r\ntransfer-encoding")
        assert problem(await server.exchange(both)) == (400, "bad-request")

    run(test)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def test(server: Server) -> None:
        last = GET.replace(b"host: x", b"host: x\r\nconnection: close\r\ncommitlog-key: last")
        answer = await server.exchange(SLOW + GET + last)
        assert [part.rpartition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 200")[1:]] == [
            b"ok",
            b"none",
            b"last",
        ]

    run(test)


def test_connections_beyond_the_limit_are_refused_and_counted() -> None:
    async def test(server: Server) -> None:
        held = [await server.connect() for _ in range(3)]
        await until(lambda: server.meter.connections == 3)
        assert problem(await server.exchange()) == (429, "rate-limited")
        assert (server.meter.connections, server.meter.refused_connections) == (3, 1)
        for _, writer in held:
            writer.close()
        await until(lambda: not server.meter.connections)
        assert (await server.exchange(GET)).startswith(b"HTTP/1.1 200")

    run(test, max_connections=3)


def test_an_answer_that_is_not_read_is_given_up() -> None:
    async def test(server: Server) -> None:
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"/echo", b"/large"))
        await until(lambda: server.meter.connections == 1)
        await until(lambda: not server.meter.connections)
        writer.transport.abort()

    run(test)
