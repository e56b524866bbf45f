"""The end of a certificate: from when on it is reported, and in which words. PURE.

Imports nothing of the service: the log of a node, `commitlog doctor` and `commitlog status` report with it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

REPORTED_BEFORE: Final = timedelta(days=30)  # its end; conf/deploy/alerts.yaml has the same limit
REPLACE: Final = "replace it (docs/operations.md, section 2)"
_COMPARE: Final = "compare the clock of this machine with the others"


@dataclass(frozen=True)
class CertificateEnd:
    """The end of a certificate at a moment. end_ms: time since 1970 UTC from which it is not valid. now_ms:
    that moment. begin_ms: time before which it is not valid."""

    end_ms: int
    now_ms: int
    begin_ms: int = 0

    @property
    def is_over(self) -> bool:
        return self.end_ms <= self.now_ms

    @property
    def is_refused(self) -> bool:
        """Return whether connections with it are refused at the moment."""
        return self.is_over or self.now_ms < self.begin_ms

    @property
    def advice(self) -> str:
        return _COMPARE if self.now_ms < self.begin_ms else REPLACE

    @property
    def is_reported(self) -> bool:
        """Return whether it ends within REPORTED_BEFORE, has ended, or has not begun."""
        return self.is_refused or self._left <= REPORTED_BEFORE

    @property
    def _left(self) -> timedelta:
        return timedelta(milliseconds=self.end_ms - self.now_ms)

    def __str__(self) -> str:
        """Return the end as the rest of a sentence about the certificate. Days are rounded down."""
        if self.now_ms < self.begin_ms:
            return f"begins at {_time(self.begin_ms)}, connections with it are refused"
        end = _time(self.end_ms)
        if self.is_over:
            return f"ended at {end}, connections with it are refused"
        days = self._left.days
        left = {0: "less than a day", 1: "1 day"}.get(days, f"{days} days")
        return f"ends at {end}, in {left}"


def _time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms // 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"
