"""SystemClock: leases are counted by it (A-11)."""

import sys
import time

import pytest

from app.node.clock import SystemClock


@pytest.mark.rule("A-11")
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere CLOCK_MONOTONIC counts a suspend")
def test_the_monotonic_clock_counts_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = {time.CLOCK_BOOTTIME: 7_000_000_000, time.CLOCK_MONOTONIC: 5_000_000_000}  # 2 s suspended
    monkeypatch.setattr(time, "clock_gettime_ns", clocks.__getitem__)
    monkeypatch.setattr(time, "monotonic_ns", lambda: clocks[time.CLOCK_MONOTONIC])
    assert SystemClock().monotonic_ms() == 7_000
