"""Read of one task: a range of indexes, from replicas or files, as rows for Spark."""

import json
import logging
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark_jobs.errors import LogClash, LogTrimmed, ShortRead
from spark_jobs.source.local_log import LocalLog, NotHere
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.planning import rotate, split_range
from spark_jobs.tables import schemas
from storage.errors import CorruptBatch
from storage.files import OsFileSystem
from storage.format.batch import decode_batch
from storage.format.records import repeated
from storage.units import MIB

MAX_BATCH_ROWS = 8_192
PIECE_BYTES = MIB
FEW_ROWS = 256  # a record batch costs as much as copying this number of rows
RECORDS_ARROW = schemas.arrow_schema(schemas.RECORDS)
LOST = "lost"

logger = logging.getLogger(__name__)


class RecordsPartition(InputPartition):
    """The indexes [first, until), read from `endpoints` in this order.

    last_term: of the record before `until` when the range was planned, None if it was not read. lost_from:
    the indexes from there to `first` were trimmed, and the user continues without them. log_id: of the log
    when the range was planned, "" if it is not known.
    """

    def __init__(
        self,
        first: int,
        until: int,
        endpoints: Sequence[str],
        last_term: int | None = None,
        lost_from: int | None = None,
        log_id: str = "",
    ) -> None:
        super().__init__((first, until))
        self.first = first
        self.until = until
        self.endpoints = list(endpoints)
        self.last_term = last_term
        self.lost_from = lost_from
        self.log_id = log_id


def plan_partitions(
    options: SourceOptions,
    first: int,
    until: int,
    *,
    last_term: int | None = None,
    lost_from: int | None = None,
    log_id: str = "",
) -> list[InputPartition]:
    """Divide [first, until) into minPartitions parts, or more of at most maxRecordsPerPartition indexes.

    Each begins at another replica.
    """
    ranges = split_range(first, until, options.min_partitions, options.max_records_per_partition)
    if not ranges and lost_from is not None and lost_from < first:
        ranges = [(first, first)]
    return [
        RecordsPartition(
            begin,
            end,
            rotate(options.endpoints, first + number),
            last_term if end == until else None,
            lost_from if number == 0 and lost_from is not None and lost_from < begin else None,
            log_id,
        )
        for number, (begin, end) in enumerate(ranges)
    ]


def read_records(
    options: SourceOptions, partition: RecordsPartition, given: LogReads | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the partition's rows, in order, each index of it once, or counted as lost.

    given: reads the log, None for a connection of its own to the partition's endpoints. Raises LogTrimmed
    (unless failOnDataLoss is false), LogClash, ShortRead, Refused, Unreachable.
    """
    client = given or LogReads(partition.endpoints, options.log, options.token)
    first, until = partition.first, partition.until
    try:
        if partition.lost_from is not None:
            yield from lost_rows(options, partition.lost_from, first)
        for records in _local_pages(options, client, partition):
            first = _checked_end(options, partition, records, first)
            yield from rows(options, records)
        while first < until:
            try:
                for records in client.read(first, until, partition.log_id):
                    first = _checked_end(options, partition, records, first)
                    yield from rows(options, records)
            except LogTrimmed as error:
                if options.fail_on_data_loss:
                    raise
                begin = min(error.begin_index, until)
                yield from lost_rows(options, first, begin)
                first = begin
    finally:
        if given is None:
            client.close()


def _checked_end(options: SourceOptions, partition: RecordsPartition, records: pa.Table, first: int) -> int:
    """Return the index after the last of `records`, which begin at `first`. Raises ShortRead, LogClash."""
    if records["index"][0].as_py() != first:
        raise ShortRead(f"log {options.log!r}: received index {records['index'][0]} instead of {first}")
    end = first + int(records.num_rows)
    if end == partition.until and partition.last_term is not None:
        term = records["term"][-1].as_py()
        if term != partition.last_term:
            raise LogClash(
                options.log,
                f"the record at index {end - 1} is of term {term}, it was of {partition.last_term}",
            )
    return end


def _local_pages(options: SourceOptions, client: LogReads, partition: RecordsPartition) -> Iterator[pa.Table]:
    """Yield the range from the files of a node on this machine, as far as they hold it: the rest is read
    by HTTP."""
    first, until = partition.first, partition.until
    if not options.data_folders or first >= until:
        return
    known_id = client.log_id()
    if partition.log_id not in ("", known_id):
        return  # that node has another log of this name: reads by HTTP find out which is right
    log_id = int(known_id, 16)
    try:
        last = decode_batch(client.stored_batch(until - 1), log_id=log_id)
    except CorruptBatch as error:
        raise ShortRead(f"log {options.log!r}: the batch of index {until - 1} is damaged: {error}") from error
    reasons = []
    for folder in options.data_folders:
        log = LocalLog(OsFileSystem(), folder, options.log, log_id)
        try:
            for records in log.read(first, last):
                page = records.slice(0, until - first)
                first += page.num_rows
                yield page
            return
        except NotHere as reason:
            reasons.append(str(reason))
    logger.warning("log %s: not read in place from index %d on: %s", options.log, first, "; ".join(reasons))


def lost_rows(options: SourceOptions, first: int, until: int) -> Iterator[pa.RecordBatch]:
    """Report that [first, until) was trimmed before it was read: in the log, and with includeControl as a
    row.

    The row is at the first missing index; its type is `lost`, its value the range.
    """
    logger.warning(
        "log %s: the records [%d, %d) were trimmed before they were read; continuing at %d",
        *(options.log, first, until, until),
    )
    if options.include_control:
        value = json.dumps({"kind": LOST, "first_index": first, "until_index": until}).encode()
        row = dict.fromkeys(RECORDS_ARROW.names) | {
            "log": options.log,
            "index": first,
            "value": value,
            "type": LOST,
        }
        yield pa.RecordBatch.from_pylist([row], schema=RECORDS_ARROW)


def rows(options: SourceOptions, records: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield records in the source's schema, without a copy where stored batches are long enough.

    records: each of its record batches has data or control records only. Those with few rows are joined, long
    ones split: Spark iterates one row by row, and a small one stays in the processor's cache meanwhile.
    """
    few: list[pa.RecordBatch] = []
    for batch in records.to_batches():
        if not batch.num_rows or not (options.include_control or batch.column("type")[0].as_py() == "data"):
            continue
        if batch.num_rows < FEW_ROWS:
            few.append(batch)
            continue
        if few:
            yield from split(options, pa.concat_batches(few))
            few.clear()
        yield from split(options, batch)
    if few:
        yield from split(options, pa.concat_batches(few))


def split(options: SourceOptions, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a record batch of READ_SCHEMA in the source's schema, in pieces of about PIECE_BYTES."""
    columns = [repeated(options.log, batch.num_rows), *batch.columns]
    typed = [column.cast(type) for column, type in zip(columns, RECORDS_ARROW.types, strict=True)]
    whole = pa.RecordBatch.from_arrays(typed, schema=RECORDS_ARROW)
    count = min(MAX_BATCH_ROWS, max(1, PIECE_BYTES * batch.num_rows // max(1, batch.nbytes)))
    for start in range(0, batch.num_rows, count):
        yield whole.slice(start, count)
