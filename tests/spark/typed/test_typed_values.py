"""`commitlog verify --tables` finds each kind of wrong row in typed tables."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from app.client.tables import MaterializedTable
from app.tables.delta_log import DeltaLog
from spark_jobs import verify
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.run import materialize
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.table import identifier
from spark_jobs.typed.values import wrong_copies
from spark_jobs.verify import Verified, _typed_differences, _typed_problems, _typed_until
from tests.spark.conftest import endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.test_typed import path_in, to_json

SCHEMA = "id INT NOT NULL, city STRING, tags MAP<STRING, INT>, at STRUCT<x: DOUBLE>"
NAMES = ("entries", "records", "dead_letters", "current", "records_v3", "current_v3")
MISPLACED = {
    "records": [
        "DELETE FROM {} WHERE _index = 2",
        "INSERT INTO {} SELECT * FROM {} WHERE _index = 4",
        "UPDATE {} SET _index = 1000 WHERE _index = 6",
        "INSERT INTO {} (_index) VALUES (NULL)",
    ],
}
CHANGED = {
    "records_v3": [
        "UPDATE {} SET id = '9' WHERE id = '8'",
        "INSERT INTO {} BY NAME SELECT * FROM {records} WHERE _index = 6",
    ],
    "records": [
        "DELETE FROM {} WHERE _index = 6",
        "UPDATE {} SET _schema_version = 2, city = 'x', tags = map('a', 9) WHERE _index = 4",
        "UPDATE {} SET _rescued = NULL, at.x = 9 WHERE _index = 2",
    ],
    "dead_letters": ["UPDATE {} SET value = X'00', schema_version = 2 WHERE index = 3"],
    "current": ["UPDATE {} SET city = 'y' WHERE id = 2", "UPDATE {} SET _index = 1 WHERE id = 1"],
}


@pytest.fixture
def log() -> FakeLog:
    """Two compatibility groups, the first with a widened version; a dead letter of each version."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema(SCHEMA, key_columns=["id"])
    log.append(to_json(id=1, more=1), to_json(id="x"), to_json(id=2, city="Bern", tags={"a": 1}), key=b"k")
    log.set_schema(SCHEMA.replace("INT>", "BIGINT>"), key_columns=["id"])
    log.append(to_json(id=3, at={"x": 0.5}), None, to_json(id="7"), key=b"l")
    log.set_schema(SCHEMA.replace("id INT", "id STRING"), key_columns=["id"], compatibility="none")
    log.append(to_json(id="5"), to_json(id=5), to_json(id="8"), key=b"m")
    return log


def test_verify_finds_each_wrong_row_and_accepts_replayed_ones(
    spark: SparkSession, replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    materialize(config, spark=spark)
    folder, client = tmp_path / "default", LogReads([replica.url for replica in replicas], "default")

    def state(name: str, of: Path = folder) -> MaterializedTable:
        snapshot = DeltaLog(str(of / name)).snapshot()
        assert snapshot is not None
        return MaterializedTable(name, str(of / name), snapshot.version, log.next_index - 1, 0, 0)

    def problems(*names: str, of: Path = folder) -> list[str]:
        tables = {name: state("records" if name == "records_v2" else name, of) for name in names or NAMES}
        return list(_typed_problems(spark, tables, client))

    def change(name: str, statement: str, of: Path = folder) -> None:
        table, records = (identifier(str(of / each)) for each in (name, "records"))
        spark.sql(statement.replace("{}", table).replace("{records}", records)).collect()

    differs = "its row differs from the record in"
    places = {
        "typed tables, index None: it is in the typed tables, and not in entries",
        "typed tables, index 2: it is in entries, and neither in records nor in dead_letters",
        "typed tables, index 4: it is 2 times in records and dead_letters",
        "typed tables, index 6: it is in entries, and neither in records nor in dead_letters",
        "typed tables, index 1000: it is in the typed tables, and not in entries",
    }
    values = {
        f"records, index 2: {differs} _rescued, at",
        f"records, index 4: {differs} _schema_version, city, tags",
        "records, index 6: its row is missing",
        "records_v3, index 6: its row belongs in another table",
        f"records_v3, index 12: {differs} id",
        f"dead_letters, index 3: {differs} schema_version, value",
        f"current, index 4: {differs} _schema_version, city, tags",
        'current, key {"id":1}: it is of index 1, the newest is 2',
    }
    assert problems() == []
    assert problems("entries", "records", "current", "records_v3") == ["missing: current_v3, dead_letters"]
    assert problems("entries") == ["missing: current, current_v3, dead_letters, records, records_v3"]
    assert problems("entries", "records_v2")[0] == "records_v2: no version of the schema begins this table"
    for wrong, findings in ((MISPLACED, places), (CHANGED, values)):
        spoiled = tmp_path / f"spoiled {len(findings)}"
        shutil.copytree(folder, spoiled)
        for name, statements in wrong.items():
            for statement in statements:
                change(name, statement, spoiled)
        found = problems(of=spoiled)
        assert set(found) >= findings, found
    DeadLetterReplay(spark, client, path_in(folder)).run()
    change("records", "ALTER TABLE {} ADD COLUMNS (mine STRING)")
    assert spark.read.format("delta").load(str(folder / "dead_letters")).count() == 1
    assert problems() == []


def test_a_comparison_reports_how_far_the_typed_tables_are() -> None:
    """They may lag: equal up to an index is not equal up to the end of `entries`."""
    ends = {"entries": 99, "records": 40, "dead_letters": 49, "current": 99}
    tables = {name: MaterializedTable(name, name, 1, end, 0, 0) for name, end in ends.items()}
    assert _typed_until(tables) == 50
    assert _typed_until({"entries": tables["entries"]}) is None
    equal = Verified("default", 1, 0, 100, 100, 1, 0, None, None, ())
    [line] = str(equal).splitlines()
    assert str(replace(equal, typed_until_index=50)).splitlines() == [
        line,
        "typed tables are compared with entries up to index 49",
    ]


def test_differences_of_tables_that_change_are_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def problems(_spark: Any, tables: dict[str, MaterializedTable], _reads: Any) -> list[str]:
        compared.append(tables["entries"].version)
        return [] if compared[-1] == 3 else ["a difference"]

    def found_in(*versions: int) -> Any:
        compared.clear()
        read = iter([*versions, *[versions[-1]] * 10])
        known: Any = SimpleNamespace(
            all=lambda: [MaterializedTable("entries", "entries", next(read), 9, 0, 0)]
        )
        return _typed_differences(cast(Any, None), known, cast(Any, None))

    monkeypatch.setattr(verify, "_typed_problems", problems)
    monkeypatch.setattr(verify, "_PAUSE_S", 0.0)
    assert (found_in(1, 1, 2, 3), compared) == (((), None), [1, 2, 3])
    assert (found_in(1), compared) == ((("a difference",), None), [1])  # the same would be found again


def test_times_in_maps_are_compared_to_the_microsecond(spark: SparkSession) -> None:
    kinds = ("TIMESTAMP", "TIMESTAMP_NTZ")
    maps = ", ".join(f"map('a', {kind} '2026-01-01 00:00:00.000001') AS {kind}" for kind in kinds)
    records = spark.sql(f"SELECT 1L AS _index, {maps}")
    assert wrong_copies(records, records, records.schema).collect() == []
    for kind in kinds:
        column = F.expr(f"map('a', {kind} '2026-01-01 00:00:00.000002')")
        [found] = wrong_copies(records, records.withColumn(kind, column), records.schema).collect()
        assert tuple(found) == (1, f"its row differs from the record in {kind}")
