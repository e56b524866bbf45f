"""Elections by an operator (C-05): `POST /v1/logs/{log}:elect`."""

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from app.api.http.controller_calls import decided
from app.api.http.dependencies import LogName, Nothing, json_answer
from app.api.http.json_decoding import Name
from app.api.http.leader_headers import log_headers
from app.api.http.log_call import Call
from app.api.http.openapi import OF_A_BODY, OF_A_COMMIT, answers, json_request
from app.controller.commands import ElectMaster
from app.errors import InvalidRequest, LogNotFound
from app.settings.model import Replication

router = APIRouter(tags=["logs"])

ELECT_EXAMPLE = {
    "log": "default",
    "master": "n2",
    "epoch": 8,
    "sync_state_set": ["n2"],
    "set_epoch": 12,
    "elected": True,
    "unclean": False,
}


class ElectIn(msgspec.Struct, forbid_unknown_fields=True):
    """candidate: node to elect; null: any, and a live master stays. unclean: allow a replica that is not in
    sync. Records that only other replicas hold are lost, and each of these writes a receipt of them."""

    candidate: Name | None = None
    unclean: bool = False


@router.post(
    "/v1/logs/{log}:elect",
    summary="Elect a master",
    description="The controllers elect the master of a log in controller mode from its SyncStateSet.",
    responses=answers(
        "no-eligible-replica",
        *OF_A_COMMIT,
        "read-index-unavailable",
        *OF_A_BODY,
        example=ELECT_EXAMPLE,
    ),
    openapi_extra=json_request(ElectIn, {"candidate": "n2", "unclean": False}),
    response_class=Response,
)
async def elect(call: Call, log: LogName, query: Nothing) -> Response:
    broker, hosted = call.broker, call.find(log)
    asked = await call.asked(ElectIn)
    if hosted.settings.replication is not Replication.CONTROLLER:
        is_raft = hosted.settings.replication is Replication.RAFT
        hint = ". Use /v1/cluster/leader:transfer to move its leader" if is_raft else ""
        detail = f"log {log!r} is not in controller mode: it has no elections{hint}"
        raise InvalidRequest(("/path/log", detail))
    await broker.waits.read_index(broker.metadata.hosted)  # read the newest epoch: this election ends it
    before = broker.metadata.log(log)
    if before is None:
        raise LogNotFound(log)
    command = ElectMaster(log, asked.candidate, asked.unclean, before.master_epoch, before.generation)
    await decided(call.request, broker, command)
    after = broker.metadata.log(log) or before
    content = {
        "log": log,
        "master": after.master_node,
        "epoch": after.master_epoch,
        "sync_state_set": list(after.set_nodes),
        "set_epoch": after.set_epoch,
        "elected": after.master_epoch > before.master_epoch,
        "unclean": after.master_epoch > before.master_epoch and after.unclean_epoch == after.master_epoch,
    }
    return json_answer(content, headers=log_headers(broker, hosted))
