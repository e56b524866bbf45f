"""Figures of fail-overs: each answers one question; its title states the answer."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spark_jobs.analytics.plots import (
    CANCELLED,
    INK,
    LATE,
    MUTED,
    THOUSANDS,
    bare,
    colors_of,
    seconds_since,
    spaced,
    without_plot,
)
from spark_jobs.analytics.terms import Rows, fail_overs_sentence, pauses_of, seconds_after
from storage.units import KIB

LONG_PAUSE_S = 0.5  # pauses from this length on are marked
QUIET_S = 1.0  # shown after the last event
EPOCH_SHARE, MASTER_SHARE = 0.07, 0.11  # of the width of a plot, for the label of an epoch


def story_figure(reigns: Rows, memberships: Rows, confirmed: Rows, pauses: Rows) -> Figure:
    """Plot the masters, the members of the SyncStateSet, and the confirm offset.

    In: rows of failovers.reigns, .memberships, .confirmed and .pauses.
    """
    if not reigns:
        return without_plot("No election by controllers is recorded for this log")
    begin = reigns[0]["from"]
    happened = [row["from"] for row in (*reigns, *memberships)] + [row["timestamp"] for row in pauses]
    width = seconds_after(begin, max(happened)) + QUIET_S
    labelled = spaced([seconds_after(begin, row["from"]) for row in reigns], width, EPOCH_SHARE)
    nodes = sorted({row["master"] for row in reigns} | {row["node"] for row in memberships})
    figure = Figure(figsize=(9, 7.6), layout="constrained")
    masters, members, offsets = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1, 1.4))
    for number, row in enumerate(reigns):
        _draw_period(masters, row, "master", nodes, begin)
        if number in labelled:
            masters.annotate(
                f"epoch {row['master_epoch']}",
                (seconds_after(begin, row["from"]), nodes.index(row["master"]) - 0.31),
                xytext=(0, 2),
                textcoords="offset points",
                color=MUTED,
                fontsize="small",
            )
    for row in memberships:
        _draw_period(members, row, "node", nodes, begin)
    by_kind = {
        of_set: [row for row in confirmed if row["of_set"] is of_set and row["confirm_offset"] is not None]
        for of_set in (False, True)
    }
    _draw_offsets(offsets, by_kind, begin)
    offsets.set_xlabel(f"{seconds_since(begin)}; red: no record for longer than {LONG_PAUSE_S} s")
    for axes, what in ((masters, "master"), (members, "in SyncStateSet")):
        axes.set_yticks(range(len(nodes)), nodes)
        axes.set_ylim(len(nodes) - 0.5, -0.75)
        axes.set_ylabel(what)
    for axes in (masters, members, offsets):
        _mark_pauses(axes, pauses, begin)
    offsets.set_xlim(0, width)
    masters.set_title(_title_of(reigns, by_kind), loc="left", fontweight="bold", color=INK)
    bare(masters, members, offsets)
    return figure


def _draw_period(axes: Axes, row: Mapping[str, Any], name: str, nodes: Sequence[str], begin: Any) -> None:
    """Draw a period of the node in the column `name` as a bar in the line of that node."""
    start, end = seconds_after(begin, row["from"]), seconds_after(begin, row["until"])
    node = row[name]
    axes.barh(nodes.index(node), end - start, left=start, color=colors_of(nodes)[node], height=0.62)


def _draw_offsets(axes: Axes, by_kind: Mapping[bool, Rows], begin: Any) -> None:
    """Draw the confirm offsets. by_kind: True for those with a change of the set, False for the others."""
    for of_set, rows in by_kind.items():
        axes.step(
            [seconds_after(begin, row["timestamp"]) for row in rows],
            [row["confirm_offset"] / KIB for row in rows],
            where="post",
            color=LATE if of_set else INK,
            linewidth=0 if of_set else 1.8,
            marker="o" if of_set else None,
            markersize=4,
            label="with a change of the SyncStateSet" if of_set else "beginning of the last confirmed batch",
        )
    axes.legend(loc="lower right", frameon=False)
    axes.set_ylabel("confirm offset (KiB)")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(THOUSANDS)


def _title_of(reigns: Rows, by_kind: Mapping[bool, Rows]) -> str:
    if len(reigns) == 1:
        return f"{reigns[0]['master']} was the master all the time"
    known = ([row["confirm_offset"] for row in rows] for rows in by_kind.values())
    if any(after < before for of_kind in known for before, after in pairwise(of_kind)):
        return f"Epochs: {len(reigns)}; the confirm offset was lower than before at least once"
    return f"Epochs: {len(reigns)}, each with one master; the confirm offset never decreased"


def pauses_figure(pauses: Rows, reigns: Rows, terms: Rows) -> Figure:
    """Plot the time that producers waited for each record.

    In: rows of failovers.pauses and .reigns, terms of terms.terms_of.
    """
    if not pauses or not reigns:
        return without_plot("There are no two records with a time between them")
    begin = min(reigns[0]["from"], pauses[0]["timestamp"])
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    times = [seconds_after(begin, row["timestamp"]) for row in pauses]
    waits = [1_000 * row["pause_s"] for row in pauses]
    axes.vlines(times, 1, [max(1.0, wait) for wait in waits], color=MUTED, linewidth=0.8)
    elected = [seconds_after(begin, row["from"]) for row in reigns[1:]]
    labelled = spaced(elected, max([*times, *elected]), MASTER_SHARE)
    for number, (start, row) in enumerate(zip(elected, reigns[1:], strict=True)):
        axes.axvline(start, color=CANCELLED, linewidth=1.2, linestyle=(0, (4, 3)))
        if number in labelled:
            axes.annotate(
                f"{row['master']}, epoch {row['master_epoch']}",
                (start, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -12),
                textcoords="offset points",
                color=MUTED,
                fontsize="small",
            )
    axes.set_yscale("log")
    axes.set_ylim(1, max(10.0, *waits) * 4)  # room for the names of the masters
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_xlabel(f"{seconds_since(begin)}; dashed: an election")
    axes.set_ylabel("time since the record before (ms, log scale)")
    title = fail_overs_sentence(terms)
    if not pauses_of(terms):
        title += f"; the longest time between two records: {max(waits):,.0f} ms"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def _mark_pauses(axes: Axes, pauses: Rows, begin: Any) -> None:
    for row in pauses:
        if row["pause_s"] >= LONG_PAUSE_S:
            end = seconds_after(begin, row["timestamp"])
            axes.axvspan(end - row["pause_s"], end, color=CANCELLED, alpha=0.2, linewidth=0, zorder=0)
