"""Simulated clients: they append until they know (by key, by sequence) or once, and read; all is noted."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol
from zlib import crc32

import pyarrow as pa

from app.api.read.selection import Consistency
from app.errors import CommitlogError, CursorNotFound, IdempotencyKeyReused, Outcome
from app.log.commands import Command, CommandResult, MoveCursor
from app.log.contract import Acks, AppendRequest, AppendResult
from app.log.producers import Producer
from app.log.state import LogCursor
from storage.format.records import BODY_SCHEMA, RecordColumns, RecordTable
from tests.simulation.raft.checks import SafetyChecker
from tests.simulation.raft.reads import SHOWN_BEFORE, Asked, CursorDone, PageDone, ReadChecker, Shown
from tests.simulation.raft.sometimes import Sometimes
from tests.simulation.world.promises import Violation, value_of
from tests.simulation.world.world import World

PATIENCE_US = 3_000_000  # then the answer is taken for lost
PAUSE_US = 20_000
TIMEOUT_MS = 2_000
READ_SHARE = 0.2
MOVE_SHARE = 0.03  # of the requests that move a cursor
REPEAT_SHARE = 0.04  # that repeat the last append although it was acknowledged
PROBE_SHARE = 0.02  # that ask with an old key whether it is still remembered
TABLE_EACH = 2  # of the appends one in so many is a table
BURST_SHARE = 0.15  # of the appends that are sent once come with others at the same instant
BURST_APPENDS = 5
LARGE_SHARE = 0.3  # of the appends that hold more than one record
LARGE_RECORDS = 50
OLD_KEYS = 60  # that a client remembers: the oldest one may have expired

Answer = AppendResult | CommitlogError


class Door(Protocol):
    """A node as a client reaches it; nothing is answered while it is down."""

    @property
    def name(self) -> str: ...
    def append(self, request: AppendRequest, done: Callable[[Answer], None]) -> None: ...
    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None: ...
    def read_page(self, start_index: int, consistency: Consistency, done: PageDone) -> None: ...
    def read_cursor(self, name: str, done: CursorDone) -> None: ...
    def command(self, command: Command, done: Callable[[CommandResult | CommitlogError], None]) -> None: ...


class Ledger:
    """Answers to all clients together.

    A driver swallows the errors of a client, so answers are kept until `verify` checks them after the step.
    """

    def __init__(
        self, checker: SafetyChecker, sometimes: Sometimes, idempotency_ms: int, *, reads_cursors: bool
    ) -> None:
        """idempotency_ms: for how long keys are remembered."""
        self.acknowledged: dict[str, int] = {}  # value -> index
        self.highest_index = -1
        self.reads = 0
        self.replays = 0
        self.news = False
        self.reads_cursors = reads_cursors
        self.quiet_until_us = 0  # no client begins a request before
        self.idempotency_us = idempotency_ms * 1_000
        self.returned = ReadChecker(checker, sometimes)
        self._outcomes: dict[str, tuple[int, ...]] = {}  # of appends with a key or a producer: first answers
        self._moves: dict[str, int] = {}  # cursor -> revision of the newest acknowledged move
        self._checker = checker
        self._sometimes = sometimes
        self._fresh: list[tuple[str, int | None, AppendResult]] = []  # value, match_index, answer
        self._last_table = ("", 0, 0)  # value, term and offset of the batch, of the last table acknowledged
        self._problems: list[str] = []
        self._refused: dict[str, str] = {}  # values that were surely not appended -> why

    def answered(self, door: Door, request: AppendRequest, value: str, answer: Answer) -> None:
        """A client hears what became of its append at this node, be it late."""
        self.news = True
        self._sometimes.answered(door.name, answer)
        if isinstance(answer, AppendResult):
            self.replays += answer.replayed
            if answer.count != request.records.count:
                self._problems.append(f"{value} has {request.records.count} records, not {answer.count}")
            self._note_table(request, value, answer)
            if not is_asked_once(request):
                outcome = outcome_of(answer)
                first = self._outcomes.setdefault(value, outcome)
                if first != outcome:
                    self._problems.append(f"{value} was answered {first}, and then {outcome}")
            if request.acks is not Acks.LEADER:
                self._fresh.append((value, request.match_index, answer))
                self.highest_index = max(self.highest_index, answer.last_index)
        elif answer.outcome is Outcome.NOT_APPLIED and is_asked_once(request):
            self._refused[value] = type(answer).__name__  # nothing can append it after this answer

    def _note_table(self, request: AppendRequest, value: str, answer: AppendResult) -> None:
        """Look whether the last two acknowledged tables share a batch."""
        if isinstance(request.records, RecordTable):
            other, *batch = self._last_table
            if other != value and batch == [answer.term, answer.first_offset]:
                self._sometimes.hit("tables-shared")
            self._last_table = (value, answer.term, answer.first_offset)

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

    # --- what reads return

    def asked(self, cursor: str = "") -> Asked:
        """A read begins now."""
        return Asked(self.highest_index, cursor, self._moves.get(cursor, -1))

    def page_reader(self) -> PageDone:
        asked = self.asked()

        def done(answer: Shown | CommitlogError) -> None:
            if isinstance(answer, Shown):
                self.news = True
                self.returned.page(answer, asked)

        return done

    def cursor_reader(self, name: str) -> CursorDone:
        asked = self.asked(name)

        def done(answer: LogCursor | CommitlogError) -> None:
            if isinstance(answer, LogCursor | CursorNotFound):
                self.news = True
                self.returned.cursor(None if isinstance(answer, CommitlogError) else answer, asked)

        return done

    def moved(self, name: str, answer: CommandResult | CommitlogError) -> None:
        if isinstance(answer, CommandResult):
            self._moves[name] = max(self._moves.get(name, -1), answer.index)

    def probed(self, key: str, age_us: int, answer: Answer) -> None:
        """Another append with an old key was answered: the key is remembered, or old enough to be free."""
        if isinstance(answer, IdempotencyKeyReused):
            self._sometimes.hit("key-kept")
        elif isinstance(answer, AppendResult):
            self._sometimes.hit("key-expired")
            if age_us < self.idempotency_us // 2:
                self.news = True
                self._problems.append(f"key {key} was forgotten after {age_us / 1e6:.1f} s")

    def verify(self) -> None:
        """Raises Violation when an answer to a client was wrong."""
        self.news = False
        for problem in self._problems:
            raise Violation(problem)
        if (shown := self.returned.problem()) is not None:
            raise Violation(shown)
        fresh, self._fresh = self._fresh, []
        for value, match_index, result in fresh:
            if self._checker.committed_index < result.last_index <= self._checker.reported_index:
                # The copy of the leader has rotted before it was read: the next member to commit shows it.
                self._fresh.append((value, match_index, result))
                self.news = True
                continue
            self._checker.check_acknowledged(value, result)
            if match_index is not None and not self._checker.has_only_control(
                match_index, result.first_index
            ):
                raise Violation(f"{value} at {result.first_index} with match_index {match_index}")
            known = self.acknowledged.setdefault(value, result.first_index)
            if known != result.first_index:
                raise Violation(f"{value} was acknowledged at {known} and at {result.first_index}")

    def verify_refusals(self) -> None:
        """Raises Violation when a record is in the log although a client got the answer that it is not."""
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
        self._begun_us = 0  # of the append that is tried now
        self._last: tuple[AppendRequest, str] | None = None  # that was acknowledged
        self._old_keys: dict[str, int] = {}  # -> when it was used first

    def start(self) -> None:
        self._world.after(self._world.between(self._think_us), self._next)

    def _next(self) -> None:
        dice = self._world.random.random()
        if self._world.now_us < self._ledger.quiet_until_us:
            self._rest()
        elif dice < READ_SHARE:
            self._read()
        elif dice < READ_SHARE + MOVE_SHARE:
            self._move_cursor()
        elif dice < READ_SHARE + MOVE_SHARE + PROBE_SHARE and self._old_keys:
            self._probe()
        elif dice > 1 - REPEAT_SHARE and self._last is not None and not self._is_too_late:
            self._append(*self._last)
        else:
            self._number += 1
            self._begun_us = self._world.now_us
            self._append(*self._request())

    def _count(self) -> int:
        """Draw how many records the next append holds."""
        chance = self._world.random.random
        return 1 if chance() > LARGE_SHARE else 1 + int(chance() * LARGE_RECORDS)

    def _request(self) -> tuple[AppendRequest, str]:
        """The next append, and the value of its first record."""
        value = f"{self._name}-{self._number}"
        return append_of(value, count=self._count(), idempotency_key=value), value

    @property
    def _is_too_late(self) -> bool:
        """Return True if a repeat could arrive after its key has been forgotten."""
        return self._world.now_us - self._begun_us > self._ledger.idempotency_us // 3

    def _append(self, request: AppendRequest, value: str) -> None:
        call = self._begin(lambda: self._silent(request, value))
        door = self._doors[self._door]

        def done(answer: Answer) -> None:
            self._ledger.answered(door, request, value, answer)
            if call == self._call:
                self._call += 1
                if isinstance(answer, AppendResult):
                    self._remember(request, value, answer)
                    self._rest()
                else:
                    self._refused(request, value)

        door.append(request, done)

    def _remember(self, request: AppendRequest, value: str, answer: AppendResult) -> None:
        """Keep what may be repeated, and keys to ask for later."""
        if is_asked_once(request):
            return
        self._last = None if answer.replayed else (request, value)
        if request.idempotency_key is not None:
            self._old_keys[request.idempotency_key] = self._begun_us
            while len(self._old_keys) > OLD_KEYS:
                del self._old_keys[next(iter(self._old_keys))]

    def _refused(self, request: AppendRequest, value: str) -> None:
        """Try the next node, soon."""
        self._move_on()
        if self._is_too_late:
            self._give_up()
        else:
            self._world.after(PAUSE_US, lambda: self._append(request, value))

    def _silent(self, request: AppendRequest, value: str) -> None:
        """No answer has arrived in time: the outcome is unknown."""
        if self._is_too_late:
            self._give_up()
        else:
            self._append(request, value)

    def _give_up(self) -> None:
        """Leave an append whose key may be forgotten by the next try."""
        self._rest()

    def _read(self) -> None:
        call = self._begin(self._rest)

        def over(_answer: object) -> None:
            if call == self._call:
                self._call += 1
                self._rest()

        read_anything(self._world, self._doors[self._door], self._ledger, self._cursor, over)

    @property
    def _cursor(self) -> str:
        return f"r-{self._name}"

    def _move_cursor(self) -> None:
        call = self._begin(self._rest)
        position = int(self._world.random.random() * (self._ledger.highest_index + 2))
        name = self._cursor

        def done(answer: CommandResult | CommitlogError) -> None:
            self._ledger.moved(name, answer)
            if call == self._call:
                self._call += 1
                if isinstance(answer, CommitlogError):
                    self._move_on()
                self._rest()

        self._doors[self._door].command(MoveCursor(name, position, fence=False), done)

    def _probe(self) -> None:
        """Ask once, with the oldest key and another record."""
        call = self._begin(self._rest)
        key = next(iter(self._old_keys))
        used_us = self._old_keys.pop(key)
        self._number += 1

        def done(answer: Answer) -> None:
            self._ledger.probed(key, self._world.now_us - used_us, answer)
            if call == self._call:
                self._call += 1
                if isinstance(answer, CommitlogError):
                    self._move_on()
                self._rest()

        request = append_of(f"{self._name}-{self._number}", idempotency_key=key)
        self._doors[self._door].append(request, done)

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
    """Retries by producer and sequence; sometimes a new incarnation takes over with the next epoch."""

    _epoch = 0
    _sequence = -1

    def _request(self) -> tuple[AppendRequest, str]:
        if self._sequence >= 0 and self._world.random.random() < 0.05:
            self._epoch, self._sequence = self._epoch + 1, -1
        self._sequence += 1
        value = f"{self._name}-{self._epoch}-{self._sequence}"
        producer = Producer(self._name, self._epoch, self._sequence)
        return append_of(value, count=self._count(), producer=producer), value

    def _give_up(self) -> None:
        """The outcome of this sequence is unknown: continue in the next epoch."""
        self._epoch, self._sequence = self._epoch + 1, -1
        self._last = None
        self._rest()


class OneShotClient(Client):
    """Send each request once and accept the answer, with all kinds of acks and conditions; never a key.

    Some requests are sent together with others, which share their batch.
    """

    def _append(self, request: AppendRequest, value: str) -> None:
        chance = self._world.random.random
        if chance() < BURST_SHARE:
            door = self._doors[self._door]
            for _ in range(int(chance() * BURST_APPENDS)):
                self._number += 1
                other, name = self._request()
                door.append(other, partial(self._ledger.answered, door, other, name))
        super()._append(request, value)

    def _request(self) -> tuple[AppendRequest, str]:
        value = f"{self._name}-{self._number}"
        dice = self._world.random.random()
        acks = Acks.LEADER if dice < 0.1 else Acks.ALL if dice < 0.2 else Acks.QUORUM
        match_index = self._ledger.highest_index + 1 if dice > 0.8 else None
        return append_of(value, count=self._count(), acks=acks, match_index=match_index), value

    def _refused(self, request: AppendRequest, value: str) -> None:
        self._move_on()
        self._rest()

    def _silent(self, request: AppendRequest, value: str) -> None:
        self._rest()


class Reader:
    """Reads at one node after another, at random, and never waits for the answer."""

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
        read_anything(self._world, door, self._ledger, "r-c0", lambda _answer: None)
        self.start()


def read_anything(
    world: World, door: Door, ledger: Ledger, cursor: str, over: Callable[[object], None]
) -> None:
    """Ask for a read index, a page of records or a cursor; over(answer) when the answer has been noted."""

    def then(check: Callable[[Any], None]) -> Callable[[Any], None]:
        def done(answer: Any) -> None:
            check(answer)
            over(answer)

        return done

    dice = world.random.random()
    if dice < 0.4:
        door.read_index(then(ledger.reader()))
    elif dice < 0.85 or not ledger.reads_cursors:
        consistency = Consistency.LINEARIZABLE if dice < 0.7 else Consistency.COMMITTED
        start_index = max(0, ledger.highest_index - int(world.random.random() * SHOWN_BEFORE))
        door.read_page(start_index, consistency, then(ledger.page_reader()))
    else:
        door.read_cursor(cursor, then(ledger.cursor_reader(cursor)))


def outcome_of(answer: AppendResult) -> tuple[int, ...]:
    """Return what a repeat by key must be answered, too."""
    return (
        answer.first_index,
        answer.last_index,
        answer.term,
        answer.first_offset,
        answer.next_offset,
        answer.timestamp_ms,
    )


def is_asked_once(request: AppendRequest) -> bool:
    return request.idempotency_key is None and request.producer is None


def append_of(
    value: str,
    *,
    count: int = 1,
    acks: Acks = Acks.QUORUM,
    match_index: int | None = None,
    idempotency_key: str | None = None,
    producer: Producer | None = None,
) -> AppendRequest:
    """Return an append of `count` records; the first one's value is its name. One in TABLE_EACH is a table,
    as Arrow and packed bodies are; so is each of its repeats."""
    columns = RecordColumns()
    for number in range(count):
        columns.add(value_of(value, number).encode())
    return AppendRequest(
        columns if crc32(value.encode()) % TABLE_EACH else _table_of(columns),
        acks=acks,
        timeout_ms=TIMEOUT_MS,
        match_index=match_index,
        idempotency_key=idempotency_key,
        producer=producer,
        digest=value.encode().ljust(16)[:16],
    )


def _table_of(columns: RecordColumns) -> RecordTable:
    rows = [pa.nulls(columns.count, field.type) for field in BODY_SCHEMA]
    rows[BODY_SCHEMA.get_field_index("value")] = pa.array(columns.values, pa.binary())
    return RecordTable(pa.RecordBatch.from_arrays(rows, schema=BODY_SCHEMA), columns.size_bytes)
