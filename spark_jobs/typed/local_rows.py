"""Rows of a table in a local folder that the driver adds or removes by their index, beside appends of a job.

Spark's MERGE conflicts with each of these appends, and a busy job makes one each second. A commit here is
made again after any other commit, and reads again only the data files that this one has added.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from app.tables.delta_log import DeltaSnapshot
from app.tables.table_files import DataFile
from spark_jobs.tables.file_rows import rows_of_file
from spark_jobs.tables.local.commits import LocalTable, NeedsSpark, Rewrite
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import Table
from spark_jobs.typed.indexed_rows import check_columns
from storage.units import MIB

CHANGED_BYTES_MAX: Final = 256 * MIB  # of data files that lose rows, compressed


class LocalRows:
    """Rows of one table. position: the column with the index.

    The methods raise NeedsSpark, DeltaLogError where only Spark can change the table.
    """

    def __init__(self, local: LocalTable, table: Table, position: str) -> None:
        """local: keeps files."""
        self.table = table
        self.position = position
        self._local = local

    def insert_missing(self, rows: pa.Table) -> None:
        """Add those of `rows`, one or more, whose index the table does not have."""
        left, known = rows, set[str]()
        due: Rewrite | None = None

        def missing(snapshot: DeltaSnapshot) -> Rewrite:
            nonlocal left, due
            before = left
            if not known <= snapshot.files.keys():  # rows that were found may be gone, or in another file
                left = rows
                known.clear()
            for path in snapshot.files.keys() - known:
                left = not_in_file(left, snapshot.files[path], self.position)
                known.add(path)
            if due is None or left is not before:
                due = Rewrite([], [left] if left.num_rows else [], "Append")
            return due

        self._local.rewrite(missing, statistics=self.table.statistics, claim=None, note={})

    def remove(self, indexes: Sequence[int]) -> None:
        """Remove the rows with these indexes, one or more."""
        removed = pa.array(indexes, pa.int64())
        others: dict[str, pa.Table | None] = {}  # by file: the rows that stay; None: it loses no row
        due: Rewrite | None = None

        def left(snapshot: DeltaSnapshot) -> Rewrite:
            nonlocal due
            check_columns(snapshot, self.table.schema)
            for path in others.keys() - snapshot.files.keys():
                del others[path]
            size = sum(snapshot.files[path].size_bytes for path, rows in others.items() if rows is not None)
            for path in snapshot.files.keys() - others.keys():
                others[path] = self._without(snapshot.files[path], removed)
                size += 0 if others[path] is None else snapshot.files[path].size_bytes
                if size > CHANGED_BYTES_MAX:  # before more of them are in memory
                    raise NeedsSpark(f"{snapshot.path} has large files with these rows")
            changed = {path: rows for path in snapshot.files if (rows := others[path]) is not None}
            if due is None or list(changed) != due.removed:
                rows = [each for each in changed.values() if each.num_rows]
                due = Rewrite(list(changed), [pa.concat_tables(rows)] if rows else [], "Overwrite")
            return due

        self._local.rewrite(left, statistics=self.table.statistics, claim=None, note={})

    def _without(self, file: DataFile, removed: pa.Array) -> pa.Table | None:
        """Return the rows of a data file that are not removed; None if that is all of them."""
        indexes = pa.table({self.position: removed})
        if not_in_file(indexes, file, self.position).num_rows == indexes.num_rows:
            return None
        wanted = arrow_schema(self.table.schema)
        rows = pa.Table.from_batches(list(rows_of_file(file, wanted)), wanted)
        return rows.filter(pc.invert(pc.is_in(rows[self.position], removed)))


def not_in_file(rows: pa.Table, file: DataFile, position: str) -> pa.Table:
    """Return those of `rows` whose index a data file does not have. position: the column with the index.

    Raises NeedsSpark as `rows_of_file`.
    """
    bounds = pc.min_max(rows[position]).as_py()
    least, most = file.least.get(position), file.most.get(position)
    if not rows.num_rows or (least is not None and least > bounds["max"]):
        return rows
    if most is not None and most < bounds["min"]:
        return rows
    for held in rows_of_file(file, pa.schema([rows.schema.field(position)])):
        rows = rows.filter(pc.invert(pc.is_in(rows[position], held[position])))
    return rows
