"""Pages of reads that wait at the end of a log (long polls): rendered once for all that ask for the same."""

import asyncio
from functools import partial
from typing import Final

from app.api.read.page_rendering import rendered_page
from app.api.read.reader import LogHead, Range, Reader
from app.api.read.selection import Consistency, Encoding, RecordPage, Selection
from app.api.read.shared_pages import RenderedPage
from app.api.read.tail_pace import PAGE_S, pace_of

FAR_PAGES: Final = 10  # a reader that has so many before it reads them as fast as it can


def waits_at_the_end(reader: Reader, range_: Range, wanted: Selection, wait_ms: int) -> bool:
    """Return whether a read shares the moments of all readers at the end of the log: it would wait for
    records there, and is not far before it."""
    return (
        wait_ms > 0
        and reader.consistency is not Consistency.LOCAL  # uncommitted records change
        and range_.counted_to is None
        and wanted.key is None
        and wanted.term is None
        and range_.start_index + FAR_PAGES * wanted.limit > reader.visible_end
    )


async def tail_page(
    reader: Reader, range_: Range, wanted: Selection, wait_ms: int, encoding: Encoding, media_type: str
) -> RenderedPage:
    """Return the page of such a read: as Reader.page, with the head that all readers at the end report.

    The read sees what was committed at its beginning: `known_end`.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + wait_ms / 1000
    pace, index, known_end = pace_of(reader), range_.start_index, reader.visible_end

    async def render(page: RecordPage, head: LogHead) -> RenderedPage:
        has_more = page.next_index <= range_.last_index(head.visible_end)
        return await rendered_page(reader.hosted.name, head, page, has_more, encoding, media_type)

    async def read(within: Range, head: LogHead) -> RenderedPage:
        page = RecordPage(within.start_index)
        await reader.fill(page, within, wanted)
        return await render(page, head) if page.count else RenderedPage(page.next_index, False, None)

    while True:
        await reader.bound(range_)
        if range_.is_over(index) or not await pace.grown(reader, index, max(0.0, deadline_s - loop.time())):
            return await render(RecordPage(index), reader.head())
        head = await pace.moment(index, known_end, PAGE_S, reader.head)
        await reader.bound(range_)  # by a record that has arrived meanwhile
        end, until = head.visible_end + 1, range_.until_index
        within = Range(index, end if until is None else min(until, end))
        key = (index, within.until_index, until, head, wanted, encoding, media_type)
        found = await pace.pages.get(key, partial(read, within, head))
        if found.body is not None:
            return found
        index = found.next_index
