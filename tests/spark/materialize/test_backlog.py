"""A large batch: each task writes a file, and one commit of the driver has them all."""

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from app.tables.delta_log import LOG_FOLDER, DeltaLog
from spark_jobs.errors import LogTrimmed, RecordsTrimmed, ShortRead, own_error
from spark_jobs.materialize import backlog
from spark_jobs.materialize import entries as entries_of_a_log
from spark_jobs.materialize.backlog import BatchEnded, in_pieces
from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.planning import RecordsOffset
from spark_jobs.source.reading import RecordsPartition
from spark_jobs.tables.conflicts import SPARK_ERRORS
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import ENTRIES, TableClash, read_table
from tests.spark.conftest import endpoints
from tests.spark.materialize.opened_job import commit_of_user, newest_file
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import DATA
from tests.spark.typed.law import rows_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "entries"


@pytest.fixture
def job(
    replicas: list[FakeReplica], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., EntriesJob]:
    """Drivers of one table that write each batch by tasks, 30 records in each."""
    monkeypatch.setattr(entries_of_a_log, "SMALL_BATCH_RECORDS", 0)
    options = {"endpoint": endpoints(replicas), "maxRecordsPerPartition": "30"}

    def make(spark: SparkSession | None = None, **more: str) -> EntriesJob:
        client = LogReads([replica.url for replica in replicas], "default", give_up_s=2)
        made = EntriesJob(spark or no_spark(), client, str(folder), {**options, **more})
        made.open()
        return made

    return make


def indexes(folder: Path) -> list[int]:
    return sorted(row["index"] for row in rows_of(folder))


def checked_indexes(folder: Path) -> list[int]:
    """As `indexes`, of a table that has each file in its folder."""
    snapshot = DeltaLog(str(folder), keeps_files=True).snapshot()
    assert snapshot is not None
    assert sorted(snapshot.files) == sorted(path.name for path in folder.glob("*.parquet"))
    return indexes(folder)


def test_tasks_write_a_file_each_and_one_commit_has_them_all(
    job: Callable[..., EntriesJob], folder: Path
) -> None:
    writer = job()
    assert writer.step()
    assert checked_indexes(folder) == DATA
    assert (writer.rows, writer.next_index, writer.covered_index) == (100, 102, 101)
    snapshot = DeltaLog(str(folder), keeps_files=True).snapshot()
    assert snapshot is not None
    assert (snapshot.version, len(snapshot.files)) == (1, 4)
    again = job()
    assert (again.rows, again.next_index) == (100, 102)
    assert not again.step()


def test_a_table_of_tasks_is_as_one_of_the_driver(
    spark: SparkSession, job: Callable[..., EntriesJob], folder: Path, log: FakeLog
) -> None:
    """Real tasks of Spark; and it reads what they wrote."""
    log.append(None, key=b"k")
    writer = job(spark)
    assert writer.step()
    found = read_table(spark, str(folder)).orderBy("index").toArrow()
    assert found["index"].to_pylist() == [*DATA, 102]
    assert len(list(folder.glob("*.parquet"))) == 4
    assert writer._reader is not None
    read = writer._reader.read_here(RecordsOffset(0, 0, log.id), writer.offset)
    schema = arrow_schema(ENTRIES.schema)
    whole = pa.Table.from_batches([batch.select(schema.names) for batch in read], schema)
    assert found.select(schema.names).cast(schema).equals(whole)


class Death(Exception):
    """The driver ends here; nothing in this process is used by the next one."""


@pytest.mark.parametrize("has_committed", [False, True])
def test_a_driver_that_dies_beside_its_commit_leaves_each_record_once(
    job: Callable[..., EntriesJob], folder: Path, monkeypatch: pytest.MonkeyPatch, has_committed: bool
) -> None:
    whole = LocalTable._commit

    def commit_and_die(*given: Any) -> bool:
        if has_committed:
            whole(*given)
        raise Death

    for _ in range(2):
        killed = job(maxRecordsPerTrigger="25")
        with monkeypatch.context() as dying:
            dying.setattr(LocalTable, "_commit", commit_and_die)
            with pytest.raises(Death):
                killed.step()
        assert job(maxRecordsPerTrigger="25").step()
    assert job().step()
    assert indexes(folder) == DATA


def test_a_driver_that_was_overtaken_removes_its_files(
    job: Callable[..., EntriesJob], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one has committed a part of the batch while the tasks of this one ran."""
    slow, fast = job(), job(maxRecordsPerTrigger="40")
    write, raced = backlog.write_backlog, []

    def write_and_wait(*given: Any) -> Any:
        files = write(*given)
        if not raced:
            raced.append(True)
            assert fast.step()
        return files

    monkeypatch.setattr(entries_of_a_log, "write_backlog", write_and_wait)
    assert slow.step()
    assert fast.next_index == 40
    assert checked_indexes(folder) == DATA
    assert (slow.rows, slow.next_index) == (100, 102)


def test_rows_that_are_taken_while_tasks_write_leave_no_gap(
    job: Callable[..., EntriesJob], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = job(maxRecordsPerTrigger="30")
    assert writer.step()
    assert writer.step()
    write, restored = backlog.write_backlog, []

    def write_beside_a_restore(*given: Any) -> Any:
        if not restored:
            taken = {"remove": {"path": newest_file(writer), "dataChange": True}}
            restored.append(commit_of_user(writer, "RESTORE", taken))
        return write(*given)

    monkeypatch.setattr(entries_of_a_log, "write_backlog", write_beside_a_restore)
    with pytest.raises(TableClash, match="the records from index 30 on"):
        writer.step()
    assert DeltaLog(str(folder)).versions().stop == restored[0] + 1


@pytest.mark.parametrize("operation", ["OPTIMIZE", "DELETE"])
def test_a_batch_is_written_once_beside_commits_that_keep_the_end_of_the_table(
    job: Callable[..., EntriesJob], folder: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """Another writer makes a commit during each batch. DELETE: of a row that is not the last one."""
    writer = job(maxRecordsPerTrigger="30")
    assert writer.step()
    write, written = backlog.write_backlog, []

    def write_beside_a_commit(*given: Any) -> Any:
        assert not written
        files = write(*given)
        written.append(True)
        path = newest_file(writer)
        action = DeltaLog(str(folder)).commit(1).added[0]  # type: ignore[union-attr]
        kept = {"path": path, "size": action.size_bytes, "partitionValues": {}, "dataChange": True}
        bounds = {"numRecords": action.rows, "minValues": action.least, "maxValues": action.most}
        added = {"add": {**kept, "path": "kept.parquet", "stats": json.dumps(bounds)}}
        (folder / path).rename(folder / "kept.parquet")
        taken = {"remove": {"path": path, "dataChange": operation == "DELETE"}}
        commit_of_user(writer, operation, taken, added)
        return files

    monkeypatch.setattr(entries_of_a_log, "write_backlog", write_beside_a_commit)
    assert writer.step()
    assert checked_indexes(folder) == DATA[:58]
    assert (writer.rows, writer.next_index) == (58, 60)


def test_a_batch_of_which_a_task_fails_leaves_no_file(
    job: Callable[..., EntriesJob], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of four tasks reads a part of its range."""
    whole = backlog.read_records

    def read(options: SourceOptions, partition: RecordsPartition) -> Iterator[pa.RecordBatch]:
        for batch in whole(options, partition):
            yield batch
            if partition.until == 102:
                raise ShortRead("the answer has ended")

    writer = job()
    with monkeypatch.context() as failing:
        failing.setattr(backlog, "read_records", read)
        with pytest.raises(ShortRead):
            writer.step()
    assert checked_indexes(folder) == []
    assert writer.step()
    assert checked_indexes(folder) == DATA


def test_a_task_that_outlives_its_batch_leaves_no_file(
    job: Callable[..., EntriesJob], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark ends the other tasks of a job that failed or was interrupted some seconds later."""
    outliving: list[Callable[[], Any]] = []
    spark = no_spark()

    class Interrupted(Exception):
        pass

    def interrupted(elements: list[Any], slices: int) -> Any:
        def begin(task: Callable[[Any], Any]) -> Any:
            outliving.extend(partial(task, element) for element in elements)
            return SimpleNamespace(collect=fail)

        return SimpleNamespace(map=begin)

    def fail() -> None:
        assert outliving.pop()() is not None  # this one has ended before
        raise Interrupted

    writer = job(spark)
    with monkeypatch.context() as patched:
        patched.setattr(spark.sparkContext, "parallelize", interrupted)
        with pytest.raises(Interrupted):
            writer.step()
    assert [path.name for path in folder.iterdir()] == [LOG_FOLDER]
    for task in outliving:
        with pytest.raises(BatchEnded):
            task()
    assert [path.name for path in folder.iterdir()] == [LOG_FOLDER]
    assert writer.step()
    assert checked_indexes(folder) == DATA
    assert len(list(folder.iterdir())) == 1 + 4


def test_a_failure_of_a_task_of_spark_is_known_by_its_kind(
    spark: SparkSession,
    job: Callable[..., EntriesJob],
    log: FakeLog,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is trimmed between the plan and the tasks, the last of which still finds its range."""
    write = backlog.write_backlog

    def trim_and_write(*given: Any) -> Any:
        log.begin_index = 80
        return write(*given)

    monkeypatch.setattr(entries_of_a_log, "write_backlog", trim_and_write)
    with pytest.raises(RecordsTrimmed, match="begins at index 80") as failure:
        job(spark).step()
    cause = failure.value.__cause__
    assert isinstance(cause, SPARK_ERRORS)
    known = own_error(cause)
    assert known is not None
    assert known[0] is LogTrimmed
    assert checked_indexes(folder) == []


def test_pieces_have_the_bytes_of_a_row_group() -> None:
    schema = arrow_schema(ENTRIES.schema)
    row = dict.fromkeys(schema.names) | {"log": "a", "index": 1, "term": 1, "offset": 0, "value": b"x" * 1000}
    batches = [pa.RecordBatch.from_pylist([row] * 2, schema) for _ in range(7)]
    pieces = list(in_pieces(batches, 5_000))
    assert [piece.num_rows for piece in pieces] == [6, 6, 2]
    assert list(in_pieces([], 5_000)) == []


@pytest.mark.parametrize("failing", [None, "touch", "task", "unlink-marker", "unlink-file"])
def test_a_batch_that_fails_at_any_step_removes_its_tag_and_once_its_marker(
    folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str | None
) -> None:
    """The marker goes before the files: a task that ends later then removes its own."""
    folder.mkdir()
    steps: list[str] = []

    def observed(step: str, path: Path, do: Callable[[], None]) -> None:
        kind = "marker" if path.name.startswith("backlog-") else "file"
        steps.append(step if step == "touch" else f"{step}-{kind}")
        if steps[-1] == failing:
            raise OSError(f"{failing} fails")
        do()

    touch, unlink = Path.touch, Path.unlink
    monkeypatch.setattr(Path, "touch", lambda path: observed("touch", path, lambda: touch(path)))
    monkeypatch.setattr(
        Path,
        "unlink",
        lambda path, missing_ok=False: observed("unlink", path, lambda: unlink(path, missing_ok)),
    )

    def written(_options: object, _folder: str, batch: str, _numbered: object) -> None:
        (folder / f"part-0-{batch}-0.snappy.parquet").write_bytes(b"")
        if failing in ("task", "unlink-file"):
            raise OSError("a task fails")

    monkeypatch.setattr(backlog, "_write_partition", written)
    session, tags, options = no_spark(), list[str](), cast(SourceOptions, None)
    monkeypatch.setattr(session.sparkContext, "addJobTag", tags.append)
    monkeypatch.setattr(session.sparkContext, "removeJobTag", tags.remove)
    with pytest.raises(OSError, match="fails") if failing is not None else nullcontext():
        backlog.write_backlog(session, options, [InputPartition(0)], folder)
    assert tags == []
    assert steps.count("unlink-marker") == 1
    assert "unlink-file" not in steps[: steps.index("unlink-marker")]
    left = sorted(path.name.partition("-")[0] for path in folder.iterdir())
    assert (
        left
        == {
            None: ["part"],
            "touch": [],
            "task": [],
            "unlink-marker": ["backlog", "part"],
            "unlink-file": ["part"],
        }[failing]
    )
