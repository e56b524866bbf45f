"""The table `events`, from the nodes' journals, and the tables derived from events (derived.py).

Those are written first, so they hold the rows of every event in `events`: a batch begins where `events` ends.
"""

import json
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from app.tables.names import COVERED_INDEX
from spark_jobs.materialize.derived import (
    WATERMARKS_KIND,
    QuarantineTable,
    SyncStateSetsTable,
    WatermarksTable,
)
from spark_jobs.materialize.journal_table import JournalTable
from spark_jobs.source.events import EVENTS_ARROW, EventsPartition, plan_partitions, read_events, scan
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import parse_options
from spark_jobs.source.planning import EventsOffset, JournalPosition, check_same_log
from spark_jobs.tables.table import EVENTS, QUARANTINE_TRUNCATED, SYNC_STATE_SETS, WATERMARKS, Table

MAX_EVENTS_PER_TRIGGER = 50_000


class EventsJob:
    """Fills `events` and its derived tables, of one log, one batch at a time; other jobs may do the same."""

    name = "events"
    is_large = False

    def __init__(
        self,
        spark: SparkSession,
        client: LogReads,
        path_of: Callable[[Table], str],
        options: Mapping[str, str],
        *,
        follows: bool = True,
    ) -> None:
        """client: of the log, for this job alone. options: of the source, all but stream and start. follows:
        else it is done with the events that the nodes have at its start."""
        self.client = client
        self.options = parse_options({**options, "stream": "events"}).for_stream()
        self.follows = follows
        self.offset = EventsOffset({}, "")
        self.done = False
        self._target: EventsOffset | None = None
        self.events = JournalTable(spark, path_of(EVENTS), EVENTS)
        self._covered_index = -1
        self.watermarks = WatermarksTable(spark, path_of(WATERMARKS))
        self.derived = (
            self.watermarks,
            SyncStateSetsTable(spark, path_of(SYNC_STATE_SETS)),
            QuarantineTable(spark, path_of(QUARANTINE_TRUNCATED), client),
        )

    def open(self) -> None:
        """Create the tables if needed, and find the start of the next batch. The rows themselves show the
        end of a batch."""
        self.events.open()
        for table in self.derived:
            table.open_beside(self.events)
        positions = {node: JournalPosition(seq, None) for node, seq in self.events.positions.items()}
        self.offset = EventsOffset(positions, self.client.log_id())
        if not self.follows and self._target is None:
            self._target = scan(self.client, self.options, self.offset, limit=None)

    def has_new_events(self, next_seqs: Mapping[str, int]) -> bool:
        """Return whether a journal has events after those that were read. next_seqs: by node."""
        return any(seq > self.offset.at(node).next_seq for node, seq in next_seqs.items())

    def step(self) -> bool:
        """Extend the tables by the events that the nodes have now, within the limit of a batch; return
        whether there were some."""
        start = self.offset
        check_same_log(self.client.log, start.log_id, self.client.log_id())
        end = scan(self.client, self.options, start, MAX_EVENTS_PER_TRIGGER, self._target)
        batches = [
            rows
            for partition in plan_partitions(self.options, self.client.nodes(), start, end)
            if isinstance(partition, EventsPartition)
            for rows in read_events(self.options, partition)
        ]
        self.write(pa.Table.from_batches(batches, EVENTS_ARROW))
        self.offset = end
        self.done = not self.follows and not batches
        return bool(batches)

    def write(self, rows: pa.Table) -> None:
        """Extend the tables by these events."""
        if not rows.num_rows:
            return
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
