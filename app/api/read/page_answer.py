"""The answer to a read of records: its page and headers (docs/api.md §5). Independent of any framework."""

from collections.abc import Callable
from typing import Final

from app.api.http.leader_headers import log_headers
from app.api.http.messages import PageResponse
from app.api.read.page_rendering import rendered_page
from app.api.read.query import ReadQuery
from app.api.read.reader import LogHead, Range, Reader
from app.api.read.shared_pages import RenderedPage
from app.api.read.tail_pages import tail_page, waits_at_the_end
from app.media_types import ARROW_STREAM, BATCHES, EVENTS, JSON, NDJSON, PARQUET

PAGES: Final = (JSON, NDJSON, ARROW_STREAM, PARQUET)
FORMATS: Final = (*PAGES, EVENTS, BATCHES)


async def page_answer(
    reader: Reader, range_: Range, query: ReadQuery, media_type: str, reserve: Callable[[int], None]
) -> PageResponse:
    """Return the records of the range as JSON, NDJSON, Arrow or Parquet.

    reserve(bytes): counts them as in flight. Raises what it raises, and what Reader.page raises.
    """
    found = await page_of(reader, range_, query, media_type, reserve)
    body = found.body or b""
    reserve(len(body))
    return PageResponse(200, headers_of(reader, media_type, found), body)


async def page_of(
    reader: Reader, range_: Range, query: ReadQuery, media_type: str, reserve: Callable[[int], None]
) -> RenderedPage:
    """As `page_answer`, without the headers. reserve: called before a page that is not shared is rendered."""
    wanted = query.selection()
    if waits_at_the_end(reader, range_, wanted, query.wait_ms):
        return await tail_page(reader, range_, wanted, query.wait_ms, query.encoding, media_type)
    page = await reader.page(range_, wanted, query.wait_ms)
    reserve(page.size_bytes)
    has_more = reader.has_more(page, range_)
    name = reader.hosted.name
    return await rendered_page(name, reader.head(), page, has_more, query.encoding, media_type)


def headers_of(reader: Reader, media_type: str, found: RenderedPage) -> list[tuple[bytes, bytes]]:
    """Return the headers of the answer with that page."""
    assert found.head is not None  # it is a page of records
    has_more = None if media_type == JSON else found.has_more
    size_bytes = len(found.body or b"")
    return answer_headers(reader, found.head, media_type, size_bytes, found.next_index, has_more)


def answer_headers(
    reader: Reader, head: LogHead, media_type: str, size_bytes: int, next_index: int, has_more: bool | None
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a page. head: the log at the moment of the page. size_bytes: of its body.
    has_more: None for an answer whose body contains it."""
    content = (b"content-type", media_type.encode("ascii")), (b"content-length", b"%d" % size_bytes)
    return [*content, *page_headers(reader, head, next_index, has_more)]


def page_headers(
    reader: Reader, head: LogHead, next_index: int, has_more: bool | None
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a page that do not depend on its content."""
    headers = [
        *log_headers(reader.broker, reader.hosted, (head.term, head.committed_index)),
        next_index_header(next_index),
        (b"commitlog-log-id", b"%016x" % reader.hosted.log_id),
        (b"vary", b"accept"),  # one URL has several formats (RFC 9110, section 12.5.5)
    ]
    if has_more is not None:
        headers.append((b"commitlog-has-more", b"true" if has_more else b"false"))
    return headers


def next_index_header(index: int) -> tuple[bytes, bytes]:
    return b"commitlog-next-index", b"%d" % index
