"""The same jobs over Spark Connect: the driver holds no Spark, the server calls what we send it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.client import CommitlogClient
from app.demo.flights import read_flights
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER
from spark_jobs.session.spark_session import launch_settings, with_extra
from tests.spark.fast import FAST_SETTINGS
from tests.spark.session.standalone import connect_server, write_conf
from tests.spark.typed.law import rows_of
from tests.support.cluster import Cluster

LOG, COPY, PIPED = "connected", "from-connected", "piped"
RECORDS = 300
TIMEOUT_S = 100.0
ROOT = Path(__file__).parents[3]
NOTEBOOK = ROOT / "notebooks" / "01_append_and_read.py"
PIPELINE = ROOT / "notebooks" / "pipeline"


@dataclass(frozen=True)
class Server:
    folder: Path
    conf: Path
    url: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("connect")
    own = {**FAST_SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    settings = with_extra(launch_settings(DEFAULT_JARS_FOLDER, is_local=True), own)
    with connect_server(folder, settings) as url:
        places = {"tables": "tables", "checkpoints": "checkpoints"}
        yield Server(folder, write_conf(folder / "spark.toml", remote=url, locations=places), url)


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


def test_job_source_sink_and_notebook_work_through_a_server_and_the_job_continues_where_it_was(
    service: Cluster, server: Server
) -> None:
    flights = list(read_flights(2 * RECORDS))
    endpoint = service.url("n1")
    job = ["spark_jobs.run", "--endpoint", endpoint, "--log", LOG, "--available-now", "--conf"]
    with CommitlogClient([endpoint], log=LOG) as client:
        client.append(flights[:RECORDS])
        places = [LOG, COPY, str(server.folder / "staging"), str(service.folder / "n1")]
        reported = json.loads(
            run(
                server, "tests.spark.session.cluster_driver", str(server.conf), endpoint, *places
            ).splitlines()[-1]
        )
        assert reported["filled"]["logs"][LOG]["entries_rows"] == len(reported["indexes"]) == RECORDS
        assert reported["pid"] not in reported["pids"]
        client.append(flights[RECORDS:])
    assert f" done: {LOG}: {2 * RECORDS} entries" in run(server, *job, str(server.conf))
    values = service.values("n1", LOG)
    assert sorted(service.values("n1", COPY)) == sorted(values[:RECORDS])
    tables = server.folder / "tables" / LOG
    rows = sorted((row["index"], row["value"].decode()) for row in rows_of(tables / "entries"))
    assert [value for _, value in rows] == values
    assert len({index for index, _ in rows}) == len(rows)
    for name in ("events", "watermarks", "epochs", "epoch_files"):
        assert any(rows_of(tables / name))
    cursor = service.get("n1", f"/v1/logs/{LOG}/cursors/__entries").json()
    assert (cursor["fence"], cursor["index"]) == (True, rows[-1][0] + 1)
    page = server.folder / "page.html"
    shown = [str(NOTEBOOK), "--conf", str(server.conf), "--output", str(page)]
    widgets = [f"endpoint={endpoint}", f"log={LOG}", f"tables={server.folder / 'tables'}"]
    run(server, "spark_jobs.notebook", *shown, *widgets)
    assert "each record of the log once" in page.read_text()


def test_the_declarative_pipeline_makes_its_tables(service: Cluster, server: Server) -> None:
    """Spark 4.2's program ends with code 1 after a run with a Python source: it does not know one of the last
    messages of the server. So the events of the run and its tables decide."""
    endpoint = service.url("n1")
    with CommitlogClient([endpoint], log=PIPED) as client:
        client.append([*read_flights(RECORDS), "no flight"])
    folder = server.folder / "pipeline"
    folder.mkdir(exist_ok=True)
    spec = (PIPELINE / "spark-pipeline.yml").read_text()
    for name, own in (
        ("http://127.0.0.1:8101", endpoint),
        ("log: default", f"log: {PIPED}"),
        ("file:///tmp/commitlog-pipeline", f"file://{folder}/storage"),
    ):
        assert name in spec
        spec = spec.replace(name, own)
    (folder / "spark-pipeline.yml").write_text(spec)
    (folder / "flights.py").write_text((PIPELINE / "flights.py").read_text())
    ended = subprocess.run(
        [sys.executable, "-m", "pyspark.pipelines.cli", "run"],
        capture_output=True,
        text=True,
        timeout=2 * TIMEOUT_S,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_REMOTE": server.url},
    )
    assert "Run is COMPLETED" in ended.stdout, f"{ended.stdout}\n{ended.stderr}"
    tables = server.folder / "warehouse"
    bronze, silver, gold = (
        list(rows_of(tables / f"flights_{name}")) for name in ("bronze", "silver", "gold")
    )
    assert len({row["index"] for row in bronze}) == len(bronze) == RECORDS + 1
    assert len(silver) == RECORDS
    assert sum(row["flights"] for row in gold) == RECORDS
