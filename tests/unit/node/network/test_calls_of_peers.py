"""Calls of a peer that end late, or at the wrong moment: one connection of each kind is left."""

import asyncio
import gc
import socket
import time
import weakref
from typing import Any

import pytest

from app.node.network import peer_connections as module
from tests.support.cluster import free_ports
from tests.support.event_loop import run, until
from tests.unit.node.network.test_peer_transport import Pair
from tests.unit.node.network.test_protected_peers import SECRET


@pytest.mark.parametrize("is_long_turn", [True, False])
def test_a_call_that_is_given_up_when_it_is_answered_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch, is_long_turn: bool
) -> None:
    """The answer and the end of the time may come in one turn of the loop, above all after a long one."""
    monkeypatch.setattr(module, "HELLO_TIMEOUT_S", 0.3)

    async def test() -> None:
        pair = Pair()
        first, second = pair.nodes
        connect, calls = first.links.connect, list[str]()

        async def answered_late(*given: Any) -> None:
            await connect(*given)
            calls.append("n2")
            if len(calls) == 1 and is_long_turn:
                time.sleep(module.HELLO_TIMEOUT_S)  # noqa: ASYNC251  # the loop does nothing else
            elif len(calls) == 1:
                await asyncio.Event().wait()

        monkeypatch.setattr(first.links, "connect", answered_late)
        await second.start()
        await first.start()
        await until(lambda: len(calls) >= (2 if is_long_turn else 4))  # two are open at the end
        await until(lambda: first._outgoing["n2"].records_apart)
        assert second.connected() == ["n1", "n1"]
        await first.stop()
        await until(lambda: not second.connected())
        await second.stop()

    run(test)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_call_that_uvloop_gives_up_when_it_is_answered_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch, is_sealed: bool
) -> None:
    """uvloop closes the connection that it has made in that turn, and reports this to no protocol: the node
    waited for the loss, and never connected to the peer again. A proof may come in the same turn."""
    monkeypatch.setattr(module, "HELLO_TIMEOUT_S", 0.3)

    async def test() -> None:
        pair, calls = Pair(), list[int]()
        first, second = pair.nodes
        if is_sealed:
            for node in pair.nodes:
                node.links.security = SECRET
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def answered_late(make: Any, host: str, port: int) -> Any:
            opened = await connect(make, host, port)
            calls.append(port)
            if len(calls) == 1:
                if not is_sealed:
                    opened[0].pause_reading()  # the answer comes in a later turn
                try:
                    await asyncio.Event().wait()
                finally:
                    opened[0].set_protocol(asyncio.Protocol())
                    opened[0].abort()
            return opened

        await second.start()
        monkeypatch.setattr(loop, "create_connection", answered_late)
        await first.start()
        await until(lambda: len(calls) == 3)  # the one for records, too
        await until(lambda: first._outgoing["n2"].records_apart)
        await pair.stop()

    run(test)


@pytest.mark.rule("R-10")
def test_a_peer_that_moves_during_a_call_is_called_at_its_new_address_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its former address is now that of a program that accepts connections; the pauses have grown long."""
    monkeypatch.setattr(module, "RETRY_FIRST_S", 60.0)

    async def test() -> None:
        pair, accepted = Pair(), list[asyncio.StreamWriter]()
        first, second = pair.nodes
        other = await asyncio.start_server(
            lambda _reader, writer: accepted.append(writer), "127.0.0.1", free_ports(1)[0]
        )
        host, port = other.sockets[0].getsockname()
        first.place_peer("n2", f"{host}:{port}")
        await first.start()
        await until(lambda: accepted)
        await second.start()
        await until(lambda: second.connected() or first._incoming)
        first.place_peer("n2", pair.addresses[1])
        await until(lambda: first.peer_version("n2"))
        await pair.stop()
        accepted[0].close()
        other.close()

    run(test)


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("is_sealed", [True, False])
def test_an_idle_connection_with_a_machine_that_has_lost_its_power_is_given_up(is_sealed: bool) -> None:
    """It counted as open permanently: the report of such a node kept a new group from beginning."""

    async def test() -> None:
        pair = Pair()
        if is_sealed:
            for node in pair.nodes:
                node.links.security = SECRET
        first, _ = pair.nodes
        await pair.start()
        await until(lambda: first.peer_version("n2") and first.connected())
        for connection in (first._outgoing["n2"], *first._incoming):
            assert connection._transport is not None
            opened = connection._transport.get_extra_info("socket")
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                timeout_ms = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert timeout_ms == module.UNACKNOWLEDGED_TIMEOUT_MS
        await pair.stop()

    run(test)


def test_a_connection_that_was_cut_is_let_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer of its welcome held the connection for records and its task: a line that flaps left many."""
    monkeypatch.setattr(module, "HELLO_TIMEOUT_S", 60.0)

    async def test() -> None:
        pair = Pair()
        first, second = pair.nodes
        await pair.start()
        await until(lambda: first._outgoing["n2"].records_apart)
        held = weakref.ref(first._outgoing["n2"]._second)
        for connection in list(second._incoming):
            connection.close()
        await until(lambda: gc.collect() >= 0 and held() is None, 10.0)
        await pair.stop()

    run(test)
