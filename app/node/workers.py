"""Threads for work that takes the processor for long, so that the event loop does not wait for it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from app.node.job_threads import JobThreads, Then, result_or_error

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
        self._fail = fail
        self._threads = JobThreads(loop, "worker", threads, self._deliver, logging.INFO)

    def start(self) -> None:
        self._threads.start()

    def stop(self) -> None:
        """End the threads after their work, without waiting for it."""
        self._threads.stop()

    def run(self, work: Callable[[], Any], then: Then) -> None:
        """Run `work` in a thread, then `then(result, error)` on the loop."""
        self._threads.run(work, then)

    def _deliver(self, then: Then, result: Any, problem: BaseException | None) -> None:
        try:
            then(result, problem)
        except Exception as error:
            self._fail("answer of a worker thread", error)


class InPlace:
    """`WorkerPool` without threads: work is done at once. For simulations and tests."""

    def run(self, work: Callable[[], Any], then: Then) -> None:
        """Run `work`, then `then(result, error)`."""
        then(*result_or_error(work))
