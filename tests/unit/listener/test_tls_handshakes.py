"""TLS of the REST listener by raw sockets: clients that begin no handshake cannot occupy the node."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import uvloop

from app.listener.tls_handshakes import TlsHandshakes
from app.telemetry import Meter
from tests.support.certificates import make_authority, make_certificate

SIZE = 8  # handshakes at once, and of one address
OPENED = 5 * SIZE
Test = Callable[["Server"], Awaitable[None]]


class Echo(asyncio.Protocol):
    """Protocol of the listener in these tests."""

    def __init__(self, made: list["Echo"]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._made.append(self)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._made.remove(self)


@dataclass
class Server:
    port: int
    trusting: ssl.SSLContext
    meter: Meter
    handshakes: TlsHandshakes
    made: list[Echo]

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that has sent nothing."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def echo(self) -> bytes:
        """Return the answer that a real client gets."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=self.trusting, server_hostname="127.0.0.1"
        )
        writer.write(b"hello")
        answer = await reader.readexactly(5)
        writer.close()
        return answer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    authority = make_authority(tmp_path_factory.mktemp("tls"))
    return authority, *make_certificate(authority, "node", "IP:127.0.0.1")


def run(files: tuple[Path, Path, Path], test: Test, timeout_ms: int = 10_000, full: bool = False) -> None:
    authority, certificate, key = files
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    @asynccontextmanager
    async def serving() -> AsyncIterator[Server]:
        meter, made = Meter(), list[Echo]()
        handshakes = TlsHandshakes(context, SIZE, timeout_ms, lambda: full, meter)
        server = await asyncio.get_running_loop().create_server(
            lambda: handshakes.accept(lambda: Echo(made)), "127.0.0.1", 0
        )
        trusting = ssl.create_default_context(cafile=authority)
        yield Server(server.sockets[0].getsockname()[1], trusting, meter, handshakes, made)
        server.close()

    async def main() -> None:
        async with asyncio.timeout(30), serving() as server:
            await test(server)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # what is awaited has no event
        await asyncio.sleep(0.01)


def test_connections_that_begin_no_handshake_are_bounded(files: tuple[Path, Path, Path]) -> None:
    async def test(server: Server) -> None:
        silent = [await server.open() for _ in range(OPENED)]
        await until(lambda: server.meter.refused_connections == OPENED - SIZE)
        ended = [await reader.read() for reader, _ in silent[: OPENED - SIZE]]  # the oldest ones
        assert set(ended) == {b""}
        assert len(server.handshakes.waiting) == SIZE
        assert await server.echo() == b"hello"
        assert len(server.handshakes.waiting) == SIZE - 1  # the newest one displaced another
        for _, writer in silent:
            writer.close()
        await until(lambda: not len(server.handshakes.waiting) and not server.made)

    run(files, test)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_handshake_that_fails_or_does_not_end_is_given_up(
    files: tuple[Path, Path, Path], sent: bytes
) -> None:
    async def test(server: Server) -> None:
        reader, writer = await server.open()
        writer.write(sent)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        await until(lambda: not len(server.handshakes.waiting))
        assert not server.made
        writer.close()

    run(files, test, timeout_ms=200)


def test_a_request_beside_the_end_of_the_handshake_is_answered(files: tuple[Path, Path, Path]) -> None:
    """The last message of the client's handshake and its first request arrive together."""

    async def test(server: Server) -> None:
        arrived, leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = server.trusting.wrap_bio(arrived, leaving, server_hostname="127.0.0.1")
        reader, writer = await server.open()
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                writer.write(leaving.read())
                arrived.write(await reader.read(65_536))
        client.write(b"hello")
        writer.write(leaving.read())
        answer = b""
        while len(answer) < 5:
            try:
                answer += client.read(5)
            except ssl.SSLWantReadError:
                arrived.write(await reader.read(65_536))
        assert answer == b"hello"
        writer.close()
        await until(lambda: not server.made)

    run(files, test)


def test_a_full_listener_begins_no_handshake(files: tuple[Path, Path, Path]) -> None:
    async def test(server: Server) -> None:
        reader, writer = await server.open()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert (server.meter.refused_connections, len(server.handshakes.waiting)) == (1, 0)
        writer.close()

    run(files, test, full=True)
