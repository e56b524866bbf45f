"""Readers without Spark: deltalake (Rust), pandas, Polars and DuckDB read every table of a log."""

import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql import SparkSession

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.run import materialize
from spark_jobs.tables.local.data_files import LAST_CHARACTER, statistics_of
from spark_jobs.tables.metadata import set_properties
from spark_jobs.tables.table import TABLES, TYPED_TABLES, identifier, read_table
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import rows_of
from tests.spark.typed.test_typed import to_json

deltalake = pytest.importorskip("deltalake", reason="an environment without `make setup`")
duckdb = pytest.importorskip("duckdb")
polars = pytest.importorskip("polars")

ROOT = Path(__file__).parents[3]
FIRST = "id INT NOT NULL, city STRING, at STRUCT<x: INT>, tags ARRAY<STRING>"
Reader = Callable[[str], list[dict[str, Any]]]


def by_deltalake(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    return rows


def by_pandas(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = deltalake.DeltaTable(path).to_pandas().to_dict("records")
    return rows


def by_polars(path: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = polars.read_delta(path).to_dicts()
    return rows


def by_duckdb(path: str) -> list[dict[str, Any]]:
    """DuckDB's own extension `delta` is fetched from its server; this way needs none."""
    table = deltalake.DeltaTable(path).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("rows", table)
        rows: list[dict[str, Any]] = connection.sql("SELECT * FROM rows").to_arrow_table().to_pylist()
        return rows


READERS: dict[str, Reader] = {
    "deltalake": by_deltalake,
    "pandas": by_pandas,
    "polars": by_polars,
    "duckdb": by_duckdb,
}


@pytest.fixture
def log() -> FakeLog:
    log = FakeLog()
    log.open_term(1, "n1")
    return log


def test_every_table_is_read_without_spark(
    spark: SparkSession, tmp_path: Path, log: FakeLog, replicas: list[FakeReplica]
) -> None:
    log.set_schema(FIRST, key_columns=["id"])
    for number in (1, 2, 1):
        log.append(to_json(id=number, city="Bern", at={"x": number}, tags=["a"]), key=str(number).encode())
    log.append(to_json(id="late"), b"no JSON", None, key=b"2")
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    materialize(config, spark=no_spark())
    log.set_schema(
        "id INT NOT NULL, city STRING, at STRUCT<x: INT>, tags ARRAY<STRING>, price DOUBLE",
        key_columns=["id"],
    )
    log.append(to_json(id=3, price=1.5), key=b"3")
    log.set_schema("id STRING NOT NULL", key_columns=["id"], compatibility="none")
    log.append(to_json(id="x"), key=b"4")
    materialize(config, spark=spark)  # which adds a column
    log.append(b"no JSON")  # a commit of `current` without rows
    materialize(config, spark=no_spark())
    folder = tmp_path / "default"
    names = sorted(each.name for each in folder.iterdir())
    assert {each.name for each in (*TABLES, *TYPED_TABLES)} <= set(names)
    for name in names:
        expected = list(rows_of(folder / name))
        for reader, read in READERS.items():
            rows = read(str(folder / name))
            assert len(rows) == len(expected), (name, reader)
            assert all(set(row) == set(expected[0]) for row in rows), (name, reader)
    for reader, read in READERS.items():
        newest = sorted((row["id"], row["city"], row["_index"]) for row in read(str(folder / "current")))
        assert [row[0] for row in newest] == [1, 3], reader
        assert [row["id"] for row in read(str(folder / "current_v3"))] == ["x"], reader
        assert 1.5 in [row["price"] for row in read(str(folder / "records"))], reader
        (letter,) = (row for row in read(str(folder / "dead_letters")) if row["path"] == "/id")
        assert letter["value"] == to_json(id="late"), reader


@pytest.mark.parametrize(
    ("values", "least", "most"),
    [
        (["b" * 40, "a" * 33], "a" * 32, "b" * 32 + LAST_CHARACTER),
        (["a" * 32, "b" * 32], "a" * 32, "b" * 32),
        (["a", "b" * 32 + LAST_CHARACTER], None, None),
        ([Decimal("-0.50"), Decimal("12345.25")], -0.5, 12345.25),
        ([Decimal(-(2**63)), Decimal(2**64 - 1)], -(2**63), 2**64 - 1),
        ([Decimal("0.00"), Decimal("0.00001")], None, None),
        ([Decimal("0.1"), Decimal("12345678901234567.1")], None, None),
    ],
)
def test_bounds_of_long_texts_and_decimals_are_not_within_the_values(
    values: list[Any], least: object, most: object
) -> None:
    found = statistics_of(pyarrow.table({"x": values}), ["x"])
    bounds = (found["minValues"].get("x"), found["maxValues"].get("x"))
    assert bounds == (least, most)
    assert [type(each) for each in bounds] == [type(least), type(most)]


def test_times_of_all_years_are_read_from_files_of_spark(
    spark: SparkSession, tmp_path: Path, log: FakeLog, replicas: list[FakeReplica]
) -> None:
    log.set_schema("at TIMESTAMP, local TIMESTAMP_NTZ")  # Spark writes tables with such a column
    days = ("0001-01-01", "1500-02-28", "2013-01-31", "9999-12-31")
    log.append(*(to_json(at=f"{day}T23:59:59.999999Z", local=f"{day}T00:00:00") for day in days))
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    materialize(config, spark=spark)
    for reader, read in READERS.items():
        rows = read(str(tmp_path / "default" / "records"))
        found = sorted((str(row["at"])[:26], str(row["local"])[:10]) for row in rows)
        assert found == [(f"{day} 23:59:59.999999", day) for day in days], reader


def found_by_polars(path: str, name: str, value: object) -> int:
    return len(polars.scan_delta(path).filter(polars.col(name) == value).collect())


def found_by_deltalake(path: str, name: str, value: object) -> int:
    query = deltalake.QueryBuilder().register("rows", deltalake.DeltaTable(path))
    (row,) = pyarrow.table(query.execute(f"SELECT count(*) n FROM rows WHERE {name} = '{value}'")).to_pylist()
    return int(row["n"])


def found_by_duckdb(path: str, name: str, value: object) -> int:
    with duckdb.connect() as connection:
        connection.register("rows", deltalake.DeltaTable(path).to_pyarrow_dataset())
        found = connection.execute(f"SELECT count(*) FROM rows WHERE {name} = ?", [value]).fetchone()
        assert found is not None
        return int(found[0])


def test_a_filter_on_clustered_columns_finds_every_row(
    tmp_path: Path, log: FakeLog, replicas: list[FakeReplica]
) -> None:
    """Each record is in a file of its own, which a reader skips by its statistics."""
    log.set_schema(
        "city STRING NOT NULL, id DECIMAL(20,0), price DECIMAL(10,2)",
        key_columns=["city"],
        cluster_by=["city", "id", "price"],
    )
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    cities = ("Bern", "\U00020bb7\u91ce\u5bb6", "x" * 32 + "y", "x" * 32 + "\U0001f600")
    ids, prices = (2**64 - 1, 2**64 - 2, 2**53 + 1, -1), ("1.50", "-0.01", "99999999.99", "0.00")
    for city, number, price in zip(cities, ids, prices, strict=True):
        log.append(to_json(city=city, id=number, price=price))
        materialize(config, spark=no_spark())
    path = str(tmp_path / "default" / "records")
    assert len(deltalake.DeltaTable(path).file_uris()) == len(cities)
    columns = {"city": cities, "id": map(Decimal, ids), "price": map(Decimal, prices)}
    for name, values in columns.items():
        for value in values:
            for found in (found_by_polars, found_by_deltalake, found_by_duckdb):
                assert found(path, name, value) == 1, (found, name, value)
    for city in cities:
        assert found_by_duckdb(str(tmp_path / "default" / "current"), "city", city) == 1


@pytest.mark.parametrize("page", ["README.md", "docs/spark.md"])
def test_the_examples_of_the_pages_read_the_tables_of_orders(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    (example,) = (block for block in blocks if "polars.read_delta" in block)
    rows = pyarrow.table({"id": [17, 17], "price": [Decimal("9.50"), Decimal("1.25")]})
    for table in ("records", "current"):
        deltalake.write_deltalake(tmp_path / "commitlog-data/tables/orders" / table, rows)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    shown = capsys.readouterr().out
    assert "9.50" in shown
    assert ("10.75" in shown) == ("duckdb" in example)


REFUSALS = {  # what a reader does not know yet: it refuses the table, and shows no wrong rows
    "deletionVectors": {"deltalake", "pandas", "duckdb"},
    "typeWidening": {"deltalake", "pandas", "duckdb", "polars"},
}


def test_a_feature_that_a_reader_lacks_is_refused_and_never_read_wrongly(
    spark: SparkSession, tmp_path: Path
) -> None:
    """docs/spark.md has this table. A reader that learns a feature moves out of REFUSALS."""
    for feature, refusing in REFUSALS.items():
        path = str(tmp_path / feature)
        rows = spark.createDataFrame([(1, 1), (2, 2), (3, 3)], "index INT, b INT").coalesce(1)
        rows.write.format("delta").save(path)
        table = identifier(path)
        if feature == "typeWidening":
            set_properties(spark, path, {"delta.enableTypeWidening": "true"})
            spark.sql(f"ALTER TABLE {table} ALTER COLUMN b TYPE BIGINT")
        else:
            set_properties(spark, path, {"delta.enableDeletionVectors": "true"})
            spark.sql(f"DELETE FROM {table} WHERE index = 2")
        expected = sorted((row.asDict() for row in read_table(spark, path).collect()), key=str)
        for reader, read in READERS.items():
            if reader in refusing:
                with pytest.raises(Exception, match=r"feature|version"):
                    read(path)
            else:
                assert sorted(read(path), key=str) == expected, (feature, reader)
