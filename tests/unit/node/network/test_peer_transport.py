"""Framed TCP between nodes: cut connections recover, unidentified peers are refused."""

import asyncio
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.node.network import peer_connections as module
from app.node.network.frame_reader import FrameReader
from app.node.network.group_claims import GroupClaim
from app.node.network.peer_connections import RetryConfig
from app.node.network.peer_host import PeerIdentity
from app.node.network.peer_transport import PeerTransport
from app.node.network.wire import CorruptFrame
from app.raft.messages import Heartbeat, PushRequest, PushType
from app.version import VERSION
from storage.format.batch import FIRST_CHAIN, stamp
from storage.format.records import RecordColumns, encode_body
from storage.units import MIB
from tests.support.cluster import free_ports
from tests.support.event_loop import run, until

HEARTBEAT = Heartbeat(3, "n1", 7, 1)


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.lists(st.integers(1, 40)))
def test_frames_survive_any_cutting(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)
    reader = FrameReader(64)
    found: list[bytes] = []
    for size in [*cuts, len(stream)]:
        part, stream = stream[:size], stream[size:]
        if part:
            found += [bytes(frame) for frame in reader.feed(part)]
    assert found == frames


@pytest.mark.parametrize("length", [0, 65, 2**32 - 1])
def test_impossible_lengths_are_refused(length: int) -> None:
    with pytest.raises(CorruptFrame):
        FrameReader(64).feed(struct.pack("<I", length))


@dataclass
class Host:
    """app.node.network.peer_host.PeerHost."""

    deliver: Callable[[str, int, Any], None] = lambda _source, _log_id, _message: None
    peer_lost: Callable[[str], None] = lambda _peer: None
    connection_lost: Callable[[str], None] = lambda _peer: None
    is_member: Callable[[str], bool] = lambda _peer: True
    forget_peer: Callable[[str], bool] = lambda _peer: False
    claims: Callable[[], dict[str, GroupClaim]] = dict
    claimed: Callable[[str, dict[str, GroupClaim]], None] = lambda _peer, _claims: None
    ha_address: Callable[[], str | None] = lambda: None


class Pair:
    """Two nodes of one cluster on this loop."""

    def __init__(self, clusters: tuple[str, str] = ("c", "c")) -> None:
        ports = free_ports(2)
        self.addresses = [f"127.0.0.1:{port}" for port in ports]
        self.received: list[tuple[str, str, int, Any]] = []
        self.lost: list[tuple[str, str]] = []
        self.nodes = [self.node(k, clusters[k]) for k in (0, 1)]

    async def start(self) -> None:
        for node in self.nodes:
            await node.start()

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()

    def node(self, k: int, cluster: str = "c", node_id: str | None = None) -> PeerTransport:
        name = node_id or f"n{k + 1}"

        def deliver(source: str, log_id: int, message: Any) -> None:
            self.received.append((name, source, log_id, message))
            if isinstance(message, Heartbeat) and message.round == 13:
                raise ZeroDivisionError

        host = Host(deliver=deliver, peer_lost=lambda peer: self.lost.append((name, peer)))
        address = self.addresses[k]
        local = PeerIdentity(cluster_id=cluster, node_id=name, listen=address, address=address)
        return PeerTransport(local, [(f"n{2 - k}", self.addresses[1 - k])], host, random.Random(1))


def test_messages_arrive_in_order_and_after_a_restart_of_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_S", 60.0)

    async def test() -> None:
        pair = Pair()
        first, second = pair.nodes
        first.send("n2", 5, Heartbeat(3, "n1", 7, 99))  # no connection yet: it waits a little
        await pair.start()
        await until(lambda: first.peer_version("n2") and second.peer_version("n1"))
        first.send("unknown", 5, HEARTBEAT)  # without effect
        for number in range(100):
            first.send("n2", 5, Heartbeat(3, "n1", 7, 100 + number))
        await until(lambda: len(pair.received) == 101)
        assert [entry[3].round for entry in pair.received] == list(range(99, 200))
        assert pair.received[0][:3] == ("n2", "n1", 5)
        await second.stop()
        await until(lambda: first.peer_version("n2") is None)
        for number in range(2 * module.KEPT_MESSAGES):
            first.send("n2", 5, Heartbeat(3, "n1", 7, 1000 + number))
        again = pair.node(1)
        await again.start()
        await until(lambda: first.peer_version("n2"))
        first.send("n2", 5, Heartbeat(3, "n1", 7, 5000))
        await until(lambda: pair.received[-1][3].round == 5000)
        kept = [entry[3].round for entry in pair.received[101:-1]]
        assert kept == list(range(1000 + module.KEPT_MESSAGES, 1000 + 2 * module.KEPT_MESSAGES))
        await first.stop()
        await again.stop()

    run(test)


@pytest.mark.rule("C-05")
def test_a_call_without_an_answer_is_repeated_once_the_peer_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that boots, or a line that is back, answers no call that was begun before: the system repeats
    it after seconds. Until then the peer would hear nothing."""
    monkeypatch.setattr(module, "HELLO_TIMEOUT_S", 60.0)

    async def test() -> None:
        pair = Pair()
        first, second = pair.nodes
        connect, calls = first.links.connect, list[str]()

        async def swallowed(*given: Any) -> None:
            calls.append("n2")
            if len(calls) == 1:
                await asyncio.Event().wait()
            await connect(*given)

        monkeypatch.setattr(first.links, "connect", swallowed)
        await first.start()
        await until(lambda: calls)
        await second.start()
        await until(lambda: first.peer_version("n2") and second.peer_version("n1"))
        await pair.stop()

    run(test)


def test_appends_are_sent_only_to_a_peer_that_announces_that_it_takes_them() -> None:
    """A node of an earlier version would close the connection for an unknown message."""

    async def test() -> None:
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
        lost: list[str] = []
        heard: dict[str, dict[str, GroupClaim]] = {}

        def node(k: int, *, takes_appends: bool) -> PeerTransport:
            name, other = f"n{k + 1}", f"n{2 - k}"
            local = PeerIdentity(cluster_id="c", node_id=name, listen=addresses[k], address=addresses[k])
            claims = {name: GroupClaim("raft", (name,), is_named=False)}
            host = Host(connection_lost=lost.append, claims=lambda: claims, claimed=heard.__setitem__)
            peers = [(other, addresses[1 - k])]
            return PeerTransport(local, peers, host, random.Random(1), takes_appends=takes_appends)

        newer, older = node(0, takes_appends=True), node(1, takes_appends=False)
        assert not newer.carries_appends("n2")
        assert not newer.carries_appends("unknown")
        await newer.start()
        await older.start()
        await until(lambda: newer.peer_version("n2") and older.peer_version("n1"))
        assert older.peer_version("n1") == newer.peer_version("n2") == VERSION
        assert {peer: list(claims) for peer, claims in heard.items()} == {"n1": ["n1"], "n2": ["n2"]}
        assert newer.has_called_all
        assert newer.is_connected("n2")
        heard.clear()
        newer.greet("n2")
        newer.greet("unknown")  # without effect
        await until(lambda: len(heard) == 2)
        assert newer.peer_version("n2") == VERSION
        assert older.carries_appends("n1")
        assert not newer.carries_appends("n2")
        lost.clear()
        await newer.stop()
        await until(lambda: "n1" in lost)
        await until(lambda: not older.carries_appends("n1"))
        await older.stop()

    run(test)


def test_a_message_that_cannot_be_handled_costs_the_connection_only() -> None:
    async def test() -> None:
        pair = Pair()
        first, _ = pair.nodes
        await pair.start()
        await until(lambda: first.peer_version("n2"))
        first.send("n2", 5, object())  # cannot be encoded
        first.send("n2", 5, Heartbeat(3, "n1", 7, 13))  # the receiver raises
        await until(lambda: first.peer_version("n2") is None)
        await until(lambda: first.peer_version("n2"))
        first.send("n2", 5, HEARTBEAT)
        await until(lambda: pair.received[-1][3] == HEARTBEAT)
        await pair.stop()

    run(test)


def push(number: int, size: int = 0) -> PushRequest:
    """A push of one record of that size; without a size a COMMIT."""
    if not size:
        return PushRequest(3, PushType.COMMIT, "n1", 0, 1, 0, number, 3, 0, False, False, ())
    records = RecordColumns()
    records.add(bytes(size))
    stamped = {"log_id": 5, "base_index": number, "term": 3, "timestamp_ms": 0, "offset": 0}
    batch = stamp(encode_body(records), **stamped, previous_chain=FIRST_CHAIN)
    return PushRequest(3, PushType.APPEND, "n1", 0, 1, 0, number - 1, 3, 0, False, False, (batch,))


@pytest.mark.rule("R-04")
def test_no_heartbeat_waits_behind_records() -> None:
    """The link takes no records: those of 16 MiB wait, and heartbeats arrive all the same."""

    async def test() -> None:
        pair = Pair()
        first, second = pair.nodes
        await pair.start()
        await until(lambda: len(second.connected()) == len(first.connected()) == 2)
        await until(lambda: first._outgoing["n2"].records_apart)
        *_, with_records = second._incoming  # the newest
        assert with_records._transport is not None
        with_records._transport.pause_reading()
        for number in range(1, 5):
            first.send("n2", 5, push(number, 16 * MIB))
            first.send("n2", 5, push(number))
        for number in range(100, 104):
            first.send("n2", 5, Heartbeat(3, "n1", 7, number))
        await until(lambda: len(pair.received) == 4)
        assert [entry[3].round for entry in pair.received] == [100, 101, 102, 103]
        with_records._transport.resume_reading()
        await until(lambda: len(pair.received) == 12)
        pushes = [entry[3] for entry in pair.received[4:]]
        assert [(each.type, each.index) for each in pushes] == [
            found for k in range(1, 5) for found in ((PushType.APPEND, k - 1), (PushType.COMMIT, k))
        ]
        await pair.stop()

    run(test)


def test_without_the_second_connection_records_leave_on_the_first() -> None:
    async def test() -> None:
        pair = Pair()
        first, second = pair.nodes
        await pair.start()
        await until(lambda: first._outgoing["n2"].records_apart)
        *_, with_records = second._incoming
        with_records.close()
        await until(lambda: not first._outgoing["n2"].records_apart)
        first.send("n2", 5, push(1, 1000))
        await until(lambda: len(pair.received) == 1)
        await until(lambda: first._outgoing["n2"].records_apart)
        assert first.peer_version("n2")
        assert not pair.lost
        await second.stop()
        await until(lambda: first.peer_version("n2") is None)
        await until(lambda: len(first._tasks) == 1)  # the second connection is not sought alone
        await first.stop()

    run(test)


def test_beyond_its_bound_messages_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_MAX_BYTES", 1000)

    async def test() -> None:
        pair = Pair()
        first, _ = pair.nodes
        await pair.start()
        await until(lambda: first.peer_version("n2"))
        for number in range(1000):
            first.send("n2", 5, Heartbeat(3, "n1", 7, 100 + number))
        await until(lambda: pair.received)
        first.send("n2", 5, Heartbeat(3, "n1", 7, 5000))
        await until(lambda: pair.received[-1][3].round == 5000)
        assert 2 <= len(pair.received) < 100
        await pair.stop()

    run(test)


async def knock(address: str, *frames: bytes) -> bytes:
    """Answer of a listener to bytes of an unidentified peer, until it closes."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for frame in frames:
        writer.write(frame)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def hello(**changes: Any) -> bytes:
    frame = msgspec.json.encode(
        {
            "protocol": 2,
            "cluster": "c",
            "from": "n2",
            "to": "n1",
            "address": "127.0.0.1:1",
            "version": "0",
            **changes,
        }
    )
    return len(frame).to_bytes(4, "little") + frame


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (hello(cluster="other"), b"another cluster"),
        (hello(to="n3"), b"this is n1, not n3"),
        (hello(**{"from": "n1"}), b"n1 at 127.0.0.1:1 cannot be a peer of n1"),
        (hello(address="somewhere"), b"n2 at somewhere cannot be a peer of n1"),
        (hello(protocol=1), b"protocol 2"),
        (hello(protocol=3, address=["later"], more=1), b"protocol 2 is spoken here, not 3"),
        (hello(more=1), b"not a hello"),
        (b"\x02\x00\x00\x00{}", b"not a hello"),
        ((3_005).to_bytes(4, "little") + b'{"a":' + b"[" * 3_000, b"not a hello"),
        (b"GET / HTTP/1.1\r\n\r\n", b""),
    ],
)
def test_nodes_that_are_not_members_are_refused(frame: bytes, reason: bytes) -> None:
    async def test() -> None:
        pair = Pair()
        await pair.nodes[0].start()
        answer = await knock(pair.addresses[0], frame)
        assert reason in answer
        assert (b"refused" in answer) == bool(reason)
        assert pair.received == []
        await pair.nodes[0].stop()

    run(test)


def test_a_node_of_another_cluster_never_connects() -> None:
    async def test() -> None:
        pair = Pair(("one", "two"))
        await pair.start()
        for _ in range(50):
            pair.nodes[0].send("n2", 5, HEARTBEAT)
            await asyncio.sleep(0.005)
        assert pair.nodes[0].peer_version("n2") is None
        assert pair.received == []
        await pair.stop()

    run(test)


def test_an_address_in_use_is_an_error() -> None:
    async def test() -> None:
        pair = Pair()
        await pair.nodes[0].start()
        with pytest.raises(OSError, match="in use"):
            await pair.node(0).start()
        await pair.nodes[0].stop()

    run(test)


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("member", [False, True])
def test_a_peer_that_is_not_a_member_and_cannot_be_reached_is_forgotten(member: bool) -> None:
    """Until it calls by itself, or is added again."""

    async def test() -> None:
        asked: list[str] = []
        address = f"127.0.0.1:{free_ports(1)[0]}"
        host = Host(
            is_member=lambda _: member,
            forget_peer=lambda peer: not asked.append(peer),  # type: ignore[func-returns-value]
        )
        node = PeerTransport(
            PeerIdentity(cluster_id="c", node_id="n1", listen=address, address=address),
            [("n2", f"127.0.0.1:{free_ports(1)[0]}")],
            host,
            random.Random(1),
            RetryConfig(removed_retry_s=0.02, removed_forget_s=0.05),
        )
        await node.start()
        if member:
            await asyncio.sleep(0.3)
            assert (asked, list(node._outgoing), len(node._tasks)) == ([], ["n2"], 1)
        else:
            await until(lambda: asked and not node._tasks)
            assert (asked, list(node._outgoing)) == (["n2"], [])
            node.add_peer("n2", "127.0.0.1:1")
            assert len(node._tasks) == 1
        await node.stop()

    run(test)


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("was_reached", [False, True])
def test_a_peer_that_moves_is_reached_at_its_new_address(was_reached: bool) -> None:
    """A node that was removed and added again with another address. Its own connection does not suffice:
    nothing goes back on it."""

    async def test() -> None:
        pair = Pair()
        first, second = pair.nodes
        await first.start()
        if was_reached:
            await second.start()
            await until(lambda: first.peer_version("n2"))
        moved = Pair()
        moved.addresses[0] = pair.addresses[0]
        third = moved.node(1)  # n2 as well
        await third.start()
        await until(lambda: third.peer_version("n1"))
        first.place_peer("n2", moved.addresses[1])
        first.place_peer("n2", moved.addresses[1])  # no effect
        while not moved.received:
            first.send("n2", 5, HEARTBEAT)
            await asyncio.sleep(0.005)
        assert moved.received[0] == ("n2", "n1", 5, HEARTBEAT)
        assert (pair.received, first.peer_version("n2")) == ([], VERSION)
        for node in (first, second, third):
            await node.stop()

    run(test)


def test_a_host_that_cannot_exist_does_not_end_the_calls_of_a_peer() -> None:
    """Its name is no OSError but a UnicodeError; the address may be corrected later."""

    async def test() -> None:
        pair = Pair()
        first, _ = pair.nodes
        first._outgoing.clear()
        first.add_peer("n2", "two..example:9102")
        await pair.start()
        for _ in range(3):
            await asyncio.sleep(0.02)
        assert len(first._tasks) == 1
        first.place_peer("n2", pair.addresses[1])
        await until(lambda: first.peer_version("n2"))
        await pair.stop()

    run(test)


def test_a_peer_that_is_not_known_yet_is_placed() -> None:
    async def test() -> None:
        pair = Pair()
        first, _ = pair.nodes
        first._outgoing.clear()
        await pair.start()
        first.place_peer("n2", pair.addresses[1])
        await until(lambda: first.peer_version("n2"))
        await pair.stop()

    run(test)
