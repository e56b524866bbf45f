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
    pages = MomentPages(reader, range_, wanted, encoding, media_type)
    while True:
        await reader.bound(range_)
        if range_.is_over(index) or not await pace.grown(reader, index, max(0.0, deadline_s - loop.time())):
            return await pages.empty(index)
        head = await pace.moment(index, known_end, PAGE_S, reader.head)
        await reader.bound(range_)  # by a record that has arrived meanwhile
        found = await pages.at(index, head)
        if found.body is not None:
            return found
        index = found.next_index


class MomentPages:
    """Pages of one content within a range, each with the head of the log at a moment."""

    def __init__(
        self, reader: Reader, range_: Range, wanted: Selection, encoding: Encoding, media_type: str
    ) -> None:
        self._reader = reader
        self._range = range_
        self._wanted = wanted
        self._encoding = encoding
        self._media_type = media_type

    async def at(self, index: int, head: LogHead) -> RenderedPage:
        """Return the page from an index on, rendered once for all that ask for it. Without a body: none of
        its records is selected."""
        end, until = head.visible_end + 1, self._range.until_index
        within = Range(index, end if until is None else min(until, end))
        key = (index, within.until_index, until, head, self._wanted, self._encoding, self._media_type)
        return await pace_of(self._reader).pages.get(key, partial(self._read, within, head))

    async def _read(self, within: Range, head: LogHead) -> RenderedPage:
        page = RecordPage(within.start_index)
        await self._reader.fill(page, within, self._wanted)
        return await self._render(page, head) if page.count else RenderedPage(page.next_index, False, None)

    async def empty(self, index: int) -> RenderedPage:
        """Return the page of a read for which no record has arrived in time."""
        return await self._render(RecordPage(index), self._reader.head())

    async def _render(self, page: RecordPage, head: LogHead) -> RenderedPage:
        name, has_more = self._reader.hosted.name, page.next_index <= self._range.last_index(head.visible_end)
        return await rendered_page(name, head, page, has_more, self._encoding, self._media_type)
