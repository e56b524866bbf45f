"""A small sample of the chaos families: no promise is broken, and nothing stays behind."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCALE = "0.02"
LIMIT_S = 120
SAMPLE = ("power-cut", "cut-master")  # tests/fault has partitions


def run_chaos(*arguments: str) -> list[dict[str, object]]:
    command = [sys.executable, "-m", "tests.chaos", "--scale", SCALE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    assert all(line["violations"] == [] for line in lines), (lines, done.stderr[-2_000:])
    return lines


@pytest.mark.rule("R-01", "R-07", "R-08", "R-11", "R-12", "A-11")
@pytest.mark.parametrize("family", SAMPLE)
def test_a_sample_of_a_family_finds_no_violation(family: str, tmp_path: Path) -> None:
    (line,) = run_chaos("--family", family, "--keep", str(tmp_path))
    assert line["counts"] or line["cannot_run"]
    named = [
        process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(cmdline(process))
    ]
    assert named == []


def cmdline(process: psutil.Process) -> list[str]:
    return process.info["cmdline"] or []


def test_a_family_that_cannot_run_reports_the_reason_and_has_not_passed() -> None:
    (line,) = run_chaos("--no-namespaces", "--family", "full-disk")
    assert line["cannot_run"]
    assert not line["passed"]
