"""Spark's own servers from pyspark's wheel, on this machine: a standalone cluster, and Spark Connect.

Each server is a process of its own, on a free port of 127.0.0.1, ended by its pid.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyspark

from spark_jobs.package import properties
from spark_jobs.session.java import find_java
from spark_jobs.session.settings import SPARK_NAMES
from spark_jobs.session.spark_home import spark_home
from tests.spark.fast import FAST_SETTINGS, JAVA_NAMES
from tests.support.cluster import eventually, free_ports
from tests.support.quick_java import QUICKLY

SPARK_HOME = spark_home() or Path(pyspark.__file__).parent
START_TIMEOUT_S = 90.0
JAVA_OPTIONS = ("-XX:+UseSerialGC", *QUICKLY.split(), "-Duser.timezone=UTC")


def write_conf(path: Path, *, locations: Mapping[str, object] | None = None, **session: object) -> Path:
    """A file like conf/spark.toml, for tables of a few rows."""
    elsewhere = {*SPARK_NAMES.values(), *(JAVA_NAMES if "remote" in session else ())}
    quick = {f'"{name}"': value for name, value in FAST_SETTINGS.items() if name not in elsewhere}
    sections = {"session": {"shuffle_partitions": 2, **session}, "locations": locations or {}, "conf": quick}
    lines = [
        f"[{title}]\n{''.join(f'{key} = {json.dumps(value)}{chr(10)}' for key, value in table.items())}"
        for title, table in sections.items()
    ]
    path.write_text("".join(lines))
    return path


def environment(**more: str) -> dict[str, str]:
    """Environment of a server without a folder of this checkout: workers have only what is sent."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    kept.pop("PYTHONPATH", None)
    own = {
        "JAVA_HOME": str(find_java().parent.parent),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",  # or a worker looks for a build of Spark
        "PYSPARK_PYTHON": sys.executable,
    }
    return {**kept, **own, **more}


@contextlib.contextmanager
def server(
    folder: Path, name: str, command: Sequence[str], environ: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process, its lines in FOLDER/NAME.log; it and what it has started are ended at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.log").open("wb") as lines:
        process = subprocess.Popen(
            command, stdout=lines, stderr=lines, env=environ, cwd=folder, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()  # a worker ends its executors
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def java(memory: str, main: str, *arguments: str) -> list[str]:
    """The command line of a class of Spark."""
    options = [f"-Xmx{memory}", *JAVA_OPTIONS, "-cp", str(SPARK_HOME / "jars" / "*")]
    return [str(find_java()), *options, main, *arguments]


def await_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    def listens() -> bool:
        assert process.poll() is None, f"it has ended:\n{log.read_text()}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually(listens, what=f"port {port}", timeout_s=START_TIMEOUT_S)


@contextlib.contextmanager
def standalone_cluster(folder: Path, workers: int = 2) -> Iterator[str]:
    """A master and workers of one core; the master's address. Executors share nothing with the driver but
    the machine."""
    port, ui = free_ports(2)
    address = f"spark://127.0.0.1:{port}"
    options = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui)]
    with contextlib.ExitStack() as stack:
        command = java("256m", "org.apache.spark.deploy.master.Master", *options)
        master = stack.enter_context(server(folder, "master", command, environment()))
        await_port(master, port, folder / "master.log")
        for number in range(1, workers + 1):
            work = folder / f"worker-{number}"
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            options += ["--work-dir", str(work), address]
            command = java("256m", "org.apache.spark.deploy.worker.Worker", *options)
            own = environment(SPARK_LOCAL_DIRS=str(work / "local"))
            stack.enter_context(server(folder, f"worker-{number}", command, own))
        for number in range(1, workers + 1):
            log = folder / f"worker-{number}.log"
            registered = lambda log=log: "Successfully registered with master" in log.read_text()  # noqa: E731
            eventually(registered, what=f"worker {number} is there", timeout_s=START_TIMEOUT_S)
        yield address


@contextlib.contextmanager
def connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """A server of Spark Connect on this machine, with Delta; its URL. settings: of its Spark."""
    (port,) = free_ports(1)
    own = {**settings, "spark.master": "local[2]", "spark.connect.grpc.binding.address": "127.0.0.1"}
    own |= {"spark.connect.grpc.binding.port": str(port), "spark.driver.memory": "1g"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spark.properties").write_text(properties(own))
    options = ["--properties-file", str(folder / "spark.properties")]
    main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    launcher = java("128m", "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit")
    printed = subprocess.run(
        [*launcher, *options, *main], env=environment(), check=True, capture_output=True, text=True
    )
    command = printed.stdout.partition("\0\n")[2].split("\0")[:-1]
    with server(folder, "connect", command, environment()) as process:
        await_port(process, port, folder / "connect.log")
        yield f"sc://127.0.0.1:{port}"
