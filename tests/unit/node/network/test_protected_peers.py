"""Peer and HA connections that prove themselves, and the bounds of those that do not."""

import asyncio
import contextlib
import random
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.ha.frames import Preface, encode_preface
from app.node.links.credentials import LinkSecurity, Mode, load_link_security
from app.node.links.handshake import Identity, Purpose
from app.node.links.links import LinkedProtocol, Links
from app.node.network import peer_transport as module
from app.node.network.ha_connection import Protocol
from app.node.network.ha_transport import HaTransport
from app.node.network.peer_host import PeerIdentity
from app.node.network.peer_transport import PROTOCOL, PeerTransport
from app.raft.messages import Heartbeat
from app.settings.model import SecuritySettings
from tests.support.certificates import make_authority, make_certificate
from tests.support.cluster import free_ports
from tests.support.event_loop import run, until
from tests.unit.node.network.test_peer_transport import Host

SECRET = LinkSecurity(mode=Mode.SECRET, secrets=(b"a secret of the cluster",))
OTHER = LinkSecurity(mode=Mode.SECRET, secrets=(b"a secret of another one",))


class Node:
    """A peer transport, and what it has received."""

    def __init__(self, name: str, address: str, peer: tuple[str, str], security: LinkSecurity) -> None:
        self.received: list[tuple[str, Any]] = []
        host = Host(
            deliver=lambda source, _, message: self.received.append((source, message)),
            is_member=lambda name: name in ("n1", "n2"),
        )
        self.transport = PeerTransport(
            PeerIdentity(cluster_id="c", node_id=name, listen=address, address=address),
            [peer],
            host,
            random.Random(1),
            links=Links(Identity("c", name, Purpose.PEER), security),
        )


@contextlib.asynccontextmanager
async def pair(first: LinkSecurity, second: LinkSecurity) -> Any:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    nodes = [
        Node("n1", addresses[0], ("n2", addresses[1]), first),
        Node("n2", addresses[1], ("n1", addresses[0]), second),
    ]
    for node in nodes:
        await node.transport.start()
    try:
        yield nodes
    finally:
        for node in nodes:
            await node.transport.stop()


def hello(source: str, target: str = "n1", address: str = "127.0.0.1:1") -> bytes:
    fields = {"protocol": PROTOCOL, "cluster": "c", "from": source, "to": target, "version": "1"}
    data = msgspec.json.encode({**fields, "address": address})
    return struct.pack("<I", len(data)) + data


class Wire(LinkedProtocol):
    """The protocol above a link that this test has opened."""

    def __init__(self) -> None:
        self.received = b""
        self.transport: asyncio.Transport | None = None
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


async def dial(links: Links, address: str, target: str = "") -> Wire:
    wire = Wire()
    host, _, port = address.partition(":")
    await links.connect(lambda: wire, host, int(port), target)
    return wire


def certificate_of(folder: Path, authority: Path, name: str) -> LinkSecurity:
    certificate, key = make_certificate(authority, name, f"DNS:{name}")
    return load_link_security(
        SecuritySettings(peer_tls_certificate=certificate, peer_tls_key=key, peer_tls_ca=authority)
    )


@pytest.mark.parametrize("kind", ["secret", "tls"])
def test_proved_peers_exchange_messages(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        first = second = SECRET
        if kind == "tls":
            authority = make_authority(tmp_path)
            first, second = (certificate_of(tmp_path, authority, name) for name in ("n1", "n2"))
        async with pair(first, second) as (n1, n2):
            await until(lambda: n1.transport.peer_version("n2") and n2.transport.peer_version("n1"))
            for number in range(300):
                n1.transport.send("n2", 5, Heartbeat(3, "n1", 7, number))
            n2.transport.send("n1", 5, Heartbeat(4, "n2", 7, 1))
            await until(lambda: len(n2.received) == 300 and n1.received)
            assert [message.round for _, message in n2.received] == list(range(300))
            assert n1.received == [("n2", Heartbeat(4, "n2", 7, 1))]

    run(test)


@pytest.mark.parametrize("second", [OTHER, LinkSecurity()])
def test_peers_without_the_same_secret_do_not_reach_each_other(second: LinkSecurity) -> None:
    async def test() -> None:
        async with pair(SECRET, second) as (n1, n2):
            refused = n1.transport.links.refused
            await until(lambda: refused["proof"] >= 2)
            assert (n1.transport.connected(), n2.transport.connected()) == ([], [])
            assert (n1.transport.peer_version("n2"), n2.transport.peer_version("n1")) == (None, None)

    run(test)


def test_a_hello_names_the_node_that_has_proved_itself() -> None:
    """With certificates a node cannot speak for another one; a secret is shared by all."""

    async def test() -> None:
        async with pair(SECRET, SECRET) as (n1, _):
            wire = await dial(Links(Identity("c", "n3", Purpose.PEER), SECRET), n1.transport.address, "n1")
            assert wire.transport is not None
            wire.transport.write(hello("n2"))
            await until(lambda: wire.is_lost)
            assert b"n3 has proved itself, not n2" in wire.received

    run(test)


def test_a_connection_for_the_ha_port_is_refused_at_the_peer_port() -> None:
    async def test() -> None:
        async with pair(SECRET, SECRET) as (n1, _):
            with pytest.raises(ConnectionError):
                await dial(Links(Identity("c", "n3", Purpose.HA), SECRET), n1.transport.address, "n1")

    run(test)


def test_invented_peers_and_their_connections_are_bounded() -> None:
    async def test() -> None:
        async with pair(LinkSecurity(), LinkSecurity()) as (n1, _):
            plain = Links(Identity("c", "n9", Purpose.PEER))
            wires = []
            for number in range(module.UNKNOWN_PEERS_MAX + 8):
                wire = await dial(plain, n1.transport.address)
                assert wire.transport is not None
                wire.transport.write(hello(f"invented-{number}"))
                wires.append(wire)
            await until(lambda: all(wire.received for wire in wires))
            assert sum(b"refused" in wire.received for wire in wires) == 8
            assert len(n1.transport._outgoing) == 1 + module.UNKNOWN_PEERS_MAX
            same = []
            for _ in range(3 * module.OF_A_PEER_MAX):
                wire = await dial(plain, n1.transport.address)
                assert wire.transport is not None
                wire.transport.write(hello("invented-0"))
                await until(lambda wire=wire: wire.received)
                same.append(wire)
            await until(lambda: sum(not wire.is_lost for wire in same) == module.OF_A_PEER_MAX)
            assert not same[-1].is_lost  # the newest ones stay
            for wire in (*wires, *same):
                assert wire.transport is not None
                wire.transport.abort()

    run(test)


def test_silent_connections_at_the_peer_port_are_bounded() -> None:
    async def test() -> None:
        async with pair(LinkSecurity(), LinkSecurity()) as (n1, _):
            n1.transport.links.handshakes.size = n1.transport.links.handshakes.size_of_address = 8
            wires = [
                await dial(Links(Identity("c", "n9", Purpose.PEER)), n1.transport.address) for _ in range(30)
            ]
            await until(lambda: sum(not wire.is_lost for wire in wires) <= 8)
            assert len(n1.transport.links.handshakes) <= 8
            for wire in wires:
                assert wire.transport is not None
                wire.transport.abort()

    run(test)


@pytest.mark.parametrize(("dials_as", "accepted"), [("n2", True), ("n3", False)])
def test_a_slave_of_a_classic_log_names_the_place_of_the_node_that_has_proved_itself(
    dials_as: str, accepted: bool
) -> None:
    async def test() -> None:
        ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n1", Purpose.HA), SECRET))
        await ha.start()
        heard: list[Any] = []
        ha.attach(
            7,
            Protocol.CLASSIC,
            lambda _, message: heard.append(message),
            place=1,
            replicas=("n1", "n2", "n3"),
        )
        wire = await dial(Links(Identity("c", dials_as, Purpose.HA), SECRET), ha.address)
        assert wire.transport is not None
        wire.transport.write(encode_preface(Preface(7, 2)))
        await until(lambda: heard or wire.is_lost)
        assert bool(heard) is accepted
        assert wire.is_lost is not accepted
        wire.transport.abort()
        await ha.stop()

    run(test)
