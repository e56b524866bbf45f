"""The judge itself: it finds each kind of violation, and nothing in a good history."""

from tests.fault.history import Operation, Outcome, TailRead, find_violations

ACKNOWLEDGED = Operation("a", 0.0, 1.0, Outcome.ACKNOWLEDGED, index=5)


def test_a_good_history_has_no_violation() -> None:
    operations = [
        ACKNOWLEDGED,
        Operation("b", 0.5, 1.5, Outcome.ACKNOWLEDGED, index=4),
        Operation("c", 2.0, 3.0, Outcome.UNKNOWN),
        Operation("d", 2.0, 3.0, Outcome.UNKNOWN),
        Operation("e", 2.0, 3.0, Outcome.NOT_APPLIED),
    ]
    reads = [TailRead(0.1, 0.2, -1), TailRead(1.6, 1.7, 5), TailRead(4.0, 4.1, 6)]
    assert find_violations(operations, reads, [(4, "b"), (5, "a"), (6, "c")]) == []


def test_a_lost_a_doubled_and_a_moved_record_are_found() -> None:
    for log in ([], [(5, "a"), (6, "a")], [(6, "a")]):
        assert len(find_violations([ACKNOWLEDGED], [], log)) == 1


def test_a_record_from_nowhere_and_a_refused_record_are_found() -> None:
    refused = Operation("r", 0.0, 1.0, Outcome.NOT_APPLIED)
    assert len(find_violations([refused], [], [(0, "r"), (1, "ghost")])) == 2


def test_an_append_that_overtakes_an_earlier_one_is_found() -> None:
    late = Operation("late", 2.0, 3.0, Outcome.ACKNOWLEDGED, index=4)
    assert len(find_violations([ACKNOWLEDGED, late], [], [(5, "a"), (4, "late")])) == 1


def test_a_stale_read_is_found() -> None:
    assert len(find_violations([ACKNOWLEDGED], [TailRead(1.1, 1.2, 4)], [(5, "a")])) == 1
    assert len(find_violations([], [TailRead(0.0, 0.1, 7), TailRead(0.2, 0.3, 6)], [])) == 1
