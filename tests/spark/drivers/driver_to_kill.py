"""A materializer in a process of its own that kills itself, JVM and all, at a point of its work:
`python -m tests.spark.drivers.driver_to_kill POINT ...`, with the arguments of the job; POINT `none`
never comes, and `by-tasks` only lets tasks of Spark write all batches.

The points are in kill_points.py.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from spark_jobs.materialize import entries, lease
from spark_jobs.materialize.journal_table import JournalTable
from spark_jobs.run import materialize, parse_arguments
from spark_jobs.source.data_source import RecordsStreamReader
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.table import ENTRIES, EVENTS
from spark_jobs.tables.table_writer import TableWriter
from tests.spark.fast import fast_session


def die() -> None:
    os.killpg(0, signal.SIGKILL)


def after(owner: Any, name: str) -> None:
    """Let a function be the last that this driver does."""
    whole: Callable[..., Any] = getattr(owner, name)

    def last(*arguments: Any, **options: Any) -> None:
        whole(*arguments, **options)
        die()

    setattr(owner, name, last)


def before_batch(number: int) -> None:
    """Die when a batch of `entries` is planned, or a later one."""
    whole = RecordsStreamReader.latestOffset
    planned = 0

    def plan(reader: RecordsStreamReader, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        nonlocal planned
        end = whole(reader, start, limit)
        if end != start:
            planned += 1
            if planned > number:
                die()
        return end

    RecordsStreamReader.latestOffset = plan  # type: ignore[method-assign]


def before_commit() -> None:
    """Die when a whole file lies in the folder of `entries` that no commit names."""
    whole = LocalTable._commit

    def commit(table: LocalTable, version: int, actions: Any) -> bool:
        if version > 0 and table.path.name == ENTRIES.name:
            die()
        return whole(table, version, actions)

    LocalTable._commit = commit  # type: ignore[method-assign]


def after_commit() -> None:
    whole = TableWriter.append

    def append(writer: TableWriter, rows: Any, **options: Any) -> Any:
        last = whole(writer, rows, **options)
        if writer.table is ENTRIES:
            die()
        return last

    TableWriter.append = append  # type: ignore[method-assign]


def after_step() -> None:
    whole = lease.LeasedEntries.step

    def step(job: lease.LeasedEntries) -> bool:
        had_batch = whole(job)
        if had_batch:
            die()
        return had_batch

    lease.LeasedEntries.step = step  # type: ignore[method-assign]


def by_tasks() -> None:
    """Let tasks of Spark read and write each batch, as they do a large one."""
    entries.SMALL_BATCH_RECORDS = 0


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
    "by-tasks": by_tasks,
    "planned": lambda: before_batch(0),
    "file-written": before_commit,
    "committed": after_commit,
    "moved": after_step,
    "known": lambda: before_batch(1),
    "reported": tell_and_die,
}


if __name__ == "__main__":
    ARRANGED[sys.argv[1]]()
    materialize(parse_arguments(sys.argv[2:]), spark=fast_session("killed"))
