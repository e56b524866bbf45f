"""Log lines about an address that cannot be reached."""

import asyncio
import logging
import socket
import ssl
from types import SimpleNamespace
from typing import Any

import pytest

from app.ha.messages import Connect, Disconnect
from app.node.links import unreached as module
from app.node.links.handshake import Identity, Purpose
from app.node.links.links import LinkRefused, Links
from app.node.links.unreached import REASONS_MAX, UNREACHED_S, Unreached
from app.node.network.ha_connection import Protocol
from app.node.network.ha_transport import HaTransport
from app.node.network.http_forwarder import Forwarder, NotSent
from app.settings.model import SecuritySettings
from tests.support.cluster import free_ports
from tests.support.event_loop import run, until
from tests.unit.node.network.test_peer_transport import Pair

REFUSED = ConnectionRefusedError(111, "Connect call failed ('10.0.0.2', 9101)")


def lines_of(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    """Return port, node, address and reason of each warning."""
    return [
        (line.port, line.peer, line.address, line.reason)  # type: ignore[attr-defined]
        for line in caplog.records
        if line.name == module.__name__ and line.levelno == logging.WARNING
    ]


def test_each_reason_is_reported_once_when_calls_have_failed_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unreached = Unreached("peer")
    unreached.failed("n2", "a:1", REFUSED, 100.0)
    unreached.failed("n2", "a:1", TimeoutError(), 100.0 + UNREACHED_S / 2)
    assert lines_of(caplog) == []
    for _ in range(3):
        unreached.failed("n2", "a:1", REFUSED, 100.0 + UNREACHED_S)
        unreached.failed("n2", "a:1", TimeoutError(), 101.0 + UNREACHED_S)
        unreached.failed("n2", "a:1", socket.gaierror(-2, "Name or service not known"), 190.0)
        unreached.failed("n2", "a:1", ssl.SSLCertVerificationError(1, "Hostname mismatch"), 191.0)
    reasons = [reason for _, _, _, reason in lines_of(caplog)]
    assert reasons == [
        "Connection refused",
        "no answer: the node or its machine is down, or a firewall drops the packets",
        "[Errno -2] Name or service not known",
        "Hostname mismatch",
    ]
    unreached.reached()
    unreached.failed("n2", "a:1", REFUSED, 200.0)
    assert len(lines_of(caplog)) == 4
    unreached.failed("n2", "a:1", REFUSED, 200.0 + UNREACHED_S)
    assert lines_of(caplog)[4] == ("peer", "n2", "a:1", "Connection refused")


def test_a_bounded_number_of_reasons_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unreached = Unreached("peer")
    for number in range(1_000):
        unreached.failed("n2", "a:1", LinkRefused(f"x{number} answered, not n2"), 100.0 + number)
    assert len(lines_of(caplog)) == REASONS_MAX


def test_a_slave_reports_that_the_ha_port_of_its_master_cannot_be_reached(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer port may be open all the same: all other signs of life of the master arrive."""
    monkeypatch.setattr(module, "UNREACHED_S", 0.0)

    async def test() -> None:
        ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n2", Purpose.HA)))
        await ha.start()
        ha.attach(1, Protocol.AUTO_SWITCH, lambda _key, _message: None)
        address = f"127.0.0.1:{free_ports(1)[0]}"
        ha.send("out-1", 1, Connect(address, node="n1"))
        await until(lambda: lines_of(caplog))
        assert lines_of(caplog) == [("ha", "n1", address, "Connection refused")]
        await ha.stop()

    asyncio.run(test())


def test_a_node_reports_another_one_that_its_forwarded_calls_do_not_reach(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS the reason may be a certificate without the host of `url`: the caller learns `no-leader`."""
    monkeypatch.setattr(module, "UNREACHED_S", 0.0)
    target: Any = SimpleNamespace(id="n2", url=f"http://127.0.0.1:{free_ports(1)[0]}")

    async def test() -> None:
        forwarder = Forwarder(SecuritySettings())
        await forwarder.start()
        for _ in range(2):
            with pytest.raises(NotSent):
                await forwarder.send(target, "GET", b"/", (), b"", b"r1", 5.0)
        await forwarder.stop()

    asyncio.run(test())
    assert lines_of(caplog) == [("rest", "n2", target.url, "Connection refused")]


def test_a_slave_reports_an_ha_port_from_which_packets_do_not_return(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The core gives the call up before the transport does."""
    monkeypatch.setattr(module, "UNREACHED_S", 0.0)

    async def test() -> None:
        links, called = Links(Identity("c", "n2", Purpose.HA)), asyncio.Event()

        async def drops(*_: Any) -> None:
            called.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(links, "connect", drops)
        ha = HaTransport("127.0.0.1:0", links)
        await ha.start()
        ha.attach(1, Protocol.AUTO_SWITCH, lambda _key, _message: None)
        ha.send("out-1", 1, Connect("10.0.0.1:10101", node="n1"))
        await called.wait()
        ha.send("out-1", 1, Disconnect("silent for too long"))
        await until(lambda: lines_of(caplog))
        [(port, node, address, reason)] = lines_of(caplog)
        assert (port, node, address) == ("ha", "n1", "10.0.0.1:10101")
        assert "a firewall drops the packets" in reason
        await ha.stop()

    asyncio.run(test())


def test_a_node_reports_a_peer_that_cannot_be_reached_and_one_that_its_file_lacks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNREACHED_S", 0.0)

    async def test() -> None:
        pair = Pair()
        first, second = pair.nodes
        await first.start()
        await until(lambda: lines_of(caplog))
        assert lines_of(caplog) == [("peer", "n2", pair.addresses[1], "Connection refused")]
        await second.start()
        await until(lambda: first.peer_version("n2"))
        await second.stop()
        added = pair.node(1, node_id="n3")
        await added.start()
        await until(lambda: first.peer_version("n3"))
        assert [
            (line.peer, line.address)  # type: ignore[attr-defined]
            for line in caplog.records
            if "neither the file of this node nor a log names" in line.message
        ] == [("n3", pair.addresses[1])]
        await added.stop()
        await first.stop()

    run(test)
