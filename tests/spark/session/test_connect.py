"""The same jobs over Spark Connect: the driver holds no Spark, the server calls what we send it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from app.client import CommitlogClient
from app.demo.flights import read_flights
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER
from spark_jobs.session.spark_session import launch_settings, with_extra
from spark_jobs.tables.table import read_table
from spark_jobs.tables.transforms import index_check
from tests.spark.fast import FAST_SETTINGS
from tests.spark.session.standalone import connect_server, write_conf
from tests.support.cluster import Cluster

LOG, COPY = "connected", "from-connected"
RECORDS = 300
TIMEOUT_S = 100.0
ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "notebooks" / "01_append_and_read.py"


@dataclass(frozen=True)
class Server:
    folder: Path
    conf: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("connect")
    settings = with_extra(launch_settings(DEFAULT_JARS_FOLDER, is_local=True), FAST_SETTINGS)
    with connect_server(folder, settings) as url:
        places = {"tables": "tables", "checkpoints": "checkpoints"}
        yield Server(folder, write_conf(folder / "spark.toml", remote=url, locations=places))


def run(server: Server, *command: str) -> str:
    """Return the output of a program that runs to its end.

    Spark 4.2's server may wait permanently for a micro-batch that its Python process has ended (SPARK-56586):
    then this starts the job again, as a user would, once.
    """

    def ended_program() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", *command],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            cwd=server.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    try:
        ended = ended_program()
    except subprocess.TimeoutExpired:
        ended = ended_program()
    log = (server.folder / "connect.log").read_text()[-6_000:]
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}\n{log}"
    return ended.stdout + ended.stderr


def test_job_source_sink_and_notebook_work_through_a_server_and_the_job_goes_on_where_it_was(
    spark: SparkSession, service: Cluster, server: Server
) -> None:
    flights = list(read_flights(2 * RECORDS))
    endpoint = service.url("n1")
    job = ["spark_jobs.run", "--endpoint", endpoint, "--log", LOG, "--available-now", "--conf"]
    with CommitlogClient([endpoint], log=LOG) as client:
        client.append(flights[:RECORDS])
        places = [LOG, COPY, str(server.folder / "staging"), str(service.folder / "n1")]
        told = json.loads(
            run(
                server, "tests.spark.session.cluster_driver", str(server.conf), endpoint, *places
            ).splitlines()[-1]
        )
        assert told["filled"]["logs"][LOG]["entries_rows"] == len(told["indexes"]) == RECORDS
        assert told["pid"] not in told["pids"]
        client.append(flights[RECORDS:])
    assert f"\ndone: {LOG}: {2 * RECORDS} entries" in run(server, *job, str(server.conf))
    values = service.values("n1", LOG)
    assert sorted(service.values("n1", COPY)) == sorted(values[:RECORDS])
    tables = server.folder / "tables" / LOG
    entries = read_table(spark, f"{tables}/entries").orderBy("index")
    assert [bytes(row["value"]).decode() for row in entries.collect()] == values
    assert index_check(entries).collect()[0]["doubles"] == 0
    for name in ("events", "watermarks", "epochs", "epoch_files"):
        assert not read_table(spark, f"{tables}/{name}").isEmpty()
    cursor = service.get("n1", f"/v1/logs/{LOG}/cursors/__entries").json()
    last = int(entries.agg({"index": "max"}).collect()[0][0])
    assert (cursor["fence"], cursor["index"]) == (True, last + 1)
    page = server.folder / "page.html"
    shown = [str(NOTEBOOK), "--conf", str(server.conf), "--output", str(page)]
    widgets = [f"endpoint={endpoint}", f"log={LOG}", f"tables={server.folder / 'tables'}"]
    run(server, "spark_jobs.notebook", *shown, *widgets)
    assert "each record of the log once" in page.read_text()
