"""Metrics of masters and slaves in controller and classic mode, and of the connections that slaves open."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from app import telemetry
from app.api.metrics.logs import Seen
from app.log.contract import Role
from app.node.broker import Broker
from app.node.links.links import REFUSALS as LINK_REFUSALS
from app.node.network.ha_connection import REFUSALS

_WITHOUT_CONNECTION = ("DISCONNECTED", "REFUSED")  # states of a slave


def slave_metrics(seen: Seen) -> Iterator[Metric]:
    """Yield what a master knows of its slaves."""
    masters = [(log, status.core) for log, status in seen if status.core.role is Role.MASTER]
    peers = [((log, peer.id), peer) for log, core in masters for peer in core.peers if peer.is_node]
    yield telemetry.gauge(
        telemetry.HA_SLAVE_CONNECTED, "1 while a slave is connected to this master", ("log", "peer"),
        [(labels, float(peer.state not in _WITHOUT_CONNECTION)) for labels, peer in peers],
    )  # fmt: skip
    yield telemetry.gauge(
        telemetry.HA_GAP, "Bytes that a slave has not acknowledged (at the master)", ("log", "peer"),
        [(labels, float(peer.lag_bytes)) for labels, peer in peers if peer.lag_bytes is not None],
    )  # fmt: skip
    yield telemetry.gauge(
        telemetry.HA_RATE, "Bytes per second sent to a slave (at the master)", ("log", "peer"),
        [(labels, float(peer.bytes_per_s)) for labels, peer in peers if peer.bytes_per_s is not None],
    )  # fmt: skip
    yield telemetry.gauge(
        telemetry.HA_IN_SYNC, "Replicas in sync, the master included", ("log",),
        [((log,), float(len(core.sync_state_set or ()))) for log, core in masters],
    )  # fmt: skip
    yield telemetry.counter(
        telemetry.HA_BELOW_FLOOR, "Time as master with fewer than min_in_sync_replicas in sync", ("log",),
        [
            ((log,), status.core.below_floor_ms / 1000)
            for log, status in seen
            if status.core.below_floor_ms is not None
        ],
    )  # fmt: skip
    yield telemetry.gauge(
        telemetry.HA_WAITS, "1 until a classic master has opened its epoch", ("log",),
        [((log,), float(core.waits_for is not None)) for log, core in masters],
    )  # fmt: skip


def connection_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield the connections that this node accepts from other nodes, and its refusals."""
    ha = broker.ha.transport
    links = (broker.transport.links, ha.links)
    yield telemetry.counter(
        telemetry.LINK_REFUSED,
        "Connections of nodes refused before or by their handshake",
        ("port", "reason"),
        [
            ((each.identity.purpose.value, reason), float(each.refused[reason]))
            for each in links
            for reason in LINK_REFUSALS
        ],
    )
    yield telemetry.gauge(
        telemetry.LINK_WAITING, "Connections of nodes that have not introduced themselves", ("port",),
        [((each.identity.purpose.value,), float(len(each.handshakes))) for each in links],
    )  # fmt: skip
    yield telemetry.gauge(
        telemetry.HA_CONNECTIONS,
        "Connections open at the HA port",
        (),
        [((), float(ha.open_connections))],
    )
    refused = CounterMetricFamily(
        telemetry.HA_REFUSED, "Connections refused at the HA port", labels=("limit",)
    )
    for limit in REFUSALS:
        refused.add_metric((limit,), ha.refused[limit])
    yield refused
