"""The consumer against a scripted node that keeps one cursor: moves by others, and answers that are lost."""

import json
import threading

import pytest

from app.client import CommitlogClient, ConditionFailed, Consumer, NoAnswer, Unavailable
from app.client.operations import Operations
from tests.unit.cli.fake_service import Asked, FakeService, Scripted, fake_service, problem

_MOVED = problem("cursor-moved", 412, "not_applied", retryable=False)
_ABSENT = problem("cursor-not-found", 404, "not_applied", retryable=False)


class OneCursor:
    """A cursor as a leader keeps it. lost: the number of moves whose answers do not arrive."""

    def __init__(self) -> None:
        self.lost = 0
        self._cursor: dict[str, object] | None = None
        self._version = 0
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Scripted:
        with self._lock:
            if asked.method == "PUT":
                current = None if self._cursor is None else f'"{self._version}"'
                if asked.headers.get("if-match") != current:
                    return _MOVED
                self._version += 1
                self._cursor = {"name": "etl", **json.loads(asked.body)}
                if self.lost:
                    self.lost -= 1
                    return Scripted(0)
            elif not asked.path.endswith("/cursors/etl"):
                return Scripted(404, {"code": "not-found"})
            elif self._cursor is None:
                return _ABSENT
            return Scripted(200, self._cursor, {"ETag": f'"{self._version}"'})


def consuming(service: FakeService) -> Consumer:
    return Consumer(CommitlogClient(service.url, give_up_s=0.0), "etl", start=0)


def test_a_second_consumer_that_reads_the_same_records_is_noticed() -> None:
    with fake_service(OneCursor()) as service:
        first, second = consuming(service), consuming(service)
        first.commit(10)
        with pytest.raises(ConditionFailed):
            second.commit(10)


def test_a_consumer_sets_its_fence_on_a_cursor_that_has_none() -> None:
    cursor = OneCursor()
    with fake_service(cursor) as service:
        consuming(service).commit(7)
        client = CommitlogClient(service.url, give_up_s=0.0)
        fenced = Consumer(client, "etl", fence=True)
        assert (fenced.position, fenced.committed) == (7, 7)
        assert Operations(client).cursor("etl").fence
        version = Operations(client).cursor("etl").version
        Consumer(client, "etl", fence=True).commit(7)
        assert Operations(client).cursor("etl").version == version
        fenced.commit(8)
        assert Operations(client).cursor("etl").fence


def test_a_consumer_knows_its_own_move_whose_answer_was_lost() -> None:
    cursor = OneCursor()
    with fake_service(cursor) as service:
        consumer = consuming(service)
        cursor.lost = 1
        with pytest.raises(NoAnswer):
            consumer.commit(10)
        consumer.commit(10)
        assert consumer.committed == 10
        cursor.lost = 1
        with pytest.raises(NoAnswer):
            consumer.commit(20)
        consumer.commit(30)  # the cursor is at 20, as this consumer left it
        assert consumer.committed == 30
        consumer.commit(40)


def test_two_consumers_that_create_the_cursor_at_once_share_it() -> None:
    cursor = OneCursor()

    def absent_once(asked: Asked) -> Scripted:
        return _ABSENT if asked.method == "GET" and len(service.asked) == 1 else cursor(asked)

    with fake_service(cursor) as other:
        consuming(other).commit(7)
    with fake_service(absent_once) as service:
        assert consuming(service).position == 7


@pytest.mark.rule("H-07")
def test_a_consumer_waits_for_its_own_move_that_no_slave_has_yet() -> None:
    """A master in classic mode refuses the repeat at once, and shows the move when slaves have it."""
    cursor, reads = OneCursor(), 0
    late = problem("flush-slave-timeout", 504, "applied", retryable=True)

    def answer(asked: Asked) -> Scripted:
        nonlocal before, reads
        if not asked.path.endswith("/cursors/etl"):
            return cursor(asked)
        if asked.method == "PUT":
            moved = cursor(asked)
            return late if moved.status == 200 else moved
        reads += 1
        if reads % 3 == 0:
            before = cursor(asked)
        return before

    before = _ABSENT
    with fake_service(answer) as service:
        consumer = Consumer(CommitlogClient(service.url, give_up_s=5.0), "etl", start=0)
        assert consumer.committed == 0
        again = Consumer(CommitlogClient(service.url, give_up_s=5.0), "etl")
        again.commit(10)
        assert again.committed == 10


@pytest.mark.rule("H-07")
def test_a_commit_ends_although_no_slave_gets_the_move() -> None:
    """In time, and not as if another consumer had moved the cursor."""
    cursor, moves = OneCursor(), 0

    def answer(asked: Asked) -> Scripted:
        nonlocal moves
        if asked.method == "PUT":
            moves += 1
            moved = cursor(asked)
            return problem("flush-slave-timeout", 504, "applied", retryable=True) if moves == 3 else moved
        return before if moves in range(3, 9) else cursor(asked)

    with fake_service(answer) as service:
        consumer = consuming(service)
        consumer.commit(10)
        before = cursor(Asked("GET", "/cursors/etl", {}, {}, b""))
        for _ in range(2):
            with pytest.raises((Unavailable, NoAnswer)):
                consumer.commit(20)
        assert (moves, consumer.committed) == (4, 10)
        moves = 9  # the slaves have it
        consumer.commit(20)
        assert consumer.committed == 20


def test_a_commit_that_ends_after_a_later_one_does_not_move_the_cursor_back() -> None:
    """As that of an AsyncConsumer whose caller has given it up: its call goes on in its thread."""
    cursor = OneCursor()

    def answer(asked: Asked) -> Scripted:
        if asked.method == "PUT" and json.loads(asked.body)["index"] == 10 and consumer.committed < 20:
            consumer.commit(20)
        return cursor(asked)

    with fake_service(answer) as service:
        consumer = consuming(service)
        consumer.commit(10)
        assert consuming(service).position == consumer.committed == 20
        consumer.commit(15)  # as its owner wants it
        assert consuming(service).position == 15
