"""Streams share half of what may be in flight, however many they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.append.stream_window import WINDOW_APPENDS, WINDOW_BYTES, StreamWindow, StreamWindows
from app.settings.model import HttpSettings, Limits


def windows(appends: int = 10_000, size_bytes: int = 256 << 20) -> StreamWindows:
    """Windows of a node with these limits of a log."""
    return StreamWindows(Limits(max_pending_requests=appends, max_pending_bytes=size_bytes), HttpSettings())


def test_a_stream_alone_has_the_largest_window() -> None:
    window = StreamWindow(windows())
    assert window.room == WINDOW_APPENDS
    window.enter(WINDOW_APPENDS, 1)
    assert window.room == 0
    window.leave(96, 0)
    assert window.room == 96


def test_a_stream_waits_at_its_bytes() -> None:
    window = StreamWindow(windows())
    window.enter(1, WINDOW_BYTES)
    assert window.room == 0
    window.leave(1, WINDOW_BYTES)
    assert window.room == WINDOW_APPENDS


def test_only_streams_with_appends_in_flight_have_a_part() -> None:
    shared = windows()
    busy, other, idle = (StreamWindow(shared) for _ in range(3))
    busy.enter(1, 1)
    other.enter(1, 1)
    assert (busy.room, other.room, idle.room) == (2_499, 2_499, 1_666)
    other.close()
    assert busy.room == WINDOW_APPENDS - 1


def test_a_smaller_limit_of_the_node_counts() -> None:
    http = HttpSettings(max_open_appends=100, max_open_bytes=1_000)
    window = StreamWindow(StreamWindows(Limits(), http))
    assert window.room == 50
    window.enter(1, 500)
    assert window.room == 0


def test_a_stream_that_was_alone_waits_until_it_has_its_part() -> None:
    shared = windows(1_000)
    first, second = StreamWindow(shared), StreamWindow(shared)
    first.enter(first.room, 1)
    second.enter(second.room, 1)  # all is taken: one append
    first.leave(200, 0)
    assert (first.room, second.room) == (0, 199)
    first.leave(100, 0)
    assert (first.room, second.room) == (50, 249)


@pytest.mark.rule("D-29")
@given(st.integers(2, 500), st.lists(st.integers(0, 30), max_size=200))
def test_streams_alone_reach_no_limit(limit: int, turns: list[int]) -> None:
    """Unless there are as many of them as appends may wait. turns: the stream that begins what it may, or is
    answered."""
    shared = windows(limit)
    streams = [StreamWindow(shared) for _ in range(31)]
    held = dict.fromkeys(range(31), 0)
    for each in turns:
        stream = streams[each]
        if room := stream.room:
            held[each] += room
            stream.enter(room, 1)
        else:
            assert held[each], "a stream without appends in flight may begin one"
            stream.leave(held[each], 0)
            held[each] = 0
        assert sum(held.values()) <= limit // 2 + sum(count > 0 for count in held.values())
