"""Framed TCP between the nodes of one cluster.

Every node keeps one outgoing connection to each peer and sends on it alone; messages of the peer arrive on
the peer's own connection. A frame is its length (u32, little-endian) and that many bytes:

    first frame out     hello: JSON {"protocol", "cluster", "from", "to", "address", "version"}
    first frame back    welcome: the same of the other side, or {"refused": reason}; nothing else goes back
    every other frame   one message: app/node/network/wire.py

With a cluster secret or TLS a handshake precedes the hello (app/node/links): then `from` is the node that has
proved itself. A connection without a hello is limited by time, size and number, and so are the connections of
one peer, and the peers that are not members of any log and not configured.

A node of another cluster, or a malformed frame, ends the connection and never affects the node. An unknown
node of this cluster is a member whose log record has not arrived here yet (R-10): its hello contains its
address. The messages of one turn of the loop leave in one write. Sending is best effort: beyond a limit of
waiting bytes, messages are dropped, and the dispatcher's timers send them again (D-07). Without a connection
only small recent messages are kept: a COMPARE or a vote request during the start of a cluster should not wait
for a timer of seconds.
"""

import asyncio
import contextlib
import logging
import random
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from app.node.links.handshake import Identity, Purpose
from app.node.links.links import LinkedProtocol, Links
from app.node.network import wire
from app.node.network.frame_reader import LENGTH, FrameReader
from app.node.network.peer_host import PeerHost, PeerIdentity
from app.raft.config import RaftConfig
from app.settings.addresses import split_address
from app.version import VERSION
from storage.units import MIB

logger = logging.getLogger(__name__)

PROTOCOL: Final = 2
FRAME_MAX_BYTES: Final = 80 * MIB  # the largest batch, and the head of its push
HELLO_MAX_BYTES: Final = 4096
SEND_MAX_BYTES: Final = 128 * MIB  # waiting for one peer; beyond it messages are dropped
HELLO_TIMEOUT_S: Final = 5.0
RETRY_FIRST_S: Final = 0.05
RETRY_LAST_S: Final = 1.0
KEPT_MESSAGES: Final = 256  # for a peer without a connection
KEPT_MESSAGE_MAX_BYTES: Final = 4096
KEPT_S: Final = 3.0
OF_A_PEER_MAX: Final = 4  # incoming connections of one peer; a newer one closes the oldest
UNKNOWN_PEERS_MAX: Final = 32  # peers known by their hello alone that are members of no log
UNACKNOWLEDGED_TIMEOUT_MS: Final = 5_000  # a peer that does not answer for this time: connect again

Buffer = bytes | memoryview


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sender and receiver. `to` detects an address that now belongs to another node.

    address: host:port at which the other nodes reach the sender. ha_address: where it accepts slaves.
    """

    protocol: int
    cluster: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    address: str
    version: str
    ha_address: str | None = None


class PeerRefusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    refused: str


@dataclass(frozen=True, kw_only=True)
class RetryConfig:
    """Calls to a peer that is not a member of any log, in seconds: longest pause, and total time."""

    removed_retry_s: float = 30.0
    removed_forget_s: float = 300.0

    @classmethod
    def of(cls, raft: RaftConfig) -> "RetryConfig":
        """Return what the settings ask for."""
        return cls(
            removed_retry_s=raft.removed_retry_ms / 1000, removed_forget_s=raft.removed_forget_ms / 1000
        )


class PeerTransport:
    """The `Transport` of app/log, over TCP. Owned by the event loop that it was started on."""

    def __init__(
        self,
        node: PeerIdentity,
        peers: Sequence[tuple[str, str]],
        host: PeerHost,
        chance: random.Random,
        retry: RetryConfig | None = None,
        links: Links | None = None,
    ) -> None:
        """peers: (id, host:port) of those that are known already. links: how connections prove themselves;
        None: not at all."""
        self.links = links or Links(Identity(node.cluster_id, node.node_id, Purpose.PEER))
        self.cluster_id = node.cluster_id
        self.node_id = node.node_id
        self.address = node.address
        self._listen = split_address(node.listen)
        self._host = host
        self._chance = chance
        self.retry = retry or RetryConfig()
        self._incoming: dict[_Incoming, None] = {}  # in order of arrival
        self._outgoing: dict[str, _Outgoing] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server | None = None
        self.closing = False
        self._started = False
        self._unknown: set[str] = set()  # peers that only their hello has named
        for peer_id, peer_address in peers:
            self.add_peer(peer_id, peer_address)

    def add_peer(self, peer_id: str, address: str) -> None:
        """Keep a connection to one more node; no effect for a known one. Raises ValueError."""
        if peer_id == self.node_id or peer_id in self._outgoing:
            return
        peer = self._outgoing[peer_id] = _Outgoing(self, peer_id, split_address(address), self._chance)
        if self._started:
            self._connect(peer)

    def _connect(self, peer: "_Outgoing") -> None:
        loop = asyncio.get_running_loop()
        task = loop.create_task(peer.keep_connected(), name=f"connect {peer.peer_id}")
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

    def is_member(self, peer_id: str) -> bool:
        """Return whether the peer is a member of any log here: only then is it called often."""
        return self._host.is_member(peer_id)

    def drop(self, peer_id: str) -> bool:
        """Forget a peer that is not a member and cannot be reached; return False if it must stay known."""
        if not self._host.forget_peer(peer_id):
            return False
        del self._outgoing[peer_id]
        self._unknown.discard(peer_id)
        logger.info("peer forgotten: not a member of any log", extra={"peer": peer_id})
        return True

    async def start(self) -> None:
        """Listen, and keep connecting to every peer. Raises OSError when the address cannot be bound."""
        loop = asyncio.get_running_loop()
        host, port = self._listen
        self._server = await loop.create_server(
            lambda: self.links.accept(lambda: _Incoming(self)), host, port
        )
        self._started = True
        for peer in self._outgoing.values():
            self._connect(peer)

    async def stop(self) -> None:
        self.closing = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self._outgoing.values():
            peer.close()
        if self._server is not None:
            self._server.close()
        self.links.stop()
        for connection in list(self._incoming):
            connection.close()

    def send(self, target: str, log_id: int, message: Any) -> None:
        """Queue a message for the end of this turn of the loop. Never blocks, never raises."""
        peer = self._outgoing.get(target)
        if peer is not None:
            peer.send(log_id, message)

    def peer_version(self, peer_id: str) -> str | None:
        """Return the version that a peer reported on its open connection; None while there is none."""
        peer = self._outgoing.get(peer_id)
        return None if peer is None else peer.version

    def peer_ha_address(self, peer_id: str) -> str | None:
        """Return where a peer accepts slaves, as last reported; None before that."""
        peer = self._outgoing.get(peer_id)
        return None if peer is None else peer.ha_address

    def hello_to(self, peer_id: str) -> bytes:
        """Return the hello of this node."""
        ha_address = self._host.ha_address()
        hello = Hello(
            PROTOCOL, self.cluster_id, self.node_id, peer_id, self.address, VERSION, ha_address=ha_address
        )
        return msgspec.json.encode(hello)

    def received(self, source: str, frame: memoryview) -> None:
        log_id, message = wire.decode(frame)
        self._host.deliver(source, log_id, message)

    def joined(self, connection: "_Incoming") -> None:
        self._incoming[connection] = None

    def takes(self, peer_id: str) -> bool:
        """True if the peer is known, or may become known by its hello."""
        if peer_id in self._outgoing:
            return True
        self._unknown = {unknown for unknown in self._unknown if not self._host.is_member(unknown)}
        return len(self._unknown) < UNKNOWN_PEERS_MAX or self._host.is_member(peer_id)

    def heard_from(self, connection: "_Incoming", peer_id: str, address: str) -> None:
        """The peer is up: no need to wait before connecting to it. Its oldest connections are given up."""
        connection.source = peer_id
        if peer_id not in self._outgoing:
            self._unknown.add(peer_id)
        self.add_peer(peer_id, address)
        self._outgoing[peer_id].hurry()
        of_peer = [each for each in self._incoming if each.source == peer_id]
        for older in of_peer[:-OF_A_PEER_MAX]:
            older.close()

    def left(self, connection: "_Incoming") -> None:
        self._incoming.pop(connection, None)
        peer = connection.source
        if peer is not None and peer not in self.connected() and not self.closing:
            self._host.peer_lost(peer)

    def connected(self) -> list[str]:
        """Return the peers whose connection to this node is open."""
        return [connection.source for connection in self._incoming if connection.source is not None]


class _PeerConnection(LinkedProtocol):
    """Common part of both ends: incoming frames, and a broken connection that never raises."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(HELLO_MAX_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if self._transport is None or self._transport.is_closing():
                    return
                self.frame_received(frame)
        except wire.CorruptFrame as error:
            self.refused(error.reason)
            self.close()
        except Exception:
            logger.exception("peer connection closed: a message could not be handled")
            self.close()

    def frame_received(self, frame: memoryview) -> None:
        raise NotImplementedError

    def refused(self, reason: str) -> None:
        """Report why the connection is closed."""
        logger.warning("peer connection closed", extra={"reason": reason})

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Incoming(_PeerConnection):
    """A peer's connection to us: hello, then messages."""

    def __init__(self, owner: PeerTransport) -> None:
        super().__init__()
        self._owner = owner
        self.source: str | None = None
        self._address = ""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._owner.joined(self)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self.proven_id is None:
            self._owner.links.wait(self, self._address)
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._hello_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.links.room.leave(self)
        self._owner.left(self)
        if self._timer is not None:
            self._timer.cancel()

    def _hello_is_late(self) -> None:
        if self.source is None:
            self.close()

    def frame_received(self, frame: memoryview) -> None:
        if self.source is not None:
            self._owner.received(self.source, frame)
            return
        owner = self._owner
        reason, hello = _judge(frame, owner, self.proven_id)
        if hello is None:
            self.refused(reason)
            self._reply(msgspec.json.encode(PeerRefusal(reason)))
            self.close()
            return
        owner.links.room.leave(self)
        owner.heard_from(self, hello.source, hello.address)
        self._reader.raise_limit(FRAME_MAX_BYTES)
        self._reply(owner.hello_to(hello.source))

    def refused(self, reason: str) -> None:
        """Report rarely what an unidentified peer sends: a flood would fill the disk with lines."""
        if self.source is None:
            self._owner.links.refuse("malformed", reason, self._address)
        else:
            super().refused(reason)

    def _reply(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(LENGTH.pack(len(frame)) + frame)


def _judge(frame: memoryview, owner: PeerTransport, proven_id: str | None) -> tuple[str, Hello | None]:
    """Return the hello if it comes from a valid peer and is meant for this node, otherwise the refusal."""
    try:
        hello = msgspec.json.decode(frame, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "not a hello", None
    if hello.protocol != PROTOCOL:
        return f"protocol {PROTOCOL} is spoken here, not {hello.protocol}", None
    if hello.cluster != owner.cluster_id:
        return "another cluster", None
    if hello.target != owner.node_id:
        return f"this is {owner.node_id}, not {hello.target}", None
    if hello.source == owner.node_id or not _is_address(hello.address):
        return f"{hello.source} at {hello.address} cannot be a peer of {owner.node_id}", None
    if proven_id not in (None, hello.source):
        return f"{proven_id} has proved itself, not {hello.source}", None
    if not owner.takes(hello.source):
        return f"{hello.source} is not a member, and {UNKNOWN_PEERS_MAX} such nodes are known already", None
    return "", hello


def _is_address(text: str) -> bool:
    try:
        split_address(text)
    except ValueError:
        return False
    return True


class _Outgoing(_PeerConnection):
    """Our connection to one peer, restored after each loss; `version` is set while it is open."""

    def __init__(
        self, owner: PeerTransport, peer_id: str, address: tuple[str, int], chance: random.Random
    ) -> None:
        super().__init__()
        self.peer_id = peer_id
        self.version: str | None = None
        self.ha_address: str | None = None
        self._owner = owner
        self._address = address
        self._chance = chance
        self._queue: list[Buffer] = []
        self._queued_bytes = 0
        self._dropped = 0
        self._kept: deque[tuple[float, list[Buffer]]] = deque(maxlen=KEPT_MESSAGES)  # (when, message)
        self._lost = asyncio.Event()
        self._hurry = asyncio.Event()

    async def keep_connected(self) -> None:
        """Connect, wait until the connection is lost, pause, and repeat, until cancelled.

        A peer that is not a member is called rarely (when it starts, it calls itself), and not permanently.
        """
        loop, retry = asyncio.get_running_loop(), self._owner.retry
        delay_s, reached_s = RETRY_FIRST_S, loop.time()
        host, port = self._address
        while True:
            self._lost.clear()
            self._hurry.clear()
            self._reader = FrameReader(HELLO_MAX_BYTES)
            try:
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    await self._owner.links.connect(lambda: self, host, port, self.peer_id)
            except (OSError, TimeoutError):
                pass  # the peer is down: expected, and visible in /v1/cluster
            else:
                timer = loop.call_later(HELLO_TIMEOUT_S, self._welcome_is_late)
                await self._lost.wait()
                timer.cancel()
                if self.version is not None:
                    delay_s, reached_s = RETRY_FIRST_S, loop.time()
                    logger.info("peer lost", extra={"peer": self.peer_id})
                self.version = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s * self._chance.uniform(0.5, 1.0)):
                    await self._hurry.wait()
            member = self._owner.is_member(self.peer_id)
            delay_s = min(delay_s * 2, RETRY_LAST_S if member else retry.removed_retry_s)
            if member:
                reached_s = loop.time()
            elif loop.time() - reached_s > retry.removed_forget_s and self._owner.drop(self.peer_id):
                return

    def hurry(self) -> None:
        self._hurry.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        hello = self._owner.hello_to(self.peer_id)
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=MIB)
        _bound_silence(self._transport)
        self._transport.write(LENGTH.pack(len(hello)) + hello)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget_queue()
        self._lost.set()

    def _welcome_is_late(self) -> None:
        if self.version is None:
            self.close()

    def frame_received(self, frame: memoryview) -> None:
        if self.version is not None:
            raise wire.CorruptFrame("a message on a connection that carries none back")
        try:
            answer = msgspec.json.decode(frame, type=Hello)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise wire.CorruptFrame(f"{self.peer_id} refused: {bytes(frame[:200])!r}") from None
        if answer.cluster != self._owner.cluster_id or answer.source != self.peer_id:
            raise wire.CorruptFrame(f"{self._address} is not {self.peer_id} of this cluster")
        self.version = answer.version
        self.ha_address = answer.ha_address
        logger.info("peer connected", extra={"peer": self.peer_id})
        oldest = asyncio.get_running_loop().time() - KEPT_S
        for when, buffers in self._kept:
            if when >= oldest:
                self._enqueue(buffers, sum(map(len, buffers)))
        self._kept.clear()

    def send(self, log_id: int, message: Any) -> None:
        try:
            buffers = wire.encode(log_id, message)
        except Exception:
            logger.exception("a message could not be encoded", extra={"peer": self.peer_id})
            return
        size = sum(map(len, buffers))
        transport = self._transport
        if transport is None or self.version is None:
            if size <= KEPT_MESSAGE_MAX_BYTES:
                self._kept.append((asyncio.get_running_loop().time(), buffers))
            return
        if self._queued_bytes + size + transport.get_write_buffer_size() > SEND_MAX_BYTES:
            self._dropped += 1
            if self._dropped & (self._dropped - 1) == 0:
                logger.warning("messages dropped", extra={"peer": self.peer_id, "count": self._dropped})
            return
        self._enqueue(buffers, size)

    def _enqueue(self, buffers: list[Buffer], size: int) -> None:
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._flush)
        self._queue.append(LENGTH.pack(size))
        self._queue.extend(buffers)
        self._queued_bytes += size

    def _flush(self) -> None:
        transport = self._transport
        if transport is not None and self._queue:
            transport.writelines(self._queue)
        self._forget_queue()

    def _forget_queue(self) -> None:
        self._queue = []
        self._queued_bytes = 0


def _bound_silence(transport: asyncio.Transport) -> None:
    """Let the system give up a connection whose bytes are not acknowledged, where it can.

    Otherwise a connection that survived a long partition continues only after TCP's doubled timers.
    """
    door = transport.get_extra_info("socket")
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if door is not None and option is not None:
        door.setsockopt(socket.IPPROTO_TCP, option, UNACKNOWLEDGED_TIMEOUT_MS)
