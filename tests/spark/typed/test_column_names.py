"""Columns of a schema whose names the job itself might use."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.run import materialize
from spark_jobs.tables.table import quoted_name, read_table
from spark_jobs.typed import current
from spark_jobs.typed.invariants import misplaced, outdated
from tests.spark.conftest import endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica

NAMES = (
    "row",
    "_removed_at",
    "_IS_GONE",
    "a.b",
    "x`y",
    '"q"',
    "back\\slash",
    "count",
    "held",
    "key",
    "_metadata",
)
KEYS = (("row", "_removed_at", "a.b", "held"), ("count",))
"""A name that the job might use is in the key in one case, and beside it in the other."""


@pytest.fixture
def log() -> FakeLog:
    log = FakeLog()
    log.open_term(1, "n1")
    return log


@pytest.mark.parametrize("keys", KEYS)
def test_spark_updates_current_whatever_the_names_of_columns_are(
    spark: SparkSession,
    replicas: list[FakeReplica],
    log: FakeLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys: tuple[str, ...],
) -> None:
    monkeypatch.setattr(current, "links_commits", lambda *_: False)  # as for tables at a URL
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    columns = (f"{quoted_name(name)} STRING{' NOT NULL' * (name in keys)}" for name in NAMES)
    log.set_schema(", ".join(columns), key_columns=keys)

    def put(number: str) -> None:
        row = {**dict.fromkeys(NAMES, "x"), **dict.fromkeys(keys, number)}
        log.append(json.dumps(row).encode(), key=number.encode())

    for numbers, removed in (("121", b"2"), ("314", b"4")):
        for number in numbers:
            put(number)
        log.append(None, key=removed)
        materialize(config, spark=spark)
    names = ("entries", "records", "current", "dead_letters")
    entries, records, held, letters = (read_table(spark, str(tmp_path / "default" / name)) for name in names)
    assert misplaced(entries, [records], letters, log.next_index).collect() == []
    assert outdated(entries, records, held, keys, log.next_index).collect() == []
    left = sorted(tuple(row[name] for name in keys) for row in held.collect())
    assert left == [(number,) * len(keys) for number in "13"]
