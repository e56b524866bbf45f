"""Observation of a materializer from outside, and waiting for its states."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.tables.table import read_table

DATA = [index for index in range(102) if index not in (0, 51)]  # of the log in tests/spark/conftest.py
DRIVER_TIMEOUT_S = 200.0


def indexes(spark: SparkSession, tables: Path) -> list[int]:
    return [
        row[0]
        for row in read_table(spark, f"{tables}/default/entries").select("index").orderBy("index").collect()
    ]


def await_true(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + DRIVER_TIMEOUT_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.02)


def await_materialized(tables: Path, index: int, log: str = "default") -> None:
    def reached() -> bool:
        try:
            progress = json.loads((tables / "progress.json").read_text())
        except FileNotFoundError:
            return False
        return log in progress["logs"] and progress["logs"][log]["materialized_index"] >= index

    await_true(reached)
