"""Simulated clients: they append until they know (by key, by sequence) or once, and read; all is noted."""

from collections.abc import Callable, Sequence
from typing import Protocol

from app.errors import CommitlogError
from app.errors.base import Outcome
from app.replication import Acks, AppendRequest, AppendResult, Producer
from storage.records import RecordColumns
from tests.simulation.checks import SafetyChecker, Violation
from tests.simulation.sometimes import Sometimes
from tests.simulation.world import World

PATIENCE_US = 3_000_000  # then the answer is taken for lost
PAUSE_US = 20_000
TIMEOUT_MS = 2_000
READ_SHARE = 0.2

Answer = AppendResult | CommitlogError


class Door(Protocol):
    """A node as a client reaches it; nothing is answered while it is down."""

    @property
    def name(self) -> str: ...
    def append(self, request: AppendRequest, done: Callable[[Answer], None]) -> None: ...
    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None: ...


class Ledger:
    """What all clients together have been told.

    A driver swallows whatever a client raises, so news are kept until `verify` looks at them after the step.
    """

    def __init__(self, checker: SafetyChecker, sometimes: Sometimes) -> None:
        self.acknowledged: dict[str, int] = {}  # value -> index
        self.highest_index = -1
        self.reads = 0
        self.replays = 0
        self.news = False
        self._checker = checker
        self._sometimes = sometimes
        self._fresh: list[tuple[str, AppendResult]] = []
        self._problems: list[str] = []
        self._refused: dict[str, str] = {}  # values that were surely not appended -> why

    def answered(self, door: Door, request: AppendRequest, value: str, answer: Answer) -> None:
        """A client hears what became of its append at this node, be it late."""
        self.news = True
        self._sometimes.answered(door.name, answer)
        if isinstance(answer, AppendResult):
            self.replays += answer.replayed
            if request.match_index is not None and answer.first_index != request.match_index:
                self._problems.append(f"{value} at {answer.first_index}, not at {request.match_index}")
            if request.acks is not Acks.LEADER:
                self._fresh.append((value, answer))
                self.highest_index = max(self.highest_index, answer.last_index)
        elif answer.outcome is Outcome.NOT_APPLIED and is_asked_once(request):
            self._refused[value] = type(answer).__name__  # nothing can append it after this answer

    def reader(self) -> Callable[[int | CommitlogError], None]:
        """A read begins now: take its answer, and see that it misses nothing acknowledged before (R-08)."""
        least = self.highest_index

        def done(answer: int | CommitlogError) -> None:
            self._sometimes.read(answer)
            if isinstance(answer, int):
                self.reads += 1
                if answer < least:
                    self.news = True
                    self._problems.append(f"a read saw {answer} after {least} was acknowledged")

        return done

    def verify(self) -> None:
        """Raises Violation when clients were told what is not so."""
        self.news = False
        for problem in self._problems:
            raise Violation(problem)
        for value, result in self._fresh:
            self._checker.check_acknowledged(value, result)
            known = self.acknowledged.setdefault(value, result.first_index)
            if known != result.first_index:
                raise Violation(f"{value} was acknowledged at {known} and at {result.first_index}")
        self._fresh.clear()

    def verify_refusals(self) -> None:
        """Raises Violation when a record stands in the log of which a client was told that it does not."""
        for value, reason in self._refused.items():
            place = self._checker.places.get(value)
            if place is not None:
                raise Violation(f"{value} was refused ({reason}) but stands at {place}")


class Client:
    """Asks the nodes in turn; keeps to the one that answered. Works for ever: the cluster's run ends it.

    This one retries by idempotency key.
    """

    def __init__(
        self, name: str, world: World, doors: Sequence[Door], ledger: Ledger, think_us: tuple[int, int]
    ) -> None:
        """think_us: how long it rests between two requests."""
        self._think_us = think_us
        self._name = name
        self._world = world
        self._doors = doors
        self._ledger = ledger
        self._door = int(world.random.random() * len(doors))
        self._number = 0
        self._call = 0

    def start(self) -> None:
        self._world.after(self._world.between(self._think_us), self._next)

    def _next(self) -> None:
        if self._world.random.random() < READ_SHARE:
            self._read()
        else:
            self._number += 1
            self._append(*self._request())

    def _request(self) -> tuple[AppendRequest, str]:
        """The next append, and the value of its record."""
        value = f"{self._name}-{self._number}"
        return append_of(value, idempotency_key=value), value

    def _append(self, request: AppendRequest, value: str) -> None:
        call = self._begin(lambda: self._silent(request, value))
        door = self._doors[self._door]

        def done(answer: Answer) -> None:
            self._ledger.answered(door, request, value, answer)
            if call == self._call:
                self._call += 1
                if isinstance(answer, AppendResult):
                    self._rest()
                else:
                    self._refused(request, value)

        door.append(request, done)

    def _refused(self, request: AppendRequest, value: str) -> None:
        """Try the next node, soon."""
        self._move_on()
        self._world.after(PAUSE_US, lambda: self._append(request, value))

    def _silent(self, request: AppendRequest, value: str) -> None:
        """No answer has come in time: nobody knows."""
        self._append(request, value)

    def _read(self) -> None:
        call = self._begin(self._rest)
        check = self._ledger.reader()

        def done(answer: int | CommitlogError) -> None:
            check(answer)
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

    def _rest(self) -> None:
        self._world.after(self._world.between(self._think_us), self._next)

    def _move_on(self) -> None:
        self._door = (self._door + 1) % len(self._doors)


class ProducingClient(Client):
    """Retries by producer and sequence; now and then a new life of it takes over with the next epoch."""

    _epoch = 0
    _sequence = -1

    def _request(self) -> tuple[AppendRequest, str]:
        if self._sequence >= 0 and self._world.random.random() < 0.05:
            self._epoch, self._sequence = self._epoch + 1, -1
        self._sequence += 1
        value = f"{self._name}-{self._epoch}-{self._sequence}"
        return append_of(value, producer=Producer(self._name, self._epoch, self._sequence)), value


class OneShotClient(Client):
    """Asks once and takes what it is told, with all kinds of acks and conditions; never a key."""

    def _request(self) -> tuple[AppendRequest, str]:
        value = f"{self._name}-{self._number}"
        dice = self._world.random.random()
        acks = Acks.LEADER if dice < 0.1 else Acks.ALL if dice < 0.2 else Acks.QUORUM
        match_index = self._ledger.highest_index + 1 if dice > 0.8 else None
        return append_of(value, acks=acks, match_index=match_index), value

    def _refused(self, request: AppendRequest, value: str) -> None:
        self._move_on()
        self._rest()

    def _silent(self, request: AppendRequest, value: str) -> None:
        self._rest()


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
        self._world.after(self._world.between(self._pause_us), self._read)

    def _read(self) -> None:
        door = self._doors[int(self._world.random.random() * len(self._doors))]
        door.read_index(self._ledger.reader())
        self.start()


def is_asked_once(request: AppendRequest) -> bool:
    return request.idempotency_key is None and request.producer is None


def append_of(
    value: str,
    *,
    acks: Acks = Acks.QUORUM,
    match_index: int | None = None,
    idempotency_key: str | None = None,
    producer: Producer | None = None,
) -> AppendRequest:
    """An append of one record."""
    records = RecordColumns()
    records.add(value.encode())
    return AppendRequest(
        records,
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        match_index=match_index,
        idempotency_key=idempotency_key,
        producer=producer,
        digest=value.encode().ljust(16)[:16],
    )
