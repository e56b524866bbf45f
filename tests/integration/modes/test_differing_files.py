"""Nodes whose configuration files name other replicas of a log: no second group begins, and all report it."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.metrics.node import NodeCollector
from app.log.commands import ChangeMembers
from app.log.contract import ChangeKind
from app.main import build_app
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.hosting import rival_groups
from app.node.opening.opener import LogOpener
from app.node.replica.driver import LogDriver
from app.settings.file import parse
from app.telemetry import GROUPS_DIFFER
from storage.errors import StorageFull
from tests.support.event_loop import until
from tests.support.in_process import free_address


@asynccontextmanager
async def started(broker: Broker) -> AsyncIterator[Broker]:
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


class Files:
    """Configurations of the nodes n1, n2, n3 with the same addresses."""

    def __init__(self, folder: Path) -> None:
        self._nodes = {
            name: {
                "id": name,
                "listen": free_address(),
                "peer_listen": free_address(),
                "data": str(folder / name),
            }
            for name in ("n1", "n2", "n3")
        }

    def node(self, node_id: str, *known: str, **sections: Any) -> Broker:
        """Return a node; known: the nodes in its file."""
        nodes = [self._nodes[name] for name in known]
        return Broker(parse({"cluster": {"id": "c"}, "nodes": nodes, **sections}, node_id))


def orders(*replicas: str, mode: str = "raft") -> list[Mapping[str, object]]:
    return [{"name": "orders", "replicas": list(replicas), "replication": mode}]


def is_reported(broker: Broker) -> bool:
    return any(each.log == "orders" for each in broker.rivals.reported)


def leads(broker: Broker, log: str = "orders") -> bool:
    return broker.lookup.find(log).leads


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rival_groups, "REPORT_AFTER_S", 0.0)


@pytest.mark.rule("R-10")
def test_a_second_group_of_a_log_does_not_begin_beside_the_first_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both led, acknowledged appends, and nothing reported it."""

    async def run() -> None:
        files = Files(tmp_path)
        async with started(files.node("n1", "n1", "n2", logs=orders("n1"))) as first:
            await until(lambda: leads(first))
            async with started(files.node("n2", "n1", "n2", logs=orders("n2"))) as second:
                await until(lambda: is_reported(first) and is_reported(second))
                await until(lambda: second.lookup.find("default").leader_id)
                assert leads(first)
                assert second.lookup.find("orders").leader_id is None
                await check_views(second)
            await until(lambda: not is_reported(first))
            async with started(files.node("n2", "n1", "n2", logs=orders("n1"))) as second:
                await until(lambda: second.lookup.find("default").leader_id)
                assert not is_reported(first)
                assert not is_reported(second)

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    line = "log orders: the nodes differ in `replicas`: n1 has raft (n1), n2 has raft (n2): use the same file"
    assert any(record.getMessage().startswith(line) for record in caplog.records)


@pytest.mark.rule("R-10")
def test_a_log_that_is_opened_later_begins_no_second_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk was full when the node started, or the log was damaged: a voter alone leads in the instant in
    which its replica starts."""
    opened = LogOpener.open

    async def run() -> None:
        files = Files(tmp_path)
        async with started(files.node("n1", "n1", "n2", logs=orders("n1"))) as first:
            await until(lambda: leads(first))
            refusals = [StorageFull("orders", "write", "no space left")]

            def full_at_first(opener: LogOpener, hosted: HostedLog, *given: Any, **named: Any) -> LogDriver:
                if hosted.name == "orders" and refusals:
                    raise refusals.pop()
                return opened(opener, hosted, *given, **named)

            monkeypatch.setattr(LogOpener, "open", full_at_first)
            async with started(files.node("n2", "n1", "n2", logs=orders("n2"))) as second:
                await until(lambda: is_reported(second))
                assert not refusals
                assert not leads(second)

    asyncio.run(run())


async def check_views(broker: Broker) -> None:
    """Status and metrics of a node that reports a contradiction."""
    transport = httpx.ASGITransport(build_app(broker.settings, broker).asgi)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        status = (await client.get("/v1/logs/orders/status")).json()
        assert "conflicts" not in (await client.get("/v1/logs/default/status")).json()
    assert status["conflicts"] == ["the nodes differ in `replicas`: n1 has raft (n1), n2 has raft (n2)"]
    found = [metric for metric in NodeCollector(broker).collect() if metric.name == GROUPS_DIFFER]
    assert [sample.labels for sample in found[0].samples] == [{"log": "orders", "peer": "n1"}]


@pytest.mark.rule("R-10")
def test_a_controller_that_its_own_file_alone_names_joins_the_group_that_exists(tmp_path: Path) -> None:
    """It began a group of its own, deposed the active controller at each of its starts, and ended because its
    log contradicted the one that it received."""

    async def run() -> None:
        files = Files(tmp_path)
        both = {"nodes": ["n2", "n3"]}
        second = files.node("n2", "n1", "n2", "n3", controller=both)
        async with started(second), started(files.node("n3", "n1", "n2", "n3", controller=both)):
            await until(lambda: second.metadata.hosted.leader_id)
            term = second.metadata.hosted.driver.term if second.metadata.hosted.driver else 0
            async with started(files.node("n1", "n1", "n2", "n3", controller={"nodes": ["n1"]})) as first:
                await until(lambda: first.metadata.hosted.voters == ("n2", "n3"))
                assert second.metadata.hosted.driver is not None
                assert second.metadata.hosted.driver.term == term
                assert first.metadata.hosted.leader_id in ("n2", "n3")

    asyncio.run(run())


def test_another_mode_of_a_log_is_reported(tmp_path: Path) -> None:
    async def run() -> None:
        files = Files(tmp_path)
        async with (
            started(files.node("n1", "n1", "n2", logs=orders("n1", "n2"))) as first,
            started(files.node("n2", "n1", "n2", logs=orders("n1", "n2", mode="controller"))) as second,
        ):
            await until(lambda: is_reported(first) and is_reported(second))
            assert {each.key for each in first.rivals.reported} == {"replication"}

    asyncio.run(run())


@pytest.mark.rule("R-10")
def test_a_node_that_joins_is_not_reported(tmp_path: Path) -> None:
    """The files of the members lack the node that is being added, until they restart."""

    async def run() -> None:
        files = Files(tmp_path)
        async with started(files.node("n1", "n1")) as first:
            await until(lambda: leads(first, "default"))
            async with started(files.node("n2", "n1", "n2")) as second:
                await until(lambda: second.lookup.find("default").removed)
                second.rivals.check()
                assert not second.rivals.reported
                first.rivals.check()
                assert not first.rivals.reported

    asyncio.run(run())


async def change_controllers(brokers: list[Broker], kind: ChangeKind, node_id: str) -> None:
    """Change the members of the log of the metadata, once its leader can."""
    while True:
        leader = next((each for each in brokers if each.metadata.hosted.leads), None)
        if leader is not None and leader.metadata.hosted.driver is not None:
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            leader.metadata.hosted.driver.command(ChangeMembers(kind, node_id), done.set_result)
            if not isinstance(await done, Exception):
                return
        await asyncio.sleep(0.01)


@pytest.mark.rule("R-10")
def test_a_new_disk_and_a_file_with_former_controllers_are_not_reported_for_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The present controller kept what the node reported when it connected: the controllers of its file."""
    monkeypatch.setattr(rival_groups, "ASK_AFTER_S", 1.0)

    async def run() -> None:
        files = Files(tmp_path)

        def node(name: str) -> Broker:
            return files.node(name, "n1", "n2", "n3", controller={"nodes": ["n1"]})

        async with started(node("n1")) as first, started(node("n2")) as second:
            async with started(node("n3")) as third:
                await until(lambda: third.metadata.hosted.leader_id)
                await change_controllers([first, second], ChangeKind.PROMOTE, "n2")
                await change_controllers([first, second], ChangeKind.REMOVE, "n1")
                await until(lambda: third.metadata.hosted.voters == ("n2",))
            shutil.rmtree(tmp_path / "n3")
            assert not caplog.records
            async with started(node("n3")) as third:
                await until(lambda: caplog.records)
                await until(lambda: third.metadata.hosted.voters == ("n2",))
                await until(lambda: not second.rivals.reported and not third.rivals.reported)

    with caplog.at_level(logging.ERROR, logger=rival_groups.__name__):
        caplog.clear()
        asyncio.run(run())


@pytest.mark.rule("R-10")
def test_a_group_of_one_begins_although_the_other_nodes_do_not_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with started(Files(tmp_path).node("n1", "n1", "n2", logs=orders("n1"))) as node:
            await until(lambda: leads(node))

    asyncio.run(run())
