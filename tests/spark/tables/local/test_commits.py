"""Commits that the driver makes itself: exclusive, claimed once, and as Spark would have made them."""

import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from app.tables.delta_log import LOG_FOLDER, DeltaLog
from spark_jobs.errors import TableUnreadable
from spark_jobs.tables.checkpoints import CHECKPOINTS
from spark_jobs.tables.claims import append_once, claim_alone, newest_claim
from spark_jobs.tables.local import commits
from spark_jobs.tables.local.actions import WRITER_FEATURES, metadata_action
from spark_jobs.tables.local.commits import FileMissing, LocalTable, NeedsSpark
from spark_jobs.tables.local.data_files import (
    LAST_CHARACTER,
    WrittenFile,
    statistics_of,
    write_file,
    write_pieces,
)
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.snapshot import read_plain, read_rows
from spark_jobs.tables.table import (
    ENTRIES,
    PROPERTIES,
    create_table,
    identifier,
    read_table,
)
from spark_jobs.tables.table_writer import TableWriter
from storage.units import MIB
from tests.spark.tables.local.entries import (
    AT,
    BEFORE_1970,
    LONG_AGO,
    append,
    create,
    indexes,
    rows,
    table_at,
)
from tests.support.disk_steps import record_disk_steps


@pytest.fixture
def made(tmp_path: Path) -> Callable[[], LocalTable]:
    """Writers of one table, as two processes would hold them."""
    path = str(tmp_path / "entries")
    assert create(table_at(path))
    return lambda: table_at(path)


def test_a_file_that_lacks_rows_is_not_read_as_a_part_of_the_table(made: Callable[[], LocalTable]) -> None:
    table = made()
    append(table, 0, 10)
    snapshot = table._log.snapshot()
    assert snapshot is not None
    [file] = snapshot.files.values()
    for count in (9, 11):
        pq.write_table(rows(0, count), file.path)
        with pytest.raises(TableUnreadable, match=f"has {count} rows, its Delta log specifies 10"):
            list(read_rows(file, ["index"]))
        assert read_plain(str(table.path), ENTRIES.schema, ["index"]) is None


def test_a_commit_is_made_once_its_rows_are_on_disk(
    made: Callable[[], LocalTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must leave no commit without its file: the log may have trimmed the records since."""
    table, steps = made(), record_disk_steps(monkeypatch, linked="commit")
    assert append(table, 0, 10)
    snapshot = table._log.snapshot()
    assert snapshot is not None
    [file] = snapshot.files.values()
    before, after = steps[: steps.index("commit")], steps[steps.index("commit") + 1 :]
    assert {file.path, str(table.path)} <= set(before)
    assert any(step.endswith(".tmp") for step in before)
    assert after == [str(table.path / LOG_FOLDER)]


def test_the_folders_of_a_new_table_are_on_disk_before_its_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut may take a table with rows that the log has trimmed since."""
    steps = record_disk_steps(monkeypatch, linked="commit")
    folder = tmp_path / "tables" / "default" / "entries"
    assert create(table_at(str(folder)))
    before = steps[: steps.index("commit")]
    assert {str(each) for each in (tmp_path, *folder.parents[:2], folder)} <= set(before)


def test_a_claim_is_given_to_one_writer_only(made: Callable[[], LocalTable]) -> None:
    one, two = made(), made()
    assert not create(one)
    assert append(one, 0, 10)
    assert not append(one, 0, 10)
    assert not append(two, 0, 5)
    assert append(two, 10, 20)
    assert append(one, 20, 30)
    assert not append(two, 19, 25)
    assert indexes(one) == list(range(30))
    snapshot = DeltaLog(str(one.path)).snapshot()
    assert snapshot is not None
    assert (snapshot.version, snapshot.rows, snapshot.transactions) == (3, 30, {"a": 20})


def test_one_of_the_writers_that_race_has_the_claim_and_no_file_stays(made: Callable[[], LocalTable]) -> None:
    for claim in range(0, 50, 10):
        done: list[bool] = []
        barrier = threading.Barrier(4)

        def race(claim: int = claim, done: list[bool] = done, barrier: threading.Barrier = barrier) -> None:
            table = made()
            barrier.wait()
            done.append(append(table, claim, claim + 10))

        racers = [threading.Thread(target=race) for _ in range(4)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert sorted(done) == [False, False, False, True]
    table = made()
    assert indexes(table) == list(range(50))
    assert len(list(table.path.glob("*.parquet"))) == 5
    assert not list((table.path / "_delta_log").glob(".*"))


def test_a_link_whose_answer_was_lost_is_the_own_commit(
    made: Callable[[], LocalTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lost(source: Path, name: Path) -> None:
        link(source, name)
        raise FileExistsError(name)

    monkeypatch.setattr(commits.os, "link", lost)
    assert append(made(), 0, 10)
    assert indexes(made()) == list(range(10))


def test_commits_that_the_plain_protocol_cannot_make_are_left_to_spark(
    made: Callable[[], LocalTable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made()
    with pytest.raises(NeedsSpark, match="is not a Delta table"):
        append(table_at(str(tmp_path / "none")), 0, 1)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "file").touch()
    with pytest.raises(NeedsSpark, match="files of no Delta table"):
        create(table_at(str(tmp_path / "strange")))

    def refuse(source: Path, name: Path) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    with monkeypatch.context() as patch:
        patch.setattr(commits.os, "link", refuse)
        with pytest.raises(NeedsSpark, match="no links here"):
            append(table, 0, 1)
        with pytest.raises(NeedsSpark, match="no links here"):
            table.replace(lambda: rows(0, 3), claim=None, statistics=ENTRIES.statistics, note={})
    assert not list(table.path.glob("*.parquet"))
    log = table.path / "_delta_log"
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["checkConstraints"]}
    (log / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(NeedsSpark, match="checkConstraints"):
        append(table, 1, 2)


@pytest.mark.parametrize("place", ["key", "headers"])
@pytest.mark.parametrize("rule", [{"nullable": False}, {"metadata": {"delta.invariants": "{}"}}])
def test_a_table_with_a_rule_for_a_column_is_left_to_spark(
    made: Callable[[], LocalTable], place: str, rule: dict[str, Any]
) -> None:
    """NOT NULL, of a table that a user has made or replaced: Spark checks it. Also within a column."""
    table = made()
    assert append(table, 0, 10)
    [line] = ((table.path / LOG_FOLDER) / f"{0:020d}.json").read_text().splitlines()[1:2]
    metadata = json.loads(line)
    schema = json.loads(metadata["metaData"]["schemaString"])
    [column] = (each for each in schema["fields"] if each["name"] == place)
    (column["type"]["elementType"]["fields"][0] if place == "headers" else column).update(rule)
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    (table.path / LOG_FOLDER / f"{2:020d}.json").write_text(json.dumps(metadata) + "\n")
    with pytest.raises(NeedsSpark, match="has rules for its columns"):
        append(table, 10, 20)
    assert len(list(table.path.glob("*.parquet"))) == 1


@pytest.mark.parametrize("change", [{"type": "integer"}, {"name": "Term"}])
def test_a_table_whose_columns_a_user_has_replaced_is_left_to_spark(
    made: Callable[[], LocalTable], change: dict[str, str]
) -> None:
    """CREATE OR REPLACE TABLE: Spark would refuse to read the whole table, or read no value of the column."""
    table = made()
    assert append(table, 0, 10)
    schema = json.loads(table.snapshot().schema)
    next(column for column in schema["fields"] if column["name"] == "term").update(change)
    replaced = metadata_action(table.snapshot(), schemaString=json.dumps(schema))
    (table.path / LOG_FOLDER / f"{2:020d}.json").write_text(json.dumps(replaced) + "\n")
    with pytest.raises(NeedsSpark, match="has no column term of the type int64"):
        append(table, 10, 20)
    assert indexes(made()) == list(range(10))
    assert len(list(table.path.glob("*.parquet"))) == 1


def test_files_of_a_commit_that_may_have_been_made_stay(
    made: Callable[[], LocalTable], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system gives no answer, and makes the link later."""
    table, late = made(), dict[Path, str]()

    def lost(source: Path, name: Path) -> None:
        late[name] = source.read_text()
        raise OSError(errno.EIO, "no answer", str(name))

    monkeypatch.setattr(commits.os, "link", lost)
    with pytest.raises(NeedsSpark, match="no answer"):
        append(table, 0, 10)
    for name, actions in late.items():
        name.write_text(actions)
    assert indexes(table) == list(range(10))


def test_files_of_a_table_that_needs_spark_meanwhile_are_removed(made: Callable[[], LocalTable]) -> None:
    table = made()

    def write() -> list[WrittenFile]:
        files = [write_file(table.path, rows(0, 10), ENTRIES.statistics)]
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["changeDataFeed"]}
        (table.path / LOG_FOLDER / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
        return files

    with pytest.raises(NeedsSpark, match="changeDataFeed"):
        table.append_files(write, application="a", claim=0, note={})
    assert not list(table.path.glob("*.parquet"))


@pytest.mark.parametrize("is_removed", [True, False])
def test_a_file_that_is_not_there_is_not_committed(made: Callable[[], LocalTable], is_removed: bool) -> None:
    """VACUUM without retention has removed it, or a task has written it on a machine with other files."""
    table = made()

    def write() -> list[WrittenFile]:
        files = [write_file(table.path, rows(first, first + 5), ENTRIES.statistics) for first in (0, 5)]
        place = table.path / files[1].name
        if is_removed:
            place.unlink()
        else:
            place.write_bytes(place.read_bytes()[:-1])
        return files

    with pytest.raises(FileMissing, match="VACUUM"):
        table.append_files(write, application="a", claim=0, note={})
    assert not list(table.path.glob("*.parquet"))
    assert append(table, 0, 10)
    assert indexes(table) == list(range(10))


def test_a_checkpoint_is_requested_after_each_commit_that_is_to_have_one(tmp_path: Path) -> None:
    path, due = str(tmp_path), list[str]()
    table = table_at(path, due.append)
    assert create(table)
    interval = int(PROPERTIES["delta.checkpointInterval"])
    for claim in range(interval - 1):
        assert append(table, claim, claim + 1)
    assert due == []
    assert table.claim("a", interval)
    assert due == [path]
    assert append(table, interval + 1, interval + 2)
    assert due == [path]


def test_rows_of_a_small_table_are_replaced_together(made: Callable[[], LocalTable]) -> None:
    one, two = made(), made()
    options: dict[str, Any] = {"statistics": ENTRIES.statistics, "note": {}}
    assert one.replace(lambda: rows(0, 3), claim=("a", 0), **options)
    assert not two.replace(lambda: rows(5, 6), claim=("a", 0), **options)
    calls = []

    def other_first() -> pa.Table:
        calls.append(indexes(two))
        if len(calls) == 1:
            assert one.replace(lambda: rows(0, 4), claim=None, **options)
        return rows(0, calls[-1][-1] + 3)

    assert two.replace(other_first, claim=None, **options)
    assert calls == [[0, 1, 2], [0, 1, 2, 3]]
    assert indexes(one) == list(range(6))


def test_statistics_are_those_of_the_protocol() -> None:
    table = pa.table(
        {
            "index": [3, 1, None],
            "node": ["n1", "n2", "n1"],
            "long": ["x" * 33, "a", "b"],
            "none": pa.nulls(3, pa.int64()),
            "at": pa.array([AT, AT, None], pa.timestamp("us", "UTC")),
            "speed": [1.5, None, -2.0],
            "nan": [1.5, None, float("nan")],
        }
    )
    text = "2026-01-02T03:04:05.678Z"
    assert statistics_of(table, table.column_names) == {
        "numRecords": 3,
        "minValues": {"index": 1, "node": "n1", "long": "a", "at": text, "speed": -2.0},
        "maxValues": {
            "index": 3,
            "node": "n2",
            "long": "x" * 32 + LAST_CHARACTER,
            "at": text,
            "speed": 1.5,
        },
        "nullCount": {"index": 1, "node": 0, "long": 0, "none": 3, "at": 1, "speed": 1, "nan": 1},
    }


def test_statistics_of_a_file_are_those_of_all_pieces(tmp_path: Path) -> None:
    beyond = 2**61  # a time that Python cannot represent
    kinds = pa.schema(
        {
            "index": pa.int64(),
            "long": pa.string(),
            "at": pa.timestamp("us", "UTC"),
            "late": pa.timestamp("us", "UTC"),
            "day": pa.date32(),
            "speed": pa.float64(),
            "nan": pa.float32(),
            "flag": pa.bool_(),
        }
    )
    columns = {
        "index": [5, None, -7, 3],
        "long": ["a", "x" * 33, "b", "c"],
        "at": [None, AT, LONG_AGO, BEFORE_1970],
        "late": pa.array([1, beyond, 2, 3]).cast(pa.timestamp("us", "UTC")),
        "day": [None, None, AT.date(), None],
        "speed": [None, 1.5, None, -2.0],
        "nan": [1.0, 2.0, float("nan"), 3.0],
        "flag": [True, None, None, False],
    }
    table = pa.table(columns, kinds)
    pieces = [table.slice(0, 2), table.slice(2, 0), table.slice(2, 1), table.slice(3, 1)]
    written = write_pieces(tmp_path, pieces, kinds, kinds.names)
    assert written.statistics == statistics_of(table, kinds.names)
    assert written.statistics["maxValues"] == {
        "index": 5,
        "long": "x" * 32 + LAST_CHARACTER,
        "at": "2026-01-02T03:04:05.678Z",
        "day": "2026-01-02",
        "speed": 1.5,
    }
    assert statistics_of(table.slice(3), ["at"])["maxValues"] == {"at": "1969-12-31T23:59:59.999Z"}


def test_a_file_with_nan_has_no_bounds_of_that_column(tmp_path: Path) -> None:
    """Spark takes NaN for the largest number, so bounds without it would hide its rows."""
    speed = pa.table({"index": [1, 2], "speed": [1.5, float("nan")]})
    statistics = ("index", "speed")
    written = write_file(tmp_path, speed, statistics)
    assert written.statistics["maxValues"] == {"index": 2}
    columns = pq.read_metadata(tmp_path / written.name).row_group(0)
    assert [columns.column(place).is_stats_set for place in range(2)] == [True, False]


def test_a_file_whose_rows_end_in_a_failure_is_removed(tmp_path: Path) -> None:
    rows = pa.table({"index": [1, 2]})

    def pieces() -> Iterator[pa.Table]:
        yield rows
        raise OSError("the answer has ended")

    with pytest.raises(OSError, match="has ended"):
        write_pieces(tmp_path, pieces(), rows.schema, ("index",))
    assert list(tmp_path.iterdir()) == []
    written = write_pieces(tmp_path, [rows, rows], rows.schema, ("index",))
    assert (written.rows, written.most("index")) == (4, 2)
    assert written.statistics == statistics_of(pa.concat_tables([rows, rows]), ("index",))
    assert pq.read_metadata(tmp_path / written.name).num_row_groups == 2


def test_a_piece_that_is_written_stays_in_no_memory(tmp_path: Path) -> None:
    """All columns of a piece are parts of one buffer, as of an answer of a node."""
    schema = arrow_schema(ENTRIES.schema)
    before, held, piece_bytes = pa.total_allocated_bytes(), list[int](), 4 * MIB

    def pieces() -> Iterator[pa.Table]:
        for first in range(0, 32, 4):
            value = pa.array([bytes(MIB)] * 4, pa.binary())
            piece = rows(first, first + 4).set_column(schema.get_field_index("value"), "value", value)
            with pa.BufferOutputStream() as sink:
                with pa.ipc.new_stream(sink, schema) as writer:
                    writer.write_table(piece)
                buffer = sink.getvalue()
            del value, piece
            held.append(pa.total_allocated_bytes() - before)
            yield pa.ipc.open_stream(buffer).read_all()

    written = write_pieces(tmp_path, pieces(), schema, ENTRIES.statistics)
    assert (written.rows, written.most("index")) == (32, 31)
    assert max(held) < 4 * piece_bytes


def test_spark_and_the_driver_write_one_table(spark: SparkSession, tmp_path: Path) -> None:
    """The table is as Spark creates it; each sees the other's claims; Spark alone can use all of it."""
    paths = [str(tmp_path / name) for name in ("ours", "sparks")]
    table = table_at(paths[0])
    assert create(table)
    assert create_table(spark, paths[1], ENTRIES, {"commitlog.owner": "me"})
    assert not create_table(spark, paths[0], ENTRIES)
    ours, sparks = (spark.sql(f"DESCRIBE DETAIL {identifier(path)}").collect()[0] for path in paths)
    for name in ("clusteringColumns", "properties", "minWriterVersion", "minReaderVersion", "format"):
        assert ours[name] == sparks[name]
    assert sorted(ours["tableFeatures"]) == sorted(sparks["tableFeatures"])
    described = [spark.sql(f"DESCRIBE TABLE {identifier(path)}").collect() for path in paths]
    assert described[0] == described[1]

    def by_spark(first: int, until: int) -> tuple[int, int] | None:
        frame = spark.createDataFrame(rows(first, until), ENTRIES.schema)
        return append_once(frame, paths[0], application="a", claim=first, position="index", note={})

    assert append(table, 0, 10)
    assert by_spark(0, 10) is None
    assert by_spark(10, 20) == (10, 19)
    assert not append(table, 10, 20)
    assert append(table, 20, 30)
    found = read_table(spark, paths[0]).orderBy("index").toArrow()
    assert found.cast(arrow_schema(ENTRIES.schema)).equals(rows(0, 30))
    after = read_table(spark, paths[0]).where("timestamp > '2026-01-02 03:04:05.6789' AND index >= 20")
    assert after.count() == 10
    spark.sql(f"OPTIMIZE {identifier(paths[0])} FULL")
    assert append(table, 30, 40)
    claim_alone(spark, paths[0], ENTRIES, application="a", claim=35)
    assert not append(table, 35, 45)
    version = table._log.versions()[-1]
    claim_alone(spark, paths[0], ENTRIES, application="a", claim=34)
    assert not table.claim("a", 35)
    assert table._log.versions()[-1] == version
    assert table.claim("a", 36)
    claim_alone(spark, paths[0], ENTRIES, application="a", claim=36)
    assert table._log.versions()[-1] == version + 1
    assert newest_claim(spark, paths[0], "a") == 36
    assert newest_claim(spark, paths[0], "another") == 0
    assert indexes(table) == list(range(40))
    writer = TableWriter(spark, paths[0], ENTRIES)
    for first in range(40, 140):
        assert (
            writer.append(rows(first, first + 1), application="a", claim=first, position="index", note={})
            == first
        )
    assert CHECKPOINTS.finish(60)
    log = tmp_path / "ours" / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] >= 100
    assert len(list(log.glob("*.checkpoint.parquet"))) == 1
    assert read_table(spark, paths[0]).count() == 140
    with pytest.raises(AnalysisException, match="nullable column to non-nullable"):
        spark.sql(f"ALTER TABLE {identifier(paths[0])} ALTER COLUMN key SET NOT NULL")
    history = spark.sql(f"DESCRIBE HISTORY {identifier(paths[0])}").collect()
    assert history[-2]["userMetadata"] == '{"first": 0}'
    spark.sql(f"RESTORE TABLE {identifier(paths[0])} TO VERSION AS OF 1")
    assert not append(table, 10, 11)


def test_a_table_that_a_feature_was_dropped_from_is_extended(made: Callable[[], LocalTable]) -> None:
    table = made()
    features = [*WRITER_FEATURES, "checkpointProtection"]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    log = table.path / "_delta_log"
    (log / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}) + "\n")
    assert append(table, 0, 1)
