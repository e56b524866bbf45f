"""Clients of a simulated group: each appends one record after another by key until it knows, and reads."""

from collections.abc import Callable, Sequence
from typing import Protocol

from app.errors import CommitlogError, FlushSlaveTimeout
from app.log.contract import AppendRequest, AppendResult
from storage.format.records import RecordColumns
from tests.simulation.world.world import World

PATIENCE_US = 3_000_000  # then the answer is taken for lost
PAUSE_US = 20_000
LATE_MAX = 8  # so often the master may keep an append without its slaves before the client goes on
THINK_US = (1_000, 60_000)


class Door(Protocol):
    """A node as a client reaches it; nothing is answered while it is down."""

    def append(
        self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]
    ) -> None: ...
    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None: ...


class Ledger:
    """Answers to all clients. Drivers swallow the errors of a client: the run checks `violation`."""

    def __init__(self, *, loses: bool = False) -> None:
        """loses: the group may forget what it acknowledged (unclean elections), and readers see it."""
        self._loses = loses
        self.acknowledged: dict[str, int] = {}  # key -> index
        self.highest_index = -1
        self.reads = 0
        self.violation: str | None = None

    def note(self, key: str, result: AppendResult) -> None:
        known = self.acknowledged.setdefault(key, result.first_index)
        if known != result.first_index:
            self.violation = f"{key} was acknowledged at {known} and at {result.first_index}"
        self.highest_index = max(self.highest_index, result.last_index)

    def reader(self) -> Callable[[int | CommitlogError], None]:
        """A read begins now: it must see everything that was acknowledged before."""
        least = self.highest_index

        def done(result: int | CommitlogError) -> None:
            if isinstance(result, int):
                self.reads += 1
                if result < least and not self._loses:
                    self.violation = f"a read saw {result} after {least} was acknowledged"

        return done


class Client:
    """Asks the nodes in turn, and keeps to the one that answered; every other request is a read."""

    def __init__(
        self,
        name: str,
        world: World,
        doors: Sequence[Door],
        ledger: Ledger,
        think_us: tuple[int, int] = THINK_US,
        most_records: int = 1,
    ) -> None:
        """think_us: pause between two requests, from and to. most_records: of an append; half of them have
        one record, the others up to that many."""
        self._name = name
        self._think_us = think_us
        self._most_records = most_records
        self._records = 1  # of the append that goes on
        self._world = world
        self._doors = doors
        self._ledger = ledger
        self._door = world.random.randrange(len(doors))
        self._number = 0
        self._call = 0
        self._late = 0  # how often the append was answered with flush-slave-timeout

    def start(self) -> None:
        self._world.after(self._world.random.randint(*self._think_us), self._next)

    def _next(self) -> None:
        self._world.random.choice(self._doors).read_index(self._ledger.reader())
        self._number += 1
        self._late = 0
        if self._most_records > 1:
            chance = self._world.random
            self._records = 1 if chance.random() < 0.5 else chance.randint(2, self._most_records)
        self._append(f"{self._name}-{self._number}")

    def _append(self, key: str) -> None:
        self._call += 1
        call = self._call
        records = RecordColumns()
        records.add(key.encode())
        for number in range(1, self._records):
            records.add(f"{key}.{number}".encode())
        digest = key.encode().ljust(16)[:16]
        request = AppendRequest(records, timeout_ms=2_000, idempotency_key=key, digest=digest)

        def again() -> None:
            if call == self._call:
                self._door = (self._door + 1) % len(self._doors)
                self._append(key)

        def done(result: AppendResult | CommitlogError) -> None:
            if isinstance(result, AppendResult):
                self._ledger.note(key, result)  # also after the client's timeout: it was acknowledged
                if call == self._call:
                    self._call += 1
                    self.start()
            elif call == self._call:
                self._late += isinstance(result, FlushSlaveTimeout)
                if self._late < LATE_MAX:
                    self._world.after(PAUSE_US, again)
                else:  # a slave that began at a later segment never holds it (H-06)
                    self._call += 1
                    self.start()

        self._world.after(PATIENCE_US, again)
        self._doors[self._door].append(request, done)
