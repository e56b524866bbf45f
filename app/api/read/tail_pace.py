"""Moments at which the event streams of one log send: the same for all, and rarer the more streams there
are.

A send costs the node far more than another record in it. With 100 streams and a batch of the log each
2 ms, the sends alone would need several processors, and appends would wait behind them.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from app.api.read.reader import LogHead
from app.api.read.shared_batches import SharedBatches

STREAM_S: Final = 0.000_25  # for each further stream: sends take at most about a third of the event loop
INTERVAL_MAX_S: Final = 0.1


class StreamPace:
    """Shared by the event streams of one log with one consistency. Owned by the event loop.

    A moment fixes the head of the log that all streams report, and so the end of their batches: streams at
    one index send the same bytes, also those that are late.
    """

    def __init__(self) -> None:
        self.batches = SharedBatches()
        self.streams = 0  # open
        self._head: LogHead | None = None
        self._next_s = 0.0  # the earliest next moment
        self._begun: asyncio.Event | None = None  # set at the next moment; None while no stream waits for it

    async def moment(self, index: int, head: Callable[[], LogHead]) -> LogHead:
        """Return the head of the log at the last moment, or at the next one if that had no record at
        `index`.

        head(): the present head of the log, in which the record is visible.
        """
        loop = asyncio.get_running_loop()
        while (now_s := loop.time()) < self._next_s:
            if self._head is not None and index <= self._head.visible_end:
                return self._head
            if self._begun is None:
                self._begun = asyncio.Event()
                loop.call_at(self._next_s, self._begin)
            await self._begun.wait()
        self._head = head()
        self._next_s = now_s + min(STREAM_S * (self.streams - 1), INTERVAL_MAX_S)
        return self._head

    def _begin(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.set()
