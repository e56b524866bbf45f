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
from spark_jobs.tables.table import TABLES, TYPED_TABLES, identifier, read_table, set_properties
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
