"""Reduction of a read by the query's filters: fewer indexes, never other rows.

Spark evaluates every filter again, so a bound may be wider than its filter, never narrower. Indexes and terms
rise along a log, so both ends of a range follow from them. Timestamps may be in any order: a record at or
after a time has an index at or after the first such record, and the other end has no bound.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Interval:
    """Whole numbers from `low` to `high`, both inclusive; None: no bound. Empty when high < low."""

    low: int | None = None
    high: int | None = None

    def __and__(self, other: "Interval") -> "Interval":
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return Interval(max(lows, default=None), min(highs, default=None))


@dataclass(frozen=True)
class Bounds:
    """Bounds of all filters together. timestamp_us: since 1970 UTC."""

    index: Interval = Interval()
    term: Interval = Interval()
    timestamp_us: Interval = Interval()


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return the bounds of the filters, all of which apply, on index, term and timestamp."""
    found = {"index": Interval(), "term": Interval(), "timestamp": Interval()}
    for filter in filters:
        column = getattr(filter, "attribute", ("",))
        if len(column) == 1 and column[0] in found:
            found[column[0]] &= _interval(filter)
    return Bounds(found["index"], found["term"], found["timestamp"])


def _interval(filter: Filter) -> Interval:
    match filter:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            number = _number(value)
            return Interval(number, number)
        case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
            return Interval(low=_number(value, above=isinstance(filter, GreaterThan)))
        case LessThan(value=value) | LessThanOrEqual(value=value):
            return Interval(high=_number(value, above=False, below=isinstance(filter, LessThan)))
        case In(value=values):
            numbers = [number for value in values if (number := _number(value)) is not None]
            if len(numbers) == len(values) and numbers:
                return Interval(min(numbers), max(numbers))
    return Interval()


def _number(value: Any, *, above: bool = False, below: bool = False) -> int | None:
    """Return a literal as a whole number, the next one `above` or `below` it; None if it is not a number."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        value = (moment - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value + above - below


def narrow(
    first: int,
    until: int,
    bounds: Bounds,
    *,
    first_at: Callable[[int], int],
    term_of: Callable[[int], int],
) -> tuple[int, int]:
    """Return the part of [first, until) that can match `bounds`; first = until for an empty part.

    first_at: an index before which there is no record at or after a time, in ms. term_of: of the record at an
    index of the range; called O(log n) times.
    """
    if bounds.index.low is not None:
        first = max(first, bounds.index.low)
    if bounds.index.high is not None:
        until = min(until, bounds.index.high + 1)
    if bounds.timestamp_us.low is not None and first < until:
        first = max(first, first_at(bounds.timestamp_us.low // 1_000))
    if bounds.term.low is not None:
        first = _first_of_term(bounds.term.low, first, until, term_of)
    if bounds.term.high is not None:
        until = _first_of_term(bounds.term.high + 1, first, until, term_of)
    return first, max(first, until)


def _first_of_term(term: int, first: int, until: int, term_of: Callable[[int], int]) -> int:
    """Return the first index of [first, until) whose term is at least `term`; until for none."""
    while first < until:
        middle = (first + until) // 2
        if term_of(middle) < term:
            first = middle + 1
        else:
            until = middle
    return first
