"""A page of records as the read answer of docs/api.md §2, rendered on the loop or in a thread."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from app.api.http.messages import as_json
from app.api.read.reader import LogHead
from app.api.read.rendering import as_array, as_arrow, as_lines, as_parquet
from app.api.read.selection import Encoding, RecordPage
from app.api.read.shared_pages import RenderedPage
from app.media_types import ARROW_STREAM, JSON, NDJSON
from storage.units import KIB

Rendered = TypeVar("Rendered")
_IN_PLACE_RECORDS: Final = 200
_IN_PLACE_BYTES: Final = 128 * KIB


def page_object(
    log: str, head: LogHead, page: RecordPage, has_more: bool, encoding: Encoding
) -> dict[str, Any]:
    return {
        "log": log,
        "records": as_array(page.columns, encoding),
        "next_index": page.next_index,
        "begin_index": head.begin_index,
        "end_index": head.end_index,
        "committed_index": head.committed_index,
        "term": head.term,
        "has_more": has_more,
    }


async def rendered_page(
    log: str, head: LogHead, page: RecordPage, has_more: bool, encoding: Encoding, media_type: str
) -> RenderedPage:
    """Render a page as JSON, NDJSON, Arrow or Parquet."""

    def render() -> bytes | memoryview:
        if media_type == JSON:
            return as_json(page_object(log, head, page, has_more, encoding))
        if media_type == NDJSON:
            return as_lines(page.columns, encoding)
        return as_arrow(page.columns) if media_type == ARROW_STREAM else as_parquet(page.columns)

    return RenderedPage(page.next_index, has_more, await rendered(page, render), head)


async def rendered(page: RecordPage, render: Callable[[], Rendered]) -> Rendered:
    """Render a small page here, a large one in a thread: the loop also runs replication."""
    if page.size_bytes <= _IN_PLACE_BYTES and page.count <= _IN_PLACE_RECORDS:
        return render()
    return await asyncio.to_thread(render)
