"""Threads for work that takes the processor for long, so that the event loop does not wait for it."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

logger = logging.getLogger(__name__)

Then = Callable[[Any, BaseException | None], None]
THREADS: Final = 2


class WorkerThreads:
    """Threads of one node; satisfies `WorkerPool` (app/log). What runs at the end of the process ends with
    it: nothing depends on its result."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fail: Callable[[str, BaseException], None],
        threads: int = THREADS,
    ) -> None:
        """fail(what, error): called on the loop when an answer raises. threads: at least 1."""
        self._loop = loop
        self._fail = fail
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Then] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True)
            for number in range(1, threads + 1)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads after their present work, without waiting for it."""
        for _ in self._threads:
            self._jobs.put(None)

    def run(self, work: Callable[[], Any], then: Then) -> None:
        """Run `work` in a thread, then `then(result, error)` on the loop."""
        self._jobs.put((work, then))

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
                logger.info("the event loop has ended before a worker thread")
                return

    def _deliver(self, then: Then, result: Any, problem: BaseException | None) -> None:
        try:
            then(result, problem)
        except Exception as error:
            self._fail("answer of a worker thread", error)


class InPlace:
    """`WorkerPool` without threads: work is done at once. For simulations and tests."""

    def run(self, work: Callable[[], Any], then: Then) -> None:
        """Run `work`, then `then(result, error)`."""
        try:
            result = work()
        except Exception as error:
            then(None, error)
        else:
            then(result, None)
