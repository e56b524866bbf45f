"""Tables derived from events: each takes its rows from the events of one kind, with the position of the
event.

They are written before `events`, so they hold the rows of every event in `events`. A table that is created
beside an older `events` starts with the rows of its events.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from spark_jobs.errors import RequestRefused
from spark_jobs.job_lines import warn
from spark_jobs.materialize.journal_table import JournalTable
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables import schemas
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import (
    EVENTS,
    QUARANTINE_TRUNCATED,
    SYNC_STATE_SETS,
    WATERMARKS,
    Table,
    collect_table,
    read_table,
)

EventRow = Mapping[str, Any]  # with `data` as an object
WATERMARKS_KIND = "watermarks"


class DerivedTable(JournalTable):
    """Return the rows of the events of `kind`. rows_of: returns those of one event, as a table of this
    schema."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: Table,
        kind: str,
        rows_of: Callable[[EventRow], list[dict[str, Any]]],
    ) -> None:
        super().__init__(spark, path, table)
        self.kind = kind
        self.rows_of = rows_of
        self.schema = schemas.arrow_schema(table.schema)

    def open_beside(self, events: JournalTable) -> None:
        """As `open`; a new table also gets the rows of everything that `events`, which is open, holds
        already."""
        self.open()
        if self.positions or not events.positions:
            return
        of_kind = pc.field("kind") == self.kind
        kinds = read_plain(events.path, EVENTS.schema, ["kind"], of_kind)
        if kinds is not None and kinds.num_rows == 0:  # as at each start of a log without such events
            return
        held = read_plain(events.path, EVENTS.schema, EVENTS.schema.names, of_kind)
        if held is None:
            held = read_table(self.spark, events.path).where(f"kind = '{self.kind}'").toArrow()
        self.append_from(held.sort_by([("node", "ascending"), ("seq", "ascending")]))

    def append_from(self, events: pa.Table) -> None:
        """Add the rows of a range of events, except those that the table already has by its own positions."""
        reported = events.filter(pc.equal(events["kind"], self.kind)).to_pylist()
        new = [event for event in reported if event["seq"] >= self.positions.get(event["node"], 0)]
        rows = [row for event in new for row in self.rows_of({**event, "data": json.loads(event["data"])})]
        self.append(pa.Table.from_pylist(rows, self.schema))


class WatermarksTable(DerivedTable):
    """Each leader's view of its peers, event by event (D-22); events of other nodes have no peers.

    `transforms.latest_watermarks` is its newest state.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path, WATERMARKS, WATERMARKS_KIND, watermarks_of)


class SyncStateSetsTable(DerivedTable):
    """Each SyncStateSet once, from its first event: a master that restarts reports it again."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        super().__init__(spark, path, SYNC_STATE_SETS, "sync_state_set", self._new_of)
        self._known: set[tuple[int, int]] = set()

    def open(self) -> None:
        self._known.clear()
        super().open()

    def refresh(self) -> None:
        """As of `JournalTable`; the sets of another driver join those that are known or being written."""
        super().refresh()
        keys = collect_table(self.spark, self.path, self.table, ["epoch", "set_epoch"])
        self._known |= {(row["epoch"], row["set_epoch"]) for row in keys.to_pylist()}

    def _new_of(self, event: EventRow) -> list[dict[str, Any]]:
        data = event["data"]
        key = (data["epoch"], data["set_epoch"])
        if key in self._known:
            return []
        self._known.add(key)  # after a failed append the next query reads the table again
        part = {name: data[name] for name in ("epoch", "set_epoch", "master", "members", "confirm_offset")}
        return [{**_place(event), **part, "timestamp": event["timestamp"]}]


class QuarantineTable(DerivedTable):
    """Records that an unclean election removed from a copy, from the receipts that the nodes keep (A-04)."""

    def __init__(self, spark: SparkSession, path: str, client: LogReads) -> None:
        super().__init__(spark, path, QUARANTINE_TRUNCATED, "truncate", self._lost_of)
        self.client = client

    def _lost_of(self, event: EventRow) -> list[dict[str, Any]]:
        receipt = event["data"].get("receipt")
        if receipt is None:
            return []  # the truncated records were not committed
        try:
            records = self.client.receipt(event["node"], receipt.rpartition("/")[2])
        except RequestRefused as refused:
            if refused.status != 404:
                raise
            warn(f"{self.table.name}: {event['node']} no longer has the receipt {receipt}")
            return []
        reported = {
            **_place(event),
            "epoch": event["data"]["epoch"],
            "truncated": event["timestamp"],
            "receipt": receipt,
        }
        return [{**record, **reported} for record in records.to_pylist()]


def watermarks_of(event: EventRow) -> list[dict[str, Any]]:
    """Return one row per peer."""
    data = event["data"]
    reported = {name: data.get(name) for name in ("role", "begin_index", "end_index", "committed_index")}
    row = {**_place(event), **reported, "term": event["term"], "timestamp": event["timestamp"]}
    return [{**row, "peer": peer, "watermark": mark} for peer, mark in data.get("peers", {}).items()]


def _place(event: EventRow) -> dict[str, Any]:
    return {name: event[name] for name in ("log", "node", "seq")}
