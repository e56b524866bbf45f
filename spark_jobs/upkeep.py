"""Upkeep beside a running stream: `python -m spark_jobs.upkeep --tables DIR [--log NAME] [--every S]`.

A stream writes a small file each second: OPTIMIZE makes few of them, clustered as the table says, and VACUUM
removes files that no version of the last 7 days needs. Compaction brings no rows, so it conflicts with no
append; with a MERGE or an overwrite (`epochs`, `epoch_files`) it may, and the one that came second is done
again: here, or in the job that fills the table.
"""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from app.tables.delta_log import table_folders
from spark_jobs.jars import DEFAULT_JARS_FOLDER, JarsUnavailable, ensure_jars
from spark_jobs.session import JavaNotFound, build_session
from spark_jobs.tables import identifier

ATTEMPTS = 5
FIRST_PAUSE_S = 0.5
CONFLICT = "DELTA_CONCURRENT"
SETTINGS = {"spark.databricks.delta.vacuum.parallelDelete.enabled": "true"}


@dataclass(frozen=True)
class Kept:
    """What was done to one table. conflicts: with other writers, each of which was tried again."""

    path: str
    files_removed: int
    files_added: int
    conflicts: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.files_removed} files became {self.files_added}, "
            f"{self.conflicts} conflicts, {self.seconds:.1f} s"
        )


def keep_up(spark: SparkSession, path: str) -> Kept:
    """Compact and vacuum one table. Raises PySparkException after ATTEMPTS conflicts in a row."""
    began = time.monotonic()
    metrics, conflicts = _retried(lambda: spark.sql(f"OPTIMIZE {identifier(path)}").collect()[0]["metrics"])
    spark.sql(f"VACUUM {identifier(path)}").collect()
    return Kept(
        path, metrics["numFilesRemoved"], metrics["numFilesAdded"], conflicts, time.monotonic() - began
    )


def keep_all_up(spark: SparkSession, tables: Path | str, logs: Iterable[str]) -> list[Kept]:
    """All tables of some logs, one after the other."""
    folders = [f"{str(tables).rstrip('/')}/{log}" for log in logs]
    paths = [f"{folder}/{name}" for folder in folders for name in table_folders(folder)]
    return [keep_up(spark, path) for path in paths if DeltaTable.isDeltaTable(spark, path)]


def _retried(act: Callable[[], Row]) -> tuple[Row, int]:
    for conflicts in range(ATTEMPTS):
        try:
            return act(), conflicts
        except PySparkException as error:
            if CONFLICT not in str(error) or conflicts == ATTEMPTS - 1:
                raise
            time.sleep(FIRST_PAUSE_S * 2**conflicts)
    raise AssertionError("the last attempt returns or raises")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.upkeep", description="Compact and vacuum the tables of logs."
    )
    parser.add_argument("--tables", required=True, type=Path, help="folder of the tables, one folder a log")
    parser.add_argument("--log", action="append", help="name of a log; may be repeated (default: default)")
    parser.add_argument("--every", type=float, metavar="S", help="again and again, each so many seconds")
    parser.add_argument("--master", default="local[1]", help="where Spark runs (default: %(default)s)")
    parser.add_argument("--jars", type=Path, default=DEFAULT_JARS_FOLDER, help="folder of the Delta jars")
    given = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        ensure_jars(given.jars)
        spark = build_session("commitlog-upkeep", jars_folder=given.jars, master=given.master, extra=SETTINGS)
        while not stop.is_set():
            for kept in keep_all_up(spark, given.tables.resolve(), given.log or ["default"]):
                sys.stdout.write(f"{kept}\n")
                sys.stdout.flush()
            if given.every is None:
                break
            stop.wait(given.every)
        spark.stop()
    except (PySparkException, JarsUnavailable, JavaNotFound) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
