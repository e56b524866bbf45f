"""A typed table whose column cannot get the type that the schema gives."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from spark_jobs.errors import ColumnClash
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.source.log_reads import LogReads
from spark_jobs.typed import layout
from spark_jobs.typed.layout import is_widened
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import rows_of
from tests.spark.typed.test_typed_kills import fill_entries

MILLIS, MICROS = b"\x02", b"\x04"


def times(kind: str, unit: str) -> str:
    field = {"name": "t", "type": {"type": kind, "logicalType": unit}}
    return json.dumps({"type": "record", "name": "R", "fields": [field]})


@pytest.fixture
def log() -> FakeLog:
    """The unit of an Avro time changes with a version that needs no compatibility."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema(times("int", "time-millis"), format="avro")
    log.append(MILLIS)
    log.set_schema(times("long", "time-micros"), format="avro", compatibility="none")
    log.append(MICROS)
    return log


def test_a_table_with_times_of_two_units_by_an_earlier_release_is_refused_with_the_remedy(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_entries(log, tmp_path)
    client = LogReads([replica.url for replica in replicas], "default")

    def tables() -> TypedTables:
        return TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name), follows=False)

    with monkeypatch.context() as earlier:
        differences = layout.differences

        def of_then(before: Any, schema: Any) -> list[Any]:
            return [each for each in differences(before, schema) if each.kind != "unit_changed"]

        earlier.setattr(layout, "differences", of_then)
        tables().extend(log.next_index)
    for name in ("records", "current"):
        with pytest.raises(ColumnClash, match=f"{name}: the column t is bigint, .* to int,"):
            tables().extend(log.next_index)
        shutil.rmtree(tmp_path / name)
    shutil.rmtree(tmp_path / "records")  # made again beside `current`, which only Spark can bring up to date
    tables().extend(log.next_index)
    assert [[row["_index"] for row in rows_of(tmp_path / name)] for name in ("records", "records_v2")] == [
        [2],
        [4],
    ]


@pytest.mark.parametrize(
    ("held", "wanted", "can"),
    [
        (IntegerType(), LongType(), True),
        (LongType(), IntegerType(), False),
        (IntegerType(), DoubleType(), True),
        (LongType(), DoubleType(), False),
        (LongType(), DecimalType(20, 0), True),
        (DecimalType(5, 2), DecimalType(7, 3), True),
        (DateType(), TimestampNTZType(), True),
        (StringType(), IntegerType(), False),
        (StructType([StructField("a", StringType())]), StringType(), False),
    ],
)
def test_types_that_delta_widens(held: DataType, wanted: DataType, can: bool) -> None:
    assert is_widened(held, wanted) is can
