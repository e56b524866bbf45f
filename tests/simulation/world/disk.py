"""Simulated disk thread: one piece of work at a time, in order, each taking its time; syncs are merged."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.log.driver_interfaces import SyncSource
from storage.errors import StorageError
from tests.simulation.world.world import Life, Standstill, World


@dataclass(frozen=True, kw_only=True)
class DiskTiming:
    """How long the disk takes, microseconds; slow_chance: of one piece of work, which then takes slow_us."""

    work_us: tuple[int, int] = (50, 500)
    sync_us: tuple[int, int] = (50, 2_000)
    slow_chance: float = 0.01
    slow_us: int = 200_000


class DiskThread:
    """Disk and Lanes of app/log/driver_interfaces.py in one incarnation of a node.

    slowness: factor on the time of work.
    """

    def __init__(
        self,
        world: World,
        life: Life,
        timing: DiskTiming,
        fail: Callable[[str, BaseException], None],
        hang: Standstill,
    ) -> None:
        """fail(what, error): a sync has failed, and the node must stop (R-11). hang: no work ends before its
        end."""
        self.slowness = 1
        self._hang = hang
        self._timing = timing
        self._world = world
        self._life = life
        self._fail = fail
        self._queue: deque[Callable[[], None]] = deque()
        self._waiting: dict[int, tuple[SyncSource, list[Callable[[], None]]]] = {}  # by identity, in order
        self._busy = False

    def lane(self, name: str) -> "DiskThread":
        """One disk that does one thing at a time, for all logs."""
        return self

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        self._queue.append(partial(self._later, self._timing.work_us, partial(_do, work, then)))
        self._start()

    def request_sync(self, source: SyncSource, then: Callable[[], None]) -> None:
        waiting = self._waiting.get(id(source))
        if waiting is not None:
            waiting[1].append(then)
            return
        self._waiting[id(source)] = (source, [then])
        self._queue.append(partial(self._sync, source))
        self._start()

    def _sync(self, source: SyncSource) -> None:
        _, callbacks = self._waiting.pop(id(source))
        self._later(self._timing.sync_us, partial(self._synced, source, source.start_sync(), callbacks))

    def _synced(self, source: SyncSource, ticket: Any, callbacks: list[Callable[[], None]]) -> None:
        try:
            if ticket is not None:
                ticket.run()
                source.finish_sync(ticket)
            for callback in callbacks:
                callback()
        except StorageError as error:
            self._fail("sync", error)

    def _later(self, range_us: tuple[int, int], action: Callable[[], None]) -> None:
        world, timing = self._world, self._timing
        slow = world.random.random() < timing.slow_chance
        delay_us = timing.slow_us if slow else world.between(range_us) * self.slowness
        world.after(delay_us, partial(self._done, action), self._life)

    def _done(self, action: Callable[[], None]) -> None:
        late_us = self._hang.until_us - self._world.now_us
        if late_us > 0:
            self._world.after(late_us, partial(self._done, action), self._life)
            return
        action()
        self._busy = False
        self._start()

    def _start(self) -> None:
        if not self._busy and self._queue:
            self._busy = True
            self._queue.popleft()()


def _do(work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
    result, failure = None, None
    try:
        result = work()
    except Exception as error:
        failure = error
    then(result, failure)
