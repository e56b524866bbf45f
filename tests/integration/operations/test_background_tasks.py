"""Each background task of a node that fails is reported, starts again, and leaves the node serving."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.api.append.plain_route import PlainRoute
from app.main import build_app
from app.node import tasks
from app.node.broker import Broker
from app.node.metadata.logs import MetadataLogs
from app.node.repair.scrub import Scrubber
from app.node.reserve import Reserve
from app.node.retention.journals import JournalKeeper
from app.node.retention.records import RetentionKeeper
from app.settings.file import parse
from tests.support.in_process import free_address

KEPT = {
    "reserve": (Reserve, "keep"),
    "scrub": (Scrubber, "run"),
    "retention": (RetentionKeeper, "run"),
    "journal-retention": (JournalKeeper, "run"),
    "metadata": (MetadataLogs, "run"),
    "late-bodies": (PlainRoute, "end_late_bodies"),
}


class Fault(Exception):
    pass


@pytest.mark.parametrize("name", KEPT)
def test_a_task_that_dies_is_reported_and_starts_again(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method = KEPT[name]
    runs: list[asyncio.Event] = []
    original = getattr(owner, method)

    async def dies_at_first(self: Any, *arguments: Any) -> None:
        runs.append(asyncio.Event())
        if len(runs) == 1:
            raise Fault(name)
        await original(self, *arguments)

    monkeypatch.setattr(owner, method, dies_at_first)
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.05)
    node = {"id": "n1", "listen": free_address(), "peer_listen": free_address(), "data": str(tmp_path / "n1")}
    settings = parse({"cluster": {"id": "tasks"}, "nodes": [node]}, "n1")

    async def run() -> None:
        broker = Broker(settings)
        await broker.start()
        build_app(settings, broker)
        seen: dict[str, str] = {}
        async with asyncio.timeout(20):
            while len(runs) < 2:
                seen |= broker.tasks.failing
                await asyncio.sleep(0.005)
        assert seen == {name: f"Fault: {name}"}
        assert broker.tasks.failures == {name: 1}
        assert not broker.failed.done()
        await broker.stop()

    asyncio.run(run())
