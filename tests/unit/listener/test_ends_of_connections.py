"""Ends of a connection, by its time limits and by its client, at the loop's time that the test gives."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvicorn

from app.api.read.outlet import OUTLET
from app.listener.connection import _BODY_GRACE_S, _EOF_GRACE_S, Connection
from app.listener.listener import Listener
from app.settings.model import HttpSettings
from app.telemetry import Meter
from tests.support.connections import connect
from tests.support.event_loop import until

SETTINGS = HttpSettings(head_timeout_ms=10_000, body_timeout_ms=3_000, write_timeout_ms=9_000)
KEEP_ALIVE_S = 2.0
BODY_S = 3.0 + _BODY_GRACE_S
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"


class Scene:
    """A connection of an application that answers when the test lets it. Times: seconds since its begin."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.may_answer = asyncio.Event()
        self.listener = Listener(SETTINGS, 100, Meter())
        protocol: Any = partial(Connection, self.listener)
        config = uvicorn.Config(
            self.application,
            http=protocol,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_S,  # type: ignore[arg-type]
        )
        config.load()
        self.connection, self.transport = connect(self.listener, config)
        self.connection._head_since_s = self.connection._received_s = 0.0

    async def application(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["path"].endswith(":stream"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"one", "more_body": True})
        while (await receive()).get("more_body"):
            pass
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def receive(self, data: bytes, at_s: float = 0.0) -> None:
        self.connection.data_received(data)
        self.connection._received_s = at_s
        if self.connection._in_head:
            self.connection._head_since_s = 0.0

    def ends_at(self, at_s: float) -> bool:
        """Return whether the limits end the connection by then."""
        self.connection.enforce(at_s)
        return self.transport.closing


def run(test: Callable[[Scene], Any]) -> None:
    async def main() -> None:
        scene = Scene()
        await test(scene)
        scene.transport.close()
        scene.connection.connection_lost(None)
        for task in scene.connection.tasks:
            task.cancel()
        await asyncio.gather(*scene.connection.tasks, return_exceptions=True)

    asyncio.run(main())


def test_a_client_without_a_request_is_idle_and_one_within_a_head_is_not() -> None:
    async def idle(scene: Scene) -> None:
        assert not scene.ends_at(KEEP_ALIVE_S)
        assert scene.ends_at(KEEP_ALIVE_S + 0.1)
        assert scene.transport.sent == b""

    async def within_head(scene: Scene) -> None:
        scene.receive(POST[:9])
        assert not scene.ends_at(10.0)
        assert scene.ends_at(10.1)
        assert scene.transport.sent.startswith(b"HTTP/1.1 408 ")

    run(idle)
    run(within_head)


def test_a_body_has_its_own_limit_from_its_last_part_on() -> None:
    async def test(scene: Scene) -> None:
        scene.receive(POST)
        assert not scene.ends_at(BODY_S)
        scene.receive(b"o", at_s=BODY_S)
        assert not scene.ends_at(2 * BODY_S)
        assert scene.ends_at(2 * BODY_S + 0.1)
        assert scene.transport.sent.startswith(b"HTTP/1.1 408 ")

    run(test)


def test_a_client_that_waits_for_its_answer_is_not_late() -> None:
    async def test(scene: Scene) -> None:
        scene.receive(POST + b"ok")
        assert not scene.ends_at(1_000.0)
        scene.receive((POST + b"ok") * 3)  # the node reads no more until it has answered
        assert scene.transport.paused
        scene.receive(POST[:9])
        assert not scene.ends_at(2_000.0)
        assert not scene.ends_at(2_010.0)

    run(test)


@pytest.mark.parametrize("unread", [0, 5])
def test_after_its_end_a_client_has_its_answers_for_a_time_limit(unread: int) -> None:
    """An answer that it has not read yet may be on its way: the limit of unread answers applies instead."""

    async def test(scene: Scene) -> None:
        scene.receive(POST + b"ok")
        assert scene.connection.eof_received()
        scene.connection._eof_s = 0.0
        scene.transport.get_write_buffer_size = lambda: unread  # type: ignore[method-assign]
        assert not scene.ends_at(_EOF_GRACE_S)
        assert scene.ends_at(_EOF_GRACE_S + 0.1) == (not unread)

    run(test)


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_only_a_client_that_knows_chunks_gets_them_from_a_stream(version: bytes) -> None:
    async def test(scene: Scene) -> None:
        scene.receive(b"GET / HTTP/" + version + b"\r\nhost: x\r\n\r\n")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        [scope] = scene.scopes
        assert (OUTLET in scope) == (version == b"1.1")

    run(test)


def test_a_read_ends_with_its_client_and_a_write_does_not() -> None:
    """A read may wait for a minute, and its answer has no reader; the client of a write may wait for it."""

    async def read(scene: Scene) -> None:
        scene.receive(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert not scene.connection.eof_received()

    async def write(scene: Scene) -> None:
        scene.receive(POST + b"ok")
        assert scene.connection.eof_received()

    async def write_over_tls(scene: Scene) -> None:
        scene.connection.scheme = "https"
        scene.receive(POST + b"ok")
        assert not scene.connection.eof_received()

    async def half_a_write(scene: Scene) -> None:
        scene.receive(POST + b"o")
        assert not scene.connection.eof_received()

    for test in (read, write, write_over_tls, half_a_write):
        run(test)


def test_junk_within_a_stream_of_appends_adds_no_answer_to_those_of_the_stream() -> None:
    """Its client would take the refusal for a part of the answer that it is reading."""

    async def test(scene: Scene) -> None:
        scene.receive(b"POST /x:stream HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n")
        await until(lambda: scene.transport.sent.endswith(b"one\r\n"))
        sent = bytes(scene.transport.sent)
        scene.receive(b"zz\r\n")
        assert (scene.transport.closing, bytes(scene.transport.sent)) == (True, sent)

    run(test)
