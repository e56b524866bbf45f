"""Metrics of a node: their types and names, and the syncs that wait for its disk."""

import asyncio
import json
import re
from functools import partial
from pathlib import Path

import pytest

from app.api.metrics.node import NodeCollector
from app.node.broker import Broker
from app.settings.file import parse
from app.tables.names import SILENT_MS
from storage.watched_files import WatchedSyncs
from tests.support.in_process import node_in_process

OPERATIONS = Path(__file__).parents[4] / "docs" / "operations.md"
ROW = re.compile(r"^\| `(commitlog_\w+)` \| [^|]*\| (.*) \|$", re.MULTILINE)
SINCE_START = re.compile("since (its|the|it) start")
TYPES = ("counter", "histogram", "info")


def test_the_wait_of_the_oldest_sync_is_shown(tmp_path: Path) -> None:
    node = {"id": "n1", "listen": "127.0.0.1:1", "peer_listen": "127.0.0.1:2", "data": str(tmp_path)}
    settings = parse({"cluster": {"id": "c"}, "nodes": [node]}, "n1")

    async def run() -> None:
        broker = Broker(settings)
        now_s = 5.0
        broker.syncs = WatchedSyncs(now_s=lambda: now_s)

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


def test_the_time_of_each_sync_counts_when_it_has_ended() -> None:
    """A slow disk of one node delays no append while the others are a majority: nothing else shows it."""
    now_s = 5.0
    syncs = WatchedSyncs((0.25, 0.5), now_s=lambda: now_s)

    def takes(seconds: float, error: OSError | None = None) -> None:
        nonlocal now_s
        before = syncs.ended()
        now_s += seconds
        assert syncs.ended() == before
        if error is not None:
            raise error

    for seconds in (0.125, 0.5, 8.0):
        syncs.run("file", partial(takes, seconds))
    assert syncs.ended() == ([1, 1, 1], 8.625)
    with pytest.raises(OSError, match="disk"):
        syncs.run("file", partial(takes, 1.0, OSError("disk")))
    assert syncs.ended() == ([1, 1, 2], 9.625)


def test_a_spark_job_that_fails_or_reports_no_more_is_shown_for_the_logs_of_the_node(tmp_path: Path) -> None:
    """`CommitlogTablesBehind` fires only while records wait, and 20 minutes later."""
    logs: dict[str, dict[str, str]] = {"default": {}, "deleted": {"error": "full"}}

    async def run() -> None:
        async with node_in_process(tmp_path, tables={"path": str(tmp_path)}) as node:

            async def shown() -> list[str]:
                text = (await node.client.get("/metrics")).text
                return [line for line in text.splitlines() if line.startswith("commitlog_tables_job_")]

            async def shown_after(state: str, age_ms: int) -> tuple[str, ...]:
                document = {"state": state, "updated_ms": node.broker.clock.now_ms() - age_ms, "logs": logs}
                file.write_text(json.dumps(document))
                return tuple(line.partition('{log="default"} ')[2] for line in await shown())

            file = tmp_path / "progress.json"
            assert await shown() == []
            assert await shown_after("running", 0) == ("0.0", "0.0")
            assert await shown_after("running", SILENT_MS + 1) == ("0.0", "1.0")
            assert await shown_after("done", SILENT_MS + 1) == ("0.0", "0.0")
            logs["default"] = {"error": "full"}
            assert await shown_after("running", SILENT_MS + 1) == ("1.0", "0.0")
            file.unlink()
            assert await shown() == []

    asyncio.run(run())


def test_a_metric_has_the_type_that_its_row_in_the_documentation_names(tmp_path: Path) -> None:
    """A number that only rises is a counter, whose name ends in `_total`: `rate` and `increase` are for
    those, and Prometheus warns of others."""
    rows = ROW.findall(OPERATIONS.read_text(encoding="utf-8"))
    types = {name: next((kind for kind in TYPES if f"({kind})" in text), "gauge") for name, text in rows}

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            found = {each.name: each for each in NodeCollector(node.broker).collect()}
        assert {name: each.type for name, each in found.items()} == types
        rising = [each for each in found.values() if SINCE_START.search(each.documentation)]
        assert {each.type for each in rising} == {"counter"}

    asyncio.run(run())
