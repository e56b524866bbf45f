"""TCP between masters and slaves of logs in controller and classic mode (bytes: app/ha/frames.py).

One listener per node, on a separate port, accepts the slaves of every log: the first 16 bytes, the preface,
name the log. A classic log may have its own listener, where slaves that know no prefaces may follow it.

A core learns of a connection only after its first valid frame: port probes and garbage occupy a socket
briefly, and leave nothing behind. The core limits what is sent, and waits for Drained.

With a cluster secret or TLS every connection, also one to the listener of one log, begins with a handshake
(app/node/links): plain slaves, such as RocketMQ's, are accepted only when neither is configured.

Connections, their limits and introductions: ha_connection.py.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from app.ha.frames import History
from app.ha.messages import INCOMING, OUTGOING, Closed, Connect, Disconnect, HaMessage
from app.log.driver_interfaces import Transport
from app.node.links.links import Links
from app.node.network.ha_connection import (
    UNIDENTIFIED_MAX,
    AttachedLog,
    ConnectionTable,
    Deliver,
    HaConnection,
    Protocol,
)
from app.settings.addresses import split_address

_CONNECT_TIMEOUT_S: Final = 2.0
_PROOF_TIMEOUT_S: Final = 5.0  # with a handshake, which needs the other side's event loop


class HaTransport:
    """Owned by the event loop that it was started on. A Transport for targets that are connections."""

    def __init__(self, listen: str, links: Links) -> None:
        """listen: host:port of the shared listener; port 0 takes any free one. links: of the HA port."""
        self.links = links
        self._listen = split_address(listen)
        self._connections = ConnectionTable(links)
        self._server: asyncio.Server | None = None
        self._connecting: dict[tuple[int, str], asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Listen. Raises OSError when the address cannot be bound."""
        self._server = await self._listener(self._listen, None)

    async def _listener(self, address: tuple[str, int], log_id: int | None) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            lambda: self.links.accept(lambda: HaConnection(self._connections, log_id)),
            *address,
            backlog=UNIDENTIFIED_MAX,
        )

    @property
    def address(self) -> str:
        """host:port that the shared listener has bound."""
        assert self._server is not None
        return _bound(self._server)

    @property
    def open_connections(self) -> int:
        """Number of connections that others have opened to this node, including invalid ones."""
        return len(self._connections.incoming)

    @property
    def unidentified(self) -> int:
        """Connections that others opened and that have not introduced themselves."""
        return self._connections.unidentified

    @property
    def refused(self) -> Counter[str]:
        """Connections closed because of a limit, by limit (REFUSALS)."""
        return self._connections.refused

    def attach(
        self,
        log_id: int,
        protocol: Protocol,
        deliver: Deliver,
        *,
        name: str = "",
        place: int = 0,
        by_number: bool = False,
        master: Callable[[], str | None] = lambda: None,
        takes_more: Callable[[], bool] = lambda: True,
        replicas: tuple[str, ...] = (),
    ) -> None:
        """Take connections of a log from now on: what arrives is passed to deliver(key, message).

        A log may be attached again, by another core: the connections of the old one end, a listener stays.
        name: of the log, for log lines. place: of this replica among the log's, from 1.
        by_number: this node's handshakes are of newer builds. master: where to connect to for a core that
        names no address. takes_more: False while the driver has too much to do: its connections are not read
        then. replicas: nodes by place, of a classic log.
        """
        before = self._connections.logs.get(log_id)
        self._end_connections(log_id)
        listener = None if before is None else before.listener
        self._connections.logs[log_id] = AttachedLog(
            log_id, protocol, deliver, name, place, by_number, master, takes_more, replicas, listener
        )

    def _end_connections(self, log_id: int) -> None:
        for (owner, _), connection in list(self._connections.by_key.items()):
            if owner == log_id:
                connection.close()
        for (owner, _), task in list(self._connecting.items()):
            if owner == log_id:
                task.cancel()

    async def listen_for(self, log_id: int, listen: str) -> str:
        """Open a listener for one attached log alone, where the preface is optional; return its address.

        Raises OSError when the address cannot be bound.
        """
        owner = self._connections.logs[log_id]
        if owner.listener is None:
            owner.listener = await self._listener(split_address(listen), log_id)
        return _bound(owner.listener)

    def detach(self, log_id: int) -> None:
        """Detach a log; its connections end without a message to its core."""
        removed = self._connections.logs.pop(log_id, None)
        if removed is not None and removed.listener is not None:
            removed.listener.close()
        self._end_connections(log_id)

    async def stop(self) -> None:
        for log_id in list(self._connections.logs):
            self.detach(log_id)
        if self._server is not None:
            self._server.close()
        self.links.stop()
        for connection in list(self._connections.incoming):
            connection.close()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)

    # --- what cores ask ------------------------------------------------------------------------------------

    def send(self, target: str, log_id: int, message: HaMessage) -> None:
        """Carry out a command, or send a frame; no effect on a closed connection. Never raises."""
        if isinstance(message, Connect):
            self._connect(log_id, target, message)
            return
        connection = self._connections.by_key.get((log_id, target))
        if isinstance(message, Disconnect):
            if (task := self._connecting.get((log_id, target))) is not None:
                task.cancel()
            if connection is not None:
                self._connections.log_closed(connection, message.reason, logging.INFO, message.node)
                connection.close()
        elif connection is not None:
            connection.write(message)

    def _connect(self, log_id: int, key: str, connect: Connect) -> None:
        owner = self._connections.logs.get(log_id)
        if owner is not None:
            work = self._dial(owner, key, connect)
            task = asyncio.get_running_loop().create_task(work, name=f"HA connection to {connect.address}")
            self._connecting[log_id, key] = task
            task.add_done_callback(partial(self._call_ended, log_id, key))

    def _call_ended(self, log_id: int, key: str, task: asyncio.Task[None]) -> None:
        """Forget a call, also one that was cancelled before it began. The next core's may have its key."""
        if self._connecting.get((log_id, key)) is task:
            del self._connecting[log_id, key]

    async def _dial(self, owner: AttachedLog, key: str, connect: Connect) -> None:
        loop = asyncio.get_running_loop()
        address, history = connect.address or owner.master() or "", connect.history
        try:
            await asyncio.sleep(max(0.0, owner.next_dial_s(address) - loop.time()))
            if not address:  # the log has a line about the port for peers, where the master reports it
                raise ConnectionError("the address of the master is not known yet")
            await self._reach(owner, key, connect.node, address, history)
        except (OSError, TimeoutError, ValueError) as error:
            if self._connections.logs.get(owner.log_id) is owner:
                owner.deliver(key, Closed(f"{address}: {error!r}"))

    async def _reach(
        self, owner: AttachedLog, key: str, node: str, address: str, history: History | None
    ) -> None:
        """Connect, and note whether that succeeds. Raises OSError, TimeoutError, ValueError.

        The core gives up a call that is not answered before the limit of this one: it ends by a cancellation.
        """
        now_s = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S if self.links.is_plain else _PROOF_TIMEOUT_S):
                host, port = split_address(address)
                await self.links.connect(
                    lambda: HaConnection(self._connections, owner.log_id, key, history, address, owner),
                    host,
                    port,
                    node,
                )
            owner.unreached.reached()
        except asyncio.CancelledError:
            owner.unreached.failed(node, address, TimeoutError(), now_s())
            raise
        except (OSError, TimeoutError, ValueError) as error:
            owner.unreached.failed(node, address, error, now_s())
            raise


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
