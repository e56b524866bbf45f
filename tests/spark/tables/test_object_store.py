"""Tables in an S3 server: two drivers race, one is killed, and each index is in the table once.

`make s3` fetches the server (versitygw) and the jars of s3a into .cache/s3, and runs this. Without them it is
skipped.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.spark.conftest import endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica

TOOLS = Path(os.environ.get("COMMITLOG_S3_TOOLS", ".cache/s3")).resolve()
SERVER, JARS = TOOLS / "bin" / "versitygw", TOOLS / "jars"
KEY, SECRET, BUCKET = "test", "test-secret", "tables"
ROWS = 30

pytestmark = [
    pytest.mark.skipif(
        not SERVER.is_file() or not JARS.is_dir(), reason="the S3 server is not there: run `make s3`"
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[str]:
    """Spark's settings for a server that runs during the test, as JSON."""
    (tmp_path / "root" / BUCKET).mkdir(parents=True)
    (tmp_path / "meta").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(SERVER), "--access", KEY, "--secret", SECRET, "--port", f"127.0.0.1:{port}", "--quiet"]
    command += ["posix", "--sidecar", str(tmp_path / "meta"), str(tmp_path / "root")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    s3a = {
        "endpoint": f"http://127.0.0.1:{port}",
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": KEY,
        "secret.key": SECRET,
    }
    jars = os.pathsep.join(map(str, sorted(JARS.glob("*.jar"))))
    named = {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items()}
    yield json.dumps({"spark.driver.extraClassPath": jars, **named})
    server.terminate()
    server.wait()
    shutil.rmtree(tmp_path / "root")


class Driver:
    """A process that writes to tables (s3_driver.py, s3_typed_driver.py)."""

    def __init__(self, program: str, *arguments: str) -> None:
        command = [sys.executable, "-m", f"tests.spark.tables.{program}", *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def line(self) -> dict[str, object]:
        assert self.process.stdout is not None
        found: dict[str, object] = json.loads(self.process.stdout.readline())
        return found

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> list[dict[str, object]]:
        assert self.process.stdout is not None
        lines = [json.loads(line) for line in self.process.stdout if line.startswith("{")]
        assert self.process.wait() == 0
        return lines


@contextmanager
def two_of_which_one_is_killed(
    started: Callable[[str], Driver],
) -> Iterator[tuple[dict[str, object], list[Driver]]]:
    """Let two drivers race, kill one after its first line, and start a third. Give that line, and the drivers
    that go on. started(name): a new driver."""
    drivers = [started(name) for name in ("one", "two")]
    try:
        for driver in drivers:
            assert "ready" in driver.line()
        for driver in drivers:
            driver.begin()
        line = drivers[0].line()
        drivers[0].kill()
        drivers.append(started("three"))
        assert "ready" in drivers[2].line()
        drivers[2].begin()
        yield line, drivers[1:]
    finally:
        for driver in drivers:
            driver.kill()


def test_two_drivers_of_which_one_is_killed_add_each_index_once(settings: str) -> None:
    def started(name: str) -> Driver:
        return Driver("s3_driver", name, f"s3a://{BUCKET}/log/entries", str(ROWS), settings)

    with two_of_which_one_is_killed(started) as (_, drivers):  # the first one has added rows, or has seen all
        for driver in drivers:
            assert driver.end()[-1] == {"indexes": list(range(ROWS))}


@pytest.fixture
def log() -> FakeLog:
    """Keys that come again, dead letters, a tombstone of a key; the last records change no typed table."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema("id INT NOT NULL")
    for number in range(4):
        log.append(b'{"id":%d}' % number, key=b"%d" % (number % 3))
        log.append(b"no JSON", key=b"1")
    log.append(None, key=b"2")
    log.append(b"no JSON", None)
    return log


def test_two_drivers_fill_typed_tables_and_one_is_killed(
    settings: str, log: FakeLog, replicas: list[FakeReplica]
) -> None:
    def started(name: str) -> Driver:
        until = str(log.next_index)
        return Driver("s3_typed_driver", name, f"s3a://{BUCKET}/typed", endpoints(replicas), until, settings)

    with two_of_which_one_is_killed(started) as (line, drivers):
        assert "step" in line
        data = [each for each in log.records if each["type"] == "data"]
        typed = [each["index"] for each in data if (each["value"] or b"").startswith(b"{")]
        letters = [each["index"] for each in data if each["value"] == b"no JSON"]
        newest = {"0": typed[3], "1": typed[1]}  # the tombstone is of the key 2
        for driver in drivers:
            found = {"records": typed, "letters": letters, "current": newest, "breaches": []}
            assert driver.end()[-1] == found
