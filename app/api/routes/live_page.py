"""`/ui`: a page on which a person sees the cluster live: who leads, how far everybody is, what happened."""

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response

from app.api.http.dependencies import Node, Nothing, body_answer, json_answer, request_id_of
from app.api.http.leader_proxy import Served
from app.api.http.query import Query as StrictQuery
from app.api.read.epochs import epoch_object
from app.api.routes.cluster import event_object, status_object
from app.api.routes.members import member_objects
from app.errors import NotFound
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.http_forwarder import Lost, NotSent

router = APIRouter(include_in_schema=False)

_FOLDER: Final = Path(__file__).with_name("live")
_TYPES: Final = {
    "live.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
}
_PEER_TIMEOUT_S: Final = 0.8
_EPOCHS: Final = 24
_EVENTS: Final = 60
_EVENTS_LOOKED_AT: Final = 600  # most of them are watermarks


class LogQuery(StrictQuery):
    log: str = Field("default", description="Name of the log")


@router.get("/ui")
async def page(query: Nothing) -> Response:
    return body_answer(_file("live.html"), "text/html; charset=utf-8")


@router.get("/ui/{name}")
async def asset(request: Request, broker: Node, name: str, query: Annotated[LogQuery, Query()]) -> Response:
    if name == "state.json":
        return json_answer(await _state(request, broker, broker.find(query.log)))
    if name not in _TYPES:
        raise NotFound(f"/ui/{name} does not exist")
    return body_answer(_file(name), _TYPES[name])


@lru_cache(maxsize=len(_TYPES) + 1)
def _file(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()


async def _state(request: Request, broker: Broker, hosted: HostedLog) -> dict[str, Any]:
    """All that the page shows, gathered from every node; a silent node shows as down."""
    nodes = [node for node in member_objects(broker) if node["id"] in hosted.members or not hosted.members]
    views = await asyncio.gather(*(_view(request, broker, hosted, node["id"]) for node in nodes))
    epochs: list[dict[str, Any]] = []
    if hosted.driver is not None:
        held = hosted.driver.log.epochs
        first = max(0, len(held) - _EPOCHS)
        epochs = [epoch_object(held, position) for position in range(first, len(held))]
    return {
        "cluster": broker.settings.cluster_id,
        "node": broker.node.id,
        "logs": list(broker.logs),
        "log": hosted.name,
        "now_ms": broker.clock.now_ms(),
        "nodes": [node | {"status": view} for node, view in zip(nodes, views, strict=True)],
        "epochs": epochs,
        "events": _events(hosted),
    }


async def _view(request: Request, broker: Broker, hosted: HostedLog, node_id: str) -> dict[str, Any] | None:
    """A node's status of the log; None when it does not answer, or its copy is being repaired."""
    if node_id == broker.node.id:
        return None if hosted.driver is None else status_object(Served(broker, hosted, hosted.driver))
    node = broker.nodes.find(node_id)
    if node is None:
        return None
    path = f"/v1/logs/{hosted.name}/status".encode()
    try:
        answer = await broker.forwarder.send(
            node, "GET", path, request.headers.raw, b"", request_id_of(request), _PEER_TIMEOUT_S
        )
    except (NotSent, Lost):
        return None
    return msgspec.json.decode(answer.body, type=dict[str, Any]) if answer.status == 200 else None


def _events(hosted: HostedLog) -> list[dict[str, Any]]:
    """The newest of this node's journal, but for the watermarks, newest first."""
    if hosted.journal is None:
        return []
    from_seq = max(0, hosted.journal.next_seq - _EVENTS_LOOKED_AT)
    found, _, _ = hosted.journal.read(from_seq, _EVENTS_LOOKED_AT)
    told = [event_object(event) for event in found if event.kind != "watermarks"]
    return told[: -_EVENTS - 1 : -1]
