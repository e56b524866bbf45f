"""The disk threads of a node: a lane for each log, one bounded pool for all lanes.

A lane runs its work in the order in which it was submitted, one piece at a time, and answers on the event
loop in that order. Lanes run in parallel, so a log does not wait for the fsyncs of other logs. Syncs are
grouped within a lane: while one round runs, every request joins the next round (group commit).
"""

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from app.futures import settle
from app.log.driver_interfaces import SyncSource
from app.node.job_threads import JobThreads, Then
from storage.errors import InvariantError

THREADS: Final = 16
DRAIN_PASSES: Final = 3
LANE_MAX: Final = 256  # pieces of work, and requests to sync one source, that wait in one lane


class DiskThreads:
    """The pool; satisfies `Lanes` (app/log). Owned by the event loop.

    Invariant: a node has at most `threads` calls to the disk in progress. The queue is bounded by its
    lanes: each submits one piece of work, or one sync for each of its sources, and waits for the answer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fail: Callable[[str, BaseException], None],
        threads: int = THREADS,
    ) -> None:
        """fail(what, error): called once on the loop when the node must stop (R-11). threads: at least 1."""
        self.loop = loop
        self.failed = False
        self._fail = fail
        self._threads = JobThreads(loop, "disk", threads, self._deliver, logging.WARNING)
        self._lanes: weakref.WeakValueDictionary[str, DiskLane] = weakref.WeakValueDictionary()

    def start(self) -> None:
        self._threads.start()

    def lane(self, name: str) -> "DiskLane":
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = DiskLane(self)
        return lane

    @property
    def waiting(self) -> int:
        """Number of pieces of work that no thread has started yet, over all lanes."""
        return self._threads.waiting + sum(lane.waiting for lane in self._lanes.values())

    async def drain(self) -> None:
        """Wait until every lane has answered everything submitted so far."""
        await asyncio.gather(*(lane.drain() for lane in list(self._lanes.values())))

    def stop(self, timeout_s: float) -> bool:
        """End the threads after all submitted work; return whether they ended in time.

        The caller must not wait for an answer of that work, because it blocks the loop here.
        """
        self._threads.stop()
        return self._threads.join(timeout_s)

    # --- what lanes ask

    def run(self, work: Callable[[], Any], then: Then) -> None:
        """Run `work` in any thread, then `then(result, error)` on the loop."""
        self._threads.run(work, then)

    def stop_node(self, what: str, error: BaseException) -> None:
        if not self.failed:
            self.failed = True
            self._fail(what, error)

    def _deliver(self, then: Then, result: Any, problem: BaseException | None) -> None:
        if self.failed:
            return
        try:
            then(result, problem)
        except Exception as error:
            self.stop_node("answer of the disk", error)


class DiskLane:
    """The Disk of app/log/driver_interfaces.py for one log and its journal. Owned by the event loop.

    Invariant: at most LANE_MAX pieces of work and LANE_MAX requests for each source wait, however long the
    disk hangs. Each caller waits for the answer to its work before it submits more, so a lane holds a few;
    a caller that does not is an InvariantError.
    """

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._queue: deque[Callable[[], None]] = deque()  # pieces of work, and at most one round of syncs
        self._dirty: dict[SyncSource, list[Callable[[], None]]] = {}
        self._round_is_due = False
        self._running = 0  # parts of the piece at the front without an answer

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def submit(self, work: Callable[[], Any], then: Then) -> None:
        """Run `work` after everything submitted to this lane before, then `then(result, error)` on the
        loop. Raises InvariantError beyond LANE_MAX."""
        self._check_size(len(self._queue))
        self._put(partial(self._start, work, then))

    def request_sync(self, source: SyncSource, then: Callable[[], None]) -> None:
        """Make durable what `source` has written when the lane's next round starts; then() after it.

        A source belongs to one lane: two syncs of it must never run at once. A failed sync stops the node:
        written data may be lost, and a retry would hide it (R-11). Raises InvariantError beyond LANE_MAX.
        """
        waiting = self._dirty.setdefault(source, [])
        self._check_size(len(waiting))
        waiting.append(then)
        if not self._round_is_due:
            # The round starts after everything that this turn of the loop will write.
            self._round_is_due = True
            self._threads.loop.call_soon(self._put, self._start_round)

    async def drain(self) -> None:
        """Wait until everything submitted so far, and every requested sync, has been answered.

        An answer may ask for one more sync, of what was written meanwhile: each pass waits for one round of
        them. A lane that never becomes idle does not keep its caller, nor the callers of other lanes.
        """
        for _ in range(DRAIN_PASSES):
            done: asyncio.Future[None] = self._threads.loop.create_future()
            self._put(partial(self._start, _nothing, partial(settle, done)))
            await done
            if self._threads.failed or not (self._round_is_due or self._running):
                return

    @staticmethod
    def _check_size(waiting: int) -> None:
        if waiting >= LANE_MAX:
            raise InvariantError(f"{waiting} pieces of work wait in one lane of the disk")

    def _put(self, piece: Callable[[], None]) -> None:
        self._queue.append(piece)
        self._run_next()

    def _run_next(self) -> None:
        while self._queue and not self._running and not self._threads.failed:
            self._queue.popleft()()

    def _start(self, work: Callable[[], Any], then: Then) -> None:
        self._running += 1
        self._threads.run(work, partial(self._worked, then))

    def _worked(self, then: Then, result: Any, error: BaseException | None) -> None:
        then(result, error)
        self._end_part()

    def _start_round(self) -> None:
        """Sync each source in a separate thread: a log does not wait for its journal."""
        dirty, self._dirty, self._round_is_due = self._dirty, {}, False
        self._running += 1
        for source, thens in dirty.items():
            try:
                ticket = source.start_sync()
            except Exception as error:
                self._threads.stop_node("beginning of a sync", error)
                return
            if ticket is None:
                self._answer(thens)
            else:
                self._running += 1
                self._threads.run(ticket.run, partial(self._synced, source, ticket, thens))
        self._end_part()

    def _synced(
        self,
        source: SyncSource,
        ticket: Any,
        thens: list[Callable[[], None]],
        _result: Any,
        error: BaseException | None,
    ) -> None:
        if error is not None:
            self._threads.stop_node("sync", error)
            return
        try:
            source.finish_sync(ticket)
        except Exception as problem:
            self._threads.stop_node("end of a sync", problem)
            return
        self._end_part()  # requests made meanwhile need not wait for the answers below
        self._answer(thens)

    def _answer(self, thens: list[Callable[[], None]]) -> None:
        for then in thens:
            try:
                then()
            except Exception as error:
                self._threads.stop_node("answer of the disk", error)

    def _end_part(self) -> None:
        self._running -= 1
        self._run_next()


def _nothing() -> None:
    """Work that only marks a place in the order."""
