"""Event streams of one log send at the same moments."""

import asyncio

import pytest

from app.api.read.reader import LogHead
from app.api.read.stream_pace import INTERVAL_MAX_S, STREAM_S, StreamPace


class _Log:
    """A log that grows by one record at each call of `head`."""

    def __init__(self) -> None:
        self.end = 0

    def head(self) -> LogHead:
        self.end += 1
        return LogHead(0, self.end, self.end, 1, self.end)


def test_a_single_stream_never_waits() -> None:
    async def run() -> None:
        pace, log = StreamPace(), _Log()
        pace.streams = 1
        for index in range(1, 4):
            assert (await pace.moment(index, log.head)).visible_end == index

    asyncio.run(run())


def test_streams_at_one_index_send_at_the_same_moment() -> None:
    async def run() -> None:
        pace, log = StreamPace(), _Log()
        pace.streams = 100
        began_s = asyncio.get_running_loop().time()
        first = await asyncio.gather(*(pace.moment(1, log.head) for _ in range(100)))
        assert {head.visible_end for head in first} == {1}  # at once, after a silence
        second = await asyncio.gather(*(pace.moment(2, log.head) for _ in range(100)))
        assert {head.visible_end for head in second} == {2}
        assert asyncio.get_running_loop().time() - began_s >= 99 * STREAM_S

    asyncio.run(run())


def test_a_stream_that_is_late_gets_the_moment_of_the_others() -> None:
    async def run() -> None:
        pace, log = StreamPace(), _Log()
        pace.streams = 1_000_000
        log.end = 9
        head = await pace.moment(10, log.head)
        assert head.visible_end == 10
        assert await pace.moment(5, log.head) is head
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(INTERVAL_MAX_S / 4):
                await pace.moment(11, log.head)
        assert (await pace.moment(11, log.head)).visible_end == 11  # no longer than INTERVAL_MAX_S

    asyncio.run(run())
