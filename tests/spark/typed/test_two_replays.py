"""Two replays of dead letters at once: each letter moves once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from app.tables.names import MOVED_PROPERTY
from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.data_files import write_file
from spark_jobs.tables.local_commits import LocalTable
from spark_jobs.tables.table import DEAD_LETTERS, Table
from spark_jobs.typed.claimed_table import MERGE_ATTEMPTS, ClaimedTable
from spark_jobs.typed.decoding import COLUMNS
from tests.spark.materialize.opened_job import commit_of_user
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import rows_of
from tests.spark.typed.test_typed import to_json
from tests.spark.typed.test_typed_kills import fill_entries


@pytest.fixture
def log() -> FakeLog:
    """Two letters, at 2 and 3, that the second and the third version read, each in a table of its own."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema("id STRING NOT NULL")
    log.append(to_json(id=1), to_json(id=2), to_json(id="x"), key=b"k")
    log.set_schema("id DOUBLE NOT NULL", compatibility="none")
    log.set_schema("id INT NOT NULL", compatibility="none")
    return log


@pytest.mark.parametrize("versions", [(3, 3), (2, 3)], ids=["one table", "two tables"])
def test_each_letter_moves_once(
    spark: SparkSession,
    log: FakeLog,
    replicas: list[FakeReplica],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    versions: tuple[int, int],
) -> None:
    """Both replays have found the letters before one of them notes or adds anything."""
    client = LogReads([replica.url for replica in replicas], "default")
    fill_entries(log, tmp_path)

    def path_of(table: Table) -> str:
        return str(tmp_path / table.name)

    TypedTables(no_spark(), client, path_of, follows=False).extend(log.next_index)
    both = threading.Barrier(2, timeout=60)
    for name in ("set_properties", "insert_missing"):
        monkeypatch.setattr(ClaimedTable, name, after(both, getattr(ClaimedTable, name)))

    def replay(version: int) -> None:
        DeadLetterReplay(spark, client, path_of).run(version)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(replay, versions))

    def rows(name: str, column: str = "_index") -> list[int]:
        return sorted(row[column] for row in rows_of(tmp_path / name))

    moved_to, other = ("records_v2", "records_v3") if 2 in versions else ("records_v3", "records_v2")
    assert [rows(name) for name in ("records", moved_to, other)] == [[4], [2, 3], []]
    assert rows("dead_letters", "index") == []
    notes = ClaimedTable(spark, path_of(DEAD_LETTERS), DEAD_LETTERS, "index").properties()
    assert all(notes[f"{MOVED_PROPERTY}.{version}"] == "2" for version in versions)


def test_letters_are_added_once_beside_a_job_that_appends_all_the_time(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's MERGE fails after some conflicts with appends. Another replay adds one of the letters."""
    client = LogReads([replica.url for replica in replicas], "default")
    fill_entries(log, tmp_path)
    typed = TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name), follows=False)
    typed.extend(log.next_index)
    assert typed.decoder is not None
    table, held = typed.records[3], typed._entries.pieces(2, 4, COLUMNS)
    letters = typed.decoder.decode(next(held)[1], 3).records[3]
    by_other = write_file(Path(table.path), letters.slice(0, 1), table.table.statistics).action()
    commit, others = LocalTable._commit, []

    def commit_after_another(*given: Any) -> bool:
        if len(others) < 2 * MERGE_ATTEMPTS:
            others.append(commit_of_user(table, "WRITE", *([] if others else [by_other])))
        return commit(*given)

    monkeypatch.setattr(LocalTable, "_commit", commit_after_another)
    table.insert_missing(letters)
    assert len(others) == 2 * MERGE_ATTEMPTS
    assert sorted(row["_index"] for row in rows_of(Path(table.path))) == [2, 3]


def after(barrier: threading.Barrier, change: Callable[..., None]) -> Callable[..., None]:
    def changed(*given: Any) -> None:
        barrier.wait()
        change(*given)

    return changed
