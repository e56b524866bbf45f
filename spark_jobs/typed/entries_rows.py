"""Rows of `entries` by index, in pieces of bounded size, for the tables that are made from them.

A local table in the plain format is read without Spark: its files were written a moment ago.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from app.tables.delta_log import DataFile, DeltaLog, DeltaLogError
from spark_jobs.session.locations import is_url
from spark_jobs.tables.schemas import ENTRIES, arrow_schema
from spark_jobs.tables.snapshot import read_rows
from spark_jobs.tables.table import read_table

PIECE_BYTES: Final = 32 * 1024 * 1024  # of data files, compressed
PIECE_RECORDS: Final = 200_000
SPARK_PIECE_RECORDS: Final = 50_000


class EntriesRows:
    """Reader of one log's `entries`. Not safe for use by two threads."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path
        self._log = None if is_url(path) else DeltaLog(path)

    def pieces(
        self, first: int, until: int, columns: Sequence[str], max_records: int = PIECE_RECORDS
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of [first, until) piece by piece, in order, each with the index after its range.

        Every piece is one range of indexes, sorted by index. A range without rows is yielded too.
        """
        while first < until:
            files = self._files()
            if files is None:
                end = min(until, first + min(max_records, SPARK_PIECE_RECORDS))
                rows = self._by_spark(first, end, columns)
            else:
                inside = [
                    file for file in files if file.most["index"] >= first and file.least["index"] < until
                ]
                first = max(first, min((file.least["index"] for file in inside), default=until))
                end = min(until, first + min(max_records, _indexes_of(inside)))
                rows = _from_files(inside, first, end, columns)
            yield end, rows.sort_by("index")
            first = end

    def _files(self) -> list[DataFile] | None:
        """Return the table's data files; None where Spark must read them."""
        try:
            snapshot = None if self._log is None else self._log.snapshot()
        except DeltaLogError:
            return None
        if snapshot is None or snapshot.reader_features:
            return None
        files = list(snapshot.files.values())
        has_statistics = all("index" in file.least and "index" in file.most and file.rows for file in files)
        return files if has_statistics else None

    def _by_spark(self, first: int, until: int, columns: Sequence[str]) -> pa.Table:
        rows = read_table(self._spark, self._path)
        return rows.where((F.col("index") >= first) & (F.col("index") < until)).select(*columns).toArrow()


def _from_files(files: Sequence[DataFile], first: int, until: int, columns: Sequence[str]) -> pa.Table:
    known = arrow_schema(ENTRIES)
    wanted = pa.schema([known.field(name) for name in columns])
    inside = (pc.field("index") >= first) & (pc.field("index") < until)
    found = [
        rows.filter(inside)
        for file in files
        if file.most["index"] >= first and file.least["index"] < until
        for rows in read_rows(file, wanted.names)
    ]
    if not found:
        return wanted.empty_table()
    return pa.Table.from_batches(found).select(wanted.names).cast(wanted)


def _indexes_of(files: Sequence[DataFile]) -> int:
    """Return how many indexes of these files are about PIECE_BYTES; at least one."""
    size = sum(file.size_bytes for file in files)
    span = sum(file.most["index"] - file.least["index"] + 1 for file in files)
    return max(1, span * PIECE_BYTES // size) if size else PIECE_RECORDS
