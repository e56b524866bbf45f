"""The node's timer: the interval of its ticks, and an error in one."""

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.log.contract import Role
from app.log.state import Address
from app.node.clock import SystemClock
from app.node.network.node_directory import Directory
from app.node.timer import QUIET_AFTER_S, NodeTimer, TickInterval


def test_a_node_whose_logs_are_quiet_ticks_less_often_until_one_changes() -> None:
    interval = TickInterval(active_s=0.02, quiet_s=0.05)

    def after(seen: tuple[int, int], now_s: float) -> float:
        return round(interval.next_s(seen, now_s, now_s, math.inf) - now_s, 6)

    assert after((4, 3), 100.0) == 0.02
    assert after((4, 3), 100.0 + QUIET_AFTER_S / 2) == 0.02
    assert after((4, 3), 100.0 + QUIET_AFTER_S) == 0.075  # without heartbeats
    assert after((4, 4), 100.1 + QUIET_AFTER_S) == 0.02
    assert after((4, 4), 100.0 + 3 * QUIET_AFTER_S) == 0.075


def test_quiet_ticks_are_never_more_frequent() -> None:
    interval = TickInterval(active_s=0.1, quiet_s=0.05)
    assert interval.next_s("same", 0.0, 0.0, math.inf) == 0.1
    assert interval.next_s("same", 60.0, 60.0, math.inf) >= 60.1
    assert interval.early_s == 60.1


def test_a_quiet_node_ticks_when_a_log_is_due() -> None:
    interval = TickInterval(active_s=0.02, quiet_s=0.1)
    interval.next_s("same", 0.0, 0.0, math.inf)
    assert interval.next_s("same", 100.0, 100.0, due_s=100.07) == 100.07
    assert interval.early_s == math.inf  # its own heartbeat: no other one brings it forward
    assert interval.next_s("same", 100.0, 100.0, due_s=100.3) == 100.15
    assert interval.next_s("same", 100.0, 100.0, due_s=99.0) == 100.02  # its disk is busy: not at once


def test_a_quiet_node_ticks_with_the_heartbeats_that_arrive() -> None:
    """The last tick was at 100 s: a heartbeat at once after it does not repeat it."""
    interval = TickInterval(active_s=0.02, quiet_s=0.1)
    interval.next_s("same", 0.0, 0.0, math.inf)
    assert interval.early_s == math.inf  # the logs may still change
    assert interval.next_s("same", 100.0, 100.0, math.inf) == 100.15
    assert interval.early_s == 100.05


def test_late_ticks_are_not_repeated() -> None:
    interval = TickInterval(active_s=0.02, quiet_s=0.1)
    assert interval.next_s("same", planned_s=5.0, now_s=5.015, due_s=math.inf) == 5.02
    assert interval.next_s("same", planned_s=5.0, now_s=5.4, due_s=math.inf) == 5.4


def test_an_error_at_the_state_of_a_log_fails_the_node() -> None:
    failures: list[tuple[str, type[BaseException]]] = []

    async def run() -> None:
        nothing: Any = None
        hosted: Any = [SimpleNamespace(driver=SimpleNamespace())]  # its state cannot be read
        interval = TickInterval(active_s=60.0, quiet_s=60.0)
        timer = NodeTimer(
            interval, SystemClock(), hosted, nothing, nothing, nothing, nothing,
            lambda what, error: failures.append((what, type(error))),
        )  # fmt: skip
        timer.start()
        timer.stop()

    asyncio.run(run())
    assert failures == [("timer", AttributeError)]


OLD, NEW = Address("http://old:8104", "old:9104"), Address("http://new:8104", "new:9104")


def log_of(log_id: int, role: Role, **addresses: Address) -> Any:
    """app.node.hosted_log.HostedLog."""
    driver = SimpleNamespace(
        role=role,
        addresses=addresses,
        committed_index=1,
        term=1,
        due_ms=math.inf,
        tick=lambda: None,
        log=SimpleNamespace(end_index=1),
    )
    return SimpleNamespace(log_id=log_id, driver=driver, wake_on_change=lambda: None)


def timer_of(
    hosted: Any,
    placed: list[tuple[str, str]],
    interval: TickInterval | None = None,
    ticked: Callable[[], None] = lambda: None,
) -> NodeTimer:
    metadata: Any = SimpleNamespace(tick=ticked)
    rollbacks: Any = SimpleNamespace(begin_wanted=lambda _hosted: None)
    transport: Any = SimpleNamespace(place_peer=lambda node, address: placed.append((node, address)))
    return NodeTimer(
        interval or TickInterval(active_s=60.0, quiet_s=60.0), SystemClock(), hosted, metadata, rollbacks,
        Directory(()), transport, lambda what, error: placed.append((what, repr(error))),
    )  # fmt: skip


def test_a_heartbeat_brings_the_tick_of_a_quiet_node_forward_once() -> None:
    ticks: list[str] = []
    failures: list[tuple[str, str]] = []

    async def run() -> None:
        interval = TickInterval(active_s=60.0, quiet_s=60.0)
        timer = timer_of([log_of(1, Role.FOLLOWER)], failures, interval, lambda: ticks.append("tick"))
        interval.early_s = -math.inf
        timer.heard()  # it has not started
        timer.start()
        for early_s, ticked in ((math.inf, 1), (-math.inf, 2)):
            interval.early_s = early_s
            timer.heard()
            timer.heard()
            await asyncio.sleep(0)
            assert len(ticks) == ticked
        interval.early_s = -math.inf
        timer.stop()
        timer.heard()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert (len(ticks), failures) == (2, [])


def test_a_heartbeat_brings_no_tick_about_after_one_that_has_failed() -> None:
    failures: list[tuple[str, str]] = []

    async def run() -> None:
        interval = TickInterval(active_s=0.001, quiet_s=0.001)
        failed = asyncio.Event()

        def tick() -> None:
            if interval.early_s == -math.inf:
                failed.set()
                raise ValueError("metadata")
            asyncio.get_running_loop().call_soon(setattr, interval, "early_s", -math.inf)

        timer = timer_of([log_of(1, Role.FOLLOWER)], failures, interval, tick)
        timer.start()
        async with asyncio.timeout(60):
            await failed.wait()
        timer.heard()
        await asyncio.sleep(0)

    asyncio.run(run())
    assert failures == [("timer", "ValueError('metadata')")]


@pytest.mark.rule("R-10")
def test_a_member_that_a_log_places_elsewhere_is_called_there() -> None:
    """A replica that has left its log has the addresses of before: they place only unknown nodes."""
    placed: list[tuple[str, str]] = []

    async def run() -> None:
        hosted = [log_of(1, Role.FOLLOWER, n4=OLD), log_of(2, Role.REMOVED, n4=OLD, n5=OLD)]
        timer = timer_of(hosted, placed)
        timer.start()
        for addresses in ({}, {"n4": NEW}, {"n4": NEW, "n6": NEW}):
            hosted[0].driver.addresses = addresses
            timer.start()
        timer.stop()

    asyncio.run(run())
    assert placed == [("n4", "old:9104"), ("n5", "old:9104"), ("n4", "new:9104"), ("n6", "new:9104")]


@pytest.mark.rule("R-10")
def test_a_member_is_called_where_it_has_moved_once_no_log_is_left_that_names_its_former_address() -> None:
    """The replica that lags is deleted, or goes to another node; no log changes at that moment."""
    placed: list[tuple[str, str]] = []

    async def run() -> None:
        hosted = [log_of(1, Role.FOLLOWER, n4=OLD), log_of(2, Role.FOLLOWER, n4=OLD)]
        timer = timer_of(hosted, placed)
        timer.start()
        for addresses in ({}, {"n4": NEW}):
            hosted[0].driver.addresses = addresses
            timer.start()
        lagging, hosted[1].driver = hosted[1].driver, None  # it is repaired
        timer.start()
        hosted[1].driver = lagging
        timer.start()
        assert placed == [("n4", "old:9104")]
        del hosted[1]
        timer.start()
        timer.stop()

    asyncio.run(run())
    assert placed == [("n4", "old:9104"), ("n4", "new:9104")]
