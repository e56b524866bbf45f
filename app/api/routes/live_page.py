"""`/ui`: a page that shows the cluster and its logs live, and operates them.

The page is static files; it calls the REST routes like any client, and routes here that collect for one
screen what would take a call to each node. The files need no token, the data does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from app.api.access.caller import UNRESTRICTED, Caller
from app.api.access.html_headers import html_headers
from app.api.access.rules import caller_of
from app.api.http.dependencies import NodeBroker, Nothing, body_answer, json_answer, request_id_of
from app.api.http.log_call import Served
from app.api.http.query import Query as StrictQuery
from app.api.read.epochs import epoch_object
from app.api.routes import documentation
from app.api.routes.cluster import event_object, status_object, unreachable_since_ms
from app.api.routes.members import member_objects
from app.api.tables.known_jobs import job_of, known_jobs
from app.errors import NotFound
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.http_forwarder import Lost, NotSent
from app.tables.job_reports import JobReport
from app.telemetry import BUCKETS_S
from storage.units import NO_INDEX

router = APIRouter(include_in_schema=False)

_FOLDER: Final = Path(__file__).with_name("live")
_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_ASSETS: Final = {
    path.name: _MEDIA_TYPES[path.suffix] for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES
}
_HEADERS: Final = (
    (b"cache-control", b"no-cache"),
    *html_headers("default-src 'self'; style-src 'self' 'unsafe-inline'; connect-src *"),
)
_PEER_TIMEOUT_S: Final = 0.8
_EPOCHS: Final = 1_000
_EVENTS: Final = 200
_EVENTS_LOOKED_AT: Final = 2_000  # most of them are watermarks


class Part(StrEnum):
    """A log on the screen, without its nodes."""

    NODES = "nodes"
    EPOCHS = "epochs"
    EVENTS = "events"
    CURSORS = "cursors"


class LogQuery(StrictQuery):
    log: str = Field("default", description="Name of the log")
    part: Part = Part.NODES


@router.get("/ui")
async def page() -> Response:
    """The query is ignored here: it is for the page's own script."""
    return body_answer(_file("index.html"), "text/html; charset=utf-8", headers=_HEADERS)


@router.get("/ui/overview.json")
async def overview(request: Request, broker: NodeBroker, query: Nothing) -> Response:
    others = [node["id"] for node in member_objects(broker) if node["alive"] and node["id"] != broker.node.id]
    jobs = await known_jobs(request).last()
    answers = await asyncio.gather(*(_ask(request, broker, node, "/ui/led.json") for node in others))
    answered = [each for each in answers if each is not None]
    return json_answer(_overview(broker, caller_of(request), answered, jobs))


@router.get("/ui/led.json")
async def led(request: Request, broker: NodeBroker, query: Nothing) -> Response:
    """The logs that this node leads and their appends, for the overview at another node."""
    caller = caller_of(request)
    hosted = [each for each in broker.logs.values() if each.leads and caller.sees(each.name)]
    jobs = await known_jobs(request).last()
    return json_answer(
        {
            "logs": [_log_row(broker, each) | job_of(each.name, jobs) for each in hosted],
            "append_counts": broker.meter.append_counts,
        }
    )


@router.get("/ui/log.json")
async def log(request: Request, broker: NodeBroker, query: Annotated[LogQuery, Query()]) -> Response:
    hosted = broker.lookup.find(query.log, "/query/log")
    answer = await _nodes(request, broker, hosted)
    match query.part:
        case Part.EPOCHS:
            answer["epochs"] = _epochs(hosted)
            answer["epoch_count"] = 0 if hosted.driver is None else len(hosted.driver.log.epochs)
        case Part.EVENTS:
            answer["events"] = _events(hosted)
        case Part.CURSORS:
            answer["cursors"] = _cursors(hosted)
    return json_answer(answer)


@router.get("/ui/{name}")
async def asset(name: str, query: Nothing) -> Response:
    if name not in _ASSETS:
        raise NotFound(f"/ui/{name} does not exist")
    return body_answer(_file(name), _ASSETS[name], headers=_HEADERS)


@lru_cache(maxsize=len(_ASSETS) + 1)
def _file(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


def _overview(
    broker: Broker, caller: Caller, others: Sequence[Mapping[str, Any]], jobs: Mapping[str, JobReport]
) -> dict[str, Any]:
    """Return the nodes, and all logs that the caller may see.

    others: what other nodes report of the logs that they lead. Of each other log: what this node knows. An
    append is counted by the leader that serves it, so the counts of all nodes are added. jobs: the reports of
    Spark jobs that this node finds, which are preferred to those of a leader.
    """
    led = {row["name"]: row for answer in others for row in answer["logs"]}
    own = broker.meter.append_counts
    named = (each.get("append_counts", ()) for each in others)  # another version may count otherwise
    counts = [own, *(each for each in named if len(each) == len(own))]
    visible = [hosted for hosted in broker.logs.values() if caller.sees(hosted.name)]
    rows = [
        led[hosted.name]
        if hosted.leader_id != broker.node.id and hosted.name in led
        else _log_row(broker, hosted)
        for hosted in visible
    ]
    return {
        "cluster": broker.settings.cluster_id,
        "node": broker.node.id,
        "now_ms": broker.clock.now_ms(),
        "nodes": _nodes_of_the_cluster(broker),
        "login": caller.grant is not UNRESTRICTED,
        "has_docs": documentation.is_built(),
        "logs": [row | job_of(row["name"], jobs) for row in rows],
        "append_bounds_s": BUCKETS_S,
        "append_counts": [sum(each) for each in zip(*counts, strict=True)],
    }


def _nodes_of_the_cluster(broker: Broker) -> list[dict[str, Any]]:
    """Return the known nodes. outside: in no log's group, as a node that was removed."""
    logs = (*broker.logs.values(), broker.metadata.hosted)
    inside = {node_id for hosted in logs for node_id in hosted.members}
    return [node | {"outside": node["id"] not in inside} for node in member_objects(broker)]


def _log_row(broker: Broker, hosted: HostedLog) -> dict[str, Any]:
    """Return one log; values that only a replica knows are null at a node that keeps none, and the lag at one
    that does not lead."""
    row: dict[str, Any] = {
        "name": hosted.name,
        "replication": hosted.settings.replication,
        "replicas": list(hosted.members or hosted.settings.replicas),
        "leader": hosted.leader_id,
        "term": None,
        "committed_index": None,
        "begin_index": None,
        "size_bytes": None,
        "lag_records": None,
        "repairing": hosted.repairing,
    }
    driver = hosted.driver
    if driver is None:
        return row
    held, core = driver.log, driver.status().core
    row |= {
        "term": driver.term,
        "committed_index": driver.committed_index,
        "begin_index": held.begin_index,
        "size_bytes": held.end_offset - held.begin_offset,
    }
    if hosted.leads:
        watermarks = [peer.watermark for peer in core.peers]
        silent = any(unreachable_since_ms(broker, peer) is not None for peer in core.peers)
        is_known = all(peer.lag_bytes is not None for peer in core.peers)
        if is_known and not silent and NO_INDEX not in watermarks:
            row["lag_records"] = max(0, held.end_index - min(watermarks, default=held.end_index))
    return row


async def _nodes(request: Request, broker: Broker, hosted: HostedLog) -> dict[str, Any]:
    """Return one log as every node sees it; of a silent node there is no status."""
    nodes = [node for node in member_objects(broker) if node["id"] in hosted.members or not hosted.members]
    views = await asyncio.gather(*(_view(request, broker, hosted, node["id"]) for node in nodes))
    driver = hosted.driver
    return {
        "cluster": broker.settings.cluster_id,
        "node": broker.node.id,
        "log": hosted.name,
        "replication": hosted.settings.replication,
        "size_bytes": None if driver is None else driver.log.end_offset - driver.log.begin_offset,
        "now_ms": broker.clock.now_ms(),
        "nodes": [node | {"status": view} for node, view in zip(nodes, views, strict=True)],
    }


def _epochs(hosted: HostedLog) -> list[dict[str, Any]]:
    """Return the newest epochs of this node's replica, in order."""
    if hosted.driver is None:
        return []
    held = hosted.driver.log.epochs
    return [epoch_object(held, position) for position in range(max(0, len(held) - _EPOCHS), len(held))]


def _cursors(hosted: HostedLog) -> list[dict[str, Any]]:
    """Return the committed cursors that this node knows, by name."""
    if hosted.driver is None:
        return []
    return [
        {"name": name, "index": cursor.position, "fence": cursor.fence}
        for name, cursor in hosted.driver.state.committed_cursors().items()
    ]


async def _view(request: Request, broker: Broker, hosted: HostedLog, node_id: str) -> dict[str, Any] | None:
    """Return a node's status of the log; None when it does not answer, or its copy is under repair."""
    if node_id == broker.node.id:
        return None if hosted.driver is None else status_object(Served(broker, hosted, hosted.driver))
    return await _ask(request, broker, node_id, f"/v1/logs/{hosted.name}/status")


async def _ask(request: Request, broker: Broker, node_id: str, path: str) -> dict[str, Any] | None:
    """Return what another node answers to this caller; None when it does not answer, or refuses."""
    node = broker.nodes.find(node_id)
    if node is None:
        return None
    try:
        answer = await broker.forwarder.send(
            node, "GET", path.encode(), request.headers.raw, b"", request_id_of(request), _PEER_TIMEOUT_S
        )
    except (NotSent, Lost):
        return None
    return msgspec.json.decode(answer.body, type=dict[str, Any]) if answer.status == 200 else None


def _events(hosted: HostedLog) -> list[dict[str, Any]]:
    """Return the newest events of this node's journal except the watermarks, newest first."""
    if hosted.journal is None:
        return []
    from_seq = max(0, hosted.journal.next_seq - _EVENTS_LOOKED_AT)
    found, _, _ = hosted.journal.read(from_seq, _EVENTS_LOOKED_AT)
    visible = [event_object(event) for event in found if event.kind != "watermarks"]
    return visible[: -_EVENTS - 1 : -1]
