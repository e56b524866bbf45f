"""Decisions of the source, without Spark and without a network: offsets, ranges, limits.

`next_index` and `until` are exclusive ends, `first` and `index` inclusive, as everywhere in the service.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spark_jobs.errors import LogClash, ShortRead
from spark_jobs.source.answers import Place

EARLIEST, LATEST = "earliest", "latest"
SMALL_BATCHES_AT_ONCE = 20  # by a stream with minRecordsPerTrigger


@dataclass(frozen=True)
class RecordsOffset:
    """Position of a query in a log.

    next_index: the first index not read. term: of the record before it; 0 when there is none, None when it
    was trimmed and is unknown. log_id: identifies the log and its cluster. lost: number of indexes that the
    query has skipped so far because they were trimmed before they were read (failOnDataLoss=false).
    """

    next_index: int
    term: int | None
    log_id: str
    lost: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "next_index": self.next_index,
            "term": self.term,
            "log_id": self.log_id,
            "lost": self.lost,
        }

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> "RecordsOffset":
        return cls(
            int(offset["next_index"]), offset["term"], str(offset["log_id"]), int(offset.get("lost", 0))
        )


@dataclass(frozen=True)
class JournalPosition:
    """Position in one node's journal. timestamp_ms: of the event before `next_seq`, None for none."""

    next_seq: int
    timestamp_ms: int | None


@dataclass(frozen=True)
class EventsOffset:
    """Positions of a query in the journals of all nodes that it has met so far."""

    nodes: Mapping[str, JournalPosition]
    log_id: str

    def to_json(self) -> dict[str, Any]:
        nodes = {
            node: {"next_seq": at.next_seq, "timestamp_ms": at.timestamp_ms}
            for node, at in sorted(self.nodes.items())
        }
        return {"nodes": nodes, "log_id": self.log_id}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> "EventsOffset":
        nodes = {
            node: JournalPosition(int(at["next_seq"]), at["timestamp_ms"])
            for node, at in offset["nodes"].items()
        }
        return cls(nodes, str(offset["log_id"]))

    def at(self, node: str) -> JournalPosition:
        return self.nodes.get(node, JournalPosition(0, None))


def check_same_log(log: str, expected_id: str, found_id: str) -> None:
    """Raise LogClash unless both ids identify one log."""
    if expected_id != found_id:
        raise LogClash(log, f"its id is {found_id}, it was {expected_id}")


def check_same_term(log: str, offset: RecordsOffset, found_term: int | None) -> None:
    """Raise LogClash if the record before `offset` was written in another term than when it was read.

    found_term: None when that record was trimmed: then nothing is checked.
    """
    if offset.term is not None and found_term is not None and offset.term != found_term:
        raise LogClash(
            log,
            f"the record at index {offset.next_index - 1} is of term {found_term}, it was of {offset.term}",
        )


def check_same_place(log: str, offset: RecordsOffset, last: Place, found: Place | None) -> None:
    """Raise LogClash unless the record before `offset` may be the one that was read, at `last`: a cluster
    that was wiped has the same ids, and terms from 1 on.

    found: None when that record was trimmed: then nothing is checked.
    """
    if found is None:
        return
    check_same_term(log, offset, found.term)
    due = f"the record at index {offset.next_index - 1}"
    if found.offset != last.offset:
        raise LogClash(log, f"{due} is at byte {found.offset}, it was at {last.offset}")
    if last.timestamp_us not in (None, found.timestamp_us):
        raise LogClash(log, f"{due} has the time {found.timestamp_us} us, it had {last.timestamp_us} us")


def check_not_shorter(log: str, offset: RecordsOffset, next_index: int) -> None:
    """Raise LogClash if the log, as its leader confirms it, ends before what was read.

    next_index: its end + 1.
    """
    if next_index < offset.next_index:
        raise LogClash(
            log, f"it ends before index {next_index}, and was read up to {offset.next_index - 1} inclusive"
        )


def split_range(first: int, until: int, parts: int, longest: int | None = None) -> list[tuple[int, int]]:
    """Return `parts` ranges [first, until) of nearly equal length, in order, none empty; [] for nothing.

    Fewer if there are not enough indexes, more if one would be longer than `longest`.
    """
    count = max(0, until - first)
    parts = min(count, parts if longest is None else max(parts, -(-count // longest)))
    ends = [first + count * part // parts for part in range(parts + 1)] if parts else []
    return list(pairwise(ends))


def admit_records(first: int, until: int, max_records: int | None) -> int:
    """Return the end of the first `max_records` indexes of [first, until); all of it for None."""
    return until if max_records is None else min(until, first + max_records)


class SmallBatchPace:
    """Decides when a stream takes a micro-batch of few records, each of which costs files and a commit.

    A batch of `least` records is taken at once. Of smaller ones `burst` are taken at once, then one each
    `each_s`, and one more at once for each `each_s` without any: a single append is seen soon, and a trickle
    that lasts costs few commits. No record waits longer than `each_s`.
    """

    def __init__(self, least: int, each_s: float, burst: int = SMALL_BATCHES_AT_ONCE) -> None:
        self._least = least
        self._each_s = each_s
        self._burst = burst
        self._paid_s = -math.inf  # the small batches so far are as many as one each `each_s` until then

    def takes(self, records: int, now_s: float) -> bool:
        """Return whether to take a batch of this number of records now. now_s: monotonic."""
        if records >= self._least:
            return True
        paid_s = max(self._paid_s, now_s)
        if paid_s - now_s > (self._burst - 1) * self._each_s:
            return False
        self._paid_s = paid_s + self._each_s
        return True


def admit_bytes(first: int, until: int, max_bytes: int | None, position_of: Callable[[int], int]) -> int:
    """Return the end of a prefix of [first, until) that holds about `max_bytes`, and at least one record.

    position_of: byte position in the log of the batch that holds an index; called O(log n) times. A batch is
    the smallest unit with a position, so the prefix is too long by less than a batch.
    """
    if max_bytes is None or until - first <= 1:
        return until
    limit = position_of(first) + max_bytes
    fits, too_far = first + 1, until + 1  # the prefix up to `fits` is admitted, up to `too_far` it is not
    while too_far - fits > 1:
        middle = (fits + too_far) // 2
        if position_of(middle - 1) < limit:
            fits = middle
        else:
            too_far = middle
    return fits


def check_joined(log: str, ranges: Sequence[tuple[int, int]], first: int) -> None:
    """Raise ShortRead unless the first of these ranges [begin, end) holds `first`, and each other one begins
    where the one before it ends.

    Applies to reads with control records, since a log has no gaps.
    """
    begin, end = ranges[0]
    if not begin <= first < end:
        raise ShortRead(f"log {log!r}: received [{begin}, {end}) instead of index {first}")
    for (_, due), (begin, _) in pairwise(ranges):
        if begin != due:
            raise ShortRead(
                f"log {log!r}: received index {begin} instead of {due}: some are missing or repeated"
            )


def rotate(endpoints: Sequence[str], by: int) -> list[str]:
    """Return the endpoints in another order, so that readers spread over the replicas."""
    start = by % len(endpoints)
    return [*endpoints[start:], *endpoints[:start]]
