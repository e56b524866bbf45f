"""Threads that run jobs in the order in which they were given, and answer on the event loop."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from app.futures import settle

logger = logging.getLogger(__name__)

T = TypeVar("T")

Then = Callable[[Any, BaseException | None], None]
SubmittedWork = tuple[Callable[[], Any], Then]


def result_or_error(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Run `work`; return its result and None, or None and the exception that it raised."""
    try:
        return work(), None
    except Exception as error:
        return None, error


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a separate thread. A stopping node does not wait for it: it may be interrupted."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        result, error = result_or_error(work)
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, future, result, error)

    threading.Thread(target=run, name="commitlog-job", daemon=True).start()
    return await future


class JobThreads:
    """A fixed number of threads. Everything except `_work` runs on the event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        name: str,
        threads: int,
        deliver: Callable[[Then, Any, BaseException | None], None],
        loop_ended_level: int,
    ) -> None:
        """name: prefix of the names of the threads. threads: at least 1. deliver(then, result, error): called
        on the loop. loop_ended_level: of the log line when the loop ends before a thread."""
        self._loop = loop
        self._name = name
        self._deliver = deliver
        self._loop_ended_level = loop_ended_level
        self._jobs = _JobQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(1, threads + 1)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Number of jobs that no thread has taken yet."""
        return self._jobs.waiting

    def run(self, work: Callable[[], Any], then: Then) -> None:
        """Run `work` in any thread, then deliver(then, result, error) on the loop."""
        self._jobs.put((work, then))

    def stop(self) -> None:
        """End the threads after all jobs, without waiting for them."""
        for _ in self._threads:
            self._jobs.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads; return whether they ended in time."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        place = _Place()
        while (job := self._jobs.take(place)) is not None:
            work, then = job
            result, error = result_or_error(work)
            try:
                self._loop.call_soon_threadsafe(self._deliver, then, result, error)
            except RuntimeError:
                text = "the event loop has ended before the %s threads"
                logger.log(self._loop_ended_level, text, self._name)
                return


class _Place:
    """The place of one waiting thread. Invariant: `filled` is locked while the thread has no job."""

    def __init__(self) -> None:
        self.job: SubmittedWork | None = None
        self.filled = threading.Lock()
        self.filled.acquire()


class _JobQueue:
    """Jobs in order for threads that wait, each at a place of its own.

    A job wakes one thread, the one that became idle last. A shared queue wakes a second thread for each job,
    which takes the interpreter from the event loop only to find the queue empty.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[SubmittedWork | None] = deque()
        self._idle: list[_Place] = []

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    def put(self, job: SubmittedWork | None) -> None:
        """Give the job to an idle thread, otherwise keep it until a thread asks."""
        with self._lock:
            if not self._idle:
                self._jobs.append(job)
                return
            place = self._idle.pop()
        place.job = job
        place.filled.release()

    def take(self, place: _Place) -> SubmittedWork | None:
        """Return the oldest job; wait for one if there is none."""
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._idle.append(place)
        place.filled.acquire()
        job, place.job = place.job, None
        return job
