"""One version of the table `entries`, read from its Delta log without Spark: which files, which indexes.

A reader in one of Spark's Python workers has no session to ask. The table is ours (tables.py), so the plain
format is all that is understood: a table that asks more of its readers is refused by name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from app.tables.delta_log import DataFile, DeltaLog, DeltaLogError, file_system_of
from spark_jobs.errors import TableUnreadable

ROWS_AT_ONCE = 8_192


@dataclass(frozen=True)
class TableFile:
    """One data file. Indexes and terms inclusive, of its rows."""

    path: str
    rows: int
    first_index: int
    last_index: int
    first_term: int
    last_term: int


@dataclass(frozen=True)
class Snapshot:
    """The table at one version. files: in the order of their first indexes."""

    path: str
    version: int
    files: tuple[TableFile, ...]
    properties: Mapping[str, str] = field(repr=False)

    @property
    def next_index(self) -> int:
        """One past the last row's index, 0 for none: every committed data record before it is a row."""
        return max((file.last_index + 1 for file in self.files), default=0)

    @property
    def last_term(self) -> int:
        """Of the last row, since terms only rise; 0 for none."""
        return max((file.last_term for file in self.files), default=0)


def read_snapshot(path: str) -> Snapshot:
    """The newest version of the table at a path or URL. Raises TableUnreadable."""
    try:
        found = DeltaLog(path).snapshot()
    except DeltaLogError as error:
        raise TableUnreadable(path, str(error)) from error
    if found is None:
        raise TableUnreadable(path, "no Delta table is there")
    if found.reader_features:
        wanted = ", ".join(found.reader_features)
        raise TableUnreadable(path, f"asks of its readers what only Spark can: {wanted}")
    files = [_table_file(path, file) for file in found.files.values()]
    return Snapshot(
        found.path, found.version, tuple(sorted(files, key=lambda file: file.first_index)), found.properties
    )


def read_rows(file: TableFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """All rows of a data file. Raises TableUnreadable when they are not as many as the table says."""
    files, name = file_system_of(file.path)
    count = 0
    with pq.ParquetFile(files.open_input_file(name), coerce_int96_timestamp_unit="us") as parquet:
        for rows in parquet.iter_batches(ROWS_AT_ONCE, columns=columns):
            count += rows.num_rows
            yield rows
    if count != file.rows:
        raise TableUnreadable(file.path, f"holds {count} rows, its table says {file.rows}")


def _table_file(path: str, file: DataFile) -> TableFile:
    least, most = file.least, file.most
    if file.rows is None or not {"index", "term"} <= least.keys() & most.keys():
        raise TableUnreadable(path, f"{file.path} has no statistics")
    return TableFile(file.path, file.rows, least["index"], most["index"], least["term"], most["term"])
