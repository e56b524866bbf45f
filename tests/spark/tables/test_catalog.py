"""Names of the tables in a catalog, and stores whose commits are not exclusive."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from app.errors import ConfigError
from app.tables.catalog import LogTables, catalog_names
from app.tables.names import CATALOG_NAMES_FILE
from spark_jobs.session.exclusive import check_exclusive
from spark_jobs.tables.catalog import CatalogTables, parse_catalog
from spark_jobs.tables.table import DEAD_LETTERS, ENTRIES, EVENTS, RECORDS, create_table, table_path


def test_names_are_quoted_and_follow_the_number_of_parts() -> None:
    assert parse_catalog("cat.stream").name_of("a-b.c", "entries") == "`cat`.`stream`.`a-b_c_entries`"
    assert parse_catalog("cat").name_of("a-b.c", "entries") == "`cat`.`a-b_c`.`entries`"
    assert parse_catalog("cat.stream").shown_name_of("a-b.c", "entries") == "cat.stream.`a-b_c_entries`"
    assert parse_catalog("cat").shown_name_of("a.b", "entries") == "cat.a_b.entries"


@pytest.mark.parametrize("text", ["", "a.b.c", "a.", "a b", "a`b", "a/b"])
def test_an_invalid_name_of_a_catalog_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"catalog must be CATALOG or CATALOG\.SCHEMA"):
        parse_catalog(text)


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    yield "spark_catalog.named_tables"
    spark.sql("DROP SCHEMA IF EXISTS spark_catalog.named_tables CASCADE")


def test_tables_are_registered_once_with_their_comments(
    spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    for table in (ENTRIES, EVENTS):
        create_table(spark, table_path(tmp_path, "orders", table), table)
    tables = CatalogTables(spark, parse_catalog(schema), str(tmp_path))
    for _ in range(2):
        tables.refresh(["orders"])
    found = spark.sql(f"SHOW TABLES IN {schema}").where("NOT isTemporary").collect()
    assert sorted(row["tableName"] for row in found) == ["orders_entries", "orders_events"]
    columns = {
        row["col_name"]: row["comment"] for row in spark.sql(f"DESCRIBE {schema}.orders_entries").collect()
    }
    assert columns["index"] == ENTRIES.columns["index"]
    assert spark.table(f"{schema}.orders_entries").count() == 0
    at_url = CatalogTables(spark, parse_catalog(schema), f"file:{tmp_path}")
    for written in (tables, at_url):  # the second one as in an object store, through Spark
        (tmp_path / "orders" / CATALOG_NAMES_FILE).unlink()
        written._record("orders", ["events", "entries"])
        assert {state.name: state.catalog_name for state in LogTables(str(tmp_path), "orders").all()} == {
            "entries": f"{schema}.orders_entries",
            "events": f"{schema}.orders_events",
        }
    create_table(spark, table_path(tmp_path / "other", "orders", ENTRIES), ENTRIES)
    other = CatalogTables(spark, parse_catalog(schema), str(tmp_path / "other"))
    with pytest.raises(ConfigError, match="the catalog cannot show"):
        other.refresh(["orders"])


def test_names_that_cannot_be_recorded_are_reported_and_recorded_later(
    spark: SparkSession, schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    create_table(spark, table_path(tmp_path, "orders", ENTRIES), ENTRIES)
    tables = CatalogTables(spark, parse_catalog(schema), str(tmp_path))
    file = tmp_path / "orders" / CATALOG_NAMES_FILE
    (file / "in the way").mkdir(parents=True)
    for _ in range(2):
        tables.refresh(["orders"])
    assert capsys.readouterr().err.count(f"{CATALOG_NAMES_FILE}'; retrying") == 1
    shutil.rmtree(file)
    tables.refresh(["orders"])
    assert catalog_names(str(file.parent)) == {"entries": f"{schema}.orders_entries"}
    assert [path.name for path in file.parent.iterdir() if path.is_file()] == [CATALOG_NAMES_FILE]


def test_two_drivers_record_the_same_names_at_the_same_time(spark: SparkSession, tmp_path: Path) -> None:
    drivers = [CatalogTables(spark, parse_catalog("cat"), str(tmp_path)) for _ in range(2)]
    (tmp_path / "orders").mkdir()

    def record(driver: CatalogTables) -> None:
        for _ in range(500):
            driver._record("orders", ["entries"])

    with ThreadPoolExecutor(len(drivers)) as threads:
        assert list(threads.map(record, drivers)) == [None, None]
    assert catalog_names(str(tmp_path / "orders")) == {"entries": "cat.orders.entries"}


def test_typed_tables_at_a_url_are_registered(spark: SparkSession, tmp_path: Path) -> None:
    for table in (ENTRIES, RECORDS, DEAD_LETTERS):
        create_table(spark, table_path(tmp_path, "orders", table), table)
    tables = CatalogTables(spark, parse_catalog("spark_catalog"), f"file://{tmp_path}")
    assert sorted(tables._new("orders")) == ["dead_letters", "entries", "records"]


def test_a_store_whose_commits_are_not_exclusive_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    check_exclusive(spark, str(tmp_path))
    check_exclusive(spark, "hdfs://host/tables")
    name = "spark.delta.logStore.s3a.impl"
    before = spark.conf.get(name)
    spark.conf.set(name, "io.delta.storage.S3SingleDriverLogStore")
    try:
        with pytest.raises(ConfigError, match=r"S3SingleDriverLogStore are not exclusive.*--single-driver"):
            check_exclusive(spark, "s3a://bucket/tables")
        check_exclusive(spark, "s3a://bucket/tables", single_driver=True)
    finally:
        spark.conf.set(name, before)
