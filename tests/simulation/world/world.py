"""Simulated time: one queue of events for a whole cluster, in one thread. Same seed, same order, always."""

import hashlib
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random

START_MS = 1_700_000_000_000  # the wall clock at the beginning, milliseconds since 1970
TRACE_LINES = 40  # that a world with `tell` keeps
STANDSTILLS_END_S = 20  # longer than the longest standstill of a nemesis


class Standstill:
    """A time in which a process or a disk does nothing.

    The events that it holds back are queued for its end. So it can be extended, but not shortened: whatever
    were declared to run before that end would count as healthy, and do nothing until then.
    """

    __slots__ = ("until_us",)

    def __init__(self) -> None:
        self.until_us = 0

    def extend(self, until_us: int) -> None:
        """Last until that time at least."""
        self.until_us = max(self.until_us, until_us)


class Life:
    """One run of a process: what it had scheduled dies with it, and waits while it is stalled.

    stall: the process is stopped (a collector, a hypervisor) and goes on at its end.
    """

    __slots__ = ("alive", "name", "stall")

    def __init__(self, name: str, alive: bool = True) -> None:
        self.name = name
        self.alive = alive
        self.stall = Standstill()


class NothingDue(Exception):
    """No event is due by the limit."""


class World:
    """The clock and the queue. Times are whole microseconds since the beginning; ties keep their order."""

    def __init__(self, seed: int, *, tell: bool = False) -> None:
        """tell: keep the last lines of the trace to be read, at the price of speed."""
        self.random = Random(seed)
        self.now_us = 0
        self.steps = 0
        self.lines: deque[str] | None = deque(maxlen=TRACE_LINES) if tell else None
        self._queue: list[tuple[int, int, Life | None, Callable[[], None]]] = []
        self._sequence = 0
        self._trace = hashlib.blake2b(digest_size=16)

    def after(self, delay_us: int, action: Callable[[], None], life: Life | None = None) -> None:
        """Do `action` in `delay_us` microseconds, unless `life` has ended by then."""
        self._sequence += 1
        heappush(self._queue, (self.now_us + delay_us, self._sequence, life, action))

    def when_awake(self, life: Life, action: Callable[[], object]) -> None:
        """Do `action`, input of a process, unless that has ended. Input of a stalled process waits in its
        socket."""
        stalled_us = life.stall.until_us - self.now_us
        if not life.alive:
            return
        if stalled_us > 0:
            self.after(stalled_us, partial(self.when_awake, life, action), life)
        else:
            action()

    def between(self, range_us: tuple[int, int]) -> int:
        """Draw from the range; a fraction of the cost of Random.randint."""
        low, high = range_us
        return low + int(self.random.random() * (high - low + 1))

    def step(self, limit_us: int) -> Life | None:
        """Do the next event that is due by `limit_us`; return its owner, None without one.

        Raises NothingDue when there is none. Errors of an event propagate.
        """
        queue = self._queue
        while queue and queue[0][0] <= limit_us:
            self.now_us, sequence, life, action = heappop(queue)
            if life is None:
                action()
            elif not life.alive:
                continue
            elif life.stall.until_us > self.now_us:
                heappush(queue, (life.stall.until_us, sequence, life, action))
                continue
            else:
                action()
            self.steps += 1
            return life
        raise NothingDue

    def note(self, line: str) -> None:
        """Add a line to the trace that two runs of one seed must have in common."""
        self._trace.update(f"{self.now_us} {line}\n".encode())
        if self.lines is not None:
            self.lines.append(f"{self.now_us / 1e6:11.6f} {line}")

    def note_frame(self, frame: bytes) -> None:
        """Add a frame that arrives to the trace."""
        self._trace.update(b"%d" % self.now_us)
        self._trace.update(frame)

    @property
    def trace_digest(self) -> str:
        return self._trace.hexdigest()


class WorldClock:
    """Clock of one machine: its rate may differ from the world's, its wall clock may jump.

    skew_ms: the error of the wall clock, apart from the rate.
    """

    def __init__(self, world: World) -> None:
        self.skew_ms = 0
        self._world = world
        self._rate = 1.0
        self._since_us = 0  # of the world, when the rate was set
        self._elapsed_us = 0  # of this clock, by then

    def now_ms(self) -> int:
        return START_MS + self.skew_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return self._now_us() // 1000

    def set_rate(self, rate: float) -> None:
        """Run at `rate` seconds for each second of the world from here on."""
        self._elapsed_us, self._since_us = self._now_us(), self._world.now_us
        self._rate = rate

    def _now_us(self) -> int:
        return self._elapsed_us + int((self._world.now_us - self._since_us) * self._rate)


class WorldScheduler:
    """Scheduler of a node: the next turn of a node's loop is the next event of this instant."""

    def __init__(self, world: World, life: Life) -> None:
        self._world = world
        self._life = life

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._world.after(0, callback, self._life)
