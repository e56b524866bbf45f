"""Figures of typed tables: each answers one question, and its title states the answer."""

from matplotlib.figure import Figure

from spark_jobs.analytics.plots import CANCELLED, INK, MUTED, PEER_COLORS, THOUSANDS, bare, without_plot
from spark_jobs.analytics.terms import Rows

SHADES = ("#c9d2e3", "#8fb0d9", "#2a6fbb", "#1f4f86")  # of schema versions, the newest ones darkest
SAME = 1.5  # quotient of two medians below which they count as equal
BAR_INCHES = 0.45


def versions_figure(blocks: Rows, changes: Rows) -> Figure:
    """Plot the typed rows and the dead letters by version of the schema.

    blocks: first_index, size, version (None for dead letters), records; in order. changes: version, index
    of each version of the schema.
    """
    if not blocks:
        return without_plot("The typed tables have no rows yet")
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots()
    starts = sorted({row["first_index"] for row in blocks})
    width = blocks[0]["size"]
    heights = dict.fromkeys(starts, 0)
    versions = sorted({row["version"] for row in blocks if row["version"] is not None})
    for place, version in enumerate([*versions, None]):
        shade = SHADES[max(0, len(SHADES) - len(versions)) :][min(place, len(SHADES) - 1) :][:1]
        own = {row["first_index"]: row["records"] for row in blocks if row["version"] == version}
        axes.bar(
            starts,
            [own.get(start, 0) for start in starts],
            bottom=[heights[start] for start in starts],
            width=width * 0.9,
            align="edge",
            color=CANCELLED if version is None else shade,
            label="dead letters" if version is None else f"rows of version {version}",
        )
        for start, records in own.items():
            heights[start] += records
    top = max(heights.values())
    for change in changes:
        axes.axvline(change["index"], color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            f"version {change['version']} is set",
            (change["index"], top * 1.12),
            xytext=(4, 0),
            textcoords="offset points",
            color=MUTED,
        )
    axes.set_ylim(0, top * 1.25)
    axes.set_xlabel(
        f"index in the log, in blocks of {width:,}; control records have an index too, and no row"
    )
    axes.set_ylabel("records")
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    rows = sum(row["records"] for row in blocks if row["version"] is not None)
    dead = [row for row in blocks if row["version"] is None and row["records"]]
    letters = sum(row["records"] for row in dead)
    title = f"{rows:,} of {rows + letters:,} records are typed rows"
    if dead:
        title += f"; {letters:,} are dead letters, all in blocks from index {dead[0]['first_index']:,} on"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure


def producers_figure(producers: Rows) -> Figure:
    """Plot the dead letters of each producer by their reason.

    producers: producer, records, dead_letters (of these records), path (the most frequent one, None for
    none).
    """
    if not producers:
        return without_plot("The log has no records yet")
    shown = sorted(producers, key=lambda row: row["producer"], reverse=True)
    figure = Figure(figsize=(9, 1.4 + BAR_INCHES * len(shown)), layout="constrained")
    axes = figure.subplots()
    names = [row["producer"] for row in shown]
    good = [row["records"] - row["dead_letters"] for row in shown]
    axes.barh(names, good, color=SHADES[0], label="rows", height=0.6)
    axes.barh(
        names,
        [row["dead_letters"] for row in shown],
        left=good,
        color=CANCELLED,
        label="dead letters",
        height=0.6,
    )
    for place, row in enumerate(shown):
        if row["dead_letters"]:
            axes.annotate(
                f"{row['dead_letters']:,} of {row['records']:,} at {row['path']}",
                (row["records"], place),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=CANCELLED,
            )
    axes.set_xlim(0, max(row["records"] for row in shown) * 1.25)
    axes.set_xlabel("records")
    axes.set_ylabel("producer")
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.legend(loc="lower right", frameon=False)
    faulty = [row for row in shown if row["dead_letters"]]
    if not faulty:
        title = "No producer has sent a record that does not match"
    elif len(faulty) == 1:
        title = (
            f"All dead letters are from {faulty[0]['producer']}: the field {faulty[0]['path']} is at fault"
        )
    else:
        worst = max(faulty, key=lambda row: row["dead_letters"])
        title = f"{len(faulty)} producers have dead letters, {worst['producer']} the most"
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    axes.grid(axis="y", visible=False)
    return figure


def amounts_figure(blocks: Rows, suspect: str, since: int) -> Figure:
    """Plot the typed values of a suspect producer beside those of the others.

    blocks: producer, first_index, median; in order. since: index of the first dead letter.
    """
    own = [row["median"] for row in blocks if row["producer"] == suspect]
    others = [row["median"] for row in blocks if row["producer"] != suspect]
    if not own or not others:
        return without_plot(f"There is nothing to compare {suspect} with")
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    axes = figure.subplots()
    names = sorted({row["producer"] for row in blocks})
    colors = [color for color in PEER_COLORS if color != CANCELLED]
    for number, name in enumerate(names):
        places = [row for row in blocks if row["producer"] == name]
        axes.plot(
            [row["first_index"] for row in places],
            [row["median"] for row in places],
            color=CANCELLED if name == suspect else colors[number % len(colors)],
            linewidth=2,
            marker="o",
            markersize=4,
            label=name,
        )
    axes.axvline(since, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_yscale("log")
    axes.set_ylim(min(*own, *others) / 2, max(*own, *others) * 4)
    axes.annotate(
        "first dead letter",
        (since, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-6, -14),
        textcoords="offset points",
        ha="right",
        color=MUTED,
    )
    axes.set_xlabel("beginning of a block of indexes in the log")
    axes.set_ylabel("median amount (log scale)")
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    times = sorted(own)[len(own) // 2] / sorted(others)[len(others) // 2]
    about = float(f"{times:.1g}")
    title = (
        f"The amounts of {suspect} that match are about {about:,.0f} times those of the others"
        if times >= SAME
        else f"The amounts of {suspect} are like those of the others"
    )
    axes.set_title(title, loc="left", fontweight="bold", color=INK)
    bare(axes)
    return figure
