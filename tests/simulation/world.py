"""Simulated time: one queue of events for a whole cluster, in one thread. Same seed, same order, always."""

import hashlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

START_MS = 1_700_000_000_000  # the wall clock at the beginning, milliseconds since 1970


@dataclass(eq=False)
class Life:
    """One run of a process: what it had scheduled dies with it."""

    name: str
    alive: bool = True


class World:
    """The clock and the queue. Times are whole microseconds since the beginning; ties keep their order."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.steps = 0
        self._queue: list[tuple[int, int, Life | None, Callable[[], None]]] = []
        self._sequence = 0
        self._trace = hashlib.blake2b(digest_size=16)

    def after(self, delay_us: int, action: Callable[[], None], life: Life | None = None) -> None:
        """Do `action` in `delay_us` microseconds, unless `life` has ended by then."""
        self._sequence += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._sequence, life, action))

    def step(self) -> Life | None:
        """Do the next event; return whose it was, None for one of nobody's, and when there is none."""
        while self._queue:
            self.now_us, _, life, action = heapq.heappop(self._queue)
            if life is None or life.alive:
                self.steps += 1
                action()
                return life
        return None

    @property
    def next_us(self) -> int | None:
        return self._queue[0][0] if self._queue else None

    def note(self, line: str) -> None:
        """Add a line to the trace that two runs of one seed must have in common."""
        self._trace.update(f"{self.now_us} {line}\n".encode())

    @property
    def trace_digest(self) -> str:
        return self._trace.hexdigest()


class WorldClock:
    """app.replication.Clock: every node has the same wall clock, off by `skew_ms`."""

    def __init__(self, world: World, skew_ms: int = 0) -> None:
        self._world = world
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return START_MS + self._skew_ms + self._world.now_us // 1000

    def monotonic_ms(self) -> int:
        return self._world.now_us // 1000


class WorldScheduler:
    """app.replication.Scheduler: the next turn of a node's loop is the next event of this instant."""

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._world.after(0, callback, self._life)
