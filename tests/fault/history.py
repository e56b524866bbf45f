"""What clients saw, and the judge of it: no acknowledged record lost, doubled, moved or out of order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One append of one record. Times are monotonic seconds; `value` is unique in the history."""

    value: str
    started: float
    ended: float
    outcome: Outcome
    index: int | None = None  # of an acknowledged append


@dataclass(frozen=True, slots=True)
class TailRead:
    """One linearizable read of the log's committed index."""

    started: float
    ended: float
    committed_index: int


def find_violations(
    operations: Sequence[Operation], reads: Sequence[TailRead], log: Sequence[tuple[int, str]]
) -> list[str]:
    """Compare a history with the records (index, value) that the log holds in the end. Empty: all is well."""
    places: dict[str, list[int]] = {}
    for index, value in log:
        places.setdefault(value, []).append(index)
    known = {operation.value for operation in operations}
    strangers = [value for value in places if value not in known]
    found = [f"{value!r} stands in the log at {places[value]}, nobody sent it" for value in strangers]
    for operation in operations:
        found += judge_place(operation, places.get(operation.value, []))
    return found + judge_order(operations, places) + judge_reads(operations, reads)


def judge_place(operation: Operation, places: Sequence[int]) -> list[str]:
    match operation.outcome:
        case Outcome.ACKNOWLEDGED if list(places) != [operation.index]:
            return [f"{operation.value!r} was acknowledged at {operation.index} and stands at {list(places)}"]
        case Outcome.NOT_APPLIED if places:
            return [f"{operation.value!r} was refused as not applied and stands at {list(places)}"]
        case Outcome.UNKNOWN if len(places) > 1:
            return [f"{operation.value!r} was sent once and stands at {list(places)}"]
    return []


def judge_order(operations: Sequence[Operation], places: Mapping[str, Sequence[int]]) -> list[str]:
    """An append that ended before another began has the smaller index (linearizability of appends)."""
    found = []
    by_start = sorted((o for o in operations if places.get(o.value)), key=lambda o: o.started)
    ended = sorted((o for o in operations if o.outcome is Outcome.ACKNOWLEDGED), key=lambda o: o.ended)
    highest, cursor = -1, 0
    for operation in by_start:
        while cursor < len(ended) and ended[cursor].ended < operation.started:
            highest = max(highest, ended[cursor].index if ended[cursor].index is not None else -1)
            cursor += 1
        place = places[operation.value][0]
        if place <= highest:
            found.append(f"{operation.value!r} began after {highest} was acknowledged and stands at {place}")
    return found


def judge_reads(operations: Sequence[Operation], reads: Sequence[TailRead]) -> list[str]:
    """A linearizable read sees everything acknowledged before it began, and what an earlier read saw."""
    found = []
    ended = sorted((o for o in operations if o.outcome is Outcome.ACKNOWLEDGED), key=lambda o: o.ended)
    earlier = sorted(reads, key=lambda r: r.ended)
    highest, operation_cursor, read_cursor = -1, 0, 0
    for read in sorted(reads, key=lambda r: r.started):
        while operation_cursor < len(ended) and ended[operation_cursor].ended < read.started:
            highest = max(highest, ended[operation_cursor].index or 0)
            operation_cursor += 1
        while read_cursor < len(earlier) and earlier[read_cursor].ended < read.started:
            highest = max(highest, earlier[read_cursor].committed_index)
            read_cursor += 1
        if read.committed_index < highest:
            found.append(f"a read began after index {highest} was known and saw {read.committed_index}")
    return found
