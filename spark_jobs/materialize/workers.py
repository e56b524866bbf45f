"""Threads that do the work of all logs of a job, and the state of one kind of work of one log."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

THREADS = 4  # a unit of work waits for the service and the disk most of the time
STOP_WITHIN_S = 10.0
Given = TypeVar("Given")


class Workers:
    """A few threads for small units of work, and one for large ones, so that the backlog of one log delays no
    other log.

    interrupt: ends what Spark runs for the large one, when a stop cannot wait for it. finished: set when a
    unit of work has ended.
    """

    def __init__(
        self,
        interrupt: Callable[[], object] | None = None,
        finished: threading.Event | None = None,
        threads: int = THREADS,
    ) -> None:
        self.stopping = threading.Event()
        self._finished = finished or threading.Event()
        self._interrupt = interrupt
        self._small = ThreadPoolExecutor(threads, thread_name_prefix="tables")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="backlog")
        self._running: set[Future[Any]] = set()

    def submit(self, work: Callable[[], Any], *, is_large: bool = False) -> Future[Any]:
        """Run `work` when a thread is free; units of work begin in the order of these calls."""
        future = (self._large if is_large else self._small).submit(work)
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        self._running.discard(future)
        self._finished.set()

    def each(self, act: Callable[[Given], None], items: Iterable[Given]) -> None:
        """Call `act` with every item, and wait for all of them. Raises the first error."""
        for future in [self.submit(lambda item=item: act(item)) for item in items]:  # type: ignore[misc]
            future.result()

    def stop(self) -> None:
        """Let running units of work end, STOP_WITHIN_S at most; drop those that have not begun."""
        self.stopping.set()
        for executor in (self._small, self._large):
            executor.shutdown(wait=False, cancel_futures=True)
        _, left = wait(set(self._running), STOP_WITHIN_S)
        if left and self._interrupt is not None:
            self._interrupt()
            wait(left, STOP_WITHIN_S)
