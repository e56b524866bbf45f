"""Connections to and from one peer: their frames, and the connections of this node to it, kept open.

Two lead to each peer (app/node/network/peer_transport.py): the first one carries all messages but records, so
that these wait behind no records; the second one is open only while the first one is.
"""

import asyncio
import contextlib
import logging
import random
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import msgspec

from app.node.links.links import LinkedProtocol, Links
from app.node.links.unreached import Unreached
from app.node.network import wire
from app.node.network.frame_reader import LENGTH, FrameReader
from app.node.network.group_claims import GroupClaim, announced
from app.node.network.record_queue import FrameBuffer, RecordQueue
from app.node.network.repair_messages import FetchAnswer
from app.raft.config import RaftConfig
from app.raft.messages import PushRequest, StateChunk
from storage.units import MIB

logger = logging.getLogger(__name__)

HELLO_MAX_BYTES: Final = 4096
SEND_MAX_BYTES: Final = 128 * MIB  # waiting on one connection; beyond it messages are dropped
WRITE_HIGH_BYTES: Final = MIB  # in a transport, beyond what the system has taken
HELLO_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 0.5  # of a call to a peer that has called itself since
RETRY_FIRST_S: Final = 0.05
RETRY_LAST_S: Final = 1.0
KEPT_MESSAGES: Final = 256  # for a peer without a connection
KEPT_MESSAGE_MAX_BYTES: Final = 4096
KEPT_S: Final = 3.0
CARRIED_WAITING_MAX_BYTES: Final = MIB  # on a connection; beyond it no client's append joins the messages
UNACKNOWLEDGED_TIMEOUT_MS: Final = 5_000  # a peer that does not answer for this time: connect again
_IDLE_S: Final = 10  # then the system asks whether the peer is still there
_TCP_OPTIONS: Final = {
    "TCP_USER_TIMEOUT": UNACKNOWLEDGED_TIMEOUT_MS,
    "TCP_KEEPIDLE": _IDLE_S,
    "TCP_KEEPINTVL": UNACKNOWLEDGED_TIMEOUT_MS // 1000,
}

WITH_RECORDS: Final = (PushRequest, FetchAnswer, StateChunk)  # messages that may carry records, in one order


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sender and receiver. `to` detects an address that now belongs to another node.

    address: host:port at which the other nodes reach the sender. ha_address: where it accepts slaves.
    version: with the groups of the sender's logs, and whether it takes the messages of append_messages.py
    (group_claims.py).
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


class PeerOwner(Protocol):
    """The part of a PeerTransport that its connections use."""

    links: Links
    cluster_id: str
    retry: RetryConfig

    def hello_to(self, peer_id: str) -> bytes:
        """Return the hello of this node."""
        ...

    def is_member(self, peer_id: str) -> bool: ...

    def claimed(self, peer_id: str, claims: dict[str, GroupClaim]) -> None:
        """The peer has reported the groups of its logs."""
        ...

    def connection_lost(self, peer_id: str) -> None:
        """The first connection to the peer was lost, or was never open."""
        ...

    def drop(self, peer_id: str) -> bool:
        """Forget a peer; return False if it must stay known."""
        ...

    def connect_for_records(self, peer_id: str, address: tuple[str, int]) -> "RecordConnection":
        """Keep a second connection to a peer whose first one is open, until it is ended."""
        ...


class PeerConnection(LinkedProtocol):
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


class OutgoingConnection(PeerConnection):
    """Our connection to one peer, restored after each loss; `version` is set while it is open."""

    is_second = False

    def __init__(
        self, owner: PeerOwner, peer_id: str, address: tuple[str, int], chance: random.Random
    ) -> None:
        super().__init__()
        self.peer_id = peer_id
        self.version: str | None = None
        self.was_called = False  # at least once: it has answered, or it cannot be reached
        self.ha_address: str | None = None
        self._takes_appends = False
        self._owner = owner
        self._address = address
        self._chance = chance
        self._queue: list[FrameBuffer] = []
        self._queued_bytes = 0
        self._dropped = 0
        self._kept: deque[tuple[float, list[FrameBuffer]]] = deque(maxlen=KEPT_MESSAGES)  # (when, message)
        self._lost = asyncio.Event()
        self._hurry = asyncio.Event()
        self._limit: asyncio.Timeout | None = None  # of the call in progress
        self._second: RecordConnection | None = None  # while this connection is open
        self._unreached = Unreached("peer")

    async def keep_connected(self) -> None:
        """Connect, wait until the connection is lost, pause, and repeat, until cancelled.

        A peer that is not a member is called rarely (when it starts, it calls itself), and not permanently.
        """
        loop, retry = asyncio.get_running_loop(), self._owner.retry
        delay_s, reached_s = RETRY_FIRST_S, loop.time()
        while True:
            self._lost.clear()
            self._hurry.clear()
            self._reader = FrameReader(HELLO_MAX_BYTES)
            address = self._address
            try:
                await self._connect(*address)
            except (OSError, TimeoutError, ValueError) as error:  # it is down, or its host cannot exist
                self.not_reached(error, loop.time())
                if self._transport is not None:  # it was given up in the turn in which it was answered
                    self._transport.abort()
                    await self._lost.wait()
                self.version, self.was_called = None, True
            else:
                if address != self._address:  # it has moved meanwhile
                    self.close()
                timer = loop.call_later(HELLO_TIMEOUT_S, self._welcome_is_late)
                try:
                    await self._lost.wait()
                finally:
                    timer.cancel()
                if address == self._address:
                    self._hurry.clear()  # it was set while the connection was open
                if self.version is not None:
                    delay_s, reached_s = RETRY_FIRST_S, loop.time()
                    self.ended()
                self.version, self.was_called = None, True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s * self._chance.uniform(0.5, 1.0)):
                    await self._hurry.wait()
            member = self.is_second or self._owner.is_member(self.peer_id)
            delay_s = min(delay_s * 2, RETRY_LAST_S if member else retry.removed_retry_s)
            if member:
                reached_s = loop.time()
            elif loop.time() - reached_s > retry.removed_forget_s and self._owner.drop(self.peer_id):
                return

    async def _connect(self, host: str, port: int) -> None:
        """Connect once. Give a call up that the peer does not answer although it has called itself since: it
        was down, or not reachable, when the call began. Raises OSError, TimeoutError."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S) as self._limit:
                await self._owner.links.connect(lambda: self, host, port, self.peer_id)
        finally:
            self._limit = None

    def hurry(self) -> None:
        """Do not wait: the peer has called, or has moved."""
        self._hurry.set()
        limit = self._limit
        if limit is not None and not limit.expired():  # one that has expired cannot be moved
            end_s, soon_s = limit.when(), asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
            limit.reschedule(soon_s if end_s is None else min(end_s, soon_s))

    def move(self, address: tuple[str, int]) -> None:
        """Call the peer at this address from now on; no effect if it is the known one."""
        if address != self._address:
            self._address = address
            self._unreached.reached()
            self.close()
            self.hurry()

    def greet(self) -> None:
        """Exchange hellos again, by a new connection for records: this one stays open."""
        if self._second is not None:
            self._second.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        hello = self._owner.hello_to(self.peer_id)
        assert self._transport is not None
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        bound_silence(self._transport)
        self._transport.write(LENGTH.pack(len(hello)) + hello)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget_queue()
        self._lost.set()
        second, self._second = self._second, None
        if second is not None:
            second.end()
        if not self.is_second:
            self._owner.connection_lost(self.peer_id)

    def welcomed(self) -> None:
        """The connection is open: open the one for records."""
        logger.info("peer connected", extra={"peer": self.peer_id})
        self._unreached.reached()
        self._second = self._owner.connect_for_records(self.peer_id, self._address)

    def ended(self) -> None:
        """The connection was open, and is lost."""
        logger.info("peer lost", extra={"peer": self.peer_id})

    def not_reached(self, error: Exception, now_s: float) -> None:
        """A call has failed."""
        if self._owner.is_member(self.peer_id):
            host, port = self._address
            self._unreached.failed(self.peer_id, f"{host}:{port}", error, now_s)

    def _welcome_is_late(self) -> None:
        if self.version is None:
            self.close()

    def frame_received(self, frame: memoryview) -> None:
        if self.version is not None:
            raise wire.CorruptFrame("a message on a connection that carries none back")
        try:
            answer = msgspec.json.decode(frame, type=Hello)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise wire.CorruptFrame(f"{self.peer_id} refused: {bytes(frame[:200])!r}") from None
        if answer.cluster != self._owner.cluster_id or answer.source != self.peer_id:
            raise wire.CorruptFrame(f"{self._address} is not {self.peer_id} of this cluster")
        self.version, claims, self._takes_appends = announced(answer.version)
        self.ha_address, self.was_called = answer.ha_address, True
        self._owner.claimed(self.peer_id, claims)
        self.welcomed()
        oldest = asyncio.get_running_loop().time() - KEPT_S
        for when, buffers in self._kept:
            if when >= oldest:
                self._enqueue(buffers, sum(map(len, buffers)))
        self._kept.clear()

    @property
    def carries_appends(self) -> bool:
        """Return whether appends of clients can be sent now."""
        transport = self._transport
        return (
            self._takes_appends
            and self.version is not None
            and transport is not None
            and self._queued_bytes + transport.get_write_buffer_size() < CARRIED_WAITING_MAX_BYTES
        )

    @property
    def records_apart(self) -> bool:
        """Return whether records leave on a connection of their own."""
        return self._second is not None and self._second.version is not None

    def send(self, log_id: int, message: Any) -> None:
        if self._second is not None and self.records_apart and isinstance(message, WITH_RECORDS):
            self._second.send(log_id, message)
            return
        buffers = self._encoded(log_id, message)
        size = sum(map(len, buffers))
        transport = self._transport
        if transport is None or self.version is None:
            if 0 < size <= KEPT_MESSAGE_MAX_BYTES:
                self._kept.append((asyncio.get_running_loop().time(), buffers))
        elif size and self._has_room(transport, self._queued_bytes + size):
            self._enqueue(buffers, size)

    def _encoded(self, log_id: int, message: Any) -> list[FrameBuffer]:
        """Return the message as buffers, none if it cannot be encoded."""
        try:
            return wire.encode(log_id, message)
        except Exception:
            logger.exception("a message could not be encoded", extra={"peer": self.peer_id})
            return []

    def _has_room(self, transport: asyncio.Transport, size: int) -> bool:
        """Return whether so many bytes may wait; count a message that is dropped."""
        if size + transport.get_write_buffer_size() <= SEND_MAX_BYTES:
            return True
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0:
            logger.warning("messages dropped", extra={"peer": self.peer_id, "count": self._dropped})
        return False

    def _enqueue(self, buffers: list[FrameBuffer], size: int) -> None:
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


class RecordConnection(OutgoingConnection):
    """Our second connection to one peer: it carries records only, and ends with the first one."""

    is_second = True

    def __init__(
        self, owner: PeerOwner, peer_id: str, address: tuple[str, int], chance: random.Random
    ) -> None:
        super().__init__(owner, peer_id, address, chance)
        self.task: asyncio.Task[None] | None = None
        self._has_ended = False
        self._records = RecordQueue()
        self._flush_due = False

    def end(self) -> None:
        """Close it permanently."""
        self._has_ended = True
        if self.task is not None:
            self.task.cancel()
        self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._has_ended:
            self.close()

    def send(self, log_id: int, message: Any) -> None:
        transport = self._transport
        if transport is None or self._records.holds(log_id, message):
            return
        buffers = self._encoded(log_id, message)
        size = sum(map(len, buffers))
        if size and self._has_room(transport, self._records.size_bytes + size):
            self._records.put(log_id, message, [LENGTH.pack(size), *buffers])
            self.resume_writing()

    def resume_writing(self) -> None:
        if not self._flush_due and self._records.size_bytes:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        """Hand over what the transport takes; it calls `resume_writing` when it takes more."""
        self._flush_due = False
        transport = self._transport
        while (
            transport is not None
            and self._records.size_bytes
            and transport.get_write_buffer_size() <= WRITE_HIGH_BYTES
        ):
            transport.writelines(self._records.take(WRITE_HIGH_BYTES))

    def _forget_queue(self) -> None:
        super()._forget_queue()
        self._records = RecordQueue()

    def welcomed(self) -> None:
        """Do nothing: without this connection, records leave on the first one."""

    def ended(self) -> None:
        """Do nothing: the first connection reports whether the peer is reached."""

    def not_reached(self, error: Exception, now_s: float) -> None:
        """Do nothing, as in `ended`."""


def bound_silence(transport: asyncio.BaseTransport) -> None:
    """Let the system give up a connection whose bytes are not acknowledged, where it can; an idle one, too: a
    machine that has lost its power would otherwise count as connected permanently.

    Otherwise a connection that survived a long partition continues only after TCP's doubled timers.
    """
    connected = transport.get_extra_info("socket")
    if connected is None:
        return
    with contextlib.suppress(OSError):  # the connection is lost already
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP_OPTIONS.items():
            if hasattr(socket, name):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
