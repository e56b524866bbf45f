"""Properties and columns that the driver changes itself, as Spark would."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StringType, StructField

from app.tables.delta_log import DeltaLog
from spark_jobs.tables.checkpoints import CHECKPOINTS
from spark_jobs.tables.local.commits import LocalTable, NeedsSpark
from spark_jobs.tables.metadata import set_properties, table_properties
from spark_jobs.tables.table import identifier, read_table
from tests.spark.no_spark import no_spark
from tests.spark.tables.local.entries import append, create, indexes, table_at

NOTE = StructField("note", StringType(), metadata={"comment": "An 'added' column."})
SIZE = StructField("size", IntegerType(), metadata={"comment": ""})


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "entries")
    assert create(table_at(path))
    return path


def columns_of(path: str) -> list[str]:
    return [each["name"] for each in json.loads(table_at(path).snapshot().schema)["fields"]]


def versions(path: str) -> int:
    return DeltaLog(path).versions().stop


def test_properties_are_set_without_spark(path: str) -> None:
    before = table_properties(no_spark(), path)
    set_properties(no_spark(), path, {"commitlog.note": "it's 1", "commitlog.owner": "you"})
    changed = {**before, "commitlog.note": "it's 1", "commitlog.owner": "you"}
    assert table_properties(no_spark(), path) == changed
    set_properties(no_spark(), path, {"commitlog.note": "it's 1"})
    assert versions(path) == 2
    assert append(table_at(path), 0, 3)


@pytest.mark.parametrize("name", ["delta.appendOnly", "Delta.enableChangeDataFeed"])
def test_properties_with_a_meaning_for_delta_are_left_to_spark(path: str, name: str) -> None:
    with pytest.raises(NeedsSpark, match="only Spark knows what these properties change"):
        table_at(path).set_properties({"commitlog.note": "1", name: "true"})
    assert versions(path) == 1


def test_a_change_after_another_writer_keeps_what_that_one_changed(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers read one version, and change the columns and the properties."""
    whole = LocalTable._commit
    beside: list[Any] = [
        lambda: table_at(path).add_columns([SIZE]),
        lambda: table_at(path).set_properties({"commitlog.b": "2"}),
    ]

    def commit(table: LocalTable, version: int, actions: Sequence[Any]) -> bool:
        if beside:
            beside.pop()()
        return whole(table, version, actions)

    monkeypatch.setattr(LocalTable, "_commit", commit)
    table_at(path).set_properties({"commitlog.a": "1"})
    table_at(path).add_columns([NOTE])
    assert columns_of(path)[-2:] == ["size", "note"]
    properties = table_properties(no_spark(), path)
    assert (properties["commitlog.a"], properties["commitlog.b"]) == ("1", "2")


def test_a_column_that_another_writer_has_added_is_not_added_again(path: str) -> None:
    table_at(path).add_columns([NOTE])
    table_at(path).add_columns([StructField("NOTE", StringType()), SIZE])
    assert columns_of(path)[-1] == "note"
    assert versions(path) == 2


def test_rows_of_before_and_after_are_read_by_a_writer_that_was_open(path: str) -> None:
    table = table_at(path)
    assert append(table, 0, 3)
    table_at(path).add_columns([NOTE])
    assert append(table, 3, 5)
    assert indexes(table) == list(range(5))


def test_spark_sees_the_changes_as_its_own(spark: SparkSession, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("ours", "sparks")]
    for path in paths:
        assert create(table_at(path))
        assert append(table_at(path), 0, 2)
    table_at(paths[0]).set_properties({"commitlog.note": "it's 1"})
    table_at(paths[0]).add_columns([NOTE, SIZE])
    ours, sparks = map(identifier, paths)
    spark.sql(f"ALTER TABLE {sparks} SET TBLPROPERTIES ('commitlog.note' = 'it\\'s 1')")
    spark.sql(
        f"ALTER TABLE {sparks} ADD COLUMNS "
        "(note STRING COMMENT 'An \\'added\\' column.', size INT COMMENT '')"
    )
    for statement in ("DESCRIBE TABLE {}", "SHOW TBLPROPERTIES {}"):
        assert spark.sql(statement.format(ours)).collect() == spark.sql(statement.format(sparks)).collect()
    for name in ("operation", "operationParameters", "isolationLevel", "isBlindAppend"):
        found = [
            [row[name] for row in spark.sql(f"DESCRIBE HISTORY {each} LIMIT 2").collect()]
            for each in (ours, sparks)
        ]
        assert found[0] == found[1]
    spark.sql(f"INSERT INTO {ours} (index, note) VALUES (2, 'new')")
    rows = read_table(spark, paths[0]).orderBy("index").select("index", "note").collect()
    assert [tuple(row) for row in rows] == [(0, None), (1, None), (2, "new")]
    before = table_at(paths[0]).snapshot().metadata
    CHECKPOINTS.request(spark, paths[0])
    assert CHECKPOINTS.finish(60)
    assert list(tmp_path.glob("ours/_delta_log/*.checkpoint.parquet"))
    after = {
        name: value for name, value in table_at(paths[0]).snapshot().metadata.items() if value is not None
    }
    assert after == before
    table_at(paths[0]).set_properties({"commitlog.note": "2"})
    [changed] = spark.sql(f"SHOW TBLPROPERTIES {ours} ('commitlog.note')").collect()
    assert changed["value"] == "2"
