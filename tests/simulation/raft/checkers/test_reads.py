"""The check of what reads return finds what was never committed, what differs, and what is too old."""

from collections.abc import Mapping
from typing import Any

import pytest

from app.api.read.selection import Consistency
from app.log.state import LogCursor
from tests.simulation.raft.checks import SafetyChecker
from tests.simulation.raft.reads import Asked, ReadChecker, Shown
from tests.simulation.raft.sometimes import Sometimes

NEWEST = 5
VALUES: Mapping[int, str] = {
    1: "a",
    2: "b",
    4: "c",
    5: "d",
}  # of the data records; 0 and 3 are control records
CURSOR = LogCursor(4, False, 3, None)  # moved to 4 by the record at 3
NOTHING = Asked(-1, "etl", -1)


@pytest.fixture
def reads() -> ReadChecker:
    nodes: Any = {}
    sometimes = Sometimes(nodes)
    checker = SafetyChecker(nodes, sometimes)
    checker.committed_index = NEWEST
    checker.values.update(VALUES)
    checker.cursors[CURSOR.revision] = ("etl", CURSOR.position)
    return ReadChecker(checker, sometimes)


def page(
    records: Mapping[int, str],
    *,
    start: int = 1,
    end: int = NEWEST,
    consistency: Consistency = Consistency.LINEARIZABLE,
    is_full: bool = False,
) -> Shown:
    return Shown(consistency, start, end + 1, list(records.items()), is_full)


@pytest.mark.rule("R-08")
@pytest.mark.parametrize("consistency", [Consistency.LINEARIZABLE, Consistency.COMMITTED])
def test_a_page_has_the_committed_records_of_its_range(reads: ReadChecker, consistency: Consistency) -> None:
    before = Asked(NEWEST, "", -1)
    reads.page(page(VALUES, consistency=consistency), before)
    reads.page(page({2: "b"}, start=2, end=3, is_full=True), before)  # more follows
    reads.page(page({1: "a"}, end=1, consistency=Consistency.COMMITTED), before)
    assert reads.problem() is None
    for shown in (
        {**VALUES, 5: "x"},  # another record
        {1: "a", 2: "b", 4: "c"},  # one is left out
        {**VALUES, 3: "control"},  # one from nowhere
    ):
        reads.page(page(shown, consistency=consistency), NOTHING)
        assert "committed is" in (reads.problem() or "")
    reads.page(page({**VALUES, 6: "e"}, end=6, consistency=consistency), NOTHING)
    assert "a read showed 1 to 6; committed is 5" in (reads.problem() or "")


@pytest.mark.rule("R-08")
def test_a_linearizable_page_ends_after_what_was_acknowledged_before_it(reads: ReadChecker) -> None:
    reads.page(page({1: "a", 2: "b"}, end=3), Asked(4, "", -1))
    assert reads.problem() == "a read ended at 3 after 4 was acknowledged"


@pytest.mark.rule("R-08")
def test_a_cursor_is_one_that_was_committed_and_no_older_than_its_last_move(reads: ReadChecker) -> None:
    reads.cursor(CURSOR, Asked(-1, "etl", CURSOR.revision))
    reads.cursor(None, NOTHING)
    assert reads.problem() is None
    for shown, asked in (
        (LogCursor(9, False, CURSOR.revision), NOTHING),  # a position that it never had
        (LogCursor(CURSOR.position, False, 2), NOTHING),  # a move that was never committed
        (CURSOR, Asked(-1, "other", -1)),  # the cursor of another name
        (CURSOR, Asked(-1, "etl", CURSOR.revision + 1)),  # before a later move
        (None, Asked(-1, "etl", CURSOR.revision)),  # none at all
    ):
        reads.cursor(shown, asked)
        assert reads.problem() is not None
