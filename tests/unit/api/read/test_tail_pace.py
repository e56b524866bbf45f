"""Readers at the end of a log get what it gained at the same moments."""

import asyncio

import pytest

from app.api.read.reader import LogHead
from app.api.read.tail_pace import EVENT_S, INTERVAL_MAX_S, TailPace


class _Log:
    """A log that grows by one record at each call of `head`."""

    def __init__(self) -> None:
        self.end = 0

    def head(self) -> LogHead:
        self.end += 1
        return LogHead(0, self.end, self.end, 1, self.end)


def test_a_single_reader_never_waits() -> None:
    async def run() -> None:
        pace, log = TailPace(), _Log()
        for index in range(1, 4):
            assert (await pace.moment(index, 0, EVENT_S, log.head)).visible_end == index

    asyncio.run(run())


def test_readers_at_one_index_get_the_same_moment() -> None:
    async def run() -> None:
        pace, log = TailPace(), _Log()
        began_s = asyncio.get_running_loop().time()
        first = await asyncio.gather(*(pace.moment(1, 0, EVENT_S, log.head) for _ in range(100)))
        assert {head.visible_end for head in first} == {1}  # at once, after a silence
        second = await asyncio.gather(*(pace.moment(2, 0, EVENT_S, log.head) for _ in range(100)))
        assert {head.visible_end for head in second} == {2}
        assert asyncio.get_running_loop().time() - began_s >= 99 * EVENT_S

    asyncio.run(run())


def test_a_reader_that_is_late_gets_the_moment_of_the_others() -> None:
    async def run() -> None:
        pace, log = TailPace(), _Log()
        log.end = 9
        head = await pace.moment(10, 0, 1.0, log.head)
        assert head.visible_end == 10
        assert await pace.moment(5, 0, 1.0, log.head) is head
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(INTERVAL_MAX_S / 4):
                await pace.moment(11, 0, 1.0, log.head)
        assert (await pace.moment(11, 0, 1.0, log.head)).visible_end == 11  # no longer than INTERVAL_MAX_S

    asyncio.run(run())


def test_a_reader_sees_what_was_committed_when_it_began() -> None:
    async def run() -> None:
        pace, log = TailPace(), _Log()
        await asyncio.gather(*(pace.moment(1, 0, EVENT_S, log.head) for _ in range(100)))
        assert (await pace.moment(1, 2, EVENT_S, log.head)).visible_end == 2

    asyncio.run(run())
