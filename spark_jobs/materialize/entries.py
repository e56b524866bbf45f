"""The table `entries`: each data record of the log once, in the order of the log.

The table itself records its progress: every start, after a kill, with a lost checkpoint or beside another
driver, begins at the index after its last row, and every append claims that index (tables/table.py).
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from app.tables.catalog import RESTORE
from app.tables.delta_log import DeltaLog
from app.tables.names import BEGIN_PROPERTY, LOG_ID_PROPERTY
from spark_jobs.errors import LogClash, TableUnreadable
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import COMPILED, INTERPRETED
from spark_jobs.source.log_reads import LogReads, Place
from spark_jobs.source.planning import RecordsOffset, check_not_shorter, check_same_log, check_same_term
from spark_jobs.tables.snapshot import EntriesSnapshot, read_snapshot
from spark_jobs.tables.table import (
    ENTRIES,
    MAX_REFUSALS,
    TableClash,
    append_once,
    create_table,
    look_ahead,
    read_table,
    set_properties,
    table_properties,
)
from spark_jobs.tables.transforms import entries

APPLICATION = "commitlog-entries"
TAKING = (RESTORE, "DELETE", "TRUNCATE")  # commits of other writers, after which the table may end earlier
SMALL_BATCH_RECORDS = 20_000  # up to this number of rows, compiling a plan takes longer than interpreting it


class Follower(Protocol):
    """Tables made from `entries`."""

    def open(self) -> None:
        """Forget the progress of the tables: other drivers may have written."""
        ...

    def extend(self, until: int) -> None:
        """Take over all records before `until`, which `entries` holds."""
        ...


class EntriesJob:
    """Fills one log's `entries`. One micro-batch at a time; other drivers may do the same.

    next_index: after the last row of the table; without rows, the log's begin. covered_index: the last index
    of the log that is known to be in the table, or to be a control record. rows: of the table.
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
        followers: Sequence[Follower] = (),
    ) -> None:
        """client: of the log. options: of the source, except the start. follows: records arrive while it
        runs, so it prepares the next claim between two micro-batches. followers: written after `entries`."""
        self.spark = spark
        self.client = client
        self.path = path
        self.options = options
        self.follows = follows
        self.followers = tuple(followers)
        self.next_index = 0
        self.covered_index = -1
        self.rows = 0
        self.checkpoint = Path()
        self._commits = None if is_url(path) else DeltaLog(path)  # only Spark can read a table at a URL
        self._looked_at = 0  # the version after those that were checked

    def stream(self, checkpoint: Path) -> DataFrame:
        """Return the stream of the records after the table's last one.

        Raises LogClash if the log is not the table's.
        """
        self.checkpoint = checkpoint
        first = self.open().next_index
        for follower in self.followers:
            follower.open()
        reader = self.spark.readStream.format("commitlog").options(**self.options)
        return reader.option("startingIndex", first).load()

    def open(self) -> RecordsOffset:
        """Create the table if needed; return the start of the stream.

        Raises LogClash if the log is not the table's.
        """
        log_id = self.client.log_id()
        if self._commits is not None:
            self._looked_at = self._commits.versions().stop
        snapshot = None
        properties: Mapping[str, str] = {
            LOG_ID_PROPERTY: log_id,
            BEGIN_PROPERTY: str(self.client.tail(confirmed=True).begin_index),
        }
        if create_table(self.spark, self.path, ENTRIES, properties):
            self.rows = 0
        else:
            snapshot = self._snapshot()
            properties = self._properties(snapshot)
            check_same_log(self.client.log, properties.get(LOG_ID_PROPERTY, log_id), log_id)
            self._take(snapshot)
        tail = self.client.tail(confirmed=True)  # read after the table: the table's end is never beyond it
        if self.rows == 0:
            self._begin(tail.begin_index)
            if properties.get(BEGIN_PROPERTY) != str(tail.begin_index):
                set_properties(self.spark, self.path, {BEGIN_PROPERTY: str(tail.begin_index)})
        last = self._last_place(snapshot)
        offset = RecordsOffset(self.next_index, last.term, log_id)
        check_not_shorter(self.client.log, offset, tail.next_index)
        if self.rows > 0:
            place = self.client.place(offset.next_index - 1)
            check_same_term(self.client.log, offset, None if place is None else place.term)
            if place is not None and place.offset != last.offset:
                raise LogClash(
                    self.client.log,
                    f"the record at index {offset.next_index - 1} is at byte {place.offset}, it was at "
                    f"{last.offset}",
                )
        return offset

    def write(self, records: DataFrame, batch_id: int) -> None:
        """Extend the table to the end of a micro-batch.

        Raises TableClash if the table refuses a claim without another writer.
        """
        until = read_offset(self.checkpoint, batch_id).next_index
        self._write(records, until)
        for follower in self.followers:
            follower.extend(until)

    def _write(self, records: DataFrame, until: int) -> None:
        if self._was_taken_from():
            self.refresh()
        refusals = 0
        while self.client.first_data_index(self.next_index, until) is not None:
            first = self.next_index
            claim = first if self.rows > 0 else 0  # from the table's rows alone, wherever the log begins
            rows = entries(records.where(F.col("index") >= first))
            is_small = until - first <= SMALL_BATCH_RECORDS
            for name, value in (INTERPRETED if is_small else COMPILED).items():
                records.sparkSession.conf.set(name, value)
            written = append_once(
                rows,
                self.path,
                application=APPLICATION,
                claim=claim,
                position="index",
                note={"first_index": first, "until_index": until},
            )
            if written is not None:
                self.next_index = written[1] + 1
                self.covered_index = until - 1
                self.rows += written[0]
                if self.follows:
                    look_ahead(self.spark, self.path, application=APPLICATION, claimed=claim)
                return
            self.refresh()
            refusals = refusals + 1 if self.next_index == first else 0
            if refusals == MAX_REFUSALS:
                raise TableClash(self.path, f"the records from index {first} on")
        self.covered_index = max(self.covered_index, until - 1)

    def refresh(self) -> None:
        """Read the progress of the table from its statistics."""
        self._take(self._snapshot())

    def _take(self, snapshot: EntriesSnapshot | None) -> None:
        if snapshot is not None:
            self.rows, next_index = snapshot.rows, snapshot.next_index
        else:
            found = read_table(self.spark, self.path).agg(
                F.count("*"), F.coalesce(F.max("index") + 1, F.lit(0))
            )
            self.rows, next_index = map(int, found.collect()[0])
        if self.rows > 0:
            self.next_index = next_index
            self.covered_index = max(self.covered_index, next_index - 1)

    def _snapshot(self) -> EntriesSnapshot | None:
        """The table from its own transaction log; None where only Spark can read it: at a URL, or in
        another format."""
        if is_url(self.path):
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
            return Place(0, 0)
        if snapshot is not None:
            return Place(snapshot.last_term, snapshot.last_offset)
        row = read_table(self.spark, self.path).where(F.col("index") == self.next_index - 1)
        return Place(*row.select("term", "offset").collect()[0])

    def _was_taken_from(self) -> bool:
        """Return whether a commit since the last call removed rows from the table."""
        taken = False
        while self._commits is not None and (commit := self._commits.commit(self._looked_at)) is not None:
            taken = taken or commit.operation in TAKING
            self._looked_at += 1
        return taken

    def _begin(self, begin_index: int) -> None:
        """Start a table without rows at the log's present begin."""
        if begin_index > 0:
            sys.stderr.write(f"{self.path}: begins at index {begin_index}, as the log does now\n")
        self.next_index = begin_index
        self.covered_index = max(self.covered_index, begin_index - 1)


def read_offset(checkpoint: Path, batch_id: int) -> RecordsOffset:
    """Return the end of the micro-batch, from the line that Spark writes before it runs one.

    Raises FileNotFoundError.
    """
    lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    return RecordsOffset.from_json(json.loads(lines[-1]))
