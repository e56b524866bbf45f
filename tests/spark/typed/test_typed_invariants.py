"""`current` by keys and tombstones, and the checks that find each broken row."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.run import materialize
from spark_jobs.tables.table import identifier
from spark_jobs.tables.views import create_views
from spark_jobs.typed.invariants import misplaced, outdated
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import check_law, rows_of
from tests.spark.typed.test_typed import to_json

AT = datetime(2026, 1, 1, tzinfo=UTC)
ENTRIES = "index LONG, term LONG, timestamp TIMESTAMP, key BINARY, value BINARY"
RECORDS = "_index LONG, _term LONG, _timestamp TIMESTAMP, _key BINARY, id INT"
LETTERS = "index LONG, term LONG, timestamp TIMESTAMP, key BINARY"


@pytest.fixture
def log() -> FakeLog:
    """A log without records."""
    log = FakeLog()
    log.open_term(1, "n1")
    return log


def record(index: int, key: str, number: int = 0, term: int = 1) -> tuple[object, ...]:
    return (index, term, AT, key.encode(), number)


def test_the_law_finds_rows_that_are_missing_doubled_or_moved(spark: SparkSession) -> None:
    rows = [(index, 1, AT, b"k", b"v") for index in range(6)]
    entries = spark.createDataFrame([*rows, (6, 1, AT, b"k", None), (7, 1, AT, b"k", None)], ENTRIES)
    letters = spark.createDataFrame([(0, 1, AT, b"k"), (1, 1, AT, b"k")], LETTERS)
    held = [record(1, "k"), record(2, "k"), record(3, "k", term=2), record(4, "other")]
    records = [
        spark.createDataFrame([*held, record(7, "k")], RECORDS),
        spark.createDataFrame([record(2, "k"), record(9, "k"), record(100, "k")], RECORDS),
    ]
    found = {row["index"]: row["problem"] for row in misplaced(entries, records, letters, 50).collect()}
    assert found == {
        1: "it is 2 times in records and dead_letters",
        2: "it is 2 times in records and dead_letters",
        3: "its term, timestamp or key differs",
        4: "its term, timestamp or key differs",
        5: "it is in entries, and neither in records nor in dead_letters",
        7: "a tombstone is in the typed tables",
        9: "it is in the typed tables, and not in entries",
    }


@pytest.mark.parametrize("key", ["_key", "id"])
def test_the_law_finds_rows_of_current_that_are_not_the_newest(spark: SparkSession, key: str) -> None:
    entries = spark.createDataFrame([(20, 1, AT, b"5", None), (21, 1, AT, b"6", None)], ENTRIES)
    rows = [record(index, str(number), number) for number in range(1, 7) for index in (number, number + 10)]
    records = spark.createDataFrame([*rows, record(30, "6", 6), record(90, "1", 1)], RECORDS)
    newest = {1: 11, 2: 2, 4: 14, 5: 15, 6: 30}  # 2: too old, 3: missing, 5: removed
    held = [record(index, str(number), number) for number, index in newest.items()]
    foreign = (None, None, None, b"9", 9)  # another program inserted it
    current = spark.createDataFrame([*held, record(14, "4", 4), foreign], RECORDS)
    problems = [row["problem"] for row in outdated(entries, records, current, [key], 50).collect()]
    assert sorted(problem.partition(": ")[2] for problem in problems) == [
        "it is of index 2, the newest is 12",
        "it is of no record",
        "it is there twice",
        "the record at index 13 is missing",
        "the record at index 15 is removed",
    ]


def test_current_follows_keys_and_tombstones(
    spark: SparkSession, replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    folder = tmp_path / "default"

    def current() -> list[tuple[int, int]]:
        return sorted((row["id"], row["_index"]) for row in rows_of(folder / "current"))

    log.set_schema("id INT NOT NULL, city STRING", key_columns=["id"])
    first = log.next_index
    for number in (1, 2, 1, 3):
        log.append(to_json(id=number), key=str(number).encode())
    log.append(None, key=b"2")
    log.append(to_json(id=4, city=7), to_json(id=5, city=7), key=b"late")  # dead letters
    materialize(config, spark=no_spark())
    assert current() == [(1, first + 2), (3, first + 3)]
    log.append(to_json(id=2), key=b"2")
    log.append(None, key=b"3")
    log.append(to_json(id=5, city="Bern"), key=b"5")
    log.set_schema("id INT NOT NULL, city INT", key_columns=["id"], compatibility="none")
    materialize(config, spark=no_spark())
    assert current() == [(1, first + 2), (2, first + 7), (5, first + 9)]
    check_law(log, folder, ("id",))

    with_feed = replace(config, change_data_feed=True)
    log.append(to_json(id=2, city=2002), key=b"2")
    named = (("schema-version", b"1"),)
    log.append(to_json(id=9, city=9), to_json(id=1, city="Bern"), key=b"1", headers=named)
    materialize(with_feed, spark=spark)
    names = set(create_views(spark, tmp_path))
    assert names >= {"records", "records_v2", "current", "current_v2", "dead_letters", "entries"}
    everywhere = spark.table("records").orderBy("_index").select("id", "city").collect()
    assert len(everywhere) == sum(len(list(rows_of(folder / name))) for name in ("records", "records_v2"))
    assert [tuple(row) for row in everywhere[-3:]] == [(5, "Bern"), (2, "2002"), (1, "Bern")]
    seen = spark.table("current").orderBy("id").select("id", "city").collect()
    assert [tuple(row) for row in seen] == [(1, "Bern"), (2, "2002"), (5, "Bern")]
    last = spark.sql(f"DESCRIBE HISTORY {identifier(f'{folder}/current_v2')}").first()["version"]
    feed = spark.read.option("readChangeFeed", "true").option("startingVersion", last)
    changed = feed.format("delta").load(f"{folder}/current_v2").select("id", "_change_type").collect()
    assert [tuple(row) for row in changed] == [(2, "insert")]
