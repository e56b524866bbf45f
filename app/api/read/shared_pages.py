"""Rendered pages that the readers of one log share: all readers at its end need the same bytes."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final, NamedTuple

from app.api.read.reader import LogHead
from storage.units import MIB

KEPT_MAX: Final = 32  # pages of a log: one selection each, mostly
KEPT_MAX_BYTES: Final = 4 * MIB  # of them together
PAGE_MAX_BYTES: Final = 2 * MIB  # a larger one is not kept


class RenderedPage(NamedTuple):
    """The bytes of a page, or of an event. body: None when no record is selected. head: the log as the page
    reports it; None for an event, which has no headers."""

    next_index: int
    has_more: bool
    body: bytes | memoryview | None
    head: LogHead | None = None


class SharedPages:
    """The pages of one log that were rendered last, by everything that determines their bytes.

    A page is rendered once for all readers that ask for it at the same time, so the work does not grow with
    their number. At most KEPT_MAX pages and KEPT_MAX_BYTES are kept. A page above PAGE_MAX_BYTES is not kept:
    each reader renders it again. Owned by the event loop.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, RenderedPage] = OrderedDict()
        self._kept_bytes = 0
        self._rendering: dict[Hashable, asyncio.Event] = {}

    async def get(self, key: Hashable, render: Callable[[], Awaitable[RenderedPage]]) -> RenderedPage:
        """Return the page of `key`, rendered once for all readers that ask for it meanwhile.

        Raises what render raises.
        """
        while (kept := self._kept.get(key)) is None:
            if (rendering := self._rendering.get(key)) is None:
                return await self._render(key, render)
            await rendering.wait()
        return kept

    async def _render(self, key: Hashable, render: Callable[[], Awaitable[RenderedPage]]) -> RenderedPage:
        ended = self._rendering[key] = asyncio.Event()
        try:
            page = await render()
            self._keep(key, page)
            return page
        finally:
            del self._rendering[key]
            ended.set()

    def _keep(self, key: Hashable, page: RenderedPage) -> None:
        """Keep a page, and drop those that were kept first when there are too many."""
        if _size(page) > PAGE_MAX_BYTES:
            return
        self._kept[key] = page
        self._kept_bytes += _size(page)
        while len(self._kept) > KEPT_MAX or self._kept_bytes > KEPT_MAX_BYTES:
            self._kept_bytes -= _size(self._kept.popitem(last=False)[1])


def _size(page: RenderedPage) -> int:
    return len(page.body or b"")
