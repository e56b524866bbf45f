"""TCP between masters and slaves of logs in controller and classic mode (bytes: app/ha/frames.py).

One listener per node, on a separate port, accepts the slaves of every log: the first 16 bytes, the preface,
name the log. A classic log may have its own listener, where slaves that know no prefaces may follow it.

A core learns of a connection only after its first valid frame: port probes and garbage occupy a socket
briefly, and leave nothing behind. The core limits what is sent, and waits for Drained.

With a cluster secret or TLS every connection, also one to the listener of one log, begins with a handshake
(app/node/links): plain slaves, such as RocketMQ's, are accepted only when neither is configured.

Limits grow with the logs served: on connections without an identification, on connections of each log without
a replica's name, and on connections of each replica of a log. A refused connection is logged, counted and
closed; its dialler waits longer after each refusal.
"""

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, cast

from app.ha.frames import (
    PREFACE_MAGIC,
    CorruptHaFrame,
    FrameSplitter,
    History,
    Preface,
    decode_classic,
    decode_from_master,
    decode_from_slave,
    decode_from_slave_by_number,
    decode_preface,
    decode_report,
    encode,
    encode_preface,
)
from app.ha.messages import INCOMING, OUTGOING, Closed, Connect, Disconnect, Drained, HaMessage, Opened
from app.log.driver_interfaces import Transport
from app.node.links.links import LinkedProtocol, Links
from app.settings.addresses import split_address

logger = logging.getLogger(__name__)

PREFACE_TIMEOUT_S: Final = 2.0
_CONNECT_TIMEOUT_S: Final = 2.0
_PROOF_TIMEOUT_S: Final = 5.0  # with a handshake, which needs the other side's event loop
UNIDENTIFIED_MAX: Final = 1_024  # connections that others opened and that have not introduced themselves
REPLICAS_MAX: Final = 64  # of one log; a higher place is invalid
STRANGERS_MAX: Final = 256  # of one log: slaves that name no replica
OF_A_REPLICA_MAX: Final = 8  # of one replica of a log; the newest one counts
REFUSALS: Final = ("unidentified", "stranger", "replica")  # by the limit that was reached
DIAL_PAUSE_MIN_S: Final = 0.1  # after a connection that ended without a byte; doubles each time
DIAL_PAUSE_MAX_S: Final = 3.0
READ_PAUSE_S: Final = 0.02  # pause before an overloaded driver is asked again
BUFFER_HIGH_BYTES: Final = 256 * 1024

Deliver = Callable[[str, Any], None]


class Protocol(StrEnum):
    """Frame format of a log's connections."""

    AUTO_SWITCH = "auto_switch"
    CLASSIC = "classic"


@dataclass(slots=True)
class _Log:
    """A log with its connections. place: of this replica among the log's, for prefaces.

    master: the address where its master accepts slaves, for cores that do not know it; None while unknown.
    takes_more: False while its driver is overloaded and its connections are not read. replicas: nodes by
    place, for a group that never changes: a connection that has proved its node must name the place of that
    node.
    """

    log_id: int
    protocol: Protocol
    deliver: Deliver
    place: int
    by_number: bool
    master: Callable[[], str | None]
    takes_more: Callable[[], bool]
    replicas: tuple[str, ...] = ()
    listener: asyncio.Server | None = None
    incoming: Counter[int] = field(default_factory=Counter)  # connections by place of the replica, 0: unnamed
    fruitless: int = 0  # consecutive own connections that ended without a byte
    dial_at_s: float = 0.0  # on the loop's clock: not before


class HaTransport:
    """Owned by the event loop that it was started on. A Transport for targets that are connections."""

    def __init__(self, listen: str, links: Links) -> None:
        """listen: host:port of the shared listener; port 0 takes any free one. links: of the HA port."""
        self.links = links
        self._listen = split_address(listen)
        self._logs: dict[int, _Log] = {}
        self._server: asyncio.Server | None = None
        self._incoming: dict[_Connection, None] = {}  # identified or not
        self._connections: dict[tuple[int, str], _Connection] = {}  # (log id, key)
        self._connecting: dict[tuple[int, str], asyncio.Task[None]] = {}
        self.unidentified = 0  # connections that others opened and that have not introduced themselves
        self._count = 0
        self._strangers = 0
        self.refused: Counter[str] = Counter()  # connections closed because of a limit, by limit

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be bound."""
        self._server = await self._listener(self._listen, None)

    async def _listener(self, address: tuple[str, int], log_id: int | None) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: self.links.accept(lambda: _Connection(self, log_id)), *address, backlog=UNIDENTIFIED_MAX
        )

    @property
    def address(self) -> str:
        """host:port that the shared listener has bound."""
        assert self._server is not None
        return _bound(self._server)

    @property
    def open_connections(self) -> int:
        """Number of connections that others have opened to this node, including invalid ones."""
        return len(self._incoming)

    def attach(
        self,
        log_id: int,
        protocol: Protocol,
        deliver: Deliver,
        *,
        place: int = 0,
        by_number: bool = False,
        master: Callable[[], str | None] = lambda: None,
        takes_more: Callable[[], bool] = lambda: True,
        replicas: tuple[str, ...] = (),
    ) -> None:
        """Take connections of a log from now on: what comes in goes to deliver(key, message).

        A log may be attached again, by another core: the connections of the old one end, a listener stays.
        place: of this replica among the log's, from 1. by_number: this node's handshakes are of newer builds.
        master: where to connect to for a core that names no address. takes_more: False while the driver has
        too much to do: its connections are not read then. replicas: nodes by place, of a classic log.
        """
        before = self._logs.get(log_id)
        self._end_connections(log_id)
        listener = None if before is None else before.listener
        self._logs[log_id] = _Log(
            log_id, protocol, deliver, place, by_number, master, takes_more, replicas, listener
        )

    def _end_connections(self, log_id: int) -> None:
        for (owner, _), connection in list(self._connections.items()):
            if owner == log_id:
                connection.close()
        for (owner, _), task in list(self._connecting.items()):
            if owner == log_id:
                task.cancel()

    async def listen_for(self, log_id: int, listen: str) -> str:
        """Open a listener for one attached log alone, where the preface is optional; return its address.

        Raises OSError when the address cannot be bound.
        """
        owner = self._logs[log_id]
        if owner.listener is None:
            owner.listener = await self._listener(split_address(listen), log_id)
        return _bound(owner.listener)

    def detach(self, log_id: int) -> None:
        """Detach a log; its connections end without a message to its core."""
        gone = self._logs.pop(log_id, None)
        if gone is not None and gone.listener is not None:
            gone.listener.close()
        self._end_connections(log_id)

    async def stop(self) -> None:
        for log_id in list(self._logs):
            self.detach(log_id)
        if self._server is not None:
            self._server.close()
        self.links.stop()
        for connection in list(self._incoming):
            connection.close()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)

    # --- what cores ask ------------------------------------------------------------------------------------

    def send(self, target: str, log_id: int, message: HaMessage) -> None:
        """Carry out a command, or send a frame; no effect on a closed connection. Never raises."""
        if isinstance(message, Connect):
            self._connect(log_id, target, message)
            return
        connection = self._connections.get((log_id, target))
        if isinstance(message, Disconnect):
            if (task := self._connecting.get((log_id, target))) is not None:
                task.cancel()
            if connection is not None:
                self.tell_closed(connection, message.reason, logging.INFO)
                connection.close()
        elif connection is not None:
            connection.write(message)

    def _connect(self, log_id: int, key: str, connect: Connect) -> None:
        owner = self._logs.get(log_id)
        if owner is not None:
            work = self._dial(owner, key, connect)
            task = asyncio.get_running_loop().create_task(work, name=f"HA connection to {connect.address}")
            self._connecting[log_id, key] = task

    async def _dial(self, owner: _Log, key: str, connect: Connect) -> None:
        loop = asyncio.get_running_loop()
        address, history = connect.address, connect.history
        try:
            await asyncio.sleep(max(0.0, owner.dial_at_s - loop.time()))
            async with asyncio.timeout(_CONNECT_TIMEOUT_S if self.links.is_plain else _PROOF_TIMEOUT_S):
                host, port = split_address(address or owner.master() or "")
                await self.links.connect(
                    lambda: _Connection(self, owner.log_id, key, history), host, port, connect.node
                )
        except (OSError, TimeoutError, ValueError) as error:
            if self._logs.get(owner.log_id) is owner:
                owner.deliver(key, Closed(f"{address}: {error!r}"))
        finally:
            self._connecting.pop((owner.log_id, key), None)

    # --- reports of connections -----------------------------------------------------------------------------

    def find(self, log_id: int) -> _Log | None:
        return self._logs.get(log_id)

    def came(self, connection: "_Connection") -> bool:
        """A peer has connected; return whether it may identify itself."""
        limit = min(UNIDENTIFIED_MAX, self.links.room.size)
        if self.unidentified >= limit:
            self._refuse("unidentified", limit)
            return False
        self.unidentified += 1
        self._incoming[connection] = None
        return True

    def takes(self, owner: _Log, place: int) -> bool:
        """Return whether the log accepts another connection of that replica, 0: of a peer that names none."""
        limit = OF_A_REPLICA_MAX if place else STRANGERS_MAX
        if owner.incoming[place] < limit:
            return True
        self._refuse("replica" if place else "stranger", limit)
        return False

    def _refuse(self, what: str, limit: int) -> None:
        self.refused[what] += 1
        count = self.refused[what]
        if count & (count - 1) == 0:  # logged at growing intervals, or it would fill the log
            logger.warning("HA connection refused", extra={"limit": what, "allowed": limit, "count": count})

    def introduced(self, connection: "_Connection", owner: _Log, key: str | None) -> str:
        """The connection belongs to a log from now on; return its key."""
        if key is None:
            self._count += 1
            key = f"{INCOMING}{self._count}"
            self.unidentified -= 1
            owner.incoming[connection.place] += 1
        self._connections[owner.log_id, key] = connection
        return key

    def ended(self, owner: _Log, *, fruitful: bool) -> None:
        """An own connection has ended. fruitful: the master had sent something."""
        if fruitful:
            owner.fruitless = 0
            return
        pause_s = min(DIAL_PAUSE_MAX_S, DIAL_PAUSE_MIN_S * 2 ** min(owner.fruitless, 10))
        owner.fruitless += 1
        owner.dial_at_s = asyncio.get_running_loop().time() + pause_s

    def tell_closed(self, connection: "_Connection", reason: str, level: int) -> None:
        """Log why a connection ended; rate-limited for unidentified peers, so that probes do not fill the
        log."""
        if not connection.is_stranger:
            logger.log(level, "HA connection closed", extra={"connection": connection.key, "reason": reason})
            return
        self._strangers += 1
        if self._strangers & (self._strangers - 1) == 0:
            logger.warning(
                "unidentified peers at the HA port", extra={"count": self._strangers, "last": reason}
            )

    def left(self, connection: "_Connection") -> None:
        owner = connection.owner
        if connection in self._incoming:
            del self._incoming[connection]
            if owner is None:
                self.unidentified -= 1
            else:
                owner.incoming[connection.place] -= 1
        if owner is not None:
            self._connections.pop((owner.log_id, connection.key), None)


class _Connection(LinkedProtocol):
    """One connection, in either direction."""

    def __init__(
        self,
        transport: HaTransport,
        log_id: int | None,
        key: str | None = None,
        history: History | None = None,
    ) -> None:
        """log_id: of a listener for one log, or of our own connection; key, history: of our own."""
        self.owner: _Log | None = None
        self.key = ""
        self.is_stranger = key is None  # until it names its replica; a slave of 8-byte reports never does
        self._ha = transport
        self._log_id = log_id
        self._dialled = key
        self._history = history
        self._has_heard = False
        self.place = 0  # of the replica that it names, from 1
        self._first = b""  # bytes received before the peer is identified
        self._reader: FrameSplitter | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._paused = False
        self._wants_room = False

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFER_HIGH_BYTES)
        if self._dialled is not None:
            self._dialled_out(self._dialled)
        elif not self._ha.came(self):
            self._transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(PREFACE_TIMEOUT_S, self._is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_timer()
        self._ha.left(self)
        if self._dialled is not None and self.owner is not None:
            self._ha.ended(self.owner, fruitful=self._has_heard)
        if self.owner is not None and not self._closed:
            self._closed = True
            self.owner.deliver(self.key, Closed("hung up" if exc is None else repr(exc)))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._ask_room()

    def data_received(self, data: bytes) -> None:
        self._has_heard = True
        try:
            if self._reader is None:
                self._first += data
                data = self._introduce()
            if self._reader is None or not data:
                return
            for frame in self._reader.feed(data):
                if self._closed or self.owner is None:
                    return
                self.owner.deliver(self.key, frame)
            self._read_if_there_is_room()
        except CorruptHaFrame as error:
            self._ha.tell_closed(self, error.reason, logging.WARNING)
            self._give_up(error.reason)

    def _read_if_there_is_room(self) -> None:
        """Stop reading while the log's driver is overloaded: the other side then waits in its socket."""
        if self._closed or self._transport is None:
            return
        if self.owner is None or self.owner.takes_more():
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(READ_PAUSE_S, self._read_if_there_is_room)

    # --- introductions

    def _dialled_out(self, key: str) -> None:
        owner = None if self._log_id is None else self._ha.find(self._log_id)
        if owner is None or self._transport is None:
            self.close()
            return
        preface = Preface(owner.log_id, owner.place, owner.by_number, self._history)
        self._transport.write(encode_preface(preface))
        decode = decode_from_master if owner.protocol is Protocol.AUTO_SWITCH else decode_classic
        self._belongs_to(owner, FrameSplitter(decode), Opened(), key)

    def _introduce(self) -> bytes:
        """Identify the peer by the first bytes; return the bytes that already belong to frames."""
        first = self._first
        preface = Preface(0)
        if self._log_id is None or first[:4] == PREFACE_MAGIC[: len(first)]:
            found = decode_preface(memoryview(first))
            if found is None:
                return b""
            preface, size = found
            first = first[size:]
            if self._log_id not in (None, preface.log_id):
                raise CorruptHaFrame("this listener is of another log")
        owner = self._ha.find(preface.log_id if self._log_id is None else self._log_id)
        if owner is None:
            raise CorruptHaFrame(f"no log {preface.log_id:016x} here")
        if owner.protocol is Protocol.CLASSIC:
            reader = FrameSplitter(decode_report)
        elif preface.by_number:
            reader = FrameSplitter(decode_from_slave_by_number)
        else:
            reader = FrameSplitter(decode_from_slave)
        self._first = b""
        place = preface.replica if preface.replica <= REPLICAS_MAX else 0
        if (
            self.proven_id is not None
            and owner.replicas
            and self.proven_id not in owner.replicas[place - 1 : place]
        ):
            raise CorruptHaFrame(f"{self.proven_id} is not replica {place} of the log")
        if not self._ha.takes(owner, place):
            self.close()
            return b""
        self.place = place
        self.is_stranger = place == 0
        self._belongs_to(owner, reader, Opened(place, preface.history, self.proven_id), None)
        return first

    def _belongs_to(self, owner: _Log, reader: FrameSplitter, opened: Opened, key: str | None) -> None:
        self._stop_timer()
        self._reader = reader
        self.owner = owner
        self.key = self._ha.introduced(self, owner, key)
        owner.deliver(self.key, opened)

    def _is_late(self) -> None:
        self._timer = None
        self._give_up("it said nothing that makes sense in time")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- writing and closing

    def write(self, message: Any) -> None:
        if self._transport is None or self._closed:
            return
        try:
            data = encode(message)
        except (ValueError, struct.error) as error:  # a frame too small for its content
            self._ha.tell_closed(self, f"a frame that cannot be sent: {error}", logging.ERROR)
            self._give_up(f"a frame that cannot be sent: {error}")
            return
        self._transport.writelines(data)
        if not self._paused:
            self._ask_room()

    def _ask_room(self) -> None:
        """Inform the core at the end of this turn that there is space, once."""
        if not self._wants_room:
            self._wants_room = True
            asyncio.get_running_loop().call_soon(self._tell_room)

    def _tell_room(self) -> None:
        self._wants_room = False
        if self.owner is not None and not (self._closed or self._paused):
            self.owner.deliver(self.key, Drained())

    def _give_up(self, reason: str) -> None:
        """Close a connection that is useless: the core sees it as a lost connection."""
        if self.owner is not None and not self._closed:
            self.owner.deliver(self.key, Closed(reason))
        self.close()

    def close(self) -> None:
        """Close after the written bytes are sent; nothing is delivered any more."""
        self._closed = True
        self._stop_timer()
        self._ha.left(self)
        if self._transport is None:
            return
        if self._paused:  # the peer does not read the written bytes
            self._transport.abort()
        else:
            self._transport.close()


class HaLink:
    """The Transport of HA drivers: connections use HaTransport, other nodes (reads) the peer transport."""

    def __init__(self, connections: HaTransport, peers: Transport) -> None:
        self._connections = connections
        self._peers = peers

    def send(self, target: str, log_id: int, message: Any) -> None:
        if target.startswith((INCOMING, OUTGOING)):
            self._connections.send(target, log_id, message)
        else:
            self._peers.send(target, log_id, message)


def _bound(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
