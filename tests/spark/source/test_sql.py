"""The source in SQL: tables USING commitlog, and the union read on tables with features of Delta."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.tables.table import identifier
from tests.spark.conftest import Batch, endpoints
from tests.spark.source.log_server import FakeReplica
from tests.spark.source.test_union import Materialize, materialize

__all__ = ["materialize"]  # a fixture

ALL = [index for index in range(102) if index not in (0, 51)]
NAME = "spark_catalog.default.flights_log"


@pytest.fixture
def table(spark: SparkSession, replicas: list[FakeReplica]) -> Iterator[str]:
    options = f"endpoint '{endpoints(replicas)}', startingIndex '90'"
    spark.sql(f"CREATE TABLE {NAME} USING commitlog OPTIONS ({options}) COMMENT 'of the tests'")
    yield NAME
    spark.sql(f"DROP TABLE {NAME}")


def test_a_table_stores_its_options_and_is_read_as_batch_and_as_stream(
    spark: SparkSession, table: str, tmp_path: Path
) -> None:
    def indexes(rows: object) -> list[int]:
        return sorted(row[0] for row in rows.select("index").collect())  # type: ignore[attr-defined]

    assert [row["tableName"] for row in spark.sql("SHOW TABLES").collect()].count("flights_log") == 1
    assert indexes(spark.sql(f"SELECT * FROM {table} WHERE index > 97")) == [98, 99, 100, 101]
    assert indexes(spark.table(table)) == [*range(90, 102)]
    assert indexes(spark.read.option("startingIndex", "100").table(table)) == [100, 101]
    rows: list[int] = []
    stream = spark.readStream.table(table).writeStream.foreachBatch(
        lambda rows_, _: rows.extend(indexes(rows_))
    )
    stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    assert rows == [*range(90, 102)]


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        (
            "CREATE TABLE refused (a INT) USING commitlog OPTIONS ({})",
            "leave out the columns and the partitions",
        ),
        ("CREATE TABLE refused USING commitlog OPTIONS ({}) AS SELECT 1 AS value", "then INSERT INTO"),
        ("CREATE TABLE refused USING commitlog OPTIONS ({}, start '1')", "unknown option 'start'"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_a_sentence(
    spark: SparkSession, replicas: list[FakeReplica], statement: str, sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence) as refused:
        spark.sql(statement.format(f"endpoint '{endpoints(replicas)}'"))
    assert "Traceback" not in str(refused.value)
    assert not spark.catalog.tableExists("refused")


def test_the_columns_of_a_table_cannot_be_changed(spark: SparkSession, table: str) -> None:
    with pytest.raises(PySparkException, match="its columns cannot be changed"):
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS (mine INT)")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('team' = 'data')")
    assert spark.table(table).count() == 12


def test_a_schema_of_the_user_is_refused_in_a_sentence(batch: Batch) -> None:
    with pytest.raises(PySparkException, match=r"leave out .schema\(...\) and use select") as refused:
        batch().schema("a INT").load().count()
    assert "Traceback" not in str(refused.value)


def test_the_union_read_of_a_table_with_features_works_or_reports_why_not(
    spark: SparkSession, batch: Batch, materialize: Materialize
) -> None:
    path = materialize(60)
    name = identifier(path)

    def read() -> list[int]:
        rows = batch(tail="union", table=path).load().select("index").collect()
        return sorted(row[0] for row in rows)

    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert read() == ALL  # no file has one yet
    spark.sql(f"DELETE FROM {name} WHERE index = 7")
    with pytest.raises(
        PySparkException, match=r"deletionVectors \(rows were deleted; REORG TABLE"
    ) as refused:
        read()
    assert "Traceback" not in str(refused.value)
    spark.sql(f"REORG TABLE {name} APPLY (PURGE)")
    assert read() == [index for index in ALL if index != 7]
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    with pytest.raises(PySparkException, match="columnMapping"):
        read()
