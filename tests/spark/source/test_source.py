"""`format("commitlog")` in Spark: what comes out of it, and what stops it."""

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.tables import schemas
from tests.spark.conftest import Batch, Collected, Stream, endpoints
from tests.spark.source.log_server import FIRST_TIMESTAMP_MS, FakeLog, FakeReplica

DATA = [index for index in range(102) if index not in (0, 51)]


def test_a_batch_has_every_data_record_once_with_its_place(batch: Batch) -> None:
    rows = batch(minPartitions=3).load()
    assert [(field.name, field.dataType) for field in rows.schema] == [
        (field.name, field.dataType) for field in schemas.RECORDS
    ]
    assert rows.rdd.getNumPartitions() == 3
    found = rows.orderBy("index").collect()
    assert [row["index"] for row in found] == DATA
    last = found[-1]
    assert (last["log"], last["term"], last["offset"], last["type"]) == ("default", 2, 10_100, "data")
    assert last["timestamp"].timestamp() * 1_000 == FIRST_TIMESTAMP_MS + 101
    assert (last["key"], bytes(last["value"]), last["headers"]) == (None, b"value-101", None)


def test_a_batch_reads_the_range_of_its_options_ends_included(batch: Batch) -> None:
    def read(**options: object) -> list[int]:
        return [row["index"] for row in batch(**options).load().select("index").orderBy("index").collect()]

    assert read(startingIndex=49, endingIndex=53) == [49, 50, 52, 53]
    assert read(startingIndex=49, endingIndex=53, includeControl="true") == [49, 50, 51, 52, 53]
    assert read(startingIndex="latest") == []
    assert read(startingIndex=102) == []


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_the_filters_of_a_query_do_not_apply_to_later_queries_of_the_same_rows(
    spark: SparkSession, batch: Batch, log: FakeLog, pushed: str
) -> None:
    """pushed: a setting of the user's session."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        rows = batch().load()
        assert [rows.where("index = 5").count(), rows.count()] == [1, 100]
        assert rows.where("index = 7 or offset < 0 or index = 9").count() == 2
        assert rows.where("index < 5").union(rows).count() == 104
        log.append_many(3)
        assert [rows.count(), batch().load().count()] == [100, 103]  # as documented: Spark keeps the range
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"endingIndex": 102}, "endingIndex must be at most the last index, 101, got 102"),
        ({"startingIndex": 500}, "startingIndex must be at most 102, the next index of the log, got 500"),
        (
            {"startingIndex": 60, "endingIndex": 50},
            "startingIndex must be at most the end of the read, 50, got 60",
        ),
        (
            {"startingIndex": "latest", "endingIndex": 50},
            "startingIndex must be at most the end of the read, 50, got 102",
        ),
        ({"log": "other/log"}, "the name of a log must have"),
        ({"tail": "both"}, "tail must be 'union', got 'both'"),
    ],
)
def test_a_batch_that_cannot_be_read_reports_the_reason(
    batch: Batch, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(PySparkException, match=complaint):
        batch(**options).load().count()


def test_a_schema_of_ones_own_is_refused(batch: Batch) -> None:
    with pytest.raises(PySparkException, match="leave out"):
        batch().schema("index long").load().count()


def test_a_stream_takes_bounded_steps_to_what_was_there_at_its_start(
    stream: Stream, collected: Collected
) -> None:
    steps = collected.run(stream(startingIndex="earliest", maxRecordsPerTrigger=40))
    assert [len(step) for step in steps] == [39, 39, 22]
    assert [index for step in steps for index in step] == DATA


def test_a_stream_takes_steps_by_bytes(stream: Stream, collected: Collected) -> None:
    steps = collected.run(stream(startingIndex="earliest", maxBytesPerTrigger=6_000))
    assert [len(step) for step in steps] == [58, 42]


def test_a_stream_continues_from_its_checkpoint(stream: Stream, collected: Collected, log: FakeLog) -> None:
    assert collected.run(stream(startingIndex=90)) == [[*range(90, 102)]]
    log.append_many(3)
    assert collected.run(stream(startingIndex=90)) == [[102, 103, 104]]
    assert collected.run(stream(startingIndex=90)) == []


def test_a_stream_survives_the_loss_of_a_replica_between_and_within_steps(
    stream: Stream, collected: Collected, replicas: list[FakeReplica], log: FakeLog
) -> None:
    assert len(collected.run(stream(startingIndex="earliest"))) == 1
    log.append_many(20)
    replicas[0].stop()
    replicas[1].cut_answers = 1
    assert collected.run(stream(startingIndex="earliest")) == [[*range(102, 122)]]


def test_a_log_that_was_wiped_stops_the_stream(stream: Stream, collected: Collected, log: FakeLog) -> None:
    collected.run(stream(startingIndex="earliest"))
    log.records.clear()
    log.append_many(5)
    with pytest.raises(
        PySparkException, match=r"ends before index 5, and was read up to 101.*another cluster"
    ):
        collected.run(stream(startingIndex="earliest"))
    log.term = 9
    log.append_many(200)
    with pytest.raises(PySparkException, match="index 101 is of term 9, it was of 2"):
        collected.run(stream(startingIndex="earliest"))
    log.cluster = "elsewhere"
    with pytest.raises(PySparkException, match=f"its id is {log.id}"):
        collected.run(stream(startingIndex="earliest"))


def test_a_trimmed_index_is_an_error_or_a_loss_that_the_user_accepts(
    stream: Stream, collected: Collected, log: FakeLog
) -> None:
    collected.run(stream(startingIndex=95))
    log.append_many(50)
    log.begin_index = 120
    with pytest.raises(PySparkException, match="begins at index 120"):
        collected.run(stream(startingIndex=95))
    assert collected.run(stream(startingIndex=95, failOnDataLoss="false")) == [[*range(120, 152)]]
    offsets = max((collected.checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert json.loads(offsets.read_text().splitlines()[-1])["lost"] == 18


def test_events_of_all_nodes_come_once_and_a_node_that_was_down_is_caught_up(
    stream: Stream, collected: Collected, replicas: list[FakeReplica]
) -> None:
    first, second = replicas
    for _ in range(3):
        first.event("role", {"role": "leader"})
    second.event("start", {})
    assert collected.run(stream(stream="events", startingIndex="earliest")) == [[0, 0, 1, 2]]
    second.event("term", {"term": 2})
    first.event("stop", {})
    port = second.port
    second.stop()
    assert collected.run(stream(stream="events", startingIndex="earliest")) == [[3]]
    second.start(port)
    assert collected.run(stream(stream="events", startingIndex="earliest")) == [[1]]


def test_a_journal_that_was_replaced_stops_the_events(
    stream: Stream, collected: Collected, replicas: list[FakeReplica]
) -> None:
    for number in range(3):
        replicas[0].event("role", {"role": "leader"}, timestamp_ms=number)
    collected.run(stream(stream="events", startingIndex="earliest"))
    replicas[0].journal.clear()
    replicas[0].event("start", {}, timestamp_ms=70)
    with pytest.raises(PySparkException, match="node n1's journal does not hold the event 2"):
        collected.run(stream(stream="events", startingIndex="earliest"))


def test_events_as_a_batch(
    batch: Batch, replicas: list[FakeReplica], spark: SparkSession, tmp_path: Path
) -> None:
    assert batch(stream="events").load().count() == 0
    replicas[1].event("watermarks", {"peers": {"n1": 4}, "committed_index": 4})
    row = batch(stream="events").load().collect()[0]
    assert (row["log"], row["node"], row["seq"], row["kind"], row["term"]) == (
        "default",
        "n2",
        0,
        "watermarks",
        2,
    )
    assert row["data"] == '{"committed_index":4,"peers":{"n1":4}}'
    assert batch(stream="events", startingIndex='{"n2": 1}').load().count() == 0
    replicas[0].stop()  # a stream would catch up, a batch is all that it will ever be
    with pytest.raises(PySparkException, match="node n1 does not answer, its events would be missing"):
        batch(stream="events").load().count()
    assert batch(stream="events", failOnDataLoss="false").load().count() == 1


@pytest.mark.parametrize(
    ("options", "schema", "complaint"),
    [
        ({"endingIndex": "5"}, None, "endingIndex is for batch queries"),
        ({"tail": "union"}, None, "tail=union is for batch queries"),
        ({}, "a INT", "commitlog has the schema"),
        ({"startingIndex": "500"}, None, "startingIndex must be at most 102, the next index of .*, got 500"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_in_a_sentence(
    spark: SparkSession,
    replicas: list[FakeReplica],
    tmp_path: Path,
    options: dict[str, str],
    schema: str | None,
    complaint: str,
) -> None:
    reader = spark.readStream.format("commitlog").option("endpoint", endpoints(replicas)).options(**options)
    rows = (reader if schema is None else reader.schema(schema)).load()
    query = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match=complaint) as refused:
        query.trigger(availableNow=True).start().awaitTermination()
    assert "Traceback" not in str(refused.value)
