"""Connections on which nothing more can be received: the client has ended its direction, or sent junk. The
answers to complete requests are still sent. Over the loops of asyncio and of the service."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from tests.unit.listener.test_connection import LIMITS, SLOW, Server, serving, sweeping_often, until

__all__ = ["sweeping_often"]  # a fixture
PART = b"POST /slow HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\no"
BROKEN = b"POST /slow HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
NEVER = SLOW.replace(b"/slow", b"/never")
Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: list[Loop] = [asyncio.new_event_loop, uvloop.new_event_loop]


def run(test: Callable[[Server], Awaitable[None]], loop: Loop) -> None:
    async def main() -> None:
        async with serving(LIMITS) as server:
            await test(server)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.rule("D-23")
def test_repeated_junk_takes_no_further_answer(loop: Loop) -> None:
    async def test(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(SLOW + SLOW + BROKEN)
        answers = await reader.readuntil(b"\r\n\r\nok")
        writer.write(b"zz\r\n")
        answers += await reader.read()
        assert answers.count(b"HTTP/1.1 200") == answers.count(b"\r\n\r\nok") == 2
        writer.close()

    run(test, loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.rule("D-23")
@pytest.mark.parametrize(
    ("request_", "answers"),
    [
        (SLOW, 1),
        (SLOW + SLOW, 2),
        (SLOW + SLOW + SLOW, 3),
        (SLOW + PART, 1),
        (SLOW + SLOW + PART, 2),
        (SLOW + SLOW + b"POST /slow HTT", 2),
        (SLOW[:-1], 0),
        (SLOW[:9], 0),
        (b"", 0),
        (NEVER.replace(b"POST", b"GET"), 0),  # an event stream or a long poll holds its places no longer
    ],
)
def test_a_client_that_sends_no_more_gets_its_answers(request_: bytes, answers: int, loop: Loop) -> None:
    async def test(server: Server) -> None:
        reader, writer = await server.connect()
        writer.write(request_)
        writer.write_eof()
        got = await asyncio.wait_for(reader.read(), 10)
        assert got.count(b"HTTP/1.1 200") == got.count(b"\r\n\r\nok") == answers
        assert got.count(b"connection: close") == min(answers, 1)
        await until(lambda: not server.meter.connections)
        writer.close()

    run(test, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_has_gone_is_not_waited_for(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.listener.connection._EOF_GRACE_S", 0.05)

    async def test(server: Server) -> None:
        _, writer = await server.connect()
        writer.write(NEVER)
        await until(lambda: server.requests == [("POST", "/never")])
        writer.close()
        await until(lambda: not server.meter.connections)

    run(test, loop)
