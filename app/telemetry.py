"""Log lines and metrics: every name is defined here, once.

Lines go to stderr as `key=value` pairs (logfmt) or as JSON: time, level, logger, message, then the extras.
Requests are counted in plain integers, for the append path counts too; Prometheus reads them on demand.
"""

import json
import logging
import re
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

REQUESTS: Final = "commitlog_http_requests"
APPEND_SECONDS: Final = "commitlog_append_seconds"
CONNECTIONS: Final = "commitlog_http_connections"
CONNECTIONS_REFUSED: Final = "commitlog_http_connections_refused"
TOKENS_FAILING: Final = "commitlog_tokens_file_failing"
CERTIFICATE_END: Final = "commitlog_certificate_end_timestamp_seconds"
AUDIT_WRITTEN: Final = "commitlog_audit_entries"
AUDIT_WAITING: Final = "commitlog_audit_entries_waiting"
AUDIT_DROPPED: Final = "commitlog_audit_entries_dropped"
APPENDED_RECORDS: Final = "commitlog_appended_records"
APPENDED_BYTES: Final = "commitlog_appended_bytes"
TERM: Final = "commitlog_term"
LEADING: Final = "commitlog_leading"
DISK_WAITING: Final = "commitlog_disk_waiting"
SYNC_WAITING: Final = "commitlog_disk_sync_waiting_seconds"
SYNC_SECONDS: Final = "commitlog_disk_sync_seconds"
JOURNAL_BYTES: Final = "commitlog_journal_bytes"
JOURNAL_BEGIN_SEQ: Final = "commitlog_journal_begin_seq"
JOURNAL_SUPPRESSED: Final = "commitlog_journal_suppressed_events"
DROPPED_MESSAGES: Final = "commitlog_dropped_messages"
RESERVE_BYTES: Final = "commitlog_disk_reserve_bytes"
RESERVE_IN_USE: Final = "commitlog_disk_reserve_in_use"
BEGIN_INDEX: Final = "commitlog_begin_index"
END_INDEX: Final = "commitlog_end_index"
COMMITTED_INDEX: Final = "commitlog_committed_index"
END_OFFSET: Final = "commitlog_end_offset_bytes"
STORED_BYTES: Final = "commitlog_stored_bytes"
WATERMARK: Final = "commitlog_watermark"
PENDING_PUSHES: Final = "commitlog_pending_pushes"
REPAIRING: Final = "commitlog_repairing"
REPAIR_WAITING: Final = "commitlog_repair_waiting"
REPAIRS: Final = "commitlog_repairs"
SCRUB_ROUNDS: Final = "commitlog_scrub_rounds"
SCRUBBED_BYTES: Final = "commitlog_scrubbed_bytes"
HA_GAP: Final = "commitlog_ha_gap_bytes"
HA_RATE: Final = "commitlog_ha_transfer_bytes_per_second"
HA_IN_SYNC: Final = "commitlog_ha_in_sync_replicas"
HA_WAITS: Final = "commitlog_ha_master_waits"
HA_CONNECTIONS: Final = "commitlog_ha_connections"
HA_REFUSED: Final = "commitlog_ha_connections_refused"
HA_SLAVE_CONNECTED: Final = "commitlog_ha_slave_connected"
HA_LEASE_REMAINING: Final = "commitlog_ha_lease_remaining_seconds"
HA_LEASE_LAPSES: Final = "commitlog_ha_lease_lapses"
HA_BELOW_FLOOR: Final = "commitlog_ha_below_floor_seconds"
ELECTIONS: Final = "commitlog_elections"
ELECTIONS_REFUSED: Final = "commitlog_elections_refused"
HEARTBEATS_MISSED: Final = "commitlog_controller_heartbeats_missed"
CONTROLLER_DROPPED: Final = "commitlog_controller_requests_dropped"
CONTROLLER_ACTIVE: Final = "commitlog_controller_active"
CONTROLLER_EPOCH: Final = "commitlog_controller_epoch"
LINK_REFUSED: Final = "commitlog_link_connections_refused"
LINK_WAITING: Final = "commitlog_link_connections_waiting"
PEER_UP: Final = "commitlog_peer_connected"
PEER_MEMBER: Final = "commitlog_peer_is_member"
GROUPS_DIFFER: Final = "commitlog_groups_differ"
READS_WAITING: Final = "commitlog_reads_waiting"
TASK_FAILURES: Final = "commitlog_task_failures"
TASK_FAILING: Final = "commitlog_task_failing"
CLOCK_OFFSET: Final = "commitlog_clock_offset_seconds"
WALL_CLOCK: Final = "commitlog_wall_clock_timestamp_seconds"
IDEMPOTENCY_KEYS: Final = "commitlog_idempotency_keys"
PRODUCERS: Final = "commitlog_producers"
CURSORS: Final = "commitlog_cursors"
FENCE_LAG: Final = "commitlog_fence_lag_records"
TABLES_JOB_FAILED: Final = "commitlog_tables_job_failed"
TABLES_JOB_SILENT: Final = "commitlog_tables_job_silent"
BUILD: Final = "commitlog_build"

BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class Meter:
    """Counters of the REST service. Owned by the event loop."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str, int], int] = {}  # (method, route, status) -> how many
        self.appended_records = 0
        self.appended_bytes = 0
        self.connections = 0
        self.refused_connections = 0
        self.tokens_failing = False  # the tokens file could not be used when it was last read
        self._append_buckets = [0] * (len(BUCKETS_S) + 1)
        self._append_sum_s = 0.0

    @property
    def append_counts(self) -> list[int]:
        """Acknowledged appends by latency: within each of BUCKETS_S, and beyond."""
        return list(self._append_buckets)

    def answered(self, method: str, route: str, status: int, count: int = 1) -> None:
        key = (method, route, status)
        self.answers[key] = self.answers.get(key, 0) + count

    def acknowledged(self, seconds: float, appends: int = 1) -> None:
        """Count appends that were acknowledged `seconds` after they arrived."""
        self._append_buckets[bisect_left(BUCKETS_S, seconds)] += appends
        self._append_sum_s += seconds * appends

    def appended(self, records: int, size_bytes: int) -> None:
        """Count records of acknowledged appends."""
        self.appended_records += records
        self.appended_bytes += size_bytes

    def collect(self) -> Iterator[Metric]:
        answers = CounterMetricFamily(REQUESTS, "Answers sent", labels=("method", "route", "status"))
        for (method, route, status), count in self.answers.items():
            answers.add_metric((method, route, str(status)), count)
        yield answers
        yield histogram(
            APPEND_SECONDS,
            "Time from the arrival of an append to its acknowledgement, seconds",
            self._append_buckets,
            self._append_sum_s,
        )
        yield CounterMetricFamily(
            APPENDED_RECORDS,
            "Records of appends that this node acknowledged as the leader, without repeats",
            self.appended_records,
        )
        yield CounterMetricFamily(
            APPENDED_BYTES, "Bytes of records that this node acknowledged as the leader", self.appended_bytes
        )
        yield GaugeMetricFamily(CONNECTIONS, "Open connections of clients", self.connections)
        yield CounterMetricFamily(
            CONNECTIONS_REFUSED, "Connections of clients refused", self.refused_connections
        )
        yield GaugeMetricFamily(
            TOKENS_FAILING,
            "1 while the tokens file cannot be used and the tokens read before stay valid",
            int(self.tokens_failing),
        )


def gauge(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def counter(
    name: str, text: str, labels: tuple[str, ...], samples: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def histogram(name: str, text: str, counts: Iterable[int], sum_s: float) -> Metric:
    """counts: within each of BUCKETS_S, and beyond. sum_s: of all, seconds."""
    labels = [*map(str, BUCKETS_S), "+Inf"]
    family = HistogramMetricFamily(name, text)
    family.add_metric((), list(zip(labels, accumulate(counts), strict=True)), sum_s)
    return family


def build_info(version: str, node: str) -> Metric:
    return InfoMetricFamily(BUILD, "Version of this node", {"version": version, "node": node})


# --- log lines ------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+-]+")
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


class LineFormatter(logging.Formatter):
    """One line for each record, as logfmt or as JSON. All that is not printable is escaped: line breaks, also
    those of Unicode, control characters, marks that reverse the order of the text, halves of surrogate pairs.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        pairs: dict[str, object] = {
            "time": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        pairs |= {
            name: value for name, value in vars(record).items() if name not in _OWN and name not in pairs
        }
        if record.exc_info:
            pairs["trace"] = self.formatException(record.exc_info)
        if self._as_json:
            return _as_json(pairs)
        return " ".join(f"{name}={_quoted(value)}" for name, value in pairs.items())


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else _as_json(text)


def _as_json(value: object) -> str:
    """Return JSON in which every character is printable."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return sign
    return "\\u007f" if sign == "\x7f" else json.dumps(sign)[1:-1]  # which leaves that one as it is


def configure_logging(level: int | str = logging.INFO, *, as_json: bool = False) -> None:
    """Send every logger's lines to stderr. Called by the owner of the process; a later call replaces the
    settings of an earlier one."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter(as_json=as_json))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(max(logging.WARNING, logging.getLogger().level))
