"""The streaming query over all logs of a job: each record once, and a checkpoint decides nothing."""

import json
import threading
import time
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_jobs.errors import LogClash
from spark_jobs.materialize import query as query_module
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.materialize.journal_poller import JournalPoller
from spark_jobs.materialize.lease import LeasedEntries
from spark_jobs.materialize.log_materializer import (
    IDLE_STEP_EACH_S,
    LogMaterializer,
    SharedParts,
    query_options,
)
from spark_jobs.materialize.query import LogRows, RecordsQuery, is_large
from spark_jobs.materialize.supervisor import MaterializeFailed
from spark_jobs.materialize.workers import THREADS, Workers
from spark_jobs.run import materialize
from spark_jobs.source.ends_poller import LogEndsPoller
from spark_jobs.source.log_reads import LogReads, connect
from spark_jobs.source.logs_planning import LogsOffset
from spark_jobs.source.many_logs import LogsStreamReader
from spark_jobs.source.options import parse_options
from spark_jobs.source.planning import RecordsOffset
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import ENTRIES
from tests.spark.conftest import endpoints
from tests.spark.materialize.opened_job import opened_job
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import DATA, await_materialized, await_true, indexes


def test_the_query_writes_what_is_new_once_and_a_checkpoint_decides_nothing(
    spark: SparkSession,
    replicas: list[FakeReplica],
    log: FakeLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[int] = []  # rows of micro-batches that went on where the table ended
    whole = EntriesJob.take
    fails = [True]

    def take(job: EntriesJob, rows: Any, began_s: float) -> bool:
        before = job.next_index
        done = whole(job, rows, began_s)
        if job.next_index > before:
            joined.append(job.next_index - before)
            if fails.pop() if fails else False:
                raise OSError("the disk was away")  # after its commit: the job opens the table again
        return done

    def check_log(job: EntriesJob, log_id: str) -> None:
        checked.add(log_id)
        check(job, log_id)

    checked: set[str] = set()
    check = EntriesJob.check_log
    monkeypatch.setattr(EntriesJob, "check_log", check_log)
    monkeypatch.setattr(EntriesJob, "take", take)
    data = tmp_path / "a b'\N{LATIN SMALL LETTER U WITH DIAERESIS}#%41$"
    checkpoints = data / "checkpoints"
    foreign = checkpoints / "stream-other" / "offsets"
    foreign.mkdir(parents=True)
    (foreign / "0").write_text("v1\n{}\n" + json.dumps({"logs": {}, "batch": {"default": [0, 9_999]}}))
    config = MaterializeConfig(
        endpoint=endpoints(replicas),
        tables=data / "tables",
        trigger="100 ms",
        checkpoints=checkpoints,
    )
    stop = threading.Event()
    job = threading.Thread(target=materialize, args=(config,), kwargs={"stop": stop, "spark": spark})
    job.start()
    try:
        await_materialized(config.tables, 101)

        def writes() -> bool:
            log.append_many(5)
            await_materialized(config.tables, log.next_index - 1)
            return len(joined) > 1

        await_true(writes)
    finally:
        stop.set()
        job.join()
    assert not fails
    assert checked == {log.id}
    assert indexes(spark, config.tables) == [*DATA, *range(102, log.next_index)]
    assert [folder.name for folder in checkpoints.iterdir()] == ["stream-other"]
    assert list(tmp_path.iterdir()) == [data]


def test_only_rows_that_continue_where_the_table_ends_are_taken(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    job, rows = opened_job(replicas, tmp_path)
    assert job.take(rows(0, 40), 0.0)
    assert (job.next_index, job.rows, job.read_until) == (40, 39, 40)
    assert not job.take(rows(60, 80), 0.0)
    assert not job.take(pa.concat_tables([rows(40, 45), rows(50, 60)]), 0.0)
    assert not job.take(rows(40, 60).slice(0, 0), 0.0)
    assert (job.next_index, job.rows) == (40, 39)
    assert job.take(rows(20, 52), 0.0)  # ends with a control record
    assert (job.next_index, job.rows, job.read_until) == (51, 50, 52)
    assert job.take(rows(0, 30), 0.0)
    assert job.take(rows(52, 60), 0.0)
    assert (job.next_index, job.rows, job.read_until) == (60, 58, 60)
    later = rows(60, 70)
    log.records[59]["term"] = 7
    terms = pa.array([7] * later.num_rows, later["term"].type)
    with pytest.raises(LogClash, match="index 59 is of term 7, it was of 2"):
        job.take(later.set_column(later.schema.get_field_index("term"), "term", terms), 0.0)
    assert (job.next_index, job.rows) == (60, 58)


def test_rows_of_another_log_of_the_same_name_are_not_taken(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """The log was removed and made again, in the same term, before the query began."""
    job, rows = opened_job(replicas, tmp_path)
    assert job.take(rows(0, 40), 0.0)
    leased = LeasedEntries(job, cast(Any, None))
    with pytest.raises(LogClash, match="its id is 00000000000000ff, it was"):
        leased.take(LogRows("default", "00000000000000ff", 40, 60, rows(40, 60), None, 0.0))
    assert (job.next_index, job.rows) == (40, 39)


def test_a_step_on_an_idle_log_repairs_tables_that_follow_entries(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """RESTORE may have taken rows of the typed tables, and no record may come for a long time."""
    job, _ = opened_job(replicas, tmp_path)
    extended: list[tuple[int, int | None]] = []
    dependent: Any = SimpleNamespace(extend=lambda until, term: extended.append((until, term)))
    job.dependents = (dependent,)
    while job.step():
        continue
    extended.clear()
    assert not job.step()
    assert extended == [(log.next_index, 2)]


def test_a_log_reads_what_is_before_the_begin_of_the_query_itself_and_notices_a_shorter_log(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path)
    connection = connect(config.endpoints, None, 5.0)
    query: Any = RecordsQuery(no_spark(), {}, tmp_path, 1.0, lambda rows: None)
    query._query, query.streamed = object(), {"other": 7}  # it runs, and delivers
    shared = SharedParts(
        config=config,
        spark=no_spark(),
        workers=Workers(),
        ends_poller=LogEndsPoller(config.endpoints, None, threading.Event()),
        journals=JournalPoller(LogReads(config.endpoints, "", connection=connection), 10.0),
        query=query,
        patient=connection,
        quick=connection,
    )
    shared.ends_poller.start()
    try:
        await_true(lambda: shared.ends_poller.ends("default") is not None)
        group = LogMaterializer(shared, "default")
        group.start()
        assert not group._records_are_due(time.monotonic())  # the query brings the records
        query.begins = {"default": log.next_index}
        assert group._records_are_due(time.monotonic())
        group.poll()
        await_true(lambda: group.read_until >= log.next_index and not group._records.is_running)
        assert not group._records_are_due(time.monotonic())
        idle_s = group._records.ended_at_s + IDLE_STEP_EACH_S
        assert [group._is_idle(idle_s - 0.1, 1), group._is_idle(idle_s, 1)] == [False, True]
        assert not group._is_idle(idle_s, 100)
        log.records = log.records[:60]  # an unclean election: the query brings nothing, and the job finds out
        await_true(lambda: group._records_are_due(time.monotonic()))
    finally:
        shared.ends_poller.stop()
        shared.workers.stop()
        connection.close()


@pytest.mark.rule("C-05")
def test_a_record_that_the_query_leaves_out_is_not_counted_as_a_row_of_the_micro_batch_after_it(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """An unclean election replaces a control record, and the job opens its table again. The log joins the
    query after the next record, which its job then reads."""
    log.append(b"", type="control")
    options = query_options(MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path))
    reader = LogsStreamReader(parse_options({**options, "includeControl": "true"}))
    reader.options = replace(reader.options, starting_index={"default": log.next_index})
    found = [reader.initialOffset()]

    def look() -> bool:
        found.append(reader.latestOffset(found[-1], ReadAllAvailable()))
        return found[-1] != found[-2]

    job, rows = opened_job(replicas, tmp_path)
    assert job.take(rows(0, 102), 0.0)
    log.records.pop()
    log.open_term(3, "n1")
    assert job.step()
    log.append(b"left out")
    await_true(lambda: not look() and bool(reader._joined))
    log.append(b"delivered")
    await_true(look)
    (partition,) = reader.partitions(*found[-2:])
    reader.stop()
    delivered = pa.Table.from_batches(list(reader.read(partition)))
    assert not job.take(delivered, 0.0)
    assert job.step()
    held = read_plain(job.path, ENTRIES.schema, ["index"])
    assert held is not None
    assert held["index"].to_pylist() == [*DATA, 103, 104]


def test_the_backlog_of_one_log_is_a_large_batch() -> None:
    assert is_large({"a": (10, 111)}, 100)
    assert not is_large({"a": (10, 110)}, 100)
    assert not is_large({"a": (0, 900), "b": (0, 1)}, 100)
    assert not is_large({}, 100)


def test_a_stop_ends_a_micro_batch_whose_logs_wait_for_a_thread(tmp_path: Path) -> None:
    names = [f"log-{number}" for number in range(2 * THREADS)]
    delivered: list[str] = []
    begun, goes_on = threading.Semaphore(0), threading.Event()

    def deliver(rows: LogRows) -> None:
        begun.release()
        goes_on.wait()
        delivered.append(rows.log)

    query = RecordsQuery(no_spark(), {"backlogRecords": "100"}, tmp_path, 1.0, deliver)
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    ranges = LogsOffset(dict.fromkeys(names, RecordsOffset(1, 1, "")), dict.fromkeys(names, (0, 1)))
    (offsets / "0").write_text("v1\n{}\n" + json.dumps(ranges.to_json()))
    query._folder = tmp_path
    batch: Any = SimpleNamespace(toArrow=lambda: pa.table({"log": names}))
    writing = threading.Thread(target=query._write, args=(batch, 0), daemon=True)
    writing.start()
    for _ in range(THREADS):
        begun.acquire()
    await_true(lambda: query._threads._work_queue.qsize() == THREADS)
    query.stop()
    goes_on.set()
    writing.join(30)
    assert not writing.is_alive()
    assert len(delivered) == THREADS
    assert query.streamed == {}


@pytest.mark.parametrize("begun", [True, False])
def test_a_job_whose_java_has_ended_ends_and_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], begun: bool
) -> None:
    """It went on without a query, and reported a refused connection as if a node were down."""
    monkeypatch.setattr(query_module, "PAUSE_S", 0.0)
    spark: Any = Gone(ConnectionRefusedError(111, "Connection refused"))
    query: Any = RecordsQuery(spark, {}, tmp_path, 1.0, lambda rows: None)
    if begun:
        query._query, query.begins = Gone(Py4JNetworkError("Answer from Java side is empty")), {"a": 7}
    query.ensure_running(dict)  # it is found missing for the first time, here or by the start
    assert query.begins == {}
    wait([query._starting])
    if not begun:
        query.ensure_running(dict)
        wait([query._starting])
    with pytest.raises(MaterializeFailed, match=r"Java has ended.* killed it for want of memory"):
        query.ensure_running(dict)
    assert capsys.readouterr().err.count("query: Java does not answer; starting again") == 1


class Gone:
    """An object of Java, whose process has ended."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        raise self._error


def test_a_micro_batch_that_a_stop_interrupts_is_not_an_error_of_the_query(tmp_path: Path) -> None:
    def interrupted() -> pa.Table:
        raise PySparkException("Exception thrown in awaitResult")

    query = RecordsQuery(no_spark(), {"backlogRecords": "100"}, tmp_path, 1.0, lambda rows: None)
    (tmp_path / "offsets").mkdir()
    ranges = LogsOffset({"default": RecordsOffset(1, 1, "")}, {"default": (0, 1)})
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(ranges.to_json()))
    query._folder = tmp_path
    batch: Any = SimpleNamespace(toArrow=interrupted)
    with pytest.raises(PySparkException):
        query._write(batch, 0)
    query._stopping.set()
    query._write(batch, 0)
    assert query.streamed == {}


def test_a_log_that_was_deleted_is_forgotten_with_the_place_where_the_query_began(tmp_path: Path) -> None:
    """The next log of its name is read from its beginning: the query has passed none of its records."""
    query = RecordsQuery(no_spark(), {"backlogRecords": "100"}, tmp_path, 1.0, lambda rows: None)
    (tmp_path / "offsets").mkdir()
    ranges = LogsOffset({"default": RecordsOffset(7, 1, "")}, {"default": (5, 7)})
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(ranges.to_json()))
    query._folder = tmp_path
    query.begins, query.streamed = {"default": 4, "deleted": 90}, {"default": 5, "deleted": 95}
    query._write(cast(Any, SimpleNamespace(toArrow=lambda: pa.table({"log": ["default"] * 2}))), 0)
    assert (query.passed("default"), query.passed("deleted")) == (7, 0)
    assert query.begins == {"default": 4}


@pytest.mark.parametrize("error", [Py4JError("stopped SparkContext"), ConnectionRefusedError()])
def test_a_query_whose_spark_has_ended_is_stopped_without_a_traceback(
    tmp_path: Path, error: Exception
) -> None:
    """A signal may reach all processes of a job at the same time, Java before Python."""

    def refuse() -> None:
        raise error

    query = RecordsQuery(no_spark(), {}, tmp_path, 1.0, lambda rows: None)
    query._folder = tmp_path / "scratch"
    query._folder.mkdir()
    query._query = cast(Any, SimpleNamespace(stop=refuse, isActive=False))
    query.stop()
    assert not query._folder.exists()
