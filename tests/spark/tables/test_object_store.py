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
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    """A process that appends to the table (s3_driver.py)."""

    def __init__(self, name: str, settings: str) -> None:
        table = f"s3a://{BUCKET}/log/entries"
        command = [sys.executable, "-m", "tests.spark.tables.s3_driver", name, table, str(ROWS), settings]
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


def test_two_drivers_of_which_one_is_killed_add_each_index_once(settings: str) -> None:
    drivers = [Driver(name, settings) for name in ("one", "two")]
    try:
        for driver in drivers:
            assert "ready" in driver.line()
        for driver in drivers:
            driver.begin()
        drivers[0].line()  # it has added rows, or has seen all of them
        drivers[0].kill()
        drivers.append(Driver("three", settings))
        assert "ready" in drivers[2].line()
        drivers[2].begin()
        for driver in drivers[1:]:
            assert driver.end()[-1] == {"indexes": list(range(ROWS))}
    finally:
        for driver in drivers:
            driver.kill()
