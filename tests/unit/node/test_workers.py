"""Threads for work that takes the processor for long."""

import asyncio
import threading
from functools import partial
from typing import Any

from app.node.workers import InPlace, WorkerThreads


def test_answers_arrive_on_the_loop_while_other_work_still_runs() -> None:
    async def run() -> None:
        failed = asyncio.Event()
        workers = WorkerThreads(asyncio.get_running_loop(), lambda _what, _error: failed.set())
        workers.start()
        hang, hung = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        answers: asyncio.Queue[tuple[Any, BaseException | None]] = asyncio.Queue()

        def slow() -> str:
            loop.call_soon_threadsafe(hung.set)
            asyncio.run_coroutine_threadsafe(hang.wait(), loop).result()
            return "slow"

        def then(result: Any, error: BaseException | None) -> None:
            answers.put_nowait((result, error))

        workers.run(slow, then)
        await hung.wait()
        workers.run(lambda: 1, then)
        assert await answers.get() == (1, None)
        workers.run(lambda: 1 // 0, then)
        assert isinstance((await answers.get())[1], ZeroDivisionError)
        hang.set()
        assert await answers.get() == ("slow", None)
        workers.run(lambda: 1, lambda _result, _error: answers.put_nowait(1 // 0))
        await asyncio.wait_for(failed.wait(), 60)
        workers.stop()

    asyncio.run(run())


def test_one_thread_runs_waiting_work_in_the_order_in_which_it_was_given() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        workers = WorkerThreads(loop, lambda _what, _error: None, threads=1)
        begin = threading.Event()
        ran: list[int] = []
        ended = asyncio.Event()
        workers.run(begin.wait, lambda _result, _error: None)
        for number in range(5):
            workers.run(partial(ran.append, number), lambda _result, _error: None)
        workers.run(lambda: None, lambda _result, _error: ended.set())
        workers.start()
        begin.set()
        async with asyncio.timeout(60):
            await ended.wait()
        workers.stop()
        assert ran == [0, 1, 2, 3, 4]

    asyncio.run(run())


def test_in_place_gives_results_and_errors() -> None:
    answers: list[Any] = []
    InPlace().run(lambda: 1, lambda *answer: answers.append(answer))
    InPlace().run(lambda: 1 // 0, lambda _result, error: answers.append(type(error)))
    assert answers == [(1, None), ZeroDivisionError]
