"""Commits without rows, which claim the ends of a log's typed tables. PURE.

The end of a table is that of its last commit. So a table that gets no row of the last records would seem to
lag without end: `current` after a dead letter, `records` after a tombstone. A claim with each batch would
double the commits. So it waits for a pause of the log; while records go on, for CLAIM_EACH_S.
"""

import math
from typing import Final

CLAIM_EACH_S: Final = 60.0


class TableEnds:
    """until: after the last data record that the tables cover. noted: the end that the commits of rows in
    `records` and `dead_letters` record."""

    def __init__(self) -> None:
        self.until = 0
        self.noted = 0
        self._claimed = 0
        self._claimed_at_s = -math.inf
        self._seen = 0  # `until` at the last question

    @property
    def is_unclaimed(self) -> bool:
        return self._claimed < self.until

    def is_due(self, now_s: float) -> bool:
        """Return whether to claim `until`. Asked at even intervals: no record between two is a pause."""
        is_pause, self._seen = self._seen == self.until, self.until
        return self.is_unclaimed and (is_pause or now_s >= self._claimed_at_s + CLAIM_EACH_S)

    def claimed(self, until: int, now_s: float) -> None:
        """Note that all tables have the claim `until`."""
        self._claimed, self._claimed_at_s = until, now_s
        self.noted = max(self.noted, until)
