"""Terms of a log, and the pauses of appends between them. PURE: rows in, rows out.

The length of a fail-over has one definition, in the demo and in the notebooks: the time from the last record
of one leader to the first record of the next one. A client that appends all the time waits that long; on a
log with fewer appends the pause includes time in which no client appended. Times are timestamps of records,
which the leaders set; if clients set them, the pauses are unknown.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

CLOCK_SKEW = timedelta(seconds=1)  # allowed between the clocks of two leaders
TERM_COLUMNS = (
    "term long, leader string, opened timestamp, first timestamp, last timestamp, records long, "
    "pause_s double"
)

Rows = Sequence[Mapping[str, Any]]


def terms_of(epochs: Rows, records: Rows) -> list[dict[str, Any]]:
    """Return each term with its records and the pause before it.

    epochs: of the table, in order. records: of gold.records_by_term. Out, in order of the terms: term,
    leader, opened, first and last (times of its records, None without any), records, pause_s (seconds since
    the last record before; None for the first term with records, for a term without records, and if clients
    set the timestamps).
    """
    by_term = {row["term"]: row for row in records}
    terms: list[dict[str, Any]] = []
    before: dict[str, Any] | None = None
    for epoch in epochs:
        held = by_term.get(epoch["term"])
        term = {
            "term": epoch["term"],
            "leader": epoch["leader"],
            "opened": epoch["started"],
            "first": held and held["first"],
            "last": held and held["last"],
            "records": held["records"] if held else 0,
            "pause_s": None,
        }
        if held:
            if before is not None:
                term["pause_s"] = _pause_s(before, term)
            before = term
        terms.append(term)
    return terms


def _pause_s(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """Return the seconds between two terms; None if the timestamps are not those of the leaders."""
    begin: datetime = before["last"]
    end: datetime = after["first"]
    in_order = (
        before["opened"] - CLOCK_SKEW <= before["first"]
        and begin - CLOCK_SKEW <= after["opened"] <= end + CLOCK_SKEW
    )
    return max(0.0, (end - begin).total_seconds()) if in_order else None


def pauses_of(terms: Rows) -> list[float]:
    """Return the known pauses, in seconds."""
    return [term["pause_s"] for term in terms if term["pause_s"] is not None]


def changes_of_leader(terms: Rows) -> int:
    return max(0, len(terms) - 1)


def fail_overs_sentence(terms: Rows) -> str:
    """Return for how long there was no record at the changes of the leader, as a sentence without its full
    stop. That is the length of a fail-over if clients appended all the time; otherwise it was shorter."""
    if not terms:
        return "No term is in the tables yet"
    if len(terms) == 1:
        return f"{terms[0]['leader']} led all the time, in term {terms[0]['term']}"
    pauses = pauses_of(terms)
    if len(terms) == 2:
        what = f"{terms[1]['leader']} took over from {terms[0]['leader']}"
    else:
        what = f"{changes_of_leader(terms)} changes of the leader"
    if not pauses:
        return f"{what}; the time without records is not known"
    longest = f"{max(pauses):.2f} s"
    return f"{what}: no record for {'at most ' if len(pauses) > 1 else ''}{longest}"


def served(terms: Rows) -> tuple[float, float] | None:
    """Return the seconds from the first record to the last one, and the part of them (0 to 1) outside of the
    pauses; None without two records of known times."""
    with_records = [term for term in terms if term["records"]]
    if not with_records or len(pauses_of(terms)) < len(with_records) - 1:
        return None
    total = float((with_records[-1]["last"] - with_records[0]["first"]).total_seconds())
    return (total, max(0.0, 1 - sum(pauses_of(terms)) / total)) if total > 0 else None
