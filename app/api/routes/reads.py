"""Reading records: pages in every format, single records, the tail."""

import asyncio
from functools import partial
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request
from starlette.responses import Response

from app.api.http.dependencies import (
    ExactResponse,
    LogName,
    hold,
    request_id_of,
    reserve,
    while_connected,
)
from app.api.http.json_decoding import MAX_ORDINAL
from app.api.http.log_call import Call
from app.api.http.messages import Response as Answer
from app.api.http.negotiation import accepted_type
from app.api.http.openapi import (
    BUFFERING,
    HAS_MORE,
    LOG_ID,
    READ_EXAMPLE,
    RECORD_EXAMPLE,
    TAIL_EXAMPLE,
    VARY,
    answers,
    schema_of,
)
from app.api.read.event_stream import event_stream
from app.api.read.events import EventStream
from app.api.read.outlet import OUTLET
from app.api.read.page_answer import FORMATS, answer_headers, next_index_header, page_answer, page_headers
from app.api.read.query import ConsistencyQuery, QueryOrdinal, ReadQuery, RecordQuery, StartPosition
from app.api.read.reader import DEFAULT_MIN_INDEX_WAIT_MS, Range, Reader, confirmed_reader
from app.api.read.rendering import record_objects
from app.api.read.selection import Consistency, RecordPage, Selection, select
from app.errors import InvalidRequest
from app.media_types import ARROW_STREAM, BATCHES, EVENTS, JSON, NDJSON, PARQUET
from app.node.hosted_log import HostedLog
from storage.units import MIB

router = APIRouter(tags=["records"])

_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
_READ_CONTENT: Final[dict[str, Any]] = {
    JSON: {"schema": schema_of(READ_EXAMPLE), "example": READ_EXAMPLE},
    NDJSON: {"schema": {"type": "string", "description": "One record per line"}},
    ARROW_STREAM: _BINARY,
    PARQUET: _BINARY,
    BATCHES: _BINARY,
    EVENTS: {"schema": {"type": "string", "description": "Events batch, epoch, ping and error"}},
}
MinIndex = Annotated[
    str | None,
    Header(
        alias="Commitlog-Min-Index",
        description="Wait until this index is visible at this node; 504 after wait_ms",
    ),
]
LastEventId = Annotated[
    str | None,
    Header(alias="Last-Event-ID", description="Event stream: resume after this index; overrides the query"),
]


@router.get(
    "/v1/logs/{log}/records",
    summary="Read records",
    responses=answers(
        "index-trimmed",
        "index-out-of-range",
        "cursor-not-found",
        "read-index-unavailable",
        "not-yet-replicated",
        content=_READ_CONTENT,
        description="Records in index order; empty at the end of the log",
        headers=(HAS_MORE, LOG_ID, VARY, BUFFERING),
    ),
    response_class=Response,
)
async def read(
    call: Call,
    log: LogName,
    query: Annotated[ReadQuery, Query()],
    min_index: MinIndex = None,
    last_event_id: LastEventId = None,
) -> Response:
    request, hosted = call.request, call.broker.lookup.find(log)
    query.check_one_start()
    media_type = accepted_type(request.scope["headers"], FORMATS)
    wanted_min = header_index("Commitlog-Min-Index", min_index)
    resume = header_index("Last-Event-ID", last_event_id, least=-1) if media_type == EVENTS else None
    if media_type == BATCHES and (filters := query.model_fields_set & {"key", "term"}):
        problem = "packed batches cannot be filtered; remove key and term"
        raise InvalidRequest(*((f"/query/{name}", problem) for name in sorted(filters)))
    answer = _read(call, hosted, query, media_type, wanted_min, resume)
    if media_type == EVENTS or not (query.wait_ms or wanted_min is not None):
        return await answer  # a stream ends itself
    return await while_connected(request, answer)


async def _read(
    call: Call,
    hosted: HostedLog,
    query: ReadQuery,
    media_type: str,
    wanted_min: int | None,
    resume: int | None,
) -> Response:
    request = call.request
    wait_ms = query.wait_ms if "wait_ms" in query.model_fields_set else DEFAULT_MIN_INDEX_WAIT_MS
    reader = await confirmed_reader(
        call, hosted, query.consistency, wanted_min, wait_ms, from_index=_first_index(query, resume)
    )
    by_cursor = query.cursor is not None and resume is None and query.consistency is not Consistency.LOCAL
    if by_cursor and not reader.knows_cursors:
        await call.elsewhere(hosted)
    range_ = await reader.range_of(query, resume)
    if media_type == EVENTS:
        stream = event_stream(
            EventStream(reader, range_, query, partial(hold, request)),
            request_id_of(request).decode("ascii"),
            request.url.path,
            head=bool(request.scope.get("commitlog.head")),
            write=request.scope.get(OUTLET),
        )
        stream.raw_headers.extend(page_headers(reader, reader.head(), range_.start_index, None))
        return stream
    if not await reader.started(range_, query.wait_ms / 1000):
        range_.until_index = range_.start_index  # all that has arrived is older
    if media_type == BATCHES:
        return await _batches(request, reader, range_, query)
    return ExactResponse(await page_answer(reader, range_, query, media_type, partial(reserve, request)))


def _first_index(query: ReadQuery, last_event_id: int | None) -> int | None:
    """Return the first index that the answer depends on; None for a read that begins at the end."""
    if last_event_id is not None:
        return last_event_id + 1
    if query.from_index is not None:
        return query.from_index
    return None if query.from_ is StartPosition.LATEST else 0


async def _batches(request: Request, reader: Reader, range_: Range, query: ReadQuery) -> Response:
    """Return whole stored batches, including control batches: the first holds the start, the last may
    extend beyond the requested end."""
    page = RecordPage(range_.start_index)
    body = b""
    if await reader.reached(range_, query.wait_ms):
        end = range_.page_end(reader.visible_end)
        last = range_.start_index + query.limit - 1
        batches = [
            batch
            for batch in await reader.raw(range_.start_index, min(end, last), query.max_bytes)
            if batch.last_index <= reader.visible_end
        ]
        size = sum(batch.size_bytes for batch in batches)
        reserve(request, size)
        parts = [batch.data for batch in batches]
        body = b"".join(parts) if size <= MIB else await asyncio.to_thread(b"".join, parts)
        page.next_index = batches[-1].next_index if batches else range_.start_index
    has_more = reader.has_more(page, range_)
    headers = answer_headers(reader, reader.head(), BATCHES, len(body), page.next_index, has_more)
    return ExactResponse(Answer(200, headers, body))


def header_index(name: str, raw: str | None, *, least: int = 0) -> int | None:
    """Return a header that is an index. Raises InvalidRequest."""
    if raw is None:
        return None
    digits = raw.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 19 and least <= int(raw) <= MAX_ORDINAL:
        return int(raw)
    raise InvalidRequest(
        (f"/headers/{name}", f"must be a whole number from {least} to {MAX_ORDINAL}, got {raw[:40]!r}")
    )


@router.get(
    "/v1/logs/{log}/records/{index}",
    summary="Read one record",
    responses=answers(
        "index-trimmed",
        "index-out-of-range",
        "read-index-unavailable",
        "not-yet-replicated",
        example=RECORD_EXAMPLE,
    ),
    response_class=Response,
)
async def read_one(
    call: Call,
    log: LogName,
    index: Annotated[QueryOrdinal, Path()],
    query: Annotated[RecordQuery, Query()],
    min_index: MinIndex = None,
) -> Response:
    """Control records too."""
    hosted = call.find(log)
    wanted_min = header_index("Commitlog-Min-Index", min_index)
    reader = await confirmed_reader(call, hosted, query.consistency, wanted_min, from_index=index)
    reader.check_index(index)
    page = RecordPage(index)
    select(await reader.raw(index, index, 1), page, index, Selection(limit=1, include_control=True))
    (record,) = record_objects(page.columns, query.encoding)
    return reader.here.answer(record, headers=[next_index_header(index + 1)])


@router.get(
    "/v1/logs/{log}/tail",
    summary="Get the beginning and the end of a log",
    responses=answers("read-index-unavailable", "not-yet-replicated", example=TAIL_EXAMPLE),
    response_class=Response,
)
async def tail(
    call: Call,
    log: LogName,
    query: Annotated[ConsistencyQuery, Query()],
    min_index: MinIndex = None,
) -> Response:
    hosted = call.find(log)
    wanted_min = header_index("Commitlog-Min-Index", min_index)
    reader = await confirmed_reader(call, hosted, query.consistency, wanted_min, from_index=0)
    driver = reader.driver
    content = {
        "begin_index": driver.log.begin_index,
        "end_index": driver.log.end_index,
        "committed_index": reader.committed_index,
        "next_index": driver.log.next_index,
        "term": driver.term,
        "leader": driver.leader_id,
    }
    schema_version = driver.state.schema_version(reader.visible_end)
    if schema_version:  # a log without a schema has the answer of earlier versions
        content["schema_version"] = schema_version
    return reader.here.answer(content, headers=[next_index_header(driver.log.next_index)])
