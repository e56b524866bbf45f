"""`sync_state_sets` beside another driver: a set is a row once, whichever driver has written it."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from spark_jobs.materialize.derived import SyncStateSetsTable
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import EVENTS
from tests.spark.no_spark import no_spark
from tests.spark.typed.law import rows_of


def events_of(sets: Sequence[int], first_seq: int = 0) -> pa.Table:
    """Return the events of a master that reports these sets, one after the other."""
    rows = [
        {
            "log": "default",
            "node": "n1",
            "seq": seq,
            "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
            "kind": "sync_state_set",
            "term": 1,
            "data": json.dumps(
                {"epoch": 1, "set_epoch": number, "master": "n1", "members": ["n1"], "confirm_offset": 0}
            ),
        }
        for seq, number in enumerate(sets, first_seq)
    ]
    return pa.Table.from_pylist(rows, arrow_schema(EVENTS.schema))


def test_a_driver_that_was_overtaken_adds_no_set_that_the_other_one_has_written(tmp_path: Path) -> None:
    """The master reports the set again after a restart, and the overtaken driver has not seen the first
    report."""
    path = tmp_path / "sync_state_sets"
    overtaken, other = (SyncStateSetsTable(no_spark(), str(path)) for _ in range(2))
    overtaken.open()
    other.open()
    other.append_from(events_of([1, 2]))
    overtaken.append_from(events_of([1]))
    overtaken.append_from(events_of([2, 2, 3], first_seq=1))
    other.append_from(events_of([2, 3, 4], first_seq=2))  # refused, and repeated with the last one
    other.append_from(events_of([4], first_seq=5))
    found = sorted((row["set_epoch"], row["seq"]) for row in rows_of(path))
    assert found == [(1, 0), (2, 1), (3, 3), (4, 4)]
