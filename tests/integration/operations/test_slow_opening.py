"""A node whose logs take long to open is heard by the controllers meanwhile."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.controller.commands import CreateLog
from app.controller.metadata import LogSpec
from app.node.broker import Broker
from app.node.hosting.node_logs import NodeLogs
from app.settings.file import parse
from tests.support.in_process import free_address, until


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
        opened = asyncio.Event()
        original = NodeLogs.add_log

        async def add_log(self: NodeLogs, *arguments: Any) -> None:
            await opened.wait()
            await original(self, *arguments)

        monkeypatch.setattr(NodeLogs, "add_log", add_log)
        broker = Broker(settings)
        starting = asyncio.create_task(broker.start())
        try:
            await until(lambda: is_registering(broker))
        finally:
            opened.set()
            await starting
            await broker.stop()

    asyncio.run(run())
