"""Flow control and measured rate of one slave's transfer. PURE.

RocketMQ's haFlowControlEnable and maxHaTransferByteInSecond: a slave that copies a long backlog must not take
the network or the disk from the clients.
"""

from typing import Final

from storage.units import KIB

WINDOW_MS: Final = 1_000  # over which the rate is measured
BURST_MS: Final = 100  # unused allowance is kept for this long
BURST_MIN_BYTES: Final = 64 * KIB
UNLIMITED_BYTES: Final = 1 << 62


class Flow:
    """A token bucket, and the bytes per second that went through it. Times are monotonic milliseconds."""

    def __init__(self, max_bytes_per_s: int | None, now_ms: int) -> None:
        """max_bytes_per_s: at least 1, or None for no limit."""
        self._limit = max_bytes_per_s
        self._burst = (
            0 if max_bytes_per_s is None else max(BURST_MIN_BYTES, max_bytes_per_s * BURST_MS // 1000)
        )
        self._allowance = float(self._burst)
        self._refilled_ms = now_ms
        self._window_ms = now_ms
        self._window_bytes = 0
        self._rate = 0

    def room_bytes(self, now_ms: int) -> int:
        """Return how many bytes may be sent now."""
        if self._limit is None:
            return UNLIMITED_BYTES
        earned = (now_ms - self._refilled_ms) * self._limit / 1000
        self._allowance = min(self._burst, self._allowance + earned)
        self._refilled_ms = now_ms
        return max(0, int(self._allowance))

    def sent(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that were handed to the connection."""
        if self._limit is not None:
            self._allowance -= size_bytes
        self._roll(now_ms)
        self._window_bytes += size_bytes

    def bytes_per_s(self, now_ms: int) -> int:
        """Return the rate of the last whole window; 0 after a window without a byte."""
        self._roll(now_ms)
        return self._rate

    def _roll(self, now_ms: int) -> None:
        passed_ms = now_ms - self._window_ms
        if passed_ms < WINDOW_MS:
            return
        self._rate = self._window_bytes * 1000 // passed_ms
        self._window_ms, self._window_bytes = now_ms, 0
