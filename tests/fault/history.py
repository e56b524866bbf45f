"""What clients saw, and the judge of it: is the history linearizable, with each append exactly once?

A log is an easy model. The place of an append is its index, which the log in the end shows; the place of a
linearizable read is the committed index that it saw. So the order is given, and a history is linearizable
exactly when no operation ended before one began that stands before it. That is checked in O(n log n):

- an append that ended before another began has the smaller index;
- a read sees all that was acknowledged before it began, and all that earlier reads saw;
- a read, also one of a committed prefix, shows nothing that was sent after it had ended.

Acknowledged appends stand once, whole and at their index, and so do applied ones (kept, though too few slaves
had them in time: H-07); refused ones nowhere; unknown ones once or never.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate


class Outcome(StrEnum):
    ACKNOWLEDGED = "acknowledged"
    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """One append, with all its repeats by key or producer. Times are monotonic seconds.

    `value` is unique in the history; of `count` records, the k-th has the value `values[k]`.
    """

    value: str
    started: float
    ended: float
    outcome: Outcome
    index: int | None = None  # first_index, of an acknowledged or applied append
    count: int = 1
    match_index: int | None = None  # the condition that it was sent under

    @property
    def values(self) -> list[str]:
        return [self.value, *(f"{self.value}+{ordinal}" for ordinal in range(1, self.count))]


@dataclass(frozen=True, slots=True)
class TailRead:
    """One linearizable read of the log's committed index."""

    started: float
    ended: float
    committed_index: int


@dataclass(frozen=True, slots=True)
class RecordsRead:
    """One read of the data records from `from_index` up to but without `next_index`."""

    started: float
    ended: float
    linearizable: bool
    from_index: int
    next_index: int
    has_more: bool
    records: tuple[tuple[int, str], ...]


Read = TailRead | RecordsRead


def find_violations(
    operations: Sequence[Operation], reads: Sequence[Read], log: Sequence[tuple[int, str]]
) -> list[str]:
    """Compare a history with the records (index, value) that the log holds in the end. Empty: all is well."""
    places: dict[str, list[int]] = {}
    for index, value in log:
        places.setdefault(value, []).append(index)
    known = {value for operation in operations for value in operation.values}
    found = [
        f"{value!r} stands in the log at {places[value]}, nobody sent it"
        for value in places
        if value not in known
    ]
    for operation in operations:
        found += judge_place(operation, [places.get(value, []) for value in operation.values])
    tails = [tail for read in reads if (tail := tail_of(read)) is not None]
    found += judge_conditions(operations, places, [index for index, _ in log])
    found += judge_order(operations, places)
    found += judge_reads(operations, tails)
    found += judge_future(operations, places, reads)
    return found + judge_content(reads, log)


def tail_of(read: Read) -> TailRead | None:
    """The committed index that a linearizable read has seen, if the answer has one."""
    if isinstance(read, TailRead):
        return read
    if read.linearizable and not read.has_more:
        return TailRead(read.started, read.ended, read.next_index - 1)
    return None


def judge_place(operation: Operation, places: Sequence[Sequence[int]]) -> list[str]:
    """places: for each record of the operation, where it stands."""
    name, flat = repr(operation.value), [index for found in places for index in found]
    first = flat[0] if flat else None
    in_place = first is not None and all(
        list(found) == [first + ordinal] for ordinal, found in enumerate(places)
    )
    match operation.outcome:
        case Outcome.ACKNOWLEDGED | Outcome.APPLIED if not in_place or first != operation.index:
            return [f"{name} was {operation.outcome} at {operation.index} and stands at {flat}"]
        case Outcome.NOT_APPLIED if flat:
            return [f"{name} was refused as not applied and stands at {flat}"]
        case Outcome.UNKNOWN if flat and not in_place:
            return [f"{name} was sent once, as {operation.count} records, and stands at {flat}"]
    return []


def judge_conditions(
    operations: Sequence[Operation], places: Mapping[str, Sequence[int]], indexes: Sequence[int]
) -> list[str]:
    """No data record is between an append's match_index and the append. indexes: of all data records."""
    found, ordered = [], sorted(indexes)
    for operation in operations:
        wanted, held = operation.match_index, places.get(operation.value)
        if wanted is None or not held:
            continue
        first = held[0]
        between = ordered[bisect_left(ordered, wanted) : bisect_left(ordered, first)]
        if first < wanted or between:
            found.append(
                f"{operation.value!r} had the match_index {wanted} and is at {first}, after {between}"
            )
    return found


def judge_order(operations: Sequence[Operation], places: Mapping[str, Sequence[int]]) -> list[str]:
    """An append that ended before another began has the smaller index (linearizability of appends)."""
    found = []
    by_start = sorted((o for o in operations if places.get(o.value)), key=lambda o: o.started)
    ends = _acknowledged(operations)
    highest, cursor = -1, 0
    for operation in by_start:
        while cursor < len(ends) and ends[cursor][0] < operation.started:
            highest = max(highest, ends[cursor][1])
            cursor += 1
        place = places[operation.value][0]
        if place <= highest:
            found.append(f"{operation.value!r} began after {highest} was acknowledged and stands at {place}")
    return found


def judge_reads(operations: Sequence[Operation], reads: Sequence[TailRead]) -> list[str]:
    """A linearizable read sees everything acknowledged before it began, and what an earlier read saw."""
    found = []
    ends = sorted(_acknowledged(operations) + [(read.ended, read.committed_index) for read in reads])
    highest, cursor = -1, 0
    for read in sorted(reads, key=lambda r: r.started):
        while cursor < len(ends) and ends[cursor][0] < read.started:
            highest = max(highest, ends[cursor][1])
            cursor += 1
        if read.committed_index < highest:
            found.append(f"a read began after index {highest} was known and saw {read.committed_index}")
    return found


def judge_future(
    operations: Sequence[Operation], places: Mapping[str, Sequence[int]], reads: Sequence[Read]
) -> list[str]:
    """No read shows a record that was sent after the read had ended."""
    by_start = sorted((o for o in operations if places.get(o.value)), key=lambda o: o.started)
    starts = [operation.started for operation in by_start]
    # lowest[k]: the lowest place of all that began as the k-th or later
    lowest = list(accumulate((places[o.value][0] for o in reversed(by_start)), min))[::-1]
    found = []
    for read in reads:
        later = bisect_right(starts, read.ended)
        for seen in _highest_seen(read):
            if later < len(lowest) and lowest[later] <= seen:
                found.append(f"a read saw up to {seen} and ended before {lowest[later]} was sent")
    return found


def judge_content(reads: Sequence[Read], log: Sequence[tuple[int, str]]) -> list[str]:
    """The records that a read returns are the records of the final log, without a gap."""
    found = []
    indexes = [index for index, _ in log]
    for read in reads:
        if isinstance(read, RecordsRead):
            first, last = (
                bisect_right(indexes, read.from_index - 1),
                bisect_right(indexes, read.next_index - 1),
            )
            if list(read.records) != list(log[first:last]):
                found.append(
                    f"a read of [{read.from_index}, {read.next_index}) showed {list(read.records)[:3]}… and "
                    f"{list(log[first:last])[:3]}… stands"
                )
    return found


def _acknowledged(operations: Sequence[Operation]) -> list[tuple[float, int]]:
    """(ended, last index) of each acknowledged append, in the order of their ends."""
    return sorted(
        (o.ended, o.index + o.count - 1)
        for o in operations
        if o.outcome is Outcome.ACKNOWLEDGED and o.index is not None
    )


def _highest_seen(read: Read) -> Iterator[int]:
    if isinstance(read, TailRead):
        yield read.committed_index
    elif read.records:
        yield read.records[-1][0]
