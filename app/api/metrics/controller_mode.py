"""Metrics of controller mode: leases at a master; elections; the active controller."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from app import telemetry
from app.log.contract import Role
from app.node.broker import Broker
from app.node.metadata.service import MetadataService


def controller_mode_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield the metrics of the logs and of the controller at this node, read at the moment of the call."""
    yield from _master_metrics(broker)
    yield from _controller_metrics(broker.metadata)


def _master_metrics(broker: Broker) -> Iterator[Metric]:
    now_ms = broker.clock.monotonic_ms()
    cores = [(log.name, log.ha) for log in broker.logs.values() if log.ha is not None]
    masters = [(name, core) for name, core in cores if core.status().role is Role.MASTER]
    yield telemetry.gauge(
        telemetry.HA_LEASE_REMAINING,
        "Time left of a master's lease, 0 without one",
        ("log",),
        [((name,), core.lease.remaining_ms(now_ms) / 1000) for name, core in masters],
    )
    yield telemetry.counter(
        telemetry.HA_LEASE_LAPSES,
        "Leases that ended while this node was master",
        ("log",),
        [((name,), float(core.lease.lapses)) for name, core in cores],
    )


def _controller_metrics(metadata: MetadataService) -> Iterator[Metric]:
    yield telemetry.counter(
        telemetry.HEARTBEATS_MISSED,
        "Heartbeats of this node, which renew its leases, without an answer of a controller",
        (),
        [((), float(metadata.client.missed_heartbeats))],
    )
    yield telemetry.counter(
        telemetry.ELECTIONS,
        "Elections of masters that this node has learned of since it started",
        ("log", "kind", "reason"),
        [(labels, float(count)) for labels, count in metadata.elections.items()],
    )
    yield telemetry.counter(
        telemetry.ELECTIONS_REFUSED,
        "Elections that this node refused as active controller",
        ("log", "reason"),
        [(labels, float(count)) for labels, count in metadata.server.refused_elections.items()],
    )
    yield telemetry.counter(
        telemetry.CONTROLLER_DROPPED,
        "Requests that this node dropped as active controller because too many were open",
        (),
        [((), float(metadata.server.dropped_requests))],
    )
    yield telemetry.gauge(
        telemetry.CONTROLLER_ACTIVE,
        "1 at the active controller",
        (),
        [((), float(metadata.server.is_active))],
    )
    term = 0 if metadata.hosted.driver is None else metadata.hosted.driver.term
    yield telemetry.gauge(
        telemetry.CONTROLLER_EPOCH,
        "Term of the controllers' group, as this node knows it",
        (),
        [((), float(term))],
    )
