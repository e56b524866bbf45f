"""The end of connections with TLS: a client that reads nothing meanwhile does not hold a stopping node."""

import asyncio
import fcntl
import select
import socket
import ssl
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from app.listener.connection import Connection
from app.listener.listener import Listener
from app.listener.tls_handshakes import TlsHandshakes
from app.settings.model import HttpSettings
from app.telemetry import Meter
from tests.support.certificates import make_authority, make_certificate

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def application(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def answered_client(port: int, authority: Path) -> ssl.SSLSocket:
    """Return the connection of a client that has its answer, keeps the connection and does nothing."""
    trusting = ssl.create_default_context(cafile=authority)
    client = trusting.wrap_socket(
        socket.create_connection(("127.0.0.1", port), timeout=10), server_hostname="127.0.0.1"
    )
    client.sendall(REQUEST)
    answer = b""
    while not answer.endswith(b"ok"):
        answer += client.recv(4_096)
    return client


@asynccontextmanager
async def served(folder: Path, app: Any, connections: list[Connection]) -> AsyncIterator[tuple[Any, Path]]:
    """Run a server with TLS for `app`; yield it with its authority. connections: gets each of them."""
    authority = make_authority(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*make_certificate(authority, "node", "IP:127.0.0.1"))
    meter = Meter()
    listener = Listener(HttpSettings(), 100, meter)
    handshakes = TlsHandshakes(context, 8, 10_000, lambda: False, meter)

    def made(**given: Any) -> Connection:
        connections.append(Connection(listener, **given))
        return connections[-1]

    def accepted(**given: Any) -> asyncio.Protocol:
        return handshakes.accept(partial(made, **given))

    config = uvicorn.Config(
        app,
        http=accepted,  # type: ignore[arg-type]  # as serve
        port=0,
        ws="none",
        lifespan="off",
        log_config=None,
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    yield server, authority
    assert meter.connections == 0


def unacknowledged(descriptor: int) -> int:
    """Return how many bytes the kernel holds that the client's machine does not have."""
    return int.from_bytes(fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def port_of(server: uvicorn.Server) -> int:
    return int(server.servers[0].sockets[0].getsockname()[1])


def test_an_idle_client_does_not_delay_the_stop_of_a_node(tmp_path: Path) -> None:
    """TLS ends with a message of each side, and a client that waits for nothing does not send its own."""

    async def main() -> bytes:
        async with served(tmp_path, application, []) as (server, authority):
            client = await asyncio.to_thread(answered_client, port_of(server), authority)
            with client:
                async with asyncio.timeout(15):  # the event loop would wait for 30 s
                    await server.shutdown()
                return await asyncio.to_thread(client.recv, 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == b""  # the end of TLS, not of the connection alone


def test_a_client_that_reads_slowly_gets_the_rest_of_its_answer_at_a_stop(tmp_path: Path) -> None:
    """The transport does not report what waits below TLS."""
    connections: list[Connection] = []
    sent, answered = [0], asyncio.Event()

    async def long_answer(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        descriptor = connections[0].transport.get_extra_info("socket").fileno()
        is_full = False
        while not is_full:
            before = unacknowledged(descriptor)
            await send({"type": "http.response.body", "body": b"x" * 8_000, "more_body": True})
            sent[0] += 8_000
            is_writable = bool(select.select([], [descriptor], [], 0)[1])
            is_full = not is_writable and unacknowledged(descriptor) < before + 8_000
        await send({"type": "http.response.body", "body": b""})
        answered.set()

    def asking_client(port: int, authority: Path) -> ssl.SSLSocket:
        trusting = ssl.create_default_context(cafile=authority)
        client = trusting.wrap_socket(
            socket.create_connection(("127.0.0.1", port), timeout=10), server_hostname="127.0.0.1"
        )
        client.sendall(REQUEST)
        return client

    def rest_of(client: ssl.SSLSocket) -> int:
        count = 0
        while data := client.recv(65_536):
            count += data.count(b"x")
        return count

    async def main() -> int:
        async with served(tmp_path, long_answer, connections) as (server, authority):
            with await asyncio.to_thread(asking_client, port_of(server), authority) as client:
                await answered.wait()
                assert connections[0].transport.get_write_buffer_size() == 0
                stop = asyncio.create_task(server.shutdown())
                await asyncio.sleep(0)
                count = await asyncio.to_thread(rest_of, client)
            await stop
            return count

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == sent[0] > 0
