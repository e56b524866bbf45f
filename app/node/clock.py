"""Clock and Scheduler of app/log/driver_interfaces.py on the real clocks and event loop."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

# Counts while the machine is suspended, as leases must: elsewhere they have ended. CLOCK_MONOTONIC of
# Linux does not; without CLOCK_BOOTTIME (macOS), CLOCK_MONOTONIC is used.
_MONOTONIC: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
SLEW: Final = 8  # the wall clock is approached by at most 1/8 of the time that passes
LEAP_NS: Final = 1_000_000_000  # a difference that is worth a warning
_MS: Final = 1_000_000


def _monotonic_ns() -> int:
    return time.clock_gettime_ns(_MONOTONIC)


class SystemClock:
    """Time of this machine without jumps. Time in which the machine is suspended counts for both clocks.

    `now_ms` starts at the wall clock and advances with the monotonic clock. When the wall clock jumps,
    `now_ms` approaches it by at most 1/8 of the elapsed time: it never falls, and no jump makes records old
    at once. A starting process takes over the wall clock.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = _monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._now_ns = wall_ns()
        self._at_ns = monotonic_ns()
        self._leapt = False

    def now_ms(self) -> int:
        at_ns = self._monotonic_ns()
        elapsed_ns, self._at_ns = max(0, at_ns - self._at_ns), at_ns
        expected_ns = self._now_ns + elapsed_ns
        ahead_ns = self._wall_ns() - expected_ns
        most_ns = elapsed_ns // SLEW
        self._now_ns = expected_ns + min(max(ahead_ns, -most_ns), most_ns)
        if (abs(ahead_ns) > LEAP_NS) != self._leapt:
            self._report(ahead_ns)
        return self._now_ns // _MS

    def monotonic_ms(self) -> int:
        return self._monotonic_ns() // _MS

    @property
    def wall_ms(self) -> int:
        """The wall clock of this machine, milliseconds since 1970 UTC; it may jump."""
        return self._wall_ns() // _MS

    @property
    def offset_ms(self) -> int:
        """Milliseconds that the wall clock is ahead of `now_ms`; negative: behind it."""
        return self.wall_ms - self.now_ms()

    def _report(self, ahead_ns: int) -> None:
        self._leapt = not self._leapt
        if self._leapt:
            logger.warning(
                "the wall clock stepped by %+.1f s; timestamps approach it by at most 1/%d of the time that "
                "passes. Restart the node to take it over at once.",
                ahead_ns / 1e9,
                SLEW,
            )
        else:
            logger.info("timestamps follow the wall clock again")


class LoopScheduler:
    """Runs callbacks at the end of the current turn of the event loop. A callback that raises fails the
    node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fail: Callable[[str, BaseException], None]) -> None:
        self._call_soon = loop.call_soon
        self._fail = fail

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._call_soon(self._run, callback)

    def _run(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._fail("turn of a log", error)
