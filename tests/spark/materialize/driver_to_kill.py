"""A materializer in a process of its own that kills itself, JVM and all, at a point of its work:
`python -m tests.spark.materialize.driver_to_kill POINT ...`, with the arguments of the job; POINT `none`
never comes.

The points are in kill_points.py.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from app.tables.delta_log import DeltaLog
from spark_jobs.materialize import entries, lease
from spark_jobs.run import materialize, parse_arguments
from spark_jobs.tables.journal_table import JournalTable
from spark_jobs.tables.table import EVENTS
from tests.spark.fast import fast_session

PARQUET_END = b"PAR1"
LOOK_S = 0.001


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def after(owner: Any, name: str) -> None:
    """Let a function be the last that this driver does."""
    whole: Callable[..., Any] = getattr(owner, name)

    def last(*arguments: Any, **options: Any) -> None:
        whole(*arguments, **options)
        die()

    setattr(owner, name, last)


def before_batch(batch_id: int, reached: Callable[[entries.EntriesJob], None]) -> None:
    """Call `reached` when a micro-batch of `entries` is to be written, or a later one."""
    whole = entries.EntriesJob.write

    def write(job: entries.EntriesJob, records: DataFrame, number: int) -> None:
        if number >= batch_id:
            reached(job)
        whole(job, records, number)

    entries.EntriesJob.write = write  # type: ignore[assignment, method-assign]


def watch_files(job: entries.EntriesJob) -> None:
    """Die as soon as a whole file lies in the table's folder that no commit names."""
    folder = Path(job.path)
    snapshot = DeltaLog(job.path).snapshot()
    assert snapshot is not None
    known = {Path(file.path).name for file in snapshot.files.values()}
    known |= {path.name for path in folder.glob("*.parquet")}  # and what other drivers have left

    def watch() -> None:
        while not any(is_whole(path) for path in folder.glob("*.parquet") if path.name not in known):
            time.sleep(LOOK_S)
        die()

    threading.Thread(target=watch, daemon=True).start()


def is_whole(path: Path) -> bool:
    return path.read_bytes()[-len(PARQUET_END) :] == PARQUET_END


def tell_and_die() -> None:
    """Die when `events` is about to take what its derived tables have."""
    whole = JournalTable.append

    def append(table: JournalTable, rows: Any, note: Any = None) -> None:
        if table.table is EVENTS and rows.num_rows:
            die()
        whole(table, rows, note)

    JournalTable.append = append  # type: ignore[assignment, method-assign]


ARRANGED: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "opened": lambda: after(entries.EntriesJob, "open"),
    "leased": lambda: after(lease.MaterializerLease, "take"),
    "planned": lambda: before_batch(0, lambda _: die()),
    "file-written": lambda: before_batch(0, watch_files),
    "committed": lambda: after(entries, "append_once"),
    "moved": lambda: after(lease.LeasedEntries, "write"),
    "known": lambda: before_batch(1, lambda _: die()),
    "told": tell_and_die,
}


if __name__ == "__main__":
    ARRANGED[sys.argv[1]]()
    materialize(parse_arguments(sys.argv[2:]), spark=fast_session("killed"))
