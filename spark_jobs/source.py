"""`format("commitlog")`: a log, or the journals of its nodes, as a batch or a stream of rows.

    spark.dataSource.register(CommitlogDataSource)
    spark.readStream.format("commitlog").option("endpoint", "http://127.0.0.1:8101").load()

The classes here only translate between Spark and the pure modules: options.py, planning.py, client.py.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_jobs import schemas
from spark_jobs.client import LogClient, Tail
from spark_jobs.errors import LogClash, OptionError, Trimmed
from spark_jobs.options import EVENTS, SourceOptions, parse_options
from spark_jobs.planning import (
    EARLIEST,
    LATEST,
    RecordsOffset,
    admit_bytes,
    admit_records,
    check_not_shorter,
    check_same_log,
    check_same_term,
    rotate,
    split_range,
)
from spark_jobs.source_events import EventsBatchReader, EventsStreamReader

MAX_BATCH_ROWS = 8_192
RECORDS_ARROW = schemas.arrow_schema(schemas.RECORDS)


class CommitlogDataSource(DataSource):
    """A replicated commit log as a Spark data source. Options: API.md §6."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    def schema(self) -> StructType:
        return schemas.EVENTS if parse_options(self.options).stream == EVENTS else schemas.RECORDS

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options).for_batch()
        check_schema(self.schema(), schema)
        return EventsBatchReader(options) if options.stream == EVENTS else RecordsBatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options).for_stream()
        check_schema(self.schema(), schema)
        return EventsStreamReader(options) if options.stream == EVENTS else RecordsStreamReader(options)


def check_schema(own: StructType, wanted: StructType) -> None:
    """Raise OptionError for a schema of the user's own: the source has one, and casts nothing."""
    if [(field.name, field.dataType) for field in own] != [(field.name, field.dataType) for field in wanted]:
        raise OptionError(
            f"commitlog has the schema {own.simpleString()}: leave out .schema(...) and use select"
        )


class RecordsPartition(InputPartition):
    """The indexes [first, until), read from `endpoints` in this order."""

    def __init__(self, first: int, until: int, endpoints: Sequence[str]) -> None:
        super().__init__((first, until))
        self.first = first
        self.until = until
        self.endpoints = list(endpoints)


class RecordsBatchReader(DataSourceReader):
    """Reads the indexes from startingIndex to endingIndex, both inclusive, as they are at planning."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        client = open_client(self.options)
        tail = client.tail(confirmed=True)
        client.close()
        first = first_index(self.options, tail)
        until = tail.next_index
        if isinstance(self.options.ending_index, int):
            until = self.options.ending_index + 1
            if until > tail.next_index:
                raise OptionError(f"endingIndex {until - 1} is past the last index, {tail.next_index - 1}")
        if first > until:
            raise OptionError(f"startingIndex {first} is past the end of what is to be read, {until - 1}")
        return plan_partitions(self.options, first, until) or [
            RecordsPartition(first, first, self.options.endpoints)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RecordsPartition)
        return read_records(self.options, partition)


class RecordsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams a log. An offset names the log, and the term before its next index, so that a clash shows."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.target: int | None = None  # of Trigger.AvailableNow: nothing from this index on is read
        self.latest: RecordsOffset | None = None
        self._client: LogClient | None = None

    @property
    def client(self) -> LogClient:
        """Made where it is first used: the reader itself travels between processes."""
        if self._client is None:
            self._client = open_client(self.options)
        return self._client

    def initialOffset(self) -> dict[str, Any]:
        first = first_index(self.options, self.client.tail(confirmed=True))
        return self._offset_at(first, self.client.log_id()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.max_records_per_trigger is not None:
            return ReadMaxRows(self.options.max_records_per_trigger)
        if self.options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self.options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self.client.tail(confirmed=True).next_index

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = RecordsOffset.from_json(start)
        tail = self.client.tail(confirmed=False)
        if tail.confirmed:
            check_not_shorter(self.options.log, offset, tail.next_index)
        until = tail.next_index if self.target is None else min(tail.next_index, self.target)
        first = self._first_held(offset.next_index, tail)
        if until <= first:
            return start
        self._verify(offset)
        until = self._admit(first, until, limit)
        self.latest = self._offset_at(until, offset.log_id)
        return self.latest.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self.latest is None else self.latest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = RecordsOffset.from_json(start), RecordsOffset.from_json(end)
        if until != self.latest:  # planned by a run before this one: is it still the same log?
            self._verify(begin)
            self._verify(until)
        if begin.next_index >= until.next_index:
            return []
        first = self._first_held(begin.next_index, self.client.tail(confirmed=False))
        return plan_partitions(self.options, first, until.next_index)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RecordsPartition)
        return read_records(self.options, partition)

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()

    def _admit(self, first: int, until: int, limit: ReadLimit) -> int:
        """The end of what one micro-batch takes of [first, until):

        both limits hold unless Spark lifts them.
        """
        if isinstance(limit, ReadAllAvailable):
            return until
        until = admit_records(first, until, self.options.max_records_per_trigger)
        return admit_bytes(first, until, self.options.max_bytes_per_trigger, self._position_of)

    def _position_of(self, index: int) -> int:
        place = self.client.place(index)
        if place is None:
            raise Trimmed(self.options.log, index, self.client.tail(confirmed=False).begin_index)
        return place.offset

    def _first_held(self, next_index: int, tail: Tail) -> int:
        """`next_index`, or the log's begin if that is later and the user accepts the loss."""
        if next_index < tail.begin_index and self.options.fail_on_data_loss:
            raise Trimmed(self.options.log, next_index, tail.begin_index)
        return max(next_index, tail.begin_index)

    def _offset_at(self, next_index: int, log_id: str) -> RecordsOffset:
        if next_index == 0:
            return RecordsOffset(0, 0, log_id)
        place = self.client.place(next_index - 1)
        return RecordsOffset(next_index, None if place is None else place.term, log_id)

    def _verify(self, offset: RecordsOffset) -> None:
        """Raise LogClash unless the log is still the one in which `offset` was taken."""
        check_same_log(self.options.log, offset.log_id, self.client.log_id())
        if offset.next_index > 0:
            check_same_term(self.options.log, offset, self._offset_at(offset.next_index, offset.log_id).term)


def open_client(options: SourceOptions) -> LogClient:
    return LogClient(options.endpoints, options.log, options.token)


def first_index(options: SourceOptions, tail: Tail) -> int:
    """The index that startingIndex means in a log with this tail. Raises Trimmed, LogClash."""
    if options.starting_index == EARLIEST:
        return tail.begin_index
    if options.starting_index == LATEST:
        return tail.next_index
    assert isinstance(options.starting_index, int)
    first = options.starting_index
    if first > tail.next_index:
        raise LogClash(options.log, f"it ends before index {tail.next_index}, startingIndex is {first}")
    if first < tail.begin_index and options.fail_on_data_loss:
        raise Trimmed(options.log, first, tail.begin_index)
    return max(first, tail.begin_index)


def plan_partitions(options: SourceOptions, first: int, until: int) -> list[InputPartition]:
    """[first, until) in minPartitions parts, each of which begins at another replica."""
    return [
        RecordsPartition(begin, end, rotate(options.endpoints, first + number))
        for number, (begin, end) in enumerate(split_range(first, until, options.min_partitions))
    ]


def read_records(options: SourceOptions, partition: RecordsPartition) -> Iterator[pa.RecordBatch]:
    """The partition's rows, in order, in batches that Spark takes as they are."""
    client = LogClient(partition.endpoints, options.log, options.token)
    first = partition.first
    try:
        while first < partition.until:
            try:
                for records in client.read(first, partition.until):
                    first += records.num_rows
                    yield from rows(options, records)
            except Trimmed as error:
                if options.fail_on_data_loss:
                    raise
                first = min(error.begin_index, partition.until)
    finally:
        client.close()


def rows(options: SourceOptions, records: pa.Table) -> Iterator[pa.RecordBatch]:
    """Records as the service sends them in the source's schema, cut and joined to MAX_BATCH_ROWS rows."""
    if not options.include_control:
        is_data = pc.equal(records["type"], "data")
        if not pc.all(is_data).as_py():
            records = records.filter(is_data)
    log = pa.chunked_array([pa.repeat(pa.scalar(options.log), records.num_rows)])
    columns = [log if name == "log" else records[name] for name in RECORDS_ARROW.names]
    table = pa.table(columns, names=RECORDS_ARROW.names).cast(RECORDS_ARROW)
    for start in range(0, table.num_rows, MAX_BATCH_ROWS):
        yield from table.slice(start, MAX_BATCH_ROWS).combine_chunks().to_batches()
