"""The one timer of a node: lets time pass for all its logs, and for its part in the metadata."""

import asyncio
import math
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Final

from app.log.contract import Role
from app.log.driver_interfaces import Clock
from app.log.state import Address
from app.node.hosted_logs import HostedLogs
from app.node.metadata.service import MetadataService
from app.node.network.node_directory import Directory
from app.node.network.peer_transport import PeerTransport
from app.node.repair.rollbacks import Rollbacks
from app.node.replica.driver import LogDriver

QUIET_AFTER_S: Final = 1.0  # without a change, after which the timer ticks less often


class TickInterval:
    """Time of the next tick: after `active_s` while the logs of a node change. A quiet node ticks with the
    heartbeats, which arrive each `quiet_s`: one that has woken it from `early_s` on brings the tick forward,
    and without any the tick comes after one and a half `quiet_s`. Earlier if a log is due; `due` is checked
    again after `active_s` at the earliest.

    A wake-up costs a node that does nothing more than the work of its tick.
    """

    def __init__(self, active_s: float, quiet_s: float) -> None:
        self._active_s = active_s
        self._quiet_s = max(active_s, quiet_s)
        self._seen: Hashable = None
        self._changed_s = 0.0
        self.early_s = math.inf  # never

    def next_s(self, seen: Hashable, planned_s: float, now_s: float, due_s: float) -> float:
        """Return the time of the tick after one planned for planned_s that ran at now_s and left the logs
        as `seen`. due_s: time at which a log is due, math.inf: none. Late ticks are not repeated."""
        if seen != self._seen:
            self._seen, self._changed_s = seen, now_s
        if now_s - self._changed_s < QUIET_AFTER_S:
            next_s, self.early_s = planned_s + self._active_s, math.inf
        else:
            late_s, due_s = planned_s + 1.5 * self._quiet_s, max(due_s, now_s + self._active_s)
            next_s = min(late_s, due_s)
            self.early_s = math.inf if due_s < late_s else planned_s + max(self._active_s, self._quiet_s / 2)
        return max(next_s, now_s)


class NodeTimer:
    """Owned by the event loop. An error in a tick fails the node.

    A quiet node also ticks when one of its logs is due (LogDriver.due_ms): no election or heartbeat is late.
    """

    def __init__(
        self,
        interval: TickInterval,
        clock: Clock,
        hosted: HostedLogs,
        metadata: MetadataService,
        rollbacks: Rollbacks,
        nodes: Directory,
        transport: PeerTransport,
        fail: Callable[[str, BaseException], None],
    ) -> None:
        """clock: of the logs. nodes, transport: take up the members that logs name (R-10)."""
        self._interval = interval
        self._clock = clock
        self._hosted = hosted
        self._metadata = metadata
        self._rollbacks = rollbacks
        self._nodes = nodes
        self._transport = transport
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._planned_s = 0.0
        self._handle: asyncio.Handle | None = None
        # By log: the addresses that were taken from it, and whether this node had left it.
        self._learned: dict[int, tuple[Mapping[str, Address], bool]] = {}

    def start(self) -> None:
        """Tick for the first time, now."""
        self._planned_s = self._loop.time()
        self._tick()

    def stop(self) -> None:
        """Tick no more."""
        self._interval.early_s = math.inf
        if self._handle is not None:
            self._handle.cancel()

    def heard(self) -> None:
        """A heartbeat has woken this node: tick now, with it, rather than wake up again for the next tick."""
        now_s = self._loop.time()
        if self._handle is None or now_s < self._interval.early_s:
            return
        self._interval.early_s = math.inf
        self._handle.cancel()
        self._planned_s = now_s
        self._handle = self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        try:
            now_s, now_ms = self._loop.time(), self._clock.monotonic_ms()
            self._metadata.tick()  # first: what it reads is confirmed by the heartbeats that a log sends now
            for hosted in list(self._hosted):
                if hosted.driver is not None:
                    hosted.driver.tick()
                    hosted.wake_on_change()
                    self._rollbacks.begin_wanted(hosted)
            self._learn_nodes()
            due_s = now_s + (self._logs_due_ms() + 1 - now_ms) / 1000  # both clocks have rounded to ms
            self._planned_s = self._interval.next_s(self._seen(), self._planned_s, now_s, due_s)
            self._handle = self._loop.call_at(self._planned_s, self._tick)
        except Exception as error:
            self.stop()  # no heartbeat brings another tick about
            self._fail("timer", error)

    def _seen(self) -> Hashable:
        """Return the state of the logs, which each append, commit and election changes."""
        return tuple(
            (each.log.end_index, each.committed_index, each.term, each.role) for each in self._drivers()
        )

    def _logs_due_ms(self) -> float:
        return min((driver.due_ms for driver in self._drivers()), default=math.inf)

    def _drivers(self) -> Iterator[LogDriver]:
        return (hosted.driver for hosted in self._hosted if hosted.driver is not None)

    def _learn_nodes(self) -> None:
        """Connect to the members whose addresses the logs hold, also to one that has moved (R-10)."""
        held = dict(self._addresses())
        if held == self._learned:
            return
        self._learned = held
        named = [addresses for addresses, has_left in held.values() if not has_left]
        by_former = [addresses for addresses, has_left in held.values() if has_left]
        for node in self._nodes.learn(named, by_former):
            self._transport.place_peer(node.id, node.peer_address)

    def _addresses(self) -> Iterator[tuple[int, tuple[Mapping[str, Address], bool]]]:
        """Yield, for each log, its id, its addresses, and whether this node has left it. A log that is
        repaired has those of before."""
        for hosted in self._hosted:
            driver = hosted.driver
            if driver is not None:
                yield hosted.log_id, (driver.addresses, driver.role is Role.REMOVED)
            elif hosted.log_id in self._learned:
                yield hosted.log_id, self._learned[hosted.log_id]
