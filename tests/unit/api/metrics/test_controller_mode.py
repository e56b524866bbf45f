"""Metrics of controller mode: names, labels and values as an operator sees them."""

import asyncio
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from app.api.metrics.controller_mode import controller_mode_metrics
from app.log.contract import Role
from tests.support.in_process import node_in_process, until


def core(role: Role) -> Any:
    return SimpleNamespace(
        status=lambda: SimpleNamespace(role=role),
        lease=SimpleNamespace(remaining_ms=lambda now_ms: 1_250 - now_ms, lapses=2),
    )


def test_metrics_of_a_node_in_controller_mode() -> None:
    logs = {
        "a": SimpleNamespace(name="a", ha=core(Role.MASTER)),
        "b": SimpleNamespace(name="b", ha=core(Role.SLAVE)),
        "c": SimpleNamespace(name="c", ha=None),
    }
    metadata = SimpleNamespace(
        client=SimpleNamespace(missed_heartbeats=4),
        elections=Counter({("a", "unclean", "operator"): 1}),
        server=SimpleNamespace(
            refused_elections=Counter({("a", "no-eligible-replica"): 5}), dropped_requests=3, is_active=True
        ),
        hosted=SimpleNamespace(driver=SimpleNamespace(term=7)),
    )
    broker: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic_ms=lambda: 250), logs=logs, metadata=metadata
    )

    class Collector:
        def collect(self) -> Any:
            return controller_mode_metrics(broker)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector())
    lines = generate_latest(registry).decode().splitlines()
    for line in (
        'commitlog_ha_lease_remaining_seconds{log="a"} 1.0',
        'commitlog_ha_lease_lapses_total{log="b"} 2.0',
        "commitlog_controller_heartbeats_missed_total 4.0",
        'commitlog_elections_total{kind="unclean",log="a",reason="operator"} 1.0',
        'commitlog_elections_refused_total{log="a",reason="no-eligible-replica"} 5.0',
        "commitlog_controller_requests_dropped_total 3.0",
        "commitlog_controller_active 1.0",
        "commitlog_controller_epoch 7.0",
    ):
        assert line in lines, line
    assert 'commitlog_ha_lease_remaining_seconds{log="b"} 1.0' not in lines


@pytest.mark.rule("C-05")
def test_the_elections_of_a_deleted_log_are_no_longer_counted(tmp_path: Path) -> None:
    """Logs that are created and deleted would add series without end."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:

            async def shown() -> list[str]:
                lines = (await node.client.get("/metrics")).text.splitlines()
                return [line for line in lines if 'log="brief"' in line]

            made = await node.client.post("/v1/logs", json={"name": "brief", "replication": "controller"})
            assert made.status_code == 201
            elections, refused = node.broker.metadata.elections, node.broker.metadata.server.refused_elections
            await until(lambda: any(log == "brief" for log, *_ in elections))
            refused["brief", "no-eligible-replica"] += 1
            assert any(line.startswith("commitlog_elections_total") for line in await shown())
            assert (await node.client.delete("/v1/logs/brief")).status_code == 202
            await until(lambda: not any(log == "brief" for log, *_ in (*elections, *refused)))
            assert await shown() == []

    asyncio.run(run())
