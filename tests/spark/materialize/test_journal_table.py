"""The tables of journals: events of each node once, and in order."""

import json
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from app.tables.delta_log import LOG_FOLDER, DeltaLog
from app.tables.table_files import DataFile
from spark_jobs.materialize.journal_table import JournalTable
from spark_jobs.tables import snapshot as snapshots
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.local.data_files import write_file
from spark_jobs.tables.removals import TableReplaced
from spark_jobs.tables.schemas import EVENTS as EVENTS_COLUMNS
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.snapshot import ROWS_AT_ONCE, TableFile, read_plain, read_rows
from spark_jobs.tables.table import EVENTS, TableClash
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


def test_the_progress_is_read_without_keeping_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of years do not fit into memory at once."""
    table = JournalTable(no_spark(), str(tmp_path / "events"), EVENTS)
    table.open()
    count = 5 * ROWS_AT_ONCE
    table.append(events("n1", 0, count))
    seen: list[weakref.ref[pa.RecordBatch]] = []
    kept: list[int] = []

    def read(file: TableFile | DataFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
        for rows in read_rows(file, columns):
            seen.append(weakref.ref(rows))
            kept.append(sum(each() is not None for each in seen))
            yield rows

    monkeypatch.setattr(snapshots, "read_rows", read)
    table.refresh()
    assert (table.positions, table.rows) == ({"n1": count}, count)
    assert len(kept) == 5
    assert max(kept) <= 2


def followed(folder: Path) -> JournalTable:
    """A table of two nodes that its job has extended twice."""
    table = JournalTable(no_spark(), str(folder), EVENTS)
    table.open()
    table.append(events("n1", 0, 10))
    table.append(pa.concat_tables([events("n1", 10, 20), events("n2", 0, 5)]))
    return table


def leave(table: JournalTable, operation: str, kept: pc.Expression) -> None:
    """Make a commit of a user after which only these rows are left."""
    rows = read_plain(table.path, EVENTS_COLUMNS, EVENTS_COLUMNS.names, kept)
    snapshot = DeltaLog(table.path).snapshot()
    assert rows is not None
    assert snapshot is not None
    actions = [{"remove": {"path": path, "dataChange": True}} for path in snapshot.files]
    added = [write_file(Path(table.path), rows, EVENTS.statistics).action()]
    lines = [{"commitInfo": {"operation": operation}}, *actions, *added]
    name = Path(table.path) / LOG_FOLDER / f"{snapshot.version + 1:020d}.json"
    name.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize("has_events", [True, False])
@pytest.mark.parametrize(
    ("operation", "kept", "lost"),
    [
        ("RESTORE", (pc.field("node") == "n1") & (pc.field("seq") < 10), "n1 from seq 10"),
        ("RESTORE", pc.field("node") == "n1", "n2 from seq 0"),
        ("DELETE", pc.field("seq") < 3, "n1 from seq 3"),
    ],
)
def test_events_that_are_taken_from_a_followed_table_leave_no_gap(
    tmp_path: Path, operation: str, kept: pc.Expression, lost: str, has_events: bool
) -> None:
    """A table that is made from events of one kind may get none for a long time."""
    table = followed(tmp_path / "events")
    leave(table, operation, kept)
    version = DeltaLog(table.path).versions().stop
    with pytest.raises(TableClash, match=f"the events of {lost} on"):
        table.append(events("n1", 20, 30 if has_events else 20))
    assert DeltaLog(table.path).versions().stop == version


def test_events_that_are_taken_while_an_append_is_made_leave_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = followed(tmp_path / "events")
    append: Callable[..., bool] = LocalTable.append

    def beside_a_restore(*given: object, **options: object) -> bool:
        leave(table, "RESTORE", pc.field("seq") < 10)
        return append(*given, **options)

    monkeypatch.setattr(LocalTable, "append", beside_a_restore)
    with pytest.raises(TableClash, match="the events of n1 from seq 10 on"):
        table.append(events("n1", 20, 30))


def test_events_that_are_deleted_before_the_last_ones_stay_deleted(tmp_path: Path) -> None:
    """As of a user who deletes old events, also the last ones of a node that has left."""
    table = followed(tmp_path / "events")
    leave(table, "DELETE", (pc.field("node") == "n1") & (pc.field("seq") >= 15))
    table.append(pa.concat_tables([events("n1", 18, 30), events("n2", 3, 6)]))
    assert table.positions == {"n1": 30, "n2": 6}
    held = read_plain(table.path, EVENTS_COLUMNS, ["node", "seq"])
    assert held is not None
    rows = sorted(zip(held["node"].to_pylist(), held["seq"].to_pylist(), strict=True))
    assert rows == [*(("n1", seq) for seq in range(15, 30)), ("n2", 5)]
    assert table.rows == len(rows)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_job_starts_after_all_events_of_a_node_were_deleted(tmp_path: Path, is_last: bool) -> None:
    """The node has left, and wrote more events than the others have written since, or the last ones."""
    table = JournalTable(no_spark(), str(tmp_path / "events"), EVENTS)
    table.open()
    appends = [pa.concat_tables([events("n1", 0, 10), events("n2", 0, 490)]), events("n1", 10, 20)]
    appends.insert(2 if is_last else 1, events("n2", 490, 500))
    for rows in appends:
        table.append(rows)
    leave(table, "DELETE", pc.field("node") == "n1")
    started = JournalTable(no_spark(), table.path, EVENTS)
    started.open()
    table.append(events("n1", 20, 25))
    for each in (started, table):
        each.append(events("n1", 20, 30))
        assert (each.positions, each.rows) == ({"n1": 30, "n2": 500}, 30)
    leave(table, "RESTORE", pc.field("seq") < 10)
    restored = JournalTable(no_spark(), table.path, EVENTS)
    restored.open()
    assert restored.positions == {"n1": 10}


def test_a_table_that_is_made_again_is_opened_again(tmp_path: Path) -> None:
    """Its folder was removed, and another driver has made a table of it."""
    table = followed(tmp_path / "events")
    (tmp_path / "events").rename(tmp_path / "away")
    other = JournalTable(no_spark(), table.path, EVENTS)
    other.open()
    with pytest.raises(TableReplaced, match="its folder was removed"):
        table.append(events("n1", 20, 30))
    other.append(events("n1", 0, 30))
    table.open()
    assert table.positions == {"n1": 30}
