"""TLS of the REST listener: the connections whose handshake is in progress are bounded.

The event loop gives a connection with TLS to its protocol only after the handshake. Clients that open
connections and begin no handshake would occupy descriptors that no limit of the listener counts, until the
files of the logs cannot be opened. Here every connection is counted before the loop's TLS begins on it.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable

from app.node.links.handshakes_in_progress import HandshakesInProgress
from app.telemetry import Meter


class TlsHandshakes:
    """Connections of one listener that have not completed their TLS handshake. Owned by the event loop."""

    def __init__(
        self,
        context: ssl.SSLContext,
        size: int,
        timeout_ms: int,
        is_full: Callable[[], bool],
        meter: Meter,
    ) -> None:
        """size: handshakes at once; beyond it the oldest of the busiest address ends. timeout_ms: of one.
        is_full: the listener takes no connection more. meter: counts the connections that end here."""
        self.context = context
        self.timeout_s = timeout_ms / 1000
        self.is_full = is_full
        self.meter = meter
        self.waiting: HandshakesInProgress[_Handshake] = HandshakesInProgress(size)

    def accept(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """Return the protocol of a new connection; the one that `make` returns has it after the handshake."""
        return _Handshake(self, make)


class _Handshake(asyncio.Protocol):
    """A connection whose handshake is in progress. Its socket is taken from the transport that accepted it,
    which has read nothing, and given to one with TLS."""

    def __init__(self, owner: TlsHandshakes, make: Callable[[], asyncio.Protocol]) -> None:
        self._owner = owner
        self._make = make
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        owner, peer = self._owner, transport.get_extra_info("peername")
        connected = None if owner.is_full() else _socket_of(transport)
        transport.close()
        if connected is None:
            owner.meter.refused_connections += 1
            return
        displaced = owner.waiting.enter(self, str(peer[0]) if isinstance(peer, tuple) else "")
        if displaced is not None:
            owner.meter.refused_connections += 1
            displaced.close()
        self._task = asyncio.get_running_loop().create_task(self._negotiate(connected), name="TLS handshake")
        # A task that is cancelled before its first step has not given the socket to the loop.
        self._task.add_done_callback(lambda ended: connected.close() if ended.cancelled() else None)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _negotiate(self, connected: socket.socket) -> None:
        owner = self._owner
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, connected, ssl=owner.context, ssl_handshake_timeout=owner.timeout_s
            )
        except OSError:
            pass  # no TLS, the time limit, or the client has disconnected: the loop has closed the connection
        finally:
            owner.waiting.leave(self)


def _socket_of(transport: asyncio.BaseTransport) -> socket.socket | None:
    """Return the socket of a transport, which stays open without it; None without a descriptor for it."""
    try:
        return socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
    except OSError:
        return None
