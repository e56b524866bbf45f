"""`current` brought up to date by the driver: the files with rows that change are written again.

Spark's MERGE of some thousand rows into a table of a million takes ten seconds and more, which is mostly its
joins and shuffles. Here only the keys of each file are read to find the rows that change. A table that is
too large for this process, or that requires more of its writers than the plain protocol, is left to Spark.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from app.tables.delta_log import DeltaSnapshot
from app.tables.table_files import DataFile
from spark_jobs.tables.file_rows import filled, rows_of_file
from spark_jobs.tables.local.commits import LocalTable, NeedsSpark, Rewrite
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import Table
from spark_jobs.typed.indexed_rows import IndexedRows, check_columns
from storage.units import MIB

TABLE_BYTES_MAX: Final = 256 * MIB  # of data files, compressed
FILE_ROWS_MAX: Final = 500_000  # of a file that is written here
ENTRIES_COLUMNS: Final = ("index", "key", "value")
NONE: Final = pa.array([], pa.int64())
REMOVED_AT: Final = "removed at"
IS_GONE: Final = "is gone"
NEW_INDEX: Final = "new index"
PLACE: Final = "place in file"
"""Columns beside those of a schema, whose names have no space."""


class LocalCurrent:
    """One `current` in a local folder. Not safe for use by two threads."""

    def __init__(self, table: Table, keys: Sequence[str], local: LocalTable, application: str) -> None:
        """keys: columns that identify a row. local: keeps files. application: of the transaction versions."""
        self.table = table
        self.keys = list(keys)
        self._application = application
        self._schema = arrow_schema(table.schema)
        self._local = local

    def extend(self, records: IndexedRows, entries: IndexedRows, first: int, until: int) -> None:
        """Apply the records of [first, until), piece by piece. Raises NeedsSpark, DeltaLogError and
        TableClash."""
        for end, rows in entries.local_pieces(first, until, ENTRIES_COLUMNS):
            entries.check_end(until)  # else `rows` may lack a tombstone
            removed = rows.filter(pc.and_(pc.is_null(rows["value"]), pc.is_valid(rows["key"])))
            found = [part for _, part in records.local_pieces(first, end, self._schema.names)]
            changes = Changes.of(pa.concat_tables(found), removed, self.keys)
            first = end
            if changes.rows.num_rows or changes.tombstones.num_rows:
                self._local.rewrite(
                    partial(self._rewrite, changes),
                    statistics=self.table.statistics,
                    claim=(self._application, end),
                    note={},
                )

    def apply(self, rows: pa.Table, removed: pa.Table, *, adds: bool) -> None:
        """Apply rows of `records` that may be older than what is applied, and tombstones; without a claim.
        removed: `index` and `key`. adds: False: remove rows alone. Raises NeedsSpark, DeltaLogError."""
        rows = pa.Table.from_batches([filled(part, self._schema) for part in rows.to_batches()], self._schema)
        changes = Changes.of(rows, removed, self.keys)
        if not adds:
            changes = replace(changes, rows=changes.rows.filter(changes.rows[IS_GONE]))
        self._local.rewrite(
            partial(self._rewrite, changes), statistics=self.table.statistics, claim=None, note={}
        )

    def _rewrite(self, changes: "Changes", snapshot: DeltaSnapshot) -> Rewrite:
        if snapshot.size_bytes > TABLE_BYTES_MAX:
            raise NeedsSpark(f"{snapshot.path} has {snapshot.size_bytes} bytes")
        check_columns(snapshot, self.table.schema)
        narrow = list(dict.fromkeys([*self.keys, "_index", "_key"]))
        found = {path: changes.in_file(self._read(file, narrow)) for path, file in snapshot.files.items()}
        added = changes.added(pa.concat_arrays([NONE, *(newer for _, newer in found.values())]))
        kept, removed, count = [], [], added.num_rows
        for path, file in sorted(snapshot.files.items(), key=lambda each: each[1].rows or 0):
            drops, _ = found[path]
            # a small file is written again with the new rows, so that few commits leave few files
            is_small = 0 < (file.rows or 0) <= count
            if len(drops) or is_small:
                rows = self._read(file, self._schema.names)
                if len(drops):
                    rows = rows.filter(pc.invert(pc.is_in(pa.array(range(rows.num_rows)), drops)))
                count += rows.num_rows if is_small else 0
                kept.append(rows)
                removed.append(path)
        return Rewrite(removed, list(_files([*kept, added.select(self._schema.names)])), "Overwrite")

    def _read(self, file: DataFile, columns: list[str]) -> pa.Table:
        wanted = pa.schema([self._schema.field(name) for name in columns])
        return pa.Table.from_batches(list(rows_of_file(file, wanted)), wanted)


@dataclass(frozen=True)
class Changes:
    """Changes of a range of the log. rows: the newest record of each key, with REMOVED_AT, the index of the
    newest tombstone of its record key, and IS_GONE: that tombstone is newer. tombstones: `_key` and
    REMOVED_AT, one for each key. keys: columns that identify a row."""

    rows: pa.Table
    tombstones: pa.Table
    keys: list[str]

    @classmethod
    def of(cls, rows: pa.Table, removed: pa.Table, keys: list[str]) -> "Changes":
        """rows: of `records`. removed: tombstones, of `entries`. Raises NeedsSpark for keys of a type that
        Arrow cannot group by."""
        try:
            tombstones = removed.group_by("key").aggregate([("index", "max")])
            tombstones = tombstones.select(["key", "index_max"]).rename_columns(["_key", REMOVED_AT])
            known = rows.filter(_all_valid(rows, keys))
            newest = known.group_by(keys).aggregate([("_index", "max")]).columns[-1]
            changed = known.filter(pc.is_in(known["_index"], newest.combine_chunks()))
            at = pc.index_in(changed["_key"], tombstones["_key"].combine_chunks())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise NeedsSpark(str(error)) from error
        removed_at = pc.take(tombstones[REMOVED_AT].combine_chunks(), at)
        is_gone = pc.fill_null(pc.greater(removed_at, changed["_index"]), False)
        changed = changed.append_column(REMOVED_AT, removed_at).append_column(IS_GONE, is_gone)
        return cls(changed, tombstones, keys)

    def in_file(self, held: pa.Table) -> tuple[pa.Array, pa.Array]:
        """Return the places of a file's rows that are removed or replaced, and the indexes of the changed
        rows that are not newer than a row of the file.

        held: keys, `_index` and `_key` of the rows of the file.
        """
        held = held.append_column(PLACE, pa.array(range(held.num_rows), pa.int64()))
        changed = self.rows.select([*self.keys, "_index", REMOVED_AT, IS_GONE])
        both = held.select([*self.keys, "_index", PLACE]).join(
            changed.rename_columns([*self.keys, NEW_INDEX, REMOVED_AT, IS_GONE]),
            self.keys,
            join_type="inner",
        )
        limit = pc.if_else(both[IS_GONE], both[REMOVED_AT], both[NEW_INDEX])
        is_older = pc.less(both["_index"], limit)
        drops = both.filter(is_older)[PLACE]
        newer = both.filter(pc.invert(is_older))[NEW_INDEX]
        at = pc.index_in(held["_key"], self.tombstones["_key"].combine_chunks())
        removed_at = pc.take(self.tombstones[REMOVED_AT].combine_chunks(), at)
        gone = held.filter(pc.fill_null(pc.less(held["_index"], removed_at), False))[PLACE]
        gone = gone.filter(pc.invert(pc.is_in(gone, both[PLACE].combine_chunks())))
        return _joined(drops, gone), _joined(newer)

    def added(self, outdated: pa.Array) -> pa.Table:
        """Return the rows to insert. outdated: indexes of those for which the table has a newer row."""
        is_due = pc.invert(pc.or_(self.rows[IS_GONE], pc.is_in(self.rows["_index"], outdated)))
        return self.rows.filter(is_due)


def _all_valid(rows: pa.Table, columns: Sequence[str]) -> Any:
    valid = pc.is_valid(rows[columns[0]])
    for name in columns[1:]:
        valid = pc.and_(valid, pc.is_valid(rows[name]))
    return valid


def _joined(*arrays: pa.ChunkedArray) -> pa.Array:
    chunks = [chunk for array in arrays for chunk in array.chunks]
    return pa.chunked_array(chunks, pa.int64()).combine_chunks()


def _files(parts: Sequence[pa.Table]) -> Iterator[pa.Table]:
    """Return the rows of each new file."""
    rows = pa.concat_tables(parts)
    for start in range(0, rows.num_rows, FILE_ROWS_MAX):
        yield rows.slice(start, FILE_ROWS_MAX)
