"""Metrics of controller mode: names, labels and values as an operator sees them."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from app.api.metrics.controller_mode import controller_mode_metrics
from app.log.contract import PeerStatus, Role


def core(role: Role, *peers: PeerStatus) -> Any:
    return SimpleNamespace(
        status=lambda: SimpleNamespace(role=role, peers=peers),
        lease=SimpleNamespace(remaining_ms=lambda now_ms: 1_250 - now_ms, lapses=2, below_floor_ms=3_500),
    )


def test_metrics_of_a_node_in_controller_mode() -> None:
    slaves = (PeerStatus("n2", "TRANSFER", 1, 0, 0), PeerStatus("n3", "DISCONNECTED", -1, 0, None))
    logs = {
        "a": SimpleNamespace(name="a", ha=core(Role.MASTER, *slaves)),
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
        'commitlog_ha_below_floor_seconds_total{log="a"} 3.5',
        'commitlog_ha_slave_connected{log="a",peer="n2"} 1.0',
        'commitlog_ha_slave_connected{log="a",peer="n3"} 0.0',
        "commitlog_controller_heartbeats_missed_total 4.0",
        'commitlog_elections_total{kind="unclean",log="a",reason="operator"} 1.0',
        'commitlog_elections_refused_total{log="a",reason="no-eligible-replica"} 5.0',
        "commitlog_controller_requests_dropped_total 3.0",
        "commitlog_controller_active 1.0",
        "commitlog_controller_epoch 7.0",
    ):
        assert line in lines, line
    assert 'commitlog_ha_lease_remaining_seconds{log="b"} 1.0' not in lines
