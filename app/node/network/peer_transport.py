"""Framed TCP between the nodes of one cluster.

Every node keeps two outgoing connections to each peer and sends on them alone; messages of the peer arrive on
the peer's own connections. Records, of which one message may have many megabytes, leave on the second one, so
that no heartbeat, vote or acknowledgement waits behind them; the second one is open only while the first one
is, and while it is not open, all messages leave on the first one. A frame is its length (u32, little-endian)
and that many bytes:

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
import logging
import random
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from app.node.links.handshake import Identity, Purpose
from app.node.links.links import Links
from app.node.network import wire
from app.node.network.frame_reader import LENGTH
from app.node.network.group_claims import GroupClaim, announce, announced
from app.node.network.peer_connections import (
    HELLO_TIMEOUT_S,
    Hello,
    OutgoingConnection,
    PeerConnection,
    PeerRefusal,
    RecordConnection,
    RetryConfig,
    bound_silence,
)
from app.node.network.peer_host import PeerHost, PeerIdentity
from app.settings.addresses import split_address
from app.version import VERSION
from storage.units import MIB

logger = logging.getLogger(__name__)

PROTOCOL: Final = 2
FRAME_MAX_BYTES: Final = 80 * MIB  # the largest batch, and the head of its push
OF_A_PEER_MAX: Final = 4  # incoming connections of one peer; a newer one closes the oldest
UNKNOWN_PEERS_MAX: Final = 32  # peers known by their hello alone that are members of no log


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
        *,
        takes_appends: bool = False,
    ) -> None:
        """peers: (id, host:port) of those that are known already. links: how connections prove themselves;
        None: not at all. takes_appends: whether peers may send appends of clients to this node."""
        self.links = links or Links(Identity(node.cluster_id, node.node_id, Purpose.PEER))
        self.cluster_id = node.cluster_id
        self.node_id = node.node_id
        self.address = node.address
        self._takes_appends = takes_appends
        self._listen = split_address(node.listen)
        self._host = host
        self._chance = chance
        self.retry = retry or RetryConfig()
        self._incoming: dict[_Incoming, None] = {}  # in order of arrival
        self._outgoing: dict[str, OutgoingConnection] = {}
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
        peer = self._outgoing[peer_id] = OutgoingConnection(
            self, peer_id, split_address(address), self._chance
        )
        if self._started:
            self._connect(peer)

    def place_peer(self, peer_id: str, address: str) -> None:
        """As `add_peer`; a known peer is called at this address from now on. Raises ValueError."""
        peer = self._outgoing.get(peer_id)
        if peer is None:
            self.add_peer(peer_id, address)
        else:
            peer.move(split_address(address))

    def _connect(self, peer: "OutgoingConnection") -> asyncio.Task[None]:
        loop = asyncio.get_running_loop()
        task = loop.create_task(peer.keep_connected(), name=f"connect {peer.peer_id}")
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        return task

    def connect_for_records(self, peer_id: str, address: tuple[str, int]) -> "RecordConnection":
        """Keep a connection for records to a peer whose first connection is open, until it is ended."""
        second = RecordConnection(self, peer_id, address, self._chance)
        second.task = self._connect(second)
        return second

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

    def carries_appends(self, peer_id: str) -> bool:
        """Return whether appends of clients can be sent to the peer now."""
        peer = self._outgoing.get(peer_id)
        return peer is not None and peer.carries_appends

    def connection_lost(self, peer_id: str) -> None:
        """A connection of any direction was lost: what was sent, or the answer to it, may be lost too."""
        if not self.closing:
            self._host.connection_lost(peer_id)

    def peer_ha_address(self, peer_id: str) -> str | None:
        """Return where a peer accepts slaves, as last reported; None before that."""
        peer = self._outgoing.get(peer_id)
        return None if peer is None else peer.ha_address

    def hello_to(self, peer_id: str) -> bytes:
        """Return the hello of this node."""
        ha_address = self._host.ha_address()
        hello = Hello(
            PROTOCOL,
            self.cluster_id,
            self.node_id,
            peer_id,
            self.address,
            announce(VERSION, self._host.claims(), takes_appends=self._takes_appends),
            ha_address=ha_address,
        )
        return msgspec.json.encode(hello)

    def claimed(self, peer_id: str, claims: dict[str, GroupClaim]) -> None:
        """The peer has reported the groups of its logs."""
        self._host.claimed(peer_id, claims)

    @property
    def has_called_all(self) -> bool:
        """True if each known peer has answered once, or could not be reached."""
        return all(peer.was_called for peer in self._outgoing.values())

    def is_connected(self, peer_id: str) -> bool:
        """Return whether a connection with the peer is open, in any direction."""
        return self.peer_version(peer_id) is not None or peer_id in self.connected()

    def greet(self, peer_id: str) -> None:
        """Exchange hellos with a connected peer again: what they report may have changed."""
        peer = self._outgoing.get(peer_id)
        if peer is not None:
            peer.greet()

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
            logger.warning(
                "a node calls that neither the file of this node nor a log names: if it belongs to the "
                "cluster, add it to the file",
                extra={"peer": peer_id, "address": address},
            )
        self.add_peer(peer_id, address)
        self._outgoing[peer_id].hurry()
        of_peer = [each for each in self._incoming if each.source == peer_id]
        for older in of_peer[:-OF_A_PEER_MAX]:
            older.close()

    def left(self, connection: "_Incoming") -> None:
        self._incoming.pop(connection, None)
        peer = connection.source
        if peer is None:
            return
        self.connection_lost(peer)
        if peer not in self.connected() and not self.closing:
            self._host.peer_lost(peer)

    def connected(self) -> list[str]:
        """Return the peers whose connection to this node is open."""
        return [connection.source for connection in self._incoming if connection.source is not None]


class _AnyHello(msgspec.Struct, frozen=True):
    """Field that the hello of every version contains."""

    protocol: int


class _Incoming(PeerConnection):
    """A peer's connection to us: hello, then messages."""

    def __init__(self, owner: PeerTransport) -> None:
        super().__init__()
        self._owner = owner
        self.source: str | None = None
        self._address = ""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        bound_silence(transport)
        self._owner.joined(self)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        if self.proven_id is None:
            self._owner.links.wait(self, self._address)
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._hello_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.links.handshakes.leave(self)
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
        owner.links.handshakes.leave(self)
        owner.heard_from(self, hello.source, hello.address)
        owner.claimed(hello.source, announced(hello.version).claims)
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
    """Return the hello if it is from a valid peer and is meant for this node, otherwise the refusal."""
    try:
        protocol = msgspec.json.decode(frame, type=_AnyHello).protocol
        if protocol != PROTOCOL:
            return f"protocol {PROTOCOL} is spoken here, not {protocol}", None
        hello = msgspec.json.decode(frame, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "not a hello", None
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
