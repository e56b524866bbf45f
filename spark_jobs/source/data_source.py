"""`format("commitlog")`: a log, or the journals of its nodes, as a batch or a stream of rows.

    spark.dataSource.register(CommitlogDataSource)
    spark.readStream.format("commitlog").option("endpoint", "http://127.0.0.1:8101").load()

The classes here only translate between Spark and the pure modules: options.py, planning.py, log_reads.py.

Spark imports this in a new process for each stream and each batch that it plans. What few of these need,
the sink, the union with a table and a stream over many logs, is imported where it is used: 0.2 s of a
processor each time.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_jobs.errors import LogTrimmed, OptionError, plain_errors
from spark_jobs.source.answers import LogTail
from spark_jobs.source.events import EventsBatchReader, EventsStreamReader
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import EVENTS, SourceOptions, parse_options
from spark_jobs.source.planning import (
    EARLIEST,
    LATEST,
    RecordsOffset,
    SmallBatchPace,
    admit_bytes,
    admit_records,
    check_not_shorter,
    check_same_log,
    check_same_term,
)
from spark_jobs.source.read_limits import default_limit
from spark_jobs.source.reading import RecordsPartition, plan_partitions, read_records
from spark_jobs.source.stopping import end_quietly
from spark_jobs.tables import schemas


class CommitlogDataSource(DataSource):
    """A replicated commit log as a Spark data source. Options: docs/api.md §6."""

    @classmethod
    def name(cls) -> str:
        return "commitlog"

    @plain_errors()
    def schema(self) -> StructType:
        return schemas.EVENTS if parse_options(self.options).stream == EVENTS else schemas.RECORDS

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options).for_batch()
        check_schema(self.schema(), schema)
        if options.stream == EVENTS:
            return EventsBatchReader(options)
        return RecordsBatchReader(options)

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            options = parse_options(self.options).for_stream()
            check_schema(self.schema(), schema)
        except OptionError as error:
            return RefusedStreamReader(error)
        if options.logs:
            from spark_jobs.source.many_logs import LogsStreamReader

            return LogsStreamReader(options)
        return EventsStreamReader(options) if options.stream == EVENTS else RecordsStreamReader(options)

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_jobs.sink.options import check_columns, parse_sink_options
        from spark_jobs.sink.writer import CommitlogWriter

        options = parse_sink_options(self.options, streaming=False)
        if overwrite:
            raise OptionError("a log cannot be overwritten: use mode('append')")
        check_columns(schema)
        return CommitlogWriter(options)

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_jobs.sink.options import check_columns, parse_sink_options
        from spark_jobs.sink.writer import CommitlogStreamWriter

        options = parse_sink_options(self.options, streaming=True)
        if overwrite:
            raise OptionError("a log cannot be overwritten: use outputMode('append')")
        check_columns(schema)
        return CommitlogStreamWriter(options)


def check_schema(own: StructType, wanted: StructType) -> None:
    """Raise OptionError for a schema of the user's own: the source has one, and casts nothing."""
    if [(field.name, field.dataType) for field in own] != [(field.name, field.dataType) for field in wanted]:
        raise OptionError(
            f"commitlog has the schema {own.simpleString()}: leave out .schema(...) and use select"
        )


class RecordsBatchReader(DataSourceReader):
    """Reads the indexes from startingIndex to endingIndex, both inclusive, as resolved at planning.

    It takes no filters: Spark 4.2 keeps the first plan of a DataFrame or view for its later queries, which
    would lack rows.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        if self.options.between is not None:
            start, end = json.loads(self.options.between)
            stream = RecordsStreamReader(self.options)
            try:
                return list(stream.partitions(start, end))
            finally:
                stream.stop()
        client = open_client(self.options)
        partitions: list[InputPartition] = []
        try:
            log_id = client.log_id()  # first: of a log that is created again after it, nothing is read
            if self.options.union:
                from spark_jobs.source.union import plan_union

                partitions, first, until = plan_union(self.options, client)
                lost_from = None
            else:
                first, until, lost_from = self._range(client)
        finally:
            client.close()
        partitions += plan_partitions(self.options, first, until, lost_from=lost_from, log_id=log_id)
        return partitions or [RecordsPartition(first, first, self.options.endpoints)]

    def _range(self, client: LogReads) -> tuple[int, int, int | None]:
        """Return the first index, the exclusive end, and the first requested index that was lost, None for
        none.

        Raises OptionError, LogTrimmed.
        """
        tail = client.tail(confirmed=True)
        first, until = asked_range(self.options, tail)
        lost_from = None
        if isinstance(self.options.starting_index, int) and self.options.starting_index < first:
            lost_from = self.options.starting_index
        return first, until, lost_from

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RecordsPartition):
            from spark_jobs.source.union import FilesPartition, read_files

            assert isinstance(partition, FilesPartition)
            return read_files(partition)
        return read_records(self.options, partition)


class RefusedStreamReader(DataSourceStreamReader):
    """Reports an error in the options when the query starts.

    Spark replaces an error that `streamReader` itself raises by an error of its own, which names no option.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error


class RecordsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams a log. An offset contains the log's id and the term before its next index, so a clash is
    detected."""

    def __init__(self, options: SourceOptions, client: LogReads | None = None) -> None:
        """client: of a reader that stays in this process; None to create one where it is used."""
        self.options = options
        self.target: int | None = None  # of Trigger.AvailableNow: exclusive end of the query
        self.latest: RecordsOffset | None = None
        self._client = client
        self._pace = SmallBatchPace(options.min_records_per_trigger, options.max_trigger_delay_s)

    @property
    def client(self) -> LogReads:
        """Created at first use, because the reader itself is sent between processes."""
        if self._client is None:
            self._client = open_client(self.options)
        return self._client

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        first = first_index(self.options, self.client.tail(confirmed=True))
        return self.offset_at(first, self.client.log_id()).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self.options)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self.client.tail(confirmed=True).next_index

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = RecordsOffset.from_json(start)
        while True:
            try:
                return self._latest(offset, limit) or start
            except LogTrimmed:  # between two checks; the next one starts at the log's beginning
                if self.options.fail_on_data_loss:
                    raise

    def _latest(self, offset: RecordsOffset, limit: ReadLimit) -> dict[str, Any] | None:
        """Return the end of the next micro-batch, None when there are no new records."""
        tail = self.client.tail(confirmed=False)
        if self.target is not None and not tail.confirmed and tail.next_index < self.target:
            tail = self.client.tail(confirmed=True)  # the query would end here
        if tail.confirmed:
            check_not_shorter(self.options.log, offset, tail.next_index)
            if self.target is not None:  # an unclean election may have lost what the query has not read yet
                self.target = min(self.target, tail.next_index)
        until = tail.next_index if self.target is None else min(tail.next_index, self.target)
        first = self._first_held(offset.next_index, tail)
        if until <= first:
            return None
        if self.target is None and not self._pace.takes(until - first, time.monotonic()):
            return None
        self.verify(offset)
        until = self._admit(first, until, limit)
        lost = offset.lost + first - offset.next_index
        self.latest = replace(self.offset_at(until, offset.log_id), lost=lost)
        return self.latest.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self.latest is None else self.latest.to_json()

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = RecordsOffset.from_json(start), RecordsOffset.from_json(end)
        if until != self.latest:  # planned by an earlier run: is it still the same log?
            self.verify(begin)
            self.verify(until)
        if begin.next_index >= until.next_index:
            return []
        first = self._first_held(begin.next_index, self.client.tail(confirmed=False))
        first = min(first, until.next_index)
        return plan_partitions(
            self.options,
            first,
            until.next_index,
            last_term=until.term,
            lost_from=begin.next_index,
            log_id=until.log_id,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RecordsPartition)
        return read_records(self.options, partition)

    def read_here(self, start: RecordsOffset, end: RecordsOffset) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a micro-batch that this reader has just planned, in this process."""
        for partition in self.partitions(start.to_json(), end.to_json()):
            assert isinstance(partition, RecordsPartition)
            yield from read_records(self.options, partition, self.client)

    def stop(self) -> None:
        end_quietly()
        if self._client is not None:
            self._client.close()

    def _admit(self, first: int, until: int, limit: ReadLimit) -> int:
        """Return the end of what one micro-batch takes of [first, until).

        Both limits apply unless Spark lifts them.
        """
        if isinstance(limit, ReadAllAvailable):
            return until
        until = admit_records(first, until, self.options.max_records_per_trigger)
        return admit_bytes(first, until, self.options.max_bytes_per_trigger, self._position_of)

    def _position_of(self, index: int) -> int:
        place = self.client.place(index)
        if place is None:
            raise LogTrimmed(self.options.log, index, self.client.tail(confirmed=False).begin_index)
        return place.offset

    def _first_held(self, next_index: int, tail: LogTail) -> int:
        """Return `next_index`, or the log's beginning if that is later and the user accepts the loss."""
        if next_index < tail.begin_index and self.options.fail_on_data_loss:
            raise LogTrimmed(self.options.log, next_index, tail.begin_index)
        return max(next_index, tail.begin_index)

    def offset_at(self, next_index: int, log_id: str) -> RecordsOffset:
        if next_index == 0:
            return RecordsOffset(0, 0, log_id)
        place = self.client.place(next_index - 1)
        return RecordsOffset(next_index, None if place is None else place.term, log_id)

    def verify(self, offset: RecordsOffset) -> None:
        """Raise LogClash unless the log is still the one in which `offset` was taken."""
        check_same_log(self.options.log, offset.log_id, self.client.log_id())
        if offset.next_index > 0:
            check_same_term(self.options.log, offset, self.offset_at(offset.next_index, offset.log_id).term)


def asked_range(options: SourceOptions, tail: LogTail) -> tuple[int, int]:
    """Return [first, until) of a batch query in a log with this tail. Raises OptionError, LogTrimmed."""
    first, until = max(first_index(options, tail), tail.begin_index), options.until(tail.next_index)
    if first > until:
        if options.starting_index in (first, LATEST):
            raise OptionError(f"startingIndex must be at most the end of the read, {until - 1}, got {first}")
        if options.fail_on_data_loss:
            raise LogTrimmed(options.log, until - 1, tail.begin_index)
        first = until  # all of the range was trimmed
    return first, until


def open_client(options: SourceOptions) -> LogReads:
    return LogReads(options.endpoints, options.log, options.token)


def first_index(options: SourceOptions, tail: LogTail) -> int:
    """Return the index for startingIndex in a log with this tail. It is before the log's beginning where the
    user accepts that records were trimmed. Raises OptionError, LogTrimmed."""
    if options.starting_index == EARLIEST:
        return tail.begin_index
    if options.starting_index == LATEST:
        return tail.next_index
    assert isinstance(options.starting_index, int)
    first = options.starting_index
    if first > tail.next_index:
        raise OptionError(
            f"startingIndex must be at most {tail.next_index}, the next index of the log, got {first}"
        )
    if first < tail.begin_index and options.fail_on_data_loss:
        raise LogTrimmed(options.log, first, tail.begin_index)
    return first
