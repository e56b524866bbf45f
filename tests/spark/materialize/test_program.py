"""`python -m spark_jobs.run`: its output and its exit codes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.materialize.config import MaterializeConfig
from tests.spark.conftest import endpoints
from tests.spark.session.standalone import write_conf
from tests.spark.source.log_server import FakeReplica
from tests.support.cluster import eventually


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path / "tables")


def test_the_program_follows_the_log_and_ends_cleanly_on_sigterm(
    config: MaterializeConfig, tmp_path: Path
) -> None:
    conf = write_conf(tmp_path / "spark.toml")
    command = [sys.executable, "-m", "spark_jobs.run", "--conf", str(conf), "--endpoint", config.endpoint]
    command += ["--tables", str(config.tables), "--trigger", "200 milliseconds"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "100 entries" in line)
        batch = eventually(lambda: last_batch(config), what="the micro-batch", timeout_s=60)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert line.startswith("running: default: 100 entries through index 101, lag 0")
    assert out.splitlines()[-1].startswith("stopped: default: 100 entries")
    assert errors == ""
    assert batch["records"] == 100
    assert batch["duration_ms"]["triggerExecution"] >= batch["duration_ms"]["addBatch"] > 0
    assert sorted(path.name for path in config.tables.iterdir()) == ["default", "progress.json"]


@pytest.mark.parametrize(
    ("job", "number", "code"),
    [
        ("spark_jobs.run", signal.SIGTERM, 0),
        ("spark_jobs.run", signal.SIGINT, 0),
        ("spark_jobs.upkeep", signal.SIGTERM, 0),
        ("spark_jobs.verify", signal.SIGINT, 130),
        ("spark_jobs.replay", signal.SIGINT, 130),
    ],
)
def test_a_signal_while_spark_starts_ends_a_job_with_one_sentence(
    config: MaterializeConfig, tmp_path: Path, job: str, number: signal.Signals, code: int
) -> None:
    """The JVM gets the signal too, as from a terminal or systemd, and ends with its standard input."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text("#!/bin/sh\ntouch $SPARK_HOME/started\nexec cat > /dev/null\n")
    submit.chmod(0o755)
    command = [sys.executable, "-m", job]
    if job != "spark_jobs.upkeep":
        command += ["--endpoint", config.endpoint]
    if job != "spark_jobs.verify":
        command += ["--tables", str(config.tables)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "SPARK_HOME": str(tmp_path)},
    ) as process:
        eventually((tmp_path / "started").exists, what="the JVM is started", timeout_s=60)
        os.killpg(process.pid, number)
        out, errors = process.communicate(timeout=30)
    assert (out, errors, process.returncode) == ("", f"stopped by {number.name}\n", code)


def last_batch(config: MaterializeConfig) -> dict[str, Any] | None:
    document = json.loads(config.progress_file.read_text())
    found: dict[str, Any] | None = document["logs"]["default"]["last_batch"]
    return found
