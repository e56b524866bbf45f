"""Moments at which the readers at the end of one log get what it gained: the same for all, and rarer the more
readers there are.

An answer costs the node far more than another record in it. With 100 event streams and a batch of the log
each 2 ms, the sends alone would need several processors, and appends would wait behind them.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from app.api.read.reader import LogHead, Reader
from app.api.read.selection import Consistency
from app.api.read.shared_pages import SharedPages
from app.node.replica.driver import LogDriver

EVENT_S: Final = 0.000_25  # put off the next moment for each further event: a third of the event loop, about
PAGE_S: Final = 0.002  # for each further page of a long poll
MOMENT_S: Final = 0.001  # readers that a commit wakes share the moment of the first one
INTERVAL_MAX_S: Final = 0.25


class TailPace:
    """Shared by the readers of one log with one consistency. Owned by the event loop.

    A moment fixes the head of the log that all of them report, and so the end of their pages: readers at one
    index get the same bytes, and are at one index afterwards.
    """

    def __init__(self) -> None:
        self.pages = SharedPages()
        self._head: LogHead | None = None
        self._begun_s = 0.0  # time of the last moment
        self._next_s = 0.0  # earliest time of the next one
        self._waiting: asyncio.Event | None = None  # set at the next moment; None while no reader waits

    async def moment(self, index: int, known_end: int, cost_s: float, head: Callable[[], LogHead]) -> LogHead:
        """Return the head of the log at the last moment, or at the next one if that did not have `index`, or
        `known_end`, which the reader must see.

        cost_s: how long the reader puts off the next moment. head(): the present head of the log, which has
        both.
        """
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            is_here = now_s < max(self._next_s, self._begun_s + MOMENT_S)
            if is_here and self._head is not None and max(index, known_end) <= self._head.visible_end:
                self._next_s = min(self._next_s + cost_s, self._begun_s + INTERVAL_MAX_S)
                return self._head
            if now_s >= self._next_s:
                break
            if self._waiting is None:
                self._waiting = asyncio.Event()
                loop.call_at(self._next_s, self._wake)
            await self._waiting.wait()
        self._head = head()
        self._begun_s = self._next_s = now_s  # a reader alone never waits
        return self._head

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.set()


_PACES: Final[WeakKeyDictionary[LogDriver, dict[Consistency, TailPace]]] = WeakKeyDictionary()


def pace_of(reader: Reader) -> TailPace:
    """Return the pace of all readers of the same log with the same consistency."""
    return _PACES.setdefault(reader.driver, {}).setdefault(reader.consistency, TailPace())
