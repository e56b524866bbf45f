"""Figures of the notebooks: each answers one question, and its title states the answer."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from math import isnan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from spark_jobs.analytics.terms import Rows, fail_overs_sentence, seconds_after

# as on the live page (dom.js)
PEER_COLORS = ("#2f6fd0", "#1f9d57", "#d07a16", "#9a4fc9", "#1899a8", "#cf3a33", "#7a8f28", "#cc4f90")
TERM_SHADES = ("#f3f6fb", "#fdf6ec")
AWAY_S = 3.0  # a new leader needs a moment to hear from its peers: shorter absences are ignored
INK, MUTED, LATE, CANCELLED = "#1d2433", "#5b6780", "#d9822b", "#b8453f"
LABEL_SHARE = 0.14  # of the width of a plot, for a label of a term
LEAST_SPAN_S = 1.0  # of an axis of time
THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.10g}")  # exact: 2.5 is not shown as 2
REPORT_S = 0.5  # a leader reports a change within this time


def delays_by_hour_figure(rows: Rows) -> Figure:
    """Plot the delays of departures by hour of the day.

    rows: of transforms.delays_by_hour, in order; an hour at which no flight left is left out.
    """
    known = [row for row in rows if row["late"] is not None]
    if not known:
        return without_plot("No flight of this log has left: there are no delays to show")
    worst = max(known, key=lambda row: row["late"])
    hours = [row["hour"] for row in known]
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    delays, flights = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    late, median = [row["late"] for row in known], [row["median"] for row in known]
    delays.fill_between(hours, median, late, color=LATE, alpha=0.18, linewidth=0)
    delays.plot(
        hours,
        late,
        color=LATE,
        linewidth=2.2,
        marker="o",
        markersize=4,
        label="one flight in ten leaves at least this late",
    )
    delays.plot(
        hours,
        median,
        color=INK,
        linewidth=2.2,
        marker="o",
        markersize=4,
        label="half of the flights have left by then",
    )
    delays.axhline(0, color=MUTED, linewidth=0.8)
    delays.set_ylabel("departure delay (minutes)")
    delays.legend(loc="upper left", frameon=False)
    delays.set_title(
        f"Delays peak at {worst['hour']} h: one flight in ten leaves {worst['late']:.0f} min late or more",
        loc="left",
        fontweight="bold",
        color=INK,
    )
    counts = [row["flights"] for row in known]
    flights.bar(hours, counts, color="#c9d2e3", label="flights")
    flights.bar(hours, [row["cancelled"] for row in known], color=CANCELLED, label="of them cancelled")
    flights.set_ylim(0, max(counts) * 1.5)  # room for the legend
    flights.set_ylabel("flights")
    flights.set_xlabel("scheduled hour of departure (local time, 24 h)")
    flights.set_xticks(hours)
    flights.yaxis.set_major_formatter(THOUSANDS)
    flights.legend(loc="upper left", frameon=False, ncols=2)
    bare(delays, flights)
    return figure


def watermarks_figure(watermarks: Rows, terms: Rows) -> Figure:
    """Plot the watermarks of each peer, and the pauses of the fail-overs.

    watermarks: of the table, in the order of time. terms: of terms.terms_of. The figure shows the time in
    which something changed.
    """
    if not watermarks:
        return without_plot("No leader has recorded watermarks yet")
    shown = _while_moving(watermarks)
    begin = shown[0]["timestamp"]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    width = max(seconds_after(begin, shown[-1]["timestamp"]), LEAST_SPAN_S)
    _draw_terms(axes, shown, terms, width)
    peers = sorted({row["peer"] for row in shown})
    colors = colors_of(peers)
    for number, peer in enumerate(peers):
        _draw_peer(
            axes,
            begin,
            [row for row in shown if row["peer"] == peer],
            color=colors[peer],
            line_width=2 + 2.5 * (len(peers) - 1 - number),  # so that overlapping lines are visible
        )
    committed = _committed(shown, terms)
    axes.plot(
        *stepped(
            [seconds_after(begin, row["timestamp"]) for row in committed],
            [row["committed_index"] for row in committed],
        ),
        color=INK,
        linewidth=1,
        linestyle=(0, (4, 3)),
        label="committed",
    )
    axes.set_xlabel(f"{seconds_since(begin)}; a change of the background: another term")
    axes.set_ylabel("last index (records)")
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, max(1, *(row["watermark"] for row in shown)) * 1.12)
    axes.set_xlim(0, width)
    axes.legend(loc="lower right", frameon=False)
    axes.set_title(fail_overs_sentence(terms), loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def _draw_terms(axes: Axes, shown: Rows, terms: Rows, width: float) -> None:
    """Shade the background by term, and name the leader of each term that is wide enough for a label."""
    begin = shown[0]["timestamp"]
    numbers = sorted({row["term"] for row in shown})
    opened = {term["term"]: max(0.0, seconds_after(begin, term["opened"])) for term in terms}
    bounds = [opened.get(term, 0.0) for term in numbers] + [width]
    for number, (term, (start, end)) in enumerate(zip(numbers, pairwise(bounds), strict=True)):
        axes.axvspan(start, end, color=TERM_SHADES[number % 2], linewidth=0)
        if end - start >= LABEL_SHARE * width:
            top_note(axes, (start + end) / 2, f"term {term}: {_leader(shown, term)} leads")


def _draw_peer(axes: Axes, begin: Any, of_peer: Rows, *, color: str, line_width: float) -> None:
    """Draw the watermark of one peer, and a dotted line for each of its absences."""
    peer = of_peer[0]["peer"]
    times, indexes = _line_of(begin, of_peer)
    axes.plot(
        times,
        indexes,
        color=color,
        linewidth=line_width,
        solid_capstyle="butt",
        label=f"{peer} has acknowledged",
    )
    for gone, back in _absences(of_peer):
        start, end = (seconds_after(begin, row["timestamp"]) for row in (gone, back))
        y = max(0, gone["watermark"])
        axes.plot([start, end], [y, y], color=color, linewidth=1.2, linestyle=":")
        axes.annotate(
            f"{peer} is away",
            ((start + end) / 2, y),
            xytext=(0, -13),
            textcoords="offset points",
            ha="center",
            color=MUTED,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1},  # readable on a line
        )


def _line_of(begin: Any, of_peer: Rows) -> tuple[list[float], list[float]]:
    """Return the points of a peer's line. It is interrupted where the peer has not been heard of, and between
    two terms where no leader reported anything for some time."""
    times: list[float] = []
    indexes: list[float] = []
    before: Mapping[str, Any] | None = None
    for row in of_peer:
        at = seconds_after(begin, row["timestamp"])
        if before and before["term"] != row["term"] and at - times[-1] > AWAY_S:
            times.append(at)
            indexes.append(float("nan"))
        times.append(at)
        indexes.append(row["watermark"] if row["watermark"] >= 0 else float("nan"))
        before = row
    return stepped(times, indexes)


def stepped(times: Sequence[float], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the points of a line on which a value stays until shortly before the next report. A leader that
    has nothing new to report is silent for up to a minute: a straight line would show a slow change."""
    at, shown = list(times[:1]), list(values[:1])
    for (before, value), (time, new) in pairwise(zip(times, values, strict=True)):
        if time - before > REPORT_S and not isnan(new):
            at.append(time - REPORT_S)
            shown.append(value)
        at.append(time)
        shown.append(new)
    return at, shown


def colors_of(nodes: Iterable[str]) -> dict[str, str]:
    """Return the colour of each node, the same in every figure: it follows from the number at the end of the
    name. If not all names end with different numbers, it follows from the order of the names."""
    names = sorted(set(nodes))
    ends = [re.search(r"\d+$", name) for name in names]
    places = [int(end[0]) - 1 if end else -1 for end in ends]
    places = [place % len(PEER_COLORS) for place in places]
    if None in ends or len(set(places)) < len(names):
        places = [place % len(PEER_COLORS) for place in range(len(names))]
    return {name: PEER_COLORS[place] for name, place in zip(names, places, strict=True)}


def _committed(watermarks: Rows, terms: Rows) -> Rows:
    """Return the rows whose leader knows the committed index. Until it has committed the record that opens
    its term, it may know less than the leader before (R-05), and serves no reads."""
    begins = {term["term"]: term["start_index"] for term in terms}
    return [row for row in watermarks if row["committed_index"] >= begins.get(row["term"], 0)]


def _absences(of_peer: Rows) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return the time from the last row with an acknowledgement of a peer to the first with one again, where
    leaders have missed it for some time: at the beginning of a term they have heard of no peer yet."""
    absences = []
    known: Mapping[str, Any] | None = None
    missed: Mapping[str, Any] | None = None  # the first row without it
    for row in of_peer:
        if row["watermark"] < 0:
            missed = missed or row
            continue
        if known and missed and seconds_after(missed["timestamp"], row["timestamp"]) > AWAY_S:
            absences.append((known, row))
        known, missed = row, None
    return absences


def _while_moving(watermarks: Rows) -> Rows:
    """Return the rows without the idle time before the first index and after the last, except one event of
    each."""
    states: dict[Any, list[Any]] = {}
    for row in watermarks:
        states.setdefault(row["timestamp"], []).append((row["term"], row["peer"], row["watermark"]))
    moments = list(states)
    moved = [at for at in range(1, len(moments)) if states[moments[at]] != states[moments[at - 1]]]
    if not moved:
        return watermarks
    first, last = moments[max(0, moved[0] - 1)], moments[min(len(moments) - 1, moved[-1] + 1)]
    return [row for row in watermarks if first <= row["timestamp"] <= last]


def _leader(watermarks: Rows, term: int) -> str:
    return str(next(row["node"] for row in watermarks if row["term"] == term))


def seconds_since(begin: datetime, unit: str = "second") -> str:
    """Return the label of an axis of time. Spark collects times of this machine's zone; tables show them in
    UTC."""
    return f"{unit}s since {begin.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def top_note(axes: Axes, x: float, text: str) -> None:
    """Write a text at the top of a plot."""
    axes.annotate(
        text,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, -14),
        textcoords="offset points",
        ha="center",
        color=MUTED,
    )


def without_plot(title: str) -> Figure:
    """Return a sentence in place of a plot that has nothing to show."""
    figure = Figure(figsize=(9, 1.0), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    axes.set_axis_off()
    return figure


def spaced(places: Sequence[float], width: float, share: float) -> list[int]:
    """Return the numbers of the places that can have a label without overprinting: each is at least `share`
    of `width` after the one before. places: in order."""
    chosen: list[int] = []
    for number, place in enumerate(places):
        if not chosen or place - places[chosen[-1]] >= share * width:
            chosen.append(number)
    return chosen


def bare(*all_axes: Axes) -> None:
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#c9d2e3")
        axes.tick_params(colors=MUTED)
        axes.grid(axis="y", color="#e6ebf3", linewidth=0.8)
        axes.set_axisbelow(True)
