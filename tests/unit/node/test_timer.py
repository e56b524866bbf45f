"""The node's timer: the interval of its ticks, and an error in one."""

import asyncio
import math
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
    assert after((4, 3), 100.0 + QUIET_AFTER_S) == 0.05
    assert after((4, 4), 100.1 + QUIET_AFTER_S) == 0.02
    assert after((4, 4), 100.0 + 3 * QUIET_AFTER_S) == 0.05


def test_quiet_ticks_are_never_more_frequent() -> None:
    interval = TickInterval(active_s=0.1, quiet_s=0.05)
    assert [interval.next_s("same", now_s, now_s, math.inf) for now_s in (0.0, 60.0)] == [0.1, 60.1]


def test_a_quiet_node_ticks_when_a_log_is_due() -> None:
    interval = TickInterval(active_s=0.02, quiet_s=0.1)
    interval.next_s("same", 0.0, 0.0, math.inf)
    assert interval.next_s("same", 100.0, 100.0, due_s=100.07) == 100.07
    assert interval.next_s("same", 100.0, 100.0, due_s=100.3) == 100.1
    assert interval.next_s("same", 100.0, 100.0, due_s=99.0) == 100.02  # its disk is busy: not at once


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


def timer_of(hosted: Any, placed: list[tuple[str, str]]) -> NodeTimer:
    metadata: Any = SimpleNamespace(tick=lambda: None)
    rollbacks: Any = SimpleNamespace(begin_wanted=lambda _hosted: None)
    transport: Any = SimpleNamespace(place_peer=lambda node, address: placed.append((node, address)))
    return NodeTimer(
        TickInterval(active_s=60.0, quiet_s=60.0), SystemClock(), hosted, metadata, rollbacks,
        Directory(()), transport, lambda what, error: placed.append((what, repr(error))),
    )  # fmt: skip


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
