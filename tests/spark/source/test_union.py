"""`tail=union`: the table and the log beyond it, each index once, whatever a materializer does meanwhile."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.schemas import ENTRIES, arrow_schema
from spark_jobs.tables.snapshot import read_snapshot
from spark_jobs.tables.table import identifier, read_table
from spark_jobs.tables.transforms import entries
from tests.spark.conftest import Batch
from tests.spark.source.log_server import FakeLog, FakeReplica

DATA = [index for index in range(102) if index not in (0, 51)]
Materialize = Callable[[int], str]


@pytest.fixture
def materialize(
    spark: SparkSession, replicas: list[FakeReplica], batch: Batch, tmp_path: Path
) -> Materialize:
    """Bring the table `entries` up to an exclusive end of the log; its path."""
    urls = [replica.url for replica in replicas]
    client = LogReads(urls, "default", give_up_s=2)
    job = EntriesJob(spark, client, str(tmp_path / "entries"), {"endpoint": ",".join(urls)})
    job.open()

    def to(until: int) -> str:
        rows = entries(batch(startingIndex=job.next_index, endingIndex=until - 1).load()).toArrow()
        job.write(rows.cast(arrow_schema(ENTRIES)), until)
        return job.path

    return to


def test_each_index_once_wherever_the_seam_is(
    spark: SparkSession, batch: Batch, materialize: Materialize, replicas: list[FakeReplica]
) -> None:
    expected = batch().load().orderBy("index").collect()
    for until in (1, 51, 102):  # an empty table, before a control record, all of the log
        table = materialize(until)
        for replica in replicas:
            replica.requests.clear()
        union = batch(tail="union", table=table, minPartitions=3).load()
        assert union.orderBy("index").collect() == expected
        asked = [request for replica in replicas for request in replica.requests if "limit=1&" not in request]
        assert all(f"from_index={index}&" not in request for request in asked for index in range(until - 1))
    assert len(read_snapshot(table).files) == 2


def test_ranges_and_filters_hold_over_both_parts(batch: Batch, materialize: Materialize) -> None:
    table = materialize(60)

    def read(where: str = "true", **options: object) -> list[int]:
        rows = batch(tail="union", table=table, **options).load().where(where)
        return sorted(row["index"] for row in rows.select("index").collect())

    assert read(startingIndex=40, endingIndex=70) == [*range(40, 51), *range(52, 71)]
    assert read(endingIndex=20) == [*range(1, 21)]
    assert read(startingIndex=80) == [*range(80, 102)]
    assert read(startingIndex="latest") == []
    assert read("term = 1 AND index > 45") == [*range(46, 51)]
    assert read("index IN (3, 90)") == [3, 90]
    assert read("timestamp >= timestamp'2023-11-14 22:13:20.058'") == [*range(58, 102)]


def test_records_that_the_table_lacks_and_the_log_has_trimmed_are_reported(
    batch: Batch, materialize: Materialize, log: FakeLog
) -> None:
    table = materialize(40)
    log.begin_index = 40
    assert batch(tail="union", table=table).load().count() == 100
    log.begin_index = 60
    with pytest.raises(PySparkException, match="from 40 to 59 were trimmed"):
        batch(tail="union", table=table).load().count()
    rows = batch(tail="union", table=table, failOnDataLoss="false").load().select("index").collect()
    assert sorted(row[0] for row in rows) == [*range(1, 40), *range(60, 102)]


def test_records_that_neither_table_nor_log_has_are_reported(
    batch: Batch, log: FakeLog, request: pytest.FixtureRequest
) -> None:
    log.begin_index = 53
    table = request.getfixturevalue("materialize")(80)
    for options in ({"startingIndex": 20}, {"startingIndex": 0, "endingIndex": 30}):
        with pytest.raises(PySparkException, match="to 52 were trimmed"):
            batch(tail="union", table=table, **options).load().count()
    assert batch(tail="union", table=table, startingIndex=53).load().count() == 49
    assert batch(tail="union", table=table).load().count() == 49
    accepted = batch(tail="union", table=table, startingIndex=20, failOnDataLoss="false")
    assert accepted.load().count() == 49


def test_a_table_that_is_not_this_logs_is_refused(
    spark: SparkSession, batch: Batch, materialize: Materialize, log: FakeLog, tmp_path: Path
) -> None:
    with pytest.raises(PySparkException, match="does not know the location of entries"):
        batch(tail="union").load().count()
    with pytest.raises(PySparkException, match="it is not a Delta table"):
        batch(tail="union", table=str(tmp_path / "none")).load().count()
    table = materialize(40)
    log.records[39]["term"] = 7
    with pytest.raises(PySparkException, match="index 39 is of term 7, it was of 1"):
        batch(tail="union", table=table).load().count()
    log.records[39]["term"] = 1
    spark.sql(f"ALTER TABLE {identifier(table)} SET TBLPROPERTIES ('commitlog.logId' = 'elsewhere')")
    with pytest.raises(PySparkException, match=f"its id is {log.id}, it was elsewhere"):
        batch(tail="union", table=table).load().count()


def test_while_a_materializer_and_an_optimizer_run(
    spark: SparkSession, batch: Batch, materialize: Materialize, log: FakeLog
) -> None:
    """Every read of the union, at whatever moment, is the whole committed log of that moment."""
    table = materialize(10)
    spark.sql(f"ALTER TABLE {identifier(table)} SET TBLPROPERTIES ('delta.checkpointInterval' = '3')")
    until = [40, 80, 120]
    failures: list[BaseException] = []

    def write() -> None:
        try:
            for end in until:
                log.append_many(max(0, end - log.next_index))
                materialize(end)
            spark.sql(f"OPTIMIZE {identifier(table)}").collect()
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    reads = 0
    while writer.is_alive() or reads < 2:
        before = log.next_index
        union = batch(tail="union", table=table).load()
        rows = union.agg(F.count("*"), F.countDistinct("index"), F.max("index")).collect()[0]
        assert rows[0] == rows[1] == rows[2] + 1 - (1 if rows[2] < 51 else 2)
        assert rows[2] >= before - 1
        reads += 1
    writer.join()
    assert failures == []
    assert list(Path(table).glob("_delta_log/*.checkpoint.parquet"))
    assert read_snapshot(table).next_index == read_table(spark, table).agg(F.max("index")).collect()[0][0] + 1
