"""An unclean election, end to end: the log moves under its tables, and what is lost is in one of them."""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.errors import SourceError
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.journal_table import JournalTable
from spark_jobs.materialize.supervisor import MaterializeFailed
from spark_jobs.run import materialize
from spark_jobs.tables.table import EVENTS, TableClash
from tests.integration.modes.test_controller_mode import create, log_settings, wait_acknowledged, wait_in_sync
from tests.spark.no_spark import no_spark
from tests.spark.source.looks import await_materialized, await_true
from tests.spark.typed.law import rows_of
from tests.support.cluster import Cluster, eventually, running

LOG = "moved"
WAIT_S = 45.0
CLASH = r"is not the log that this query has read.*start with an empty checkpoint and an empty table"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path, 3) as cluster:
        yield cluster


def elect(cluster: Cluster, candidate: str) -> None:
    def elected() -> bool:
        asked = {"candidate": candidate, "unclean": True}
        return cluster.call("POST", "n3", f"/v1/logs/{LOG}:elect", json=asked).status_code == 200

    eventually(elected, what="an unclean election", timeout_s=WAIT_S)


@pytest.mark.rule("C-05", "A-04")
def test_records_lost_by_an_unclean_election_are_in_quarantine_once_and_entries_reports_the_change(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(cluster, LOG, replicas=["n1", "n2"])
    master = wait_in_sync(cluster, LOG, "n1", "n2")["master"]
    slave = {"n1": "n2", "n2": "n1"}[master]
    wait_acknowledged(cluster, LOG, "kept")
    endpoint = ",".join(cluster.url(node) for node in cluster.ids)
    old, new = tmp_path / "old", tmp_path / "new"
    failures: list[Exception] = []

    def follow() -> None:
        try:
            materialize(job_of(endpoint, old), spark=no_spark(), stop=stop)
        except (MaterializeFailed, SourceError) as error:  # the latter at a start after an outage
            failures.append(error)

    stop = threading.Event()
    job = threading.Thread(target=follow)
    job.start()
    try:
        cluster.kill(slave)
        wait_in_sync(cluster, LOG, master)
        lost = [{"key": f"k{number}", "value": f"lost {number}"} for number in range(3)]
        place = f"/v1/logs/{LOG}/records"
        answer = cluster.call("POST", master, place, json={"records": lost}).json()
        await_materialized(old, answer["last_index"], LOG)
        cluster.kill(master)
        cluster.start(slave)
        eventually(
            lambda: log_settings(cluster, LOG).get("master", "") is None, what="no master", timeout_s=WAIT_S
        )
        elect(cluster, slave)
        wait_acknowledged(cluster, LOG, "new")
        cluster.start(master)
        wait_in_sync(cluster, LOG, "n1", "n2")
        cluster.wait_ready()
        await_true(lambda: bool(failures))
    finally:
        stop.set()
        job.join()

    # The job that saw it and one that starts later both stop, and leave what was acknowledged in the table.
    with pytest.raises((MaterializeFailed, SourceError), match=CLASH):
        raise failures[0]
    with pytest.raises((MaterializeFailed, SourceError), match=CLASH):
        materialize(job_of(endpoint, old, available_now=True), spark=no_spark())
    indexes = range(answer["first_index"], answer["last_index"] + 1)
    materialized = values(rows(old, "entries"))
    assert [(index, materialized[index]) for index in indexes] == [
        (index, record["value"]) for index, record in zip(indexes, lost, strict=True)
    ]

    # The way out: an empty folder. A job that ends when the table has them, and `events` does not:
    with monkeypatch.context() as patch:
        patch.setattr(JournalTable, "append", refuse_events)
        with pytest.raises(MaterializeFailed, match="refuses the events"):
            materialize(job_of(endpoint, new, available_now=True), spark=no_spark())
    assert rows(new, "events") == []
    assert rows(new, "quarantine_truncated") != []
    for _ in range(2):
        materialize(job_of(endpoint, new, available_now=True), spark=no_spark())
    assert list(values(rows(new, "entries")).values()) == cluster.values(slave, LOG)
    kept = sorted(rows(new, "quarantine_truncated"), key=lambda row: row["index"])
    data = [row for row in kept if row["type"] == "data"]
    assert [(row["index"], row["key"].decode(), row["value"].decode()) for row in data] == [
        (index, record["key"], record["value"]) for index, record in zip(indexes, lost, strict=True)
    ]
    epoch = log_settings(cluster, LOG)["epoch"]
    assert {(row["log"], row["node"], row["epoch"]) for row in kept} == {(LOG, master, epoch)}
    receipt = pa.ipc.open_file((cluster.folder / master / kept[0]["receipt"]).read_bytes()).read_all()
    assert [(row["index"], row["type"], row["value"]) for row in receipt.to_pylist()] == [
        (row["index"], row["type"], row["value"]) for row in kept
    ]
    # Nothing is silent: what the old table has and the log has not is what is in quarantine.
    gone = materialized.items() - values(rows(new, "entries")).items()
    assert sorted(gone) == [(row["index"], row["value"].decode()) for row in data]


append = JournalTable.append


def refuse_events(table: JournalTable, news: pa.Table, note: Mapping[str, int] | None = None) -> None:
    """A driver that ends there, killed or not, has filled the tables that are made of them."""
    if table.table is EVENTS and news.num_rows:
        raise TableClash(table.path, "the events")
    append(table, news, note)


def job_of(endpoint: str, tables: Path, *, available_now: bool = False) -> MaterializeConfig:
    return MaterializeConfig(
        endpoint=endpoint,
        tables=tables,
        logs=(LOG,),
        available_now=available_now,
        trigger="200 milliseconds",
        events_trigger="500 milliseconds",
    )


def rows(tables: Path, table: str) -> list[dict[str, Any]]:
    return list(rows_of(tables / LOG / table))


def values(entries: list[dict[str, Any]]) -> dict[int, str]:
    """By index, in its order."""
    return {row["index"]: row["value"].decode() for row in sorted(entries, key=lambda row: row["index"])}
