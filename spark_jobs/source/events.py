"""The journals of a log's nodes as rows: `stream=events`.

Each node keeps its own journal, numbered by `seq` without gaps, and returns only that. So an offset has one
position per node; a node that does not answer is skipped, and caught up when it is back.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_jobs.errors import JournalTrimmed, LogClash, NoCopy, ShortRead, Unreachable, plain_errors
from spark_jobs.source.answers import EventPage, Node
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.planning import EARLIEST, EventsOffset, JournalPosition, check_same_log
from spark_jobs.source.read_limits import default_limit
from spark_jobs.source.stopping import end_quietly
from spark_jobs.tables import schemas

EVENTS_ARROW = schemas.arrow_schema(schemas.EVENTS)

logger = logging.getLogger(__name__)


class EventsPartition(InputPartition):
    """The events [from_seq, until_seq) of one node. log_id: of the log when the range was planned."""

    def __init__(self, node: Node, from_seq: int, until_seq: int, log_id: str) -> None:
        super().__init__((node, from_seq, until_seq))
        self.log_id = log_id
        self.node = node
        self.from_seq = from_seq
        self.until_seq = until_seq


class EventsBatchReader(DataSourceReader):
    """Reads the journals as they are at planning: of all nodes, or, if a loss is accepted, of nodes that
    answer."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options

    @plain_errors()
    def partitions(self) -> list[InputPartition]:
        client = LogReads(self.options.endpoints, self.options.log, self.options.token)
        start = starting_offset(client, self.options)
        end = scan(client, self.options, start, limit=None, every_node=self.options.fail_on_data_loss)
        partitions = plan_partitions(self.options, client.nodes(), start, end)
        return partitions or [EventsPartition(Node("", "", False), 0, 0, "")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventsPartition)
        return read_events(self.options, partition)


class EventsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams the journals. With AvailableNow: up to their ends at the start of the query."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.target: EventsOffset | None = None
        self._client: LogReads | None = None

    @property
    def client(self) -> LogReads:
        """Created at first use, because the reader itself is sent between processes."""
        if self._client is None:
            self._client = LogReads(self.options.endpoints, self.options.log, self.options.token)
        return self._client

    @plain_errors()
    def initialOffset(self) -> dict[str, Any]:
        return starting_offset(self.client, self.options).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self.options)

    @plain_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        self.target = scan(self.client, self.options, EventsOffset({}, self.client.log_id()), limit=None)

    @plain_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = EventsOffset.from_json(start)
        check_same_log(self.options.log, offset.log_id, self.client.log_id())
        max_events = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return scan(self.client, self.options, offset, max_events, self.target).to_json()

    @plain_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = EventsOffset.from_json(start), EventsOffset.from_json(end)
        return plan_partitions(self.options, self.client.nodes(), begin, until)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, EventsPartition)
        return read_events(self.options, partition)

    def stop(self) -> None:
        end_quietly()
        if self._client is not None:
            self._client.close()


def starting_offset(client: LogReads, options: SourceOptions) -> EventsOffset:
    """Return the positions for startingIndex:

    all events, none of the present ones, or the given next seq, for all nodes or by node.
    """
    nothing = EventsOffset({}, client.log_id())
    if options.starting_index == EARLIEST:
        return nothing
    if isinstance(options.starting_index, int):
        position = JournalPosition(options.starting_index, None)
        return EventsOffset({node.id: position for node in client.nodes()}, nothing.log_id)
    if isinstance(options.starting_index, Mapping):
        nodes = {node: JournalPosition(seq, None) for node, seq in options.starting_index.items()}
        return EventsOffset(nodes, nothing.log_id)
    return scan(client, options, nothing, limit=None)


def scan(
    client: LogReads,
    options: SourceOptions,
    start: EventsOffset,
    limit: int | None,
    target: EventsOffset | None = None,
    *,
    every_node: bool = False,
) -> EventsOffset:
    """Return the ends of the journals after `start`, each by at most `limit` events, and not beyond `target`.

    A node that does not answer keeps its position: a stream catches up. every_node: it raises Unreachable
    instead, unless the node holds nothing of the log. Raises LogClash if a node has another journal than
    before.
    """
    nodes = dict(start.nodes)
    for node in client.nodes():
        position = start.at(node.id)
        until = None if target is None else target.at(node.id).next_seq
        if limit is not None:
            until = position.next_seq + limit if until is None else min(until, position.next_seq + limit)
        try:
            nodes[node.id] = _scan_node(client, options, node, position, until)
        except NoCopy:
            continue
        except Unreachable as error:
            if every_node:
                raise Unreachable(
                    f"node {node.id} does not answer, its events would be missing: {error}. With "
                    "failOnDataLoss=false they are left out"
                ) from error
    return EventsOffset(nodes, start.log_id)


def _scan_node(
    client: LogReads, options: SourceOptions, node: Node, position: JournalPosition, until: int | None
) -> JournalPosition:
    if position.next_seq > 0 and options.fail_on_data_loss:
        _check_same_journal(client, options, node, position)
    while until is None or position.next_seq < until:
        try:
            page = _events_from(client, options, node, position.next_seq)
        except JournalTrimmed as trimmed:
            if options.fail_on_data_loss:
                raise
            position = JournalPosition(trimmed.first_seq, None)
            continue
        events = page.events if until is None else page.events[: until - position.next_seq]
        if not events:
            break
        position = JournalPosition(int(events[-1]["seq"]) + 1, int(events[-1]["timestamp"]))
        if not page.has_more:
            break
    return position


def _events_from(client: LogReads, options: SourceOptions, node: Node, seq: int) -> EventPage:
    """Return a page of a node's events from a seq on. If a loss is accepted, the event before it is read too,
    to report a journal without it."""
    if options.fail_on_data_loss or seq == 0:
        return client.events(node, seq)
    try:
        page = client.events(node, seq - 1)
    except JournalTrimmed as trimmed:
        if trimmed.first_seq > seq:
            raise
        return client.events(node, seq)
    if not page.events:
        _report_new_journal(options.log, node.id, seq)
    return replace(page, events=[event for event in page.events if event["seq"] >= seq])


@lru_cache(maxsize=1_024)  # a stream looks every few seconds: report each journal once
def _report_new_journal(log: str, node_id: str, seq: int) -> None:
    logger.warning(
        "log %s: the journal of node %s does not hold the event %d; its events before seq %d are left out. "
        "If the node has started with an empty folder, give it a new id",
        *(log, node_id, seq - 1, seq),
    )


def _check_same_journal(
    client: LogReads, options: SourceOptions, node: Node, position: JournalPosition
) -> None:
    """Raise LogClash unless the journal holds the event that was read last from it, or has trimmed it."""
    last_seq = position.next_seq - 1
    try:
        known = client.events(node, last_seq, limit=1).events
    except JournalTrimmed as trimmed:
        if trimmed.first_seq > position.next_seq:
            raise JournalTrimmed(options.log, node.id, position.next_seq, trimmed.first_seq) from trimmed
        return  # everything that is due is still there
    if not known or known[0]["seq"] != last_seq or position.timestamp_ms not in (None, known[0]["timestamp"]):
        raise other_journal(options, node, last_seq)


def plan_partitions(
    options: SourceOptions, nodes: Sequence[Node], start: EventsOffset, end: EventsOffset
) -> list[InputPartition]:
    """Return one partition per node with new events. A node that has left the cluster since `end` was planned
    is left out if a loss is accepted, else it raises Unreachable."""
    members = {node.id: node for node in nodes}
    partitions: list[InputPartition] = []
    for node_id, position in sorted(end.nodes.items()):
        from_seq = start.at(node_id).next_seq
        if from_seq < position.next_seq:
            if node_id not in members:
                missing = (
                    f"log {options.log!r}: node {node_id} is no longer a member of the cluster: its events "
                    f"from seq {from_seq} to {position.next_seq - 1} cannot be read"
                )
                if options.fail_on_data_loss:
                    raise Unreachable(f"{missing}. With failOnDataLoss=false they are left out")
                logger.warning("%s, and are left out", missing)
                continue
            partitions.append(EventsPartition(members[node_id], from_seq, position.next_seq, end.log_id))
    return partitions


def read_events(options: SourceOptions, partition: EventsPartition) -> Iterator[pa.RecordBatch]:
    """Yield the partition's rows in order. The node answered at planning: it is waited for if it has stopped
    since.

    A journal that started again after a loss has a first seq above 0: from 0 on, that is where it begins;
    else the events between are lost. Raises LogClash for those, and for the journal of another log of that
    name, JournalTrimmed for what retention removed (unless failOnDataLoss is false), ShortRead.
    """
    client = LogReads([partition.node.url or options.endpoints[0]], options.log, options.token)
    seq = partition.from_seq
    try:
        while seq < partition.until_seq:
            try:
                page = client.events_when_up(partition.node, seq)
            except JournalTrimmed as trimmed:
                if options.fail_on_data_loss:
                    raise JournalTrimmed(options.log, partition.node.id, seq, trimmed.first_seq) from trimmed
                seq = _skip(options, partition, seq, trimmed.first_seq)
                continue
            if page.events and page.events[0]["seq"] > seq == partition.from_seq:
                if seq > 0 and options.fail_on_data_loss:
                    raise other_journal(options, partition.node, seq)
                seq = _skip(options, partition, seq, int(page.events[0]["seq"]))
            events = [event for event in page.events if event["seq"] < partition.until_seq]
            if [event["seq"] for event in events] != list(range(seq, seq + len(events))):
                raise ShortRead(f"node {partition.node.id}: events from {seq} on are missing or repeated")
            if not page.events:
                raise ShortRead(f"node {partition.node.id}: received no events from {seq} on")
            seq += len(events)
            if seq == partition.until_seq:  # after the last read, so that it holds for all of them
                check_same_log(options.log, partition.log_id, client.log_id())
            yield rows(options.log, partition.node.id, events)
    finally:
        client.close()


def _skip(options: SourceOptions, partition: EventsPartition, seq: int, first_seq: int) -> int:
    """Return where to continue when the journal begins at first_seq."""
    following = min(first_seq, partition.until_seq)
    logger.warning(
        "log %s: the journal of %s has no events [%d, %d); continuing at %d",
        *(options.log, partition.node.id, seq, following, following),
    )
    return following


def other_journal(options: SourceOptions, node: Node, seq: int) -> LogClash:
    return LogClash(
        options.log,
        f"node {node.id}'s journal does not hold the event {seq}, which is due or was read from it (was its "
        "disk replaced? Then give the node a new id, or set failOnDataLoss to false)",
    )


def rows(log: str, node: str, events: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return events of the service in the source's schema; `data` stays JSON, keys sorted."""
    columns = {
        "log": [log] * len(events),
        "node": [node] * len(events),
        "seq": [event["seq"] for event in events],
        "timestamp": [event["timestamp"] * 1_000 for event in events],
        "kind": [event["kind"] for event in events],
        "term": [event["term"] for event in events],
        "data": [json.dumps(event["data"], sort_keys=True, separators=(",", ":")) for event in events],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[column.name], column.type) for column in EVENTS_ARROW], schema=EVENTS_ARROW
    )
