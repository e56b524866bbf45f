"""Views of the cluster and its logs: status, epochs, watermarks, journals."""

import asyncio
from dataclasses import asdict
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from app.api.access.rules import caller_of
from app.api.http.dependencies import LogName, Nothing, json_answer, rows_answer, while_connected
from app.api.http.leader_headers import log_headers
from app.api.http.log_call import Call, Served
from app.api.http.openapi import (
    CLUSTER_EXAMPLE,
    EPOCH_EXAMPLE,
    EVENT_EXAMPLE,
    STATUS_EXAMPLE,
    answers,
)
from app.api.read.epochs import epoch_object
from app.api.read.query import EventsQuery, QueryOrdinal, WatermarksQuery
from app.api.routes.members import member_objects
from app.controller.metadata import AUDIT_LOG
from app.errors import EpochNotFound, EventsTrimmed
from app.log.contract import PeerStatus
from app.node.broker import Broker
from storage.log.journal import Event, Journal

router = APIRouter()
_JOURNAL_POLL_S = 0.05
_EVENTS_AT_ONCE: Final = 500  # read on the event loop: some 20 ms


@router.get(
    "/v1/cluster",
    tags=["cluster"],
    summary="Get the nodes, logs and limits of the cluster",
    responses=answers(example=CLUSTER_EXAMPLE, of_a_log=False),
    response_class=Response,
)
async def cluster(call: Call, query: Nothing) -> Response:
    call.wants_json()
    await call.of_a_member()
    broker, caller = call.broker, caller_of(call.request)
    settings = broker.settings
    content = {
        "id": settings.cluster_id,
        "nodes": member_objects(broker),
        "logs": [name for name in filter(caller.sees, broker.logs) if name != AUDIT_LOG],
        "limits": asdict(settings.limits),
    }
    return json_answer(content)


@router.get(
    "/v1/logs/{log}/status",
    tags=["logs"],
    summary="Get this node's status of a log",
    responses=answers(example=STATUS_EXAMPLE),
    response_class=Response,
)
async def status(call: Call, log: LogName, query: Nothing) -> Response:
    here = await call.replica(log, own=True)
    return here.answer(status_object(here))


def status_object(here: Served) -> dict[str, Any]:
    broker, hosted, seen = here.broker, here.hosted, here.driver.status()
    core = seen.core
    peers = []
    for peer in core.peers:
        node, since_ms = broker.nodes.find(peer.id), unreachable_since_ms(broker, peer)
        peers.append(
            {
                "id": peer.id,
                "url": None if node is None else node.url,
                "state": peer.state,
                "watermark": peer.watermark,
                "pending": peer.pending,
                "lag_bytes": peer.lag_bytes if since_ms is None else None,
                **({} if since_ms is None else {"unreachable_since_ms": since_ms}),
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
        **_certificates(broker),
        **_conflicts(broker, hosted.name),
    }


def _conflicts(broker: Broker, log: str) -> dict[str, Any]:
    found = [str(each) for each in broker.rivals.reported if each.log == log]
    return {"conflicts": found} if found else {}


def _certificates(broker: Broker) -> dict[str, Any]:
    found = [{"name": each.setting, "end_ms": each.end_ms} for each in broker.certificates]
    return {"certificates": found} if found else {}


def unreachable_since_ms(broker: Broker, peer: PeerStatus) -> int | None:
    """Return when a peer answered last; None while it answers, at least once in an election timeout."""
    if peer.heard_ms is None:
        return None
    silent_ms = broker.clock.monotonic_ms() - peer.heard_ms
    longest_ms = broker.settings.raft.election_timeout_ms[1]
    return broker.clock.now_ms() - silent_ms if silent_ms > longest_ms else None


@router.get(
    "/v1/logs/{log}/epochs",
    tags=["logs"],
    summary="List the epochs of this node's epoch file",
    responses=answers(example={"epochs": [EPOCH_EXAMPLE]}),
    response_class=Response,
)
async def epochs(call: Call, log: LogName, query: Nothing) -> Response:
    here = await call.replica(log, own=True)
    held = here.driver.log.epochs
    return await here.answer_rows(
        len(held), lambda: {"epochs": [epoch_object(held, position) for position in range(len(held))]}
    )


@router.get(
    "/v1/logs/{log}/epochs/{epoch}",
    tags=["logs"],
    summary="Get an epoch of this node's epoch file",
    responses=answers("epoch-not-found", example=EPOCH_EXAMPLE),
    response_class=Response,
)
async def one_epoch(
    call: Call,
    log: LogName,
    epoch: Annotated[QueryOrdinal, Path()],
    query: Nothing,
) -> Response:
    here = await call.replica(log, own=True)
    held = here.driver.log.epochs
    for position, known in enumerate(held):
        if known.epoch == epoch:
            return here.answer(epoch_object(held, position))
    raise EpochNotFound(epoch)


@router.get(
    "/v1/logs/{log}/watermarks",
    tags=["logs"],
    summary="Get the watermark of each peer",
    description="Last index acknowledged by each peer, by term; for the leader the last durable index. Other "
    "nodes forward the call to the leader.",
    responses=answers("not-leader", example={"7": {"n1": 44, "n2": 44, "n3": 41}}),
    response_class=Response,
)
async def watermarks(call: Call, log: LogName, query: Annotated[WatermarksQuery, Query()]) -> Response:
    here = await call.leader(log)
    held = here.driver.watermarks(query.term)
    return here.answer({str(term): marks for term, marks in held.items()})


@router.get(
    "/v1/logs/{log}/events",
    tags=["logs"],
    summary="Read this node's journal of a log",
    description="Without `from_seq`, or with 0, the page begins at the oldest event. A larger `from_seq` "
    "before the oldest event is refused with 410 `events-trimmed`, which has `first_seq`.",
    responses=answers(
        "events-trimmed", example={"events": [EVENT_EXAMPLE], "next_seq": 18, "has_more": False}
    ),
    response_class=Response,
)
async def events(call: Call, log: LogName, query: Annotated[EventsQuery, Query()]) -> Response:
    answer = _events(call, log, query)
    return await (while_connected(call.request, answer) if query.wait_ms else answer)


async def _events(call: Call, log: str, query: EventsQuery) -> Response:
    broker, hosted = call.broker, call.find(log)
    journal = hosted.journal
    if journal is None:
        await call.elsewhere(hosted)
    if 0 < query.from_seq < journal.begin_seq:
        raise EventsTrimmed(journal.begin_seq)
    deadline_ms = broker.clock.monotonic_ms() + query.wait_ms
    while True:
        found, next_seq, has_more = await _read_events(journal, query.from_seq, query.limit)
        left_ms = deadline_ms - broker.clock.monotonic_ms()
        if found or left_ms <= 0 or broker.waits.stopping:
            break
        await broker.waits.pause(min(_JOURNAL_POLL_S, left_ms / 1000))

    def page() -> dict[str, Any]:
        events = [event_object(event) for event in found]
        return {"events": events, "next_seq": next_seq, "has_more": has_more}

    return await rows_answer(len(found), page, log_headers(broker, hosted))


async def _read_events(journal: Journal, from_seq: int, limit: int) -> tuple[list[Event], int, bool]:
    """Return what Journal.read returns, a part in each turn of the event loop."""
    found, next_seq, has_more = journal.read(from_seq, min(limit, _EVENTS_AT_ONCE))
    while has_more and len(found) < limit:
        await asyncio.sleep(0)
        if journal.begin_seq > next_seq:
            break  # trimmed meanwhile: the next page is refused
        part, next_seq, has_more = journal.read(next_seq, min(limit - len(found), _EVENTS_AT_ONCE))
        found += part
    return found, next_seq, has_more


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
