"""Transforms on rows of a test's own."""

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from spark_jobs.tables import schemas, transforms

AT = datetime(2024, 1, 2, tzinfo=UTC)


def test_the_latest_watermark_is_the_newest_reported(spark: SparkSession) -> None:
    def row(peer: str, seq: int, watermark: int) -> tuple[object, ...]:
        return ("default", 3, peer, "n1", seq, AT, "leader", watermark, 0, 9, 8)

    rows = spark.createDataFrame(
        [row("n1", 4, 9), row("n1", 5, 8), row("n2", 4, 7), row("n2", 5, 7)], schemas.WATERMARKS
    )
    latest = transforms.latest_watermarks(rows).orderBy("peer").collect()
    assert [(row["peer"], row["seq"], row["watermark"]) for row in latest] == [("n1", 5, 8), ("n2", 5, 7)]


def test_delays_by_hour_count_the_cancelled_apart(spark: SparkSession) -> None:
    rows = [(5, delay) for delay in (-3.0, 1.0, 11.0, None)]
    flights = spark.createDataFrame(rows, "scheduled_hour INT, dep_delay DOUBLE")
    row = transforms.delays_by_hour(flights).collect()[0]
    assert (row["hour"], row["flights"], row["cancelled"], row["median"]) == (5, 4, 1, 1.0)
    assert abs(row["late"] - 9.0) < 1e-9
