"""asyncio on simulated time, for the few coroutines of production that run beside a log: repairs."""

import asyncio
import contextvars
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from app.node.repair import log_repair as repair
from tests.simulation.world.world import Life, World

T = TypeVar("T")
THREAD_US = (100, 5_000)  # that a piece of work in a thread of its own takes


class WorldLoop(asyncio.AbstractEventLoop):
    """The event loop of one incarnation of a node: what it was asked to do dies with that."""

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life
        self.tasks: dict[asyncio.Task[Any], None] = {}

    def time(self) -> float:
        return self._world.now_us / 1e6

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._world.after(0, lambda: self._run(handle), self._life)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        delay_us = max(0, round(when * 1e6) - self._world.now_us)
        self._world.after(delay_us, lambda: self._run(handle), self._life)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It stays in the queue, and does nothing."""

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            events._set_running_loop(self)
            try:
                handle._run()
            finally:
                events._set_running_loop(None)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **_options: Any) -> asyncio.Task[T]:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self)
        self.tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def end(self) -> None:
        """The process is gone: what it had begun is not gone on with. Not from within one of its tasks."""
        for task in list(self.tasks):
            task.get_coro().close()  # type: ignore[union-attr]
        self.tasks.clear()

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do `work` as an event of its own, a little later."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = work()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._world.after(self._world.between(THREAD_US), run, self._life)
        return future

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        return self.in_thread(lambda: func(*args))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self._life.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An error in a callback ends the run. An answer whose reader never ran is not an error: the node
        has died, or the run has ended."""
        error = context.get("exception")
        if error is not None and "handle" in context:
            raise error


_really_in_thread = repair.in_thread


async def in_thread(work: Callable[[], T]) -> T:
    """app.node.repair.log_repair.in_thread, wherever the loop is: a thread, or an event."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, WorldLoop):
        return await loop.in_thread(work)
    return await _really_in_thread(work)


repair.in_thread = in_thread
