"""A change of a table is repeated when another writer was first, and after no other error."""

import pytest
from pyspark.errors import PySparkException

from spark_jobs.tables.conflicts import CONFLICTS, repeated


@pytest.mark.parametrize(
    ("errors", "runs", "is_refused"),
    [
        ((), 1, False),
        (("DELTA_CONCURRENT_APPEND",), 2, False),
        (("DELTA_METADATA_CHANGED",), 2, False),
        (("DELTA_CONCURRENT_APPEND",) * 3, 3, True),
        (("DELTA_CONCURRENT_APPEND", "OTHER"), 2, True),
    ],
)
def test_a_change_is_repeated_after_a_conflict_alone(
    errors: tuple[str, ...], runs: int, is_refused: bool
) -> None:
    due, count = list(errors), 0

    def change() -> None:
        nonlocal count
        count += 1
        if due:
            raise PySparkException(f"[{due.pop(0)}] not now")

    try:
        repeated(change, CONFLICTS, 3)
    except PySparkException:
        assert is_refused
    else:
        assert not is_refused
    assert count == runs
