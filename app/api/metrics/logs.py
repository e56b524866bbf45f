"""Metrics of the logs of a node: replicas, peers of each log, repairs, scrubs, journals."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from app import telemetry
from app.log.contract import CoreStatus, Role
from app.log.driver_interfaces import ReplicaStatus
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.repair.interfaces import RepairState
from app.node.replica.driver import LogDriver
from app.tables.job_reports import JobReport
from app.tables.names import FAILED, is_silent
from storage.log.journal import Journal

Seen = Sequence[tuple[str, ReplicaStatus]]
"""Name and status of each open replica, of one moment."""


def replica_metrics(drivers: Sequence[LogDriver], seen: Seen) -> Iterator[Metric]:
    """Yield term, role, indexes, remembered state and queues of each open replica."""
    per_log = (
        (telemetry.TERM, "Current term", lambda status: status.core.term),
        (
            telemetry.LEADING,
            "1 if this node is the leader, or the master and has its lease or has opened its epoch",
            lambda status: int(_leads(status.core)),
        ),
        (
            telemetry.BEGIN_INDEX,
            "First index of this replica, -1: none",
            lambda status: status.begin_index,
        ),
        (telemetry.END_INDEX, "Last index of this replica, -1: none", lambda status: status.end_index),
        (telemetry.COMMITTED_INDEX, "Last committed index", lambda status: status.core.committed_index),
        (telemetry.END_OFFSET, "Byte offset of the end of the log", lambda status: status.end_offset),
    )
    for name, text, value in per_log:
        yield telemetry.gauge(name, text, ("log",), [((log,), value(status)) for log, status in seen])
    yield telemetry.gauge(
        telemetry.STORED_BYTES,
        "Bytes of the log that this replica keeps",
        ("log",),
        [((driver.log_name,), float(driver.log.end_offset - driver.log.begin_offset)) for driver in drivers],
    )
    state = (
        (telemetry.IDEMPOTENCY_KEYS, "Idempotency keys remembered", lambda state: state.key_count),
        (telemetry.PRODUCERS, "Producers remembered", lambda state: state.producer_count),
        (telemetry.CURSORS, "Cursors", lambda state: len(state.cursors)),
    )
    for name, text, count in state:
        values = [((driver.log_name,), count(driver.state)) for driver in drivers]
        yield telemetry.gauge(name, text, ("log",), values)
    lags = [(driver.log_name, driver.state.fence_lag) for driver in drivers]
    yield telemetry.gauge(
        telemetry.FENCE_LAG, "Indexes from the first fencing cursor to the end of the data", ("log",),
        [((log,), float(lag)) for log, lag in lags if lag is not None],
    )  # fmt: skip
    yield telemetry.gauge(
        telemetry.READS_WAITING, "Linearizable reads that wait for a quorum", ("log",),
        [((driver.log_name,), driver.waiting_reads) for driver in drivers],
    )  # fmt: skip
    dropped = [((driver.log_name,), float(driver.dropped_messages)) for driver in drivers]
    yield telemetry.counter(
        telemetry.DROPPED_MESSAGES,
        "Messages of peers dropped since the start because the log's queue was full",
        ("log",),
        dropped,
    )


def _leads(core: CoreStatus) -> bool:
    """Return whether the log has its leader here: a master that accepts no appends is none."""
    waits = core.without_lease or core.waits_for is not None
    return core.role in (Role.LEADER, Role.MASTER) and not waits


def peer_metrics(drivers: Sequence[LogDriver], seen: Seen) -> Iterator[Metric]:
    """Yield what the leader knows of each peer of a log. A slave that names no node is left out: the key of
    its connection would begin other series with each connection."""
    unnamed = {(log, peer.id) for log, status in seen for peer in status.core.peers if not peer.is_node}
    marks = [
        ((driver.log_name, peer), float(index))
        for driver in drivers
        for held in driver.watermarks().values()
        for peer, index in held.items()
        if (driver.log_name, peer) not in unnamed
    ]
    yield telemetry.gauge(
        telemetry.WATERMARK, "Last index acknowledged by a peer (at the leader)", ("log", "peer"), marks
    )
    yield telemetry.gauge(
        telemetry.PENDING_PUSHES,
        "Pushes in flight to a peer (at the leader)",
        ("log", "peer"),
        [
            ((log, peer.id), peer.pending)
            for log, status in seen
            for peer in status.core.peers
            if peer.is_node
        ],
    )


def repair_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield repairs and scrubs of the logs that this node keeps."""
    kept = [hosted for hosted in broker.logs.values() if hosted.journal is not None]
    repairs = (
        (telemetry.REPAIRING, "1 from the detection of damage to its repair", lambda log: log.repairing),
        (telemetry.REPAIR_WAITING, "1 while no peer can supply the repair", lambda log: _waits(log)),
    )
    for name, text, of_log in repairs:
        yield telemetry.gauge(name, text, ("log",), [((log.name,), float(of_log(log))) for log in kept])
    yield telemetry.counter(
        telemetry.REPAIRS, "Repairs begun since the start", ("log",),
        [((log.name,), float(log.repairs_begun)) for log in kept],
    )  # fmt: skip
    yield telemetry.counter(
        telemetry.SCRUB_ROUNDS, "Scrubs ended since the start", ("log",),
        [((log.name,), float(log.scrub_rounds)) for log in kept],
    )  # fmt: skip
    yield telemetry.counter(
        telemetry.SCRUBBED_BYTES, "Bytes read again by scrubs since the start", ("log",),
        [((log.name,), float(log.scrubbed_bytes)) for log in kept],
    )  # fmt: skip


def journal_metrics(broker: Broker) -> Iterator[Metric]:
    """Yield size, begin and suppressed events of this node's journals."""
    journals = [
        (hosted.name, hosted.journal) for hosted in broker.logs.values() if hosted.journal is not None
    ]
    per_journal: tuple[tuple[str, str, Callable[[Journal], int]], ...] = (
        (telemetry.JOURNAL_BYTES, "Bytes of this node's journal", lambda each: each.size_bytes),
        (telemetry.JOURNAL_BEGIN_SEQ, "Oldest event of the journal", lambda each: each.begin_seq),
    )
    for name, text, of_journal in per_journal:
        samples = [((log,), float(of_journal(journal))) for log, journal in journals]
        yield telemetry.gauge(name, text, ("log",), samples)
    yield telemetry.counter(
        telemetry.JOURNAL_SUPPRESSED,
        "Events not written since the start because of the rate limit of their kind",
        ("log",),
        [((log,), float(journal.suppressed)) for log, journal in journals],
    )


def job_metrics(jobs: Mapping[str, JobReport], now_ms: int) -> Iterator[Metric]:
    """Yield the failures that the Spark jobs of the logs have reported, and the jobs that report no more."""
    yield telemetry.gauge(
        telemetry.TABLES_JOB_FAILED,
        "1 while the last report of the Spark job of the log's tables is that it has failed",
        ("log",),
        [((log,), float(job.state == FAILED)) for log, job in jobs.items()],
    )
    yield telemetry.gauge(
        telemetry.TABLES_JOB_SILENT,
        "1 while the last report of the Spark job of the log's tables is that it runs, and is a minute old",
        ("log",),
        [((log,), float(is_silent(job.state, job.updated_ms, now_ms))) for log, job in jobs.items()],
    )


def _waits(hosted: HostedLog) -> bool:
    return hosted.repair is not None and hosted.repair.state is RepairState.WAITING
