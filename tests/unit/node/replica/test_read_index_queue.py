"""Linearizable reads that wait for their index: each is answered once, and leaves the queue."""

from app.errors import CommitlogError, ReadIndexUnavailable
from app.node.replica.commit_waiters import CommitWaiters
from app.node.replica.read_index_queue import ReadGate

Answers = list[int | CommitlogError]


def test_a_read_that_has_its_index_is_not_counted_until_its_deadline() -> None:
    """Or the metric of waiting reads grows with the reads of the last seconds."""
    waiters, answers = CommitWaiters(), Answers()
    gate = ReadGate(1_000, waiters.add)
    for index in (5, 5, 9):
        gate.give(answers.append, index, now_ms=0)
    assert gate.waiting_count == 3
    waiters.wake(5)
    gate.give_up(10)
    assert (answers, gate.waiting_count) == ([5, 5], 1)
    gate.give_up(1_000)
    assert isinstance(answers[2], ReadIndexUnavailable)
    waiters.wake(9)
    assert (len(answers), gate.waiting_count) == (3, 0)
