"""Threads that do the work of all logs of a job, and the state of one kind of work of one log."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from enum import Enum
from typing import Any

THREADS = 4  # a unit of work waits for the service and the disk most of the time
OPENING_THREADS = BACKGROUND_THREADS = PROBE_THREADS = 2
STOP_WITHIN_S = 10.0


class Kind(Enum):
    """Kind of a unit of work, which selects its threads.

    LARGE: a backlog, of seconds. OPENING: of a log. BACKGROUND: journals and epochs; no record waits for
    them. PROBE: of a log that may not answer, which can take as long as its nodes are down.
    """

    SMALL = "tables"
    LARGE = "backlog"
    OPENING = "opening"
    BACKGROUND = "background"
    PROBE = "probe"


class Workers:
    """Threads for each kind of work: the backlog of one log, and the opening of many, delay no other log.

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
        counts = {
            Kind.SMALL: threads,
            Kind.LARGE: 1,
            Kind.OPENING: OPENING_THREADS,
            Kind.BACKGROUND: BACKGROUND_THREADS,
            Kind.PROBE: PROBE_THREADS,
        }
        self._pools = {
            kind: ThreadPoolExecutor(count, thread_name_prefix=kind.value) for kind, count in counts.items()
        }
        self._running: set[Future[Any]] = set()

    def submit(self, work: Callable[[], Any], kind: Kind = Kind.SMALL) -> Future[Any]:
        """Run `work` when a thread is free; units of work of one kind begin in the order of these calls."""
        future = self._pools[kind].submit(work)
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        self._running.discard(future)
        self._finished.set()

    def stop(self) -> None:
        """Let running units of work end, STOP_WITHIN_S at most; drop those that have not begun."""
        self.stopping.set()
        for executor in self._pools.values():
            executor.shutdown(wait=False, cancel_futures=True)
        _, left = wait(set(self._running), STOP_WITHIN_S)
        if left and self._interrupt is not None:
            self._interrupt()
            wait(left, STOP_WITHIN_S)
