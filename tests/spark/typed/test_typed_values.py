"""`commitlog verify --tables` finds each kind of wrong row in typed tables."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from app.client.tables import MaterializedTable
from app.tables.delta_log import DeltaLog
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.run import materialize
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import identifier
from spark_jobs.typed import differences
from spark_jobs.typed.differences import typed_differences, typed_problems, typed_until
from spark_jobs.typed.values import wrong_copies
from spark_jobs.verify import Verified
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.test_typed import path_in, to_json

SCHEMA = "id INT NOT NULL, city STRING, tags MAP<STRING, INT>, at STRUCT<x: DOUBLE>"
NAMES = ("entries", "records", "dead_letters", "current", "records_v3", "current_v3")
Edit = Callable[[dict[str, list[dict[str, Any]]]], None]  # of the rows of all tables


def change(name: str, index: int, /, **columns: Any) -> Edit:
    """Change columns of the row at an index."""
    return lambda tables: row_at(tables[name], index).update(columns)


def remove(name: str, index: int) -> Edit:
    return lambda tables: tables[name].remove(row_at(tables[name], index))


def copy(name: str, index: int, to: str, /, **columns: Any) -> Edit:
    """Add a copy of a row to a table, with other values of some columns."""
    return lambda tables: tables[to].append({**row_at(tables[name], index), **columns})


def row_at(rows: list[dict[str, Any]], index: int) -> dict[str, Any]:
    return next(row for row in rows if row.get("_index", row.get("index")) == index)


MISPLACED = [
    remove("records", 2),
    copy("records", 4, "records"),
    change("records", 6, _index=1000),
    copy("records", 4, "records", _index=None),
]
CHANGED = [
    copy("records", 6, "records_v3", id="3"),
    change("records_v3", 12, id="9"),
    remove("records", 6),
    change("records", 4, _schema_version=2, city="x", tags=[("a", 9)]),
    change("records", 2, _rescued=None, at={"x": 9.0}),
    change("dead_letters", 3, value=b"\0", schema_version=2),
    change("current", 4, city="y"),
    change("current", 2, _index=1),
]


def spoil(folder: Path, edits: Sequence[Edit]) -> None:
    """Replace the rows of the tables by edited ones."""
    schemas, tables = {}, {}
    for name in ("records", "records_v3", "dead_letters", "current"):
        snapshot = DeltaLog(str(folder / name)).snapshot()
        assert snapshot is not None
        schema = StructType.fromJson(json.loads(snapshot.schema))
        held = read_plain(str(folder / name), schema, schema.names)
        assert held is not None
        schemas[name], tables[name] = held.schema, held.to_pylist()
    for edit in edits:
        edit(tables)
    for name, rows in tables.items():
        spoiled = pa.Table.from_pylist(rows, schemas[name])
        local = LocalTable(str(folder / name), lambda path: None, keeps_files=True)
        assert local.replace(lambda rows=spoiled: rows, statistics=(), claim=None, note={})


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
    materialize(config, spark=no_spark())
    folder, client = tmp_path / "default", LogReads([replica.url for replica in replicas], "default")

    def state(name: str, of: Path = folder) -> MaterializedTable:
        snapshot = DeltaLog(str(of / name)).snapshot()
        assert snapshot is not None
        return MaterializedTable(name, str(of / name), snapshot.version, log.next_index - 1, 0, 0)

    def problems(*names: str, of: Path = folder, most: int | None = None) -> list[str]:
        tables = {name: state("records" if name == "records_v2" else name, of) for name in names or NAMES}
        return list(islice(typed_problems(spark, tables, client), most))

    differs = "its row differs from the record in"
    places = [
        "typed tables, index None: it is in the typed tables, and not in entries",
        "typed tables, index 2: it is in entries, and neither in records nor in dead_letters",
        "typed tables, index 4: it is 2 times in records and dead_letters",
        "typed tables, index 6: it is in entries, and neither in records nor in dead_letters",
        "typed tables, index 1000: it is in the typed tables, and not in entries",
    ]
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
    assert problems("entries", "records", "current", "records_v3") == ["missing: current_v3, dead_letters"]
    assert problems("entries") == ["missing: current, current_v3, dead_letters, records, records_v3"]
    assert problems("entries", "records_v2")[0] == "records_v2: no version of the schema begins this table"
    misplaced, changed = tmp_path / "misplaced", tmp_path / "changed"
    for spoiled, wrong in ((misplaced, MISPLACED), (changed, CHANGED)):
        shutil.copytree(folder, spoiled)
        spoil(spoiled, wrong)
    assert problems(of=misplaced, most=len(places)) == places
    found = problems(of=changed)
    assert set(found) >= values, found
    DeadLetterReplay(spark, client, path_in(folder)).run()
    active = SparkSession.getActiveSession()  # by which Spark finds the data source of a later `df.write`
    assert active is not None
    assert active._jsparkSession.equals(spark._jsparkSession)
    spark.sql(f"ALTER TABLE {identifier(str(folder / 'records'))} ADD COLUMNS (mine STRING)")
    assert spark.read.format("delta").load(str(folder / "dead_letters")).count() == 1
    assert problems() == []


def test_a_comparison_reports_how_far_the_typed_tables_are() -> None:
    """They may lag: equal up to an index is not equal up to the end of `entries`."""
    ends = {"entries": 99, "records": 40, "dead_letters": 49, "current": 99}
    tables = {name: MaterializedTable(name, name, 1, end, 0, 0) for name, end in ends.items()}
    assert typed_until(tables) == 50
    assert typed_until({"entries": tables["entries"]}) is None
    equal = Verified("default", 1, 0, 100, 100, 1, 0, None, None, ())
    [line] = str(equal).splitlines()
    assert str(replace(equal, typed_until_index=50)).splitlines() == [
        line,
        "typed tables equal entries up to index 49",
    ]
    unequal = replace(equal, typed_until_index=50, typed=("records lacks index 7",))
    assert str(unequal).splitlines()[1:] == [
        "records lacks index 7",
        "typed tables differ from entries up to index 49",
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
        return typed_differences(cast(Any, None), known, cast(Any, None))

    monkeypatch.setattr(differences, "typed_problems", problems)
    monkeypatch.setattr(differences, "_PAUSE_S", 0.0)
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


def test_nested_fields_are_compared_in_any_order(spark: SparkSession) -> None:
    """A table has the fields in the order in which versions of the schema added them."""

    def row(struct: str, element: str, value: str) -> DataFrame:
        return spark.sql(f"SELECT 1L AS _index, {struct} AS a, array({element}) AS l, map('k', {value}) AS m")

    names = "named_struct('n', CAST(null AS STRING), 'y', 'b', 'x.z', 1)", "named_struct('y', 1L, 'x', 2)"
    due = row(*names, "named_struct('n', CAST(null AS STRING), 'x', array(named_struct('q', 1, 'p', 2)))")
    same = ("named_struct('x.z', 1, 'y', 'b')", "named_struct('x', 2, 'y', 1L)")
    value = "named_struct('x', array(named_struct('p', 2, 'q', 1)))"
    held = row(*same, value)
    assert wrong_copies(due, held, due.schema).collect() == []
    assert wrong_copies(held, due, due.schema).collect() == []
    spoiled = row(same[0].replace("'b'", "'c'"), same[1].replace("2", "3"), value.replace("'q', 1", "'q', 3"))
    [found] = wrong_copies(due, spoiled, due.schema).collect()
    assert tuple(found) == (1, "its row differs from the record in a, l, m")
    [found] = wrong_copies(due, held.withColumn("a", F.expr("IF(_index = 2, a, null)")), due.schema).collect()
    assert tuple(found) == (1, "its row differs from the record in a")
