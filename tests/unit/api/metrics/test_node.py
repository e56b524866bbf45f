"""Metrics of a node: the syncs that wait for its disk."""

import asyncio
from pathlib import Path

from app.api.metrics.node import NodeCollector
from app.node.broker import Broker
from app.settings.file import parse
from storage.watched_files import SyncsInProgress


def test_the_wait_of_the_oldest_sync_is_shown(tmp_path: Path) -> None:
    node = {"id": "n1", "listen": "127.0.0.1:1", "peer_listen": "127.0.0.1:2", "data": str(tmp_path)}
    settings = parse({"cluster": {"id": "c"}, "nodes": [node]}, "n1")

    async def run() -> None:
        broker = Broker(settings)
        now_s = 5.0
        broker.syncs = SyncsInProgress(lambda: now_s)

        def waiting_s() -> float:
            name = "commitlog_disk_sync_waiting_seconds"
            found = next(each for each in NodeCollector(broker).collect() if each.name == name)
            return float(found.samples[0].value)

        def hangs() -> None:
            nonlocal now_s
            now_s += 7.0
            assert waiting_s() == 7.0

        assert waiting_s() == 0.0
        broker.syncs.run("file", hangs)
        assert waiting_s() == 0.0

    asyncio.run(run())
