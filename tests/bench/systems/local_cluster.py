"""A cluster of real processes for a benchmark: `commitlog up`, its first line, and its end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

START_TIMEOUT_S = 60


@contextlib.contextmanager
def running_cluster(nodes: int, port: int, *, spark: bool = False) -> Iterator[tuple[Path, list[str]]]:
    """Start `nodes` nodes, and the Spark job if so; give their folder and base URLs; end them by SIGTERM."""
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        command = [sys.executable, "-m", "app.cli.main", "up", "--nodes", str(nodes), "--data", folder]
        command += ["--port", str(port), "--spark" if spark else "--no-spark"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            json.loads(process.stdout.readline())
            yield Path(folder), [f"http://127.0.0.1:{port + node}" for node in range(nodes)]
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def pid_of(folder: Path, node: str) -> int:
    return int((folder / node / "pid").read_text())


def kill_node(folder: Path, node: str) -> None:
    os.kill(pid_of(folder, node), signal.SIGKILL)


def print_figure(**figure: object) -> None:
    """One figure, one JSON line."""
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.stdout.flush()
