"""Each index stands in `entries` once, whatever happens to drivers, checkpoints and claims."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.client import LogClient
from spark_jobs.entries import EntriesJob
from spark_jobs.errors import LogClash
from spark_jobs.progress import Progress
from spark_jobs.run import MaterializeConfig, materialize
from spark_jobs.tables import ENTRIES, TableClash, append_once, create_table, identifier, read_table
from spark_jobs.transforms import index_check
from tests.spark.conftest import Batch, endpoints
from tests.spark.kill_points import LONE, POINTS
from tests.spark.log_server import FakeLog, FakeReplica

DATA = [index for index in range(102) if index not in (0, 51)]
DRIVER_TIMEOUT_S = 90.0


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(
        endpoint=endpoints(replicas),
        tables=tmp_path / "tables",
        available_now=True,
        max_records_per_trigger=60,
    )


def indexes(spark: SparkSession, tables: Path) -> list[int]:
    return [
        row[0]
        for row in read_table(spark, f"{tables}/default/entries").select("index").orderBy("index").collect()
    ]


Driver = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def driver(config: MaterializeConfig) -> Iterator[Driver]:
    """Starts a materializer as a process, with a process group of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(point: str, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.driver_to_kill", point]
        command += ["--endpoint", config.endpoint, "--tables", str(config.tables), *more]
        process = subprocess.Popen(command, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_driver_killed_in_mid_write_leaves_nothing_and_the_next_one_goes_on(
    spark: SparkSession, config: MaterializeConfig, replicas: list[FakeReplica], driver: Driver
) -> None:
    for replica in replicas:
        replica.stall_at = 50  # the second half of the micro-batch does not come
    killed = driver("none", "--max-records", "102")
    entries = config.tables / "default" / "entries"
    await_true(
        lambda: any(replica.stalled.is_set() for replica in replicas) and any(entries.glob("*.parquet"))
    )
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert indexes(spark, config.tables) == []
    for replica in replicas:
        replica.stall_at = None
        replica.resume.set()
    materialize(config, spark=spark)
    assert indexes(spark, config.tables) == DATA


@pytest.mark.timeout(600)  # six drivers, each with a JVM of its own
def test_a_driver_killed_at_each_named_point_leaves_each_record_and_event_once(
    spark: SparkSession,
    config: MaterializeConfig,
    log: FakeLog,
    replicas: list[FakeReplica],
    driver: Driver,
) -> None:
    """One after the other on one table, then one that lives; `make chaos` does it to a real cluster."""
    standing = {"role": "leader", "begin_index": 0, "end_index": 101, "committed_index": 101}
    reached = 0
    points = [point for point in POINTS if point not in LONE]
    for count, point in enumerate(points, 1):
        replicas[0].event("watermarks", {**standing, "peers": {"n1": 101, "n2": count}})
        killed = driver(point, "--max-records", "10", "--trigger", "200 milliseconds")
        assert killed.wait(DRIVER_TIMEOUT_S) == -signal.SIGKILL, point
        found = indexes(spark, config.tables)
        assert found == DATA[: len(found)], point
        assert len(found) >= reached, point
        if point in ("opened", "planned"):
            assert found == [], point
        if point in ("committed", "known"):
            assert len(found) > reached, point
        reached = len(found)

    def told(table: str) -> list[int]:
        rows = read_table(spark, f"{config.tables}/default/{table}").select("seq").collect()
        return sorted(row["seq"] for row in rows)

    last = len(points) - 1
    assert told("watermarks")[-2:] == [last, last]  # a row a peer
    assert last not in told("events")
    log.append_many(10)
    materialize(config, spark=spark)
    assert indexes(spark, config.tables) == [*DATA, *range(102, 112)]
    assert told("events") == list(range(last + 1))
    assert told("watermarks") == sorted(2 * told("events"))


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


def await_true(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + DRIVER_TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)


def await_materialized(tables: Path, index: int, log: str = "default") -> None:
    def reached() -> bool:
        try:
            progress = json.loads((tables / "progress.json").read_text())
        except FileNotFoundError:
            return False
        return log in progress["logs"] and progress["logs"][log]["materialized_index"] >= index

    await_true(reached)


@pytest.fixture
def job(spark: SparkSession, replicas: list[FakeReplica], tmp_path: Path) -> Callable[[], EntriesJob]:
    """Drivers of one table, as two processes would hold them."""

    def make() -> EntriesJob:
        client = LogClient([replica.url for replica in replicas], "default", give_up_s=2)
        job = EntriesJob(spark, client, str(tmp_path / "entries"), {})
        job.checkpoint = tmp_path / "checkpoint"
        return job

    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    return make


def write(job: EntriesJob, batch: Batch, until: int, first: int = 0) -> None:
    """What Spark does with a micro-batch that ends before `until`: note the end, then call the job."""
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
    """Of two drivers that saw it begin at different places, one is refused as ever."""
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
    spark.sql(f"DELETE FROM {identifier(first.path)} WHERE index >= 0")
    second = job()
    second.open()
    with pytest.raises(TableClash, match="RESTORE or DELETE"):
        write(second, batch, 60)


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
    log.cluster = "elsewhere"
    with pytest.raises(LogClash, match="its id is elsewhere-default, it was test-default"):
        job().open()
