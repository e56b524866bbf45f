"""One machine: its clocks run at their own rate, stop in a suspend as Linux's do, begin at 0 at a boot."""

import time

from app.node import clock as system_clock
from app.node.clock import SystemClock
from tests.simulation.world.world import START_MS, World

NS_PER_US = 1_000


class Machine:
    """Its clocks outlive its processes. CLOCK_MONOTONIC stands still while it is suspended, CLOCK_BOOTTIME
    goes on, as far as there is one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rate = 1.0
        self._since_us = 0  # of the world, when the rate was set
        self._elapsed_us = 0  # of CLOCK_BOOTTIME, by then
        self._suspended_us = 0  # in which CLOCK_MONOTONIC stood still, or will
        self._asleep_until_us = 0  # of the world
        self._skew_us = 0  # of the wall clock against the boot

    def clock(self) -> SystemClock:
        """The clock of one process, as the product makes it."""
        return SystemClock(self._wall_ns, lambda: self._clock_ns(system_clock._MONOTONIC))

    def set_rate(self, rate: float) -> None:
        """Run at `rate` seconds for each second of the world from here on."""
        self._elapsed_us, self._since_us = self._boottime_us(), self._world.now_us
        self._rate = rate

    def suspended(self, lasting_us: int) -> None:
        """The machine begins to sleep for so long, or sleeps already."""
        until_us = self._world.now_us + lasting_us
        awake_us = until_us - max(self._world.now_us, self._asleep_until_us)
        if awake_us > 0:
            self._suspended_us += int(awake_us * self._rate)
            self._asleep_until_us = until_us

    def reboot(self) -> None:
        """Both clocks begin at 0, the wall clock goes on."""
        self._skew_us += self._boottime_us()
        self._elapsed_us, self._since_us, self._suspended_us = 0, self._world.now_us, 0
        self._asleep_until_us = 0

    def _boottime_us(self) -> int:
        return self._elapsed_us + int((self._world.now_us - self._since_us) * self._rate)

    def _clock_ns(self, clock_id: int) -> int:
        now_us = self._boottime_us()
        if clock_id == time.CLOCK_MONOTONIC and clock_id != getattr(time, "CLOCK_BOOTTIME", None):
            now_us -= self._suspended_us
        return now_us * NS_PER_US

    def _wall_ns(self) -> int:
        return (START_MS * 1_000 + self._skew_us + self._boottime_us()) * NS_PER_US
