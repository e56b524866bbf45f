"""The one thread of a node that waits for the disk.

Work runs in the order in which it was submitted, and its answers come back on the event loop in the same
order. Syncs are grouped: while one round runs, whoever asks joins the next, so that at most one round
waits and one runs, however many logs are dirty (group commit).
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from app.replication import SyncSource

log = logging.getLogger(__name__)

Then = Callable[[Any, BaseException | None], None]


class DiskThread:
    """The Disk of app/replication.py. Everything but `_work` runs on the event loop that started it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fail: Callable[[str, BaseException], None]) -> None:
        """fail(what, error): called once on the loop when the node must stop (R-11)."""
        self._loop = loop
        self._fail = fail
        self._failed = False
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Then] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="disk", daemon=True)
        self._dirty: dict[SyncSource, list[Callable[[], None]]] = {}
        self._syncing = False

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Callable[[], Any], then: Then) -> None:
        """Do `work` on the disk thread; then(result, error) on the loop."""
        self._jobs.put((work, then))

    def request_sync(self, source: SyncSource, then: Callable[[], None]) -> None:
        """Make durable what `source` has written by the time the next round starts; then() after it.

        A sync that fails stops the node: what was written may be gone, and a retry would hide it (R-11).
        """
        self._dirty.setdefault(source, []).append(then)
        if not self._syncing:
            # The round starts behind everything that this turn of the loop still writes.
            self._syncing = True
            self._loop.call_soon(self._start_round)

    def stop(self, timeout_s: float) -> bool:
        """End the thread after everything that was submitted; whether it ended in time.

        No answer of that work may be waited for: the caller blocks the loop here.
        """
        self._jobs.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    async def drain(self) -> None:
        """Wait until everything that was submitted so far, and every sync asked for, has been answered."""
        while True:
            done: asyncio.Future[None] = self._loop.create_future()
            self.submit(lambda: None, lambda _result, _error, done=done: done.set_result(None))  # type: ignore[misc]
            await done
            if self._failed or not (self._syncing or self._dirty):
                return

    def _start_round(self) -> None:
        round_ = self._dirty
        self._dirty = {}
        try:
            tickets = [(source, source.start_sync()) for source in round_]
        except Exception as error:
            self._stop_node("begin of a sync", error)
            return
        work = [ticket.run for _source, ticket in tickets if ticket is not None]

        def run() -> None:
            for sync in work:
                sync()

        def ran(_result: Any, error: BaseException | None) -> None:
            self._end_round(round_, tickets, error)

        if work:
            self.submit(run, ran)
        else:
            self._end_round(round_, tickets, None)

    def _end_round(
        self,
        round_: dict[SyncSource, list[Callable[[], None]]],
        tickets: list[tuple[SyncSource, Any]],
        error: BaseException | None,
    ) -> None:
        if error is not None:
            self._stop_node("sync", error)
            return
        try:
            for source, ticket in tickets:
                if ticket is not None:
                    source.finish_sync(ticket)
        except Exception as problem:
            self._stop_node("end of a sync", problem)
            return
        self._syncing = bool(self._dirty)
        if self._syncing:
            self._start_round()  # what was written meanwhile need not wait for the answers below
        for thens in round_.values():
            for then in thens:
                self._answer(then)

    def _answer(self, then: Callable[[], None]) -> None:
        try:
            then()
        except Exception as error:
            self._stop_node("answer of the disk", error)

    def _stop_node(self, what: str, error: BaseException) -> None:
        if not self._failed:
            self._failed = True
            self._fail(what, error)

    # --- on the disk thread ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, then = job
            result: Any = None
            problem: BaseException | None = None
            try:
                result = work()
            except Exception as error:
                problem = error
            try:
                self._loop.call_soon_threadsafe(self._deliver, then, result, problem)
            except RuntimeError:
                log.warning("the event loop has ended before the disk thread")
                return

    def _deliver(self, then: Then, result: Any, problem: BaseException | None) -> None:
        if self._failed:
            return
        try:
            then(result, problem)
        except Exception as error:
            self._stop_node("answer of the disk", error)
