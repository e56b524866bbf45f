"""The judge itself: it finds each kind of violation, and nothing in a good history."""

import random

import pytest

from tests.fault.history import Operation, Outcome, Read, RecordsRead, TailRead, find_violations

ACKNOWLEDGED = Operation("a", 0.0, 1.0, Outcome.ACKNOWLEDGED, index=5)


def records_read(started: float, ended: float, *records: tuple[int, str], more: bool = False) -> RecordsRead:
    """A linearizable read from index 4 on that showed `records`."""
    next_index = records[-1][0] + 1 if records else 4
    return RecordsRead(started, ended, True, 4, next_index, more, records)


def test_a_good_history_has_no_violation() -> None:
    operations = [
        ACKNOWLEDGED,
        Operation("b", 0.5, 1.5, Outcome.ACKNOWLEDGED, index=4, match_index=4),
        Operation("c", 2.0, 3.0, Outcome.UNKNOWN),
        Operation("d", 2.0, 3.0, Outcome.UNKNOWN, count=2),
        Operation("e", 2.0, 3.0, Outcome.NOT_APPLIED),
        Operation("f", 4.0, 5.0, Outcome.ACKNOWLEDGED, index=7, count=2),
    ]
    reads: list[Read] = [
        TailRead(0.1, 0.2, -1),
        TailRead(1.6, 1.7, 5),
        TailRead(4.0, 4.1, 6),
        records_read(2.1, 2.2, (4, "b"), (5, "a"), (6, "c")),
        records_read(6.0, 6.1, (4, "b"), more=True),
    ]
    log = [(4, "b"), (5, "a"), (6, "c"), (7, "f"), (8, "f+1")]
    assert find_violations(operations, reads, log) == []


def test_a_lost_a_doubled_and_a_moved_record_are_found() -> None:
    for log in ([], [(5, "a"), (6, "a")], [(6, "a")]):
        assert len(find_violations([ACKNOWLEDGED], [], log)) == 1


def test_an_append_that_is_torn_or_parted_is_found() -> None:
    whole = Operation("m", 0.0, 1.0, Outcome.ACKNOWLEDGED, index=5, count=2)
    unknown = Operation("m", 0.0, 1.0, Outcome.UNKNOWN, count=2)
    for log in ([(5, "m")], [(5, "m"), (7, "m+1")], [(5, "m+1"), (6, "m")]):
        assert len(find_violations([whole], [], log)) == 1
        assert len(find_violations([unknown], [], log)) == 1


def test_a_condition_that_did_not_hold_is_found() -> None:
    other = Operation("b", 0.0, 1.0, Outcome.ACKNOWLEDGED, index=4)
    for outcome in (Outcome.ACKNOWLEDGED, Outcome.UNKNOWN):
        moved = Operation("a", 0.0, 1.0, outcome, index=5, match_index=4)
        assert find_violations([moved], [], [(5, "a")]) == []  # 4 is a control record
        assert len(find_violations([other, moved], [], [(4, "b"), (5, "a")])) == 1
    early = Operation("a", 0.0, 1.0, Outcome.ACKNOWLEDGED, index=5, match_index=6)
    assert len(find_violations([early], [], [(5, "a")])) == 1


def test_a_record_from_nowhere_and_a_refused_record_are_found() -> None:
    refused = Operation("r", 0.0, 1.0, Outcome.NOT_APPLIED)
    assert len(find_violations([refused], [], [(0, "r"), (1, "ghost")])) == 2


def test_an_append_that_overtakes_an_earlier_one_is_found() -> None:
    late = Operation("late", 2.0, 3.0, Outcome.ACKNOWLEDGED, index=4)
    assert len(find_violations([ACKNOWLEDGED, late], [], [(4, "late"), (5, "a")])) == 1


def test_a_stale_read_is_found() -> None:
    assert len(find_violations([ACKNOWLEDGED], [TailRead(1.1, 1.2, 4)], [(5, "a")])) == 1
    assert len(find_violations([], [TailRead(0.0, 0.1, 7), TailRead(0.2, 0.3, 6)], [])) == 1
    assert len(find_violations([ACKNOWLEDGED], [records_read(1.1, 1.2)], [(5, "a")])) == 1


def test_a_read_of_the_future_is_found() -> None:
    late = Operation("late", 2.0, 3.0, Outcome.ACKNOWLEDGED, index=6)
    log = [(5, "a"), (6, "late")]
    assert len(find_violations([ACKNOWLEDGED, late], [TailRead(1.1, 1.2, 6)], log)) == 1
    ahead = RecordsRead(1.1, 1.2, False, 6, 7, False, ((6, "late"),))
    assert len(find_violations([ACKNOWLEDGED, late], [ahead], log)) == 1


def test_a_read_that_shows_something_else_or_leaves_something_out_is_found() -> None:
    operations = [ACKNOWLEDGED, Operation("b", 0.0, 1.0, Outcome.ACKNOWLEDGED, index=4)]
    log = [(4, "b"), (5, "a")]
    for shown in ([(4, "a"), (5, "b")], [(5, "a")], [(4, "b"), (5, "x")]):
        assert len(find_violations(operations, [records_read(2.0, 2.1, *shown)], log)) == 1


def perfect(chance: random.Random, size: int) -> tuple[list[Operation], list[Read], list[tuple[int, str]]]:
    """A history of a log that takes effect at one moment within each operation."""
    moments = sorted((chance.random() * size, number) for number in range(size))
    operations: list[Operation] = []
    reads: list[Read] = []
    log: list[tuple[int, str]] = []
    for moment, number in moments:
        started, ended = moment - chance.random() * 4, moment + chance.random() * 4
        if chance.random() < 0.4:
            reads.append(TailRead(started, ended, len(log) - 1))
        else:
            outcome = chance.choice((Outcome.ACKNOWLEDGED, Outcome.ACKNOWLEDGED, Outcome.UNKNOWN))
            index = len(log) if outcome is Outcome.ACKNOWLEDGED else None
            operations.append(Operation(f"v{number}", started, ended, outcome, index))
            log.append((len(log), f"v{number}"))
    return operations, reads, log


@pytest.mark.parametrize("seed", range(10))
def test_histories_of_a_perfect_log_pass_and_shifted_ones_do_not(seed: int) -> None:
    operations, reads, log = perfect(random.Random(seed), 400)
    assert find_violations(operations, reads, log) == []
    stale = [
        TailRead(r.started + 9, r.ended + 9, r.committed_index) for r in reads if isinstance(r, TailRead)
    ]
    assert find_violations(operations, stale, log) != []
    early = [
        TailRead(r.started - 9, r.ended - 9, r.committed_index) for r in reads if isinstance(r, TailRead)
    ]
    assert find_violations(operations, early, log) != []
