"""The REST listener: its open connections, their number and time limits, and what they share.

connection.py has the connections themselves.
"""

import asyncio
from typing import Final, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.api.access.hosts import KnownHosts
from app.api.append.lane import AppendLane
from app.api.http.messages import header_lines
from app.api.read.lane import PollLane
from app.pauses import rest
from app.settings.model import HttpSettings
from app.telemetry import Meter

SWEEP_S: Final = 1.0
PIPELINED_MAX: Final = 128  # requests of a connection that wait for earlier answers: 2 KiB each and more


class LimitedConnection(Protocol):
    """A connection whose time limits the listener enforces."""

    def enforce(self, now_s: float) -> None: ...


class Listener:
    """The connections of one listener."""

    def __init__(
        self,
        settings: HttpSettings,
        max_connections: int,
        meter: Meter,
        lane: AppendLane | None = None,
        polls: PollLane | None = None,
        hosts: KnownHosts | None = None,
    ) -> None:
        """lane, polls: take appends and long polls before the application. hosts: names in the header Host
        that are accepted; None: all."""
        self.lane = lane
        self.polls = polls
        self.hosts = hosts
        self.settings = settings
        self.max_connections = max_connections
        self._meter = meter
        self._connections: set[LimitedConnection] = set()
        self._default_headers: list[tuple[bytes, bytes]] = []
        self._starts: dict[int, bytes] = {}  # of answers with these headers, by status

    def start_of_answer(self, status: int, default_headers: list[tuple[bytes, bytes]]) -> bytes:
        """Return the status line and the server's own headers, of which uvicorn makes a list each second."""
        if default_headers is not self._default_headers:
            self._default_headers, self._starts = default_headers, {}
        start = self._starts.get(status)
        if start is None:
            start = self._starts[status] = STATUS_LINE[status] + header_lines(default_headers)
        return start

    def opened(self, connection: LimitedConnection) -> bool:
        """Register a connection; return whether it may stay."""
        self._connections.add(connection)
        self._meter.connections = len(self._connections)
        if len(self._connections) <= self.max_connections:
            return True
        self._meter.refused_connections += 1
        return False

    @property
    def is_full(self) -> bool:
        """True if a new connection would be refused."""
        return len(self._connections) >= self.max_connections

    def closed(self, connection: LimitedConnection) -> None:
        self._connections.discard(connection)
        self._meter.connections = len(self._connections)

    async def end_late_requests(self) -> None:
        """Close, until cancelled, connections that have exceeded a time limit."""
        loop = asyncio.get_running_loop()
        while True:
            await rest(SWEEP_S)
            now_s = loop.time()
            for connection in list(self._connections):
                connection.enforce(now_s)
