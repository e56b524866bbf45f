"""Figures of the service of a log and its tables: each answers one question; its title states the answer."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from spark_jobs.analytics.plots import CANCELLED, INK, LATE, MUTED, PEER_COLORS, TERM_SHADES, Rows, bare

MAX_CARRIERS = 12
THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def lag_figure(lags: Rows, levels: Rows) -> Figure:
    """Who is behind, and by how much?

    lags: of gold.lag in the order of time, of the followers alone. levels: of gold.lag_by_peer.
    """
    if not lags:
        return _without_bars("No follower has been told of: the log stands on one node")
    begin = lags[0]["timestamp"]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    terms = sorted({row["term"] for row in lags})
    for number, term in enumerate(terms):
        times = [_seconds(row["timestamp"], begin) for row in lags if row["term"] == term]
        axes.axvspan(min(times), max(times), color=TERM_SHADES[number % 2], linewidth=0)
        _top_note(axes, (min(times) + max(times)) / 2, f"term {term}")
    peers = sorted({row["peer"] for row in lags})
    for number, peer in enumerate(peers):
        color = PEER_COLORS[number % len(PEER_COLORS)]
        for part, term in enumerate(terms):
            told = [row for row in lags if row["peer"] == peer and row["term"] == term]
            axes.plot(
                [_seconds(row["timestamp"], begin) for row in told],
                [row["lag"] for row in told],
                color=color,
                linewidth=1.4 + 1.6 * (len(peers) - 1 - number),  # so that overlapping lines are visible
                marker="o",
                markersize=3,
                label=peer if part == 0 or peer not in _labels(axes) else None,
            )
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(0, max(10, *(row["lag"] for row in lags)) * 5)  # room for the names of the terms
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_xlabel("time (seconds)")
    axes.set_ylabel("records that the peer lacks (log scale from 10 on)")
    axes.legend(loc="center right", frameon=False)
    known = [row for row in levels if row["most"] is not None]
    worst = max(known, key=lambda row: row["most"])
    usual = ", ".join(f"{row['peer']} {row['median']:,.0f}" for row in known)
    nothing = max(row["median"] for row in known) < 1
    level = "Mostly the followers lack nothing" if nothing else "The followers lack some records"
    title = f"{level} (median: {usual}); the most was {worst['most']:,} at {worst['peer']}"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def service_figure(terms: Rows, availability: Mapping[str, Any]) -> Figure:
    """When was the log served, by whom, and when not?

    terms: of gold.terms in order, at least one. availability: its one row.
    """
    begin = terms[0]["serves_from"]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    leaders = sorted({row["leader"] for row in terms})
    for row in terms:
        start, end = _seconds(row["serves_from"], begin), _seconds(row["serves_until"], begin)
        color = PEER_COLORS[leaders.index(row["leader"]) % len(PEER_COLORS)]
        axes.barh(leaders.index(row["leader"]), end - start, left=start, color=color, height=0.55)
        axes.annotate(
            f"term {row['term']}: {row['records']:,} records",
            ((start + end) / 2, leaders.index(row["leader"]) + 0.3),
            ha="center",
            va="bottom",
            color=MUTED,
        )
        if row["gap_s"]:
            axes.axvspan(start - row["gap_s"], start, color=CANCELLED, alpha=0.25, linewidth=0)
    axes.set_yticks(range(len(leaders)), leaders)
    axes.set_ylim(-0.6, len(leaders) - 0.3)
    axes.set_xlabel("time (seconds); red: nobody led")
    axes.set_ylabel("leader")
    share, longest = 100 * availability["availability"], availability["longest_gap_s"]
    title = f"Served {share:.2f} % of {availability['total_s']:,.0f} s"
    if availability["fail_overs"]:
        title += f"; {availability['fail_overs']} fail-over took at most {longest:.1f} s"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def commits_figure(commits: Rows) -> Figure:
    """Does each commit of `entries` start where the one before ended, and was each row added once?

    commits: of transforms.commit_ranges, at least one.
    """
    begin = commits[0]["timestamp"]
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(commits):
        at = _seconds(row["timestamp"], begin)
        axes.vlines(
            at, row["first_index"], row["until_index"], color=PEER_COLORS[number % 2], linewidth=6, alpha=0.9
        )
    axes.step(
        [_seconds(row["timestamp"], begin) for row in commits],
        [row["until_index"] for row in commits],
        where="post",
        color=MUTED,
        linewidth=0.8,
        linestyle=":",
    )
    axes.set_xlabel("time of the commit (seconds)")
    axes.set_ylabel("indexes that it brought (records)")
    axes.yaxis.set_major_formatter(THOUSANDS)
    written, held = (sum(row[name] for row in commits) for name in ("written", "held"))
    wrong = sum(row["written"] != row["held"] for row in commits)
    title = f"Commits: {len(commits)}. They wrote {written:,} rows, each once"
    if wrong:
        title = f"{wrong} of {len(commits)} commits differ from the table: {written:,} rows, {held:,} there"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def cuts_figure(cuts: Rows) -> Figure:
    """What was in the table when each epoch ended?

    cuts: epoch, leader, rows, version (of `entries`), in order, at least one.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    names = [f"epoch {row['epoch']}\n{row['leader']}" for row in cuts]
    bars = axes.bar(names, [row["rows"] for row in cuts], color="#c9d2e3", width=0.6)
    axes.bar_label(
        bars, [f"{row['rows']:,}\nversion {row['version']}" for row in cuts], padding=3, color=MUTED
    )
    axes.set_ylim(0, max(1, *(row["rows"] for row in cuts)) * 1.22)
    axes.set_ylabel("rows of `entries` (records)")
    axes.set_xlabel("at the end of the epoch, and who led in it")
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_title(
        f"{cuts[0]['rows']:,} records were in the table when epoch {cuts[0]['epoch']} ended, "
        f"{cuts[-1]['rows']:,} at the last",
        loc="left",
        fontweight="bold",
        color=INK,
    )
    bare(axes)
    return figure


def carriers_figure(delays: Rows) -> Figure:
    """Which carrier is late at which hour of the day?

    delays: carrier, hour_of_day, flights, mean (minutes), one row each; the carriers with most flights show.
    """
    counts: dict[str, int] = {}
    for row in delays:
        counts[row["carrier"]] = counts.get(row["carrier"], 0) + row["flights"]
    carriers = sorted(counts, key=lambda carrier: -counts[carrier])[:MAX_CARRIERS]
    told = [row["hour_of_day"] for row in delays]
    hours = list(range(min(told), max(told) + 1))
    known = {(row["carrier"], row["hour_of_day"]): row["mean"] for row in delays}
    cells = [[known.get((carrier, hour)) for hour in hours] for carrier in carriers]
    values = [[float("nan") if cell is None else cell for cell in line] for line in cells]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    norm = TwoSlopeNorm(vcenter=0, vmin=-20, vmax=60)
    image = axes.pcolormesh(range(len(hours) + 1), range(len(carriers) + 1), values, cmap="RdBu_r", norm=norm)
    axes.set_xticks([at + 0.5 for at in range(len(hours))], [str(hour) for hour in hours])
    axes.set_yticks(
        [at + 0.5 for at in range(len(carriers))],
        [f"{carrier} ({counts[carrier]:,})" for carrier in carriers],
    )
    axes.invert_yaxis()
    axes.set_xlabel("hour of departure (New York time, 24 h)")
    axes.set_ylabel("carrier (flights)")
    figure.colorbar(image, label="mean departure delay (minutes)", extend="both")
    shown = [row for row in delays if row["carrier"] in carriers and row["mean"] is not None]
    worst = max(shown, key=lambda row: row["mean"] * row["flights"])
    axes.set_title(
        f"Most minutes were lost by {worst['carrier']} at {worst['hour_of_day']} h: "
        f"{worst['mean']:.0f} min a flight",
        loc="left",
        fontweight="bold",
        color=INK,
    )
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=MUTED)
    return figure


def late_figure(late: Rows, on_time: int) -> Figure:
    """How late are the records behind the watermark?

    late: hours_behind (whole hours), flights, cancelled of them, in order. on_time: the others.
    """
    if not late:
        return _without_bars(f"None of {on_time:,} flights came too late")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    bars = axes.bar(
        [row["hours_behind"] for row in late], [row["flights"] for row in late], color=LATE, width=0.8
    )
    axes.bar_label(bars, padding=2, color=MUTED)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, max(row["flights"] for row in late) * 1.15)
    axes.set_xlabel("behind the watermark (whole hours)")
    axes.set_ylabel("late flights")
    count, cancelled = (sum(row[name] for row in late) for name in ("flights", "cancelled"))
    title = f"{count:,} of {count + on_time:,} flights came too late; {cancelled:,} of them were cancelled"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def _without_bars(title: str) -> Figure:
    """Return the text of a plot without data."""
    figure = Figure(figsize=(9, 1.2), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    axes.set_axis_off()
    return figure


def _seconds(moment: Any, begin: Any) -> float:
    return float((moment - begin).total_seconds())


def _labels(axes: Axes) -> list[str]:
    return [str(line.get_label()) for line in axes.get_lines()]


def _top_note(axes: Axes, x: float, text: str) -> None:
    axes.annotate(
        text,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, -14),
        textcoords="offset points",
        ha="center",
        color=MUTED,
    )
