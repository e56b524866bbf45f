"""SystemClock: leases are counted by it (A-11), and timestamps come without the leaps of a wall clock."""

import logging
import sys
import time

import pytest

from app.node.clock import SLEW, SystemClock

S = 1_000_000_000
DAY_S = 86_400


class Machine:
    """A machine's clocks, in seconds."""

    def __init__(self) -> None:
        self.wall_s = 1_700_000_000.0
        self.monotonic_s = 50.0
        self.clock = SystemClock(lambda: int(self.wall_s * S), lambda: int(self.monotonic_s * S))

    def run(self, seconds: float, step_s: float = 0.25) -> list[int]:
        """The clock's readings while the time passes, in ms since the start."""
        seen = []
        for _ in range(round(seconds / step_s)):
            self.wall_s += step_s
            self.monotonic_s += step_s
            seen.append(self.clock.now_ms() - 1_700_000_000_000)
        return seen


def test_an_even_clock_is_followed() -> None:
    machine = Machine()
    assert machine.run(10)[-1] == 10_000
    machine.wall_s += 0.02
    assert machine.run(10)[-1] == 20_020
    assert machine.clock.offset_ms == 0


def test_a_leap_ahead_ages_nothing_at_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.wall_s += DAY_S
    with caplog.at_level(logging.WARNING):
        seen = machine.run(80)
    assert seen[-1] == pytest.approx(80_000 * (1 + 1 / SLEW), abs=5)
    assert ["stepped by +86400.0 s" in record.getMessage() for record in caplog.records] == [True]
    assert machine.clock.offset_ms == pytest.approx(DAY_S * 1000 - 10_000, abs=5)
    assert machine.clock.wall_ms == pytest.approx((1_700_000_000 + DAY_S + 80) * 1000, abs=5)


def test_a_leap_back_never_lets_timestamps_fall() -> None:
    machine = Machine()
    machine.wall_s -= 10
    seen = machine.run(60)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(60_000 * (1 - 1 / SLEW), abs=5)
    assert machine.run(60)[-1] == 110_000  # it has caught up with the wall clock


def test_readings_within_a_millisecond_do_not_stand_still() -> None:
    machine = Machine()
    machine.wall_s += DAY_S
    assert machine.run(1, step_s=0.0001)[-1] == pytest.approx(1_125, abs=5)


@pytest.mark.rule("A-11")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere CLOCK_MONOTONIC counts a suspend")
def test_the_monotonic_clock_counts_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 7_000_000_000, time.CLOCK_MONOTONIC: 5_000_000_000}  # 2 s suspended
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.__getitem__)
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks[time.CLOCK_MONOTONIC])
    assert SystemClock().monotonic_ms() == 7_000
