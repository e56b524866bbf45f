"""Fail-overs in controller mode: the Delta tables and a notebook show the controllers' decisions."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from app.client import CommitlogClient, Record
from spark_jobs.analytics import failovers
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.notebook import run_notebook
from spark_jobs.run import materialize
from spark_jobs.tables.table import read_table
from tests.support.cluster import Cluster, eventually, running

NOTEBOOK = Path(__file__).parents[3] / "notebooks" / "03_failover.py"
APPENDS_BETWEEN = 40
MOVED_TO = "n3"


@dataclass
class Story:
    """decided: the events of the controllers' log about this log, in order."""

    tables: Path
    decided: list[dict[str, Any]]


class Producer:
    """Appends one record after the other in a thread, and repeats until each is acknowledged."""

    def __init__(self, cluster: Cluster) -> None:
        self._urls = [cluster.url(node) for node in cluster.ids]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged = 0

    def __enter__(self) -> "Producer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with CommitlogClient(self._urls) as client:
            while not self._stop.wait(0.01):
                client.append([Record(f"v{self.acknowledged}")])
                self.acknowledged += 1

    def wait_for(self, more: int) -> None:
        wanted = self.acknowledged + more
        eventually(lambda: self.acknowledged >= wanted, what=f"{more} appends", timeout_s=45)


@pytest.fixture(scope="module")
def story(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Two masters killed and started again, and one moved by an operator; then the tables are written."""
    folder = tmp_path_factory.mktemp("failover")
    with running(folder, logs=({"name": "default", "replication": "controller"},)) as cluster:
        with Producer(cluster) as producer:
            for _ in range(2):
                master = all_in_sync(cluster)
                producer.wait_for(APPENDS_BETWEEN)
                cluster.kill(master)
                producer.wait_for(APPENDS_BETWEEN)
                cluster.start(master)
                cluster.wait_ready()
            if all_in_sync(cluster) != MOVED_TO:
                moved = cluster.call("POST", "n1", "/v1/logs/default:elect", json={"candidate": MOVED_TO})
                assert moved.status_code == 200, moved.text
            all_in_sync(cluster)
            producer.wait_for(APPENDS_BETWEEN)
        urls = ",".join(cluster.url(node) for node in cluster.ids)
        config = MaterializeConfig(endpoint=urls, tables=folder / "tables", available_now=True)
        materialize(config, spark=spark)
        events = [json.loads(value) for value in cluster.values("n1", "__controller")]
        yield Story(folder / "tables", [event for event in events if event["log"] == "default"])


def all_in_sync(cluster: Cluster) -> str:
    """Return the master, once all nodes report that all of them are in sync with it."""

    def master() -> str | None:
        logs = [cluster.get(node, "/v1/logs/default").json() for node in cluster.ids]
        sets = {tuple(sorted(log.get("sync_state_set") or ())) for log in logs}
        masters = {log.get("master") for log in logs}
        return masters.pop() if sets == {tuple(cluster.ids)} and len(masters) == 1 else None

    return eventually(master, what="all are in sync", timeout_s=45)


def replica_ids(decided: list[dict[str, Any]]) -> dict[int, str]:
    return {event["replica_id"]: event["node"] for event in decided if event["event"] == "replica-id-applied"}


@pytest.mark.rule("C-05")
def test_each_election_is_listed_once_though_every_node_records_it(spark: SparkSession, story: Story) -> None:
    events = read_table(spark, f"{story.tables}/default/events")
    reported = failovers.elections(events).collect()
    nodes = replica_ids(story.decided)
    decided = [event for event in story.decided if event["event"] in ("master-elected", "master-lost")]
    assert [(row["master"], row["master_epoch"], row["set_epoch"], row["reason"]) for row in reported] == [
        (nodes.get(event.get("master")), event["master_epoch"], event.get("set_epoch"), event.get("reason"))
        for event in decided
    ]
    assert events.where("kind = 'election'").count() > 2 * len(reported)
    epochs = read_table(spark, f"{story.tables}/default/epochs").orderBy("epoch").collect()
    elected = [(row["master_epoch"], row["master"]) for row in reported if row["master"]]
    assert [(row["epoch"], row["leader"]) for row in epochs] == elected
    assert len(epochs) >= 3


@pytest.mark.rule("C-06")
def test_the_table_of_sets_holds_each_set_that_the_controllers_decided(
    spark: SparkSession, story: Story
) -> None:
    rows = read_table(spark, f"{story.tables}/default/sync_state_sets").orderBy("set_epoch").collect()
    nodes = replica_ids(story.decided)
    decided = []
    for event in story.decided:
        if event["event"] == "master-elected":
            decided.append((event["master_epoch"], event["set_epoch"], [nodes[event["master"]]]))
        elif event["event"] == "sync-state-set-changed" and event["set_epoch"] > decided[-1][1]:
            members = sorted(nodes[member] for member in event["sync_state_set"])
            decided.append((event["master_epoch"], event["set_epoch"], members))
    assert [(row["epoch"], row["set_epoch"], sorted(row["members"])) for row in rows] == decided


def test_the_notebook_shows_each_step(spark: SparkSession, story: Story, tmp_path: Path) -> None:
    pictures = run_notebook(NOTEBOOK, {"tables": str(story.tables)}, tmp_path / "page.html", spark)
    assert len(pictures) == 2
    page = (tmp_path / "page.html").read_text()
    assert "0 unclean elections\neach epoch has the master that was elected for it" in page
    assert "changes of the leader: no record for at most" in page
    watermarks = NOTEBOOK.with_name("02_watermarks_by_term.py")
    run_notebook(watermarks, {"tables": str(story.tables)}, tmp_path / "watermarks.html", spark)
    assert "The log is not in Raft mode" in (tmp_path / "watermarks.html").read_text()
