"""Moments at which the readers at the end of one log get what it gained: the same for all, and rarer the more
readers there are.

An answer costs the node far more than another record in it. With 100 event streams and a batch of the log
every 2 ms, the sends alone would need several processors, and appends would wait behind them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

from app.api.read.reader import LogHead, Reader
from app.api.read.selection import Consistency
from app.api.read.shared_pages import SharedPages
from app.futures import settle
from app.node.replica.commit_waiters import Waiter
from app.node.replica.driver import LogDriver

EVENT_S: Final = 0.000_25  # put off the next moment for each further event: a third of the event loop, about
PAGE_S: Final = 0.000_3  # for each further page of a long poll
MOMENT_S: Final = 0.001  # readers that a commit wakes share the moment of the first one
INTERVAL_MAX_S: Final = 0.25
WOKEN_AT_ONCE: Final = (
    8  # readers that continue in one turn of the loop: appends are served between the turns
)


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
        self._waiting: dict[asyncio.Future[None], None] = {}  # readers, for the next moment
        self._woken: deque[asyncio.Future[None]] = deque()  # readers that get the last moment in later turns
        self._waiter: Waiter | None = None  # of all that wait for the next record; for the lowest index
        self._timer: asyncio.TimerHandle | None = None  # of the next moment

    async def grown(self, reader: Reader, index: int, timeout_s: float) -> bool:
        """As Reader.grown, but the readers that wait for the next record continue with the next moment."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            reader.check_served()
            missing = index - reader.visible_end
            left_s = deadline_s - loop.time()
            if missing <= 0:
                return True
            if missing > 1 or reader.is_limited or left_s <= 0 or reader.broker.waits.stopping:
                return await reader.grown(index, left_s)
            waiting = self._new_waiting()
            if self._waiter is not None and self._waiter.index > index:  # the committed index of a slave fell
                self._waiter.cancel()
                self._waiter = None
            if self._waiter is None:
                self._waiter = reader.driver.when_committed(index, self._has_grown)
            try:
                await reader.broker.waits.until(waiting, left_s)
            finally:
                self._waiting.pop(waiting, None)

    async def moment(self, index: int, known_end: int, cost_s: float, head: Callable[[], LogHead]) -> LogHead:
        """Return the head of the log at the last moment, or at the next one if that did not have `index`, or
        `known_end`, which the reader must see.

        cost_s: how long the reader puts off the next moment. head(): the present head of the log, which has
        both.
        """
        loop = asyncio.get_running_loop()
        while True:
            now_s = loop.time()
            is_here = bool(self._woken) or now_s < max(self._next_s, self._begun_s + MOMENT_S)
            if is_here and self._head is not None and max(index, known_end) <= self._head.visible_end:
                self.put_off(cost_s)
                return self._head
            if now_s >= self._next_s:
                break
            self._wake_at_next(loop)
            await self._new_waiting()
        self._head = head()
        self._begun_s = self._next_s = now_s  # a reader alone never waits
        return self._head

    def put_off(self, cost_s: float) -> None:
        """Delay the next moment by the cost of answers to the last one."""
        self._next_s = min(self._next_s + cost_s, self._begun_s + INTERVAL_MAX_S)

    def _new_waiting(self) -> asyncio.Future[None]:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[waiting] = None
        return waiting

    def _has_grown(self) -> None:
        """The next record is committed."""
        self._waiter = None
        self._wake_at_next(asyncio.get_running_loop())

    def _wake_at_next(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._timer = loop.call_at(self._next_s, self._wake)

    def _wake(self) -> None:
        self._timer = None
        is_waking = bool(self._woken)
        self._woken.extend(self._waiting)
        self._waiting.clear()
        if not is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(WOKEN_AT_ONCE, len(self._woken))):
            settle(self._woken.popleft(), None)
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake_some)


_PACES: Final[WeakKeyDictionary[LogDriver, dict[Consistency, TailPace]]] = WeakKeyDictionary()


def pace_of(reader: Reader) -> TailPace:
    """Return the pace of all readers of the same log with the same consistency."""
    paces = _PACES.setdefault(reader.driver, {})
    pace = paces.get(reader.consistency)
    if pace is None:
        pace = paces[reader.consistency] = TailPace()
    return pace
