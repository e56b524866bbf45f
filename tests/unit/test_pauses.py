"""Pauses of periodic work end at the same moments, whenever it has begun."""

import asyncio
from types import SimpleNamespace

import pytest

from app.pauses import rest_s


@pytest.mark.parametrize(
    ("now_s", "until_s"),
    [(7.0, 8.0), (7.001, 8.0), (7.499, 8.0), (7.75, 9.0), (7.999, 9.0)],
)
def test_a_pause_ends_at_a_multiple_of_its_interval(
    monkeypatch: pytest.MonkeyPatch, now_s: float, until_s: float
) -> None:
    """A timer that has ended just before a multiple does not end again at that one."""
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: SimpleNamespace(time=lambda: now_s))
    assert now_s + rest_s(1.0) == pytest.approx(until_s)
    assert (now_s + rest_s(0.25)) % 0.25 == pytest.approx(0.0)
