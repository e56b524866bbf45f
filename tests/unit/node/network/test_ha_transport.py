"""Masters and slaves over real sockets on 127.0.0.1: our own, and peers that are nothing but bytes."""

import asyncio
import contextlib
import dataclasses
import logging
import random
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.errors import CommitlogError
from app.ha.config import HaConfig
from app.ha.frames import Preface, decode_preface, encode_preface
from app.ha.messages import Disconnect
from app.ha.roles import MANAGER, KnownReplica, Lease, MasterRole, SlaveRole
from app.log.contract import Acks, AppendRequest, AppendResult, Durability
from app.node.clock import LoopScheduler, SystemClock
from app.node.disk import DiskThreads
from app.node.links.handshake import Identity, Purpose
from app.node.links.links import Links
from app.node.network import ha_connection
from app.node.network.ha_connection import (
    UNIDENTIFIED_MAX,
    Protocol,
)
from app.node.network.ha_transport import HaLink, HaTransport
from app.node.opening.open_replica import LogIdentity, open_replica
from app.node.opening.replica_modes import AutoSwitchMode, ClassicMode
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from app.settings.model import Limits
from storage.files import OsFileSystem
from storage.format.records import RecordColumns
from storage.log.commitlog import Commitlog, CommitlogConfig
from tests.support.event_loop import until
from tests.unit.ha.lab import LOG_ID, write

QUICK = HaConfig(ha_reconnect_interval_ms=20, ha_send_heartbeat_interval_ms=50, ha_opening_wait_ms=50)
REPLICAS = ("n1", "n2")
LOG = LogIdentity(name="default", log_id=LOG_ID, durability=Durability.FSYNC)


class NoPeers:
    def send(self, target: str, log_id: int, message: Any) -> None:
        """No reads are requested here."""


class Node:
    """One node's part of one log: real files, disk thread, sockets and timer."""

    driver: LogDriver

    def __init__(self, name: str, folder: Path) -> None:
        loop = asyncio.get_running_loop()
        self.failures: list[str] = []
        self.ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n1", Purpose.HA)))
        self.clock = SystemClock()
        self._disk = DiskThreads(loop, self._fail)
        self._disk.start()
        self._timer: asyncio.Task[None] | None = None
        self.services = NodeServices(
            node_id=name,
            version="test",
            data_folder=str(folder / name),
            files=OsFileSystem(),
            storage=CommitlogConfig(),
            limits=Limits(),
            clock=self.clock,
            disk=self._disk,
            transport=HaLink(self.ha, NoPeers()),
            scheduler=LoopScheduler(loop, self._fail),
            random=random.Random(1),
            fail=self._fail,
        )

    def _fail(self, what: str, error: BaseException) -> None:
        self.failures.append(f"{what}: {error!r}")

    def serve(self, driver: LogDriver, protocol: Protocol, place: int, *, by_number: bool = False) -> None:
        self.driver = driver
        self.ha.attach(LOG_ID, protocol, driver.deliver, place=place, by_number=by_number)
        driver.start()
        self._timer = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            self.driver.tick()
            await asyncio.sleep(0.01)

    @property
    def log(self) -> Commitlog:
        return self.driver.log

    async def append(self, *values: bytes, acks: Acks = Acks.QUORUM) -> AppendResult | CommitlogError:
        records = RecordColumns()
        for value in values:
            records.add(value)
        done: asyncio.Future[AppendResult | CommitlogError] = asyncio.get_running_loop().create_future()
        self.driver.append(AppendRequest(records, acks=acks, timeout_ms=10_000), done.set_result)
        return await done

    def bytes(self) -> bytes:
        index, data = self.log.begin_index, b""
        while 0 <= index <= self.log.end_index:
            batch = self.log.batch_at(index)
            data += bytes(batch.data)
            index = batch.next_index
        return data

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        stopped = asyncio.get_running_loop().create_future()
        self.driver.stop(lambda: stopped.set_result(None))
        await stopped
        await self._disk.drain()
        await self.ha.stop()
        self._disk.stop(5)
        self.driver.log.close()
        self.driver.journal.close()
        assert self.failures == []


@contextlib.asynccontextmanager
async def classic_master(folder: Path, *, sync_slaves: int = 1) -> AsyncIterator[tuple[Node, str]]:
    """n1, master of the log, and the address of a listener for that log alone."""
    node = Node("n1", folder)
    await node.ha.start()
    mode = ClassicMode(
        replicas=REPLICAS,
        config=QUICK,
        master_id="n1",
        master_address="",
        sync_slaves=sync_slaves,
        begins=True,
    )
    driver = open_replica(node.services, LOG, mode).driver
    node.serve(driver, Protocol.CLASSIC, 1)
    address = await node.ha.listen_for(LOG_ID, "127.0.0.1:0")
    await until(
        lambda: driver.committed_index >= (0 if sync_slaves == 0 else -1) and driver.log.durable_index >= 0
    )
    try:
        yield node, address
    finally:
        await node.close()


@contextlib.asynccontextmanager
async def classic_slave(folder: Path, master_address: str) -> AsyncIterator[Node]:
    node = Node("n2", folder)
    await node.ha.start()
    mode = ClassicMode(
        replicas=REPLICAS, config=QUICK, master_id="n1", master_address=master_address, sync_slaves=1
    )
    driver = open_replica(node.services, LOG, mode).driver
    node.serve(driver, Protocol.CLASSIC, 2)
    try:
        yield node
    finally:
        await node.close()


async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@pytest.mark.rule("H-01", "H-02", "H-03", "H-07")
@pytest.mark.parametrize("listener", ["shared", "own"])
def test_our_slave_follows_our_master(tmp_path: Path, listener: str) -> None:
    async def scenario() -> None:
        async with classic_master(tmp_path) as (master, own):
            address = own if listener == "own" else master.ha.address
            async with classic_slave(tmp_path, address) as slave:
                results = await asyncio.gather(*(master.append(b"%d" % number) for number in range(50)))
                assert all(isinstance(result, AppendResult) for result in results)
                big = await master.append(b"x" * 900_000)
                assert isinstance(big, AppendResult)
                assert slave.bytes() == master.bytes()
                (peer,) = master.driver.status().core.peers
                assert (peer.id, peer.state, peer.lag_bytes) == ("n2", "TRANSFER", 0)
            later = master.append(b"while it is away", acks=Acks.LEADER)
            assert isinstance(await later, AppendResult)
            async with classic_slave(tmp_path, address) as slave:
                await until(lambda: slave.log.end_index == master.log.end_index)
                assert slave.bytes() == master.bytes()

    asyncio.run(scenario())


@pytest.mark.rule("H-02", "H-03", "H-06", "H-07")
def test_a_peer_that_is_nothing_but_bytes_follows_our_master(tmp_path: Path) -> None:
    """8-byte reports out, frames of offset(8) size(4) body in; it stores bytes, not batches."""

    async def scenario() -> None:
        async with classic_master(tmp_path) as (master, address):
            held = b""
            for part in range(3):  # it comes three times, the last ones in the middle of a batch
                reader, writer = await dial(address)
                report = struct.pack(">q", len(held))
                writer.write(report[:3])
                await writer.drain()
                writer.write(report[3:])
                pending = asyncio.ensure_future(master.append(b"%d" % part, b"y" * 100_000))
                while not pending.done():
                    offset, size = struct.unpack(">qi", await reader.readexactly(12))
                    assert offset == len(held)
                    assert size <= 32 * 1024
                    held += await reader.readexactly(size)
                    writer.write(struct.pack(">q", len(held)))
                    await writer.drain()
                    await asyncio.sleep(0)
                assert isinstance(await pending, AppendResult)
                assert held == master.bytes()
                writer.close()
                await writer.wait_closed()
                held = held[: len(held) - 5_000 * part]

    asyncio.run(scenario())


class ByteMaster:
    """Sends a log's bytes in small frames; breaks the first line within a batch, a gap on the second."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.starts: list[int] = []  # what each connection reported first
        self.reported = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found = decode_preface(memoryview(await reader.readexactly(48)))
        assert found is not None
        preface = found[0]
        assert preface.history is not None
        (at,) = struct.unpack(">q", await reader.readexactly(8))
        assert (preface.log_id, preface.replica, preface.history.end_offset) == (LOG_ID, 2, at)
        self.starts.append(at)
        if len(self.starts) == 1:
            await self._send(writer, at, 3_500)
        elif len(self.starts) == 2:
            writer.write(struct.pack(">qi", at + 8, 8) + bytes(8))
            assert await reader.read() == b""  # the slave closes
        else:
            await self._send(writer, at, len(self.data))
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    (self.reported,) = struct.unpack(">q", await reader.readexactly(8))
                    writer.write(struct.pack(">qi", len(self.data), 0))
        writer.close()

    async def _send(self, writer: asyncio.StreamWriter, at: int, end: int) -> None:
        for start in range(at, end, 777):
            piece = self.data[start : min(start + 777, end)]
            frame = struct.pack(">qi", start, len(piece)) + piece
            for cut in range(0, len(frame), 100):
                writer.write(frame[cut : cut + 100])
                await writer.drain()


@pytest.mark.rule("H-02", "H-03", "H-04", "H-08")
def test_our_slave_follows_a_peer_that_is_nothing_but_bytes(tmp_path: Path) -> None:
    source = Commitlog.open(OsFileSystem(), str(tmp_path / "source"), log_id=LOG_ID)
    write(source, 1, opened_by="n1")
    for number in range(5):
        write(source, 1, b"%d" % number * 1_000)
    master = ByteMaster(b"".join(bytes(source.batch_at(index).data) for index in range(6)))

    async def scenario() -> None:
        server = await asyncio.start_server(master.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with classic_slave(tmp_path, f"{host}:{port}") as slave:
            await until(lambda: master.reported == len(master.data))
            assert slave.bytes() == master.data
            assert slave.driver.committed_index == source.end_index
            boundaries = [source.batch_at(index).offset for index in range(6)]
            assert master.starts[0] == 0
            assert master.starts[1] == master.starts[2] in boundaries[1:]
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
    source.close()


@pytest.mark.rule("A-02", "A-07", "A-08")
def test_two_auto_switch_replicas_over_tcp_and_a_switch(tmp_path: Path) -> None:
    async def scenario() -> None:
        nodes, cores = {}, {}
        for name in REPLICAS:
            node = Node(name, tmp_path)
            await node.ha.start()
            mode = AutoSwitchMode(replicas=REPLICAS, config=QUICK, address=node.ha.address)
            opened = open_replica(node.services, LOG, mode)
            node.serve(opened.driver, Protocol.AUTO_SWITCH, 0)
            nodes[name], cores[name] = node, opened.core
        replicas = tuple(KnownReplica(n, name, nodes[name].ha.address) for n, name in enumerate(REPLICAS, 1))
        for epoch, (master, slave) in enumerate((("n1", "n2"), ("n2", "n1"), ("n1", "n2")), 1):
            id_, other = REPLICAS.index(master) + 1, REPLICAS.index(slave) + 1
            nodes[slave].driver.deliver(MANAGER, SlaveRole(id_, epoch, replicas))
            nodes[master].driver.deliver(MANAGER, Lease(nodes[master].clock.monotonic_ms() + 60_000))
            nodes[master].driver.deliver(MANAGER, MasterRole(epoch, (id_,), 1, replicas))
            core, everybody = cores[master], (id_, other)
            await until(lambda core=core: (request := core.set_request) and request.members)  # type: ignore[misc]
            assert core.set_request.members == everybody
            nodes[master].driver.deliver(MANAGER, MasterRole(epoch, (1, 2), 2, replicas))
            results = await asyncio.gather(*(nodes[master].append(b"%d" % n * 50_000) for n in range(5)))
            assert all(isinstance(result, AppendResult) for result in results)
            assert nodes[slave].log.durable_index == nodes[master].log.end_index
        assert nodes["n1"].bytes() == nodes["n2"].bytes()
        assert [epoch.epoch for epoch in nodes["n2"].log.epochs] == [1, 2, 3]
        for node in nodes.values():
            await node.close()

    asyncio.run(scenario())


@pytest.mark.rule("A-07")
@pytest.mark.parametrize("by_number", [True, False])
def test_an_address_that_the_handshake_cannot_carry(tmp_path: Path, by_number: bool) -> None:
    """By number the replica follows; with the seed's handshake it cannot, and the node lives on."""
    long = "commitlog-0.commitlog-headless.production.svc.cluster.local:10101"
    config = dataclasses.replace(QUICK, ha_handshake_by_number=None if by_number else False)

    async def scenario() -> None:
        master, slave = Node("n1", tmp_path), Node("n2", tmp_path)
        await master.ha.start()
        addresses = {"n1": master.ha.address, "n2": long}
        for node in (master, slave):
            mode = AutoSwitchMode(replicas=REPLICAS, config=config, address=addresses[node.services.node_id])
            opened = open_replica(node.services, LOG, mode)
            node.serve(opened.driver, Protocol.AUTO_SWITCH, 0, by_number=by_number and node is slave)
        replicas = tuple(KnownReplica(n, name, addresses[name]) for n, name in enumerate(addresses, 1))
        slave.driver.deliver(MANAGER, SlaveRole(1, 1, replicas))
        master.driver.deliver(MANAGER, Lease(master.clock.monotonic_ms() + 60_000))
        master.driver.deliver(MANAGER, MasterRole(1, (1,), 1, replicas))
        await until(lambda: master.log.durable_index >= 0)
        if by_number:
            await until(lambda: slave.log.end_index == master.log.end_index)
        else:
            await asyncio.sleep(0.2)
            assert slave.log.end_index == -1
        for node in (master, slave):
            await node.close()  # and nothing has failed

    asyncio.run(scenario())


@pytest.mark.rule("H-03")
def test_thousands_of_port_probes_leave_nothing_behind(tmp_path: Path) -> None:
    junk = (b"", b"\x00", b"GET / HTTP/1.1\r\n\r\n", b"CLH", b"CLHA\x01\x00\x00\x00" + bytes(8), b"\xff" * 40)

    def probe(address: str, count: int) -> None:
        host, _, port = address.rpartition(":")
        for number in range(count):
            with contextlib.suppress(OSError), socket.create_connection((host, int(port))) as line:
                line.sendall(junk[number % len(junk)])

    async def scenario() -> None:
        async with classic_master(tmp_path) as (master, own):
            await asyncio.gather(
                *(asyncio.to_thread(probe, address, 1_500) for address in (own, master.ha.address))
            )
            (await dial(master.ha.address))[1].close()  # behind all of them
            await until(lambda: master.ha.open_connections == 0)
            assert [peer.state for peer in master.driver.status().core.peers] == ["DISCONNECTED"]
            async with classic_slave(tmp_path, own):  # and it still works
                assert isinstance(await master.append(b"after all that"), AppendResult)

    asyncio.run(scenario())


@pytest.mark.rule("H-02", "H-04")
def test_unidentified_peers_with_impossible_reports_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Eight bytes make a report to any master's listener; the core refuses each, and few log lines result."""

    async def scenario() -> None:
        async with classic_master(tmp_path, sync_slaves=0) as (master, own):
            for _ in range(100):
                reader, writer = await dial(own)
                writer.write(b"\x7f" * 8)
                assert await reader.read() == b""
                writer.close()
            assert isinstance(await master.append(b"after all that"), AppendResult)

    with caplog.at_level(logging.INFO, "app.node.network.ha_connection"):
        asyncio.run(scenario())
    logged = [record for record in caplog.records if record.name == "app.node.network.ha_connection"]
    assert [record.message for record in logged] == ["unidentified peers at the HA port"] * 7  # 1, 2, 4, … 64


def test_the_line_about_a_connection_that_a_core_ends_names_the_log_and_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n1", Purpose.HA)))
        await ha.start()
        came: list[str] = []
        ha.attach(1, Protocol.CLASSIC, lambda key, _message: came.append(key), name="orders")
        reader, writer = await dial(ha.address)
        writer.write(encode_preface(Preface(1, 2)))
        await until(lambda: came)
        ha.send(came[0], 1, Disconnect("silent for too long", "n2"))
        assert await reader.read() == b""
        writer.close()
        await ha.stop()

    with caplog.at_level(logging.INFO, "app.node.network.ha_connection"):
        asyncio.run(scenario())
    [line] = [record.__dict__ for record in caplog.records if record.message == "HA connection closed"]
    assert [line[name] for name in ("log", "peer", "reason")] == ["orders", "n2", "silent for too long"]


def test_silent_connections_are_closed_and_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with classic_master(tmp_path) as (master, _):
            lines = [await dial(master.ha.address) for _ in range(20)]
            await until(lambda: master.ha.open_connections == 20)
            assert UNIDENTIFIED_MAX > 20
            ends = await asyncio.gather(*(reader.read() for reader, _ in lines))
            assert ends == [b""] * 20
            await until(lambda: master.ha.open_connections == 0)
            for _, writer in lines:
                writer.close()

    asyncio.run(scenario())


def test_limits_grow_with_the_logs_and_refusals_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only those that have not introduced themselves share one limit."""
    monkeypatch.setattr(ha_connection, "UNIDENTIFIED_MAX", 2)
    monkeypatch.setattr(ha_connection, "OF_A_REPLICA_MAX", 1)
    logs = range(100, 120)

    async def scenario() -> None:
        ha = HaTransport("127.0.0.1:0", Links(Identity("c", "n1", Purpose.HA)))
        await ha.start()
        lines = []
        for log_id in logs:
            ha.attach(log_id, Protocol.CLASSIC, lambda _key, _message: None)
            for place in (2, 3):
                lines.append(line := await dial(ha.address))
                line[1].write(encode_preface(Preface(log_id, place)))
                await until(lambda: ha.unidentified == 0)
        assert ha.open_connections == 40
        assert not ha.refused
        again = await dial(ha.address)  # a replica that has its connection already
        again[1].write(encode_preface(Preface(logs[0], 2)))
        assert await again[0].read() == b""
        mute = [await dial(ha.address) for _ in range(2)]
        await until(lambda: ha.unidentified == 2)
        refused = await dial(ha.address)
        with contextlib.suppress(ConnectionError):
            assert await refused[0].read() == b""
        assert ha.refused == {"replica": 1, "unidentified": 1}
        for _, writer in (*lines, again, *mute, refused):
            writer.close()
        await until(lambda: ha.open_connections == 0)
        assert ha.unidentified == 0
        await ha.stop()

    with caplog.at_level(logging.WARNING, "app.node.network.ha_connection"):
        asyncio.run(scenario())
    assert [record.message for record in caplog.records] == ["HA connection refused"] * 2


def test_a_log_that_is_attached_again_begins_with_no_connections(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with classic_master(tmp_path) as (master, own), classic_slave(tmp_path, own) as slave:
            assert isinstance(await master.append(b"a"), AppendResult)
            master.ha.attach(LOG_ID, Protocol.CLASSIC, master.driver.deliver, place=1)
            await until(lambda: slave.ha.open_connections == 0)
            assert isinstance(await master.append(b"b"), AppendResult)

    asyncio.run(scenario())
