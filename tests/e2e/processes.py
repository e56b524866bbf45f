"""The product as its user has it: the command line in processes of its own, and what it leaves behind."""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from app.setup.checks import port_is_free
from tests.support.quick_java import QUICKLY

TIMEOUT_S = 60.0


def commitlog(
    *arguments: str, timeout_s: float = TIMEOUT_S, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. A Java that it starts lives for some minutes at most."""
    return subprocess.run(
        [sys.executable, "-m", "app.cli.main", *arguments],
        capture_output=True,
        text=True,
        input=stdin,
        timeout=timeout_s,
        check=False,
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICKLY},
    )


def free_port(nodes: int = 3) -> int:
    """A port from which a cluster of `nodes` finds all that it needs free. Other processes of tests ask for
    one at the same time."""
    ports, needed = range(20_101, 29_000, 50), (0, 1_000, 2_000)  # REST, the other nodes, slaves
    for port in random.SystemRandom().sample(ports, len(ports)):
        if all(port_is_free(port + distance + node) for distance in needed for node in range(nodes)):
            return port
    raise AssertionError("no free ports")


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that name `folder`."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.05)


@dataclass
class Up:
    """A running `commitlog up`."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    folder: Path

    @property
    def endpoint(self) -> str:
        return ",".join(self.ready["endpoints"])

    def pid(self, node: str) -> int:
        return int((self.folder / node / "pid").read_text())


@contextmanager
def up(folder: Path, nodes: int = 3, *, spark: bool = False) -> Iterator[Up]:
    """`commitlog up` for the length of a `with`; ended by SIGTERM unless the test did so."""
    command = [sys.executable, "-m", "app.cli.main", "up", "--nodes", str(nodes), "--data", str(folder)]
    command += ["--port", str(free_port(nodes)), "--spark" if spark else "--no-spark"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAVA_TOOL_OPTIONS": QUICKLY},
    ) as process:
        assert process.stdout is not None
        try:
            yield Up(process, json.loads(process.stdout.readline()), folder)
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)
