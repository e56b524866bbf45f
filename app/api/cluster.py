"""Looking at the cluster and its logs: status, epochs, watermarks, journals."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from app.api.append_parameters import MAX_ORDINAL
from app.api.appends import log_headers
from app.api.epochs import epoch_object
from app.api.members import member_objects
from app.api.openapi import (
    CLUSTER_EXAMPLE,
    EPOCH_EXAMPLE,
    EVENT_EXAMPLE,
    STATUS_EXAMPLE,
    answers,
)
from app.api.read_query import EventsQuery, NoQuery, WatermarksQuery
from app.api.routing import LogName, Node, from_leader, from_replica, json_answer, wants_json
from app.errors import EpochNotFound
from app.node.broker import Broker
from app.node.driver import LogDriver
from app.node.hosted_log import HostedLog
from storage.journal import Event

router = APIRouter()
_JOURNAL_POLL_S = 0.05

Nothing = Annotated[NoQuery, Query()]


@router.get(
    "/v1/cluster",
    tags=["cluster"],
    summary="Nodes, logs and limits",
    responses=answers(example=CLUSTER_EXAMPLE, of_a_log=False),
    response_class=Response,
)
async def cluster(request: Request, broker: Node, query: Nothing) -> Response:
    wants_json(request)
    settings = broker.settings
    content = {
        "id": settings.cluster_id,
        "nodes": member_objects(broker),
        "logs": list(broker.logs),
        "limits": asdict(settings.limits),
    }
    return json_answer(content)


@router.get(
    "/v1/logs/{log}/status",
    tags=["logs"],
    summary="This node's view of a log",
    responses=answers(example=STATUS_EXAMPLE),
    response_class=Response,
)
async def status(request: Request, broker: Node, log: LogName, query: Nothing) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    driver = await from_replica(request, broker, hosted)
    if isinstance(driver, Response):
        return driver
    return json_answer(status_object(broker, hosted, driver), headers=log_headers(broker, hosted))


def status_object(broker: Broker, hosted: HostedLog, driver: LogDriver) -> dict[str, Any]:
    seen = driver.status()
    core = seen.core
    peers = []
    for peer in core.peers:
        node = broker.nodes.find(peer.id)
        peers.append(
            {
                "id": peer.id,
                "url": None if node is None else node.url,
                "state": peer.state,
                "watermark": peer.watermark,
                "pending": peer.pending,
                "lag_bytes": peer.lag_bytes,
            }
        )
    return {
        "log": hosted.name,
        "node": broker.node.id,
        "replication": hosted.settings.replication,
        "role": core.role,
        "term": core.term,
        "leader": core.leader_id,
        "begin_index": seen.begin_index,
        "end_index": seen.end_index,
        "committed_index": core.committed_index,
        "next_index": seen.next_index,
        "end_offset": seen.end_offset,
        "durability": seen.durability,
        "peers": peers,
        "learners": list(core.learners),
        "master": core.master,
        "epoch": core.epoch,
        "sync_state_set": None if core.sync_state_set is None else list(core.sync_state_set),
        "confirm_offset": core.confirm_offset,
    }


@router.get(
    "/v1/logs/{log}/epochs",
    tags=["logs"],
    summary="This node's epoch file",
    responses=answers(example={"epochs": [EPOCH_EXAMPLE]}),
    response_class=Response,
)
async def epochs(request: Request, broker: Node, log: LogName, query: Nothing) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    driver = await from_replica(request, broker, hosted)
    if isinstance(driver, Response):
        return driver
    held = driver.log.epochs
    content = {"epochs": [epoch_object(held, position) for position in range(len(held))]}
    return json_answer(content, headers=log_headers(broker, hosted))


@router.get(
    "/v1/logs/{log}/epochs/{epoch}",
    tags=["logs"],
    summary="One epoch of this node's epoch file",
    responses=answers("epoch-not-found", example=EPOCH_EXAMPLE),
    response_class=Response,
)
async def one_epoch(
    request: Request,
    broker: Node,
    log: LogName,
    epoch: Annotated[int, Path(ge=0, le=MAX_ORDINAL)],
    query: Nothing,
) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    driver = await from_replica(request, broker, hosted)
    if isinstance(driver, Response):
        return driver
    held = driver.log.epochs
    for position, known in enumerate(held):
        if known.epoch == epoch:
            return json_answer(epoch_object(held, position), headers=log_headers(broker, hosted))
    raise EpochNotFound(epoch)


@router.get(
    "/v1/logs/{log}/watermarks",
    tags=["logs"],
    summary="How far the leader knows each peer to be",
    description="By term and peer, the leader with its durable end. Other nodes ask the leader.",
    responses=answers("not-leader", example={"7": {"n1": 44, "n2": 44, "n3": 41}}),
    response_class=Response,
)
async def watermarks(
    request: Request, broker: Node, log: LogName, query: Annotated[WatermarksQuery, Query()]
) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    driver = await from_leader(request, broker, hosted)
    if isinstance(driver, Response):
        return driver
    held = driver.watermarks(query.term)
    content = {str(term): marks for term, marks in held.items()}
    return json_answer(content, headers=log_headers(broker, hosted))


@router.get(
    "/v1/logs/{log}/events",
    tags=["logs"],
    summary="This node's journal of a log",
    responses=answers(example={"events": [EVENT_EXAMPLE], "next_seq": 18, "has_more": False}),
    response_class=Response,
)
async def events(
    request: Request, broker: Node, log: LogName, query: Annotated[EventsQuery, Query()]
) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    journal = hosted.journal
    if journal is None:
        answer = await from_replica(request, broker, hosted)
        assert isinstance(answer, Response)  # a log that is not kept here
        return answer
    deadline_ms = broker.clock.monotonic_ms() + query.wait_ms
    while True:
        found, next_seq, has_more = journal.read(query.from_seq, query.limit)
        left_ms = deadline_ms - broker.clock.monotonic_ms()
        if found or left_ms <= 0 or broker.stopping:
            break
        await broker.pause(min(_JOURNAL_POLL_S, left_ms / 1000))
    content = {
        "events": [event_object(event) for event in found],
        "next_seq": next_seq,
        "has_more": has_more,
    }
    return json_answer(content, headers=log_headers(broker, hosted))


def event_object(event: Event) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "node": event.node,
        "log": event.log,
        "timestamp": event.timestamp_ms,
        "kind": event.kind,
        "term": event.term,
        "data": event.data,
    }
