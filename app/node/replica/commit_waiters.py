"""Callers that wait for a log to advance: long polls and linearizable reads, in the order of indexes."""

import heapq
import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


def answer(done: Callable[..., None], *result: Any) -> None:
    """Call back a client. An exception in the callback is logged and never reaches replication."""
    try:
        done(*result)
    except Exception:
        logger.exception("a callback of a client failed")


class Waiter:
    """A caller that waits until `index` is committed. `cancel` is allowed at any time, also late."""

    __slots__ = ("done", "index")

    def __init__(self, index: int, done: Callable[[], None]) -> None:
        self.index = index
        self.done: Callable[[], None] | None = done

    def cancel(self) -> None:
        self.done = None


class CommitWaiters:
    """Waiters by index. A cancelled one stays until its index is committed, or until half are cancelled."""

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
        """Call back every waiter for an index up to `committed_index`, once."""
        while self._heap and self._heap[0][0] <= committed_index:
            waiter = heapq.heappop(self._heap)[2]
            done, waiter.done = waiter.done, None
            if done is not None:
                answer(done)
