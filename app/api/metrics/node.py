"""Metrics of a node: the process, its disk, its tasks, the other nodes; and the collector of all metrics."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from app import telemetry
from app.api.metrics.controller_mode import controller_mode_metrics
from app.api.metrics.logs import job_metrics, journal_metrics, peer_metrics, repair_metrics, replica_metrics
from app.api.metrics.slaves import connection_metrics, slave_metrics
from app.node.broker import Broker
from app.tables.job_reports import JobReport
from app.version import VERSION

_NO_JOBS: Final[Mapping[str, JobReport]] = MappingProxyType({})


class Collected(Collector):
    """Metrics as they were at one moment: any thread may write them as text."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> list[Metric]:
        return self._metrics


class NodeCollector:
    """Collector of all metrics of a node, read when Prometheus asks. jobs: reports of the Spark jobs, by
    log."""

    def __init__(self, broker: Broker, jobs: Mapping[str, JobReport] = _NO_JOBS) -> None:
        self._broker = broker
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        broker = self._broker
        drivers = [hosted.driver for hosted in broker.logs.values() if hosted.driver is not None]
        seen = [(driver.log_name, driver.status()) for driver in drivers]
        yield telemetry.build_info(VERSION, broker.node.id)
        yield from broker.meter.collect()
        yield from _process_metrics(broker)
        yield from replica_metrics(drivers, seen)
        yield from peer_metrics(drivers, seen)
        yield from slave_metrics(seen)
        yield from connection_metrics(broker)
        yield from controller_mode_metrics(broker)
        yield from repair_metrics(broker)
        yield from journal_metrics(broker)
        jobs = {log: job for log, job in self._jobs.items() if log in broker.logs}
        yield from job_metrics(jobs, broker.clock.now_ms())
        yield from _task_metrics(broker)
        yield from _node_metrics(broker)


def _process_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield the audit log, the clock, the certificates, the disk threads and the reserve."""
    audit = broker.audit
    yield telemetry.counter(
        telemetry.AUDIT_WRITTEN,
        "Entries of this node stored in __audit since its start",
        (),
        [((), audit.counts.written)],
    )
    yield telemetry.gauge(
        telemetry.AUDIT_WAITING,
        "Entries of the audit log that are not in __audit yet",
        (),
        [((), audit.waiting)],
    )
    yield telemetry.counter(
        telemetry.AUDIT_DROPPED,
        "Entries of the audit log that are not stored because too many others wait",
        (),
        [((), audit.counts.dropped)],
    )
    yield telemetry.gauge(
        telemetry.CLOCK_OFFSET,
        "Wall clock minus the clock of timestamps, seconds; not near 0 after a step of the wall clock",
        (),
        [((), broker.clock.offset_ms / 1000)],
    )
    yield telemetry.gauge(
        telemetry.WALL_CLOCK,
        "Wall clock of this node, seconds since 1970 UTC",
        (),
        [((), broker.clock.wall_ms / 1000)],
    )
    yield telemetry.gauge(
        telemetry.CERTIFICATE_END,
        "Time since 1970 UTC at which a certificate of this node ends, by its key in [security]",
        ("certificate",),
        [((each.setting,), each.end_ms / 1000) for each in broker.certificates],
    )
    disk = (
        (telemetry.DISK_WAITING, "Disk operations that wait for a thread", broker.disk.waiting),
        (
            telemetry.SYNC_WAITING,
            "Time for which the oldest sync in progress has waited for the disk",
            broker.syncs.longest()[0],
        ),
        (
            telemetry.RESERVE_BYTES,
            "Bytes reserved for operation on a full disk",
            broker.reserve.held_bytes,
        ),
        (
            telemetry.RESERVE_IN_USE,
            "1 while a part of the reserve is in use, because the disk is full",
            int(broker.reserve.in_use),
        ),
    )
    for name, text, number in disk:
        yield telemetry.gauge(name, text, (), [((), float(number))])
    yield telemetry.histogram(
        telemetry.SYNC_SECONDS, "Time of a sync of a file or folder, seconds", *broker.syncs.ended()
    )


def _task_metrics(broker: Broker) -> Iterator[Metric]:
    yield telemetry.counter(
        telemetry.TASK_FAILURES, "Failures of background tasks", ("task",),
        [((kind,), float(count)) for kind, count in broker.tasks.failures.items()],
    )  # fmt: skip
    yield telemetry.gauge(
        telemetry.TASK_FAILING, "1 while a background task fails", ("task",),
        [((name,), 1.0) for name in broker.tasks.failing],
    )  # fmt: skip


def _node_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield the connections to the other nodes, and what contradicts between them."""
    yield telemetry.gauge(
        telemetry.GROUPS_DIFFER,
        "1 while the configuration files of this node and the peer contradict each other about the log",
        ("log", "peer"),
        [((each.log, each.peer), 1.0) for each in broker.rivals.reported],
    )
    yield telemetry.gauge(
        telemetry.PEER_MEMBER, "1 while the peer is a member of any log; other peers are called rarely",
        ("peer",),
        [
            ((node.id,), float(broker.transport.is_member(node.id)))
            for node in broker.nodes
            if node.id != broker.node.id
        ],
    )  # fmt: skip
    yield telemetry.gauge(
        telemetry.PEER_UP,
        "1 while this node's connection to the peer is open",
        ("peer",),
        [
            ((node.id,), float(broker.transport.peer_version(node.id) is not None))
            for node in broker.nodes
            if node.id != broker.node.id
        ],
    )
