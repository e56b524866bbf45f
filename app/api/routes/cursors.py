"""Cursors of readers: positions that the log itself keeps (docs/api.md §5)."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from app.api.http.dependencies import LogName, Nothing
from app.api.http.json_decoding import Name, Ordinal
from app.api.http.log_call import Call, Served
from app.api.http.openapi import ETAG, OF_A_BODY, OF_A_COMMIT, answers, json_request, unchanged
from app.api.http.preconditions import NEVER, is_held, wanted_version
from app.api.read.reader import Reader
from app.api.read.selection import Consistency
from app.errors import CursorMoved, CursorNotFound
from app.log.commands import ABSENT, PRESENT, DropCursor, MoveCursor
from app.log.state import LogCursor
from app.names import CURSOR_NAME

router = APIRouter(tags=["logs"])

CursorName = Annotated[
    str,
    Path(description="Name of the cursor", pattern=CURSOR_NAME.anchored, examples=["etl"]),
]
CURSOR_EXAMPLE = {"log": "default", "name": "etl", "index": 42, "fence": True, "holder": "etl-1"}
LISTED_CURSOR_EXAMPLE = {**CURSOR_EXAMPLE, "version": "17"}


class CursorIn(msgspec.Struct, forbid_unknown_fields=True):
    """index: next index to read. fence: records at and after it are not trimmed. holder: who moves it."""

    index: Ordinal
    fence: bool = False
    holder: Name | None = None


@router.get(
    "/v1/logs/{log}/cursors",
    summary="List the cursors of a log",
    description="In the order of their names, with those of the service (`__…`). `version`: the ETag of the "
    "cursor without its quotes.",
    responses=answers("read-index-unavailable", example={"cursors": [LISTED_CURSOR_EXAMPLE]}),
    response_class=Response,
)
async def cursors(call: Call, log: LogName, query: Nothing) -> Response:
    here = await call.leader(log)
    await Reader(here, Consistency.LINEARIZABLE).confirm()
    held = here.driver.state.committed_cursors()

    def listed() -> dict[str, Any]:
        return {
            "cursors": [
                {**_cursor_object(here, name, found), "version": str(found.revision)}
                for name, found in held.items()
            ]
        }

    return await here.answer_rows(len(held), listed)


@router.get(
    "/v1/logs/{log}/cursors/{name}",
    summary="Get a cursor",
    responses=answers(
        "cursor-not-found", "cursor-moved", "read-index-unavailable", example=CURSOR_EXAMPLE, headers=(ETAG,)
    )
    | {304: unchanged("The client holds this version: `If-None-Match` names its ETag")},
    response_class=Response,
)
async def cursor(call: Call, log: LogName, name: CursorName, query: Nothing) -> Response:
    here = await call.leader(log)
    await Reader(here, Consistency.LINEARIZABLE).confirm()
    found = here.driver.state.committed_cursor(name)
    if found is None:
        raise CursorNotFound(name)
    etag = _etag(found)
    if_match = call.request.headers.get("if-match")
    if if_match is not None and wanted_version(if_match, found.revision) not in (None, found.revision):
        raise CursorMoved(name, found.revision, wanted_none=False)
    if is_held(call.request.headers.get("if-none-match"), etag.decode()):
        return here.unchanged(etag)
    return _cursor_answer(here, name, found)


@router.put(
    "/v1/logs/{log}/cursors/{name}",
    summary="Create or move a cursor",
    description="With `If-Match` the cursor moves only if its version is equal; with `If-None-Match: *` it "
    "is created only if it does not exist. Retention and trims keep all records at and after a cursor with "
    "`fence`. `holder`: a name that the reader gives itself. A reader that lost an answer sees by it whether "
    "it made the last move.",
    responses=answers("cursor-moved", *OF_A_COMMIT, *OF_A_BODY, example=CURSOR_EXAMPLE, headers=(ETAG,)),
    openapi_extra=json_request(CursorIn, {"index": 42, "fence": True, "holder": "etl-1"}),
    response_class=Response,
)
async def move_cursor(call: Call, log: LogName, name: CursorName, query: Nothing) -> Response:
    hosted = call.find(log)
    asked = await call.asked(CursorIn)

    async def act(here: Served) -> Response:
        if_match = _revision(call.request, here.driver.state.cursors.get(name))
        result = await here.commit(MoveCursor(name, asked.index, asked.fence, if_match, asked.holder))
        moved = LogCursor(asked.index, asked.fence, result.index, asked.holder)
        return _cursor_answer(here, name, moved)

    return await call.at_leader(hosted, act)


@router.delete(
    "/v1/logs/{log}/cursors/{name}",
    summary="Delete a cursor",
    responses=answers(
        "cursor-not-found", "cursor-moved", *OF_A_COMMIT, example=CURSOR_EXAMPLE, headers=(ETAG,)
    ),
    response_class=Response,
)
async def drop_cursor(call: Call, log: LogName, name: CursorName, query: Nothing) -> Response:
    hosted = call.find(log)

    async def act(here: Served) -> Response:
        drop = DropCursor(name, _revision(call.request, here.driver.state.cursors.get(name)))
        await here.commit(drop)
        assert drop.dropped is not None  # it is committed
        return _cursor_answer(here, name, drop.dropped)

    return await call.at_leader(hosted, act)


def _revision(request: Request, found: LogCursor | None) -> int | None:
    """Return the expected revision; ABSENT for `If-None-Match: *`, PRESENT for `If-Match: *`, NEVER when
    `If-None-Match` names the present one, None for any.

    found: the cursor at present. The leader decides later, when it may have moved, but never to a revision
    that it had before.
    """
    if_none_match = request.headers.get("if-none-match")
    if if_none_match == "*":
        return ABSENT
    if found is not None and is_held(if_none_match, _etag(found).decode()):
        return NEVER
    if_match = request.headers.get("if-match")
    if if_match is not None and if_match.strip() == "*":
        return PRESENT
    current = None if found is None else found.revision
    return None if if_match is None else wanted_version(if_match, current)


def _cursor_answer(here: Served, name: str, found: LogCursor) -> Response:
    return here.answer(_cursor_object(here, name, found), headers=[(b"etag", _etag(found))])


def _etag(found: LogCursor) -> bytes:
    return b'"%d"' % found.revision


def _cursor_object(here: Served, name: str, found: LogCursor) -> dict[str, str | int | bool]:
    holder = {} if found.holder is None else {"holder": found.holder}
    return {"log": here.hosted.name, "name": name, "index": found.position, "fence": found.fence, **holder}
