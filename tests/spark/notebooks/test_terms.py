"""Pauses between leaders, and figures of rows that show little. Needs no Spark."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from app.api.routes import live_page
from spark_jobs.analytics.failover_plots import pauses_figure, story_figure
from spark_jobs.analytics.plots import (
    PEER_COLORS,
    colors_of,
    delays_by_hour_figure,
    spaced,
    stepped,
    watermarks_figure,
)
from spark_jobs.analytics.service_plots import (
    SILENT,
    carriers_figure,
    commits_figure,
    cuts_figure,
    lag_figure,
    late_figure,
    rates_figure,
    service_figure,
)
from spark_jobs.analytics.terms import fail_overs_sentence, pauses_of, served, terms_of

AT = datetime(2024, 1, 2, tzinfo=UTC)


def at(second: float) -> datetime:
    return AT + timedelta(seconds=second)


def epoch(term: int, leader: str, second: float, start_index: int = 0) -> dict[str, Any]:
    return {
        "epoch": term,
        "term": term,
        "leader": leader,
        "start_index": start_index,
        "started": at(second),
    }


def held(term: int, first: float, last: float, records: int = 10) -> dict[str, Any]:
    return {"term": term, "first": at(first), "last": at(last), "records": records}


EPOCHS = [epoch(1, "n1", 0), epoch(2, "n2", 8.9), epoch(3, "n3", 12), epoch(4, "n1", 13)]
RECORDS = [held(1, 0.5, 8), held(2, 9, 11), held(4, 14.5, 20)]


def test_a_pause_is_from_the_last_record_of_a_leader_to_the_first_of_the_next() -> None:
    terms = terms_of(EPOCHS, RECORDS)
    assert [(term["term"], term["records"], term["pause_s"]) for term in terms] == [
        (1, 10, None),
        (2, 10, 1.0),
        (3, 0, None),  # no record: its time is a part of the next pause
        (4, 10, 3.5),
    ]
    assert pauses_of(terms) == [1.0, 3.5]
    assert fail_overs_sentence(terms) == "3 changes of the leader: no record for at most 3.50 s"
    assert fail_overs_sentence(terms[:2]) == "n2 took over from n1: no record for 1.00 s"


def test_a_leader_that_is_elected_again_is_not_a_change_of_the_leader() -> None:
    again = [epoch(1, "n1", 0), epoch(2, "n1", 8.9), epoch(3, "n3", 12)]
    terms = terms_of(again, RECORDS[:2])
    assert fail_overs_sentence(terms[:2]) == "n1 was elected again: no record for 1.00 s"
    assert fail_overs_sentence(terms) == "2 further elections, 1 change of the leader: no record for 1.00 s"


def test_the_part_of_the_time_with_a_leader_is_known() -> None:
    terms = terms_of(EPOCHS, RECORDS)
    assert served(terms) == (19.5, pytest.approx(1 - 4.5 / 19.5))


def test_a_leader_that_reports_is_available_without_records() -> None:
    """n1 leads on for 300 s without appends; n2 leads from 302 s on, and is appended to at 600 s."""
    epochs, records = [epoch(1, "n1", 0), epoch(2, "n2", 301.9)], [held(1, 0, 10), held(2, 600, 610)]
    reports = [held(1, 0.5, 300), held(2, 302, 605)]
    terms = terms_of(epochs, records, reports)
    assert [(term["led_from"], term["led_until"]) for term in terms] == [(at(0), at(300)), (at(302), at(610))]
    assert [(term["pause_s"], term["leaderless_s"]) for term in terms] == [(None, None), (590.0, 2.0)]
    assert served(terms) == (610, pytest.approx(1 - 2 / 610))
    assert served(terms_of(epochs, records)) == (610, pytest.approx(1 - 590 / 610))


def test_a_term_with_reports_alone_divides_the_time_without_a_leader() -> None:
    records, reports = [held(1, 0, 10), held(3, 40, 50)], [held(2, 13, 30)]
    terms = terms_of([epoch(1, "n1", 0), epoch(2, "n2", 12), epoch(3, "n3", 35)], records, reports)
    assert [term["leaderless_s"] for term in terms] == [None, 3.0, 10.0]
    assert pauses_of(terms) == [30.0]
    assert served(terms) == (50, pytest.approx(1 - 13 / 50))


@pytest.mark.parametrize("last", [-1_000.0, 500.0], ids=["long ago", "in the future"])
def test_timestamps_of_clients_give_no_pause(last: float) -> None:
    terms = terms_of(EPOCHS[:2], [held(1, last - 5, last), held(2, 9, 11)])
    assert pauses_of(terms) == []
    assert served(terms) is None
    reason = "the time without records is not known, as the timestamps do not follow the terms"
    assert fail_overs_sentence(terms) == f"n2 took over from n1; {reason}"


def test_without_records_in_two_terms_no_time_is_unknown() -> None:
    assert fail_overs_sentence(terms_of(EPOCHS[:2], [])) == "n2 took over from n1; the log has no records"
    one = terms_of(EPOCHS[:2], [held(1, 0, 5)])
    assert fail_overs_sentence(one) == "n2 took over from n1; all records are of term 1"


def test_a_value_stays_until_its_change_is_reported() -> None:
    assert stepped([0, 0.4, 10, 70], [0, 4, 5, float("nan")])[0] == [0, 0.4, 9.5, 10, 70]
    assert stepped([0, 0.4, 10], [0, 4, 5]) == ([0, 0.4, 9.5, 10], [0, 4, 4, 5])
    assert stepped([], []) == ([], [])
    reports = reported(0, 1, "n1", n1=2, n2=2) + reported(30, 1, "n1", n1=8, n2=7)
    (axes,) = watermarks_figure(reports, TERMS[:1]).axes
    assert all(29.5 in line.get_xdata() for line in axes.lines)
    lags = [
        {**row, "peer": "n2", "lag": lag, "heard": True}
        for row, lag in zip(reports[::2], (0, 1), strict=True)
    ]
    (axes,) = lag_figure(lags, [{"peer": "n2", "median": 0, "most": 1}]).axes
    assert list(axes.lines[0].get_ydata()) == [0, 0, 1]
    assert axes.get_xlabel() == "seconds since 2024-01-02 00:00:00 UTC"


def test_the_legend_names_the_followers_before_the_silent_events() -> None:
    lags = [
        {"timestamp": at(0), "term": 1, "node": "n1", "peer": peer, "lag": 3, "heard": False}
        for peer in ("n2", "n3")
    ]
    (axes,) = lag_figure(lags, [{"peer": "n2", "median": 3, "most": 3}]).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["n2", "n3", SILENT]


def test_a_node_has_one_colour_in_every_figure() -> None:
    assert colors_of(["n3", "n1"])["n3"] == colors_of(["n1", "n2", "n3"])["n3"] == PEER_COLORS[2]
    assert len(set(colors_of(["n1", "n8", "n2"]).values())) == 3  # 1 and 8 would be the same of seven
    page = (Path(live_page.__file__).with_name("live") / "dom.js").read_text()
    assert f"COLORS = {json.dumps(PEER_COLORS)}" in page
    assert colors_of(["east", "west"]) == {"east": PEER_COLORS[0], "west": PEER_COLORS[1]}


@pytest.mark.parametrize(
    ("width_s", "words"),
    [(1, "20 records in 20 seconds"), (60, "20 minutes"), (3_600, "20 hours"), (2_160_000, "500 days")],
)
def test_a_rate_has_a_unit_in_which_it_can_be_read(width_s: int, words: str) -> None:
    bins = [{"start": at(k * width_s), "records": 1, "size_bytes": 8} for k in range(20)]
    (axes,) = rates_figure(bins, width_s).axes
    assert words in axes.get_title(loc="left")
    assert axes.get_ylabel() == f"records per {words.split()[-1].removesuffix('s')}"


@pytest.fixture
def zone_of_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "EST5EDT,M3.2.0,M11.1.0")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone_of_new_york")
@pytest.mark.parametrize(
    ("first_s", "words"),
    [
        (1_700_000_000, "2023-11-14 22:13:20"),
        (1_699_163_940, "2023-11-05 05:59:00"),  # the clock of the zone is set back a minute later
    ],
)
def test_an_axis_of_time_is_in_utc_as_in_the_tables(first_s: int, words: str) -> None:
    starts = [datetime.fromtimestamp(first_s + 60 * minute) for minute in range(4)]  # as Spark collects them
    (axes,) = rates_figure([{"start": at, "records": 1, "size_bytes": 8} for at in starts], 60).axes
    unit = axes.get_xlabel().removeprefix("timestamp of the records: ").partition(" ")[0]
    width = {"minutes": 1, "seconds": 60}[unit]
    assert axes.get_xlabel() == f"timestamp of the records: {unit} since {words} UTC"
    bars = [bar.get_x() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert bars == [0, width, 2 * width, 3 * width]


@pytest.mark.parametrize("seconds", [2, 20, 3_000])
def test_the_label_of_a_tick_is_its_value(seconds: int) -> None:
    """20 s have a tick each 2.5 s."""
    bins = [{"start": at(k), "records": 2 * k, "size_bytes": 8} for k in range(seconds)]
    figure = rates_figure(bins, 1)
    figure.canvas.draw()
    for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        labels = [label.get_text().replace(",", "") for label in axis.get_ticklabels()]
        assert [float(label) for label in labels] == pytest.approx(list(axis.get_majorticklocs()))


def test_labels_are_thinned_where_they_would_overprint() -> None:
    assert spaced([0.0, 0.1, 5.0, 5.2, 5.6, 10.0], 10.0, 0.05) == [0, 2, 4, 5]
    assert spaced([], 0.0, 0.1) == []


def reported(second: float, term: int, node: str, **peers: int) -> list[dict[str, Any]]:
    common = {"timestamp": at(second), "term": term, "node": node, "seq": 1}
    most = max(peers.values())
    return [
        {**common, "peer": peer, "watermark": mark, "committed_index": most} for peer, mark in peers.items()
    ]


MANY = range(100)
REIGNS = [{"master": f"n{k % 3}", "master_epoch": k, "from": at(k), "until": at(k + 1)} for k in range(60)]
PAUSES = [{"index": k, "term": k, "timestamp": at(k), "pause_s": 1.0} for k in range(60)]
TERMS = terms_of([epoch(k, f"n{k % 3}", k) for k in MANY], [held(k, k + 0.1, k + 0.9) for k in MANY])
FIGURES: dict[str, tuple[Callable[[], Figure], str]] = {
    "no flights": (lambda: delays_by_hour_figure([]), "No flight"),
    "only cancelled": (lambda: delays_by_hour_figure([{"hour": 3, "late": None}]), "No flight"),
    "no watermarks": (lambda: watermarks_figure([], []), "No leader has recorded"),
    "one event": (
        lambda: watermarks_figure(reported(0, 1, "n1", n1=0, n2=0), TERMS[:1]),
        "n0 led all the time",
    ),
    "many terms": (
        lambda: watermarks_figure(
            [row for k in MANY for row in reported(k + 0.5, k, f"n{k % 3}", n0=k)], TERMS
        ),
        "99 changes of the leader: no record for at most 0.20 s",
    ),
    "no lag": (lambda: lag_figure([], []), "The log has no follower"),
    "no terms": (lambda: service_figure([]), "No term"),
    "one term": (lambda: service_figure(TERMS[:1]), "n0 led all the time, in term 0; records: 10"),
    "served in many terms": (lambda: service_figure(TERMS), "Available for at least"),
    "no records": (lambda: rates_figure([], 1), "Records: 0"),
    "no commits": (lambda: commits_figure([]), "no commit"),
    "one commit": (
        lambda: commits_figure([{"timestamp": AT, "written": 7, "held": 7}]),
        "One commit wrote 7 rows",
    ),
    "no cuts": (lambda: cuts_figure([]), "No epoch"),
    "one epoch of several": (
        lambda: cuts_figure([{"epoch": 2, "leader": "n2", "is_open": True, "rows": 1_400, "version": 3}]),
        "Records so far: 1,400",
    ),
    "two epochs": (
        lambda: cuts_figure(
            [{"epoch": k, "leader": "n2", "is_open": k == 2, "rows": 700 * k, "version": k} for k in (1, 2)]
        ),
        "Records up to the end of epoch 1: 700; so far: 1,400",
    ),
    "no carriers": (lambda: carriers_figure([]), "no flights"),
    "no departures": (
        lambda: carriers_figure([{"carrier": "UA", "hour_of_day": 3, "flights": 1, "mean": None}]),
        "No flight has left",
    ),
    "none late": (lambda: late_figure([], 7), "None of 7 records is late"),
    "days late": (
        lambda: late_figure([{"hours_behind": k, "flights": 2, "cancelled": 1} for k in range(2, 300)], 4),
        "596 of 600 records are late; cancelled flights: 298 of them",
    ),
    "no masters": (lambda: story_figure([], [], [], []), "No election by controllers"),
    "no pauses": (lambda: pauses_figure([], [], []), "no two records"),
    "many masters": (lambda: story_figure(REIGNS, [], [], PAUSES), "Epochs: 60"),
    "many pauses": (lambda: pauses_figure(PAUSES, REIGNS, TERMS), "99 changes of the leader"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_little_or_much_is_readable(name: str) -> None:
    draw, title = FIGURES[name]
    figure = draw()
    assert title in " ".join(axes.get_title(loc="left") for axes in figure.axes)
    assert sum(len(axes.texts) for axes in figure.axes) <= 30


def test_few_late_flights_have_no_label_twice() -> None:
    figure = late_figure([{"hours_behind": 2, "flights": 1, "cancelled": 0}], 4)
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == len(set(labels)) > 1


def test_the_committed_index_is_not_that_of_a_leader_that_does_not_know_it_yet() -> None:
    """n2 takes over before it has heard that 6 is committed, and then commits its first record, 7."""
    rows = [
        *reported(0, 1, "n1", n1=5, n2=5),
        *reported(1, 1, "n1", n1=6, n2=6),
        *[{**row, "committed_index": 5} for row in reported(2, 2, "n2", n1=-1, n2=7)],
        *reported(3, 2, "n2", n1=7, n2=7),
    ]
    terms = terms_of([epoch(1, "n1", 0), epoch(2, "n2", 2, start_index=7)], [])
    lines = watermarks_figure(rows, terms).axes[0].get_lines()
    (committed,) = (line for line in lines if line.get_label() == "committed")
    assert list(dict.fromkeys(committed.get_ydata())) == [5, 6, 7]


def test_a_line_is_interrupted_while_no_leader_reports() -> None:
    """The cluster is stopped after term 1 for 100 s. The leader of term 2 knows its own watermark at once."""
    rows = [
        *reported(0, 1, "n1", n1=5, n2=5),
        *reported(1, 1, "n1", n1=6, n2=6),
        *reported(2, 2, "n2", n1=7, n2=7),
        *reported(102, 3, "n2", n1=8, n2=8),
    ]
    lines = watermarks_figure(rows, TERMS[:2]).axes[0].get_lines()
    (of_n2,) = (line for line in lines if line.get_label() == "n2 has acknowledged")
    assert list(dict.fromkeys(str(float(index)) for index in of_n2.get_ydata())) == [
        "5.0",
        "6.0",
        "7.0",
        "nan",
        "8.0",
    ]


@pytest.mark.parametrize(("last", "words"), [(900, "never decreased"), (700, "was lower than before")])
def test_a_confirm_offset_is_compared_with_others_of_its_kind(last: int, words: str) -> None:
    """A watermark has the beginning of a batch, a set its end: the first is lower without any decrease."""
    rows = [
        {"timestamp": at(second), "epoch": 1, "confirm_offset": offset, "of_set": of_set}
        for second, offset, of_set in [
            (0, 712, True),
            (1, 500, False),
            (2, 800, True),
            (3, last - 100, False),
        ]
    ]
    figure = story_figure(REIGNS[:2], [], [*rows, {**rows[-1], "confirm_offset": last, "of_set": True}], [])
    assert words in figure.axes[0].get_title(loc="left")


def test_the_title_of_the_delays_claims_no_trend() -> None:
    row = {"median": 0.0, "flights": 5, "cancelled": 0}
    figure = delays_by_hour_figure([{"hour": 6, "late": 90.0, **row}, {"hour": 20, "late": 10.0, **row}])
    assert figure.axes[0].get_title(loc="left") == (
        "Delays peak at 6 h: one flight in ten leaves 90 min late or more"
    )


def test_a_peer_is_away_while_leaders_miss_it_and_not_because_nothing_was_appended() -> None:
    idle = [
        *reported(0, 1, "n1", n1=5, n2=5),
        *reported(30, 2, "n2", n1=-1, n2=5),  # the beginning of a term
        *reported(31, 2, "n2", n1=6, n2=6),
    ]
    dead = [
        *reported(0, 1, "n1", n1=5, n2=5),
        *reported(2, 2, "n2", n1=-1, n2=6),
        *reported(9, 2, "n2", n1=6, n2=6),
    ]
    texts = [
        [text.get_text() for text in watermarks_figure(rows, TERMS[:2]).axes[0].texts]
        for rows in (idle, dead)
    ]
    assert [[text for text in found if "away" in text] for found in texts] == [[], ["n1 is away"]]
