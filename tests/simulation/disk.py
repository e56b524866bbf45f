"""Simulated disk thread: one piece of work at a time, in order, each taking its time; syncs are merged."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from app.replication import SyncSource
from tests.simulation.world import Life, World


@dataclass(frozen=True, kw_only=True)
class DiskTiming:
    """How long the disk takes, microseconds; slow_chance: of one piece of work, which then takes slow_us."""

    work_us: tuple[int, int] = (50, 500)
    sync_us: tuple[int, int] = (50, 2_000)
    slow_chance: float = 0.01
    slow_us: int = 200_000


class DiskThread:
    """app.replication.Disk of one life of a node."""

    def __init__(self, world: World, life: Life, timing: DiskTiming) -> None:
        self._timing = timing
        self._world = world
        self._life = life
        self._queue: list[Callable[[], None]] = []
        self._waiting: dict[int, tuple[SyncSource, list[Callable[[], None]]]] = {}  # by identity, in order
        self._busy = False

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        def do() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:
                failure = error
            then(result, failure)

        self._queue.append(lambda: self._after(self._timing.work_us, do))
        self._start()

    def request_sync(self, source: SyncSource, then: Callable[[], None]) -> None:
        waiting = self._waiting.get(id(source))
        if waiting is not None:
            waiting[1].append(then)
            return
        self._waiting[id(source)] = (source, [then])
        self._queue.append(lambda: self._sync(source))
        self._start()

    def _sync(self, source: SyncSource) -> None:
        _, callbacks = self._waiting.pop(id(source))
        ticket = source.start_sync()

        def finish() -> None:
            if ticket is not None:
                ticket.run()
                source.finish_sync(ticket)
            for callback in callbacks:
                callback()

        self._after(self._timing.sync_us, finish)

    def _after(self, range_us: tuple[int, int], action: Callable[[], None]) -> None:
        chance = self._world.random
        timing = self._timing
        slow = chance.random() < timing.slow_chance
        delay_us = timing.slow_us if slow else chance.randint(*range_us)

        def done() -> None:
            action()
            self._busy = False
            self._start()

        self._world.after(delay_us, done, self._life)

    def _start(self) -> None:
        if not self._busy and self._queue:
            self._busy = True
            self._queue.pop(0)()
