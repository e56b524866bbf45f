"""Terms of rows as Spark collects them: times without a zone, in a zone that sets its clock back."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from spark_jobs.analytics.plots import AWAY_S, _absences
from spark_jobs.analytics.terms import served, terms_of

BEFORE = datetime(2026, 10, 25, 0, 59, 58, tzinfo=UTC)  # Berlin sets its clock back at 01:00 UTC


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


def collected(after_s: float) -> datetime:
    return datetime.fromtimestamp((BEFORE + timedelta(seconds=after_s)).timestamp())


def test_a_pause_across_a_clock_set_back_has_its_true_length() -> None:
    epochs = [
        {"term": 1, "leader": "a", "start_index": 0, "started": collected(-10)},
        {"term": 2, "leader": "b", "start_index": 5, "started": collected(3)},
    ]
    records = [
        {"term": 1, "first": collected(-9), "last": collected(0), "records": 4},
        {"term": 2, "first": collected(4), "last": collected(11), "records": 4},
    ]
    terms = terms_of(epochs, records)
    assert (terms[1]["pause_s"], terms[1]["leaderless_s"]) == (4.0, 4.0)
    assert served(terms) == (20.0, 0.8)


def test_a_peer_away_across_a_clock_set_back_is_seen() -> None:
    watermarks = [(-1, 5), (0, -1), (AWAY_S + 2, 5)]
    rows = [{"timestamp": collected(at_s), "watermark": index} for at_s, index in watermarks]
    assert _absences(rows) == [(rows[0], rows[2])]
