"""`df.write` and `writeStream` to a real log: each row once, through kills of the whole driver."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_jobs.errors import OptionError
from spark_jobs.sink.options import check_columns
from tests.spark.sink.sink_to_kill import POINTS, ROWS, MortalSource, die_at, numbers
from tests.support.cluster import Cluster

DRIVER_TIMEOUT_S = 90.0


def values(service: Cluster, log: str) -> list[str]:
    return service.values("n1", log)


def rows(spark: SparkSession, count: int) -> DataFrame:
    """In order, over two partitions."""
    return spark.range(0, count, 1, 2).select(F.concat(F.lit("row-"), "id").alias("value"))


def write(frame: DataFrame, service: Cluster, log: str, **options: object) -> None:
    endpoints = ",".join(service.url(node) for node in service.ids)
    given = {"endpoint": endpoints, "log": log, **options}
    frame.write.format("commitlog").mode("append").options(**given).save()


def test_a_batch_write_keeps_every_column_and_the_order(
    spark: SparkSession, service: Cluster, tmp_path: Path
) -> None:
    frame = rows(spark, 12_000).select(
        "value",
        F.when(F.col("value") != "row-3", F.col("value").cast("binary")).alias("key"),
        F.lit("2024-02-03 04:05:06.789").cast("timestamp").alias("timestamp"),
        F.expr("array(named_struct('name', 'n', 'value', 'v'))").alias("headers"),
    )
    write(frame, service, "batches", stagingLocation=tmp_path)
    reader = spark.read.format("commitlog").option("endpoint", service.url("n1")).option("log", "batches")
    found = reader.load().orderBy("index").collect()
    assert [bytes(row["value"]) for row in found] == [b"row-%d" % number for number in range(12_000)]
    assert (found[3]["key"], bytes(found[4]["key"])) == (None, b"row-4")
    assert [(one["name"], bytes(one["value"])) for one in found[0]["headers"]] == [("n", b"v")]
    assert found[0]["timestamp"].timestamp() == 1_706_933_106.789
    assert list(tmp_path.iterdir()) == []


def test_a_named_write_may_be_repeated(spark: SparkSession, service: Cluster, tmp_path: Path) -> None:
    named = {"stagingLocation": tmp_path, "producerId": "job/1"}
    for batch_id in (0, 1, 1, 0, 1):
        write(rows(spark, 5 + batch_id), service, "named", batchId=batch_id, **named)
    assert values(service, "named") == [f"row-{n}" for n in (*range(5), *range(6))]
    (tmp_path / "job%2F1.0" / "batch-1.json").unlink()
    with pytest.raises(PySparkException, match="already holds appends of producer 'job/1'"):
        write(rows(spark, 6), service, "named", batchId=1, **named)
    assert len(values(service, "named")) == 11


def test_rows_that_cannot_be_written_are_refused_before_any_task(
    spark: SparkSession, service: Cluster, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="use mode\\('append'\\)"):
        rows(spark, 1).write.format("commitlog").option("endpoint", service.url("n1")).mode(
            "overwrite"
        ).save()
    with pytest.raises(PySparkException, match="`id` is none of value"):
        write(spark.range(1), service, "batches", stagingLocation=tmp_path)
    with pytest.raises(PySparkException, match="404"):
        write(rows(spark, 1), service, "no-such-log", stagingLocation=tmp_path)
    big = spark.range(1).select(F.repeat(F.lit("x"), 1_048_577).alias("value"))
    with pytest.raises(PySparkException, match="a record may have at most"):
        write(big, service, "batches", stagingLocation=tmp_path)
    assert list(tmp_path.rglob("*.arrow")) == []


def test_kills_of_driver_and_commit_leave_each_row_once(
    spark: SparkSession, service: Cluster, tmp_path: Path
) -> None:
    """The whole driver of one query is killed between two appends, then its commit alone, before the first
    append and after the last one. test_delivery.py has a kill at each step."""
    command = [sys.executable, "-m", "tests.spark.sink.sink_to_kill", service.url("n1"), str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True) as driver:
        assert driver.wait(DRIVER_TIMEOUT_S) == -signal.SIGKILL
    assert len(values(service, "killed")) == ROWS / 2
    checkpoint = tmp_path / "checkpoint"
    spark.dataSource.register(MortalSource)
    for count, point in enumerate(POINTS, 1):
        die_at(checkpoint, point)
        query = numbers(spark, tmp_path, ROWS * count, service.url("n1"))
        with pytest.raises(PySparkException):
            query.format("mortal-commitlog").start().awaitTermination()
    numbers(spark, tmp_path, ROWS * count, service.url("n1")).format("commitlog").start().awaitTermination()
    stored = values(service, "killed")
    assert sorted(stored) == sorted(f"number-{number}" for number in range(ROWS * count))
    staging = checkpoint / "commitlog-staging"
    found = sorted(path.name.partition("-")[0] for path in staging.rglob("*") if path.is_file())
    assert found == ["batch", "batch", "identity"]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ("key string", "the column `value` is missing"),
        ("value struct<a: int>", r"`value` is struct<a:int>, not binary or string.*to_json"),
        ("value string, index long", "`index` is none of value, key, headers, timestamp"),
        ("value string, timestamp long", "`timestamp` is bigint, not timestamp"),
        ("value string, headers map<string, string>", "`headers` is map<string,string>, not array<struct"),
        ("value string, key long", "`key` is bigint"),
    ],
)
def test_rows_that_cannot_be_records_are_refused_before_any_task(
    spark: SparkSession, schema: str, complaint: str
) -> None:
    with pytest.raises(OptionError, match=complaint):
        check_columns(StructType.fromDDL(schema))


def test_columns_that_can_be_records_are_taken(spark: SparkSession) -> None:
    headers = "array<struct<name: string, value: binary>>"
    check_columns(StructType.fromDDL(f"value binary, key string, timestamp timestamp, headers {headers}"))
    check_columns(StructType.fromDDL("value string, timestamp timestamp_ntz"))
