"""The lane of long polls and the plain route give the same bytes, whatever a client sends."""

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from app.api.access.tokens import Tokens
from app.api.http.dependencies import PIECE_BYTES
from app.api.read import lane
from app.api.read.lane import PollLane
from app.listener.listener import Listener
from app.middleware import HttpMiddleware
from app.settings.model import HttpSettings
from tests.support.connections import FakeTransport, connect
from tests.support.event_loop import until
from tests.support.in_process import InProcess, node_in_process

HTTP = HttpSettings(max_head_bytes=4096)
RECORDS = b"/v1/logs/default/records"
READER = b"Authorization: Bearer reader"
WRITER = b"Authorization: Bearer writer"


class Fronts:
    """Two listeners of one node: with the lane, and without it."""

    def __init__(self, node: InProcess, *, tokens: bool = False) -> None:
        app = node.app
        self.tokens = Tokens(Path("tokens"), "reader read\nwriter append\n") if tokens else app._tokens
        self.app = HttpMiddleware(
            app._inner, self.tokens, app._meter, app._in_flight, app._actions, app._audit
        )
        self.in_flight = app._in_flight
        self.lane = PollLane(node.broker, self.tokens, app._in_flight)
        meter = node.broker.meter
        self.listeners = [Listener(HTTP, 100, meter, None, self.lane), Listener(HTTP, 100, meter)]
        self.config = uvicorn.Config(self.app, lifespan="off", log_config=None, access_log=False)
        self.config.load()

    def connect(self, front: int) -> tuple[Any, FakeTransport]:
        return connect(self.listeners[front], self.config)

    async def exchange(self, front: int, pieces: list[bytes], answers: int) -> bytes:
        """Return what a client gets that sends pieces, once it has so many answers or the connection ends."""
        connection, transport = self.connect(front)
        for piece in pieces:
            await until(lambda: not transport.paused)
            if not transport.closing:
                connection.data_received(piece)
        await until(lambda: transport.closing or whole_answers(transport.sent) >= answers)
        transport.close()
        connection.connection_lost(None)
        return re.sub(rb"\r\ndate: [^\r]+", b"", bytes(transport.sent))


def whole_answers(sent: bytes) -> int:
    """Return the number of whole answers."""
    count, rest = 0, bytes(sent)
    while (end := rest.find(b"\r\n\r\n")) >= 0:
        length = re.search(rb"\r\ncontent-length: (\d+)", rest[:end])
        size = end + 4 + (0 if length is None else int(length[1]))
        count += len(rest) >= size
        rest = rest[size:]
    return count


def get(query: bytes, *lines: bytes, path: bytes = RECORDS) -> bytes:
    first = b"GET %b%b HTTP/1.1" % (path, query)
    return b"\r\n".join((first, b"Host: x", b"X-Request-Id: same", *lines, b"", b""))


QUERIES = (
    b"?from_index=%d&wait_ms=1", b"?wait_ms=1&from_index=%d", b"?from_index=%d&wait_ms=1&limit=1",
    b"?from_index=%d&wait_ms=1&consistency=committed", b"?from_index=%d&wait_ms=1&consistency=local",
    b"?from_index=%d&wait_ms=1&encoding=base64", b"?from_index=%d&wait_ms=1&include=control",
    b"?from_index=%d&wait_ms=1&until_index=3", b"?from_index=%d&wait_ms=1&key=k",
    b"?from_index=%d&wait_ms=1&max_bytes=1", b"?from_index=%d&wait_ms=0", b"?from_index=%d",
    b"?from_index=0%d&wait_ms=1", b"?from_index=%d&wait_ms=1&wait_ms=1", b"?from_index=%d&from=latest",
    b"?from_index=%d&wait_ms=1&last=1", b"?from_index=%d&wait_ms=x", b"?from_index=%d&wait_ms=1&foo=1",
    b"?from_index=%d&wait_ms=1&term=0", b"?from_index=+%d&wait_ms=1", b"?from_index=%d&wait_ms=1&limit=",
    b"?from_index=%%3%d&wait_ms=1", b"?from_index=%d&wait_ms=1&until_timestamp=1",
    b"?from_index=%d1234567890", b"?from_index=%d&wait_ms=1&from_index=2", b"?xfrom_index=%d&wait_ms=1",
    b"?cursor=from_index=%d&wait_ms=1",
)  # fmt: skip
LINES = (
    b"Accept: application/json", b"Accept: application/x-ndjson", b"Accept: text/plain",
    b"Accept: application/vnd.apache.arrow.stream", b"Accept: application/vnd.commitlog.batch",
    b"Accept: */*;q=0.5, application/x-ndjson", READER,
    WRITER, b"Authorization: none", b"Commitlog-Min-Index: 1",
    b"Commitlog-Min-Index: 99", b"Commitlog-No-Forward: 1", b"Content-Length: 0", b"Connection: close",
    b"Origin: http://evil", b"X-Request-Id: other", b"Last-Event-ID: x", b"Expect: 100-continue",
    b"Upgrade: websocket", b"Referer: http://x/?from_index=7", b"Connection: keep-alive",
)  # fmt: skip
PATHS = tuple(b"/v1/logs/%b/records" % name for name in (b"none", b"__audit", b"def%61ult", b"NO"))


def random_request(chance: random.Random) -> bytes:
    query = chance.choice(QUERIES[:4]) if chance.random() < 0.6 else chance.choice(QUERIES)
    lines = [chance.choice((READER, READER, WRITER))] if chance.random() < 0.8 else []
    while chance.random() < 0.4:
        lines.append(chance.choice(LINES))
    path = chance.choice(PATHS) if chance.random() < 0.1 else RECORDS
    return get(query % chance.randrange(8), *lines, path=path)


async def fill(node: InProcess, values: int) -> None:
    """Append records."""
    octets = {"content-type": "application/octet-stream"}
    for number in range(values):
        key = {"commitlog-key": "k"} if number % 2 else {}
        sent = await node.client.post(RECORDS.decode(), content=b"v%d" % number, headers=octets | key)
        assert sent.status_code == 200


@pytest.mark.parametrize("tokens", [False, True])
def test_lane_and_plain_route_agree_on_random_requests(tmp_path: Path, tokens: bool) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            fronts = Fronts(node, tokens=tokens)
            await fill(node, 4)
            seen = b""
            for seed in range(100):
                chance = random.Random(seed)
                requests = [random_request(chance) for _ in range(chance.choice((1, 2, 4)))]
                data, pieces = b"".join(requests), requests
                if chance.random() < 0.3:
                    cut = chance.randrange(len(data))
                    pieces = [data[:cut], data[cut:]]
                answers = [await fronts.exchange(front, pieces, len(requests)) for front in (0, 1)]
                assert answers[0] == answers[1], (seed, pieces)
                seen += answers[0]
            assert (b" 403 Forbidden" in seen) is tokens
            assert fronts.in_flight.requests == fronts.in_flight.bytes == 0
            callers = [fronts.tokens._unrestricted, *fronts.tokens._callers.values()]
            assert [caller.in_flight for caller in callers] == [0] * len(callers)
            assert fronts.lane._known

    asyncio.run(run())


def test_a_known_head_with_another_index_is_answered_without_the_parser(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            fronts = Fronts(node)
            await fill(node, 3)
            end = node.broker.lookup.find("default").serving.committed_index + 1  # type: ignore[union-attr]
            heads = [get(b"?from_index=%d&wait_ms=1" % index) for index in (0, 1, end, end + 1, 10**17)]
            connection, transport = fronts.connect(0)
            for number, head in enumerate(heads):
                if number == 1:
                    connection.parser = None  # a parser would be used from here on
                connection.data_received(head)
                await until(lambda wanted=number + 1: whole_answers(transport.sent) == wanted)  # type: ignore[misc]
            transport.sent = bytearray(re.sub(rb"\r\ndate: [^\r]+", b"", bytes(transport.sent)))
            assert bytes(transport.sent) == await fronts.exchange(1, heads, len(heads))
            assert transport.sent.count(b'"code":"index-out-of-range"') == 2

    asyncio.run(run())


def test_a_poll_waits_and_a_client_that_disconnects_ends_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            fronts = Fronts(node)
            await fill(node, 1)
            end = node.broker.lookup.find("default").serving.committed_index + 1  # type: ignore[union-attr]
            (stays, transport), (leaves, left) = fronts.connect(0), fronts.connect(0)
            for connection in (stays, leaves):
                connection.data_received(get(b"?from_index=%d&wait_ms=60000" % end))
            assert fronts.in_flight.requests == 2
            left.close()
            leaves.connection_lost(None)
            await until(lambda: fronts.in_flight.requests == 1)
            assert not transport.sent
            await fill(node, 1)
            await until(lambda: whole_answers(transport.sent) == 1)
            assert b'"value":"v0"' in transport.sent
            assert not left.sent
            assert fronts.in_flight.requests == 0
            leaves, left = fronts.connect(0)
            leaves.data_received(get(b"?from_index=%d&wait_ms=60000" % (end + 1)))
            left.close()
            leaves.connection_lost(None)  # before the poll has begun
            await until(lambda: fronts.in_flight.requests == 0)
            assert fronts.tokens._unrestricted.in_flight == 0

    asyncio.run(run())


def test_a_known_head_is_refused_once_its_token_is_gone_or_the_node_is_full(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            fronts = Fronts(node, tokens=True)
            request = get(b"?from_index=0&wait_ms=1", READER)
            assert b" 200 " in await fronts.exchange(0, [request], 1)
            assert fronts.lane.known(request) is not None
            fronts.in_flight.requests += 1_000_000
            assert b" 429 " in await fronts.exchange(0, [request], 1)
            fronts.in_flight.requests -= 1_000_000
            fronts.tokens._replace({})
            assert b" 401 " in await fronts.exchange(0, [request], 1)

    asyncio.run(run())


def test_a_large_page_is_sent_as_its_client_reads_it(tmp_path: Path) -> None:
    """In the pieces of the plain route; not after the token was removed."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            fronts = Fronts(node, tokens=True)
            value = b"v" * (PIECE_BYTES - 100)
            for _ in range(3):
                octets = {"content-type": "application/octet-stream"}
                await node.client.post(RECORDS.decode(), content=value, headers=octets)
            request = get(b"?from_index=0&wait_ms=1", READER)
            whole = [await fronts.exchange(front, [request], 1) for front in (0, 1)]
            assert whole[0] == whole[1]
            connection, transport = fronts.connect(0)
            connection.pause_writing()  # after the request, as the transport does once its buffer is full
            connection.flow.resume_writing()
            connection.data_received(request)
            connection.pause_writing()
            await until(lambda: fronts.in_flight.bytes > len(value))
            assert not transport.sent
            connection.resume_writing()
            await until(lambda: whole_answers(transport.sent) == 1)
            connection.data_received(request)
            connection.pause_writing()
            await until(lambda: fronts.in_flight.bytes > len(value))
            fronts.tokens._replace({})
            connection.resume_writing()
            await until(lambda: transport.closing)
            assert whole_answers(transport.sent) == 1
            await until(lambda: fronts.in_flight.bytes == 0)

    asyncio.run(run())


def test_the_memory_of_heads_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "KNOWN_HEADS_MAX", 20)

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            fronts = Fronts(node)
            connection, transport = fronts.connect(0)
            for number in range(22):
                connection.data_received(get(b"?from_index=0&wait_ms=1", b"Number: %d" % number))
                await until(lambda wanted=number + 1: transport.sent.count(b" 200 OK") == wanted)  # type: ignore[misc]
            assert 0 < len(fronts.lane._known) <= 20

    asyncio.run(run())
