"""The tables of journals: events of each node once, and in order."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from spark_jobs.tables.journal_table import JournalTable
from spark_jobs.tables.schemas import EVENTS as EVENTS_COLUMNS
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import EVENTS
from tests.spark.no_spark import no_spark

AT = datetime(2026, 1, 1, tzinfo=UTC)


def events(node: str, first: int, until: int) -> pa.Table:
    row = {"log": "default", "node": node, "timestamp": AT, "kind": "start", "term": 1, "data": "{}"}
    return pa.Table.from_pylist(
        [{**row, "seq": seq} for seq in range(first, until)], arrow_schema(EVENTS_COLUMNS)
    )


def test_each_node_adds_events_however_far_the_others_are(tmp_path: Path) -> None:
    one, two = (JournalTable(no_spark(), str(tmp_path / "events"), EVENTS) for _ in range(2))
    one.open()
    two.open()
    one.append(events("n1", 0, 10))
    one.append(events("n2", 0, 2))
    one.append(events("n2", 2, 4))
    two.append(events("n1", 0, 11))  # of a driver that has not read the table since
    two.append(events("n2", 3, 5))
    assert two.positions == {"n1": 11, "n2": 5}
    two.refresh()
    assert (two.positions, two.rows) == ({"n1": 11, "n2": 5}, 16)
