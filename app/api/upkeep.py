"""Keeping a log in order: trimming it, and comparing its replicas."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.api.appends import log_headers
from app.api.json_bodies import Ordinal
from app.api.leader_calls import at_leader, body_of, committed_command, shaped
from app.api.openapi import answers
from app.api.read_query import NoQuery
from app.api.routing import LogName, Node, json_answer, wants_json
from app.log_commands import Trim
from app.node.driver import LogDriver

router = APIRouter(tags=["logs"])

Nothing = Annotated[NoQuery, Query()]
TRIM_EXAMPLE = {"log": "default", "begin_index": 40, "until_index": 42}


class TrimIn(msgspec.Struct, forbid_unknown_fields=True):
    """until_index: the first one to keep. force: although a reader's fence stands before it."""

    until_index: Ordinal
    force: bool = False


@router.post(
    "/v1/logs/{log}:trim",
    summary="Remove the oldest records",
    description="Every replica removes what is below `until_index`, but for the batch that holds it and the "
    "newest committed batch: `begin_index` says where the log begins now. A fence of a reader forbids it, "
    "unless `force` is set.",
    responses=answers("not-materialized", "storage-full", "quorum-timeout", example=TRIM_EXAMPLE),
    response_class=Response,
)
async def trim(request: Request, broker: Node, log: LogName, query: Nothing) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    body = await body_of(request)
    asked = shaped(TrimIn, body)

    async def act(driver: LogDriver) -> Response:
        await committed_command(driver, Trim(asked.until_index, asked.force))
        content = {"log": log, "begin_index": driver.log.begin_index, "until_index": asked.until_index}
        return json_answer(content, headers=log_headers(broker, hosted))

    return await at_leader(request, broker, hosted, act, body)
