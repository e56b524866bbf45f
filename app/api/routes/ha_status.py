"""State of the transfer between master and slaves at a node (RocketMQ: getHAStatus)."""

from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from app.api.http.dependencies import LogName, Nothing
from app.api.http.log_call import Call, Served
from app.api.http.openapi import answers

router = APIRouter()

HA_STATUS_EXAMPLE: Final = {
    "log": "default",
    "node": "n1",
    "replication": "classic",
    "role": "master",
    "master": "n1",
    "end_offset": 10912,
    "confirm_offset": 10912,
    "in_sync": ["n1", "n2"],
    "acks_needed": 1,
    "waits_for": None,
    "slaves": [
        {
            "id": "n2",
            "url": "http://127.0.0.1:8102",
            "state": "TRANSFER",
            "watermark": 44,
            "acked_offset": 10912,
            "gap_bytes": 0,
            "transfer_bytes_per_s": 5120,
            "in_sync": True,
            "reason": None,
        }
    ],
    "link": None,
}


@router.get(
    "/v1/logs/{log}/ha-status",
    tags=["logs"],
    summary="Get the gap and the transfer rate of each slave",
    description="This node's view. The master lists its slaves: the gap in bytes, the rate over about a "
    "second, and the reason if the slave was refused. A slave reports its connection to the master as "
    "`link`. `acks_needed`: number of slaves that must confirm a synchronous append. `waits_for`: the "
    "reason why a classic master does not accept appends yet.",
    responses=answers(example=HA_STATUS_EXAMPLE),
    response_class=Response,
)
async def ha_status(call: Call, log: LogName, query: Nothing) -> Response:
    here = await call.replica(log)
    return here.answer(ha_status_object(here))


def ha_status_object(here: Served) -> dict[str, Any]:
    broker, hosted, seen = here.broker, here.hosted, here.driver.status()
    core, slaves = seen.core, []
    for peer in core.peers:
        node = broker.nodes.find(peer.id)
        slaves.append(
            {
                "id": peer.id,
                "url": None if node is None else node.url,
                "state": peer.state,
                "watermark": peer.watermark,
                "acked_offset": peer.acked_offset,
                "gap_bytes": peer.lag_bytes,
                "transfer_bytes_per_s": peer.bytes_per_s,
                "in_sync": peer.in_sync,
                "reason": peer.reason,
            }
        )
    link = core.link
    return {
        "log": hosted.name,
        "node": broker.node.id,
        "replication": hosted.settings.replication,
        "role": core.role,
        "master": core.master,
        "end_offset": seen.end_offset,
        "confirm_offset": core.confirm_offset,
        "in_sync": None if core.sync_state_set is None else list(core.sync_state_set),
        "acks_needed": core.acks_needed,
        "waits_for": core.waits_for,
        "slaves": slaves,
        "link": None
        if link is None
        else {
            "state": link.state,
            "reported_offset": link.reported_offset,
            "transfer_bytes_per_s": link.bytes_per_s,
            "reason": link.reason,
        },
    }
