"""Each index is in `entries` once though the whole driver, JVM and all, is killed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.run import materialize
from spark_jobs.tables.table import read_table
from tests.spark.conftest import endpoints
from tests.spark.materialize.kill_points import SAMPLED
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import DATA, DRIVER_TIMEOUT_S, await_true, indexes


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path / "tables", available_now=True)


Driver = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def driver(config: MaterializeConfig) -> Iterator[Driver]:
    """Starts a materializer as a process, with a process group of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(point: str, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.materialize.driver_to_kill", point]
        command += ["--endpoint", config.endpoint, "--tables", str(config.tables), *more]
        process = subprocess.Popen(command, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(600)  # three drivers, each with a JVM of its own
def test_a_driver_killed_in_its_work_leaves_each_record_and_event_once(
    spark: SparkSession,
    config: MaterializeConfig,
    log: FakeLog,
    replicas: list[FakeReplica],
    driver: Driver,
) -> None:
    """One after the other on one table, then one that lives; `make chaos` does it to a real cluster."""
    kill_in_mid_write(driver, config, replicas)
    assert indexes(spark, config.tables) == []
    standing = {"role": "leader", "begin_index": 0, "end_index": 101, "committed_index": 101}
    reached = 0
    for count, point in enumerate(SAMPLED, 1):
        replicas[0].event("watermarks", {**standing, "peers": {"n1": 101, "n2": count}})
        killed = driver(point, "--max-records", "10", "--trigger", "200 milliseconds")
        assert killed.wait(DRIVER_TIMEOUT_S) == -signal.SIGKILL, point
        found = indexes(spark, config.tables)
        assert found == DATA[: len(found)], point
        assert len(found) >= reached, point
        if point == "committed":
            assert len(found) > reached, point
        reached = len(found)

    def reported(table: str) -> list[int]:
        rows = read_table(spark, f"{config.tables}/default/{table}").select("seq").collect()
        return sorted(row["seq"] for row in rows)

    last = len(SAMPLED) - 1
    assert reported("watermarks")[-2:] == [last, last]  # a row a peer
    assert last not in reported("events")
    log.append_many(10)
    materialize(config, spark=spark)
    assert indexes(spark, config.tables) == [*DATA, *range(102, 112)]
    assert reported("events") == list(range(last + 1))
    assert reported("watermarks") == sorted(2 * reported("events"))


def kill_in_mid_write(driver: Driver, config: MaterializeConfig, replicas: list[FakeReplica]) -> None:
    """Kill a driver that has a part of its first micro-batch in a file, and waits for the rest."""
    for replica in replicas:
        replica.stall_at = 50
    killed = driver("by-spark", "--max-records", "102", "--max-records-per-partition", "51")
    entries = config.tables / "default" / "entries"
    await_true(
        lambda: any(replica.stalled.is_set() for replica in replicas) and any(entries.glob("*.parquet"))
    )
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    for replica in replicas:
        replica.stall_at = None
        replica.resume.set()
