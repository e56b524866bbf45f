"""The whole job: every table from one log, its progress, its end."""

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from app.errors import ConfigError
from app.tables.delta_log import DeltaLog
from app.tables.job_reports import job_reports
from spark_jobs import run
from spark_jobs.errors import LogClash, RequestRefused
from spark_jobs.materialize.config import MaterializeConfig, interval_s
from spark_jobs.materialize.epochs import (
    EpochClash,
    EpochRow,
    EpochsJob,
    agree,
    changes_of,
    committed_epochs,
    knowledge,
)
from spark_jobs.materialize.progress import LogProgress, Progress, ProgressFile
from spark_jobs.materialize.supervisor import reason_of
from spark_jobs.run import materialize, parse_arguments
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.catalog import CatalogTables
from spark_jobs.tables.metadata import table_properties
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import (
    ENTRIES,
    EPOCHS,
    EVENTS,
    TABLES,
    TableClash,
    identifier,
    read_table,
)
from tests.spark.conftest import endpoints
from tests.spark.source.log_server import FIRST_TIMESTAMP_MS, FakeLog, FakeReplica
from tests.support.cluster import Cluster


def watermarks_event(replica: FakeReplica, committed: int, peers: dict[str, int]) -> None:
    replica.event(
        "watermarks",
        {"role": "leader", "begin_index": 0, "end_index": 101, "committed_index": committed, "peers": peers},
    )


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path / "tables", available_now=True)


@pytest.fixture(scope="module")
def made(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MaterializeConfig, FakeLog]]:
    """The tables of a log that still runs."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.append_many(50)
    replica = FakeReplica(log, "n1")
    replica.peers = [replica]
    replica.start()
    tables = tmp_path_factory.mktemp("made") / "tables"
    config = MaterializeConfig(endpoint=replica.url, tables=tables, available_now=True)
    materialize(config, spark=spark)
    yield config, log
    replica.stop()


@pytest.mark.rule("D-22")
def test_all_tables_of_a_log_and_a_second_run_adds_only_what_is_new(
    spark: SparkSession,
    config: MaterializeConfig,
    replicas: list[FakeReplica],
    log: FakeLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = EpochsJob._publish

    def fails_once(job: EpochsJob, agreed: Sequence[EpochRow]) -> None:
        monkeypatch.setattr(EpochsJob, "_publish", whole)
        raise PySparkException("the disk was away")

    monkeypatch.setattr(EpochsJob, "_publish", fails_once)
    first, second = replicas
    first.event("start", {"version": "1"})
    watermarks_event(second, 90, {"n1": 90, "n2": 95})
    second.event("watermarks", {"role": "follower", "committed_index": 90, "peers": {}})
    progress = materialize(config, spark=spark)
    assert progress.state == "done"
    assert "epochs: the disk was away; retrying" in capsys.readouterr().err
    reported = progress.logs["default"]
    assert (
        reported.entries_rows,
        reported.materialized_index,
        reported.lag_records,
        reported.epochs_rows,
    ) == (
        100,
        101,
        0,
        2,
    )

    log.open_term(3, "n1")
    log.append_many(5)
    watermarks_event(first, 106, {"n1": 107, "n2": 106})
    first.stop()  # its journal is caught up another time, its epoch file stays as it was
    reported = materialize(config, spark=spark).logs["default"]
    assert (reported.entries_rows, reported.events_rows, reported.watermarks_rows, reported.epochs_rows) == (
        105,
        3,
        2,
        3,
    )
    first.start(first.port)
    reported = materialize(config, spark=spark).logs["default"]
    assert (reported.entries_rows, reported.events_rows, reported.watermarks_rows) == (105, 4, 4)

    def rows(table: str, *columns: str) -> list[tuple[object, ...]]:
        frame = read_table(spark, f"{config.tables}/default/{table}").select(*columns)
        return sorted(tuple(row) for row in frame.collect())

    assert rows("watermarks", "term", "peer", "node", "seq", "watermark", "committed_index") == [
        (2, "n1", "n2", 0, 90, 90),
        (2, "n2", "n2", 0, 95, 90),
        (3, "n1", "n1", 1, 107, 106),
        (3, "n2", "n1", 1, 106, 106),
    ]
    assert rows("epochs", "epoch", "leader", "start_index", "end_index", "end_offset") == [
        (1, "n1", 0, 50, 5_100),
        (2, "n2", 51, 101, 10_200),
        (3, "n1", 102, None, None),
    ]
    assert [row[:2] for row in rows("epoch_files", "node", "epoch")] == [
        (node, epoch) for node in ("n1", "n2") for epoch in (1, 2, 3)
    ]
    first.peers = [first]  # the other has left the cluster
    materialize(config, spark=spark)
    assert {node for (node,) in rows("epoch_files", "node")} == {"n1"}
    started = read_table(spark, f"{config.tables}/default/epochs").where("epoch = 2").collect()[0]["started"]
    assert round(started.timestamp() * 1_000) == FIRST_TIMESTAMP_MS + 51


def test_tables_that_spark_alone_can_read_are_continued(
    spark: SparkSession, config: MaterializeConfig, replicas: list[FakeReplica], log: FakeLog
) -> None:
    """A job looks into plain tables itself: to ask Spark, just started, takes it seconds."""
    watermarks_event(replicas[0], 101, {"n1": 101})
    materialize(config, spark=spark)
    for table in (ENTRIES, EVENTS, EPOCHS):
        path = f"{config.tables}/default/{table.name}"
        assert read_plain(path, table.schema, table.schema.names) is not None
        feature = "'delta.enableTypeWidening' = 'true'"
        spark.sql(f"ALTER TABLE {identifier(path)} SET TBLPROPERTIES ({feature})")
        assert read_plain(path, table.schema, table.schema.names) is None
    log.append_many(5)
    watermarks_event(replicas[0], 106, {"n1": 106})
    reported = materialize(config, spark=spark).logs["default"]
    assert (reported.entries_rows, reported.events_rows, reported.watermarks_rows, reported.epochs_rows) == (
        105,
        2,
        2,
        2,
    )


def test_the_tables_are_laid_out_as_they_are_documented(
    spark: SparkSession, made: tuple[MaterializeConfig, FakeLog]
) -> None:
    config, _ = made
    page = (Path(__file__).parents[3] / "docs" / "tables.md").read_text()
    for table in TABLES:
        path = f"{config.tables}/default/{table.name}"
        assert set(table.columns) == set(table.schema.fieldNames())
        described = spark.sql(f"DESCRIBE TABLE delta.`{path}`").collect()
        comments = {row["col_name"]: row["comment"] for row in described}
        for name, meaning in table.columns.items():
            assert comments[name] == meaning
            assert f"| `{name}` |" in page.split(f"## {table.name}\n")[1].split("\n## ")[0]
        detail = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").collect()[0]
        assert tuple(detail["clusteringColumns"]) == table.cluster_by
    properties = table_properties(spark, f"{config.tables}/default/entries")
    assert "value" not in properties["delta.dataSkippingStatsColumns"].split(",")


def test_a_table_of_another_cluster_is_not_written_to(
    spark: SparkSession, made: tuple[MaterializeConfig, FakeLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, log = made
    monkeypatch.setattr(log, "cluster", "elsewhere")
    with pytest.raises(LogClash, match="another cluster"):
        materialize(config, spark=spark)
    report = job_reports(str(config.tables)).get("default")
    assert report is not None
    assert (report.state, "another cluster" in (report.error or "")) == ("failed", True)
    assert 0 <= report.updated_ms - (report.failed_ms or 0) < 60_000
    assert json.loads((config.tables / "progress.json").read_text())["error"] is None  # that of the log


def test_the_failure_of_a_whole_job_is_reported_for_its_logs(
    spark: SparkSession, made: tuple[MaterializeConfig, FakeLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("the catalog has another table of this name\nat a path")

    config, _ = made
    monkeypatch.setattr(run, "_poll", fail)
    with pytest.raises(ConfigError):
        materialize(config, spark=spark)
    report = job_reports(str(config.tables)).get("default")
    assert report is not None
    assert (report.state, report.error) == ("failed", "the catalog has another table of this name")
    assert report.failed_ms == report.updated_ms


def test_a_slow_catalog_does_not_pause_the_job(
    spark: SparkSession, service: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_s, calls = 2.0, []

    def refresh(_: CatalogTables, logs: object) -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            time.sleep(slow_s)

    monkeypatch.setattr(CatalogTables, "refresh", refresh)
    config = MaterializeConfig(
        endpoint=service.url("n1"),
        tables=tmp_path,
        logs=("many-a",),
        available_now=True,
        catalog="spark_catalog.slow",
    )
    materialize(config, spark=spark)
    assert len(calls) > 1
    assert calls[1] - calls[0] < 5 * slow_s  # the pause was ten times as long as the first call


def test_many_logs_in_one_job(spark: SparkSession, service: Cluster, tmp_path: Path) -> None:
    for number, log in enumerate(("many-a", "many-b"), 1):
        assert service.append("n1", *("v" for _ in range(number)), log=log).status_code == 200
    config = MaterializeConfig(
        endpoint=service.url("n1"), tables=tmp_path, logs=("many-*",), available_now=True
    )
    progress = materialize(config, spark=spark)
    assert {name: log.entries_rows for name, log in progress.logs.items()} == {"many-a": 1, "many-b": 2}
    for name in progress.logs:
        rows = read_table(spark, f"{tmp_path}/{name}/entries")
        assert [row[0] for row in rows.select("log").distinct().collect()] == [name]


def test_arguments_become_a_configuration() -> None:
    given = ["--endpoint", "http://127.0.0.1:1", "--tables", "t", "--log", "a", "--log", "b,c-*"]
    config = parse_arguments([*given, "--give-up-s", "3"])
    assert (config.logs, config.trigger_s, config.events_trigger_s, config.give_up_s) == (
        ("a", "b", "c-*"),
        0.75,
        10.0,
        3.0,
    )
    for text, seconds in (
        ("200 milliseconds", 0.2),
        ("1 minute", 60.0),
        ("500ms", 0.5),
        ("2 hours", 7_200.0),
    ):
        assert interval_s("trigger", text) == seconds
    with pytest.raises(ConfigError, match="trigger must be an interval such as '1 second'"):
        parse_arguments([*given, "--trigger", "often"])
    for option in ("--give-up-s", "--cursor-each-s"):
        with pytest.raises(SystemExit):
            parse_arguments([*given, option, "nan"])


def test_a_job_that_fails_prints_the_reason_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output has no line about the tables of a log that does not exist."""
    refused = RequestRefused(404, "log-not-found", "log 'nope' does not exist")

    def fail(config: MaterializeConfig, *, report: Callable[[Progress], None], **_: object) -> None:
        report(Progress("failed", 0, {"nope": LogProgress(0, -1, None, 0, 0, 0, 0)}, 0.0))
        raise refused

    monkeypatch.setattr(run, "materialize", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the handlers of the tests stay
    given = ["--endpoint", "http://127.0.0.1:1", "--tables", "t", "--log", "nope", "--available-now"]
    assert run.main(given) == 4
    assert tuple(capsys.readouterr()) == ("", f"{refused}\n")
    assert run.main([*given, "--json"]) == 4
    shown = capsys.readouterr()
    assert json.loads(shown.out)["state"] == "failed"
    document = json.loads(shown.err)
    assert (document["code"], document["detail"]) == ("not-found", str(refused))
    assert run.main([*given, "--log", "a/b", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["code"] == "usage"


def test_a_progress_file_that_cannot_be_written_stops_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    given = ["--endpoint", "http://127.0.0.1:1", "--tables", f"{tmp_path}/file/tables", "--available-now"]
    with pytest.raises(ConfigError, match=r"progress: .* cannot be written"):
        materialize(parse_arguments(given))
    (tmp_path / "folder").mkdir()
    file = ProgressFile(tmp_path / "folder")
    assert [file.write("running", {}, force=True).state for _ in range(3)] == ["running"] * 3
    assert capsys.readouterr().err.count("the tables are written without it") == 1


def test_the_reason_of_a_failure_is_found_in_sparks_pages_of_text() -> None:
    clash = LogClash("a", "its id differs")
    text = f"[STREAM_FAILED] failed\nTraceback:\n File x\nany_package.LogClash: {clash}\n at"
    assert reason_of(RuntimeError(text)) == clash.message
    assert reason_of(OSError("no such file")) == "no such file"


def epoch(number: int, start_index: int) -> dict[str, object]:
    return {"epoch": number, "start_index": start_index, "start_offset": start_index * 100, "end_index": None}


def test_an_epoch_counts_when_its_first_record_is_committed_and_ends_with_the_next_that_counts() -> None:
    file = [epoch(1, 0), epoch(3, 10), epoch(4, 20)]
    assert committed_epochs(file, -1) == []
    assert [(e["epoch"], e["end_index"], e["end_offset"]) for e in committed_epochs(file, 19)] == [
        (1, 9, 1_000),
        (3, None, None),
    ]
    assert [e["end_index"] for e in committed_epochs(file, 20)] == [9, 19, None]


def test_nodes_that_disagree_on_a_committed_epoch_are_reported() -> None:
    longest = [epoch(1, 0), epoch(2, 10), epoch(4, 20)]
    assert agree("default", [longest[:1], longest, [], longest[1:]]) == longest
    assert agree("default", []) == []
    with pytest.raises(EpochClash, match="disagree on committed epoch 2"):
        agree("default", [longest, [epoch(1, 0), epoch(2, 12)]])
    with pytest.raises(EpochClash, match="disagree on committed epoch 3"):
        agree("default", [longest, [epoch(1, 0), epoch(3, 12)]])


def test_epochs_that_the_nodes_have_trimmed_stay_and_later_ones_come() -> None:
    first, second, third = {**epoch(1, 0), "end_index": 9}, epoch(2, 10), epoch(4, 20)
    ended = {**second, "end_index": 19}
    assert agree("default", [[third], [first, second]]) == [first, third]
    assert agree("default", [[third], [ended, third]]) == [ended, third]
    assert changes_of([third], []) == {4: third}
    assert changes_of([ended, third], [first, second]) == {2: ended, 4: third}
    assert changes_of([second], [first, ended]) == {}
    assert changes_of([first, second], [first, second]) == {}
    assert knowledge([first, second]) < knowledge([first, ended]) < knowledge([first, ended, third])


def test_a_job_that_slept_writes_no_epochs_over_newer_ones(
    spark: SparkSession, tmp_path: Path, log: FakeLog, replicas: list[FakeReplica]
) -> None:
    """And a table that rows were taken from is a matter for a person, as with `entries`."""
    paths = [str(tmp_path / name) for name in ("epochs", "files")]
    client = LogReads([replica.url for replica in replicas], "default")
    slept, awake = (EpochsJob(spark, client, *paths) for _ in range(2))
    slept.open()
    awake.open()
    awake.refresh()
    before = DeltaLog(paths[0]).versions().stop
    slept.refresh()
    assert (slept.committed, DeltaLog(paths[0]).versions().stop) == (awake.committed, before)
    log.open_term(3, "n1")
    slept.refresh()
    awake.refresh()
    rows = read_table(spark, paths[0]).select("epoch", "end_index").sort("epoch").collect()
    assert [tuple(row) for row in rows] == [(1, 50), (2, 101), (3, None)]
    spark.sql(f"DELETE FROM {identifier(paths[0])} WHERE epoch > 1")
    late = EpochsJob(spark, client, *paths)
    late.open()
    with pytest.raises(TableClash, match="epochs refuses the epochs of the nodes"):
        late.refresh()
