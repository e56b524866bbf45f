"""Supervision of a node's background tasks: none ends unnoticed.

critical   A failure fails the node, which ends with exit code 1 (crash-only).
kept       Runs as long as the node. After a failure it starts again, with pauses that double; until a run has
           lasted, the task is `failing`, which `/readyz` and a metric report.
once       One piece of work for one caller or one log. A failure is logged, counted, and passed to `failed`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0
LASTING_S: Final = 10.0  # a run of this length ends the task's failing, and resets the pause

Work = Coroutine[Any, Any, object]


class TaskSupervisor:
    """The tasks of one node. Owned by the event loop."""

    def __init__(self, fail: Callable[[str, BaseException], None]) -> None:
        """fail(what, error): the node must stop at once."""
        self.failures: Counter[str] = Counter()  # by kind of task, since the start of the node
        self.failing: dict[str, str] = {}  # kept tasks whose last run failed: name -> error
        self._fail = fail
        self._tasks: set[asyncio.Task[object]] = set()
        self._stopping = False

    def critical(self, name: str, work: Work) -> None:
        """Run `work`; its failure fails the node."""
        self._start(name, self._run_critical(name, work), work)

    def keep(self, name: str, start: Callable[[], Work]) -> None:
        """Run `start()` until it returns; start it again after each failure."""
        self._start(name, self._run_kept(name, start))

    def once(self, name: str, work: Work, failed: Callable[[Exception], None] | None = None) -> None:
        """Run `work`; its failure is logged, counted by the first word of `name`, and handed to `failed`."""
        self._start(name, self._run_once(name, work, failed), work)

    async def stop(self) -> None:
        """Cancel every task and wait until all have ended."""
        self._stopping = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, name: str, run: Work, work: Work | None = None) -> None:
        """work: what `run` awaits; it is closed with the task, which may end before `run` has begun."""
        if self._stopping:
            run.close()
            if work is not None:
                work.close()
            return
        task = asyncio.get_running_loop().create_task(run, name=name)
        self._tasks.add(task)  # the loop itself holds only a weak reference
        task.add_done_callback(self._tasks.discard)
        if work is not None:
            task.add_done_callback(lambda _task: work.close())

    async def _run_critical(self, name: str, work: Work) -> None:
        try:
            await work
        except Exception as error:
            self.failures[name] += 1
            self._fail(f"task {name}", error)

    async def _run_once(self, name: str, work: Work, failed: Callable[[Exception], None] | None) -> None:
        try:
            await work
        except Exception as error:
            self.failures[name.split()[0]] += 1
            logger.exception("task %s failed", name)
            if failed is not None:
                failed(error)

    async def _run_kept(self, name: str, start: Callable[[], Work]) -> None:
        loop = asyncio.get_running_loop()
        pause_s = FIRST_PAUSE_S
        while True:
            lasting = loop.call_later(LASTING_S, self.failing.pop, name, None)
            started_s = loop.time()
            try:
                await start()
                self.failing.pop(name, None)
                return
            except Exception as error:
                self.failures[name.split()[0]] += 1
                self.failing[name] = f"{type(error).__name__}: {error}"
                if loop.time() - started_s >= LASTING_S:
                    pause_s = FIRST_PAUSE_S
                logger.exception("task %s failed; it starts again in %.1f s", name, pause_s)
            finally:
                lasting.cancel()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
