"""Terms of a log, and the pauses of appends between them. PURE: rows in, rows out.

The length of a fail-over has one definition, in the demo and in the notebooks: the time from the last record
of one leader to the first record of the next one. A client that appends all the time waits that long; on a
log with fewer appends the pause includes time in which no client appended. Times are timestamps of records,
which the leaders set; if clients set them, the pauses are unknown.

The part of the pauses in which no leader is known is shorter: a leader that reports its watermarks leads,
since one that a majority does not answer stands down (R-04).
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

CLOCK_SKEW = timedelta(seconds=1)  # allowed between the clocks of two leaders
TERM_COLUMNS = (
    "term long, leader string, start_index long, opened timestamp, first timestamp, last timestamp, "
    "records long, pause_s double, led_from timestamp, led_until timestamp, leaderless_s double"
)

Rows = Sequence[Mapping[str, Any]]


def terms_of(epochs: Rows, records: Rows, reports: Rows = ()) -> list[dict[str, Any]]:
    """Return each term with its records and the pause before it.

    epochs: of the table, in order. records: of gold.records_by_term. reports: of gold.reports_by_term. Out,
    in order of the terms: term, leader, start_index, opened, first and last (times of its records, None
    without any), records, pause_s (seconds since the last record before; None for the first term with
    records, for a term without records, and if clients set the timestamps), led_from and led_until (times of
    the first and the last record or report, None without any), leaderless_s (seconds since led_until of the
    term before that has one; None if there is none).
    """
    by_term = {row["term"]: row for row in records}
    reported = {row["term"]: row for row in reports}
    terms: list[dict[str, Any]] = []
    before: dict[str, Any] | None = None
    led_until: datetime | None = None
    for epoch in epochs:
        held = by_term.get(epoch["term"])
        signs = [row for row in (held, reported.get(epoch["term"])) if row]
        term = {
            "term": epoch["term"],
            "leader": epoch["leader"],
            "start_index": epoch["start_index"],
            "opened": epoch["started"],
            "first": held and held["first"],
            "last": held and held["last"],
            "records": held["records"] if held else 0,
            "pause_s": None,
            "led_from": min((row["first"] for row in signs), key=_utc, default=None),
            "led_until": max((row["last"] for row in signs), key=_utc, default=None),
            "leaderless_s": None,
        }
        if signs:
            if led_until is not None:
                term["leaderless_s"] = max(0.0, seconds_after(led_until, term["led_from"]))
            led_until = term["led_until"]
        if held:
            if before is not None:
                term["pause_s"] = _pause_s(before, term)
            before = term
        terms.append(term)
    return terms


def _pause_s(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """Return the seconds between two terms; None if the timestamps are not those of the leaders."""
    opened, first, end = _utc(before["opened"]), _utc(before["first"]), _utc(before["last"])
    next_opened, begin = _utc(after["opened"]), _utc(after["first"])
    in_order = opened - CLOCK_SKEW <= first and end - CLOCK_SKEW <= next_opened <= begin + CLOCK_SKEW
    return max(0.0, seconds_after(end, begin)) if in_order else None


def seconds_after(begin: datetime, moment: datetime) -> float:
    """Return the seconds from one timestamp to another; negative if `moment` is earlier."""
    return (_utc(moment) - _utc(begin)).total_seconds()


def _utc(moment: datetime) -> datetime:
    """Return a moment in UTC. Spark collects times of this machine's zone, which sets its clock back."""
    return moment.astimezone(UTC)


def pauses_of(terms: Rows) -> list[float]:
    """Return the known pauses, in seconds."""
    return [term["pause_s"] for term in terms if term["pause_s"] is not None]


def _elections(terms: Rows) -> str:
    """Return the elections after the first one, in words. At least two terms."""
    changes = sum(before["leader"] != after["leader"] for before, after in pairwise(terms))
    if len(terms) == 2:
        before, after = terms
        return (
            f"{after['leader']} took over from {before['leader']}"
            if changes
            else f"{after['leader']} was elected again"
        )
    leaders = f"{changes} change{'' if changes == 1 else 's'} of the leader"
    elections = len(terms) - 1
    return leaders if changes == elections else f"{elections} further elections, {leaders}"


def fail_overs_sentence(terms: Rows) -> str:
    """Return for how long there was no record at the changes of the leader, as a sentence without its full
    stop. That is the length of a fail-over if clients appended all the time; otherwise it was shorter."""
    if not terms:
        return "No term is in the tables yet"
    if len(terms) == 1:
        return f"{terms[0]['leader']} led all the time, in term {terms[0]['term']}"
    pauses = pauses_of(terms)
    what = _elections(terms)
    if not pauses:
        return f"{what}; {_why_unknown(terms)}"
    longest = f"{max(pauses):.2f} s"
    return f"{what}: no record for {'at most ' if len(pauses) > 1 else ''}{longest}"


def _why_unknown(terms: Rows) -> str:
    held = [term["term"] for term in terms if term["records"]]
    if not held:
        return "the log has no records"
    if len(held) == 1:
        return f"all records are of term {held[0]}"
    return "the time without records is not known, as the timestamps do not follow the terms"


def served(terms: Rows) -> tuple[float, float] | None:
    """Return the seconds from the first record to the last one, and the part of them (0 to 1) in which a
    leader is known; None without two records of known times."""
    between = _between_records(terms)
    if not between or len(pauses_of(terms)) < sum(term["records"] > 0 for term in between) - 1:
        return None
    total = seconds_after(between[0]["first"], between[-1]["last"])
    leaderless = sum(term["leaderless_s"] or 0.0 for term in between[1:])
    return (total, max(0.0, 1 - leaderless / total)) if total > 0 else None


def _between_records(terms: Rows) -> Rows:
    """Return the terms from the first with records to the last one."""
    places = [place for place, term in enumerate(terms) if term["records"]]
    return terms[places[0] : places[-1] + 1] if places else ()
