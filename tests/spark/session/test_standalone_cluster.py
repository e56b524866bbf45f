"""The same jobs where executors are other processes: a standalone cluster, directly and by spark-submit."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_jobs.package import PROPERTIES_NAME, ZIP_NAME
from tests.spark.session.standalone import SPARK_HOME, environment, standalone_cluster, write_conf
from tests.spark.typed.law import rows_of
from tests.support.cluster import Cluster

LOG = "on-cluster"
TARGET = "from-cluster"
RECORDS = 300
JOB_TIMEOUT_S = 200.0


@dataclass(frozen=True)
class SparkCluster:
    """folder: of its processes and of the tests' tables. conf: how the jobs find it."""

    folder: Path
    conf: Path


@pytest.fixture(scope="module")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    folder = tmp_path_factory.mktemp("standalone")
    with standalone_cluster(folder) as address:
        memory = {"driver_memory": "512m", "executor_memory": "512m"}
        conf = write_conf(
            folder / "spark.toml",
            master=address,
            driver_host="127.0.0.1",
            locations={"tables": "tables"},
            **memory,
        )
        yield SparkCluster(folder, conf)


def run(command: list[str], folder: Path, environ: dict[str, str] | None = None) -> str:
    """The output of a program that ends well."""
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=JOB_TIMEOUT_S, cwd=folder, env=environ
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return ended.stdout


def append(service: Cluster, count: int) -> list[str]:
    """More records; all of the log's."""
    begin = len(service.values("n1", LOG))
    values = [f"record-{number}" for number in range(begin, begin + count)]
    assert service.append("n1", *values, log=LOG).status_code == 200
    return service.values("n1", LOG)


def check_tables(cluster: SparkCluster, values: list[str]) -> None:
    """The table has the values of the log, each index once, and the other tables are there."""
    tables = cluster.folder / "tables" / LOG
    rows = sorted((row["index"], row["value"].decode()) for row in rows_of(tables / "entries"))
    assert [value for _, value in rows] == values
    assert len({index for index, _ in rows}) == len(rows)
    for name in ("events", "epochs", "epoch_files"):
        assert any(rows_of(tables / name))


def test_job_source_and_sink_work_where_executors_are_other_processes(
    service: Cluster, spark_cluster: SparkCluster
) -> None:
    """The package is sent to them; the log's files are read in place by processes that are not the driver."""
    values = append(service, RECORDS)
    staging = spark_cluster.folder / "staging"
    command = [
        sys.executable,
        "-m",
        "tests.spark.session.cluster_driver",
        str(spark_cluster.conf),
        service.url("n1"),
    ]
    command += [LOG, TARGET, str(staging), str(service.folder / "n1")]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    reported = json.loads(run(command, spark_cluster.folder, environ).splitlines()[-1])
    assert (reported["filled"]["state"], reported["filled"]["logs"][LOG]["entries_rows"]) == ("done", RECORDS)
    check_tables(spark_cluster, values)
    assert len(reported["indexes"]) == len(set(reported["indexes"])) == RECORDS
    assert reported["pid"] not in reported["pids"]
    assert all("worker-" in folder for folder in reported["folders"])
    assert all(".zip/spark_jobs" in package for package in reported["packages"])
    assert sorted(service.values("n1", TARGET)) == sorted(values)
    assert not list(staging.iterdir())


def test_spark_submit_runs_the_job_with_the_package_as_an_archive(
    service: Cluster, spark_cluster: SparkCluster
) -> None:
    """Run the command line that `python -m spark_jobs.package` prints; the job continues."""
    values = append(service, 40)
    dist = spark_cluster.folder / "dist"
    command = [sys.executable, "-m", "spark_jobs.package", str(dist), "--conf", str(spark_cluster.conf)]
    line = shlex.split(run(command, spark_cluster.folder))
    assert line[1:3] == ["spark-submit", "--properties-file"]
    java_home, submit = line[0].removeprefix("JAVA_HOME="), line[1 : line.index("--endpoint")]
    assert submit[2:5] == [str(dist / PROPERTIES_NAME), "--py-files", str(dist / ZIP_NAME)]
    submit[0] = str(SPARK_HOME / "bin" / "spark-submit")
    job = ["--conf", str(spark_cluster.conf), "--endpoint", service.url("n1"), "--log", LOG]
    reported = run([*submit, *job, "--available-now"], spark_cluster.folder, environment(JAVA_HOME=java_home))
    assert f"done: {LOG}: {len(values)} entries" in reported.splitlines()[-1]
    check_tables(spark_cluster, values)
