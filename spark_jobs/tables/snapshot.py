"""Tables read from their Delta logs without Spark: the files of `entries` by index; other tables as a whole.

A reader in one of Spark's Python workers has no session, and a starting job would wait seconds for Spark's
first answer. The tables are written by this project (table.py), so only the plain format is supported: a
table that requires more of its readers is refused with the feature's name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from app.tables.delta_log import (
    COLUMN_MAPPING,
    DELETION_VECTORS,
    DataFile,
    DeltaLog,
    DeltaLogError,
    DeltaSnapshot,
    file_system_of,
)
from app.tables.names import BEGIN_PROPERTY
from spark_jobs.errors import TableUnreadable
from spark_jobs.session.locations import is_url
from spark_jobs.tables.schemas import arrow_schema
from storage.units import MIB

ROWS_AT_ONCE = 8_192
BYTES_AT_ONCE = 8 * MIB  # and about so many in memory, where no value is repeated
UNPLAIN = (TableUnreadable, OSError, KeyError, pa.ArrowInvalid)  # KeyError: a column that was added later
_REMEDIES = {  # by reader feature
    DELETION_VECTORS: "deletionVectors (rows were deleted; REORG TABLE ... APPLY (PURGE) rewrites the files)",
    COLUMN_MAPPING: "columnMapping (the files name the columns differently)",
}


@dataclass(frozen=True)
class TableFile:
    """One data file. Indexes, terms and offsets inclusive, of its rows."""

    path: str
    rows: int
    first_index: int
    last_index: int
    last_term: int
    last_offset: int


@dataclass(frozen=True)
class EntriesSnapshot:
    """The table at one version. files: in the order of their first indexes."""

    path: str
    version: int
    files: tuple[TableFile, ...]
    properties: Mapping[str, str] = field(repr=False)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def begin_index(self) -> int:
        """Index from which on every committed data record before the table's end is a row."""
        first = min((file.first_index for file in self.files), default=0)
        return min(first, int(self.properties.get(BEGIN_PROPERTY, first)))

    @property
    def next_index(self) -> int:
        """The index after the last row, 0 for none: every committed data record before it is a row."""
        return max((file.last_index + 1 for file in self.files), default=0)

    @property
    def last_term(self) -> int:
        """Term of the last row, since terms only rise; 0 for none."""
        return max((file.last_term for file in self.files), default=0)

    @property
    def last_offset(self) -> int:
        """Byte position of the last row's batch, since offsets only rise; 0 for none."""
        return max((file.last_offset for file in self.files), default=0)


def last_timestamp_us(snapshot: EntriesSnapshot) -> int | None:
    """Return the time of the last row in microseconds since 1970; None if it has none, or its file cannot be
    read."""
    last = max(snapshot.files, key=lambda file: file.last_index)
    try:
        for rows in read_rows(last, ["index", "timestamp"]):
            found = rows.filter(pc.equal(rows["index"], last.last_index))["timestamp"]
            if len(found):
                time_us: int | None = found[0].cast(pa.timestamp("us", tz="UTC")).value
                return time_us
    except (TableUnreadable, OSError, pa.ArrowException):
        pass
    return None


def read_snapshot(path: str) -> EntriesSnapshot:
    """Return the newest version of the table at a path or URL. Raises TableUnreadable."""
    found = _plain_snapshot(path)
    files = [_table_file(path, file) for file in found.files.values()]
    return EntriesSnapshot(
        found.path, found.version, tuple(sorted(files, key=lambda file: file.first_index)), found.properties
    )


def read_plain(
    path: str, schema: StructType, columns: Sequence[str], where: pc.Expression | None = None
) -> pa.Table | None:
    """Return the rows of a table's newest version, in no order. schema: the table's. where: filter on these
    columns.

    None where only Spark can read it: a table at a URL, or in another format than the plain one.
    """
    wanted = columns_of(schema, columns)
    try:
        batches = plain_batches(path, wanted)
        found = [rows if where is None else rows.filter(where) for rows in batches]
        return pa.Table.from_batches(found, wanted)
    except UNPLAIN:
        return None


def plain_batches(path: str, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield these columns of the rows, at most ROWS_AT_ONCE at a time: a table of journals has any number of
    rows. Raises an error of UNPLAIN where only Spark can read the table."""
    if is_url(path):
        raise TableUnreadable(path, "it is at a URL")
    for file in _plain_snapshot(path).files.values():
        for rows in read_rows(file, wanted.names):
            yield rows.select(wanted.names).cast(wanted)


def columns_of(schema: StructType, columns: Sequence[str]) -> pa.Schema:
    """Return the Arrow schema of some columns of a table."""
    known = arrow_schema(schema)
    return pa.schema([known.field(name) for name in columns])


def read_rows(
    file: TableFile | DataFile, columns: list[str], within: tuple[str, int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Return all rows of a data file. within: a column, and the bounds [first, until) of the rows that are
    due: row groups that have none are not read. Raises TableUnreadable unless the file has as many rows as
    the table states."""
    files, name = file_system_of(file.path)
    with pq.ParquetFile(files.open_input_file(name), coerce_int96_timestamp_unit="us") as parquet:
        count = parquet.metadata.num_rows
        if count != file.rows:
            raise TableUnreadable(
                file.path, f"the file has {count} rows, its Delta log specifies {file.rows}"
            )
        groups = None if within is None else _groups_within(parquet.metadata, *within)
        at_once = _rows_at_once(parquet.metadata, columns)
        yield from parquet.iter_batches(at_once, row_groups=groups, columns=columns)


def _rows_at_once(metadata: pq.FileMetaData, columns: Sequence[str]) -> int:
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    parts = (group.column(place) for group in groups for place in range(group.num_columns))
    sizes = (
        part.total_uncompressed_size for part in parts if part.path_in_schema.partition(".")[0] in columns
    )
    fitting: int = BYTES_AT_ONCE * metadata.num_rows // max(1, sum(sizes))
    return max(1, min(ROWS_AT_ONCE, fitting))


def _groups_within(metadata: pq.FileMetaData, column: str, first: int, until: int) -> list[int]:
    """Return the row groups that may have values of [first, until) in a column of integers."""
    places = [place for place in range(metadata.num_columns) if metadata.schema.column(place).path == column]
    found = []
    for group in range(metadata.num_row_groups):
        bounds = metadata.row_group(group).column(places[0]).statistics if places else None
        if bounds is None or not bounds.has_min_max or (bounds.max >= first and bounds.min < until):
            found.append(group)
    return found


def _plain_snapshot(path: str) -> DeltaSnapshot:
    try:
        found = DeltaLog(path).snapshot()
    except DeltaLogError as error:
        raise TableUnreadable(path, str(error)) from error
    if found is None:
        raise TableUnreadable(path, "it is not a Delta table")
    if found.reader_features:
        reasons = "; ".join(_REMEDIES.get(name, name) for name in found.reader_features)
        raise TableUnreadable(path, f"it uses features that only Spark's own reader knows: {reasons}")
    return found


def _table_file(path: str, file: DataFile) -> TableFile:
    least, most = file.least, file.most
    if file.rows is None or not {"index", "term", "offset"} <= least.keys() & most.keys():
        raise TableUnreadable(path, f"{file.path} has no statistics")
    return TableFile(
        file.path,
        file.rows,
        first_index=least["index"],
        last_index=most["index"],
        last_term=most["term"],
        last_offset=most["offset"],
    )
