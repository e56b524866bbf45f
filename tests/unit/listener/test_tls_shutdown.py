"""The end of connections with TLS: a client that reads nothing meanwhile does not hold a stopping node."""

import asyncio
import socket
import ssl
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


def test_an_idle_client_does_not_delay_the_stop_of_a_node(tmp_path: Path) -> None:
    """TLS ends with a message of each side, and a client that waits for nothing does not send its own."""
    authority = make_authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*make_certificate(authority, "node", "IP:127.0.0.1"))
    meter = Meter()
    listener = Listener(HttpSettings(), 100, meter)
    handshakes = TlsHandshakes(context, 8, 10_000, lambda: False, meter)

    def accepted(**given: Any) -> asyncio.Protocol:
        return handshakes.accept(partial(Connection, listener, **given))

    async def main() -> bytes:
        config = uvicorn.Config(
            application,
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
        port = server.servers[0].sockets[0].getsockname()[1]
        client = await asyncio.to_thread(answered_client, port, authority)
        with client:
            async with asyncio.timeout(15):  # the event loop would wait for 30 s
                await server.shutdown()
            assert meter.connections == 0
            return await asyncio.to_thread(client.recv, 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == b""  # the end of TLS, not of the connection alone
