"""Rendered batches that the event streams of one log share: all readers at its end need the same bytes."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from storage.units import MIB

ENTRIES: Final = 32  # kept for a log: one selection each, mostly
KEPT_MAX_BYTES: Final = 4 * MIB  # of them together
EVENT_MAX_BYTES: Final = 2 * MIB  # a larger one is not kept

StreamBatch = tuple[int, bytes | None]  # next index, event; None when no record is selected


class SharedBatches:
    """The batches of one log that were rendered last, by everything that determines their bytes.

    With 300 event streams, each commit rendered the same batch 300 times, and appends waited behind that.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, StreamBatch] = OrderedDict()
        self._kept_bytes = 0
        self._rendering: dict[Hashable, asyncio.Event] = {}

    async def get(self, key: Hashable, render: Callable[[], Awaitable[StreamBatch]]) -> StreamBatch:
        """Return the batch of `key`, rendered once for all streams that ask for it meanwhile.

        Raises what render raises.
        """
        while (kept := self._kept.get(key)) is None:
            if (rendering := self._rendering.get(key)) is None:
                return await self._render(key, render)
            await rendering.wait()
        return kept

    async def _render(self, key: Hashable, render: Callable[[], Awaitable[StreamBatch]]) -> StreamBatch:
        ended = self._rendering[key] = asyncio.Event()
        try:
            batch = await render()
            self._keep(key, batch)
            return batch
        finally:
            del self._rendering[key]
            ended.set()

    def _keep(self, key: Hashable, batch: StreamBatch) -> None:
        """Keep a batch, and drop those that were kept first when there are too many."""
        if _size(batch) > EVENT_MAX_BYTES:
            return
        self._kept[key] = batch
        self._kept_bytes += _size(batch)
        while len(self._kept) > ENTRIES or self._kept_bytes > KEPT_MAX_BYTES:
            self._kept_bytes -= _size(self._kept.popitem(last=False)[1])


def _size(batch: StreamBatch) -> int:
    return len(batch[1] or b"")
