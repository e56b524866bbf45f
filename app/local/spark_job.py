"""The Spark job beside a local cluster: a separate process that writes its logs into Delta tables."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NoReturn, Self

from app.local.cluster import ClusterError, LocalCluster
from app.local.processes import ChildProcess
from app.tables.names import PROGRESS_FILE

ENDING_LINES = 5  # of the log of a job that has ended by itself
STOP_GRACE_S = 5.0  # a kill does no harm: the tables stay correct (spark_jobs/README.md)


DEFAULT_TABLES = Path("commitlog-data/tables")
JOB = "spark_jobs.run"
SPARK: Final = "pyspark"
ALL_LOGS = "*"  # also those that are created while the job runs
VERIFY_JOB = "spark_jobs.verify"
REPLAY_JOB = "spark_jobs.replay"


def job_arguments(
    endpoints: Sequence[str],
    log: str,
    tables: Path | str | None = None,
    checkpoints: Path | str | None = None,
) -> list[str]:
    """Options for a job. None: as in its own configuration, or it has no such option."""
    arguments = ["--endpoint", ",".join(endpoints), "--log", log]
    for name, place in (("--tables", tables), ("--checkpoints", checkpoints)):
        arguments += [] if place is None else [name, str(place)]
    return arguments


def check_spark() -> None:
    """Raise ModuleNotFoundError if Spark is not installed: a job would end with a traceback of its own."""
    if find_spec(SPARK) is None:
        raise ModuleNotFoundError(f"No module named {SPARK!r}", name=SPARK)


def become_job(module: str, arguments: Sequence[str], token: str | None) -> NoReturn:
    """Replace this process by a job: signals and exit code are its own.

    token: passed in the environment, since an argument would show in the list of processes. Raises
    ModuleNotFoundError without Spark.
    """
    check_spark()
    if token is not None:
        os.environ["COMMITLOG_TOKEN"] = token
    command = [sys.executable, "-P", "-m", module, *arguments]
    os.execv(command[0], command)


class SparkJob:
    """The job of all logs of a local cluster.

    DIR/tables with its progress.json, DIR/checkpoints, and DIR/spark/{pid,log} beside the nodes' folders.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        environment: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """environment: variables for the job beside those of this process. options: further arguments."""
        folder = cluster.folder / "spark"
        _make(folder)
        self.tables = cluster.tables
        self.log = folder / "log"
        self._progress = self.tables / PROGRESS_FILE
        self._progress.unlink(missing_ok=True)
        arguments = job_arguments(cluster.urls, ALL_LOGS, self.tables, cluster.folder / "checkpoints")
        arguments += options
        for node in cluster.nodes:
            arguments += ["--data-folder", str(node.data)]  # read in place, which costs the nodes nothing
        self._process = ChildProcess(
            JOB, arguments, log=self.log, pid_file=folder / "pid", environment=environment
        )
        self._reported = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def fallen(self) -> str | None:
        """Return ChildProcess.ending, once, when it has ended by itself."""
        if self._process.running or self._reported:
            return None
        self._reported = True
        return self._process.ending(ENDING_LINES)

    def progress(self) -> dict[str, Any]:
        """Return the job's last report; empty before the first."""
        try:
            document = json.loads(self._progress.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    def stop(self) -> None:
        """End it, cleanly if that is quick."""
        self._reported = True
        self._process.end(STOP_GRACE_S)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ClusterError(f"{folder} cannot be used: {error.strerror}") from error
