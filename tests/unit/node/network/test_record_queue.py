"""Messages with records that wait for the link: in order, no repeats, no pushes of an earlier session."""

from typing import Any

import pytest

from app.node.network.record_queue import RecordQueue
from app.raft.messages import PushRequest, PushType, StateRequest
from storage.format.batch import FIRST_CHAIN, stamp
from storage.format.records import RecordColumns, encode_body


def push(index: int, *, session: int = 1, term: int = 3) -> PushRequest:
    records = RecordColumns()
    records.add(b"value")
    stamped = {"log_id": 5, "base_index": index, "term": 3, "timestamp_ms": 0, "offset": 0}
    batch = stamp(encode_body(records), **stamped, previous_chain=FIRST_CHAIN)
    return PushRequest(term, PushType.APPEND, "n1", 0, session, 0, index - 1, 3, 0, False, False, (batch,))


def compare(session: int, term: int = 3) -> PushRequest:
    return PushRequest(term, PushType.COMPARE, "n1", 0, session, 0, 7, 3, 0, False, False, ())


def drain(queue: RecordQueue, max_bytes: int = 1 << 20) -> bytes:
    whole = b""
    while queue.size_bytes:
        taken = queue.take(max_bytes)
        assert 0 < sum(map(len, taken)) <= max_bytes
        whole += b"".join(taken)
    assert queue.take(max_bytes) == []
    return whole


@pytest.mark.parametrize("max_bytes", [1, 3, 100])
def test_bytes_leave_in_order_whatever_the_size_of_the_parts(max_bytes: int) -> None:
    queue = RecordQueue()
    for number in range(5):
        queue.put(5, push(number), [b"<", b"%d" % number * 4, memoryview(b">")])
    assert drain(queue, max_bytes) == b"<0000><1111><2222><3333><4444>"


@pytest.mark.rule("D-07")
def test_a_push_that_waits_is_held_until_its_last_byte_has_left() -> None:
    queue = RecordQueue()
    queue.put(5, push(1), [b"abcd"])
    assert queue.holds(5, push(1))
    others: tuple[Any, ...] = (push(2), push(1, session=2), push(1, term=4), compare(1), StateRequest(1, 2))
    assert not any(queue.holds(5, other) for other in others)
    assert not queue.holds(6, push(1))
    queue.take(3)
    assert queue.holds(5, push(1))
    queue.take(3)
    assert not queue.holds(5, push(1))


def test_an_empty_queue_keeps_nothing_of_the_logs_that_it_had_pushes_of() -> None:
    """A connection may last for months, and logs come and go meanwhile."""
    queue = RecordQueue()
    for log_id in range(100):
        queue.put(log_id, push(1), [b"abcd"])
        queue.take(3)
    drain(queue)
    held = [each for each in vars(queue).values() if not isinstance(each, int)]
    assert [len(each) for each in held] == [0, 0, 0]


@pytest.mark.rule("D-14")
def test_a_later_session_removes_the_pushes_of_earlier_ones() -> None:
    queue = RecordQueue()
    queue.put(5, push(1), [b"begun."])
    queue.put(5, push(2), [b"stale."])
    queue.put(6, push(2), [b"another log."])
    queue.put(5, compare(1), [b"old."])
    queue.take(2)
    queue.put(5, compare(2), [b"new."])
    assert not queue.holds(5, push(2))
    queue.put(5, push(2, session=2), [b"again."])
    queue.put(5, compare(1, term=4), [b"later term."])
    assert drain(queue) == b"gun.another log.later term."


def test_an_answer_of_another_kind_stays() -> None:
    queue = RecordQueue()
    state: Any = StateRequest(1, 2)
    queue.put(5, state, [b"state."])
    queue.put(5, compare(2), [b"new."])
    assert drain(queue) == b"state.new."
