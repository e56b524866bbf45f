"""Figures of the service of a log and its tables: each answers one question; its title states the answer."""

from datetime import datetime

from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from spark_jobs.analytics.plots import (
    CANCELLED,
    INK,
    LABEL_SHARE,
    LATE,
    LEAST_SPAN_S,
    MUTED,
    TERM_SHADES,
    THOUSANDS,
    bare,
    colors_of,
    seconds_since,
    stepped,
    top_note,
    without_plot,
)
from spark_jobs.analytics.terms import Rows, fail_overs_sentence, seconds_after, served

MAX_CARRIERS = 12
MAX_LABELLED_BARS = 24
HOURS_SHOWN = 24  # each as a bar
NOTHING = "#d8dce3"
SILENT = "not heard of in this term"
TIME_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))
MIN_UNITS = 20  # that an axis of time has


def lag_figure(lags: Rows, levels: Rows) -> Figure:
    """Plot the records that each follower lacks.

    lags: of gold.lag in the order of time, of the followers alone. levels: of gold.lag_by_peer.
    """
    if not lags:
        return without_plot("The log has no follower, or no leader has recorded watermarks yet")
    begin = lags[0]["timestamp"]
    width = max(seconds_after(begin, lags[-1]["timestamp"]), LEAST_SPAN_S)
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    _shade_terms(axes, lags, begin, width)
    peers = sorted({row["peer"] for row in lags})
    colors = colors_of(peers)
    for number, peer in enumerate(peers):
        line_width = 1.4 + 1.6 * (len(peers) - 1 - number)  # so that overlapping lines are visible
        _draw_lag(axes, [row for row in lags if row["peer"] == peer], begin, colors[peer], line_width)
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(0, max(10, *(row["lag"] for row in lags)) * 5)  # room for the names of the terms
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_xlim(-0.02 * width, 1.02 * width)
    axes.set_xlabel(seconds_since(begin))
    axes.set_ylabel("records that the peer lacks (log scale from 10 on)")
    names = sorted(zip(*axes.get_legend_handles_labels(), strict=True), key=lambda each: each[1] == SILENT)
    axes.legend(*zip(*names, strict=True), loc="center right", frameon=False)
    axes.set_title(_lag_title(levels), loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def _terms(lags: Rows) -> list[tuple[int, Rows]]:
    """Return the terms in their order, each with its rows."""
    terms = sorted({row["term"] for row in lags})
    return [(term, [row for row in lags if row["term"] == term]) for term in terms]


def _shade_terms(axes: Axes, lags: Rows, begin: datetime, width: float) -> None:
    """Shade each term, and name those that are wide enough. width: of the axis, seconds."""
    for number, (term, rows) in enumerate(_terms(lags)):
        first, last = (seconds_after(begin, row["timestamp"]) for row in (rows[0], rows[-1]))
        axes.axvspan(first, last, color=TERM_SHADES[number % 2], linewidth=0)
        if last - first >= LABEL_SHARE * width:
            top_note(axes, (first + last) / 2, f"term {term}")


def _draw_lag(axes: Axes, lags: Rows, begin: datetime, color: str, line_width: float) -> None:
    """Draw the lag of one peer: a line for each term, a point for each report."""
    for _term, rows in _terms(lags):
        times, values = [seconds_after(begin, row["timestamp"]) for row in rows], [row["lag"] for row in rows]
        peer = rows[0]["peer"]
        label = None if peer in _labels(axes) else peer
        axes.plot(*stepped(times, values), color=color, linewidth=line_width, label=label)
        axes.plot(times, values, color=color, linewidth=0, marker="o", markersize=3)
        silent = [place for place, row in enumerate(rows) if not row["heard"]]
        axes.plot(
            [times[place] for place in silent],
            [values[place] for place in silent],
            color=CANCELLED,
            linewidth=0,
            marker="x",
            markersize=5,
            label=SILENT if silent and SILENT not in _labels(axes) else None,
        )


def _lag_title(levels: Rows) -> str:
    known = [row for row in levels if row["most"] is not None]
    worst = max(known, key=lambda row: row["most"])
    usual = ", ".join(f"{row['peer']} {row['median']:,.0f}" for row in known)
    nothing = max(row["median"] for row in known) < 1
    level = "Mostly the followers lack nothing" if nothing else "The followers lack some records"
    return f"{level} (median: {usual}); the most was {worst['most']:,} at {worst['peer']}"


def service_figure(terms: Rows) -> Figure:
    """Plot the appends to the log, its leaders, and the times without a leader.

    terms: of terms.terms_of.
    """
    held = [term for term in terms if term["records"]]
    title = fail_overs_sentence(terms)
    known = served(terms)
    if known is None or len(held) < 2:
        count = sum(term["records"] for term in terms)
        return without_plot(f"{title}; records: {count:,}")
    total, share = known
    begin = held[0]["first"]
    shown = [term for term in terms if term["led_from"] is not None and term["led_until"] > begin]
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots()
    leaders = sorted({term["leader"] for term in shown})
    colors = colors_of(leaders)
    for term in shown:
        place, color = leaders.index(term["leader"]), colors[term["leader"]]
        if term["leaderless_s"]:
            back = seconds_after(begin, term["led_from"])
            axes.axvspan(back - term["leaderless_s"], back, color=CANCELLED, alpha=0.25, linewidth=0)
        start, end = (
            min(total, max(0.0, seconds_after(begin, term[name]))) for name in ("led_from", "led_until")
        )
        axes.barh(place, end - start, left=start, color=color, alpha=0.3, height=0.55, linewidth=0)
        if term["records"]:
            first, last = (seconds_after(begin, term[name]) for name in ("first", "last"))
            axes.barh(place, last - first, left=first, color=color, height=0.55)
        if end - start >= LABEL_SHARE * total:
            axes.annotate(
                f"term {term['term']}: {term['records']:,} records",
                ((start + end) / 2, place + 0.3),
                ha="center",
                va="bottom",
                color=MUTED,
            )
    axes.set_yticks(range(len(leaders)), leaders)
    axes.set_ylim(-0.6, len(leaders) - 0.3)
    axes.set_xlim(0, total)
    parts = "solid: first to last record, pale: it led without records, red: no leader has reported"
    axes.set_xlabel(f"{seconds_since(begin)}\n{parts}")
    axes.set_ylabel("leader")
    title = f"{title}. Available for at least {100 * share:.2f} % of {total:,.0f} s"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def rates_figure(bins: Rows, width_s: float) -> Figure:
    """Plot the number of appended records over time.

    bins: of transforms.records_by_time, in order. width_s: of a bin, in seconds.
    """
    if len(bins) < 2:
        count = sum(row["records"] for row in bins)
        return without_plot(f"Records: {count:,}, all within {width_s:,.0f} s: too few times for a plot")
    begin = bins[0]["start"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    span_s = seconds_after(begin, bins[-1]["start"]) + width_s
    unit, unit_s = next(each for each in TIME_UNITS if span_s >= MIN_UNITS * each[1] or each[1] == 1)
    width = width_s / unit_s
    times = [seconds_after(begin, row["start"]) / unit_s for row in bins]
    axes.bar(times, [row["records"] / width for row in bins], width=width, align="edge", color=LATE)
    axes.set_xlabel(f"timestamp of the records: {seconds_since(begin, unit)}")
    axes.set_ylabel(f"records per {unit}")
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.yaxis.set_major_formatter(THOUSANDS)
    count, size = (sum(row[name] for row in bins) for name in ("records", "size_bytes"))
    title = f"{count:,} records in {span_s / unit_s:,.0f} {unit}s; {size / count:,.0f} bytes each on average"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def commits_figure(commits: Rows) -> Figure:
    """Plot the ranges of rows that the commits of `entries` added.

    commits: of transforms.commit_ranges.
    """
    if not commits:
        return without_plot("The table has no commit of the job in its history")
    if len(commits) == 1 and commits[0]["written"] == commits[0]["held"]:
        return without_plot(
            f"One commit wrote {commits[0]['written']:,} rows; the table has each of them once"
        )
    begin = commits[0]["timestamp"]
    times = [seconds_after(begin, row["timestamp"]) for row in commits]
    firsts, untils = ([row[name] for row in commits] for name in ("first_index", "until_index"))
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.vlines(
        times, firsts, untils, color="#c9d2e3", linewidth=6 if len(commits) <= MAX_LABELLED_BARS else 2
    )
    axes.step(
        times,
        untils,
        where="post",
        color=INK,
        linewidth=0.8,
        linestyle=":",
        marker="o",  # a commit of few rows is too short for a bar
        markersize=4 if len(commits) <= MAX_LABELLED_BARS else 2,
    )
    axes.set_xlabel("time of the commit (seconds after the first one); a dot: the end of a commit")
    axes.set_ylabel("indexes that the commit added")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
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
    """Plot the records that the table has up to the end of each epoch.

    cuts: epoch, leader, is_open (its end is that of the table), rows, version (of `entries`), in order.
    """
    if not cuts:
        return without_plot("No epoch of the log ends within the table")
    ends = [cuts[0], cuts[-1]] if len(cuts) > 1 else cuts
    title = "; ".join(
        f"{'so far' if row['is_open'] else 'up to the end of epoch {}'.format(row['epoch'])}: {row['rows']:,}"
        for row in ends
    )
    if len(cuts) == 1:
        return without_plot(f"Records {title}")
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    names = [f"epoch {row['epoch']}{', open' if row['is_open'] else ''}\n{row['leader']}" for row in cuts]
    bars = axes.bar(names, [row["rows"] for row in cuts], color="#c9d2e3", width=0.6)
    axes.bar_label(
        bars, [f"{row['rows']:,}\nversion {row['version']}" for row in cuts], padding=3, color=MUTED
    )
    axes.set_ylim(0, max(1, *(row["rows"] for row in cuts)) * 1.22)
    axes.set_ylabel("rows up to the end of the epoch")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch, and its leader; the version of the table in which its records are complete")
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_title(f"Records {title}", loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def carriers_figure(delays: Rows) -> Figure:
    """Plot the delays of each carrier by hour of the day.

    delays: carrier, hour_of_day, flights, mean (minutes), one row each; the carriers with most flights show.
    """
    if not delays:
        return without_plot("The log has no flights")
    counts: dict[str, int] = {}
    for row in delays:
        counts[row["carrier"]] = counts.get(row["carrier"], 0) + row["flights"]
    carriers = sorted(counts, key=lambda carrier: -counts[carrier])[:MAX_CARRIERS]
    hours_of_day = [row["hour_of_day"] for row in delays]
    hours = list(range(min(hours_of_day), max(hours_of_day) + 1))
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
    axes.set_facecolor(NOTHING)  # white is a delay of 0
    axes.set_xlabel("hour in which the flights left (New York time, 24 h); grey: none left")
    axes.set_ylabel("carrier (number of flights, without late records)")
    figure.colorbar(image, label="mean departure delay (minutes)", extend="both")
    shown = [row for row in delays if row["carrier"] in carriers and row["mean"] is not None]
    worst = max(shown, key=lambda row: row["mean"] * row["flights"], default=None)
    axes.set_title(
        "No flight has left"
        if worst is None
        else f"Most minutes were lost by {worst['carrier']} at {worst['hour_of_day']} h: "
        f"{worst['mean']:.0f} min a flight",
        loc="left",
        fontweight="bold",
        color=INK,
    )
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=MUTED)
    return figure


def late_figure(late: Rows, on_time: int) -> Figure:
    """Plot the lateness of the records behind the watermark.

    late: hours_behind (whole hours), flights, cancelled of them, in order. on_time: the others. More than a
    day is one bar.
    """
    if not late:
        return without_plot(f"None of {on_time:,} records is late")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    hours = sorted({min(row["hours_behind"], HOURS_SHOWN) for row in late})
    for name, color, label in (
        ("flights", LATE, "late records"),
        ("cancelled", CANCELLED, "cancelled flights among them"),
    ):
        counts = [
            sum(row[name] for row in late if min(row["hours_behind"], HOURS_SHOWN) == hour) for hour in hours
        ]
        axes.bar(hours, counts, color=color, width=0.8 if name == "flights" else 0.4, label=label)
    axes.set_xticks(hours, [f"{hour}" if hour < HOURS_SHOWN else f"{hour} or more" for hour in hours])
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))  # flights are counted: no label appears twice
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_xlabel("hours before the watermark (whole hours)")
    axes.set_ylabel("records")
    axes.legend(loc="upper right", frameon=False)
    count, cancelled = (sum(row[name] for row in late) for name in ("flights", "cancelled"))
    title = f"{count:,} of {count + on_time:,} records are late; cancelled flights: {cancelled:,} of them"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def _labels(axes: Axes) -> list[str]:
    return [str(line.get_label()) for line in axes.get_lines()]
