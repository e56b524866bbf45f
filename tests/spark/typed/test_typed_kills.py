"""Invariants of the typed tables after SIGKILL of a driver at each commit, and beside other drivers."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row

from app.tables.catalog import LogTables
from app.tables.delta_log import DeltaLog
from app.tables.names import CURRENT, REFILL_PROPERTY
from spark_jobs.errors import StrayRows
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables import removals, restores, table_writer
from spark_jobs.tables.local.commits import LocalTable, NeedsSpark
from spark_jobs.tables.removals import TableReplaced
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import DEAD_LETTERS, ENTRIES, RECORDS, TableClash, settings_of_table
from spark_jobs.tables.table_writer import TableWriter
from spark_jobs.typed import indexed_rows
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.typed.current import CurrentTable
from spark_jobs.typed.layout import CompatibilityGroup, compatibility_groups
from spark_jobs.typed.table_ends import CLAIM_EACH_S, TableEnds
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import check_law, rows_of
from tests.spark.user_restore import restore

SECOND = 9  # records of the second compatibility group


@pytest.fixture
def log() -> FakeLog:
    """Two compatibility groups of a schema, dead letters, tombstones, keys that come again."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema("id INT")
    for number in range(9):
        key = b"%d" % (number % 3)
        log.append(b'{"id":%d}' % number, key=key)
        log.append(b"no JSON" if number % 2 else b'{"id":-1}', key=b"other")
        log.append(None, key=key if number % 4 == 0 else b"none")
    log.set_schema("id STRING", compatibility="none")
    for number in range(SECOND):
        log.append(b'{"id":"%d"}' % number, key=b"%d" % (number % 4))
        log.append(None if number % 3 else b'{"id":1}', key=b"1")
    log.append(b"no JSON", None)  # no table gets a row of the last one, `current` of none of the two
    return log


def fill_entries(log: FakeLog, folder: Path) -> None:
    """Write `entries`, which the drivers read."""
    table = LocalTable(str(folder / ENTRIES.name), lambda path: None)
    assert table.create(
        ENTRIES.schema,
        cluster_by=ENTRIES.cluster_by,
        comments=ENTRIES.columns,
        properties=settings_of_table(ENTRIES),
    )
    rows = [{**record, "log": "default"} for record in log.records if record["type"] == "data"]
    for first in range(0, len(rows), 10):
        part = pa.Table.from_pylist(rows[first : first + 10], arrow_schema(ENTRIES.schema))
        claim = rows[first]["index"]
        table.append(part, statistics=ENTRIES.statistics, application="test", claim=claim, note={})


def check_tables(log: FakeLog, folder: Path, layout: Sequence[CompatibilityGroup]) -> None:
    check_law(log, folder)
    assert len(list(rows_of(folder / layout[1].records().name))) == SECOND
    last = max(each["index"] for each in log.records if each["type"] == "data")
    ends = {name: each.held_index for name in names_of(layout) if (each := tables_in(folder).find(name))}
    assert ends == dict.fromkeys(names_of(layout), last)


def names_of(layout: Sequence[CompatibilityGroup]) -> list[str]:
    pairs = [(each.records().name, each.current().name) for each in layout]
    return [DEAD_LETTERS.name, *(name for pair in pairs for name in pair)]


def tables_in(folder: Path) -> LogTables:
    return LogTables(str(folder.parent), folder.name)


@pytest.mark.parametrize(("points", "racers"), [(12, 1), (0, 3)])
def test_the_law_holds_after_a_kill_at_any_commit_and_beside_other_drivers(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, points: int, racers: int
) -> None:
    """A later driver goes on where the killed one ended, so the points are those of the whole work."""
    fill_entries(log, tmp_path)
    kills = [f"{number}{side}" for number in (0, 1, 2) for side in "-+"] * (points // 6)
    command = [sys.executable, "-m", "tests.spark.typed.typed_driver_to_kill"]
    command += [
        str(tmp_path),
        endpoints(replicas),
        str(log.next_index),
        ",".join(kills) or "99-",
        str(racers),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    codes = json.loads(done.stdout)
    if kills:
        assert codes[: len(kills)].count(-signal.SIGKILL) >= 10, done.stderr
    assert codes[-racers:] == [0] * racers, done.stderr
    client = LogReads([replica.url for replica in replicas], "default")
    check_tables(log, tmp_path, compatibility_groups(client.schemas(log.next_index - 1) or []))


def without_spark(replicas: list[FakeReplica], folder: Path) -> TypedTables:
    """Return the typed tables of a job that does not follow, in a folder that has `entries`."""
    client = LogReads([replica.url for replica in replicas], "default")
    return TypedTables(no_spark(), client, lambda table: str(folder / table.name), follows=False)


@pytest.mark.parametrize("appends", ["here", "by Spark"])
def test_no_record_is_twice_in_a_table_that_another_driver_has_made_again(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appends: str
) -> None:
    """Its rows are in other commits, so the claim of the first driver does not name one of them."""
    monkeypatch.setattr(CurrentTable, "rebuild", lambda *_: None)  # by Spark
    fill_entries(log, tmp_path)
    first, other = (without_spark(replicas, tmp_path) for _ in range(2))
    first.extend(5)
    shutil.rmtree(tmp_path / RECORDS.name)
    other.extend(log.next_index)
    append = LocalTable.append

    def append_to_plain(table: LocalTable, *given: Any, **options: Any) -> bool:
        if table.path.name == RECORDS.name and appends == "by Spark":
            raise NeedsSpark("its columns need a feature")
        return append(table, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LocalTable, "append", append_to_plain)
        with pytest.raises(TableReplaced, match=r"records is not the table that this job has extended"):
            first.extend(log.next_index)
    first.open()
    first.extend(log.next_index)
    check_law(log, tmp_path)


@pytest.mark.parametrize("versions", [1, 3, 3 + removals.HISTORY], ids=["shorter", "longer", "much longer"])
def test_no_record_is_added_to_a_table_at_a_url_that_another_driver_has_made_again(
    monkeypatch: pytest.MonkeyPatch, versions: int
) -> None:
    """`append_once` would find its claim free, and leave a gap."""
    history: list[Row] = []

    def commit(*_: object, **options: Any) -> tuple[int, int]:
        note = json.dumps(options.get("note"))
        described = {"operation": "WRITE", "readVersion": None, "userMetadata": note, "isBlindAppend": True}
        history.append(Row(version=len(history), **described))
        return 1, 0

    for module, name, function in (
        (removals, "newest_commits", lambda *given: history[-given[2] :]),
        (table_writer, "create_table", lambda *_: bool(commit())),
        (table_writer, "append_once", commit),
        (TableWriter, "_frame", lambda _, rows: rows),
    ):
        monkeypatch.setattr(module, name, function)
    table = ClaimedTable(no_spark(), "file:///tables/records", RECORDS, "_index")
    assert table.open("default", "id")
    rows = [pa.Table.from_pylist([{"_index": index}], arrow_schema(RECORDS.schema)) for index in range(4)]
    assert table.append(rows[0], {"until_index": 1})
    assert table.append(rows[1], {"until_index": 2})
    history.clear()
    for number in range(versions):
        commit(note={"until_index": 10 * number})
    with pytest.raises(TableReplaced, match="records is not the table that this job has extended"):
        table.append(rows[3], {"until_index": 4})
    assert len(history) == versions


def test_current_is_not_brought_up_to_date_from_entries_that_have_lost_rows_too(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would get keys back whose tombstones are missing, and they would stay once `entries` is complete."""
    fill_entries(log, tmp_path)
    typed = without_spark(replicas, tmp_path)
    typed.extend(log.next_index)
    rebuilt: list[int] = []
    monkeypatch.setattr(CurrentTable, "rebuild", lambda table, *until: rebuilt.append(until[1]))
    restore(tmp_path / CURRENT, 1)
    typed.open()
    for until in (log.schemas[1]["index"], log.next_index):
        typed.extend(until)
    assert rebuilt == [log.next_index]


def test_a_current_that_was_restored_is_brought_up_to_date_once_records_is_made_again(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From an empty table `records` it would get no row, and never again."""
    fill_entries(log, tmp_path)
    typed = without_spark(replicas, tmp_path)
    typed.extend(log.schemas[1]["index"])
    due = [row["_index"] for row in rows_of(tmp_path / RECORDS.name)]
    found: list[list[int]] = []

    def rebuild(table: CurrentTable, *_: int) -> None:
        found.append([row["_index"] for row in rows_of(Path(table.records_path))])

    monkeypatch.setattr(CurrentTable, "rebuild", rebuild)
    restore(tmp_path / CURRENT, 0)
    shutil.rmtree(tmp_path / RECORDS.name)
    typed.open()
    typed.extend(log.schemas[1]["index"])
    assert found == [due]


@pytest.mark.parametrize(("name", "lost"), [("records_v2", 15), (DEAD_LETTERS.name, 2)])
def test_current_is_brought_up_to_date_after_a_removal_once_entries_is_complete(
    log: FakeLog,
    replicas: list[FakeReplica],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    lost: int,
) -> None:
    """It has the claims of all records: what it lost, or got back without its tombstone, would stay so.

    lost: number of the last records that `entries` lacks; of two a tombstone and a dead letter."""
    fill_entries(log, tmp_path)
    typed = without_spark(replicas, tmp_path)
    typed.extend(log.next_index)
    noted: list[object] = []
    monkeypatch.setattr(ClaimedTable, "set_properties", lambda table, changed: noted.append(changed))
    monkeypatch.setattr(CurrentTable, "rebuild", lambda table, *given: noted.append(given[1]))
    shutil.rmtree(tmp_path / name)
    lost_from = log.next_index - lost
    for until in (lost_from, lost_from, log.next_index):
        typed.open()
        typed.extend(until)
    rebuilt = 1 if name == "records_v2" else len(typed.current)
    assert noted == [*[log.next_index] * rebuilt, {REFILL_PROPERTY: "false"}]
    check_law(log, tmp_path)


def test_a_repair_is_due_until_entries_has_the_records_that_it_lost_meanwhile(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without their rows the tables would lack some, and without their tombstones keep others."""
    fill_entries(log, tmp_path)
    typed, entries, steps = without_spark(replicas, tmp_path), tmp_path / ENTRIES.name, list[object]()
    typed.extend(log.next_index)
    whole = DeltaLog(str(entries)).versions()[-1]

    def rebuild(*_: object) -> None:
        if not steps:
            restore(entries, whole - 1)
            log.begin_index = log.next_index  # retention, once `entries` had them
        steps.append("rebuilt")

    monkeypatch.setattr(CurrentTable, "rebuild", rebuild)
    monkeypatch.setattr(restores, "set_properties", lambda *given: steps.append("noted"))
    restore(tmp_path / CURRENT, 1)
    with pytest.raises(TableClash, match="entries refuses the records from index"):
        typed.extend(log.next_index)
    restore(entries, whole)
    typed.open()
    typed.extend(log.next_index)
    assert steps == ["rebuilt", "rebuilt", "noted"]


def test_a_current_that_was_removed_gets_no_row_without_its_tombstone(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    """`entries` has lost the tombstone by RESTORE, and `records` no row."""
    for value in (b'{"id":"removed"}', None, b'{"id":"last"}'):
        log.append(value, key=b"last" if value and b"last" in value else b"removed")
    fill_entries(log, tmp_path)
    typed, entries = without_spark(replicas, tmp_path), tmp_path / ENTRIES.name
    typed.extend(log.next_index)
    whole = DeltaLog(str(entries)).versions()[-1]
    restore(entries, whole - 1)
    shutil.rmtree(tmp_path / "current_v2")
    typed.open()
    typed.extend(max(row["index"] for row in rows_of(entries)) + 1)
    restore(entries, whole)
    typed.open()
    typed.extend(log.next_index)
    check_law(log, tmp_path)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_the_last_records_are_not_applied_without_a_tombstone_that_entries_has_lost(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """RESTORE of `entries` before the timer of a job that follows has applied them, or all of them."""
    rewrite, restores_left = LocalTable.rewrite, ["current_v2"]

    def rewrite_and_restore(table: LocalTable, *given: Any, **options: Any) -> bool:
        done = rewrite(table, *given, **options)
        if table.path.name in restores_left:
            restore(entries, whole - 1)
            restores_left.clear()
        return done

    monkeypatch.setattr(TypedTables, "_start_timer", lambda *_: None)
    log.append(None, key=b"3")
    fill_entries(log, tmp_path)
    client, entries = LogReads([replica.url for replica in replicas], "default"), tmp_path / ENTRIES.name
    typed = TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name))
    typed.extend(log.next_index - 1)
    typed.apply()
    typed.extend(log.next_index)
    whole = DeltaLog(str(entries)).versions()[-1]
    if when == "before":
        restore(entries, whole - 1)
    else:
        monkeypatch.setattr(indexed_rows, "PIECE_RECORDS", 1)
        monkeypatch.setattr(LocalTable, "rewrite", rewrite_and_restore)
        shutil.rmtree(tmp_path / "current_v2")
        typed.open()
        typed.extend(log.next_index)
    with pytest.raises(TableClash, match=rf"entries refuses the records before index {log.next_index}"):
        typed.apply()
    restore(entries, whole)
    typed.apply()
    check_law(log, tmp_path)


def test_nothing_counts_as_applied_while_the_tables_are_opened_again(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failure, by a job that has made the tables. `records` has all rows, `current` has none."""
    open_current = TypedTables._open_current

    def open_and_apply(typed: TypedTables, *given: Any) -> None:
        open_current(typed, *given)
        typed.apply()  # by the thread of the timer

    monkeypatch.setattr(TypedTables, "_start_timer", lambda *_: None)
    log.append(b'{"id":"last"}', key=b"last")
    fill_entries(log, tmp_path)
    client = LogReads([replica.url for replica in replicas], "default")
    typed = TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name))
    typed.extend(log.next_index)
    monkeypatch.setattr(TypedTables, "_open_current", open_and_apply)
    typed.open()
    typed.extend(log.next_index)
    for _ in range(2):
        typed.apply()
    check_law(log, tmp_path)


def test_a_start_beside_a_row_after_the_end_of_the_log_leaves_no_record_out(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    """Another program has inserted it: the records before it would count as written."""
    fill_entries(log, tmp_path)
    typed = without_spark(replicas, tmp_path)
    typed.extend(log.next_index - 2)
    newest, stray = typed.records[2], log.next_index + 10
    rows = pa.Table.from_pylist([{"_index": stray}], arrow_schema(newest.table.schema))
    table = LocalTable(newest.path, lambda path: None)
    table.append(rows, statistics=("_index",), application="another program", claim=1, note={})
    typed.open()
    for _ in range(2):
        with pytest.raises(StrayRows, match=rf"index {stray}, .* ends before index {log.next_index}"):
            typed.extend(log.next_index)
    newest.remove([stray])
    typed.open()
    typed.extend(log.next_index)
    check_law(log, tmp_path)


def test_no_record_is_missing_in_a_current_that_another_driver_has_made_again(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    """The other driver begins at 0; the first one would claim a range that begins later."""
    fill_entries(log, tmp_path)
    first, other = (without_spark(replicas, tmp_path) for _ in range(2))
    first.extend(log.schemas[1]["index"])
    shutil.rmtree(tmp_path / CURRENT)
    other._read_schemas(log.next_index)
    with pytest.raises(TableReplaced, match=r"current is not the table that this job has extended"):
        first.extend(log.next_index)
    other.extend(log.next_index)
    check_law(log, tmp_path)


def test_the_end_of_each_table_is_claimed_in_a_pause_and_not_with_each_batch(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TypedTables, "_start_timer", lambda *_: None)
    fill_entries(log, tmp_path)
    client = LogReads([replica.url for replica in replicas], "default")
    typed = TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name))
    names = names_of(compatibility_groups(client.schemas(log.next_index - 1) or []))

    def look() -> dict[str, tuple[int, int | None]]:
        found = [tables_in(tmp_path).find(name) for name in names]
        return {each.name: (each.version, each.held_index) for each in found if each is not None}

    typed.extend(log.next_index - 2)
    typed._apply_late()
    for until in (log.next_index - 1, log.next_index):
        typed.extend(until)
        typed._apply_late()
    before = look()
    last = log.next_index - 1
    assert {held for _, held in before.values()} == {last - 1, last - 2}  # of `current` the last one
    assert typed._is_behind  # the timer runs again
    typed._apply_late()
    after = look()
    claimed = {"current", "current_v2", "records_v2"}
    assert after == {name: (before[name][0] + (name in claimed), last) for name in names}
    assert not typed._is_behind
    later = TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name))
    later.extend(log.next_index)
    for _ in range(2):
        later._apply_late()
    assert look()["current"] == after["current"]  # a driver that starts again claims nothing twice


def test_ends_are_claimed_in_a_pause_and_seldom_while_records_continue() -> None:
    ends = TableEnds()
    assert not ends.is_due(0.0)
    ends.until = 7
    assert ends.is_due(5.0)  # nothing was claimed yet
    ends.claimed(7, 5.0)
    for second in range(6, 60, 5):
        ends.until += 1
        assert not ends.is_due(second)
    ends.until += 1
    assert ends.is_due(5.0 + CLAIM_EACH_S)
    ends.claimed(ends.until, 66.0)
    assert not ends.is_due(70.0)
    ends.until += 1
    assert not ends.is_due(71.0)
    assert ends.is_due(72.0)  # no record since the last question
