"""Decisions of a stream over many logs, without Spark and without a network: offsets, shares, partitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_jobs.source.planning import RecordsOffset, split_range

PACKED_RECORDS = 20_000  # of ranges of several logs in one partition
BACKLOG_SHARE = 5  # a backlog gets this part of a micro-batch's limit while other logs have new records


@dataclass(frozen=True)
class LogRange:
    """Records [first, until) of one log. term: none of them has a later one. lost_from: the records from
    there to `first` were trimmed. log_id: of the log when the range was planned, "" if it is not known."""

    log: str
    first: int
    until: int
    term: int | None
    lost_from: int | None = None
    log_id: str = ""

    @property
    def records(self) -> int:
        return self.until - self.first


@dataclass(frozen=True)
class LogsOffset:
    """Position of a query in every log that it has met. The `term` of a log's position is that of a node when
    it reported the end: no record before the position has a later one, unless the log was replaced.

    batch: [first, until) by log of the micro-batch that ends here.
    """

    logs: Mapping[str, RecordsOffset]
    batch: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        logs = {log: at.to_json() for log, at in sorted(self.logs.items())}
        return {"logs": logs, "batch": {log: list(ends) for log, ends in sorted(self.batch.items())}}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> "LogsOffset":
        logs = {log: RecordsOffset.from_json(at) for log, at in offset["logs"].items()}
        batch = {log: (int(first), int(until)) for log, (first, until) in offset.get("batch", {}).items()}
        return cls(logs, batch)


def shared(waiting: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Return how many records each log may bring, at least one and together about `limit`: a log that has
    less than its share leaves the rest to the others, so no backlog delays another log."""
    left = sum(waiting.values()) if limit is None else limit
    granted: dict[str, int] = {}
    for place, log in enumerate(sorted(waiting, key=lambda log: waiting[log])):
        granted[log] = min(waiting[log], max(1, left // (len(waiting) - place)))
        left -= granted[log]
    return granted


class Turns:
    """Decides which logs a micro-batch reads: the new records of all logs, or a part of the backlog of one
    log, in turn. So what is small stays small, and each log with a backlog gets its turn."""

    def __init__(self, limit: int | None, backlog_records: int | None) -> None:
        """limit: records of a micro-batch. backlog_records: a log with more of them has a backlog."""
        self._limit = limit
        self._backlog_records = backlog_records
        self._was_backlog = False
        self._last = ""  # log whose backlog was read last

    def choose(self, waiting: Mapping[str, int]) -> dict[str, int]:
        """Return the number of records to read, by log. waiting: above 0 each."""
        most = self._backlog_records
        if most is None:
            return shared(waiting, self._limit)
        small = {log: count for log, count in waiting.items() if count <= most}
        large = sorted(waiting.keys() - small.keys())
        if large and not (small and self._was_backlog):
            self._was_backlog = True
            self._last = next((log for log in large if log > self._last), large[0])
            count = waiting[self._last]
            if self._limit is None:
                return {self._last: count}
            part = self._limit if len(waiting) == 1 else max(most, self._limit // BACKLOG_SHARE)
            return {self._last: min(count, part)}
        self._was_backlog = False
        return shared(small, most if self._limit is None else min(most, self._limit))


def packed(ranges: Sequence[LogRange], longest: int | None, least_parts: int = 1) -> list[list[LogRange]]:
    """Return the ranges of each partition: small ones of several logs together, at most PACKED_RECORDS, and
    those that are longer than `longest` in parts.

    least_parts: into which each range is divided. The records of a log stay in order.
    """
    room = PACKED_RECORDS if longest is None else min(PACKED_RECORDS, longest)
    parts: list[list[LogRange]] = []
    shared_part: list[LogRange] = []
    for each in ranges:
        pieces = split_range(each.first, each.until, least_parts, longest) or [(each.first, each.first)]
        for number, (first, until) in enumerate(pieces):
            lost_from = each.lost_from if number == 0 else None
            piece = LogRange(each.log, first, until, each.term, lost_from, each.log_id)
            if len(pieces) > 1 or piece.records > room:
                parts.append([piece])
                continue
            if shared_part and sum(held.records for held in shared_part) + piece.records > room:
                parts.append(shared_part)
                shared_part = []
            shared_part.append(piece)
    return [*parts, shared_part] if shared_part else parts
