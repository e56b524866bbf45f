"""The node's timer: the interval of its ticks, and an error in one."""

import asyncio
from types import SimpleNamespace
from typing import Any

from app.node.timer import QUIET_AFTER_S, NodeTimer, TickInterval


def test_a_node_whose_logs_are_quiet_ticks_less_often_until_one_changes() -> None:
    interval = TickInterval(active_s=0.02, quiet_s=0.05)
    assert interval.after((4, 3), now_s=100.0) == 0.02
    assert interval.after((4, 3), now_s=100.0 + QUIET_AFTER_S / 2) == 0.02
    assert interval.after((4, 3), now_s=100.0 + QUIET_AFTER_S) == 0.05
    assert interval.after((4, 4), now_s=100.1 + QUIET_AFTER_S) == 0.02
    assert interval.after((4, 4), now_s=100.0 + 3 * QUIET_AFTER_S) == 0.05


def test_quiet_ticks_are_never_more_frequent() -> None:
    interval = TickInterval(active_s=0.1, quiet_s=0.05)
    assert [interval.after("same", now_s) for now_s in (0.0, 60.0)] == [0.1, 0.1]


def test_an_error_at_the_state_of_a_log_fails_the_node() -> None:
    failures: list[tuple[str, type[BaseException]]] = []

    async def run() -> None:
        nothing: Any = None
        hosted: Any = [SimpleNamespace(driver=SimpleNamespace())]  # its state cannot be read
        interval = TickInterval(active_s=60.0, quiet_s=60.0)
        timer = NodeTimer(
            interval, hosted, nothing, nothing, nothing, nothing,
            lambda what, error: failures.append((what, type(error))),
        )  # fmt: skip
        timer.start()
        timer.stop()

    asyncio.run(run())
    assert failures == [("timer", AttributeError)]
