"""A large part of a log as data files of `entries`: each task of Spark reads a range, and writes a file.

The rows stay in Arrow from the log to the file. Spark's own writer turns them into rows of the JVM and
encodes these again: three times the work for records of 1 KiB. The driver commits all files of a batch
together; those of a batch that failed are removed.

Spark ends the tasks of a batch that failed some seconds later. So each looks for the file `backlog-BATCH`,
which the driver removes first: once its own file is there, either the driver or the task removes that.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition

from spark_jobs.errors import SourceError
from spark_jobs.session.spark_session import is_remote
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.reading import RecordsPartition, read_records
from spark_jobs.tables import schemas
from spark_jobs.tables.local.data_files import WrittenFile, write_pieces
from spark_jobs.tables.table import ENTRIES
from storage.units import MIB

BACKLOG_TAG = "commitlog-backlog"  # of what Spark runs for a large batch
PIECE_BYTES = 64 * MIB  # of a row group, in memory


class BatchEnded(SourceError):
    """The batch of a task has failed, or another attempt of the task has succeeded."""

    condition = "COMMITLOG_BATCH_ENDED"

    def __init__(self, running: Path) -> None:
        super().__init__(
            f"the batch of this task has ended: {running} is not there. The folder of the tables must be one "
            "that the driver and all executors share"
        )


Numbered = tuple[int, InputPartition]


def write_backlog(
    spark: SparkSession, options: SourceOptions, partitions: Sequence[InputPartition], folder: Path
) -> list[WrittenFile]:
    """Write the data records of the partitions, one file for each that has any. Raises what a task raises, as
    text in an error of Spark."""
    batch = str(uuid.uuid4())
    running = folder / f"backlog-{batch}"  # VACUUM removes that of a driver that was killed
    context = spark.sparkContext
    write = partial(_write_partition, options, str(folder), batch)
    context.addJobTag(BACKLOG_TAG)
    made: list[WrittenFile | None] | None = None
    try:
        running.touch()
        made = context.parallelize(list(enumerate(partitions)), len(partitions)).map(write).collect()
    finally:
        try:
            running.unlink(missing_ok=True)
            if made is None:
                for left in folder.glob(f"part-*-{batch}-*"):
                    left.unlink(missing_ok=True)
        finally:
            context.removeJobTag(BACKLOG_TAG)
    return [file for file in made if file is not None]


def interrupt_backlogs(spark: SparkSession) -> None:
    """End what Spark runs for large batches; their drivers get an error of Spark."""
    spark.interruptTag(BACKLOG_TAG)
    if not is_remote(spark):
        spark.sparkContext.cancelJobsWithTag(BACKLOG_TAG)


def _write_partition(
    options: SourceOptions, folder: str, batch: str, numbered: Numbered
) -> WrittenFile | None:
    """Write one file, in a task. A task that runs twice writes two, and one of them is in no commit."""
    number, partition = numbered
    assert isinstance(partition, RecordsPartition)
    pieces: Iterator[pa.Table] = in_pieces(read_records(options, partition), PIECE_BYTES)
    first = next(pieces, None)
    if first is None:
        return None
    schema, pieces = first.schema, chain((first,), pieces)
    del first  # it would stay in memory until the end of the task
    return write_pieces(
        Path(folder),
        _while_there(Path(folder, f"backlog-{batch}"), pieces),
        schema,
        ENTRIES.statistics,
        name=f"part-{number:05d}-{batch}-{uuid.uuid4()}.snappy.parquet",
    )


def _while_there(running: Path, pieces: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the pieces. Raises BatchEnded."""
    for piece in pieces:
        if not running.exists():
            raise BatchEnded(running)
        yield piece


def in_pieces(batches: Iterable[pa.RecordBatch], piece_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows as those of `entries`, in tables of at least so many bytes, but for the last one."""
    schema = schemas.arrow_schema(ENTRIES.schema)
    piece: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        piece.append(batch.select(schema.names))
        size_bytes += batch.nbytes
        if size_bytes >= piece_bytes:
            yield pa.Table.from_batches(piece, schema)
            piece, size_bytes = [], 0
    if piece:
        yield pa.Table.from_batches(piece, schema)
