"""The typed tables of a log with a schema: `records` and `dead_letters`."""

import contextlib
import errno
import json
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from spark_jobs.materialize import typed
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.supervisor import MAX_FAILURES
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.run import materialize
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.table import Table, identifier, read_table
from spark_jobs.tables.table_writer import TableWriter
from spark_jobs.typed.invariants import misplaced
from tests.spark.conftest import endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica

FIRST = "id INT NOT NULL, city STRING COMMENT 'where it''s', at STRUCT<x: INT>, tags ARRAY<STRUCT<n: INT>>"


def to_json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.fixture
def log() -> FakeLog:
    """A log with history before its first schema."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.append(to_json(id=1, city="Bern"), b"no JSON", None, key=b"a")
    return log


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path / "tables", available_now=True)


def rows(spark: SparkSession, config: MaterializeConfig, table: str, order: str = "_index") -> list[Row]:
    return read_table(spark, f"{config.tables}/default/{table}").orderBy(order).collect()


def test_history_changes_of_the_schema_and_records_that_do_not_match(
    spark: SparkSession, config: MaterializeConfig, log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_current(monkeypatch)
    log.set_schema(FIRST)  # index 4
    log.append(to_json(id=2, city="Thun", more=[1]), to_json(id="3"))
    materialize(config, spark=spark)
    found = rows(spark, config, "records")
    assert [(row["_index"], row["_schema_version"], row["id"], row["_rescued"]) for row in found] == [
        (1, 1, 1, None),
        (5, 1, 2, '{"more":[1]}'),
    ]
    assert (bytes(found[0]["_key"]), found[0]["_term"], found[0]["city"]) == (b"a", 1, "Bern")
    dead = rows(spark, config, "dead_letters", "index")
    assert [(row["index"], row["schema_version"], row["path"]) for row in dead] == [(2, 1, ""), (6, 1, "/id")]
    assert bytes(dead[1]["value"]) == to_json(id="3")

    log.append(to_json(id=4))
    second = FIRST.replace("id INT", "id BIGINT").replace("x: INT", "x: BIGINT, y: STRING")
    second = second.replace("n: INT", "n: BIGINT, m: DOUBLE") + ", price DECIMAL(10,2)"
    log.set_schema(second, cluster_by=["city", "id"])  # index 8
    log.append(to_json(id=2**40, at={"x": 2**41, "y": "z"}, tags=[{"n": 2**42, "m": 0.5}], price=1.25))
    log.append(to_json(id=5, at={"x": 1}), headers=(("schema-version", b"1"),))
    log.append(to_json(id=6), headers=(("schema-version", b"3"),))
    log.set_schema("id STRING NOT NULL", compatibility="none")  # index 12
    log.append(to_json(id="seven"), to_json(id=8))
    log.append(to_json(id=9), headers=(("schema-version", b"2"),))
    materialize(config, spark=spark)
    found = rows(spark, config, "records")
    assert [(row["_index"], row["_schema_version"], row["id"]) for row in found] == [
        (1, 1, 1),
        (5, 1, 2),
        (7, 1, 4),
        (9, 2, 2**40),
        (10, 1, 5),
        (15, 2, 9),
    ]
    assert found[3]["at"] == Row(x=2**41, y="z")
    assert found[3]["tags"] == [Row(n=2**42, m=0.5)]
    assert found[4]["at"] == Row(x=1, y=None)
    detail = spark.sql(f"DESCRIBE DETAIL {identifier(f'{config.tables}/default/records')}").collect()[0]
    assert detail["clusteringColumns"] == ["city", "id"]
    assert [row["id"] for row in rows(spark, config, "records_v3")] == ["seven"]
    dead = rows(spark, config, "dead_letters", "index")
    assert [(row["index"], row["schema_version"]) for row in dead] == [(2, 1), (6, 1), (11, 3), (14, 3)]


@pytest.mark.parametrize(
    "second", ["day DATE, at STRUCT<x: INT, y: TIMESTAMP_NTZ>", "day TIMESTAMP_NTZ, at STRUCT<x: INT>"]
)
def test_tables_get_columns_of_times_without_offset(
    spark: SparkSession, config: MaterializeConfig, log: FakeLog, second: str
) -> None:
    """They need a feature of Delta that a table without such columns does not have."""
    log.set_schema("day DATE, at STRUCT<x: INT>")
    log.append(to_json(day="2026-01-02", at={"x": 1}), key=b"a")
    materialize(config, spark=spark)
    log.set_schema(second)
    moment = datetime(2026, 1, 2, 3, 4, 5, 6)
    is_widened = second.startswith("day T")
    values = {"day": moment.isoformat()} if is_widened else {"at": {"y": moment.isoformat()}}
    log.append(to_json(**values), key=b"b")
    materialize(config, spark=spark)
    for table in ("records", "current"):
        before, after = rows(spark, config, table)[-2:]
        assert before["day"] == (datetime(2026, 1, 2) if is_widened else date(2026, 1, 2))
        assert before["at"]["x"] == 1
        assert moment == (after["day"] if is_widened else after["at"]["y"])


def without_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TypedTables, "apply", lambda *_: None)
    monkeypatch.setattr(TypedTables, "_open_current", lambda *_: None)


def path_in(folder: Path) -> Callable[[Table], str]:
    return lambda table: str(folder / table.name)


def test_each_record_is_once_in_the_tables_after_a_stop_at_any_point(
    spark: SparkSession,
    config: MaterializeConfig,
    log: FakeLog,
    replicas: list[FakeReplica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two drivers that slept hold old ends of the tables, and wake at the end."""
    log.set_schema("id INT")
    for number in range(3):
        log.append(to_json(id=number), b"no JSON", None)
    log.set_schema("id STRING", compatibility="none")
    for number in range(3):
        log.append(to_json(id=str(number)), b"no JSON", to_json(id=1))
    log.append(to_json(id=9), headers=(("schema-version", b"1"),))
    with monkeypatch.context() as patched:
        patched.setattr(TypedTables, "extend", lambda *_: None)
        materialize(config, spark=spark)
    folder = Path(config.tables) / "default"
    without_current(monkeypatch)

    def driver() -> TypedTables:
        client = LogReads([replica.url for replica in replicas], "default")
        tables = TypedTables(spark, client, path_in(folder), follows=False)
        tables.open()
        return tables

    whole = TableWriter.append
    slept = [driver() for _ in range(2)]
    slept[0].extend(1)
    slept[1].extend(1)
    for until, stops in ((6, 0), (6, 1), (6, 2), (12, 3), (20, 1), (20, 2), (log.next_index, 3)):
        left = [stops]

        def append(
            writer: TableWriter, rows: object, left: list[int] = left, **options: object
        ) -> int | None:
            if left[0] == 0:
                raise RuntimeError("killed")
            left[0] -= 1
            return whole(writer, rows, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patched, contextlib.suppress(RuntimeError):
            patched.setattr(TableWriter, "append", append)
            driver().extend(until)
        if until == 12:
            slept[0].extend(10)
    for tables in (*slept, driver()):
        tables.extend(log.next_index)
    entries, letters = (read_table(spark, str(folder / name)) for name in ("entries", "dead_letters"))
    of_groups = [read_table(spark, str(folder / name)) for name in ("records", "records_v2")]
    assert misplaced(entries, of_groups, letters, log.next_index).collect() == []
    assert sum(table.count() for table in of_groups) == 8
    assert letters.count() == 10


def test_a_failed_merge_of_current_is_repeated_and_stops_no_other_table(
    spark: SparkSession,
    tmp_path: Path,
    replicas: list[FakeReplica],
    log: FakeLog,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(typed, "CURRENT_EACH_S", 0.0)
    monkeypatch.setattr(TypedTables, "_start_timer", lambda *_: None)
    applied: list[int] = []
    errors = [OSError("no space"), KeyError("no space")]

    class Current:
        def extend(self, until: int) -> None:
            if errors:
                raise errors.pop()
            applied.append(until)

    client = LogReads([replica.url for replica in replicas], "default")
    tables = TypedTables(spark, client, path_in(tmp_path))
    tables.current = {1: Current()}  # type: ignore[dict-item]
    tables._changed, tables._ends.until, tables.until_index = {1}, 7, 7
    tables._ends.claimed(7, 0.0)
    for _ in range(3):
        tables._apply_late()
        tables.extend(0)  # does not raise
    assert applied == [7]
    assert capsys.readouterr().err.count("no space") == 2
    tables._changed = {1}
    errors += [OSError(errno.ENOSPC, "No space left on device")] * 4 * MAX_FAILURES
    while errors:
        tables._apply_late()
        tables.extend(0)
    assert capsys.readouterr().err.count("No space left") == 1
    errors += [OSError("no space")] * 10
    for _ in range(MAX_FAILURES + 1):
        tables._apply_late()
    with pytest.raises(OSError, match="no space"):
        tables.extend(0)


def test_a_version_that_an_unclean_election_replaced_is_read_again(
    spark: SparkSession,
    config: MaterializeConfig,
    log: FakeLog,
    replicas: list[FakeReplica],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its number is the same, so the service reports that the newest version is known."""
    without_current(monkeypatch)
    folder = Path(config.tables) / "default"
    client = LogReads([replica.url for replica in replicas], "default")
    tables = TypedTables(spark, client, path_in(folder), follows=False)
    tables.open()

    def extend() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(TypedTables, "extend", lambda *_: None)
            materialize(config, spark=spark)
        tables.extend(log.next_index, log.term)

    log.set_schema("id INT")
    log.append(to_json(id=2))
    extend()
    log.set_schema("id INT, lost STRING")
    tables.extend(log.next_index, log.term)
    del log.records[-1], log.schemas[-1]
    log.open_term(2, "n2")
    log.set_schema("id INT, kept STRING")
    log.append(to_json(id=3, kept="x"))
    extend()
    found = rows(spark, config, "records")
    assert [(row["id"], row["kept"], row["_rescued"]) for row in found][-2:] == [
        (2, None, None),
        (3, "x", None),
    ]
