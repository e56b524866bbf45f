"""Many logs in one job, on a real node and without Spark: what joins, leaves, fails, and what waits."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.tables.delta_log import DeltaLog
from spark_jobs.materialize import followed_logs
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.journal_poller import JournalPoller
from spark_jobs.materialize.progress import Progress
from spark_jobs.run import materialize
from spark_jobs.source.ends_poller import LogEndsPoller
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.snapshot import read_snapshot
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import await_materialized, await_true
from tests.support.cluster import Cluster

Follow = Callable[[MaterializeConfig], list[Progress]]


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Starts a job beside the test, which ends with it; the list gets its last progress."""
    stop = threading.Event()
    jobs: list[threading.Thread] = []

    def start(config: MaterializeConfig) -> list[Progress]:
        ended: list[Progress] = []
        run = lambda: ended.append(materialize(config, stop=stop, spark=no_spark()))  # noqa: E731
        jobs.append(threading.Thread(target=run))
        jobs[-1].start()
        return ended

    yield start
    stop.set()
    for job in jobs:
        job.join()


def reported(config: MaterializeConfig) -> dict[str, Any]:
    return dict(json.loads(config.progress_file.read_text())["logs"])


def indexes(config: MaterializeConfig, log: str) -> int | None:
    snapshot = DeltaLog(f"{config.tables}/{log}/entries").snapshot()
    return None if snapshot is None else snapshot.rows


def test_logs_join_and_leave_a_job_that_runs(
    service: Cluster,
    tmp_path: Path,
    follow: Follow,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(followed_logs, "NAMES_EACH_S", 0.2)
    for name in ("joins-a", "joins-other"):
        assert service.call("POST", "n1", "/v1/logs", json={"name": name}).status_code == 201
    # The table of one log is another log's: it fails alone.
    alien = MaterializeConfig(
        endpoint=service.url("n1"), tables=tmp_path, logs=("joins-a",), available_now=True
    )
    service.append("n1", "v", log="joins-a")
    materialize(alien, spark=no_spark())
    (tmp_path / "joins-a").rename(tmp_path / "joins-other")
    config = MaterializeConfig(
        endpoint=service.url("n1"), tables=tmp_path, logs=("joins-*",), trigger="100 ms", cursor_each_s=0.2
    )
    follow(config)
    last = service.append("n1", *("v" for _ in range(10)), log="joins-a").json()["last_index"]
    await_materialized(tmp_path, last, "joins-a")
    assert service.call("POST", "n1", "/v1/logs", json={"name": "joins-b"}).status_code == 201
    last = service.append("n1", "v", log="joins-b").json()["last_index"]
    await_materialized(tmp_path, last, "joins-b")
    await_true(
        lambda: service.get("n1", "/v1/logs/joins-b/cursors/__entries").json().get("index") == last + 1
    )
    assert indexes(config, "joins-b") == 1
    assert service.call("DELETE", "n1", "/v1/logs/joins-b").status_code == 202
    await_true(lambda: "joins-b" not in reported(config))
    last = service.append("n1", "v", log="joins-a").json()["last_index"]
    await_materialized(tmp_path, last, "joins-a")
    assert indexes(config, "joins-a") == 12
    assert "joins-other: " in (failed := capsys.readouterr().err)
    assert "; the other logs continue" in failed
    assert indexes(config, "joins-other") == 1


def test_a_batch_of_too_many_bytes_is_cut_and_the_rest_follows_at_once(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_jobs.materialize.entries.SMALL_BATCH_BYTES", 1_000)
    monkeypatch.setattr("spark_jobs.source.reading.FEW_ROWS", 1)
    monkeypatch.setattr("storage.format.records.ROWS_TOGETHER", 1)
    endpoint = ",".join(replica.url for replica in replicas)
    config = MaterializeConfig(endpoint=endpoint, tables=tmp_path, available_now=True)
    materialize(config, spark=no_spark())
    files = read_snapshot(f"{tmp_path}/default/entries").files
    assert len(files) > 3
    assert sum(file.rows for file in files) == 100
    ranges = [(file.first_index, file.last_index) for file in files]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))


def test_ends_are_asked_for_when_they_are_wanted(replicas: list[FakeReplica], log: FakeLog) -> None:
    poller = LogEndsPoller([replica.url for replica in replicas], None, threading.Event(), on_demand=True)
    poller.start()
    try:
        await_true(lambda: poller.ends("default") is not None)
        for _ in range(3):
            log.append_many(5)
            poller.ask(60.0)
            assert {ends.next_index for _, at in poller._seen.values() for ends in at.values()} == {
                log.next_index
            }
    finally:
        poller.stop()


def test_ends_are_those_of_the_newest_term_and_of_nodes_that_answer(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    first, second = replicas
    first.committed_index = 40
    second.event("start", {})
    changed = threading.Event()
    poller = LogEndsPoller([replica.url for replica in replicas], None, changed)
    poller.start()
    try:
        await_true(lambda: (ends := poller.ends("default")) is not None and ends.next_index == 102)
        assert changed.is_set()
        assert poller.ends("elsewhere") is None
        second.stop()
        await_true(lambda: (ends := poller.ends("default")) is not None and ends.next_index == 41)
    finally:
        poller.stop()
    journals = JournalPoller(LogReads([first.url], "", give_up_s=0.1), each_s=1.0)
    journals.ask()
    assert journals.of("default") == {"n1": 0}
    second.start(second.port)
    journals.ask()
    assert journals.of("default") == {"n1": 0, "n2": 1}
