"""The typed tables of a log with a schema: `records` and `dead_letters`."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from spark_jobs.run import MaterializeConfig, materialize
from spark_jobs.tables.table import read_table
from tests.spark.conftest import endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica

FIRST = "id INT NOT NULL, city STRING COMMENT 'where it''s', at STRUCT<x: INT>, tags ARRAY<STRUCT<n: INT>>"


def told(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


@pytest.fixture
def log() -> FakeLog:
    """A log with history before its first schema."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.append(told(id=1, city="Bern"), b"no JSON", None, key=b"a")
    return log


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path / "tables", available_now=True)


def rows(spark: SparkSession, config: MaterializeConfig, table: str, order: str = "_index") -> list[Row]:
    return read_table(spark, f"{config.tables}/default/{table}").orderBy(order).collect()


def test_history_changes_of_the_schema_and_records_that_do_not_match(
    spark: SparkSession, config: MaterializeConfig, log: FakeLog
) -> None:
    log.set_schema(FIRST)  # index 4
    log.append(told(id=2, city="Thun", more=[1]), told(id="3"))
    materialize(config, spark=spark)
    found = rows(spark, config, "records")
    assert [(row["_index"], row["_schema_version"], row["id"], row["_rescued"]) for row in found] == [
        (1, 1, 1, None),
        (5, 1, 2, '{"more":[1]}'),
    ]
    assert (bytes(found[0]["_key"]), found[0]["_term"], found[0]["city"]) == (b"a", 1, "Bern")
    dead = rows(spark, config, "dead_letters", "index")
    assert [(row["index"], row["schema_version"], row["path"]) for row in dead] == [(2, 1, ""), (6, 1, "/id")]
    assert bytes(dead[1]["value"]) == told(id="3")

    log.append(told(id=4))
    second = FIRST.replace("id INT", "id BIGINT").replace("x: INT", "x: BIGINT, y: STRING")
    second = second.replace("n: INT", "n: BIGINT, m: DOUBLE") + ", price DECIMAL(10,2)"
    log.set_schema(second)  # index 8
    log.append(told(id=2**40, at={"x": 2**41, "y": "z"}, tags=[{"n": 2**42, "m": 0.5}], price=1.25))
    log.append(told(id=5, at={"x": 1}), headers=(("schema-version", b"1"),))
    log.append(told(id=6), headers=(("schema-version", b"3"),))
    log.set_schema("id STRING NOT NULL", compatibility="none")  # index 12
    log.append(told(id="seven"), told(id=8))
    log.append(told(id=9), headers=(("schema-version", b"2"),))
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
    assert [row["id"] for row in rows(spark, config, "records_v3")] == ["seven"]
    dead = rows(spark, config, "dead_letters", "index")
    assert [(row["index"], row["schema_version"]) for row in dead] == [(2, 1), (6, 1), (11, 3), (14, 3)]
