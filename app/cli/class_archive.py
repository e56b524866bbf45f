"""Make the archive of the classes that Spark loads (spark_jobs/class_archive.py): `make archive`.

One run of the job itself makes it, of a log and a node of its own: what a job loads is in it, and no more.
"""

import argparse
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.cli.local_cluster import LocalCluster
from app.client import CommitlogClient
from spark_jobs.class_archive import PATTERN, QUIET, archive_path
from spark_jobs.jars import DEFAULT_JARS_FOLDER, JarsUnavailable, ensure_jars
from spark_jobs.java import JavaNotFound, find_java

TRAINING_TIMEOUT_S = 600.0
RECORDS = 100


class ArchiveUnavailable(RuntimeError):
    """It cannot be made: the run failed, or this Java takes no archive. The message says which."""


def make_archive(jars: Path = DEFAULT_JARS_FOLDER) -> Path:
    """Make the archive unless it is there. It takes a minute or less, and 200 MB.

    Those of another Java, or of other jars, go. Raises ArchiveUnavailable, JarsUnavailable, JavaNotFound.
    """
    ensure_jars(jars)
    target = archive_path(jars)
    if target.is_file():
        return target
    if subprocess.run([find_java(), "-Xshare:on", "-version"], capture_output=True).returncode != 0:
        raise ArchiveUnavailable(
            f"{find_java()} has no archive of its own classes: Spark starts without ours"
        )
    sys.stderr.write("the classes of Spark, kept for its next start: one run of the job, about a minute\n")
    with tempfile.TemporaryDirectory(dir=jars, prefix=".classes-") as folder:
        made = Path(folder) / target.name
        command = [sys.executable, "-m", "app.cli.class_archive"]
        command += ["--jars", str(jars), "--train", str(made)]
        try:  # Java writes at its end, which is after Python's: its output is open until then
            run = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TRAINING_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ArchiveUnavailable(f"the run took longer than {TRAINING_TIMEOUT_S:.0f} s") from error
        if run.returncode != 0 or not made.is_file():
            raise ArchiveUnavailable(f"no archive came of the run:\n{run.stdout[-2_000:]}")
        for other in jars.glob(PATTERN):
            other.unlink()
        made.replace(target)
    return target


def train(jars: Path, archive: Path) -> None:
    """Materialize a log of a few records; Java writes `archive` when it ends."""
    from spark_jobs.run import SETTINGS, MaterializeConfig, materialize
    from spark_jobs.session import DRIVER_JAVA, build_session
    from spark_jobs.tables import read_table

    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(Path(folder), nodes=1, port=_free_port()) as cluster,
    ):
        cluster.start()
        cluster.wait_ready()
        with CommitlogClient(cluster.urls) as client:
            client.append([f"record {number}" for number in range(RECORDS)])
        extra = {**SETTINGS, DRIVER_JAVA: f"-XX:ArchiveClassesAtExit={archive} {QUIET}"}
        spark = build_session("commitlog-classes", jars_folder=jars, extra=extra)
        config = MaterializeConfig(
            endpoint=",".join(cluster.urls), tables=Path(folder) / "tables", available_now=True
        )
        materialize(config, spark=spark)
        read_table(spark, f"{folder}/tables/default/entries").orderBy("index").toArrow()
        spark.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the archive, and print its path. Exit code 1 when it cannot be had."""
    parser = argparse.ArgumentParser(
        prog="python -m app.cli.class_archive",
        description="Keep the classes that Spark loads, for its next start on this machine.",
    )
    parser.add_argument("--jars", type=Path, default=DEFAULT_JARS_FOLDER, help="folder that keeps it")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.train is not None:
        train(given.jars, given.train)
        return 0
    try:
        path = make_archive(given.jars.resolve())
    except (ArchiveUnavailable, JarsUnavailable, JavaNotFound) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
