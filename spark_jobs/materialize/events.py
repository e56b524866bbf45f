"""The table `events`, from one stream of the nodes' journals, and the tables derived from events
(derived.py).

Those are written first, so they hold the rows of every event in `events`: the stream begins where `events`
ends.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from app.tables.names import COVERED_INDEX
from spark_jobs.materialize.derived import (
    WATERMARKS_KIND,
    QuarantineTable,
    SyncStateSetsTable,
    WatermarksTable,
)
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.planning import EARLIEST
from spark_jobs.tables.journal_table import JournalTable
from spark_jobs.tables.table import EVENTS, QUARANTINE_TRUNCATED, SYNC_STATE_SETS, WATERMARKS, Table

MAX_EVENTS_PER_TRIGGER = 50_000


class EventsJob:
    """Fills `events` and its derived tables, of one log, one micro-batch at a time; other jobs may do the
    same."""

    name = "events"

    def __init__(
        self,
        spark: SparkSession,
        client: LogReads,
        path_of: Callable[[Table], str],
        options: Mapping[str, str],
    ) -> None:
        """client: of the log, for this job alone. options: of the source, all but stream and start."""
        self.spark = spark
        self.options = options
        self.events = JournalTable(spark, path_of(EVENTS), EVENTS)
        self._covered_index = -1
        self.watermarks = WatermarksTable(spark, path_of(WATERMARKS))
        self.derived = (
            self.watermarks,
            SyncStateSetsTable(spark, path_of(SYNC_STATE_SETS)),
            QuarantineTable(spark, path_of(QUARANTINE_TRUNCATED), client),
        )

    def stream(self, checkpoint: Path) -> DataFrame:
        """Return the stream of events after the table's last ones. The rows themselves show the end of a
        micro-batch."""
        self.events.open()
        for table in self.derived:
            table.open_beside(self.events)
        start = json.dumps(self.events.positions) if self.events.positions else EARLIEST
        reader = self.spark.readStream.format("commitlog").options(**self.options).option("stream", "events")
        return reader.options(startingIndex=start, maxRecordsPerTrigger=MAX_EVENTS_PER_TRIGGER).load()

    def refresh(self) -> None:
        """Read the progress from the tables, when other jobs fill them."""
        self.events.refresh()
        self.watermarks.refresh()

    def write(self, events: DataFrame, batch_id: int) -> None:
        """Extend the tables to the end of a micro-batch, which is small: the option limits it."""
        rows = events.toArrow()
        for table in self.derived:
            table.append_from(rows)
        self._covered_index = max([self._covered_index, *covered_indexes(rows)])
        self.events.append(rows, {COVERED_INDEX: self._covered_index} if self._covered_index >= 0 else None)


def covered_indexes(events: pa.Table) -> Iterator[int]:
    """Return the committed index of each event of a leader that reports one."""
    for text in events.filter(pc.equal(events["kind"], WATERMARKS_KIND))["data"].to_pylist():
        data = json.loads(text)
        if data.get("peers") and data.get("committed_index") is not None:
            yield int(data["committed_index"])
