"""Transforms on rows of a test's own."""

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from spark_jobs import schemas, transforms

AT = datetime(2024, 1, 2, tzinfo=UTC)


def test_watermarks_have_a_row_a_peer_and_the_latest_is_the_newest_told(spark: SparkSession) -> None:
    told = '{"role":"leader","begin_index":0,"end_index":9,"committed_index":%d,"peers":{"n1":%d,"n2":7}}'
    events = spark.createDataFrame(
        [
            ("default", "n1", 4, AT, "watermarks", 3, told % (7, 9)),
            ("default", "n1", 5, AT, "watermarks", 3, told % (8, 8)),
            ("default", "n2", 1, AT, "watermarks", 3, '{"role":"follower","peers":{}}'),
            ("default", "n1", 6, AT, "role", 3, '{"role":"leader"}'),
        ],
        schemas.EVENTS,
    )
    rows = transforms.watermarks(events)
    assert rows.schema.fieldNames() == schemas.WATERMARKS.fieldNames()
    assert rows.count() == 4
    latest = transforms.latest_watermarks(rows).orderBy("peer").collect()
    assert [(row["peer"], row["seq"], row["watermark"], row["committed_index"]) for row in latest] == [
        ("n1", 5, 8, 8),
        ("n2", 5, 7, 8),
    ]


def test_delays_by_hour_count_the_cancelled_apart(spark: SparkSession) -> None:
    values = [f'{{"hour":5,"dep_delay":{delay}}}' for delay in ("-3", "1", "11", "null")] + ["no JSON"]
    entries = spark.createDataFrame(
        [("default", index, 1, 0, AT, None, value.encode(), None) for index, value in enumerate(values)],
        schemas.ENTRIES,
    )
    flights = transforms.json_values(entries, "hour int, dep_delay double")
    assert flights.count() == 5
    row = transforms.delays_by_hour(flights.where("hour IS NOT NULL")).collect()[0]
    assert (row["hour"], row["flights"], row["cancelled"], row["median"]) == (5, 4, 1, 1.0)
    assert abs(row["late"] - 9.0) < 1e-9
