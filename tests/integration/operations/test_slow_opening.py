"""A node whose logs take long to open is heard by the controllers meanwhile."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.controller.commands import CreateLog
from app.controller.metadata import LogSpec
from app.node.broker import Broker
from app.node.hosting.node_logs import NodeLogs
from app.settings.file import parse
from tests.support.in_process import free_address, until


def delay_openings(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """No log of the metadata is opened until the event is set."""
    opened = asyncio.Event()
    original = NodeLogs.add_log

    async def add_log(self: NodeLogs, *arguments: Any) -> None:
        await opened.wait()
        await original(self, *arguments)

    monkeypatch.setattr(NodeLogs, "add_log", add_log)
    return opened


@pytest.mark.rule("C-05")
def test_the_controllers_know_that_a_node_opens_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an unclean election, if allowed, would not wait for the members that it is about to open."""
    node = {"id": "n1", "listen": free_address(), "peer_listen": free_address(), "data": str(tmp_path / "n1")}
    settings = parse({"cluster": {"id": "slow"}, "nodes": [node]}, "n1")

    def is_registering(broker: Broker) -> bool:
        active = broker.metadata.server._active
        log = None if active is None else broker.metadata.log("large")
        copy = None if log is None else log.of_node("n1")
        if active is None or log is None or copy is None:
            return False
        return active.liveness.is_registering(log, copy, broker.clock.monotonic_ms())

    async def run() -> None:
        broker = Broker(settings)
        await broker.start()
        await broker.metadata.ask(
            CreateLog("large", LogSpec(replication="controller", replicas=("n1",)), "1")
        )
        await until(lambda: (log := broker.metadata.log("large")) is not None and bool(log.set_nodes))
        await broker.stop()
        opened = delay_openings(monkeypatch)
        broker = Broker(settings)
        starting = asyncio.create_task(broker.start())
        try:
            await until(lambda: is_registering(broker))
        finally:
            opened.set()
            await starting
            await broker.stop()

    asyncio.run(run())


@pytest.mark.rule("C-03", "C-09")
def test_controllers_that_have_lost_their_disks_register_no_copy_while_its_node_opens_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node would forget the id of its copy, and after a rebuild no member of the set would exist."""
    nodes = [
        {"id": each, "listen": free_address(), "peer_listen": free_address(), "data": str(tmp_path / each)}
        for each in ("n1", "n2")
    ]
    file = {
        "cluster": {"id": "slow"},
        "nodes": nodes,
        "controller": {"nodes": ["n1"]},
        "logs": [{"name": "orders", "replication": "controller", "replicas": ["n2"]}],
    }

    def is_in_sync(broker: Broker, name: str) -> bool:
        log = broker.metadata.log(name)
        return log is not None and log.set_nodes == ("n2",)

    async def run() -> None:
        controller, broker = Broker(parse(file, "n1")), Broker(parse(file, "n2"))
        await controller.start()
        await broker.start()
        spec = LogSpec(replication="controller", replicas=("n2",))
        await until(lambda: is_in_sync(broker, "orders"))
        await broker.metadata.ask(CreateLog("large", spec, "1"))
        await until(lambda: is_in_sync(broker, "large"))
        identity = broker.metadata.managers._replicas["orders"].identity_file.load()
        await broker.stop()
        await controller.stop()
        shutil.rmtree(tmp_path / "n1")
        opened = delay_openings(monkeypatch)
        controller, broker = Broker(parse(file, "n1")), Broker(parse(file, "n2"))
        await controller.start()
        server = controller.metadata.server
        await until(lambda: server.is_active and controller.metadata.log("orders") is not None)
        starting = asyncio.create_task(broker.start())
        try:
            await until(lambda: server._lost_history is not None or is_in_sync(controller, "orders"))
            assert server._lost_history is not None
            assert broker.metadata.managers._replicas["orders"].identity_file.load() == identity
        finally:
            opened.set()
            await starting
            await broker.stop()
            await controller.stop()

    asyncio.run(run())
