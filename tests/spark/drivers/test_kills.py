"""Each index is in `entries` once though the whole driver, JVM and all, is killed while its tasks write.

test_steps.py kills drivers without a JVM at each of their own steps; `make chaos` kills whole ones.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.run import materialize
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeReplica
from tests.spark.source.looks import DATA, await_true
from tests.spark.typed.law import rows_of


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path / "tables", available_now=True)


Driver = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def driver(config: MaterializeConfig) -> Iterator[Driver]:
    """Starts a materializer as a process, with a process group of its own."""
    started: list[subprocess.Popen[bytes]] = []

    def start(point: str, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.spark.drivers.driver_to_kill", point]
        command += ["--endpoint", config.endpoint, "--tables", str(config.tables), *more]
        process = subprocess.Popen(command, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(600)  # a driver with a JVM of its own
def test_a_driver_killed_between_two_files_leaves_each_record_once(
    config: MaterializeConfig, replicas: list[FakeReplica], driver: Driver
) -> None:
    """A part of the first micro-batch is in a file, and a task waits for the rest."""
    for replica in replicas:
        replica.stall_at = 50
    killed = driver("by-tasks", "--max-records", "102", "--max-records-per-partition", "51")
    entries = config.tables / "default" / "entries"
    await_true(
        lambda: any(replica.stalled.is_set() for replica in replicas) and any(entries.glob("*.parquet"))
    )
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    for replica in replicas:
        replica.stall_at = None
        replica.resume.set()
    assert list(rows_of(entries)) == []
    materialize(config, spark=no_spark())
    assert sorted(row["index"] for row in rows_of(entries)) == DATA
