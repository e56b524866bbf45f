"""Small data files of a table in a local folder, merged by the driver.

A stream adds a small file each second. Each reader opens all of them, and each checkpoint lists them. Files
that follow each other in the order of the log become one here, with the same rows: readers of the table's
changes see nothing of it, and appends continue meanwhile. The files that were merged stay in the folder for
the versions that have them, until VACUUM removes them.

A table that requires more of its writers than the plain protocol is left to OPTIMIZE (spark_jobs/upkeep.py).

Source: the Delta transaction log protocol, section Add File and Remove File (dataChange).
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from app.tables.delta_log import DeltaSnapshot
from app.tables.table_files import DataFile
from spark_jobs.tables.file_rows import rows_of_file
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.local.data_files import WrittenFile, write_pieces
from spark_jobs.tables.schemas import arrow_schema
from storage.units import MIB

SMALL_FILES_MAX: Final = 1_000
SMALL_BYTES: Final = 4 * MIB  # a file below it is small, compressed
MERGED_BYTES: Final = 32 * MIB  # of a new file at most, compressed, about: a piece of typed/indexed_rows.py
GROUP_BYTES: Final = 16 * MIB  # of a row group in memory, about
POSITIONS: Final = ("_index", "index", "seq")
"""The first one that a table has gives its order. A user's column of `records` may have the name of a later
one."""

Run = dict[str, DataFile]  # files that follow each other, by path in the log


def merge_small_files(path: str, max_small: int = SMALL_FILES_MAX) -> int:
    """Merge the small files of the table at `path` if it has more than `max_small`. Return how many were
    replaced.

    Raises NeedsSpark, DeltaLogError, SourceError, OSError.
    """
    table = LocalTable(path, lambda _path: None, keeps_files=True)  # the caller sees to checkpoints
    snapshot = table.snapshot()
    merged = 0
    for run in due_runs(snapshot, max_small):
        if table.merge(run, partial(_write, table, snapshot, list(run.values()))):
            merged += len(run)
    return merged


def due_runs(snapshot: DeltaSnapshot, max_small: int) -> list[Run]:
    """Return the small files that are to become one file each; none unless there are more than `max_small`.

    Those of a run have bounds of the same columns. deltalake 1.6 takes a file without bounds of a column for
    one without rows: it finds in a merged file what it finds in the small ones.
    """
    position = _position(snapshot)
    small = sum(file.size_bytes < SMALL_BYTES for file in snapshot.files.values())
    if small <= max_small or position is None:
        return []
    runs: list[Run] = []
    begun: dict[frozenset[str], tuple[Run, int]] = {}  # the run that continues, and its size
    for path, file in sorted(snapshot.files.items(), key=lambda each: each[1].least[position]):
        if file.size_bytes >= SMALL_BYTES:
            begun.clear()
            continue
        run, size = begun.get(bounded := _bounded(file), ({}, 0))
        if size + file.size_bytes > MERGED_BYTES:
            run, size = {}, 0
        if not run:
            runs.append(run)
        run[path] = file
        begun[bounded] = run, size + file.size_bytes
    return [run for run in runs if len(run) > 1]


def _bounded(file: DataFile) -> frozenset[str]:
    """Return the columns of which a file has bounds."""
    return frozenset(file.least.keys() & file.most.keys())


def _position(snapshot: DeltaSnapshot) -> str | None:
    """Return the column that gives the order of the files: each has a bound of it."""
    files = snapshot.files.values()
    return next(
        (name for name in POSITIONS if all(isinstance(file.least.get(name), int) for file in files)), None
    )


def _write(table: LocalTable, snapshot: DeltaSnapshot, files: Sequence[DataFile]) -> WrittenFile:
    schema = arrow_schema(StructType.fromJson(json.loads(snapshot.schema)))
    # a user may have changed the property of the table, or have named columns there in another way
    known = _bounded(files[0])
    statistics = [each.name for each in schema if each.name in known and not pa.types.is_nested(each.type)]
    return write_pieces(table.path, _groups(files, schema), schema, statistics)


def _groups(files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of the files, in order, in pieces of about GROUP_BYTES."""
    group: list[pa.RecordBatch] = []
    size = 0
    for file in files:
        for rows in rows_of_file(file, schema):
            group.append(rows)
            size += rows.nbytes
            if size >= GROUP_BYTES:
                yield _taken(group, schema)
                size = 0
    if group:
        yield _taken(group, schema)


def _taken(group: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return the rows of a group, and empty it: they are in memory once."""
    rows = pa.Table.from_batches(group, schema)
    group.clear()
    return rows
