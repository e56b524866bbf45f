"""The table `entries`: each data record of the log once, in the order of the log.

The table itself records its progress: every start, after a kill or beside another driver, begins at the index
after its last row, and every append claims that index (tables/claims.py).

The rows are those of a micro-batch of the query over all logs (query.py). What the query has passed without
the table, after a failure or beside another driver, is read here: a small batch by the driver, a large one
by tasks of Spark (backlog.py), both with the range and the checks of a stream (source/data_source.py).
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from app.tables.names import BEGIN_PROPERTY, LOG_ID_PROPERTY
from spark_jobs.errors import LogClash, LogTrimmed, RecordsTrimmed, TableUnreadable, own_error
from spark_jobs.job_lines import warn
from spark_jobs.materialize.backlog import BACKLOG_TAG, write_backlog
from spark_jobs.materialize.progress import batch_after
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import COMPILED, INTERPRETED, is_remote
from spark_jobs.source.answers import Place
from spark_jobs.source.data_source import RecordsStreamReader
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import BETWEEN, parse_options
from spark_jobs.source.planning import RecordsOffset, check_not_shorter, check_same_log, check_same_place
from spark_jobs.tables import schemas
from spark_jobs.tables.claims import MAX_REFUSALS, append_once
from spark_jobs.tables.conflicts import SPARK_ERRORS
from spark_jobs.tables.local.commits import NeedsSpark
from spark_jobs.tables.local.data_files import WrittenFile
from spark_jobs.tables.metadata import set_properties, table_properties
from spark_jobs.tables.removals import Removals
from spark_jobs.tables.snapshot import EntriesSnapshot, last_timestamp_us, read_snapshot
from spark_jobs.tables.table import ENTRIES, TableClash, read_table
from spark_jobs.tables.table_writer import TableWriter
from spark_jobs.tables.transforms import entries
from storage.units import MIB, NO_INDEX

APPLICATION = "commitlog-entries"
SMALL_BATCH_RECORDS = 20_000  # up to this number the driver reads and writes a batch itself
SMALL_BATCH_BYTES = 32 * MIB  # and about so many of rows in memory; the rest is the next batch
BATCH_OPTIONS = ("endpoint", "token", "log", "maxRecordsPerPartition", "dataFolder")  # of a large batch


class DependentTables(Protocol):
    """Tables that are made from `entries`, after each of its commits."""

    def open(self) -> None:
        """Forget the progress: other drivers may have written."""
        ...

    def extend(self, until: int, term: int | None) -> None:
        """Take over all records before `until`, which `entries` holds. term: of the record before it."""
        ...


class EntriesJob:
    """Fills one log's `entries`. One batch at a time; other drivers may do the same.

    next_index: after the last row of the table; without rows, the log's beginning. covered_index: the last
    index of the log that is known to be in the table, or to be a control record. rows: of the table. target:
    end of a job that does not follow, exclusive. last_batch: its number, records, and milliseconds by part.
    """

    name = "entries"

    def __init__(
        self,
        spark: SparkSession,
        client: LogReads,
        path: str,
        options: Mapping[str, str],
        *,
        follows: bool = True,
        dependents: Sequence[DependentTables] = (),
    ) -> None:
        """client: of the log. options: of the source, except the start. follows: records arrive while it
        runs."""
        self.spark = spark
        self.client = client
        self.path = path
        self.options = options
        self.follows = follows
        self.dependents = dependents
        self.next_index = 0
        self.covered_index = -1
        self.rows = 0
        self.target: int | None = None
        self.offset = RecordsOffset(0, None, "")
        self.last_batch: dict[str, Any] | None = None
        self.waiting = 0  # records that the log has beyond the offset, as known
        self.has_more = False  # the last batch did not hold all
        self._is_here = not is_url(path) and not is_remote(spark)  # only Spark can read a table elsewhere
        self._writer = TableWriter(spark, path, ENTRIES, follows=follows)
        self._removals = Removals(spark, path, elsewhere=True)
        self._reader: RecordsStreamReader | None = None
        self._is_verified = False  # the log was compared with the table since it was opened

    def open(self) -> None:
        """Create the table if needed, and find the start of the next batch.

        Raises LogClash if the log is not the table's, RecordsTrimmed if it lacks what the table needs next.
        """
        log_id = self.client.log_id()
        self._removals.start()
        snapshot = None
        tail = self.client.tail(confirmed=True)
        properties: Mapping[str, str] = {LOG_ID_PROPERTY: log_id, BEGIN_PROPERTY: str(tail.begin_index)}
        if self._writer.create(properties):
            self.rows = 0
        else:
            snapshot = self._snapshot()
            properties = self._properties(snapshot)
            check_same_log(self.client.log, properties.get(LOG_ID_PROPERTY, log_id), log_id)
            self._adopt(snapshot)
            tail = self.client.tail(confirmed=True)  # read after the table, whose end is never beyond it
        if self.rows == 0:
            if properties.get(BEGIN_PROPERTY) != str(tail.begin_index):
                if self._has_grown(NO_INDEX):
                    return self.open()
                set_properties(self.spark, self.path, {BEGIN_PROPERTY: str(tail.begin_index)})
            if tail.begin_index > 0:
                warn(f"{self.path}: begins at index {tail.begin_index}, as the log does now")
            self.next_index = tail.begin_index
        self.covered_index = self.next_index - 1  # it may be another table than before
        last = self._last_place(snapshot)
        offset = RecordsOffset(self.next_index, last.term if self.rows > 0 else None, log_id)
        check_not_shorter(self.client.log, offset, tail.next_index)
        if self.rows > 0:
            check_same_place(self.client.log, offset, last, self.client.place(offset.next_index - 1))
            if self.next_index < tail.begin_index:
                if self._has_grown(self.next_index):
                    return self.open()
                raise RecordsTrimmed(self.client.log, self.path, self.next_index, tail.begin_index)
        self.offset = offset
        self._is_verified = False
        self.waiting = max(0, tail.next_index - offset.next_index)
        if not self.follows and self.target is None:
            self.target = tail.next_index
        options = parse_options({**self.options, "startingIndex": str(offset.next_index)}).for_stream()
        self._reader = RecordsStreamReader(options, self.client)
        self._reader.target = self.target
        for dependent in self.dependents:
            dependent.open()
            if self.rows > 0:
                # what was left when the driver before this one ended
                dependent.extend(self.next_index, offset.term)

    def open_after(self, clash: LogClash) -> None:
        """Open the table again if a clash is about control records after its last row. An unclean election
        may lose these alone, such as the last move of the cursor. Raises LogClash."""
        if self.offset.next_index <= self.next_index:
            raise clash
        self.open()

    @property
    def read_until(self) -> int:
        """The first index that was not read yet."""
        return self.offset.next_index

    @property
    def is_large(self) -> bool:
        return self.waiting > SMALL_BATCH_RECORDS

    @property
    def done(self) -> bool:
        return self.target is not None and self.offset.next_index >= self.target

    def step(self) -> bool:
        """Extend the table by what the log has now, within the limits of a batch; return whether there was
        something.

        Raises TableClash if the table refuses a claim without another writer, RecordsTrimmed.
        """
        return self._for_table(self._step, otherwise=True)

    def _step(self) -> bool:
        assert self._reader is not None
        began_s = time.monotonic()
        start = self.offset
        limit = self._reader.getDefaultReadLimit()
        end = RecordsOffset.from_json(self._reader.latestOffset(start.to_json(), limit))
        planned, self.target = end.next_index, self._reader.target
        self.has_more = False
        if planned <= start.next_index:
            self.waiting = 0
            self._let_dependents_repair()
            return False
        planned_s = time.monotonic()
        count = self.rows
        if self.is_large and end.next_index - start.next_index > SMALL_BATCH_RECORDS:
            read_s = planned_s
            self._write_large(end, partial(self._frame, start, end))
        else:
            rows, end = self._read(self._reader, start, end)
            read_s = time.monotonic()
            self.write(rows, end.next_index)
        self.has_more = end.next_index < planned
        self._note_end(end, count, (began_s, planned_s, read_s))
        return True

    def _for_table(self, work: Callable[[], bool], *, otherwise: bool) -> bool:
        """Return the result of `work`. Raises RecordsTrimmed for LogTrimmed, also from a task of Spark.

        otherwise: returned if another driver has written what was trimmed to the table, which is open again.
        """
        try:
            return work()
        except (LogTrimmed, *SPARK_ERRORS) as error:
            if (own := own_error(error)) is None or own[0] is not LogTrimmed:
                raise
            first = self.offset.next_index
            if self._has_grown(first):
                self.open()
                return otherwise
            begin_index = self.client.tail(confirmed=False).begin_index
            raise RecordsTrimmed(self.client.log, self.path, first, begin_index) from error

    def _has_grown(self, end: int) -> bool:
        """Return whether the table has rows after `end`, where it ended when it was read."""
        self.refresh()
        return self.rows > 0 and self.next_index > end

    def _let_dependents_repair(self) -> None:
        """Let the dependents repair what RESTORE took from their tables: the log has nothing new for them.
        Raises TableClash if this table, from which they repair, has lost rows too."""
        if self.follows and self.rows > 0:
            end = self.next_index
            self._refresh_if_changed()
            self._check_end(end)
            for dependent in self.dependents:
                dependent.extend(self.offset.next_index, self.offset.term)

    def check_log(self, log_id: str) -> None:
        """Raise LogClash if records of a log with this id are not of the table's log: a log of the same name
        was made after that was removed, and the query has begun after both. "": the id is not known."""
        if log_id:
            check_same_log(self.client.log, self.offset.log_id, log_id)

    def take(self, rows: pa.Table, began_s: float) -> bool:
        """Extend the table by the rows of a micro-batch; return whether they begin where the table ends.

        rows: all records of a range, control records too, in order; none if the range was not read. began_s:
        when the micro-batch began, monotonic. Raises LogClash, TableClash.
        """
        if not rows.num_rows or rows["index"][0].as_py() > self.offset.next_index:
            return False
        until = int(rows["index"][-1].as_py()) + 1
        if until - rows["index"][0].as_py() != rows.num_rows:
            return False
        if until <= self.offset.next_index:
            return True
        read_s = time.monotonic()
        count = self.rows
        end = RecordsOffset(until, rows["term"][-1].as_py(), self.offset.log_id, self.offset.lost)
        self._verify(end)
        data = rows.filter(pc.equal(rows["type"], "data")).select(ENTRIES.schema.fieldNames())
        self.write(data.cast(schemas.arrow_schema(ENTRIES.schema)), until)
        self._note_end(end, count, (began_s, began_s, read_s))
        return True

    def take_large(self, batch: DataFrame, first: int, until: int, began_s: float) -> bool:
        """As `take`, of a micro-batch of this log alone: tasks of Spark write it, without collecting the
        rows."""
        assert self._reader is not None
        if first > self.offset.next_index:
            return False
        if until <= self.offset.next_index:
            return True
        count = self.rows
        end = self._reader.offset_at(until, self.offset.log_id)
        self._verify(end)

        def write() -> bool:
            self._write_large(end, lambda: batch)
            self._note_end(end, count, (began_s, began_s, began_s))
            return True

        return self._for_table(write, otherwise=False)

    def _verify(self, end: RecordsOffset) -> None:
        """Raise LogClash unless the log still has the table's last record, if it may have been replaced since
        the last time: in a later term."""
        assert self._reader is not None
        if not self._is_verified or end.term != self.offset.term:
            self._reader.verify(self.offset)
            self._is_verified = True

    def _note_end(self, end: RecordsOffset, count: int, times_s: Sequence[float]) -> None:
        """Note that the table ends at `end`, and let the dependents continue. count: of rows before. times_s:
        as of `batch_after`, all but the last."""
        self.offset = end
        if self.target is not None:
            self.waiting = max(0, self.target - end.next_index)
        for dependent in self.dependents:
            dependent.extend(end.next_index, end.term)
        self.last_batch = batch_after(self.last_batch, self.rows - count, (*times_s, time.monotonic()))

    def _read(
        self, reader: RecordsStreamReader, start: RecordsOffset, end: RecordsOffset
    ) -> tuple[pa.Table, RecordsOffset]:
        """Return the rows of a small batch, and its end: before `end` where it would hold too much."""
        batches: list[pa.RecordBatch] = []
        count = size = 0
        for batch in reader.read_here(start, end):
            batches.append(batch.select(ENTRIES.schema.fieldNames()))
            count += batch.num_rows
            size += batch.nbytes
            until = int(batch.column("index")[-1].as_py()) + 1
            is_full = count >= SMALL_BATCH_RECORDS or size >= SMALL_BATCH_BYTES
            if is_full and until < end.next_index:
                end = RecordsOffset(until, batch.column("term")[-1].as_py(), end.log_id, end.lost)
                break
        return pa.Table.from_batches(batches, schemas.arrow_schema(ENTRIES.schema)), end

    def write(self, rows: pa.Table, until: int) -> None:
        """Extend the table to `until`. rows: the data records before it, from the table's end or earlier.

        Raises TableClash if the table refuses a claim without another writer.
        """

        def lacks(first: int) -> bool:
            return bool(rows.num_rows) and rows["index"][-1].as_py() >= first

        def append(first: int, claim: int, note: Mapping[str, Any]) -> tuple[int, int] | None:
            new = rows.filter(pc.greater_equal(rows["index"], first))
            last = self._writer.append(
                new,
                application=APPLICATION,
                claim=claim,
                position="index",
                note=note,
                is_next=self._is_end(first),
            )
            return None if last is None else (new.num_rows, last)

        self._extend(until, lacks, append)

    def _frame(self, start: RecordsOffset, end: RecordsOffset) -> DataFrame:
        options = {name: value for name, value in self.options.items() if name in BATCH_OPTIONS}
        options[BETWEEN] = json.dumps([start.to_json(), end.to_json()])
        return self.spark.read.format("commitlog").options(**options).load()

    def _write_large(self, end: RecordsOffset, records: Callable[[], DataFrame]) -> None:
        """As `write`, by tasks of Spark: each writes a file of the table, or Spark itself writes them where
        the table needs that. records: of the source, from the table's end or earlier."""
        until = end.next_index

        def lacks(first: int) -> bool:
            return self.client.first_data_index(first, until) is not None

        def append(first: int, claim: int, note: Mapping[str, Any]) -> tuple[int, int] | None:
            write = partial(self._write_files, first, end)
            try:
                files = self._writer.append_files(
                    write, application=APPLICATION, claim=claim, note=note, is_next=self._is_end(first)
                )
            except NeedsSpark:
                return self._append_frame(records().where(F.col("index") >= first), claim, note)
            if files is None:
                return None
            return sum(file.rows for file in files), max(file.most("index") for file in files)

        self._extend(until, lacks, append)

    def _write_files(self, first: int, end: RecordsOffset, folder: Path) -> list[WrittenFile]:
        """Write the data records from `first` to `end` as files of the table."""
        assert self._reader is not None
        start = self.offset if first == self.offset.next_index else RecordsOffset(first, None, end.log_id)
        partitions = self._reader.partitions(start.to_json(), end.to_json())
        return write_backlog(self.spark, self._reader.options, partitions, folder)

    def _append_frame(
        self, records: DataFrame, claim: int, note: Mapping[str, Any]
    ) -> tuple[int, int] | None:
        session = records.sparkSession
        for name, value in COMPILED.items():
            session.conf.set(name, value)
        session.addTag(BACKLOG_TAG)
        try:
            rows = entries(records)
            return append_once(
                rows, self.path, application=APPLICATION, claim=claim, position="index", note=note
            )
        finally:
            session.removeTag(BACKLOG_TAG)
            for name, value in INTERPRETED.items():
                session.conf.set(name, value)

    def _check_row(self, index: int) -> None:
        """Raise TableClash unless the table has the row before those that were appended: another writer may
        have removed it meanwhile, which Spark allows."""
        if not read_table(self.spark, self.path).where(F.col("index") == index).limit(1).count():
            raise TableClash(self.path, f"the records that end with index {index}")

    def _extend(
        self,
        until: int,
        lacks: Callable[[int], bool],
        append: Callable[[int, int, Mapping[str, Any]], tuple[int, int] | None],
    ) -> None:
        """Append the rows before `until` that the table lacks. Raises TableClash if it has lost rows.

        lacks: returns whether there are rows from an index on. append: makes the commit of those, by index
        and claim; returns the number of rows and the last index, None for a claim that was refused.
        """
        refusals = 0
        end = self.next_index if self.rows > 0 else 0
        while True:
            self._refresh_if_changed()
            if not lacks(self.next_index):
                self._check_end(end)  # no claim is refused
                break
            first, had_rows = self.next_index, self.rows > 0
            claim = first if had_rows else 0  # from the table's rows alone, wherever the log begins
            written = append(first, claim, {"first_index": first, "until_index": until})
            if written is not None:
                self.next_index = written[1] + 1
                self.covered_index = until - 1
                self.rows += written[0]
                if not self._writer.checked_last and self._removals.found():
                    if had_rows:
                        self._check_row(first - 1)
                    self.refresh()
                return
            if self.next_index == first:  # else it was read again already
                self.refresh()
            refusals = refusals + 1 if self.next_index == first else 0
            if refusals == MAX_REFUSALS:
                raise TableClash(self.path, f"the records from index {first} on")
        self.covered_index = max(self.covered_index, until - 1)

    def _refresh_if_changed(self) -> None:
        """Read the progress of the table again if other writers may have removed rows."""
        if self._removals.found():
            self.refresh()

    def _check_end(self, end: int) -> None:
        """Raise TableClash if the table has lost its last rows. end: after these, 0 if there were none."""
        if end > 0 and (self.rows == 0 or self.next_index < end):
            raise TableClash(self.path, f"the records that end with index {end - 1}")

    def _is_end(self, first: int) -> Callable[[], bool]:
        """Return a function that returns whether the table still ends before `first`, and is as empty as
        now."""
        had_rows = self.rows > 0

        def is_end() -> bool:
            self._refresh_if_changed()
            return self.next_index == first and (self.rows > 0) == had_rows

        return is_end

    def refresh(self) -> None:
        """Read the progress of the table from its statistics."""
        self._adopt(self._snapshot())

    def _adopt(self, snapshot: EntriesSnapshot | None) -> None:
        if snapshot is not None:
            self.rows, next_index = snapshot.rows, snapshot.next_index
        else:
            wanted = F.count("*"), F.coalesce(F.max("index") + 1, F.lit(0))
            self.rows, next_index = map(int, read_table(self.spark, self.path).agg(*wanted).collect()[0])
        if self.rows > 0:
            self.next_index = next_index
            self.covered_index = max(self.covered_index, next_index - 1)

    def _snapshot(self) -> EntriesSnapshot | None:
        """The table from its own transaction log; None where only Spark can read it: elsewhere, or in
        another format."""
        if not self._is_here:
            return None
        try:
            return read_snapshot(self.path)
        except TableUnreadable:
            return None

    def _properties(self, snapshot: EntriesSnapshot | None) -> Mapping[str, str]:
        return table_properties(self.spark, self.path) if snapshot is None else snapshot.properties

    def _last_place(self, snapshot: EntriesSnapshot | None) -> Place:
        """Return the place of the last recorded row."""
        if self.rows == 0:
            return Place(0, 0, None)
        if snapshot is not None:
            return Place(snapshot.last_term, snapshot.last_offset, last_timestamp_us(snapshot))
        row = read_table(self.spark, self.path).where(F.col("index") == self.next_index - 1)
        return Place(*row.select("term", "offset", F.unix_micros("timestamp")).collect()[0])
