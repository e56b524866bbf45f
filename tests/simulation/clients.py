"""Simulated clients: each appends one record after another by idempotency key until it knows, and reads."""

from collections.abc import Callable, Sequence
from typing import Protocol

from app.errors import CommitlogError
from app.replication import AppendRequest, AppendResult
from storage.records import RecordColumns
from tests.simulation.world import World

PATIENCE_US = 3_000_000  # then the answer is taken for lost
PAUSE_US = 20_000


class Door(Protocol):
    """A node as a client reaches it; nothing is answered while it is down."""

    def append(
        self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]
    ) -> None: ...
    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None: ...


class Ledger:
    """What all clients together have been told.

    A driver swallows whatever a client raises, so a broken promise is noted in `violation`, not raised.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}  # key -> index
        self.highest_index = -1
        self.reads = 0
        self.replays = 0
        self.violation: str | None = None

    def note(self, key: str, result: AppendResult) -> None:
        known = self.acknowledged.setdefault(key, result.first_index)
        if known != result.first_index:
            self.violation = f"{key} was acknowledged at {known} and at {result.first_index}"
        self.highest_index = max(self.highest_index, result.last_index)
        self.replays += result.replayed

    def reader(self) -> Callable[[int | CommitlogError], None]:
        """A read begins now: take its answer, and see that it misses nothing acknowledged before (R-08)."""
        least = self.highest_index

        def done(result: int | CommitlogError) -> None:
            if isinstance(result, int):
                self.reads += 1
                if result < least:
                    self.violation = f"a read saw {result} after {least} was acknowledged"

        return done


class Client:
    """Asks the nodes in turn; keeps to the one that answered. Works for ever: the cluster's run ends it."""

    def __init__(
        self, name: str, world: World, doors: Sequence[Door], ledger: Ledger, think_us: tuple[int, int]
    ) -> None:
        """think_us: how long it rests between two requests."""
        self._think_us = think_us
        self._name = name
        self._world = world
        self._doors = doors
        self._ledger = ledger
        self._door = world.random.randrange(len(doors))
        self._number = 0
        self._call = 0

    def start(self) -> None:
        self._world.after(self._world.random.randint(*self._think_us), self._next)

    def _next(self) -> None:
        if self._world.random.random() < 0.2:
            self._read()
        else:
            self._number += 1
            self._append(f"{self._name}-{self._number}")

    def _rest(self) -> None:
        self._world.after(self._world.random.randint(*self._think_us), self._next)

    def _append(self, key: str) -> None:
        call = self._begin(lambda: self._append(key))
        records = RecordColumns()
        records.add(key.encode())
        request = AppendRequest(
            records, timeout_ms=2_000, idempotency_key=key, digest=key.encode().ljust(16)[:16]
        )

        def done(result: AppendResult | CommitlogError) -> None:
            if isinstance(result, AppendResult):
                self._ledger.note(
                    key, result
                )  # also when the client has stopped to wait: it was acknowledged
            if call != self._call:
                return
            if isinstance(result, AppendResult):
                self._finish()
            else:
                self._again(lambda: self._append(key))

        self._doors[self._door].append(request, done)

    def _read(self) -> None:
        call = self._begin(self._rest)
        check = self._ledger.reader()

        def done(result: int | CommitlogError) -> None:
            check(result)
            if call == self._call:
                self._call += 1
                self._rest()

        self._doors[self._door].read_index(done)

    def _begin(self, on_silence: Callable[[], None]) -> int:
        self._call += 1
        call = self._call

        def give_up() -> None:
            if call == self._call:
                self._move_on()
                on_silence()

        self._world.after(PATIENCE_US, give_up)
        return call

    def _finish(self) -> None:
        self._call += 1
        self._rest()

    def _again(self, action: Callable[[], None]) -> None:
        self._call += 1
        self._move_on()
        self._world.after(PAUSE_US, action)

    def _move_on(self) -> None:
        self._door = (self._door + 1) % len(self._doors)


class Reader:
    """Asks one node after another, at random, for a read index, and never waits for the answer."""

    def __init__(
        self, world: World, doors: Sequence[Door], ledger: Ledger, pause_us: tuple[int, int]
    ) -> None:
        self._world = world
        self._doors = doors
        self._ledger = ledger
        self._pause_us = pause_us

    def start(self) -> None:
        self._world.after(self._world.random.randint(*self._pause_us), self._read)

    def _read(self) -> None:
        self._doors[self._world.random.randrange(len(self._doors))].read_index(self._ledger.reader())
        self.start()
