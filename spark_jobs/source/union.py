"""`tail=union`: history from the table `entries`, the newest records from the log, as one read.

The read first gets the log's committed end, then the table's newest version. The table holds every data
record before its own end: records below that end are read from the table alone, later ones from the log
alone, up to the committed end. A materializer that runs meanwhile changes neither.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from app.tables.names import LOG_ID_PROPERTY
from spark_jobs.errors import LogTrimmed, OptionError
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.planning import (
    EARLIEST,
    LATEST,
    RecordsOffset,
    check_not_shorter,
    check_same_log,
    check_same_term,
    split_range,
)
from spark_jobs.source.reading import RECORDS_ARROW
from spark_jobs.tables.schemas import ENTRIES
from spark_jobs.tables.snapshot import EntriesSnapshot, TableFile, read_rows, read_snapshot

TABLE = "entries"


class FilesPartition(InputPartition):
    """The rows of some data files with an index of [first, until)."""

    def __init__(self, files: Sequence[TableFile], first: int, until: int) -> None:
        super().__init__((first, until, len(files)))
        self.files = list(files)
        self.first = first
        self.until = until


def plan_union(options: SourceOptions, client: LogReads) -> tuple[list[InputPartition], int, int]:
    """Return the partitions of the table's part, and the range to read from the log.

    Raises LogClash (the table is another log's), LogTrimmed (the table lacks the beginning, or the log lacks
    what follows the table), OptionError, TableUnreadable.
    """
    tail = client.tail(confirmed=True)
    snapshot = read_snapshot(_path_of(options, client))
    _check_table(options, client, snapshot, tail.next_index)
    until = options.until(tail.next_index)
    if options.starting_index == LATEST:
        first = tail.next_index
    else:
        first = 0 if options.starting_index == EARLIEST else int(str(options.starting_index))
    if first > until:
        raise OptionError(f"startingIndex must be at most the end of the read, {until - 1}, got {first}")
    seam = snapshot.next_index
    is_asked_for = options.starting_index != EARLIEST and options.fail_on_data_loss
    if is_asked_for and first < min(snapshot.begin_index, seam, until):
        raise LogTrimmed(options.log, first, snapshot.begin_index)
    from_log = max(first, seam)
    if from_log < min(tail.begin_index, until):
        if options.starting_index == EARLIEST and seam == 0:
            from_log = tail.begin_index  # an empty table: the log's own beginning
        elif options.fail_on_data_loss:
            raise LogTrimmed(options.log, from_log, tail.begin_index)
    return plan_files(options, snapshot, first, min(until, seam)), from_log, max(from_log, until)


def plan_files(
    options: SourceOptions, snapshot: EntriesSnapshot, first: int, until: int
) -> list[InputPartition]:
    """Return the data files that hold rows of [first, until), in minPartitions parts."""
    files = [file for file in snapshot.files if file.first_index < until and first <= file.last_index]
    parts = split_range(0, len(files), options.min_partitions)
    return [FilesPartition(files[begin:end], first, until) for begin, end in parts]


def read_files(partition: FilesPartition) -> Iterator[pa.RecordBatch]:
    """Yield the partition's rows in the source's schema. Raises TableUnreadable."""
    for file in partition.files:
        for rows in read_rows(file, ENTRIES.fieldNames()):
            if not partition.first <= file.first_index <= file.last_index < partition.until:
                index = rows.column("index")
                inside = pc.and_(pc.greater_equal(index, partition.first), pc.less(index, partition.until))
                rows = rows.filter(inside)
            kinds = pa.repeat(pa.scalar("data"), rows.num_rows)
            columns = [kinds if name == "type" else rows.column(name) for name in RECORDS_ARROW.names]
            table = pa.table(columns, names=RECORDS_ARROW.names).cast(RECORDS_ARROW)
            yield from table.combine_chunks().to_batches()


def _path_of(options: SourceOptions, client: LogReads) -> str:
    path = options.table or client.table_path(TABLE)
    if path is None:
        raise OptionError(
            f"tail=union: the service does not know the location of {TABLE}; set the option `table`"
        )
    return path


def _check_table(
    options: SourceOptions, client: LogReads, snapshot: EntriesSnapshot, next_index: int
) -> None:
    """Raise LogClash unless the table was created from this log, and OptionError for any other table."""
    if LOG_ID_PROPERTY not in snapshot.properties:
        raise OptionError(f"table: {snapshot.path} is not a table {TABLE} of a log")
    log_id = snapshot.properties[LOG_ID_PROPERTY]
    check_same_log(options.log, log_id, client.log_id())
    end = RecordsOffset(snapshot.next_index, snapshot.last_term, log_id)
    if end.next_index > next_index:  # written since the end was read, or another log: read the end again
        check_not_shorter(options.log, end, client.tail(confirmed=True).next_index)
    if end.next_index > 0:
        place = client.place(end.next_index - 1)
        check_same_term(options.log, end, None if place is None else place.term)
