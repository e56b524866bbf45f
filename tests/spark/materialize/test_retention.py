"""Records that the table lacks stay in the log: the real job's cursor bounds retention and `:trim`
(docs/api.md §5)."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from app.client.tables import DigestPage, Tables
from app.tables.names import CURSOR
from spark_jobs.errors import SourceError
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.supervisor import MaterializeFailed
from spark_jobs.run import materialize
from spark_jobs.tables.table import read_table
from spark_jobs.verify import end_and_strays, verify_tables
from tests.support.cluster import Cluster, eventually, running

FENCED, BARE = "fenced", "bare"
STORAGE = {"segment_max_bytes": 20_000, "mark_interval_bytes": 5_000, "tail_cache_bytes": 0}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Cluster]:
    """A node that keeps 30 kB of either log, and looks often."""
    logs = tuple({"name": name, "retention_bytes": 30_000} for name in (FENCED, BARE))
    sections: dict[str, dict[str, Any]] = {"storage": STORAGE, "retention": {"check_interval_ms": 100}}
    sections |= {"tables": {"path": tmp_path / "tables"}}
    with running(tmp_path, 1, logs=logs, sections=sections) as cluster:
        cluster.leader(FENCED)
        yield cluster


@pytest.fixture
def fill(node: Cluster) -> Callable[[str, int], list[str]]:
    """Appends records of 1 kB, each in a batch of its own; their values."""
    counts = {FENCED: 0, BARE: 0}

    def append(log: str, count: int) -> list[str]:
        added = [f"{number}-{'v' * 1_000}" for number in range(counts[log], counts[log] + count)]
        counts[log] += count
        for value in added:
            assert node.append("n1", value, log=log).status_code == 200
        return added

    return append


def begin(node: Cluster, log: str) -> int:
    return int(node.status("n1", log)["begin_index"])


def wait_for_a_look(node: Cluster, fill: Callable[[str, int], list[str]]) -> None:
    """Wait until retention has examined all logs: it trimmed the log without a fence twice."""
    for _ in range(2):
        before = begin(node, BARE)
        fill(BARE, 60)
        eventually(lambda before=before: begin(node, BARE) > before, what="the bare log is trimmed")  # type: ignore[misc]


def trim_first(node: Cluster, until_index: int) -> Callable[..., Iterator[DigestPage]]:
    """The service's digests, asked for when the log is trimmed past what was there just now."""

    def digests(known: Tables, *asked: int) -> Iterator[DigestPage]:
        done = node.call("POST", "n1", f"/v1/logs/{FENCED}:trim", json={"until_index": until_index})
        assert done.status_code == 200, done.text
        eventually(lambda: begin(node, FENCED) >= until_index, what="the log is trimmed")
        return untrimmed(known, *asked)

    untrimmed = Tables.digests
    return digests


def test_retention_and_trims_leave_what_the_table_lacks(
    spark: SparkSession,
    node: Cluster,
    fill: Callable[[str, int], list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = tmp_path / "tables"
    config = MaterializeConfig(endpoint=node.url("n1"), tables=tables, logs=(FENCED,), available_now=True)

    def stored() -> list[str]:
        rows = read_table(spark, f"{tables}/{FENCED}/entries").orderBy("index").collect()
        return [bytes(row["value"]).decode() for row in rows]

    appended = fill(FENCED, 5)
    materialize(config, spark=spark)
    held = node.get("n1", f"/v1/logs/{FENCED}/cursors/{CURSOR}").json()["index"]
    appended += fill(FENCED, 100)
    wait_for_a_look(node, fill)
    assert begin(node, FENCED) <= held  # what the table has may go, nothing else
    end = node.status("n1", FENCED)["committed_index"]
    trim = node.call("POST", "n1", f"/v1/logs/{FENCED}:trim", json={"until_index": end})
    assert (trim.status_code, trim.json()["code"]) == (409, "not-materialized")
    assert (trim.json()["cursor"], trim.json()["index"]) == (CURSOR, held)

    materialize(config, spark=spark)
    eventually(lambda: begin(node, FENCED) > held, what="what is in the table goes")
    assert stored() == appended
    trimmed_to = begin(node, FENCED) + 10
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "digests", trim_first(node, trimmed_to))
        same = verify_tables(spark, node.url("n1"), FENCED)
    assert same.equal, str(same)
    assert same.from_index >= trimmed_to

    fill(FENCED, 10)
    end = node.status("n1", FENCED)["committed_index"]
    forced = node.call("POST", "n1", f"/v1/logs/{FENCED}:trim", json={"until_index": end, "force": True})
    assert forced.status_code == 200, forced.text
    eventually(lambda: begin(node, FENCED) == end, what="a forced trim takes what the table lacks")
    with pytest.raises(
        (MaterializeFailed, SourceError), match=r"trimmed before they were read into .*move the folder"
    ):
        materialize(config, spark=spark)
    assert stored() == appended
    behind = verify_tables(spark, node.url("n1"), FENCED)
    assert (behind.equal, behind.first_difference) == (False, behind.until_index)
    assert str(behind).endswith(f"the log begins at index {end:,}, after the end of the table")


def test_rows_that_no_record_of_the_log_can_have_are_found(spark: SparkSession) -> None:
    """Digests do not cover them: the name of the log, and indexes that are not compared."""
    rows = spark.createDataFrame([("a", 0), ("a", 9)], "log string, index bigint")
    assert end_and_strays(rows, "a", 10) == (10, None, None)
    assert end_and_strays(rows.where("false"), "a", 10) == (0, None, None)
    for log, index, first in (("a", 10, 10), ("a", -2, -2), ("a", None, -1), ("b", 5, 5), (None, 5, 5)):
        stray = spark.createDataFrame([(log, index)], rows.schema)
        assert end_and_strays(rows.union(stray), "a", 10)[:2] == (10, first)
    end, first, difference = end_and_strays(rows, "a", 9)
    assert (end, first) == (1, 9)
    assert difference == "the table has 1 row at an index that the log lacks, or of another log"
