"""The seams of time and turns, for real: Clock and Scheduler of app/replication.py."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

# Counts while the machine is suspended, as leases must: elsewhere they have ended. CLOCK_MONOTONIC of
# Linux does not; where there is no CLOCK_BOOTTIME (macOS), CLOCK_MONOTONIC counts.
_MONOTONIC: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """Time of this machine. A suspend of the machine counts for both clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_MONOTONIC) // 1_000_000


class LoopScheduler:
    """Runs callbacks at the end of the current turn of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._call_soon(callback)
