"""Fences of writers and cursors of readers: small facts that stand in the log itself (API.md §3, §5)."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from app.api.appends import log_headers
from app.api.json_bodies import Name, Ordinal
from app.api.leader_calls import at_leader, body_of, committed_command, shaped
from app.api.openapi import OF_A_BODY, answers, json_request
from app.api.preconditions import wanted_version
from app.api.read_query import NoQuery
from app.api.routing import LogName, Node, from_leader, json_answer, wants_json
from app.errors import CursorNotFound
from app.log_commands import ABSENT, UNSET, DropCursor, MoveCursor, SetFence
from app.log_state import Cursor
from app.node.broker import Broker
from app.node.driver import LogDriver
from app.node.hosted_log import HostedLog

router = APIRouter(tags=["logs"])

Nothing = Annotated[NoQuery, Query()]
CursorName = Annotated[
    str,
    Path(description="A reader", pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$", examples=["etl"]),
]
FENCE_EXAMPLE = {"log": "default", "token": "w-a", "index": 45, "term": 7}
CURSOR_EXAMPLE = {"log": "default", "name": "etl", "index": 42, "fence": True}


class FenceIn(msgspec.Struct, forbid_unknown_fields=True):
    """token: what every append must carry, null lifts the fence. match_token: what must be set now."""

    token: Name | None
    match_token: Name | msgspec.UnsetType | None = msgspec.UNSET


class CursorIn(msgspec.Struct, forbid_unknown_fields=True):
    """index: the next one to read. fence: nothing from there on is trimmed."""

    index: Ordinal
    fence: bool = False


@router.post(
    "/v1/logs/{log}:fence",
    summary="Let only writers with this token append",
    description="With `match_token` (null: none set) only if that is the token now; `token` null lifts it.",
    responses=answers("fenced", "storage-full", "quorum-timeout", *OF_A_BODY, example=FENCE_EXAMPLE),
    openapi_extra=json_request(FenceIn, {"token": "w-a", "match_token": None}),
    response_class=Response,
)
async def fence(request: Request, broker: Node, log: LogName, query: Nothing) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    body = await body_of(request)
    asked = shaped(FenceIn, body)
    match = UNSET if isinstance(asked.match_token, msgspec.UnsetType) else asked.match_token

    async def act(driver: LogDriver) -> Response:
        result = await committed_command(driver, SetFence(asked.token, match))
        content = {"log": log, "token": asked.token, "index": result.index, "term": result.term}
        return json_answer(content, headers=log_headers(broker, hosted))

    return await at_leader(request, broker, hosted, act, body)


@router.get(
    "/v1/logs/{log}/cursors/{name}",
    summary="Where a reader goes on",
    responses=answers("cursor-not-found", "read-index-unavailable", example=CURSOR_EXAMPLE),
    response_class=Response,
)
async def cursor(request: Request, broker: Node, log: LogName, name: CursorName, query: Nothing) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    driver = await from_leader(request, broker, hosted)
    if isinstance(driver, Response):
        return driver
    await broker.read_index(hosted)
    found = driver.state.cursors.get(name)
    if found is None:
        raise CursorNotFound(name)
    return _cursor_answer(broker, hosted, name, found)


@router.put(
    "/v1/logs/{log}/cursors/{name}",
    summary="Move a reader's cursor, or make one",
    description="With `If-Match` only from that version on, with `If-None-Match: *` only if there is none. "
    "A cursor with `fence` keeps retention and trims away from what its reader has not read.",
    responses=answers("cursor-moved", "storage-full", "quorum-timeout", *OF_A_BODY, example=CURSOR_EXAMPLE),
    openapi_extra=json_request(CursorIn, {"index": 42, "fence": True}),
    response_class=Response,
)
async def move_cursor(
    request: Request, broker: Node, log: LogName, name: CursorName, query: Nothing
) -> Response:
    hosted = broker.find(log)
    wants_json(request)
    body = await body_of(request)
    asked = shaped(CursorIn, body)

    async def act(driver: LogDriver) -> Response:
        if_match = _revision(request, driver.state.cursors.get(name))
        result = await committed_command(driver, MoveCursor(name, asked.index, asked.fence, if_match))
        return _cursor_answer(broker, hosted, name, Cursor(asked.index, asked.fence, result.index))

    return await at_leader(request, broker, hosted, act, body)


@router.delete(
    "/v1/logs/{log}/cursors/{name}",
    summary="Forget a reader's cursor",
    responses=answers("cursor-not-found", "cursor-moved", "quorum-timeout", example=CURSOR_EXAMPLE),
    response_class=Response,
)
async def drop_cursor(
    request: Request, broker: Node, log: LogName, name: CursorName, query: Nothing
) -> Response:
    hosted = broker.find(log)
    wants_json(request)

    async def act(driver: LogDriver) -> Response:
        before = driver.state.cursors.get(name)
        await committed_command(driver, DropCursor(name, _revision(request, before)))
        if before is None:
            raise CursorNotFound(name)
        return _cursor_answer(broker, hosted, name, before)

    return await at_leader(request, broker, hosted, act)


def _revision(request: Request, found: Cursor | None) -> int | None:
    """The revision that the caller wants to be there; ABSENT for `If-None-Match: *`, None for any."""
    if request.headers.get("if-none-match") == "*":
        return ABSENT
    if_match = request.headers.get("if-match")
    current = None if found is None else found.revision
    return None if if_match is None else wanted_version(if_match, current)


def _cursor_answer(broker: Broker, hosted: HostedLog, name: str, found: Cursor) -> Response:
    content: dict[str, Any] = {
        "log": hosted.name,
        "name": name,
        "index": found.position,
        "fence": found.fence,
    }
    etag = (b"etag", b'"%d"' % found.revision)
    return json_answer(content, headers=(*log_headers(broker, hosted), etag))
