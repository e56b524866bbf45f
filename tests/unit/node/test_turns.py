"""The event loop of a node with many logs goes on while the node starts, is measured and stops."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.registry import Collector

from app.api.routes import health
from app.node.replica.driver import LogDriver
from storage.log.commitlog import Commitlog
from storage.log.journal import Journal
from tests.support.in_process import node_in_process

LOGS = 4


@pytest.mark.rule("R-03")
def test_a_node_starts_measures_and_stops_its_logs_without_a_long_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each log takes milliseconds to start and a sync or two to close, and a node may have a thousand."""
    loop_thread, turns, started_in, stopped_in = threading.get_ident(), 0, list[int](), list[int]()
    elsewhere = list[tuple[str, bool]]()
    start, stop, close, close_journal, render = (
        LogDriver.start,
        LogDriver.stop,
        Commitlog.close,
        Journal.close,
        health.generate_latest,
    )

    def started(driver: LogDriver) -> None:
        started_in.append(turns)
        start(driver)

    def stopped(driver: LogDriver, done: Callable[[], None]) -> None:
        stopped_in.append(turns)
        stop(driver, done)

    def closed(log: Commitlog) -> None:
        elsewhere.append(("log", threading.get_ident() != loop_thread))
        close(log)

    def journal_closed(journal: Journal) -> None:
        elsewhere.append(("journal", threading.get_ident() != loop_thread))
        close_journal(journal)

    def rendered(collected: Collector) -> bytes:
        elsewhere.append(("metrics", threading.get_ident() != loop_thread))
        return render(collected)

    monkeypatch.setattr(LogDriver, "start", started)
    monkeypatch.setattr(LogDriver, "stop", stopped)
    monkeypatch.setattr(Commitlog, "close", closed)
    monkeypatch.setattr(Journal, "close", journal_closed)
    monkeypatch.setattr(health, "generate_latest", rendered)

    async def scenario() -> None:
        def count() -> None:
            nonlocal counting, turns
            turns += 1
            counting = loop.call_soon(count)

        loop = asyncio.get_running_loop()
        counting = loop.call_soon(count)
        async with node_in_process(tmp_path, logs=[{"name": "default"}, *named]) as node:
            answer = await node.client.get("/metrics")
            assert answer.status_code == 200
            assert answer.text.count("commitlog_leading{") >= LOGS
        counting.cancel()

    named = [{"name": f"log-{number}"} for number in range(LOGS - 1)]
    asyncio.run(scenario())
    assert len(set(started_in)) == len(started_in) > LOGS
    assert len(set(stopped_in)) == len(stopped_in) > LOGS
    assert {name for name, _ in elsewhere} == {"log", "journal", "metrics"}
    assert all(aside for _, aside in elsewhere)
