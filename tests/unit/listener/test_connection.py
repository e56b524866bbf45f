"""Connections of clients by raw sockets: what a client can hold is bounded, and what is answered stays so."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import uvicorn

from app.api.access.hosts import KnownHosts
from app.listener.connection import Connection
from app.listener.listener import Listener
from app.settings.model import HttpSettings
from app.telemetry import Meter

LIMITS = HttpSettings(max_head_bytes=8_192)
IMPATIENT = HttpSettings(  # for tests of the limits: a busy machine takes as long for a request
    head_timeout_ms=200, idle_timeout_ms=1_000, body_timeout_ms=1, write_timeout_ms=300, max_head_bytes=8_192
)
GET = b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n"
SLOW = b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nok"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


def post(headers: bytes, body: bytes = b"ok") -> bytes:
    return b"POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" + headers + b"\r\n\r\n" + body


AMBIGUOUS = {  # what another server or a proxy may read in another way is refused
    "length and chunks": post(b"content-length: 5\r\ntransfer-encoding: chunked", b"0\r\n\r\n" + SMUGGLED),
    "chunks and length": post(b"transfer-encoding: chunked\r\ncontent-length: 5", b"0\r\n\r\n" + SMUGGLED),
    "two lengths": post(b"content-length: 0\r\ncontent-length: %d" % len(SMUGGLED), SMUGGLED),
    "two equal lengths": post(b"content-length: 2\r\ncontent-length: 2"),
    "list of lengths": post(b"content-length: 2, 2"),
    "length with a sign": post(b"content-length: +2"),
    "length in hexadecimal": post(b"content-length: 0x2"),
    "length beyond 64 bits": post(b"content-length: " + b"9" * 30),
    "empty length": post(b"content-length:", SMUGGLED),
    "folded header": post(b"x: a\r\n content-length: %d" % len(SMUGGLED), SMUGGLED),
    "folded length": post(b"content-length:\r\n 2"),
    "unknown coding": post(b"transfer-encoding: xchunked", b"0\r\n\r\n" + SMUGGLED),
    "identity": post(b"transfer-encoding: identity", SMUGGLED),
    "compressed chunks": post(b"transfer-encoding: gzip, chunked", b"0\r\n\r\n" + SMUGGLED),
    "compression before chunks": post(
        b"transfer-encoding: gzip\r\ntransfer-encoding: chunked", b"0\r\n\r\n" + SMUGGLED
    ),
    "chunks in HTTP/1.0": b"POST /echo HTTP/1.0\r\nhost: x\r\nconnection: keep-alive\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunks not last": post(b"transfer-encoding: chunked, identity", b"0\r\n\r\n" + SMUGGLED),
    "two codings": post(
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity", b"0\r\n\r\n" + SMUGGLED
    ),
    "coding after a tab": post(b"transfer-encoding:\x0bchunked", b"0\r\n\r\n" + SMUGGLED),
    "blank before the colon": post(b"content-length : %d" % len(SMUGGLED), SMUGGLED),
    "NUL in a header": post(b"x: a\0b\r\ncontent-length: 2"),
    "CR in a header": post(b"x: a\rb\r\ncontent-length: 2"),
    "LF ends a header": post(b"x: a\ncontent-length: %d" % len(SMUGGLED), SMUGGLED),
    "LF ends lines": b"POST /echo HTTP/1.1\nhost: x\ncontent-length: 2\n\nok",
    "LF in a chunk's extension": post(b"transfer-encoding: chunked", b"2;a\nxx\r\nok\r\n0\r\n\r\n"),
    "sign of a chunk": post(b"transfer-encoding: chunked", b"+2\r\nok\r\n0\r\n\r\n"),
    "chunk beyond 64 bits": post(b"transfer-encoding: chunked", b"f" * 20 + b"\r\nok\r\n0\r\n\r\n"),
    "chunk longer than its size": post(b"transfer-encoding: chunked", b"2\r\nokX\r\n0\r\n\r\n"),
    "NUL in the path": b"GET /e\0cho HTTP/1.1\r\nhost: x\r\n\r\n",
    "blank in the path": b"GET /e cho HTTP/1.1\r\nhost: x\r\n\r\n",
    "other version": b"GET /echo HTTP/3.7\r\nhost: x\r\n\r\n",
    "version 2.0 of a request": b"GET /echo HTTP/2.0\r\nhost: x\r\n\r\n",
    "version 0.9 of a request": b"GET /echo HTTP/0.9\r\nhost: x\r\n\r\n",
    "start of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no host": b"GET /echo HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /echo HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "two equal hosts": b"GET /echo HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n",
    "two hosts in HTTP/1.0": b"GET /echo HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n",
    "tunnel": b"CONNECT evil:443 HTTP/1.1\r\nhost: x\r\n\r\n",
}
UPGRADES = {
    "websocket": b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
    "h2c": b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n",
}


@pytest.fixture(autouse=True)
def sweeping_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.listener.listener.SWEEP_S", 0.02)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # what is awaited has no event
            await asyncio.sleep(0.01)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """/echo: the header `commitlog-key`; /slow: its body, after a moment; /large: 64 MiB; /never: until the
    end; /x:stream: nothing, and the response starts before the body is read."""
    body = b""
    if scope["path"] == "/x:stream":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
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
    elif scope["path"] == "/never":
        await receive()
    else:
        body = dict(scope["headers"]).get(b"commitlog-key", b"none")
    if scope["path"] == "/x:stream":
        body = b""
    elif scope["path"] == "/parts":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one ", b"", b"two "):
            await send({"type": "http.response.body", "body": part, "more_body": True})
    else:
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


@dataclass
class Server:
    port: int
    meter: Meter
    requests: list[tuple[str, str]]  # method and path of all that the application has seen

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
async def serving(
    limits: HttpSettings = LIMITS, max_connections: int = 100, hosts: KnownHosts | None = None
) -> AsyncIterator[Server]:
    meter, requests = Meter(), []

    async def observed(scope: Any, receive: Any, send: Any) -> None:
        requests.append((scope["method"], scope["path"]))
        await application(scope, receive, send)

    listener = Listener(limits, max_connections, meter, hosts=hosts)
    config = uvicorn.Config(
        observed,
        http=partial(Connection, listener),  # type: ignore[arg-type]
        port=0,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=limits.idle_timeout_ms / 1000,  # type: ignore[arg-type]  # as serve
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    sweeps = asyncio.create_task(listener.end_late_requests())
    try:
        (port,) = {socket.getsockname()[1] for each in server.servers for socket in each.sockets}
        yield Server(port, meter, requests)
    finally:
        sweeps.cancel()
        await server.shutdown()


def run(test: Callable[[Server], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(**options) as server:
            await test(server)

    asyncio.run(main())


def problem(answer: bytes) -> tuple[int, str]:
    """(status, code) of one refusal."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    return int(head.split()[1]), json.loads(body)["code"]


def test_a_foreign_name_of_the_node_is_refused() -> None:
    """A page whose name leads to 127.0.0.1 has the node's origin for a browser (DNS rebinding)."""

    async def test(server: Server) -> None:
        for host in (
            b"evil.example:8101",
            b"evil.example.",
            b"127.0.0.1.evil.example",
            b"localhost.evil.example",
        ):
            answer = await server.exchange(GET.replace(b"host: x", b"host: " + host))
            assert problem(answer) == (403, "cross-origin"), host
        assert server.requests == []
        known = (b"localhost:1", b"127.0.0.1:8101", b"[::1]:8101", b"n1", b"a.LOCALHOST", b"N1.Example:443")
        for host in known:
            request = GET.replace(b"host: x", b"connection: close\r\nhost: " + host)
            assert (await server.exchange(request)).startswith(b"HTTP/1.1 200"), host
        assert len(server.requests) == len(known)

    run(test, hosts=KnownHosts(frozenset(("n1.example",))))


def test_blanks_around_a_header_value_are_not_part_of_it() -> None:
    async def test(server: Server) -> None:
        request = b"GET /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\nCommitlog-Key:  k 1 \t\r\n\r\n"
        assert (await server.exchange(request)).endswith(b"\r\n\r\nk 1")

    run(test)


@pytest.mark.parametrize(
    "pieces",
    [
        (b"GET /" + b"x" * 9_000,),
        (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",),
        (b"GET / HTTP/1.1\r\na: ", *[b"b" * 1_000] * 9),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n",),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 9_000 + b"\r\n\r\n",),
    ],
    ids=["url", "url-of-a-whole-request", "value-in-pieces", "count", "value"],
)
def test_a_head_has_a_largest_size(pieces: tuple[bytes, ...]) -> None:
    async def test(server: Server) -> None:
        assert problem(await server.exchange(*pieces)) == (431, "head-too-large")

    run(test)


def test_a_request_target_has_a_largest_size_of_its_own() -> None:
    """The parser of targets takes no more, whatever the limit of the head is."""

    async def test() -> None:
        async with serving(replace(LIMITS, max_head_bytes=200_000)) as server:
            request = b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
            assert problem(await server.exchange(request)) == (431, "head-too-large")

    asyncio.run(test())


@pytest.mark.parametrize(
    "head",
    [b"GET / HTTP/1.1\r\na: " + b"b" * 9_000 + b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"],
    ids=["size", "host"],
)
def test_the_bytes_of_a_refused_head_are_freed_with_its_connection(head: bytes) -> None:
    """Not by the collector of cycles, which runs after hundreds of them."""

    def held() -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, Connection)]

    async def test(server: Server) -> None:
        await server.exchange(head)
        await until(lambda: not held())

    gc.collect()
    gc.disable()
    try:
        run(test)
    finally:
        gc.enable()


def test_a_head_and_a_body_that_do_not_end_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.listener.connection._BODY_GRACE_S", 0.3)

    async def test(server: Server) -> None:
        head = server.exchange(b"GET / HTTP/1.1\r\nho")
        body = server.exchange(b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf")
        idle = server.exchange()
        answers = await asyncio.gather(head, body, idle)
        assert [problem(answer) for answer in answers[:2]] == [(408, "request-timeout")] * 2
        assert answers[2] == b""

    run(test, limits=IMPATIENT)


def test_a_stream_of_appends_may_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.listener.connection._BODY_GRACE_S", 0.0)

    async def test(server: Server) -> None:
        reader, writer = await server.connect()
        head = b"POST /v1/logs/default/records:stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        writer.write(head + b"content-length: 2\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.3)
        writer.write(b"ok")
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()

    run(test, limits=IMPATIENT)


@pytest.mark.rule("D-23")
def test_junk_behind_a_request_does_not_replace_its_answer() -> None:
    async def test(server: Server) -> None:
        for junk in (
            b"\x00\x01junk\r\n\r\n",
            b"POST /slow HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ):
            answer = await server.exchange(SLOW, junk)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"\r\n\r\nok")
            assert answer.count(b"HTTP/1.1") == 1

    run(test)


def test_junk_and_a_broken_body_are_refused() -> None:
    async def test(server: Server) -> None:
        assert problem(await server.exchange(b"\x16\x03\x01\x00junk")) == (400, "bad-request")
        answer = await server.exchange(b"FOO / HTTP/1.1\r\nHost: n1\r\n\r\n")
        assert problem(answer) == (400, "bad-request")
        assert b"it does not begin with a method of HTTP" in answer
        head = b"POST /slow HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
        assert problem(await server.exchange(head)) == (400, "bad-request")
        both = head.replace(b"transfer-encoding", b"content-length: 2\r\ntransfer-encoding")
        negative = head.replace(b"transfer-encoding: chunked", b"content-length: -2")
        for wrong, reason in (
            (both, b"Transfer-Encoding can't be present with Content-Length"),
            (negative, b"Invalid character in Content-Length"),
        ):
            answer = await server.exchange(wrong)
            assert problem(answer) == (400, "bad-request")
            assert b"this is not HTTP/1.1: " + reason in answer

    run(test)


def test_a_stream_that_expects_100_is_continued_before_its_response() -> None:
    head = (
        b"POST /x:stream?acks=all HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n"
        b"connection: close\r\n\r\n"
    )

    async def test(server: Server) -> None:
        answer = await server.exchange(head, b"ok")
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
        assert answer.count(b"100 Continue") == 1
        assert b"100 Continue" not in await server.exchange(head.replace(b"HTTP/1.1", b"HTTP/1.0"), b"ok")
        answer = await server.exchange(SLOW + head, b"ok")  # an earlier response is not interrupted
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.index(b"ok") < (answer + b"100 Continue").index(b"100 Continue")

    run(test)


def test_http_1_0_gets_no_interim_answer() -> None:
    async def test(server: Server) -> None:
        for version, status in ((b"1.1", b"100 Continue"), (b"1.0", b"200 OK")):
            head = post(b"expect: 100-continue\r\ncontent-length: 2", b"").replace(b"1.1", version)
            assert (await server.exchange(head, b"ok")).startswith(b"HTTP/1.1 " + status)

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
        last = GET.replace(b"host: x", b"host: x\r\nconnection: close")
        assert (await server.exchange(last)).startswith(b"HTTP/1.1 200")

    run(test, max_connections=3)


def test_an_answer_that_is_not_read_is_given_up() -> None:
    async def test(server: Server) -> None:
        _, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET.replace(b"/echo", b"/large"))
        await until(lambda: server.meter.connections == 1)
        await until(lambda: not server.meter.connections)
        writer.transport.abort()

    run(test, limits=IMPATIENT)


@pytest.mark.parametrize("line", [b"CONNECT x:80", b"GET http://x", b"GET http://x:99999/echo"])
def test_a_target_without_a_path_is_named(line: bytes) -> None:
    async def test(server: Server) -> None:
        answer = await server.exchange(line + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert problem(answer) == (400, "bad-request")
        assert b"the target of the request must be a path" in answer

    run(test)


def test_http_1_0_needs_no_host() -> None:
    async def test(server: Server) -> None:
        assert b" 200 " in (await server.exchange(b"GET /echo HTTP/1.0\r\n\r\n")).partition(b"\r\n")[0]

    run(test)


def test_http_1_0_gets_no_chunks() -> None:
    """Its client would take the sizes of the chunks for a part of the body (RFC 9112, section 6.1)."""

    async def test(server: Server) -> None:
        for method, body in ((b"GET", b"one two none"), (b"HEAD", b"")):
            answer = await server.exchange(method + b" /parts HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
            head, _, received = answer.partition(b"\r\n\r\n")
            assert (received, b"connection: close" in head) == (body, True)
            assert b"transfer-encoding" not in head
        head, _, received = (await server.exchange(b"GET /echo HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")
        assert (received, b"content-length: 4" in head) == (b"none", True)

    run(test)


def test_trailers_are_not_headers() -> None:
    """The bytes after the last chunk arrive after the checks of the head (RFC 9110, section 6.5.1)."""
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"
    body = b"2\r\nok\r\n0\r\n"
    trailers = b"commitlog-key: forged\r\nhost: y\r\nexpect: 100-continue\r\n\r\n"

    async def test(server: Server) -> None:
        for key, expected in ((b"", b"none"), (b"commitlog-key: own\r\n", b"own")):
            for pieces in ((head + key + b"\r\n" + body + trailers,), (head + key + b"\r\n", body, trailers)):
                answer = await server.exchange(*pieces)
                assert answer.endswith(b"\r\n\r\n" + expected)
                assert answer.count(b"HTTP/1.1 ") == 1
        long = head + b"\r\n" + body + b"x: " + b"y" * 9_000 + b"\r\n\r\n"
        assert problem(await server.exchange(long)) == (431, "head-too-large")

    run(test)


@pytest.mark.parametrize("kind", AMBIGUOUS)
def test_an_ambiguous_request_is_refused_and_hides_no_other(kind: str) -> None:
    async def test(server: Server) -> None:
        answer = await server.exchange(AMBIGUOUS[kind])
        assert problem(answer) == (400, "bad-request")
        assert answer.count(b"HTTP/1.1 ") == 1
        assert ("GET", "/smuggled") not in server.requests

    run(test)


@pytest.mark.parametrize("kind", UPGRADES)
def test_a_client_that_asks_for_another_protocol_is_served_by_this_one(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    asks = UPGRADES[kind]

    async def test(server: Server) -> None:
        first = b"GET /echo HTTP/1.1\r\nhost: x\r\ncommitlog-key: 1\r\n" + asks + b"\r\n"
        second = b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n" + asks + b"\r\n2"
        last = b"GET /echo HTTP/1.1\r\nhost: x\r\ncommitlog-key: 3\r\nconnection: close\r\n\r\n"
        for pieces, expected in (
            ((first + last,), [b"1", b"3"]),
            ((second + last,), [b"2", b"3"]),
            ((second[:20], second[20:30], second[30:] + last), [b"2", b"3"]),
        ):
            answer = await server.exchange(*pieces)
            bodies = [part.partition(b"\r\n\r\n")[2] for part in answer.split(b"HTTP/1.1 ")[1:]]
            assert bodies == expected
        # The header is not at the start of a piece: its body is never taken for empty.
        seen = server.requests.count(("POST", "/slow"))
        assert (await server.exchange(first + second)).count(b"HTTP/1.1 ") == 1
        assert server.requests.count(("POST", "/slow")) == seen

    run(test)
    assert caplog.records == []  # a client cannot fill the node's log
