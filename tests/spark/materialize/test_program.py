"""`python -m spark_jobs.run`: its output and its exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.progress import LogProgress, Progress, ProgressFile
from spark_jobs.run import ProgressLines, _poll
from tests.spark.conftest import endpoints
from tests.spark.session.standalone import write_conf
from tests.spark.source.log_server import FakeReplica
from tests.support.cluster import eventually


@pytest.fixture
def config(tmp_path: Path, replicas: list[FakeReplica]) -> MaterializeConfig:
    return MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path / "tables")


def test_a_job_reports_while_a_catalog_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose catalog needs seconds for each table was shown as one that was probably killed."""
    file, written = ProgressFile(tmp_path / "progress.json"), []
    monkeypatch.setattr(ProgressFile, "_replace", lambda _, text: written.append(json.loads(text)["state"]))

    def refresh(logs: Iterable[str]) -> None:
        for _ in logs:
            file.written_at_s -= 60

    logs = SimpleNamespace(
        progress=lambda: dict.fromkeys("abc", LogProgress(1, 0, 0, 0, 0, 1, 0)), poll=lambda: None, done=True
    )
    shared = SimpleNamespace(journals=SimpleNamespace(ask_when_due=lambda _: None), workers=None, query=None)
    named, event = SimpleNamespace(refresh=refresh), threading.Event()
    _poll(cast(Any, logs), cast(Any, shared), cast(Any, named), event, event, file)
    assert written == ["running"] * 3


def test_the_program_follows_the_log_and_ends_cleanly_on_sigterm(
    config: MaterializeConfig, tmp_path: Path
) -> None:
    conf = write_conf(tmp_path / "spark.toml")
    command = [sys.executable, "-m", "spark_jobs.run", "--conf", str(conf), "--endpoint", config.endpoint]
    command += ["--tables", str(config.tables), "--trigger", "200 milliseconds"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "100 entries" in line)
        batch = eventually(lambda: batch_without_lag(config), what="the micro-batch", timeout_s=60)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    # unknown while the replicas, in this process, have not answered for some seconds
    at = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
    assert re.match(at + r"running: default: 100 entries through index 101, lag (0|unknown), ", line)
    assert re.match(at + "stopped: default: 100 entries", out.splitlines()[-1])
    assert errors == ""
    assert batch["records"] == 100
    assert batch["duration_ms"]["triggerExecution"] >= batch["duration_ms"]["addBatch"] > 0
    assert sorted(path.name for path in config.tables.iterdir()) == ["default", "progress.json"]


@pytest.mark.parametrize(
    ("job", "number", "code"),
    [
        ("spark_jobs.run", signal.SIGTERM, 0),
        ("spark_jobs.run", signal.SIGINT, 0),
        ("spark_jobs.run --available-now", signal.SIGINT, 130),
        ("spark_jobs.run --available-now", signal.SIGTERM, 143),
        ("spark_jobs.upkeep", signal.SIGTERM, 143),
        ("spark_jobs.upkeep --every 60", signal.SIGTERM, 0),
        ("spark_jobs.verify", signal.SIGINT, 130),
        ("spark_jobs.replay", signal.SIGINT, 130),
        ("spark_jobs.notebook", signal.SIGINT, 130),
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
    notebook = tmp_path / "empty.py"
    notebook.write_text("# Databricks notebook source\n")
    endpoint, tables = ["--endpoint", config.endpoint], ["--tables", str(config.tables)]
    arguments = {
        "spark_jobs.upkeep": tables,
        "spark_jobs.upkeep --every 60": tables,
        "spark_jobs.verify": endpoint,
        "spark_jobs.notebook": [str(notebook), "--output", str(tmp_path / "page.html")],
    }
    command = [sys.executable, "-m", *job.split(), *arguments.get(job, endpoint + tables)]
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
    progress = "   0.0 s  Spark starts\n" if job == "spark_jobs.notebook" else ""
    assert (out, errors, process.returncode) == ("", f"{progress}stopped by {number.name}\n", code)


def test_a_line_of_the_progress_names_the_logs_that_have_changed(capsys: pytest.CaptureFixture[str]) -> None:
    """A job may follow thousands of logs, and runs for months: its lines are a log file."""

    def entries(count: int) -> LogProgress:
        return LogProgress(count, count - 1, count - 1, 0, 0, 1, 0)

    show = ProgressLines()
    counts = [{"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 2, "c": 1}, {"a": 1, "b": 2, "c": 1}]
    for each in counts:
        show(Progress("running", 0, {name: entries(count) for name, count in each.items()}, 7.0))
    first, second, third = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ running: "
        r"b: 2 entries through index 1, lag 0, 0 events, 1 epochs; 2 other logs as before; 7 records/s",
        second,
    )
    assert all(len(re.findall(r"\b[abc]: ", line)) == 3 for line in (first, third))
    assert str(Progress("running", 0, {}, 0.0)) == "running: no logs yet; 0 records/s"


def test_a_line_of_the_progress_names_a_few_of_many_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """The failed logs and those with the largest lag, in the order of the job; numbers for the others."""
    logs = {f"orders-{number:03d}": LogProgress(20, 19, 19, 0, 0, 1, 0) for number in range(200)}
    logs["orders-070"] = LogProgress(20, 19, 19, 0, 0, 1, 0, error="no such log")
    logs["orders-150"] = LogProgress(15, 14, 19, 0, 0, 1, 0)
    logs["orders-151"] = LogProgress(10, 9, None, 0, 0, 1, 0)
    ProgressLines()(Progress("running", 0, logs, 7.0))
    [line] = capsys.readouterr().out.splitlines()
    assert re.findall(r"(orders-\d+): ", line) == [
        *("orders-000", "orders-001", "orders-002", "orders-003", "orders-004"),
        *("orders-070", "orders-150", "orders-151"),
    ]
    assert line.endswith("; 192 more logs: 3,840 entries; 7 records/s")


def test_a_job_of_which_one_log_failed_prints_how_far_the_others_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The reason is on standard error. Without this line the last one on standard output is an old one."""
    done, failed = LogProgress(3, 2, 2, 0, 0, 1, 0), LogProgress(0, -1, None, 0, 0, 0, 0, error="no such log")
    show = ProgressLines()
    show(Progress("running", 0, {"a": LogProgress(0, -1, 2, 0, 0, 0, 0), "b": failed}, 0.0))
    show(Progress("failed", 0, {"a": done, "b": failed}, 0.0))
    _, last = capsys.readouterr().out.splitlines()
    assert "failed: a: 3 entries through index 2, lag 0" in last
    for alone in (done, failed):
        ProgressLines()(Progress("failed", 0, {"a": alone}, 0.0))
    assert capsys.readouterr().out == ""


def test_the_progress_is_reported_less_often_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    reported: list[float] = []
    file = ProgressFile(tmp_path / "progress.json", lambda _: reported.append(now_s - 1_000))
    for second in range(181):
        now_s = 1_000.0 + second
        file.write("running", {"a": LogProgress(second, second - 1, second - 1, 0, 0, 1, 0)})
    assert reported == [0.0, *range(2, 60, 2), 88, 118, 148, 178]


def test_the_rate_of_the_progress_file_is_that_of_the_last_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs read it: it does not wait for the next line, which is that of half a minute."""
    now_s = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    reported: list[float] = []
    file = ProgressFile(tmp_path / "progress.json", lambda progress: reported.append(progress.records_per_s))
    rates: list[float] = []
    for second in range(119):
        now_s = 1_000.0 + second
        rows = second if second < 100 else 100 + 10 * (second - 100)
        file.write("running", {"a": LogProgress(rows, rows - 1, rows - 1, 0, 0, 1, 0)})
        rates.append(json.loads(file.path.read_text())["records_per_s"])
    assert (rates[99], rates[104]) == (1.0, 10.0)
    assert reported[-1] == (280 - 88) / 30


def test_rows_that_a_user_deletes_do_not_make_a_rate_negative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One deleted row in two seconds was written as -0 records/s."""
    now_s = 1_000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    lines: list[str] = []
    file = ProgressFile(tmp_path / "progress.json", lambda progress: lines.append(str(progress)))
    for second, rows in enumerate((100, 100, 99, 99, 99)):
        now_s = 1_000.0 + second
        file.write("running", {"a": LogProgress(rows, 99, 99, 0, 0, 1, 0)})
    file.write("stopped", {}, force=True)
    assert [line.rpartition("; ")[2] for line in lines] == ["0 records/s"] * 3
    assert json.loads(file.path.read_text())["records_per_s"] == 0


def test_two_jobs_with_one_progress_file_replace_it_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second job replaces the file while the first one is about to."""
    first, second = (ProgressFile(tmp_path / "progress.json") for _ in range(2))
    replace = Path.replace

    def replace_after_the_other(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        second.write("stopped", {}, force=True)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_after_the_other)
    first.write("running", {}, force=True)
    assert json.loads(first.path.read_text())["state"] == "running"
    assert capsys.readouterr().err == ""


WORKING = """# Databricks notebook source
import time
from pathlib import Path
from pyspark.sql import functions as F

def write(rows, number):
    rows.count()
    Path("STARTED").touch()
    spark.range(1).select(F.udf(lambda _: time.sleep(60))("id")).collect()

stream = spark.readStream.format("rate").load().writeStream.foreachBatch(write).start()
stream.awaitTermination()
"""


def test_ctrl_c_in_a_notebook_that_works_ends_with_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    """A Python worker, a stream, and a thread that Java has called are at work."""
    started, notebook, temporary = (tmp_path / name for name in ("started", "working.py", "temporary"))
    notebook.write_text(WORKING.replace("STARTED", str(started)))
    temporary.mkdir()
    page = str(tmp_path / "page.html")
    with subprocess.Popen(
        [sys.executable, "-m", "spark_jobs.notebook", str(notebook), "--output", page],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:
        eventually(started.exists, what="a micro-batch runs", timeout_s=120)
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    _, cell, *rest = errors.splitlines()
    assert cell.endswith("cell 1 of 1: working")
    assert (out, rest, process.returncode) == ("", ["stopped by SIGINT"], 130)
    assert list(temporary.iterdir()) == []


def batch_without_lag(config: MaterializeConfig) -> dict[str, Any] | None:
    """Return the newest micro-batch, once the log is known to have no more records."""
    log = json.loads(config.progress_file.read_text())["logs"]["default"]
    found: dict[str, Any] | None = log["last_batch"]
    return found if log["lag_records"] == 0 else None
