"""Who waits for a log to move: long polls and linearizable reads, woken in the order of their indexes."""

import heapq
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def answer(done: Callable[..., None], *result: Any) -> None:
    """Call back a client. Whatever it raises is its own affair and never reaches replication."""
    try:
        done(*result)
    except Exception:
        logger.exception("a callback of a client failed")


class Waiter:
    """One who waits until `index` is committed. `cancel` may come at any time, also late."""

    __slots__ = ("done", "index")

    def __init__(self, index: int, done: Callable[[], None]) -> None:
        self.index = index
        self.done: Callable[[], None] | None = done

    def cancel(self) -> None:
        self.done = None


class CommitWaiters:
    """Waiters by index. A cancelled one stays until its index comes, or until half of them are cancelled."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Waiter]] = []
        self._sequence = 0
        self._purge_at = 64

    def add(self, index: int, done: Callable[[], None]) -> Waiter:
        waiter = Waiter(index, done)
        self._sequence += 1
        heapq.heappush(self._heap, (index, self._sequence, waiter))
        if len(self._heap) >= self._purge_at:
            self._heap = [entry for entry in self._heap if entry[2].done is not None]
            heapq.heapify(self._heap)
            self._purge_at = max(64, 2 * len(self._heap))
        return waiter

    def wake(self, committed_index: int) -> None:
        """Call back everybody who waits for an index up to `committed_index`, once."""
        while self._heap and self._heap[0][0] <= committed_index:
            waiter = heapq.heappop(self._heap)[2]
            done, waiter.done = waiter.done, None
            if done is not None:
                answer(done)
