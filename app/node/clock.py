"""The seams of time and turns, for real: Clock and Scheduler of app/replication.py."""

import asyncio
import time
from collections.abc import Callable


class SystemClock:
    """Time of this machine."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class LoopScheduler:
    """Runs callbacks at the end of the current turn of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._call_soon(callback)
