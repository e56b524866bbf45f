"""The supervisor of background tasks: failures fail the node, restart the task, or reach the caller."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.node import tasks
from app.node.clock import LoopScheduler
from app.node.tasks import TaskSupervisor


class Fault(Exception):
    pass


async def failing() -> None:
    raise Fault("broken")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 - `holds` may look at anything
            await asyncio.sleep(0)


def supervised(test: Callable[[TaskSupervisor, list[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        failures: list[str] = []
        supervisor = TaskSupervisor(lambda what, error: failures.append(f"{what}: {error}"))
        await test(supervisor, failures)
        await supervisor.stop()

    asyncio.run(run())


def test_a_critical_task_that_fails_fails_the_node() -> None:
    async def test(supervisor: TaskSupervisor, failures: list[str]) -> None:
        supervisor.critical("timer", failing())
        await until(lambda: bool(failures))
        assert failures == ["task timer: broken"]

    supervised(test)


def test_a_kept_task_starts_again_and_is_reported_until_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(tasks, "LASTING_S", 0.01)
    runs = 0

    async def third_time_lasts() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise Fault(f"run {runs}")
        await asyncio.Event().wait()

    async def test(supervisor: TaskSupervisor, failures: list[str]) -> None:
        supervisor.keep("retention", third_time_lasts)
        await until(lambda: runs == 3)
        assert supervisor.failing == {"retention": "Fault: run 2"}
        assert supervisor.failures == {"retention": 2}
        await until(lambda: not supervisor.failing)
        assert failures == []

    supervised(test)


def test_pauses_double_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def test(supervisor: TaskSupervisor, _: list[str]) -> None:
        monkeypatch.setattr(tasks.asyncio, "sleep", noted)
        supervisor.keep("scrub", failing)
        async with asyncio.timeout(5):
            while len(pauses) < 11:
                await sleep(0)
        assert pauses[:3] == [0.1, 0.2, 0.4]
        assert pauses[10] == tasks.LONGEST_PAUSE_S

    supervised(test)


def test_a_failed_piece_of_work_reaches_its_caller_and_is_counted_by_kind() -> None:
    async def test(supervisor: TaskSupervisor, failures: list[str]) -> None:
        reported: list[Exception] = []
        supervisor.once("forward a", failing(), reported.append)
        supervisor.once("forward b", failing())
        await until(lambda: supervisor.failures["forward"] == 2)
        assert [str(error) for error in reported] == ["broken"]
        assert failures == []

    supervised(test)


def test_a_stop_cancels_every_task_and_starts_none() -> None:
    async def test(supervisor: TaskSupervisor, failures: list[str]) -> None:
        ended: list[str] = []

        async def forever(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        supervisor.critical("a", forever("a"))
        supervisor.keep("b", lambda: forever("b"))
        supervisor.once("c", forever("c"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await supervisor.stop()
        supervisor.once("d", forever("d"))
        assert sorted(ended) == ["a", "b", "c"]
        assert failures == []

    supervised(test)


def test_an_error_in_a_turn_of_a_log_fails_the_node() -> None:
    async def run() -> list[str]:
        failures: list[str] = []
        scheduler = LoopScheduler(
            asyncio.get_running_loop(), lambda what, error: failures.append(f"{what}: {error}")
        )

        def broken() -> None:
            raise Fault("invariant")

        scheduler.call_soon(broken)
        await asyncio.sleep(0)
        return failures

    assert asyncio.run(run()) == ["turn of a log: invariant"]
