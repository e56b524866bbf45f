"""Delays by carrier and hour: late flights are kept apart, however the log was cut into micro-batches."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from app.demo.flights import FLIGHTS_SCHEMA
from app.schemas import LogSchema
from spark_jobs.analytics import silver
from spark_jobs.analytics.silver import DELAYS, LATE, DelaysJob, delays
from spark_jobs.tables.table import create_table, read_table, table_path
from spark_jobs.typed.layout import compatibility_groups

# (carrier, hours after noon, delay): the fourth and the last but one come when the watermark has passed them
FLIGHTS = [
    ("UA", 0, 5.0),
    ("AA", 1, None),
    ("UA", 4, 10.0),
    ("UA", 0, 99.0),
    ("UA", 2, 30.0),
    ("AA", 4, -3.0),
    ("AA", 1, 7.0),
    ("UA", 4, 20.0),
]
RECORDS_OF_FLIGHTS = compatibility_groups([LogSchema(1, 0, "json", FLIGHTS_SCHEMA)])[0].records()


def append(spark: SparkSession, path: str, first: int, flights: list[tuple[str, int, float | None]]) -> None:
    """Add flights to `records`, and one whose day does not exist."""
    rows = []
    for index, (carrier, hours, delay) in enumerate(flights, first):
        clock = (12 + hours) * 100 + 59
        value = {"carrier": carrier, "flight": 1, "origin": "JFK", "year": 2013, "month": 1, "day": 1}
        value |= {"dep_time": None if delay is None else clock, "sched_dep_time": clock}
        rows.append({"_index": index, **value, "dep_delay": None if delay is None else int(delay)})
    rows.append({"_index": first + len(flights), **value, "month": 13, "dep_delay": 0})
    spark.createDataFrame(rows, RECORDS_OF_FLIGHTS.schema).coalesce(1).write.format("delta").mode(
        "append"
    ).save(path)


@pytest.fixture
def rival(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job brings the first late flight, just before this one brings them all and is refused."""
    whole = silver.append_once

    def append(rows: DataFrame, path: str, **options: Any) -> tuple[int, int] | None:
        if path.endswith(LATE.name):
            monkeypatch.setattr(silver, "append_once", whole)
            assert whole(rows.orderBy("index").limit(1), path, **options) is not None
        return whole(rows, path, **options)

    monkeypatch.setattr(silver, "append_once", append)


@pytest.mark.usefixtures("rival")
@pytest.mark.parametrize("cuts", [[8], [3, 5, 8]], ids=["one batch", "three batches"])
def test_late_flights_are_kept_apart(spark: SparkSession, tmp_path: Path, cuts: list[int]) -> None:
    path = table_path(tmp_path, "default", RECORDS_OF_FLIGHTS)
    create_table(spark, path, RECORDS_OF_FLIGHTS)
    job = DelaysJob(spark, tmp_path)
    start = 0
    for run, end in enumerate(cuts):
        append(spark, path, start + run, FLIGHTS[start:end])
        if run == 0:
            job.start(tmp_path / "checkpoint")
        else:  # as the query does, from the begin, for it has lost its checkpoint: nothing is reported twice
            job.write(read_table(spark, path), 0)
        start = end

    def rows(name: str) -> list[Row]:
        return read_table(spark, f"{tmp_path}/default/{name}").collect()

    late = sorted(
        (row["carrier"], row["dep_delay"], row["hour"] < row["watermark"]) for row in rows(LATE.name)
    )
    assert late == [("AA", 7.0, True), ("UA", 99.0, True)]
    reported = (
        delays(read_table(spark, f"{tmp_path}/default/{DELAYS.name}")).orderBy("carrier", "hour").collect()
    )
    assert [
        (row["carrier"], row["flights"], row["cancelled"], row["mean"], row["most"]) for row in reported
    ] == [
        ("AA", 1, 1, None, None),
        ("AA", 1, 0, -3.0, -3.0),
        ("UA", 1, 0, 5.0, 5.0),
        ("UA", 1, 0, 30.0, 30.0),
        ("UA", 2, 0, 15.0, 20.0),
    ]
    assert sum(row["flights"] for row in reported) + len(late) == len(FLIGHTS)
