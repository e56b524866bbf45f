"""The Spark job of a benchmark as a process of its own, which ends with the block that uses it."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

STOP_S = 60.0


@contextlib.contextmanager
def running_job(
    folder: Path,
    url: str,
    tables: Path,
    options: Sequence[str],
    program: Sequence[str] = ("-m", "spark_jobs.run"),
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job; its output is in FOLDER/job.log. It has ended after the block, also after an error or
    SIGTERM in it. program: arguments of Python."""
    command = [sys.executable, *program, "--endpoint", url, "--tables", str(tables), *options]
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with (folder / "job.log").open("wb") as lines:
        job = subprocess.Popen(command, stdout=lines, stderr=lines)
    try:
        yield job
    finally:
        job.terminate()
        try:
            job.wait(STOP_S)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
        signal.signal(signal.SIGTERM, before)


def report(folder: Path) -> str:
    """Return the end of the job's output."""
    return (folder / "job.log").read_text()[-2_000:]
