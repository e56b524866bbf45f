"""Digests of blocks of a log, for the comparison with its table `entries` (app/tables/digests.py)."""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from app.api.http.dependencies import LogName, rows_answer
from app.api.http.leader_headers import log_headers
from app.api.http.log_call import Call
from app.api.http.openapi import answers
from app.api.http.query import Query as Parameters
from app.api.http.query import WholeNumber
from app.api.read.query import QueryOrdinal
from app.api.read.reader import Reader, confirmed_reader
from app.api.read.selection import Consistency
from app.tables.digests import BLOCK, BlockSum, block_sums
from storage.format.batch import Batch
from storage.format.records import read_columns
from storage.units import KIB, MIB

router = APIRouter(tags=["tables"])

_PAGE_BYTES: Final = 8 * MIB  # of log; a page of many small records ends earlier
_PAGE_RECORDS: Final = 50_000
_STEP_BYTES: Final = 256 * KIB  # between two steps the loop is free for others
EXAMPLE: Final[dict[str, Any]] = {
    "log": "default",
    "block": BLOCK,
    "from_index": 0,
    "next_index": 45,
    "has_more": False,
    "blocks": [{"first_index": 0, "count": 43, "digest": "9d1cf1a8f0c1b2d3"}],
}


class DigestsQuery(Parameters):
    from_index: QueryOrdinal | None = Field(None, description="First index. Default: the beginning")
    until_index: QueryOrdinal | None = Field(None, description="End index, exclusive. Default: all committed")
    block: WholeNumber = Field(BLOCK, ge=1, le=1_000_000, description="Number of indexes in a block")


@router.get(
    "/v1/logs/{log}/digests",
    summary="Get digests of the data records by blocks of indexes",
    description="A page may end in the middle of a block. Continue at `next_index`, and add the two sums of "
    "that block, modulo 2^64.",
    responses=answers("index-trimmed", "read-index-unavailable", example=EXAMPLE),
    response_class=Response,
)
async def digests(call: Call, log: LogName, query: Annotated[DigestsQuery, Query()]) -> Response:
    reader = await confirmed_reader(
        call, call.find(log), Consistency.LINEARIZABLE, None, from_index=query.from_index or 0
    )
    first = reader.log.first_index if query.from_index is None else query.from_index
    end = reader.visible_end if query.until_index is None else min(query.until_index - 1, reader.visible_end)
    sums, at = await _sums(reader, first, end, query.block)

    def page() -> dict[str, Any]:
        return {
            "log": log,
            "block": query.block,
            "from_index": first,
            "next_index": at,
            "has_more": at <= end,
            "blocks": [
                {"first_index": start, "count": part.count, "digest": f"{part.digest:016x}"}
                for start, part in sums.items()
            ],
        }

    return await rows_answer(len(sums), page, log_headers(reader.broker, reader.hosted))


async def _sums(reader: Reader, first: int, end: int, block: int) -> tuple[dict[int, BlockSum], int]:
    """Return the sums of a page, and where the next begins. Raises IndexTrimmed."""
    sums: dict[int, BlockSum] = {}
    at, size_bytes = first, 0
    while at <= end and size_bytes < _PAGE_BYTES and at - first < _PAGE_RECORDS:
        batches = await reader.raw(at, end, _STEP_BYTES)
        await asyncio.to_thread(_add_batches, sums, batches, at, end, block)
        size_bytes += sum(batch.size_bytes for batch in batches)
        at = min(batches[-1].last_index, end) + 1
    return sums, at


def _add_batches(sums: dict[int, BlockSum], batches: list[Batch], first: int, end: int, block: int) -> None:
    """Add the data records with an index in [first, end] to the sums of their blocks."""
    for batch in batches:
        if batch.is_control:
            continue
        start = max(0, first - batch.base_index)
        rows = read_columns(batch).slice(start, min(batch.last_index, end) - batch.base_index + 1 - start)
        for at, part in block_sums(rows, block).items():
            sums[at] = sums.get(at, BlockSum()) + part
