"""Each index is in `entries` once, whatever happens to claims."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.errors import LogClash
from spark_jobs.materialize import entries as entries_of_a_log
from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.claims import append_once
from spark_jobs.tables.metadata import set_properties
from spark_jobs.tables.removals import TableReplaced
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import ENTRIES, TableClash, create_table, identifier, read_table
from spark_jobs.tables.transforms import entries, index_check
from tests.spark.conftest import Batch
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import rows_of
from tests.spark.user_restore import restore


@pytest.fixture
def job(spark: SparkSession, replicas: list[FakeReplica], tmp_path: Path) -> Callable[[], EntriesJob]:
    """Drivers of one table, as two processes would hold them."""

    def make() -> EntriesJob:
        urls = [replica.url for replica in replicas]
        client = LogReads(urls, "default", give_up_s=2)
        return EntriesJob(spark, client, str(tmp_path / "entries"), {"endpoint": ",".join(urls)})

    return make


def write(job: EntriesJob, batch: Batch, until: int, first: int = 0) -> None:
    """One batch that ends before `until`."""
    records = batch(startingIndex=first, endingIndex=until - 1).load()
    job.write(entries(records).toArrow().cast(arrow_schema(ENTRIES.schema)), until)


def test_a_driver_that_was_paused_finds_the_other_ones_rows(
    job: Callable[[], EntriesJob], batch: Batch, spark: SparkSession
) -> None:
    paused, other = job(), job()
    paused.open()
    other.open()
    assert paused.next_index == other.next_index == 0
    write(other, batch, 40)
    write(paused, batch, 30)  # wholly there
    assert (paused.next_index, paused.rows) == (40, 39)
    write(other, batch, 60)
    write(paused, batch, 80)  # partly there
    write(other, batch, 102)
    found = index_check(read_table(spark, other.path)).collect()[0]
    assert (found["rows"], found["doubles"], found["first"], found["last"]) == (100, 0, 1, 101)
    assert (other.rows, other.next_index) == (100, 102)


class Death(Exception):
    """The driver ends here; nothing in this process is used by the next one."""


@pytest.mark.parametrize("has_committed", [False, True])
def test_a_driver_that_dies_beside_a_commit_of_spark_leaves_each_record_once(
    job: Callable[[], EntriesJob],
    batch: Batch,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    has_committed: bool,
) -> None:
    """Spark writes a large batch to a table with a feature that its driver does not write."""

    def append_and_die(*given: Any, **options: Any) -> None:
        if has_committed:
            append_once(*given, **options)
        raise Death

    first = job()
    first.open()
    set_properties(spark, first.path, {"delta.enableChangeDataFeed": "true"})
    for until in (60, 102):
        with monkeypatch.context() as dying:
            dying.setattr(entries_of_a_log, "append_once", append_and_die)
            killed = job()
            killed.open()
            with pytest.raises(Death):
                killed.take_large(batch(endingIndex=until - 1).load(), killed.read_until, until, 0.0)
        following = job()
        following.open()
        assert following.take_large(batch(endingIndex=until - 1).load(), following.read_until, until, 0.0)
    found = index_check(read_table(spark, following.path)).collect()[0]
    assert (found["rows"], found["doubles"], found["first"], found["last"]) == (100, 0, 1, 101)


def test_a_range_of_control_records_claims_nothing(
    job: Callable[[], EntriesJob], batch: Batch, spark: SparkSession
) -> None:
    one, two = job(), job()
    one.open()
    two.open()
    write(one, batch, 1)
    assert (one.covered_index, one.next_index, one.rows) == (0, 0, 0)
    write(two, batch, 20)
    write(one, batch, 51)
    write(one, batch, 52)  # ends with the control record
    write(two, batch, 102)
    assert index_check(read_table(spark, one.path)).collect()[0]["doubles"] == 0
    assert read_table(spark, one.path).count() == 100


def test_one_of_two_appends_that_race_for_a_claim_is_refused(spark: SparkSession, tmp_path: Path) -> None:
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
    early.open()
    assert early.next_index == 30
    log.begin_index = 35
    late.open()
    assert late.next_index == 35
    assert "begins at index 35, as the log does now" in capsys.readouterr().err
    log.begin_index = 30
    write(early, batch, 60, 30)
    write(late, batch, 80, 30)
    found = index_check(read_table(spark, early.path)).collect()[0]
    assert (found["rows"], found["doubles"], found["first"], found["last"]) == (49, 0, 30, 79)


def test_a_table_that_lost_rows_is_reported_and_left_alone(
    job: Callable[[], EntriesJob], batch: Batch
) -> None:
    first = job()
    first.open()
    write(first, batch, 40)
    write(first, batch, 50)
    restore(Path(first.path), 1)
    for restarted in (False, True):
        if restarted:
            first.open()
            assert first.next_index == 40
        with pytest.raises(TableClash, match="RESTORE or DELETE"):
            write(first, batch, 60)
    assert len(list(rows_of(Path(first.path)))) == 39
    restore(Path(first.path), 2)  # as the error names it
    write(first, batch, 60)
    assert len(list(rows_of(Path(first.path)))) == 58


def test_rows_that_are_taken_while_spark_appends_are_reported(
    job: Callable[[], EntriesJob], batch: Batch, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a table with a feature that its driver does not write."""
    first = job()
    first.open()
    set_properties(spark, first.path, {"delta.enableChangeDataFeed": "true"})
    write(first, batch, 40)
    write(first, batch, 50)
    append = entries_of_a_log.append_once

    def beside_others(rows: DataFrame, path: str, **options: Any) -> tuple[int, int] | None:
        spark.sql(statements.pop().format(identifier(path)))
        return append(rows, path, **options)

    monkeypatch.setattr(entries_of_a_log, "append_once", beside_others)
    statements = ["RESTORE TABLE {} TO VERSION AS OF 2", "DELETE FROM {} WHERE index = 7"]
    assert first.take_large(batch(startingIndex=50, endingIndex=59).load(), first.read_until, 60, 0.0)
    assert (first.next_index, read_table(spark, first.path).count()) == (60, 57)
    with pytest.raises(TableClash, match="the records that end with index 59"):
        first.take_large(batch(startingIndex=60, endingIndex=69).load(), first.read_until, 70, 0.0)


def test_a_table_that_was_removed_is_made_again_from_its_begin(
    job: Callable[[], EntriesJob], batch: Batch, spark: SparkSession
) -> None:
    first = job()
    first.open()
    write(first, batch, 40)
    shutil.rmtree(first.path)
    with pytest.raises(TableReplaced, match="its folder was removed"):
        write(first, batch, 50)
    first.open()
    write(first, batch, 50)
    assert read_table(spark, first.path).count() == 49


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
    former_id, log.cluster = log.id, "elsewhere"
    with pytest.raises(LogClash, match=f"its id is {log.id}, it was {former_id}"):
        job().open()


def test_rows_that_a_restore_takes_from_a_table_at_a_url_are_noticed(
    spark: SparkSession, replicas: list[FakeReplica], tmp_path: Path, batch: Batch
) -> None:
    """Spark alone reads the commits of such a table, and appends after a RESTORE."""
    client = LogReads([replica.url for replica in replicas], "default", give_up_s=2)
    job = EntriesJob(spark, client, f"file:{tmp_path}/entries", {"endpoint": client_urls(replicas)})
    job.open()
    for until in (20, 40):
        write(job, batch, until)
    spark.sql(f"OPTIMIZE {identifier(job.path)}").collect()
    write(job, batch, 60)
    spark.sql(f"RESTORE TABLE {identifier(job.path)} TO VERSION AS OF 1").collect()
    with pytest.raises(TableClash, match="the records from index 20 on"):
        write(job, batch, 80)
    assert read_table(spark, job.path).agg(F.max("index")).collect()[0][0] == 19


def client_urls(replicas: list[FakeReplica]) -> str:
    return ",".join(replica.url for replica in replicas)
