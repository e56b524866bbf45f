"""Upkeep beside a running stream: `python -m spark_jobs.upkeep --tables DIR [--log NAME] [--every S]`.

A stream writes a small file each second: OPTIMIZE merges them, clustered as the table specifies, and VACUUM
removes files that no version of the last 7 days needs. Compaction adds no rows, so it conflicts with no
append; it may conflict with an overwrite (`epochs`, `epoch_files`), and the second of the two is repeated:
here, or in the job that fills the table.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spark_jobs.interruption import INTERRUPTED, STOPPED, end_at_once, finish_at_signals

if __name__ == "__main__":
    is_repeated = any(each.startswith("--every") for each in sys.argv)
    end_at_once(dict.fromkeys(INTERRUPTED, STOPPED) if is_repeated else INTERRUPTED)

import click

from app.durations import Seconds
from app.errors import ConfigError
from app.extras import imports_of_extra

with imports_of_extra("spark", __name__):
    from pyspark.sql import SparkSession

from app.tables.catalog import is_typed
from app.tables.delta_log import folders
from spark_jobs.analytics.silver import DELAYS, LATE
from spark_jobs.errors import OptionError
from spark_jobs.materialize.followed_logs import named
from spark_jobs.session.jars import JarsUnavailable
from spark_jobs.session.locations import is_url, location
from spark_jobs.session.settings import (
    given_options,
    logs_option,
    settings_of,
    spark_options,
    tables_of,
    tables_option,
)
from spark_jobs.session.spark_session import SETTINGS as SESSION_SETTINGS
from spark_jobs.session.spark_session import JavaNotFound, open_session
from spark_jobs.tables.conflicts import SPARK_ERRORS, Result, is_conflict
from spark_jobs.tables.table import TABLES, TYPED_TABLES, identifier, is_table, table_path
from storage.units import MIB

_ATTEMPTS = 5
FIRST_PAUSE_S = 0.5
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
MIN_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold"
TARGET_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize"
SETTINGS = {
    # OPTIMIZE clusters files together until a group has this size, and writes the whole last group again each
    # time: with Delta's own 100 GB a table of 50 GB each day
    MIN_CUBE: str(4_096 * MIB),
    TARGET_CUBE: str(6_144 * MIB),
    "spark.databricks.delta.vacuum.parallelDelete.enabled": "true",
    LISTING: SESSION_SETTINGS[LISTING],  # in a session of another program too
}


@dataclass(frozen=True)
class Kept:
    """Result for one table. conflicts: with other writers, each of which was retried."""

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


@dataclass(frozen=True)
class NotKept:
    """A table that could not be compacted or vacuumed, and the first line of the reason."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def keep_up(spark: SparkSession, path: str) -> Kept:
    """Compact and vacuum one table. Raises PySparkException after five conflicts in a row."""
    began = time.monotonic()
    metrics, conflicts = _retried(lambda: spark.sql(f"OPTIMIZE {identifier(path)}").collect()[0]["metrics"])
    _, others = _retried(lambda: spark.sql(f"VACUUM {identifier(path)}").collect())
    return Kept(
        path,
        metrics["numFilesRemoved"],
        metrics["numFilesAdded"],
        conflicts + others,
        time.monotonic() - began,
    )


def keep_all_up(
    spark: SparkSession, tables: Path | str, logs: Iterable[str], stop: threading.Event | None = None
) -> Iterator[Kept | NotKept]:
    """Compact and vacuum all tables of some logs, one after the other, and the existing silver tables.

    Yields the result of each when it is done; a failure of one leaves the others alone. stop: set it to end
    before the next table.
    """
    logs = list(logs)
    paths = [table_path(tables, log, table) for log in logs for table in (*TABLES, DELAYS, LATE)]
    root = location(str(tables)).rstrip("/")
    if is_url(root):  # which Spark alone may be able to list
        paths += [table_path(tables, log, table) for log in logs for table in TYPED_TABLES]
    else:
        found = ((log, name) for log in logs for name in folders(f"{root}/{log}"))
        paths += [f"{root}/{log}/{name}" for log, name in found if is_typed(name)]
    for path in paths:
        if stop is not None and stop.is_set():
            return
        try:
            kept = keep_up(spark, path) if is_table(spark, path) else None
        except SPARK_ERRORS as error:
            yield NotKept(path, str(error).partition("\n")[0])
        else:
            if kept is not None:
                yield kept


def _retried(act: Callable[[], Result]) -> tuple[Result, int]:
    for conflicts in range(_ATTEMPTS):
        try:
            return act(), conflicts
        except SPARK_ERRORS as error:
            if not is_conflict(error) or conflicts == _ATTEMPTS - 1:
                raise
            time.sleep(FIRST_PAUSE_S * 2**conflicts)
    raise AssertionError("the last attempt returns or raises")


def keep_round_up(
    spark: SparkSession, tables: str, logs: Iterable[str], stop: threading.Event
) -> tuple[int, int]:
    """As `keep_all_up`, with a line for each table; return how many were kept, and how many failed."""
    kept = failed = 0
    for result in keep_all_up(spark, tables, logs, stop):
        is_kept = isinstance(result, Kept)
        kept, failed = kept + is_kept, failed + (not is_kept)
        out = sys.stdout if is_kept else sys.stderr
        out.write(f"{result}\n")
        out.flush()
    return kept, failed


@click.command(
    epilog="\b\nExamples:\n"
    "  python -m spark_jobs.upkeep --tables commitlog-data/tables\n"
    "  python -m spark_jobs.upkeep --tables s3://bucket/tables --log 'orders-*' --every 3600"
)
@tables_option
@logs_option
@click.option("--every", type=Seconds(), metavar="S", help="Repeat at this interval, seconds.")
@spark_options
def options(**given: Any) -> SimpleNamespace:
    """Compact and vacuum the tables of logs; print a line for each table when it is done."""
    return SimpleNamespace(**given)


def main(arguments: list[str] | None = None) -> int:
    """Run the job until it is done, or a signal, which is no success of a single round (130, 143). Exit code
    1 when a table failed, with `--every` when all of a round failed, and when there is no table; 2 for an
    invalid configuration."""
    given = given_options(options, "spark_jobs.upkeep", arguments)
    stop = threading.Event()
    signals: list[int] = []
    try:
        settings = settings_of(given, master="local[1]")
        root = location(tables_of(given, settings))
        with open_session("commitlog-upkeep", settings, SETTINGS) as spark:
            finish_at_signals(stop, signals.append)
            while not stop.is_set():
                logs = named(given.log or ("default",), lambda: folders(root))
                done, failed = keep_round_up(spark, root, logs, stop)
                if not done and not failed and not stop.is_set():
                    sys.stderr.write(f"{root} contains no table of {', '.join(logs)}\n")
                if given.every is None and signals:
                    return INTERRUPTED[signals[0]]
                if given.every is None:
                    return 0 if done and not failed else 1
                if failed and not done:
                    return 1
                stop.wait(min(given.every, threading.TIMEOUT_MAX))
    except (ConfigError, OptionError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except (*SPARK_ERRORS, JarsUnavailable, JavaNotFound) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
