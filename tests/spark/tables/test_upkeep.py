"""Compaction and clean-up beside a running stream."""

import json
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from app.tables.delta_log import DeltaLog
from spark_jobs import upkeep
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.progress import Progress
from spark_jobs.run import materialize
from spark_jobs.tables.snapshot import read_snapshot
from spark_jobs.tables.table import ENTRIES, TABLES, identifier, read_table
from spark_jobs.tables.table_writer import TableWriter
from spark_jobs.tables.transforms import index_check
from spark_jobs.upkeep import (
    MIN_CUBE,
    TARGET_CUBE,
    Kept,
    NotKept,
    keep_all_up,
    keep_round_up,
    keep_up,
)
from tests.spark.conftest import endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import await_materialized, await_true


def counted(spark: SparkSession, act: Callable[[], list[Kept | NotKept]]) -> tuple[list[Kept | NotKept], int]:
    """The result, and the number of tasks that Spark has started meanwhile."""
    tasks: Any = spark.sparkContext._jsc.sc().taskScheduler()
    first = int(tasks.newTaskId())
    return act(), int(tasks.newTaskId()) - first


def test_tables_are_compacted_while_the_stream_continues(
    spark: SparkSession, replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    config = MaterializeConfig(
        endpoint=endpoints(replicas),
        tables=tmp_path,
        trigger="300 milliseconds",
        events_trigger="1 minute",
    )
    path = f"{tmp_path}/default/entries"
    stop = threading.Event()
    ended: list[Progress] = []
    job = threading.Thread(target=lambda: ended.append(materialize(config, spark=spark, stop=stop)))
    job.start()
    try:
        await_materialized(tmp_path, log.next_index - 1)
        log.append_many(5)
        await_materialized(tmp_path, log.next_index - 1)
        log.open_term(3, "n1")  # `epochs` is written while it is compacted
        log.append_many(5)
        kept, tasks = counted(spark, lambda: [*keep_all_up(spark, tmp_path, ["default"])])
        await_materialized(tmp_path, log.next_index - 1)
        progress = tmp_path / "progress.json"
        await_true(lambda: json.loads(progress.read_text())["logs"]["default"]["epochs_rows"] == 3)
    finally:
        stop.set()
        job.join()
    assert ended[0].state == "stopped"
    assert ended[0].logs["default"].restarts == 0
    assert tasks < 100 * len(TABLES)  # Spark's own settings: more than 10,000 for each table
    assert len(kept) == len(TABLES)
    entries = next(each for each in kept if each.path == path)
    assert isinstance(entries, Kept)
    assert entries.files_removed >= 2
    found = index_check(read_table(spark, path)).collect()[0]
    assert (found["rows"], found["doubles"], found["last"]) == (110, 0, log.next_index - 1)
    epochs = read_table(spark, f"{tmp_path}/default/epochs").orderBy("epoch").collect()
    assert [row["epoch"] for row in epochs] == [1, 2, 3]

    before = len(list(Path(path).rglob("*.parquet")))
    retention = "'delta.deletedFileRetentionDuration' = 'interval 0 seconds'"
    spark.sql(f"ALTER TABLE {identifier(path)} SET TBLPROPERTIES ({retention})")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    keep_up(spark, path)
    spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    assert len(list(Path(path).rglob("part-*.parquet"))) == len(read_snapshot(path).files) < before
    assert read_table(spark, path).count() == 110


def test_a_group_of_files_that_is_large_enough_is_not_written_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Else each round would write the whole table."""
    path = tmp_path / "entries"
    TableWriter(spark, str(path), ENTRIES).create()
    assert set(upkeep.SETTINGS) >= {MIN_CUBE, TARGET_CUBE}
    for name in (MIN_CUBE, TARGET_CUBE):
        spark.conf.set(name, "1")
    try:
        known = set[str]()
        for first in (0, 4):
            for index in range(first, first + 4):
                rows = spark.range(index, index + 1).selectExpr("id AS index")
                rows.write.format("delta").mode("append").save(str(path))
            assert keep_up(spark, str(path)).files_removed == 4
            snapshot = DeltaLog(str(path)).snapshot()
            assert snapshot is not None
            assert snapshot.files.keys() > known
            known = set(snapshot.files)
    finally:
        for name in (MIN_CUBE, TARGET_CUBE):
            spark.conf.unset(name)


def test_a_table_that_fails_leaves_the_others_alone(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table in ("entries", "epochs"):
        for _ in range(2):
            path = tmp_path / "default" / table
            spark.range(3).repartition(1).write.format("delta").mode("append").save(str(path))
    next((tmp_path / "default" / "entries").glob("part-*.parquet")).unlink()
    assert keep_round_up(spark, str(tmp_path), ["default"], threading.Event()) == (1, 1)
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{tmp_path}/default/epochs: 2 files became 1")
    assert shown.err.startswith(f"{tmp_path}/default/entries: ")
    assert len(shown.err.splitlines()) == 1


@pytest.mark.parametrize("code", ["DELTA_CONCURRENT_DELETE_READ", "DELTA_METADATA_CHANGED"])
@pytest.mark.parametrize("command", ["OPTIMIZE", "VACUUM"])
def test_a_statement_is_repeated_after_a_commit_of_the_job(
    monkeypatch: pytest.MonkeyPatch, command: str, code: str
) -> None:
    """The job may also have set a property, or added a column."""
    monkeypatch.setattr(upkeep, "FIRST_PAUSE_S", 0.0)
    due = [code]

    def sql(statement: str) -> Any:
        if due and statement.startswith(command):
            raise PySparkException(f"[{due.pop()}] not now")
        return SimpleNamespace(collect=lambda: [{"metrics": {"numFilesRemoved": 2, "numFilesAdded": 1}}])

    spark: Any = SimpleNamespace(sql=sql)
    kept = keep_up(spark, "/tables/default/entries")
    assert (kept.files_removed, kept.files_added, kept.conflicts) == (2, 1, 1)


@pytest.mark.parametrize(("repeated", "code"), [((), 143), (("--every", "60"), 0)])
def test_a_round_that_a_signal_ends_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, repeated: tuple[str, ...], code: int
) -> None:
    def interrupted(*_given: Any) -> tuple[int, int]:
        signal.raise_signal(signal.SIGTERM)
        return 1, 0

    monkeypatch.setattr(upkeep, "open_session", lambda *_given: nullcontext())
    monkeypatch.setattr(upkeep, "keep_round_up", interrupted)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert upkeep.main(["--tables", str(tmp_path), *repeated]) == code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
