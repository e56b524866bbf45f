"""Connections between nodes whose other side has proved itself: the same for the peer port and the HA port.

A protocol of app/node/network is made only after the proof, and gets a transport as if it had the connection
for itself. With a secret that transport writes authenticated frames; with TLS it is the encrypted one. Until
then a connection costs one small object, for at most HANDSHAKE_TIMEOUT_S, and their number is bounded
(handshakes_in_progress.py). Without secret and certificates the bytes are those of earlier versions.
"""

import asyncio
import logging
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, cast

from app.node.links.credentials import LinkSecurity, Mode
from app.node.links.handshake import (
    MAGIC,
    NONCE_BYTES,
    AcceptorHandshake,
    DiallerHandshake,
    HandshakeFailed,
    Identity,
    Session,
)
from app.node.links.handshakes_in_progress import HANDSHAKES_MAX, HandshakesInProgress
from app.node.links.sealed_frames import ForgedFrame, LinkBuffer, Opener, Sealer
from app.node.links.tls_stream import TlsStream
from app.pauses import Repeats

logger = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S: Final = 5.0  # from the connection to the proof
UNDERSTOOD_S: Final = 2.0  # silence after which the other side counts as without the handshake
REFUSALS: Final = ("full", "late", "malformed", "identity", "proof", "certificate", "forged", "closed")


class WaitingConnection(Protocol):
    """A connection whose handshake is in progress."""

    def close(self) -> None: ...


class LinkedProtocol(asyncio.Protocol):
    """A protocol behind a link. proven_id: node at the other end; None when the link proves nothing."""

    proven_id: str | None = None


class LinkRefused(ConnectionError):
    """The node that was called has not proved itself, or refused this one."""


class Links:
    """Connections of one port of this node. Owned by the event loop."""

    def __init__(
        self, identity: Identity, security: LinkSecurity | None = None, handshakes_max: int = HANDSHAKES_MAX
    ) -> None:
        self.identity = identity
        self.security = security or LinkSecurity()
        self.handshakes: HandshakesInProgress[WaitingConnection] = HandshakesInProgress(handshakes_max)
        self.refused: Counter[str] = Counter()  # by the reason, one of REFUSALS
        self._reports = Repeats()  # by the kind
        self._plain_next: set[tuple[str, int]] = set()  # where a proof was not understood

    @property
    def is_plain(self) -> bool:
        """True if connections prove nothing."""
        return self.security.mode is Mode.PLAIN

    @property
    def proves_all(self) -> bool:
        """True if every connection proves itself."""
        return self.security.mode not in (Mode.PLAIN, Mode.OPTIONAL_SECRET)

    def accept(self, make: Callable[[], LinkedProtocol]) -> asyncio.Protocol:
        """Return the protocol of an incoming connection; `make` is called after its proof."""
        return make() if self.is_plain else _AcceptedLink(self, make)

    async def connect(
        self, make: Callable[[], LinkedProtocol], host: str, port: int, target: str = ""
    ) -> None:
        """Open a connection, and return once both sides have proved themselves and `make` was called.

        target: id of the node that must answer; empty: any other node of the cluster. Raises OSError. The
        caller bounds the time.
        """
        is_plain = self.is_plain or (host, port) in self._plain_next
        self._plain_next.discard((host, port))
        # uvloop closes what it has opened if the call is cancelled in that turn, and reports this to no
        # protocol: so the protocol takes the connection afterwards. What arrives before that is lost: the
        # side that is called sends nothing before it has received something.
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, host, port)
        if transport.is_closing():
            raise ConnectionResetError(f"{host}:{port} has closed the connection")
        if is_plain:
            _hand_over(transport, make())
            return
        link = _DialledLink(self, make, target)
        try:
            _hand_over(transport, link)
            await link.proved
        except asyncio.CancelledError:
            link.close()  # also if it was proved in this turn: the caller does not know of it
            raise
        finally:
            link.give_up()
            if self.security.mode is Mode.OPTIONAL_SECRET and link.is_not_understood:
                self._plain_next.add((host, port))

    def stop(self) -> None:
        """Close the connections that have not proved anything."""
        for connection in self.handshakes.clear():
            connection.close()

    def wait(self, connection: WaitingConnection, address: str) -> None:
        """Count a connection whose other side is unidentified; the oldest such one may be closed for it."""
        displaced = self.handshakes.enter(connection, address)
        if displaced is not None:
            self.refuse("full", f"more than {self.handshakes.size} unidentified connections", address)
            displaced.close()

    def refuse(self, kind: str, reason: str, address: str) -> None:
        """Count a connection that is closed, and log it: of each kind once in REPORT_S, or a flood would fill
        the disk."""
        self.refused[kind] += 1
        if not self._reports.allow(kind, time.monotonic()):
            return
        logger.warning(
            "connection of a node refused",
            extra={
                "port": self.identity.purpose.value,
                "kind": kind,
                "reason": reason,
                "address": address,
                "count": self.refused[kind],
            },
        )


def _hand_over(transport: asyncio.Transport, protocol: asyncio.Protocol) -> None:
    """Give a new connection to its protocol."""
    transport.set_protocol(protocol)
    protocol.connection_made(transport)


class _Link(asyncio.Protocol):
    """A connection until its other side is proved, and after it the frames or the TLS of the connection."""

    def __init__(self, links: Links, make: Callable[[], LinkedProtocol], tls: TlsStream | None) -> None:
        self._links = links
        self._make = make
        self._transport: asyncio.Transport | None = None
        self._inner: LinkedProtocol | None = None
        self._opener: Opener | None = None
        self._tls = tls
        self.address = ""

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        try:
            if self._tls is not None:
                data = self._decrypt(self._tls, data)
            if self._opener is not None:
                data = self._opener.feed(data)
            if self._inner is None:
                self._negotiate(data)
            elif data:
                self._inner.data_received(data)
        except ssl.SSLError as error:
            self._refuse("certificate", f"TLS: {error}")
        except ForgedFrame as error:
            self._refuse("forged", error.reason)
        except HandshakeFailed as failed:
            self._refuse(failed.kind, failed.reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    # --- the proof

    def _negotiate(self, data: bytes) -> None:
        """Continue the handshake. Raises HandshakeFailed."""
        raise NotImplementedError

    def _decrypt(self, tls: TlsStream, data: bytes) -> bytes:
        try:
            return tls.feed(data)
        finally:
            if self._transport is not None and (pending := tls.pending()):
                self._transport.write(pending)

    def _send(self, data: bytes) -> None:
        """Send bytes of the handshake."""
        if self._transport is not None and data:
            self._transport.writelines((data,) if self._tls is None else self._tls.seal((data,)))

    def _proved(self, session: Session) -> None:
        """The other side is a node of the cluster: from here on the connection is the inner protocol's."""
        transport, tls = self._transport, self._tls
        assert transport is not None
        if tls is not None:
            seal = tls.seal
        else:
            assert session.send_key is not None
            assert session.receive_key is not None
            self._opener = Opener(session.receive_key)
            seal = Sealer(session.send_key).seal
        self._inner = self._make()
        self._inner.proven_id = session.peer_id
        self._inner.connection_made(SealedTransport(transport, seal))
        rest = session.rest if self._opener is None else self._opener.feed(session.rest)
        if rest:
            self._inner.data_received(rest)

    def _check_certificate(self, peer_id: str) -> None:
        """The certificate must name the node, or the host at which the members reach that node.

        A certificate that names another node is of that node alone, also where both run on one host.
        """
        if self._tls is None:
            return
        names, host_of = self._tls.names, self._links.security.host_of
        names_host = host_of(peer_id) in names and all(host_of(name) is None for name in names)
        if peer_id not in names and not names_host:
            listed = ", ".join(sorted(names)) or "nothing"
            raise HandshakeFailed("certificate", f"the certificate of {peer_id} names {listed}")

    def _refuse(self, kind: str, reason: str) -> None:
        self._links.refuse(kind, reason, self.address)
        self.close()

    def close(self) -> None:
        """Close at once; an alert that TLS has written may still leave."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        if self._tls is not None and self._inner is None:
            transport.close()
        else:
            transport.abort()


class _AcceptedLink(_Link):
    """A connection that another side has opened."""

    def __init__(self, links: Links, make: Callable[[], LinkedProtocol]) -> None:
        context = links.security.accept_tls
        super().__init__(links, make, None if context is None else TlsStream(context, accepts=True))
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._handshake = AcceptorHandshake(links.identity, links.security.secrets, nonce)
        self._first: bytes | None = b""  # until the magic is complete
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._links.wait(self, self.address)
        self._timer = asyncio.get_running_loop().call_later(HANDSHAKE_TIMEOUT_S, self._is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def close(self) -> None:
        self._leave()
        super().close()

    def _is_late(self) -> None:
        self._timer = None
        transport = self._transport
        self._refuse("late", f"no proof within {HANDSHAKE_TIMEOUT_S:.0f} s")
        if transport is not None:
            transport.abort()

    def _leave(self) -> None:
        self._links.handshakes.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _negotiate(self, data: bytes) -> None:
        if self._first is not None:
            self._first += data
            magic = self._first[: len(MAGIC)]
            if not MAGIC.startswith(magic):
                self._take_plain(self._first)
                return
            if len(magic) < len(MAGIC):
                return
            data, self._first = self._first[len(MAGIC) :], None
        answer = self._handshake.feed(data)
        session = self._handshake.session
        if session is not None:
            self._check_certificate(session.peer_id)
        self._send(answer)
        if session is not None:
            self._leave()
            self._proved(session)

    def _take_plain(self, first: bytes) -> None:
        """A node without the handshake: accepted only while a secret is introduced."""
        transport = self._transport
        if self._links.security.mode is not Mode.OPTIONAL_SECRET or transport is None:
            raise HandshakeFailed("proof", "a connection without a handshake")
        self._leave()
        self._transport = None
        inner = self._make()
        transport.set_protocol(inner)
        inner.connection_made(transport)
        inner.data_received(first)


class _DialledLink(_Link):
    """A connection that this node has opened. `proved` is done when the inner protocol was made, and has an
    exception when that will not happen."""

    def __init__(self, links: Links, make: Callable[[], LinkedProtocol], target: str) -> None:
        context = links.security.dial_tls
        super().__init__(links, make, None if context is None else TlsStream(context, accepts=False))
        secret = links.security.secrets[0] if links.security.secrets else None
        self._handshake = DiallerHandshake(links.identity, target, secret, secrets.token_bytes(NONCE_BYTES))
        self._greeted = False
        self.proved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened_s: float | None = None  # on the loop's clock, while the other side has sent nothing

    @property
    def is_not_understood(self) -> bool:
        """True if the other side has closed the connection without a byte, or was silent for long."""
        if self._opened_s is None:
            return False
        is_closed = not self.proved.cancelled()
        return is_closed or asyncio.get_running_loop().time() - self._opened_s >= UNDERSTOOD_S

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opened_s = asyncio.get_running_loop().time()
        if self._tls is not None:
            self._decrypt(self._tls, b"")
        self._greet()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.proved.done():
            self._links.refuse("closed", "the node that was called closed before its proof", self.address)
            self.proved.set_exception(LinkRefused("closed before its proof"))
        super().connection_lost(exc)

    def give_up(self) -> None:
        """Close the connection unless it is proved."""
        if self.proved.done() and not self.proved.cancelled() and self.proved.exception() is None:
            return
        self.proved.cancel()
        self.close()

    def _greet(self) -> None:
        """Send the hello, after the handshake of TLS if there is one."""
        if not self._greeted and (self._tls is None or self._tls.is_open):
            self._greeted = True
            self._send(self._handshake.hello)

    def _negotiate(self, data: bytes) -> None:
        self._opened_s = None
        if self.proved.cancelled():  # the call ends in this turn
            return
        self._greet()
        self._send(self._handshake.feed(data))
        session = self._handshake.session
        if session is not None:
            self._check_certificate(session.peer_id)
            self._proved(session)
            if not self.proved.done():
                self.proved.set_result(None)

    def _refuse(self, kind: str, reason: str) -> None:
        if not self.proved.done():
            self.proved.set_exception(LinkRefused(reason))
        super()._refuse(kind, reason)


class SealedTransport(asyncio.Transport):
    """The transport of a proved connection: what is written leaves authenticated or encrypted."""

    def __init__(
        self, transport: asyncio.Transport, seal: Callable[[Iterable[LinkBuffer]], list[LinkBuffer]]
    ) -> None:
        """seal: the bytes of some buffers as they are sent."""
        super().__init__()
        self._transport = transport
        self._seal = seal

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.writelines(self._seal((data,)))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self._transport.writelines(self._seal(list_of_data))

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
