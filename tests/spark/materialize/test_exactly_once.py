"""Each index is in `entries` once, whatever happens to checkpoints and claims."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.errors import LogClash
from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.materialize.progress import Progress
from spark_jobs.run import MaterializeConfig, materialize
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.table import ENTRIES, TableClash, append_once, create_table, identifier, read_table
from spark_jobs.tables.transforms import index_check
from tests.spark.conftest import Batch, endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import DATA, await_materialized, indexes


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(
        endpoint=endpoints(replicas),
        tables=tmp_path / "tables",
        available_now=True,
        max_records_per_trigger=60,
    )


def test_a_checkpoint_deleted_in_mid_stream_loses_and_doubles_nothing(
    spark: SparkSession, config: MaterializeConfig, log: FakeLog
) -> None:
    """The folder goes while the queries run; one that fails is started again from where the table ends."""
    stop = threading.Event()
    running = MaterializeConfig(
        endpoint=config.endpoint, tables=config.tables, trigger="200 milliseconds", events_trigger="1 minute"
    )
    ended: list[Progress] = []
    job = threading.Thread(target=lambda: ended.append(materialize(running, spark=spark, stop=stop)))
    job.start()
    try:
        await_materialized(config.tables, 101)
        for _ in range(3):
            for path in sorted((config.tables / "_checkpoints").rglob("*"), reverse=True):
                if path.is_file():
                    path.unlink(missing_ok=True)
            log.append_many(10)
            await_materialized(config.tables, log.next_index - 1)
    finally:
        stop.set()
        job.join()
    assert ended[0].state == "stopped"
    assert indexes(spark, config.tables) == [*DATA, *range(102, 132)]


@pytest.fixture
def job(spark: SparkSession, replicas: list[FakeReplica], tmp_path: Path) -> Callable[[], EntriesJob]:
    """Drivers of one table, as two processes would hold them."""

    def make() -> EntriesJob:
        client = LogReads([replica.url for replica in replicas], "default", give_up_s=2)
        job = EntriesJob(spark, client, str(tmp_path / "entries"), {})
        job.checkpoint = tmp_path / "checkpoint"
        return job

    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    return make


def write(job: EntriesJob, batch: Batch, until: int, first: int = 0) -> None:
    """Spark's steps in a micro-batch that ends before `until`: record the end, then call the job."""
    offset = {"next_index": until, "term": 1, "log_id": "test-default"}
    (job.checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    job.write(batch(startingIndex=first, endingIndex=until - 1).load(), 0)


def test_a_driver_that_was_paused_finds_the_other_ones_rows(
    job: Callable[[], EntriesJob], batch: Batch, spark: SparkSession
) -> None:
    paused, other = job(), job()
    assert paused.open().next_index == other.open().next_index == 0
    write(other, batch, 40)
    write(paused, batch, 30)  # wholly there
    assert (paused.next_index, paused.rows) == (40, 39)
    write(other, batch, 60)
    write(paused, batch, 80)  # partly there
    write(other, batch, 102)
    found = index_check(read_table(spark, other.path)).collect()[0]
    assert (found["rows"], found["doubles"], found["first"], found["last"]) == (100, 0, 1, 101)
    assert (other.rows, other.next_index) == (100, 102)


def test_a_range_of_control_records_claims_nothing(
    job: Callable[[], EntriesJob], batch: Batch, spark: SparkSession
) -> None:
    one, two = job(), job()
    one.open(), two.open()
    write(one, batch, 1)
    assert (one.covered_index, one.next_index, one.rows) == (0, 0, 0)
    write(two, batch, 20)
    write(one, batch, 51)
    write(one, batch, 52)  # ends with the control record
    write(two, batch, 102)
    assert index_check(read_table(spark, one.path)).collect()[0]["doubles"] == 0
    assert read_table(spark, one.path).count() == 100


def test_of_two_appends_that_race_for_a_claim_one_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "raced")
    create_table(spark, path, ENTRIES)
    for claim in (0, 10, 20):
        written: list[tuple[int, int] | None] = []

        def append(until: int, claim: int = claim, written: list[tuple[int, int] | None] = written) -> None:
            rows = spark.range(claim, until, 1, 1).select(
                F.col("id").alias("index"), F.lit("default").alias("log")
            )
            written.append(append_once(rows, path, application="a", claim=claim, position="index", note={}))

        racers = [threading.Thread(target=append, args=(claim + count,)) for count in (10, 10)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert sorted(written, key=str) == [(10, claim + 9), None]
    assert read_table(spark, path).count() == 30


def test_a_table_without_rows_begins_where_the_log_does(
    job: Callable[[], EntriesJob],
    batch: Batch,
    log: FakeLog,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two drivers saw it begin at different places: one is refused."""
    log.begin_index = 30
    early, late = job(), job()
    assert early.open().next_index == 30
    log.begin_index = 35
    assert late.open().next_index == 35
    assert "begins at index 35, as the log does now" in capsys.readouterr().err
    log.begin_index = 30
    write(early, batch, 60, 30)
    write(late, batch, 80, 30)
    found = index_check(read_table(spark, early.path)).collect()[0]
    assert (found["rows"], found["doubles"], found["first"], found["last"]) == (49, 0, 30, 79)


def test_a_table_that_lost_rows_is_reported_and_left_alone(
    job: Callable[[], EntriesJob], batch: Batch, spark: SparkSession
) -> None:
    first = job()
    first.open()
    write(first, batch, 40)
    write(first, batch, 50)
    spark.sql(f"RESTORE TABLE {identifier(first.path)} TO VERSION AS OF 1")
    for restarted in (False, True):
        if restarted:
            assert first.open().next_index == 40
        with pytest.raises(TableClash, match="RESTORE or DELETE"):
            write(first, batch, 60)
    assert read_table(spark, first.path).count() == 39


def test_a_table_of_another_log_stops_the_job(
    job: Callable[[], EntriesJob], batch: Batch, log: FakeLog
) -> None:
    first = job()
    first.open()
    write(first, batch, 102)
    records, log.records = log.records, log.records[:60]
    with pytest.raises(LogClash, match="ends before index 60"):
        job().open()
    log.records = records
    log.records[101]["term"] = 7
    with pytest.raises(LogClash, match="index 101 is of term 7, it was of 2"):
        job().open()
    log.records[101]["term"] = 2
    log.records[101]["offset"] += 1
    with pytest.raises(LogClash, match="index 101 is at byte 10101, it was at 10100"):
        job().open()
    log.cluster = "elsewhere"
    with pytest.raises(LogClash, match="its id is elsewhere-default, it was test-default"):
        job().open()
