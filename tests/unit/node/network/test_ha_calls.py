"""Connections that slaves open: when they are dialled, and whose they are."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from app.ha.messages import Closed, Connect, Disconnect
from app.node.links import unreached
from app.node.links.handshake import Identity, Purpose
from app.node.links.links import LinkedProtocol, Links
from app.node.network import ha_connection, ha_transport
from app.node.network.ha_connection import AttachedLog, ConnectionTable, HaConnection, Protocol
from app.node.network.ha_transport import HaTransport
from tests.support.event_loop import until


def test_a_master_that_closes_without_a_byte_is_dialled_with_growing_pauses() -> None:
    async def scenario() -> None:
        came: list[float] = []
        loop = asyncio.get_running_loop()

        async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.append(loop.time())
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n1", Purpose.HA)))
        await ha.start()
        closed: list[str] = []

        def deliver(key: str, message: Any) -> None:
            if isinstance(message, Closed):
                closed.append(key)
                ha.send(f"out-{len(closed)}", 1, Connect(f"{host}:{port}"))

        ha.attach(1, Protocol.AUTO_SWITCH, deliver)
        ha.send("out-0", 1, Connect(f"{host}:{port}"))
        await until(lambda: len(came) == 4)
        pauses = [after - before for before, after in itertools.pairwise(came)]
        assert [pause >= least for pause, least in zip(pauses, (0.09, 0.19, 0.39), strict=True)] == [True] * 3
        server.close()
        await ha.stop()

    asyncio.run(scenario())


def test_a_master_whose_address_is_not_known_yet_is_none_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was reported with an empty address, as an invalid one."""
    monkeypatch.setattr(unreached, "UNREACHED_S", 0.0)

    async def scenario() -> None:
        ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n1", Purpose.HA)))
        await ha.start()
        closed: list[Any] = []
        ha.attach(1, Protocol.CLASSIC, lambda _, message: closed.append(message), master=lambda: None)
        ha.send("out-0", 1, Connect(""))
        await until(lambda: bool(closed))
        assert "the address of the master is not known yet" in closed[0].reason
        await ha.stop()

    asyncio.run(scenario())
    assert "cannot be reached" not in caplog.text


@pytest.mark.rule("C-08")
def test_the_next_master_is_dialled_without_the_pauses_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connections to a frozen master ended without a byte, for as long as it was frozen."""
    monkeypatch.setattr(ha_connection, "DIAL_PAUSE_MIN_S", 60.0)
    monkeypatch.setattr(ha_connection, "DIAL_PAUSE_MAX_S", 60.0)

    async def scenario() -> None:
        came: list[str] = []

        async def server_of(name: str) -> tuple[asyncio.Server, str]:
            async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                came.append(name)
                with contextlib.closing(writer):
                    await reader.read()

            server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
            host, port = server.sockets[0].getsockname()
            return server, f"{host}:{port}"

        frozen, former_master = await server_of("frozen")
        server, next_master = await server_of("next")
        ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n1", Purpose.HA)))
        await ha.start()
        ha.attach(1, Protocol.AUTO_SWITCH, lambda _key, _message: None)
        ha.send("out-1", 1, Connect(former_master))
        await until(lambda: came == ["frozen"])
        ha.send("out-1", 1, Disconnect("another master is elected"))
        ha.send("out-2", 1, Connect(next_master))
        await until(lambda: came == ["frozen", "next"])
        await ha.stop()
        frozen.close()
        server.close()

    asyncio.run(scenario())


def test_a_connection_that_ends_late_does_not_take_the_place_of_the_next_core() -> None:
    """The keys of a core begin with out-1, so they repeat when its log is opened again."""

    async def scenario() -> None:
        table = ConnectionTable(Links(Identity("c", "n1", Purpose.HA)))
        owner = attach_to(table, lambda *_: None)
        before, after = (HaConnection(table, 1, "out-1", owner=owner) for _ in range(2))
        before.connection_made(Line())
        before.close()
        after.connection_made(Line())
        before.connection_lost(None)
        assert table.by_key == {(1, "out-1"): after}
        after.connection_lost(None)
        assert table.by_key == {}

    asyncio.run(scenario())


def test_a_connection_of_a_core_that_has_ended_is_not_the_next_ones() -> None:
    """It was opened while the log was opened again, and may lead to the former master."""

    async def scenario() -> None:
        table = ConnectionTable(Links(Identity("c", "n1", Purpose.HA)))
        delivered: list[str] = []
        owner = attach_to(table, lambda *_: None)
        late, line = HaConnection(table, 1, "out-1", owner=owner), Line()
        attach_to(table, lambda key, _message: delivered.append(key))
        late.connection_made(line)
        assert (delivered, table.by_key, line.is_closing()) == ([], {}, True)

    asyncio.run(scenario())


def attach_to(table: ConnectionTable, deliver: Callable[[str, Any], None]) -> AttachedLog:
    owner = AttachedLog(1, Protocol.AUTO_SWITCH, deliver, "log", 1, False, lambda: None, lambda: True)
    table.logs[owner.log_id] = owner
    return owner


class Line(asyncio.Transport):
    """A connection that ends once the written bytes have left."""

    closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nothing arrives."""

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """They do not matter here."""


def test_a_call_that_ends_late_does_not_take_the_place_of_the_next_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next core must be able to give its own call up."""
    monkeypatch.setattr(ha_transport, "_CONNECT_TIMEOUT_S", 60.0)

    async def scenario() -> None:
        links = SilentLinks(Identity("c", "n1", Purpose.HA))
        ha = HaTransport("127.0.0.1:0", links)
        for port in (1, 2):
            ha.attach(1, Protocol.AUTO_SWITCH, lambda _key, _message: None)
            ha.send("out-1", 1, Connect(f"127.0.0.1:{port}"))
            await until(partial(links.is_calling, port))
        ha.send("out-1", 1, Disconnect("another master is elected"))
        await until(lambda: not links.calls, 5.0)

    asyncio.run(scenario())


class SilentLinks(Links):
    """No call is answered. calls: ports of those in progress."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(identity)
        self.calls: set[int] = set()

    def is_calling(self, port: int) -> bool:
        return self.calls == {port}

    async def connect(
        self, make: Callable[[], LinkedProtocol], host: str, port: int, target: str = ""
    ) -> None:
        self.calls.add(port)
        try:
            await asyncio.Event().wait()
        finally:
            self.calls.discard(port)
