"""Rows of a table by index, in pieces of bounded size, for the tables that are made from it.

A local table in the plain format is read without Spark: its files were written a moment ago.
"""

import json
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from app.tables.delta_log import DeltaLog, DeltaLogError, DeltaSnapshot
from app.tables.table_files import DataFile, OrderedFiles
from spark_jobs.session.locations import is_url
from spark_jobs.tables.file_rows import rows_of_file
from spark_jobs.tables.local.commits import NeedsSpark
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import Table, TableClash, read_table
from spark_jobs.typed.layout import changes
from storage.units import MIB

PIECE_BYTES: Final = 32 * MIB  # of data files, compressed; of the columns SIZED, where Spark reads them
PIECE_RECORDS: Final = 200_000
SPARK_PIECE_RECORDS: Final = 50_000
FIRST_SPARK_RECORDS: Final = 5_000  # while the size of records is not known: Spark sorts all of them
SIZED: Final = {"key", "value", "headers"}  # columns of records that may be large
SIZE, SIZE_THROUGH = "size", "size through"


class IndexedRows:
    """Reader of one table. Not safe for use by two threads."""

    def __init__(self, spark: SparkSession, path: str, table: Table, position: str) -> None:
        """position: the column with the index."""
        self._spark = spark
        self._path = path
        self._schema = arrow_schema(table.schema)
        self._position = position
        self._files = OrderedFiles(position)
        self._log = None if is_url(path) else DeltaLog(path, files=self._files)
        self._spark_records = FIRST_SPARK_RECORDS  # of the next query: not many more than fit into a piece

    def end(self) -> int:
        """Return the index after the last row, 0 without rows."""
        try:
            last = self._newest_files().last()
            return 0 if last is None else last + 1
        except (NeedsSpark, DeltaLogError):
            end = F.coalesce(F.max(self._position) + 1, F.lit(0))
            return int(read_table(self._spark, self._path).agg(end).collect()[0][0])

    def check_end(self, until: int) -> None:
        """Raise TableClash if the table has lost the rows before `until`."""
        if self.end() < until:
            raise TableClash(self._path, f"the records before index {until}")

    def pieces(
        self, first: int, until: int, columns: Sequence[str], max_records: int = PIECE_RECORDS
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of [first, until) piece by piece, in order, each with the index after its range.

        Every piece is one range of indexes, sorted by index. A range without rows is yielded too.
        """
        while first < until:
            try:
                end, rows = self._local_piece(first, until, columns, max_records)
            except (NeedsSpark, DeltaLogError):
                most = self._spark_records if SIZED.intersection(columns) else SPARK_PIECE_RECORDS
                end = min(until, first + min(max_records, most))
                rows, is_whole = first_rows(self._by_spark(first, end, columns), self._position)
                if not is_whole:
                    end = rows[self._position][-1].as_py() + 1
                    self._spark_records = max(end - first, self._spark_records // 4)
                elif end - first == self._spark_records:
                    self._spark_records = min(2 * self._spark_records, SPARK_PIECE_RECORDS)
            yield end, rows
            first = end

    def local_pieces(self, first: int, until: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield the same as `pieces`. Raises NeedsSpark, DeltaLogError if only Spark can read the table."""
        while first < until:
            first, rows = self._local_piece(first, until, columns, PIECE_RECORDS)
            yield first, rows

    def _local_piece(
        self, first: int, until: int, columns: Sequence[str], max_records: int
    ) -> tuple[int, pa.Table]:
        inside = self._newest_files().between(first, until)
        begins = [int(file.least[self._position]) for file in inside]
        first = max(first, begins[0] if inside else until)
        end = _end_of_piece(first, until, min(max_records, self._indexes_of(inside)), begins)
        return end, self._in_order(self._from_files(inside, first, end, columns))

    def _newest_files(self) -> OrderedFiles:
        """Return the table's data files. Raises NeedsSpark, DeltaLogError."""
        snapshot = None if self._log is None else self._log.snapshot()
        if snapshot is None or snapshot.reader_features:
            raise NeedsSpark(f"only Spark can read {self._path}")
        if self._files.has_unbounded:
            raise NeedsSpark(f"files of {self._path} have no statistics")
        return self._files

    def _by_spark(self, first: int, until: int, columns: Sequence[str]) -> DataFrame:
        rows, position = read_table(self._spark, self._path), F.col(self._position)
        return rows.where((position >= first) & (position < until)).select(*columns)

    def _from_files(
        self, files: Sequence[DataFile], first: int, until: int, columns: Sequence[str]
    ) -> pa.Table:
        wanted = pa.schema([self._schema.field(name) for name in columns])
        inside = (pc.field(self._position) >= first) & (pc.field(self._position) < until)
        found = []
        for file in files:
            least, most = file.least[self._position], file.most[self._position]
            if most >= first and least < until:
                is_whole = least >= first and most < until
                for rows in rows_of_file(file, wanted, (self._position, first, until)):
                    found.append(rows if is_whole else rows.filter(inside))
        return pa.Table.from_batches(found, wanted)

    def _in_order(self, rows: pa.Table) -> pa.Table:
        indexes = rows[self._position]
        is_ordered = pc.all(pc.less(indexes[:-1], indexes[1:]), min_count=0).as_py()
        return rows if is_ordered else rows.sort_by(self._position)

    def _indexes_of(self, files: Sequence[DataFile]) -> int:
        """Return how many indexes of these files are about PIECE_BYTES; at least one."""
        size = sum(file.size_bytes for file in files)
        span = sum(file.most[self._position] - file.least[self._position] + 1 for file in files)
        return max(1, span * PIECE_BYTES // size) if size else PIECE_RECORDS


def first_rows(rows: DataFrame, position: str) -> tuple[pa.Table, bool]:
    """Return the first rows in the order of `position`, at least one, of about PIECE_BYTES of the columns
    SIZED, and whether they are all: a query whose result is beyond `spark.driver.maxResultSize` fails."""
    sizes = [F.coalesce(_size_of(name), F.lit(0)) for name in rows.columns if name in SIZED]
    if not sizes:
        return rows.toArrow().sort_by(position), True
    through = Window.orderBy(position).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    sized = rows.withColumn(SIZE, reduce(add, sizes)).withColumn(SIZE_THROUGH, F.sum(SIZE).over(through))
    fitting = sized.where(F.col(SIZE_THROUGH) - F.col(SIZE) < PIECE_BYTES).drop(SIZE)
    found = fitting.orderBy(position).toArrow()
    is_whole = found.num_rows == 0 or found[SIZE_THROUGH][-1].as_py() < PIECE_BYTES
    return found.drop_columns([SIZE_THROUGH]), is_whole


def _size_of(name: str) -> Column:
    """Return the size of a column of SIZED in bytes."""
    if name != "headers":
        return F.octet_length(name)

    def plus(total: Column, header: Column) -> Column:
        lengths = (F.octet_length(header[part]) for part in ("name", "value"))
        return reduce(add, (F.coalesce(length, F.lit(0)) for length in lengths), total)

    return F.aggregate(name, F.lit(0), plus)


def _end_of_piece(first: int, until: int, most: int, begins: Sequence[int]) -> int:
    """Return the index after a piece of about `most` indexes from `first` on, at least half as many.

    begins: first indexes of the files, ascending. The piece ends where a file begins, if one begins there: so
    no file is read for two pieces. No short piece is left.
    """
    if until - first <= most + most // 4:
        return until
    return next((begin for begin in reversed(begins) if most < 2 * (begin - first) <= 2 * most), first + most)


def check_columns(snapshot: DeltaSnapshot, schema: StructType) -> None:
    """Raise NeedsSpark unless a table has these columns alone: files that are written again with them would
    lose the values of others, of another program or of a newer version of the log's schema."""
    held = StructType.fromJson(json.loads(snapshot.schema))
    if other := next(changes(schema, held), None):
        raise NeedsSpark(f"{snapshot.path} has another column {'.'.join(other.path)}")
