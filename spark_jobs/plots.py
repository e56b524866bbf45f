"""Figures of the notebooks: each answers one question, and its title says the answer."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

Rows = Sequence[Mapping[str, Any]]

PEER_COLORS = ("#2a6fbb", "#d9822b", "#3a9a5c", "#8a5bb5", "#b8453f", "#4f8f96", "#8c6d46")
TERM_SHADES = ("#f3f6fb", "#fdf6ec")
INK, MUTED, LATE, CANCELLED = "#1d2433", "#5b6780", "#d9822b", "#b8453f"


def delays_by_hour_figure(rows: Rows) -> Figure:
    """When does one leave on time? rows: of transforms.delays_by_hour, in order, at least one with delays."""
    known = [row for row in rows if row["late"] is not None]
    worst = max(known, key=lambda row: row["late"])
    hours = [row["hour"] for row in known]
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    delays, flights = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    late, median = [row["late"] for row in known], [row["median"] for row in known]
    delays.fill_between(hours, median, late, color=LATE, alpha=0.18, linewidth=0)
    delays.plot(
        hours, late, color=LATE, linewidth=2.2, marker="o", markersize=4, label="the latest tenth: at least"
    )
    delays.plot(
        hours, median, color=INK, linewidth=2.2, marker="o", markersize=4, label="half of them: at most"
    )
    delays.axhline(0, color=MUTED, linewidth=0.8)
    delays.set_ylabel("departure delay (minutes)")
    delays.legend(loc="upper left", frameon=False)
    delays.set_title(
        f"Delays build up: of flights due out at {worst['hour']}:00, one in ten leaves {worst['late']:.0f} "
        "min late",
        loc="left",
        fontweight="bold",
        color=INK,
    )
    flights.bar(
        [row["hour"] for row in rows], [row["flights"] for row in rows], color="#c9d2e3", label="flights"
    )
    cancelled = [row["cancelled"] for row in rows]
    flights.bar([row["hour"] for row in rows], cancelled, color=CANCELLED, label="of them cancelled")
    flights.set_ylabel("flights")
    flights.set_xlabel("scheduled hour of departure (local time, 24 h)")
    flights.set_xticks([row["hour"] for row in rows])
    flights.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    flights.legend(loc="upper left", frameon=False, ncols=2)
    _bare(delays, flights)
    return figure


def watermarks_figure(watermarks: Rows, epochs: Rows) -> Figure:
    """How far had each peer followed, and what did the fail-over cost?

    watermarks: of the table, in the order of time, at least one. epochs: of the table, in order.
    """
    begin = watermarks[0]["timestamp"]
    ends_s = (watermarks[-1]["timestamp"] - begin).total_seconds()

    def seconds(moment: Any) -> float:
        return float((moment - begin).total_seconds())

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    terms = sorted({row["term"] for row in watermarks})
    opened = {row["epoch"]: max(0.0, seconds(row["started"])) for row in epochs if row["epoch"] in terms}
    bounds = [opened.get(term, 0.0) for term in terms] + [ends_s]
    for number, (term, (start, end)) in enumerate(zip(terms, pairwise(bounds), strict=True)):
        axes.axvspan(start, end, color=TERM_SHADES[number % 2], linewidth=0)
        leader = next(row["node"] for row in watermarks if row["term"] == term)
        axes.annotate(
            f"term {term}: {leader} leads",
            ((start + end) / 2, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
            color=MUTED,
        )
    for number, peer in enumerate(sorted({row["peer"] for row in watermarks})):
        color = PEER_COLORS[number % len(PEER_COLORS)]
        for term in terms:
            told = [row for row in watermarks if row["peer"] == peer and row["term"] == term]
            axes.plot(
                [seconds(row["timestamp"]) for row in told],
                [max(0, row["watermark"]) for row in told],
                color=color,
                linewidth=2,
                marker="o",
                markersize=3,
                label=f"{peer} has acknowledged" if term == terms[0] else None,
            )
    committed = [(seconds(row["timestamp"]), row["committed_index"]) for row in watermarks]
    axes.step(
        [at for at, index in committed if index >= 0],
        [index for _, index in committed if index >= 0],
        where="post",
        color=INK,
        linewidth=1.2,
        linestyle=(0, (4, 2)),
        label="committed",
    )
    axes.set_xlabel("time since the first term opened (seconds)")
    axes.set_ylabel("last index (records)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0, top=max(1, *(row["watermark"] for row in watermarks)) * 1.12)
    axes.set_xlim(0, max(ends_s, 0.001))
    axes.legend(loc="lower right", frameon=False)
    axes.set_title(_watermarks_title(watermarks, terms), loc="left", fontweight="bold", color=INK)
    _bare(axes)
    return figure


def longest_pause_s(watermarks: Rows) -> float:
    """Seconds between the last news of one term and the first of the next that says that commits go on.

    At most what clients waited: leaders tell of their watermarks twice a second. 0 without a fail-over.
    """
    pauses = [0.0]
    for before, after in pairwise(sorted({row["term"] for row in watermarks})):
        old = [row for row in watermarks if row["term"] == before]
        reached = max(row["committed_index"] for row in old)
        going_on = [
            row["timestamp"]
            for row in watermarks
            if row["term"] == after and row["committed_index"] > reached
        ]
        if going_on:
            pauses.append((min(going_on) - max(row["timestamp"] for row in old)).total_seconds())
    return max(pauses)


def _watermarks_title(watermarks: Rows, terms: Sequence[int]) -> str:
    leaders = [next(row["node"] for row in watermarks if row["term"] == term) for term in terms]
    if len(terms) == 1:
        committed = watermarks[-1]["committed_index"]
        return f"{leaders[0]} led all the time; its peers followed to index {committed:,}"
    return (
        f"{leaders[1]} took over from {leaders[0]}: commits went on within "
        f"{longest_pause_s(watermarks):.1f} s, "
        "and no index was lost"
    )


def _bare(*all_axes: Axes) -> None:
    for axes in all_axes:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color("#c9d2e3")
        axes.tick_params(colors=MUTED)
        axes.grid(axis="y", color="#e6ebf3", linewidth=0.8)
        axes.set_axisbelow(True)
