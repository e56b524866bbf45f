"""Pauses between the rounds of periodic work, and between log lines about one failure."""

import asyncio
from collections.abc import Container, Hashable
from math import inf
from typing import Final

REPORT_S: Final = 60.0  # between two log lines about one failure that goes on


class Repeats:
    """Limit of what is repeated while its subject lasts: once in an interval for each subject."""

    def __init__(self, interval_s: float = REPORT_S) -> None:
        self._interval_s = interval_s
        self._last_s: dict[Hashable, float] = {}

    def allow(self, subject: Hashable, now_s: float) -> bool:
        """Return whether to act on a subject now; if so, this time counts as the last one."""
        if now_s < self._last_s.get(subject, -inf) + self._interval_s:
            return False
        self._last_s[subject] = now_s
        return True

    def keep(self, subjects: Container[Hashable]) -> None:
        """Forget all other subjects: each of them is allowed when it returns."""
        self._last_s = {each: last_s for each, last_s in self._last_s.items() if each in subjects}

    def __contains__(self, subject: Hashable) -> bool:
        """Return whether it was allowed at least once."""
        return subject in self._last_s


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
