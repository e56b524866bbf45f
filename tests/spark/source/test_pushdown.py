"""Filters make a read shorter, never different."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from spark_jobs.source.data_source import FilteringBatchReader, filters_are_pushed
from spark_jobs.source.options import parse_options
from spark_jobs.source.pushdown import EPOCH, bounds_of, narrow
from spark_jobs.source.reading import RecordsPartition
from tests.spark.conftest import Batch, endpoints
from tests.spark.source.log_server import FIRST_TIMESTAMP_MS, FakeLog, FakeReplica

PLAIN = {
    EqualTo: lambda own, value: own == value,
    EqualNullSafe: lambda own, value: own == value,
    GreaterThan: lambda own, value: own > value,
    GreaterThanOrEqual: lambda own, value: own >= value,
    LessThan: lambda own, value: own < value,
    LessThanOrEqual: lambda own, value: own <= value,
    In: lambda own, value: own in value,
}
Row = dict[str, int]


def time_of(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


@st.composite
def filters(draw: st.DrawFn) -> tuple[Filter, str, object]:
    column = draw(st.sampled_from(["index", "term", "timestamp"]))
    most = {"index": 40, "term": 6, "timestamp": 9_000}[column]
    kind = draw(st.sampled_from(list(PLAIN)))
    numbers = st.integers(0, most)
    value: object = draw(st.lists(numbers, min_size=1, max_size=4) if kind is In else numbers)
    literal = value
    if column == "timestamp":
        literal = [time_of(at) for at in value] if isinstance(value, list) else time_of(int(str(value)))
    return kind((column,), literal), column, value


@given(
    asked=st.lists(filters(), max_size=4),
    steps=st.lists(st.integers(0, 1), max_size=30),
    times=st.lists(st.integers(0, 8_999), min_size=30, max_size=30),
    start=st.integers(0, 5),
)
def test_a_narrowed_range_holds_every_record_that_the_filters_let_through(
    asked: list[tuple[Filter, str, object]], steps: list[int], times: list[int], start: int
) -> None:
    terms = [sum(steps[: at + 1]) for at in range(len(steps))]
    rows: list[Row] = [
        {"index": start + at, "term": term, "timestamp": times[at]} for at, term in enumerate(terms)
    ]

    def first_at(timestamp_ms: int) -> int:
        later = (row["index"] for row in rows if row["timestamp"] >= timestamp_ms * 1_000)
        return next(later, start + len(rows))

    first, until = narrow(
        start,
        start + len(rows),
        bounds_of(filter for filter, _, _ in asked),
        first_at=first_at,
        term_of=lambda index: rows[index - start]["term"],
    )
    assert first <= until
    for row in rows:
        wanted = all(PLAIN[type(filter)](row[column], value) for filter, column, value in asked)
        assert not wanted or first <= row["index"] < until


def test_filters_without_a_bound_are_left_to_spark() -> None:
    nothing = bounds_of([])
    others: Sequence[Filter] = [
        Not(EqualTo(("index",), 4)),
        IsNotNull(("index",)),
        EqualTo(("key",), b"k"),
        EqualTo(("headers", "index"), 3),
        In(("index",), (1, None)),
        EqualTo(("term",), True),
    ]
    assert bounds_of(others) == nothing
    naive = datetime(2024, 1, 1)
    assert bounds_of([EqualTo(("timestamp",), naive)]) == bounds_of(
        [EqualTo(("timestamp",), naive.replace(tzinfo=UTC))]
    )


AT_70 = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=FIRST_TIMESTAMP_MS + 70)


@pytest.mark.parametrize(
    ("asked", "first", "until"),
    [
        ([GreaterThan(("index",), 9), LessThan(("index",), 20)], 10, 20),
        ([EqualTo(("term",), 1)], 0, 51),
        ([EqualTo(("term",), 2), LessThanOrEqual(("index",), 60)], 51, 61),
        ([GreaterThanOrEqual(("timestamp",), AT_70)], 70, 102),
        ([GreaterThan(("timestamp",), AT_70), EqualTo(("term",), 1)], 70, 70),
        ([EqualTo(("index",), 5), EqualTo(("index",), 7)], 7, 7),
        ([GreaterThan(("index",), 5_000)], 5_001, 5_001),
    ],
)
def test_only_what_can_be_wanted_is_asked_for(
    replicas: list[FakeReplica], asked: list[Filter], first: int, until: int
) -> None:
    reader = FilteringBatchReader(parse_options({"endpoint": endpoints(replicas)}).for_batch())
    assert reader.pushFilters(asked) == asked
    (partition,) = reader.partitions()
    assert isinstance(partition, RecordsPartition)
    assert (partition.first, partition.until) == (first, until)
    for replica in replicas:
        replica.requests.clear()
    read = [index for rows in reader.read(partition) for index in rows.column("index").to_pylist()]
    assert read == [index for index in range(first, until) if index not in (0, 51)]
    requests = [request for replica in replicas for request in replica.requests]
    assert len(requests) == (1 if first < until else 0)
    assert all(f"from_index={first}&until_index={until}" in request for request in requests)


def test_equal_rows_with_and_without_filters(spark: SparkSession, batch: Batch, log: FakeLog) -> None:
    """Timestamps out of order: the last ten records are as old as the first ones."""
    log.append_many(10)
    for record in log.records[-10:]:
        record["timestamp"] = (FIRST_TIMESTAMP_MS + 1) * 1_000
    found = {}
    where = f"timestamp >= timestamp'{AT_70}' AND index NOT IN (80, 81) AND term = 2 AND index < 105"
    old = f"timestamp < timestamp'{AT_70}'"
    for pushed in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        rows = batch().load().where(where).select("index", "value").orderBy("index").collect()
        found[pushed] = (rows, batch().load().where(old).count())
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert found["true"] == found["false"]
    assert [row["index"] for row in found["true"][0]] == [*range(70, 80), *range(82, 102)]
    assert found["true"][1] == 78


def test_the_filters_of_a_query_do_not_apply_to_later_queries_of_the_same_rows(batch: Batch) -> None:
    rows = batch().load()
    assert [rows.where("index = 5").count(), rows.count()] == [1, 100]
    assert rows.where("index = 7 or offset < 0 or index = 9").count() == 2
    assert rows.where("index < 5").union(rows).count() == 104


def test_no_filters_are_taken_from_a_spark_that_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.worker.data_source_pushdown_filters", sys)
    assert [filters_are_pushed(version) for version in ("4.2.0", "4.2.1", "4.3.0")] == [False, False, True]
