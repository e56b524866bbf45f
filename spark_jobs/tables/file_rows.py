"""Rows of a table's data files, read without Spark, with the columns that the table has now."""

from collections.abc import Iterator

import pyarrow as pa

from app.tables.table_files import DataFile
from spark_jobs.errors import TableUnreadable
from spark_jobs.tables.local.commits import NeedsSpark
from spark_jobs.tables.snapshot import read_rows


def rows_of_file(
    file: DataFile, wanted: pa.Schema, within: tuple[str, int, int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a data file as `filled`. within: as of `read_rows`. Raises NeedsSpark for a file that
    cannot be read here, too: it has no statistics, or was removed meanwhile."""
    try:
        for rows in read_rows(file, wanted.names, within):
            yield filled(rows, wanted)
    except (TableUnreadable, OSError, pa.ArrowException) as error:
        raise NeedsSpark(f"{file.path}: {error}") from error


def filled(rows: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """Return rows of a data file with the columns `wanted`; null for those that the table got later.

    Raises NeedsSpark for a column of another type.
    """
    known = set(rows.schema.names)
    try:
        arrays = [
            rows.column(each.name).cast(each.type)
            if each.name in known
            else pa.nulls(rows.num_rows, each.type)
            for each in wanted
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise NeedsSpark(str(error)) from error
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
