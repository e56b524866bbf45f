"""How many appends of a stream may be in flight. PURE.

The streams of a node together have half of what the limits permit, so they wait where a single append would
be refused, and the other half is left to single appends. Streams that have appends in flight have equal
parts; one that has more, because it was alone before, begins none until it has less.
"""

from typing import Final

from app.settings.model import HttpSettings, Limits
from storage.units import MIB

WINDOW_APPENDS: Final = 4_096  # of one stream, at most
WINDOW_BYTES: Final = 16 * MIB


class StreamWindows:
    """The appends of all streams of a node that are in flight. busy: number of streams that have some."""

    __slots__ = ("_max_appends", "_max_bytes", "appends", "busy", "size_bytes")

    def __init__(self, limits: Limits, http: HttpSettings) -> None:
        self._max_appends = min(limits.max_pending_requests, http.max_open_appends) // 2
        self._max_bytes = min(limits.max_pending_bytes, http.max_open_bytes) // 2
        self.appends = 0
        self.size_bytes = 0
        self.busy = 0

    def room(self, appends: int, size_bytes: int) -> int:
        """Return how many appends may begin of a stream that has these in flight: at least one if it has
        none."""
        if not appends:
            return max(1, self._room(1 + self.busy, 0, 0))
        return max(0, self._room(self.busy, appends, size_bytes))

    def _room(self, streams: int, appends: int, size_bytes: int) -> int:
        if self.size_bytes >= self._max_bytes or size_bytes >= min(WINDOW_BYTES, self._max_bytes // streams):
            return 0
        part = min(WINDOW_APPENDS, self._max_appends // streams)
        return min(part - appends, self._max_appends - self.appends)


class StreamWindow:
    """The appends of one stream that are in flight, and their bytes."""

    __slots__ = ("_appends", "_shared", "_size_bytes")

    def __init__(self, shared: StreamWindows) -> None:
        self._shared = shared
        self._appends = 0
        self._size_bytes = 0

    @property
    def room(self) -> int:
        """Return the number of appends that may begin now; never 0 if none is in flight."""
        return self._shared.room(self._appends, self._size_bytes)

    def enter(self, appends: int, size_bytes: int) -> None:
        """Appends begin, at least one."""
        self._change(appends, size_bytes)

    def leave(self, appends: int, size_bytes: int) -> None:
        """Appends have been answered, at least one."""
        self._change(-appends, -size_bytes)

    def close(self) -> None:
        """Leave with all appends that are in flight: the stream has ended."""
        self._change(-self._appends, -self._size_bytes)

    def _change(self, appends: int, size_bytes: int) -> None:
        shared, was_busy = self._shared, self._appends > 0
        self._appends += appends
        self._size_bytes += size_bytes
        shared.appends += appends
        shared.size_bytes += size_bytes
        shared.busy += (self._appends > 0) - was_busy
