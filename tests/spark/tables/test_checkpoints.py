"""Checkpoints that Spark writes behind the commits of the driver."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from app.tables.delta_log import DeltaLog
from spark_jobs.tables import checkpoints
from spark_jobs.tables.checkpoints import MERGE_EACH, CheckpointWriter
from spark_jobs.tables.local.commits import LocalTable, NeedsSpark
from spark_jobs.tables.table import ENTRIES, create_table, settings_of_table
from tests.spark.no_spark import no_spark


def test_each_table_gets_its_checkpoint_though_another_fails(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [tmp_path / name for name in ("damaged", "one", "two")]
    for path in paths:
        create_table(spark, str(path), ENTRIES)
    (paths[0] / "_delta_log" / f"{1:020d}.json").write_text("{")
    writer = CheckpointWriter()
    for path in paths:
        writer.request(spark, str(path))
    assert writer.finish(60)
    for path in paths[1:]:
        assert (path / "_delta_log" / f"{0:020d}.checkpoint.parquet").exists()
        assert (snapshot := DeltaLog(str(path)).snapshot()) is not None
        assert snapshot.version == 0
    assert [record.message.partition(":")[0] for record in caplog.records] == [str(paths[0])]
    writer.request(spark, str(paths[1]))  # the thread has ended in between
    assert writer.finish(60)


def test_an_unexpected_failure_is_logged_and_the_other_tables_get_their_checkpoints(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "one"
    create_table(spark, str(path), ENTRIES)
    writer = CheckpointWriter()
    with writer._lock:  # its thread waits until both are due
        writer._due["no session"] = None  # type: ignore[assignment]  # fails as no error of Spark does
    writer.request(spark, str(path))
    assert writer.finish(60)
    assert [record.message for record in caplog.records] == ["no session: no checkpoint was written"]
    assert (path / "_delta_log" / f"{0:020d}.checkpoint.parquet").exists()


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (None, []),
        (NeedsSpark("it has a change data feed"), []),  # OPTIMIZE will do it
        (OSError("disk full"), ["one: its small files were not merged: disk full"]),
        (ValueError("damaged"), ["one: its small files were not merged"]),
    ],
)
def test_a_checkpoint_is_written_after_a_merge_whatever_became_of_it(
    error: Exception | None,
    logged: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps: list[str] = []

    def merged(path: str) -> None:
        steps.append(f"merge {path}")
        if error is not None:
            raise error

    monkeypatch.setattr(checkpoints, "merge_small_files", merged)
    monkeypatch.setattr(checkpoints, "write_checkpoint", lambda _spark, path: steps.append(f"write {path}"))
    writer = CheckpointWriter()
    writer.request(no_spark(), "one")
    assert writer.finish(60)
    assert steps == ["merge one", "write one"]
    assert [record.message for record in caplog.records] == logged


def test_small_files_are_looked_for_with_few_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search lists all commits of a week: of a busy table, 600 000."""
    looked: list[str] = []
    monkeypatch.setattr(checkpoints, "merge_small_files", looked.append)
    monkeypatch.setattr(checkpoints, "write_checkpoint", lambda _spark, _path: None)
    writer = CheckpointWriter()
    for _ in range(MERGE_EACH + 1):
        for path in ("one", "two"):
            writer.request(no_spark(), path)
            assert writer.finish(60)
    assert looked == ["one", "two"] * 2


def test_a_table_that_has_a_checkpoint_gets_later_ones(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Delta reads the one before with the active session of the thread, and may have none of it in memory."""
    table = LocalTable(str(tmp_path / "one"), lambda path: None)
    table.create(
        ENTRIES.schema,
        cluster_by=ENTRIES.cluster_by,
        comments=ENTRIES.columns,
        properties=settings_of_table(ENTRIES),
    )
    writer = CheckpointWriter()
    for claim in range(1, 4):
        table.claim("test", claim)
        writer.request(spark, str(table.path))
        assert writer.finish(60)
    assert [record.message for record in caplog.records] == []
    names = {path.name for path in (table.path / "_delta_log").glob("*.checkpoint.parquet")}
    assert names == {f"{version:020d}.checkpoint.parquet" for version in range(1, 4)}
