"""Pauses between the rounds of periodic work."""

import asyncio
from typing import Final

REPORT_S: Final = 60.0  # between two log lines about one failure that goes on


def rest_s(interval_s: float) -> float:
    """Return the seconds until a multiple of `interval_s` on the clock of the event loop: the next one, or
    the one after it if that is nearer than half an interval.

    What is done at the same interval so wakes an idle node together: a wake-up costs more than the work.
    """
    now_s = asyncio.get_running_loop().time()
    return (round(now_s / interval_s) + 1) * interval_s - now_s


async def rest(interval_s: float) -> None:
    """Sleep for `rest_s`."""
    await asyncio.sleep(rest_s(interval_s))
