"""A table is created once and completely, whichever process was killed meanwhile."""

import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from app.errors import ConfigError
from spark_jobs.tables import table as tables
from spark_jobs.tables.metadata import table_properties
from spark_jobs.tables.table import (
    EPOCHS,
    create_table,
    identifier,
    is_table,
    read_table,
    table_path,
)
from spark_jobs.tables.views import create_views


def half_made(path: Path) -> Path:
    """Files that Delta leaves when it is killed before its first commit has a name."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.0b1c.tmp").write_text("{}\n")
    return log


def test_a_table_that_is_there_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "epochs")
    assert create_table(spark, path, EPOCHS, {"commitlog.logId": "one"})
    spark.sql(f"INSERT INTO {identifier(path)} (log, epoch) VALUES ('default', 1)")
    assert not create_table(spark, path, EPOCHS, {"commitlog.logId": "two"})
    assert table_properties(spark, path)["commitlog.logId"] == "one"
    assert read_table(spark, path).count() == 1


@pytest.mark.parametrize(("condition", "is_refused"), [("PROTOCOL_CHANGED", False), ("OTHER", True)])
def test_the_second_of_two_drivers_that_create_a_table_at_once_finds_it(
    condition: str, is_refused: bool
) -> None:
    """In an object store Delta answers so."""

    def sql(statement: str) -> None:
        raise PySparkException(
            f"[DELTA_{condition}] The protocol version of the Delta table has been changed"
        )

    session: Any = SimpleNamespace(sql=sql)
    with pytest.raises(PySparkException) if is_refused else nullcontext():
        assert not create_table(session, "s3a://bucket/log/epochs", EPOCHS)


def test_a_relative_folder_of_tables_is_found_from_the_current_folder(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a notebook names it: `tables=commitlog-data/tables`. Spark alone takes it for a name in SQL."""
    monkeypatch.chdir(tmp_path)
    path = table_path("data/tables", "orders", EPOCHS)
    assert path == str(tmp_path / "data" / "tables" / "orders" / "epochs")
    assert create_table(spark, "data/tables/orders/epochs", EPOCHS)
    assert is_table(spark, "data/tables/orders/epochs")
    assert create_views(spark, "data/tables", "orders") == ["epochs"]
    assert spark.table("epochs").count() == 0
    with pytest.raises(ConfigError, match=f"{tmp_path}/data contains no table of log 'orders'"):
        create_views(spark, "data", "orders")
    for url in ("s3://bucket/tables", "dbfs:/tables"):
        assert table_path(url, "orders", EPOCHS) == f"{url}/orders/epochs"


def test_a_table_whose_maker_was_killed_is_made_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MADE_WITHIN_S", 1.0)
    path = tmp_path / "epochs"
    half_made(path)
    assert create_table(spark, str(path), EPOCHS)
    detail = spark.sql(f"DESCRIBE DETAIL {identifier(str(path))}").collect()[0]
    assert tuple(detail["clusteringColumns"]) == EPOCHS.cluster_by


def test_a_commit_that_came_meanwhile_stays(tmp_path: Path) -> None:
    log = half_made(tmp_path / "epochs")
    commit = log / f"{0:020d}.json"
    commit.write_text("{}\n")
    tables._clear(log)
    assert [path for path in log.iterdir() if path.suffix == ".json"] == [commit]


def test_a_table_that_only_spark_can_clear_up_is_refused_with_the_remedy(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MADE_WITHIN_S", 0.0)
    log = half_made(tmp_path / "epochs")
    with pytest.raises(ConfigError, match=r"was killed before it was complete. Delete file://.*/_delta_log"):
        create_table(spark, f"file://{tmp_path}/epochs", EPOCHS)
    assert log.is_dir()


def test_a_maker_that_lives_is_not_disturbed(spark: SparkSession, tmp_path: Path) -> None:
    """It commits while another looks."""
    path, other = tmp_path / "epochs", tmp_path / "other"
    assert create_table(spark, str(other), EPOCHS, {"commitlog.logId": "theirs"})
    log = half_made(path)
    commit = (other / "_delta_log" / f"{0:020d}.json").rename
    maker = threading.Timer(0.5, commit, [log / f"{0:020d}.json"])
    maker.start()
    assert not create_table(spark, str(path), EPOCHS)
    maker.join()
    assert table_properties(spark, str(path))["commitlog.logId"] == "theirs"
