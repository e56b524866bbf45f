"""Connections between masters and slaves: introduction, limits, reading and writing of frames.

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
from app.ha.messages import INCOMING, Closed, Drained, Opened
from app.node.links.links import LinkedProtocol, Links
from app.node.links.unreached import Unreached
from storage.units import KIB

logger = logging.getLogger(__name__)

PREFACE_TIMEOUT_S: Final = 2.0
UNIDENTIFIED_MAX: Final = 1_024  # connections that others opened and that have not introduced themselves
REPLICAS_MAX: Final = 64  # of one log; a higher place is invalid
UNNAMED_MAX: Final = 256  # of one log: slaves that name no replica
OF_A_REPLICA_MAX: Final = 8  # of one replica of a log; the newest one counts
REFUSALS: Final = ("unidentified", "unnamed", "replica")  # by the limit that was reached
DIAL_PAUSE_MIN_S: Final = 0.1  # after a connection that ended without a byte; doubles each time
DIAL_PAUSE_MAX_S: Final = 3.0
READ_PAUSE_S: Final = 0.02  # pause before an overloaded driver is asked again
BUFFER_HIGH_BYTES: Final = 256 * KIB

Deliver = Callable[[str, Any], None]


class Protocol(StrEnum):
    """Frame format of a log's connections."""

    AUTO_SWITCH = "auto_switch"
    CLASSIC = "classic"


@dataclass(slots=True)
class AttachedLog:
    """A log with its connections. place: of this replica among the log's, for prefaces.

    master: the address where its master accepts slaves, for cores that do not know it; None while unknown.
    takes_more: False while its driver is overloaded and its connections are not read. replicas: nodes by
    place, for a group that never changes: a connection that has proved its node must name the place of that
    node.
    """

    log_id: int
    protocol: Protocol
    deliver: Deliver
    name: str
    place: int
    by_number: bool
    master: Callable[[], str | None]
    takes_more: Callable[[], bool]
    replicas: tuple[str, ...] = ()
    listener: asyncio.Server | None = None
    incoming: Counter[int] = field(default_factory=Counter)  # connections by place of the replica, 0: unnamed
    dialled: str = ""  # address of the last master that was dialled
    fruitless: int = 0  # consecutive own connections to it that ended without a byte
    dial_at_s: float = 0.0  # on the loop's clock: not before
    unreached: Unreached = field(default_factory=lambda: Unreached("ha"))

    def next_dial_s(self, address: str) -> float:
        """Return when a master may be dialled, on the loop's clock. Another one than the last: at once."""
        if address != self.dialled:
            self.dialled, self.fruitless, self.dial_at_s = address, 0, 0.0
            self.unreached.reached()
        return self.dial_at_s


class ConnectionTable:
    """The logs and their open connections: counts, limits and keys. Owned by one event loop.

    Invariant: a connection that has ended is in none of the tables.
    """

    def __init__(self, links: Links) -> None:
        self._links = links
        self.logs: dict[int, AttachedLog] = {}
        self.incoming: dict[HaConnection, None] = {}  # identified or not
        self.by_key: dict[tuple[int, str], HaConnection] = {}  # (log id, key)
        self.unidentified = 0  # connections that others opened and that have not introduced themselves
        self.refused: Counter[str] = Counter()  # connections closed because of a limit, by limit
        self._count = 0
        self._unidentified_count = 0

    def find(self, log_id: int) -> AttachedLog | None:
        return self.logs.get(log_id)

    def came(self, connection: "HaConnection") -> bool:
        """A peer has connected; return whether it may identify itself."""
        limit = min(UNIDENTIFIED_MAX, self._links.handshakes.size)
        if self.unidentified >= limit:
            self._refuse("unidentified", limit)
            return False
        self.unidentified += 1
        self.incoming[connection] = None
        return True

    def takes(self, owner: AttachedLog, place: int) -> bool:
        """Return whether the log accepts another connection of that replica, 0: of a peer that names none."""
        limit = OF_A_REPLICA_MAX if place else UNNAMED_MAX
        if owner.incoming[place] < limit:
            return True
        self._refuse("replica" if place else "unnamed", limit)
        return False

    def _refuse(self, what: str, limit: int) -> None:
        self.refused[what] += 1
        count = self.refused[what]
        if count & (count - 1) == 0:  # logged at growing intervals, or it would fill the log
            logger.warning("HA connection refused", extra={"limit": what, "allowed": limit, "count": count})

    def introduced(self, connection: "HaConnection", owner: AttachedLog, key: str | None) -> str:
        """The connection belongs to a log from now on; return its key."""
        if key is None:
            self._count += 1
            key = f"{INCOMING}{self._count}"
            self.unidentified -= 1
            owner.incoming[connection.place] += 1
        self.by_key[owner.log_id, key] = connection
        return key

    def ended(self, owner: AttachedLog, address: str, *, fruitful: bool) -> None:
        """An own connection has ended. fruitful: the master had sent something."""
        if address != owner.dialled:
            return
        if fruitful:
            owner.fruitless = 0
            return
        pause_s = min(DIAL_PAUSE_MAX_S, DIAL_PAUSE_MIN_S * 2 ** min(owner.fruitless, 10))
        owner.fruitless += 1
        owner.dial_at_s = asyncio.get_running_loop().time() + pause_s

    def log_closed(self, connection: "HaConnection", reason: str, level: int, node: str = "") -> None:
        """Log why a connection to `node` ended (empty: unknown); rate-limited for unidentified peers, so that
        probes do not fill the log."""
        if not connection.is_unidentified:
            log = "" if connection.owner is None else connection.owner.name
            extra = {"log": log, "peer": node, "connection": connection.key, "reason": reason}
            logger.log(level, "HA connection closed", extra=extra)
            return
        self._unidentified_count += 1
        if self._unidentified_count & (self._unidentified_count - 1) == 0:
            logger.warning(
                "unidentified peers at the HA port", extra={"count": self._unidentified_count, "last": reason}
            )

    def left(self, connection: "HaConnection") -> None:
        owner = connection.owner
        if connection in self.incoming:
            del self.incoming[connection]
            if owner is None:
                self.unidentified -= 1
            else:
                owner.incoming[connection.place] -= 1
        if owner is not None and self.by_key.get((owner.log_id, connection.key)) is connection:
            del self.by_key[owner.log_id, connection.key]


class HaConnection(LinkedProtocol):
    """One connection, in either direction."""

    def __init__(
        self,
        connections: ConnectionTable,
        log_id: int | None,
        key: str | None = None,
        history: History | None = None,
        address: str = "",
        owner: AttachedLog | None = None,
    ) -> None:
        """log_id: of a listener for one log, or of our own connection; key, history, address, owner: of our
        own."""
        self.owner: AttachedLog | None = None
        self.key = ""
        self.is_unidentified = key is None  # until it names its replica; a slave of 8-byte reports never does
        self._connections = connections
        self._log_id = log_id
        self._dialled = key
        self._history = history
        self._address = address
        self._dialler = owner
        self._has_heard = False
        self.place = 0  # of the replica that it names, from 1
        self._first = b""  # bytes received before the peer is identified
        self._reader: FrameSplitter | None = None
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._paused = False
        self._space_report_due = False

    # --- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFER_HIGH_BYTES)
        if self._dialled is not None:
            self._dialled_out(self._dialled)
        elif not self._connections.came(self):
            self._transport.abort()
        else:
            self._timer = asyncio.get_running_loop().call_later(PREFACE_TIMEOUT_S, self._is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_timer()
        self._connections.left(self)
        if self._dialled is not None and self.owner is not None:
            self._connections.ended(self.owner, self._address, fruitful=self._has_heard)
        if self.owner is not None and not self._closed:
            self._closed = True
            self.owner.deliver(self.key, Closed("hung up" if exc is None else repr(exc)))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._request_space_report()

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
            self._connections.log_closed(self, error.reason, logging.WARNING)
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
        owner = self._dialler
        if self._transport is None or owner is None or self._connections.find(owner.log_id) is not owner:
            self.close()  # the log has another core by now, or none
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
        owner = self._connections.find(preface.log_id if self._log_id is None else self._log_id)
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
        if not self._connections.takes(owner, place):
            self.close()
            return b""
        self.place = place
        self.is_unidentified = place == 0
        self._belongs_to(owner, reader, Opened(place, preface.history, self.proven_id), None)
        return first

    def _belongs_to(self, owner: AttachedLog, reader: FrameSplitter, opened: Opened, key: str | None) -> None:
        self._stop_timer()
        self._reader = reader
        self.owner = owner
        self.key = self._connections.introduced(self, owner, key)
        owner.deliver(self.key, opened)

    def _is_late(self) -> None:
        self._timer = None
        self._give_up(f"no valid introduction within {PREFACE_TIMEOUT_S} s")

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
            self._connections.log_closed(self, f"a frame that cannot be sent: {error}", logging.ERROR)
            self._give_up(f"a frame that cannot be sent: {error}")
            return
        self._transport.writelines(data)
        if not self._paused:
            self._request_space_report()

    def _request_space_report(self) -> None:
        """Inform the core at the end of this turn that there is space, once."""
        if not self._space_report_due:
            self._space_report_due = True
            asyncio.get_running_loop().call_soon(self._report_space)

    def _report_space(self) -> None:
        self._space_report_due = False
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
        self._connections.left(self)
        if self._transport is None:
            return
        if self._paused:  # the peer does not read the written bytes
            self._transport.abort()
        else:
            self._transport.close()
