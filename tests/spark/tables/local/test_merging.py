"""Small files that the driver merges: the same rows in fewer files, beside appends and other writers."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from app.tables.catalog import LogTables
from app.tables.delta_log import LOG_FOLDER, DeltaLog, DeltaSnapshot
from app.tables.table_files import DataFile
from spark_jobs.tables import merging
from spark_jobs.tables.local.commits import LocalTable, NeedsSpark
from spark_jobs.tables.local.data_files import WrittenFile
from spark_jobs.tables.merging import due_runs, merge_small_files
from spark_jobs.tables.removals import Removals
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.snapshot import read_plain, read_snapshot
from spark_jobs.tables.table import ENTRIES, STATISTICS_PROPERTY, identifier, read_table
from spark_jobs.typed.local_rows import LocalRows
from storage.units import MIB
from tests.spark.no_spark import no_spark
from tests.spark.tables.local.entries import append, create, indexes, rows, table_at


@pytest.fixture
def table(tmp_path: Path) -> LocalTable:
    """Thirty files of one to three rows."""
    made = table_at(str(tmp_path / "entries"))
    assert create(made)
    end = 0
    for number in range(30):
        assert append(made, end, end + 1 + number % 3)
        end += 1 + number % 3
    return made


def files_of(table: LocalTable) -> list[DataFile]:
    snapshot = DeltaLog(str(table.path)).snapshot()
    assert snapshot is not None
    return list(snapshot.files.values())


def on_disk(table: LocalTable) -> set[str]:
    return {path.name for path in table.path.glob("*.parquet")}


def during(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something each time that a merged file is written and not committed."""
    write = merging.write_pieces

    def written(*given: Any, **named: Any) -> WrittenFile:
        file = write(*given, **named)
        act()
        return file

    monkeypatch.setattr(merging, "write_pieces", written)


def test_small_files_become_one_with_the_same_rows(table: LocalTable) -> None:
    before, held = read_plain(str(table.path), ENTRIES.schema, ENTRIES.schema.names), on_disk(table)
    assert before is not None
    removals = Removals(no_spark(), str(table.path))
    removals.start()
    assert merge_small_files(str(table.path), 29) == 30
    known = read_plain(str(table.path), ENTRIES.schema, ENTRIES.schema.names)
    assert known is not None
    assert known.equals(before.sort_by("index"))
    [file] = files_of(table)
    assert (file.rows, file.least["index"], file.most["index"]) == (60, 0, 59)
    assert set(file.least) == set(ENTRIES.statistics)
    assert read_snapshot(str(table.path)).next_index == 60
    assert held < on_disk(table)  # VACUUM removes them when no version needs them
    text = (table.path / LOG_FOLDER / f"{31:020d}.json").read_text()
    assert (text.count('"dataChange":false'), text.count('"dataChange"')) == (31, 31)
    commit = DeltaLog(str(table.path)).commit(31)
    assert commit is not None
    assert (commit.operation, commit.removes_rows, removals.found()) == ("OPTIMIZE", False, [])
    assert not append(table, 50, 60, claim=50)  # the claims are those from before
    assert append(table, 60, 61)
    assert indexes(table) == list(range(61))


def test_few_small_files_stay(table: LocalTable) -> None:
    assert merge_small_files(str(table.path), 30) == 0
    assert len(files_of(table)) == 30


def snapshot_of(*files: tuple[int, int], **more: Any) -> DeltaSnapshot:
    """A table with files of these first indexes and sizes."""
    found = {
        f"part-{number}": DataFile("", size, 1, {"index": first}, {"index": first}, **more)
        for number, (first, size) in enumerate(files)
    }
    return DeltaSnapshot("", 1, found, {})


def test_neighbours_are_merged_up_to_the_size_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "SMALL_BYTES", 10)
    monkeypatch.setattr(merging, "MERGED_BYTES", 20)
    found = due_runs(snapshot_of((30, 9), (0, 1), (10, 2), (20, 10), (60, 9), (40, 9), (50, 9), (70, 10)), 5)
    assert [[file.least["index"] for file in run.values()] for run in found] == [[0, 10], [30, 40], [50, 60]]
    assert [list(run) for run in found] == [["part-1", "part-2"], ["part-0", "part-5"], ["part-6", "part-4"]]
    assert due_runs(snapshot_of((0, 9), (1, 10), (2, 9), (3, 11)), 1) == []


def test_files_with_bounds_of_the_same_columns_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "SMALL_BYTES", 10)
    monkeypatch.setattr(merging, "MERGED_BYTES", 20)
    files = dict(snapshot_of(*((first, 9 + (first == 5)) for first in range(10))).files)
    for number in (1, 3, 7):
        bounds = {"index": number, "price": 1.5}
        files[f"part-{number}"] = replace(files[f"part-{number}"], least=bounds, most=bounds)
    found = due_runs(DeltaSnapshot("", 1, files, {}), 5)
    assert [[file.least["index"] for file in run.values()] for run in found] == [[0, 2], [1, 3], [6, 8]]


def test_files_whose_order_is_not_known_stay() -> None:
    known = snapshot_of((0, 1), (1, 1))
    assert len(due_runs(known, 1)) == 1
    unknown = DataFile("", 1, None, {}, {})
    assert due_runs(DeltaSnapshot("", 1, {**known.files, "other": unknown}, {}), 1) == []


def test_rows_that_are_appended_meanwhile_stay(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    other = table_at(str(table.path))
    during(monkeypatch, lambda: append(other, 60, 65))
    assert merge_small_files(str(table.path), 29) == 30
    assert indexes(table) == list(range(65))
    assert len(on_disk(table)) == 32  # one merged file for both attempts
    assert sorted(file.rows or 0 for file in files_of(table)) == [5, 60]


def test_files_that_another_writer_replaces_meanwhile_are_not_merged(
    table: LocalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = table_at(str(table.path))

    def act() -> None:
        assert other.replace(lambda: rows(7, 9), statistics=ENTRIES.statistics, claim=None, note={})

    during(monkeypatch, act)
    before = on_disk(table)
    assert merge_small_files(str(table.path), 29) == 0
    assert indexes(table) == [7, 8]
    assert len(on_disk(table) - before) == 1  # of the other writer


def test_a_failure_leaves_the_table_as_it_was(table: LocalTable, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("No space left on device")

    before = on_disk(table)
    file = files_of(table)[3].path
    monkeypatch.setattr(LocalTable, "_extend", lambda *_given: fail())
    with pytest.raises(OSError, match="No space"):
        merge_small_files(str(table.path), 29)
    monkeypatch.undo()
    assert on_disk(table) == before
    Path(file).unlink()
    with pytest.raises(NeedsSpark, match="No such file"):
        merge_small_files(str(table.path), 29)
    assert len(files_of(table)) == 30


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_appends_changes_and_merges_keeps_each_row_once(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers: while one has written a merged file and not committed it, the other changes the table."""
    monkeypatch.setattr(merging, "SMALL_BYTES", 6_000)
    monkeypatch.setattr(merging, "MERGED_BYTES", 20_000)
    choose = random.Random(seed)
    one, other = (table_at(str(tmp_path / "entries")) for _ in range(2))
    changed = LocalRows(other, ENTRIES, "index")
    assert create(one)
    held, end = set[int](), 0

    def act() -> None:
        nonlocal end
        kind = choose.random()
        some = choose.sample(sorted(held), min(len(held), 3))
        if kind < 0.6 or not held:
            until = end + choose.randrange(1, 40)
            assert append(other, end, until)
            held.update(range(end, until))
            end = until
        elif kind < 0.8:
            changed.remove(some)
            held.difference_update(some)
            if kind < 0.7:
                changed.insert_missing(rows(some[0], some[0] + 1))
                held.add(some[0])
        else:
            write = merging.write_pieces
            monkeypatch.setattr(merging, "write_pieces", before)  # this merge is not disturbed
            merge_small_files(str(other.path), choose.randrange(5))
            monkeypatch.setattr(merging, "write_pieces", write)

    before = merging.write_pieces
    during(monkeypatch, act)
    for _ in range(12):
        act()
        merge_small_files(str(one.path), choose.randrange(5))
        assert indexes(one) == sorted(held)
    assert one.snapshot().rows == len(held)


def test_a_column_of_a_schema_may_have_the_name_of_a_position(tmp_path: Path) -> None:
    """The file's order is that of the records, whatever the user calls a column."""
    kinds = StructType([StructField("_index", LongType()), StructField("index", StringType())])
    table = LocalTable(str(tmp_path / "records"), lambda _path: None)
    names = dict.fromkeys(kinds.names, "")
    assert table.create(kinds, cluster_by=["index"], comments=names, properties={})
    for number, name in enumerate("cab"):
        written = pa.table({"_index": [number], "index": [name]}, arrow_schema(kinds))
        append = partial(table.append, written, application="test", claim=number + 1, note={})
        assert append(statistics=kinds.names)
    assert merge_small_files(str(table.path), 2) == 3
    [file] = files_of(table)
    assert pq.read_table(file.path)["index"].to_pylist() == ["c", "a", "b"]
    assert (file.least, file.most) == ({"_index": 0, "index": "a"}, {"_index": 2, "index": "c"})


def test_a_reader_that_finds_rows_by_their_bounds_finds_them_in_a_merged_file(tmp_path: Path) -> None:
    """deltalake 1.6 takes a file without bounds of a column, as one with NaN, for one without such rows."""
    deltalake = pytest.importorskip("deltalake", reason="an environment without `make setup`")
    kinds = StructType([StructField("_index", LongType()), StructField("price", DoubleType())])
    table = LocalTable(str(tmp_path / "records"), lambda _path: None)
    names = dict.fromkeys(kinds.names, "")
    assert table.create(kinds, cluster_by=["price"], comments=names, properties={})
    for number, price in enumerate([1.0, nan, 3.0, None, nan, 5.0]):
        written = pa.table({"_index": [number], "price": [price]}, arrow_schema(kinds))
        append = partial(table.append, written, application="test", claim=number + 1, note={})
        assert append(statistics=kinds.names)
    assert merge_small_files(str(table.path), 2) == 6
    assert sorted(file.rows or 0 for file in files_of(table)) == [3, 3]
    dear = deltalake.DeltaTable(str(table.path)).to_pyarrow_dataset().to_table(filter=pc.field("price") > 2)
    assert sorted(dear["_index"].to_pylist()) == [2, 5]


@pytest.mark.parametrize("listed", ["", "INDEX,`term`", "index,headers"])
def test_a_merged_file_has_the_statistics_of_its_files(table: LocalTable, listed: str) -> None:
    """Whatever a user made of the property since: readers find the end of the table in them."""
    set_in_metadata(table, configuration={STATISTICS_PROPERTY: listed} if listed else {})
    assert merge_small_files(str(table.path), 29) == 30
    [file] = files_of(table)
    assert set(file.least) == set(file.most) == set(ENTRIES.statistics)
    state = LogTables(str(table.path.parents[1]), table.path.parent.name).find("entries")
    assert state is not None
    assert state.held_index == 59


def set_in_metadata(table: LocalTable, **changed: Any) -> None:
    """Make the commit of a user who changes the table."""
    log, version = table.path / LOG_FOLDER, table.snapshot().version
    metadata = json.loads((log / f"{0:020d}.json").read_text().splitlines()[1])
    metadata["metaData"].update(changed)
    (log / f"{version + 1:020d}.json").write_text(json.dumps(metadata) + "\n")


def test_columns_that_a_table_got_later_are_null_in_its_older_rows(table: LocalTable) -> None:
    schema = json.loads(table.snapshot().schema)
    schema["fields"].append({"name": "added", "type": "long", "nullable": True, "metadata": {}})
    set_in_metadata(table, schemaString=json.dumps(schema))
    assert merge_small_files(str(table.path), 29) == 30
    [file] = files_of(table)
    found = pq.read_table(file.path)
    assert (found.num_rows, found["added"].null_count) == (60, 60)
    assert found.schema.field("added").type == pa.int64()


def test_files_whose_rows_are_large_are_read_in_small_pieces(
    table: LocalTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file may hold rows of a hundred times its size."""
    written: list[int] = []
    write = merging.write_pieces

    def noted(pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for piece in pieces:
            written.append(piece.nbytes)
            yield piece

    zeros = pa.array([bytes(MIB)] * 24, pa.binary())
    large = rows(60, 84)
    large = large.set_column(large.schema.get_field_index("value"), "value", zeros)
    assert table.append(large, statistics=ENTRIES.statistics, application="test", claim=60, note={})
    monkeypatch.setattr(merging, "GROUP_BYTES", MIB)
    monkeypatch.setattr(
        merging, "write_pieces", lambda folder, pieces, *given: write(folder, noted(pieces), *given)
    )
    assert merge_small_files(str(table.path), 30) == 31
    assert indexes(table) == list(range(84))
    assert max(written) < 9 * MIB


def test_spark_reads_each_version_and_a_stream_sees_no_change(
    spark: SparkSession, table: LocalTable, tmp_path: Path
) -> None:
    path = str(table.path)
    stream = spark.readStream.format("delta").load(path).writeStream.format("memory").queryName("merged")
    options = {"checkpointLocation": str(tmp_path / "checkpoint")}
    stream.options(**options).trigger(availableNow=True).start().awaitTermination()
    assert merge_small_files(path, 29) == 30
    assert append(table, 60, 63)
    into = str(tmp_path / "into")
    again = spark.readStream.format("delta").load(path).writeStream.format("delta").options(**options)
    again.trigger(availableNow=True).start(into).awaitTermination()
    for held, due in ((into, range(60, 63)), (path, range(63))):
        found = read_table(spark, held).select("index").orderBy("index").collect()
        assert [row["index"] for row in found] == list(due)
    before = spark.read.format("delta").option("versionAsOf", 30).load(path)
    assert (before.count(), len(before.inputFiles())) == (60, 30)
    history = spark.sql(f"DESCRIBE HISTORY {identifier(path)}").where("version = 31").collect()[0]
    assert (history["operation"], history["operationMetrics"]["numRemovedFiles"]) == ("OPTIMIZE", "30")
