"""Routes for operators, probes and people: health, metrics, the API page, the page of each problem."""

import html
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Annotated, Final

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from starlette.responses import RedirectResponse, Response

from app import telemetry
from app.api.http.dependencies import Node, Nothing, body_answer, json_answer
from app.api.http.openapi import answers
from app.api.metrics.controller_mode import controller_mode_metrics
from app.api.routes import documentation
from app.errors import PROBLEMS, CommitlogError, NotFound
from app.log.contract import Role
from app.log.driver_interfaces import ReplicaStatus
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.links.links import REFUSALS as LINK_REFUSALS
from app.node.network.ha_connection import REFUSALS
from app.node.repair.interfaces import RepairState
from app.version import VERSION
from storage.log.journal import Journal

router = APIRouter(tags=["operations"])

_READY: Final = {"ready": True, "logs": {"default": True}, "failing": {}}
_HTML: Final = "text/html; charset=utf-8"
_ASSETS: Final = {
    "swagger-ui.css": "text/css; charset=utf-8",
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "favicon.png": "image/png",
}
_CACHED: Final = ((b"cache-control", b"max-age=86400"),)
_DOCS: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>commitlog API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" type="image/png" href="/docs/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script>
SwaggerUIBundle({url: "/v1/openapi.json", dom_id: "#swagger-ui", deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis], validatorUrl: null});
</script>
</body>
</html>
"""


@router.get(
    "/healthz",
    summary="Liveness of the process",
    responses=answers(example={"status": "ok"}, of_a_log=False),
    response_class=Response,
)
async def healthz(query: Nothing) -> Response:
    return json_answer({"status": "ok"})


@router.get(
    "/readyz",
    summary="Readiness of this node",
    description="503 while a log has no leader or is under repair, while this node has not caught up with a "
    "log or has not loaded the list of logs, and while a background task fails (`failing`: its name and "
    "error). A replica that was removed from its log's group is ready: the node forwards the calls.",
    responses=answers(example=_READY, of_a_log=False)
    | answers(example={**_READY, "ready": False}, description="Not ready", of_a_log=False, status=503),
    response_class=Response,
)
async def readyz(broker: Node, query: Nothing) -> Response:
    logs = {
        hosted.name: hosted.removed
        or (hosted.caught_up and hosted.leader_id is not None and not hosted.repairing)
        for hosted in broker.logs.values()
        if hosted.journal is not None
    }
    knows_logs = broker.metadata.is_current or broker.metadata.hosted.removed
    failing = broker.tasks.failing
    ready = all(logs.values()) and knows_logs and not (broker.waits.stopping or failing)
    headers = () if ready else ((b"retry-after", b"1"),)
    answer = {"ready": ready, "logs": logs, "failing": failing}
    return json_answer(answer, status=200 if ready else 503, headers=headers)


# --- metrics --------------------------------------------------------------------------------------------


class NodeCollector:
    """Reads everything at the moment Prometheus asks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def collect(self) -> Iterator[Metric]:
        broker = self._broker
        yield telemetry.build_info(VERSION, broker.node.id)
        yield from broker.meter.collect()
        audit = broker.audit
        yield telemetry.counter(
            telemetry.AUDIT_WRITTEN, "Entries in __audit", (), [((), audit.counts.written)]
        )
        yield telemetry.gauge(telemetry.AUDIT_WAITING, "Entries not yet in it", (), [((), audit.waiting)])
        yield telemetry.counter(telemetry.AUDIT_DROPPED, "Entries given up", (), [((), audit.counts.dropped)])
        drivers = [hosted.driver for hosted in broker.logs.values() if hosted.driver is not None]
        seen = [(driver.log_name, driver.status()) for driver in drivers]
        per_log = (
            (telemetry.TERM, "Current term", lambda status: status.core.term),
            (
                telemetry.LEADING,
                "1 if this node is the leader",
                lambda status: int(status.core.role is Role.LEADER),
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
        state = (
            (telemetry.IDEMPOTENCY_KEYS, "Idempotency keys remembered", lambda state: state.key_count),
            (telemetry.PRODUCERS, "Producers remembered", lambda state: state.producer_count),
            (telemetry.CURSORS, "Cursors", lambda state: len(state.cursors)),
        )
        for name, text, count in state:
            values = [((driver.log_name,), count(driver.state)) for driver in drivers]
            yield telemetry.gauge(name, text, ("log",), values)
        yield telemetry.gauge(
            telemetry.CLOCK_OFFSET,
            "Wall clock minus the clock of timestamps, seconds; not near 0 after a step of the wall clock",
            (),
            [((), broker.clock.offset_ms / 1000)],
        )
        marks = [
            ((driver.log_name, peer), float(index))
            for driver in drivers
            for held in driver.watermarks().values()
            for peer, index in held.items()
        ]
        yield telemetry.gauge(
            telemetry.WATERMARK, "Last index acknowledged by a peer (at the leader)", ("log", "peer"), marks
        )
        yield telemetry.gauge(
            telemetry.PENDING_PUSHES,
            "Pushes in flight to a peer (at the leader)",
            ("log", "peer"),
            [((log, peer.id), peer.pending) for log, status in seen for peer in status.core.peers],
        )
        yield from self._ha(seen)
        yield from controller_mode_metrics(broker)
        yield telemetry.gauge(
            telemetry.READS_WAITING, "Linearizable reads that wait for a quorum", ("log",),
            [((driver.log_name,), driver.waiting_reads) for driver in drivers],
        )  # fmt: skip
        kept = [hosted for hosted in broker.logs.values() if hosted.journal is not None]
        repairs = (
            (telemetry.REPAIRING, "1 from the detection of damage to its repair", lambda log: log.repairing),
            (telemetry.REPAIR_WAITING, "1 while no peer can supply the repair", lambda log: _waits(log)),
            (telemetry.REPAIRS, "Repairs begun since the start", lambda log: log.repairs_begun),
        )
        scrubs = [
            ((name,), progress) for name, progress in broker.scrubber.progress.items() if name in broker.logs
        ]
        yield telemetry.gauge(
            telemetry.SCRUB_ROUNDS, "Scrubs ended since the start", ("log",),
            [(labels, progress.rounds) for labels, progress in scrubs],
        )  # fmt: skip
        yield telemetry.gauge(
            telemetry.SCRUBBED_BYTES, "Bytes read again by scrubs since the start", ("log",),
            [(labels, progress.size_bytes) for labels, progress in scrubs],
        )  # fmt: skip
        for name, text, of_log in repairs:
            yield telemetry.gauge(name, text, ("log",), [((log.name,), float(of_log(log))) for log in kept])
        journals = [(hosted.name, hosted.journal) for hosted in kept if hosted.journal is not None]
        per_journal: tuple[tuple[str, str, Callable[[Journal], int]], ...] = (
            (telemetry.JOURNAL_BYTES, "Bytes of this node's journal", lambda each: each.size_bytes),
            (telemetry.JOURNAL_BEGIN_SEQ, "Oldest event of the journal", lambda each: each.begin_seq),
            (
                telemetry.JOURNAL_SUPPRESSED,
                "Events not written since the start because of the rate limit of their kind",
                lambda each: each.suppressed,
            ),
        )
        for name, text, of_journal in per_journal:
            samples = [((log,), float(of_journal(journal))) for log, journal in journals]
            yield telemetry.gauge(name, text, ("log",), samples)
        dropped = [((driver.log_name,), float(driver.dropped_messages)) for driver in drivers]
        yield telemetry.gauge(
            telemetry.DROPPED_MESSAGES,
            "Messages of peers dropped since the start because the log's queue was full",
            ("log",),
            dropped,
        )
        disk = (
            (telemetry.DISK_WAITING, "Disk operations that wait for a thread", broker.disk_waiting),
            (
                telemetry.RESERVE_BYTES,
                "Bytes reserved for operation on a full disk",
                broker.reserve.held_bytes,
            ),
            (telemetry.RESERVE_IN_USE, "1 while the disk is full", int(broker.reserve.in_use)),
        )
        for name, text, number in disk:
            yield telemetry.gauge(name, text, (), [((), float(number))])
        yield telemetry.counter(
            telemetry.TASK_FAILURES, "Failures of background tasks", ("task",),
            [((kind,), float(count)) for kind, count in broker.tasks.failures.items()],
        )  # fmt: skip
        yield telemetry.gauge(
            telemetry.TASK_FAILING, "1 while a background task fails", ("task",),
            [((name,), 1.0) for name in broker.tasks.failing],
        )  # fmt: skip
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

    def _ha(self, seen: Sequence[tuple[str, ReplicaStatus]]) -> Iterator[Metric]:
        """Masters and slaves of logs in controller and classic mode; connections that slaves opened."""
        masters = [(log, status.core) for log, status in seen if status.core.role is Role.MASTER]
        peers = [((log, peer.id), peer) for log, core in masters for peer in core.peers]
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
        yield telemetry.gauge(
            telemetry.HA_WAITS, "1 until a classic master has opened its epoch", ("log",),
            [((log,), float(core.waits_for is not None)) for log, core in masters],
        )  # fmt: skip
        links = (self._broker.transport.links, self._broker.ha.links)
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
            [((each.identity.purpose.value,), float(len(each.room))) for each in links],
        )  # fmt: skip
        ha = self._broker.ha
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


def _waits(hosted: HostedLog) -> bool:
    return hosted.repair is not None and hosted.repair.state is RepairState.WAITING


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    responses=answers(content={"text/plain": {"schema": {"type": "string"}}}, of_a_log=False),
    response_class=Response,
)
async def metrics(broker: Node, query: Nothing) -> Response:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(broker))
    return body_answer(generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4)


# --- pages ----------------------------------------------------------------------------------------------


@router.get("/", include_in_schema=False)
async def root() -> Response:
    return RedirectResponse("/docs")


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return body_answer(_DOCS.encode(), _HTML)


@router.get("/docs/{path:path}", include_in_schema=False)
async def docs_file(path: str) -> Response:
    """A file of Swagger UI, which works without network, or of the documentation."""
    if path not in _ASSETS:
        return documentation.page(path)
    return body_answer(_asset(path), _ASSETS[path], headers=_CACHED)


@lru_cache(maxsize=len(_ASSETS))
def _asset(name: str) -> bytes:
    return files("fastapi_offline").joinpath("static", name).read_bytes()


@router.get(
    "/problems/{code}",
    summary="Description of a problem",
    responses=answers(content={"text/html": {"schema": {"type": "string"}}}, of_a_log=False),
    response_class=Response,
)
async def problem_page(
    request: Request, code: Annotated[str, PathParameter(examples=["index-mismatch"])], query: Nothing
) -> Response:
    problem = PROBLEMS.get(code)
    if problem is None:
        raise NotFound(f"{code!r} is not a problem code of this API")
    return body_answer(_page_of(problem).encode(), _HTML)


def _page_of(problem: type[CommitlogError]) -> str:
    lines = [line.strip() for line in (problem.__doc__ or "").splitlines()]
    facts = (
        ("status", str(problem.http_status)),
        ("outcome of the append", problem.outcome.value),
        ("retryable", "yes" if problem.retryable else "no"),
    )
    rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in facts)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{problem.code}</title></head><body><h1>{html.escape(problem.title)}</h1><p><code>{problem.code}</code></p>"
        f"<p>{html.escape(' '.join(lines).strip())}</p><table>{rows}</table>"
        f'<p><a href="/docs">The API</a></p></body></html>\n'
    )
