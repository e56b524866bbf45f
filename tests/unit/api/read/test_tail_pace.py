"""Readers at the end of a log get what it gained at the same moments."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.api.http.log_call import Served
from app.api.read.reader import LogHead, Reader
from app.api.read.selection import Consistency
from app.api.read.tail_pace import EVENT_S, INTERVAL_MAX_S, WOKEN_AT_ONCE, TailPace, pace_of
from app.node.replica.commit_waiters import CommitWaiters
from app.node.request_waits import Waits
from tests.support.event_loop import until
from tests.support.in_process import InProcess, node_in_process


class _Log:
    """A log that grows by one record at each call of `head`."""

    def __init__(self) -> None:
        self.end = 0

    def head(self) -> LogHead:
        self.end += 1
        return LogHead(0, self.end, self.end, 1, self.end)


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose clock moves only when it waits: then to the next timer. A busy machine changes nothing."""

    now_s = 0.0
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now_s = max(self.now_s, self._scheduled[0].when())
        super()._run_once()


def run_timed(run: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Run to the end, and return the seconds that passed."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(run())
        return runner.get_loop().time()


def test_a_single_reader_never_waits() -> None:
    async def run() -> None:
        pace, log = TailPace(), _Log()
        for index in range(1, 4):
            assert (await pace.moment(index, 0, EVENT_S, log.head)).visible_end == index

    assert run_timed(run) == 0.0


def test_readers_at_one_index_get_the_same_moment() -> None:
    async def run() -> None:
        pace, log = TailPace(), _Log()
        first = await asyncio.gather(*(pace.moment(1, 0, EVENT_S, log.head) for _ in range(100)))
        assert {head.visible_end for head in first} == {1}  # at once, after a silence
        second = await asyncio.gather(*(pace.moment(2, 0, EVENT_S, log.head) for _ in range(100)))
        assert {head.visible_end for head in second} == {2}

    assert run_timed(run) == pytest.approx(99 * EVENT_S)  # of the answers to the first moment


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
        assert (await pace.moment(11, 0, 1.0, log.head)).visible_end == 11

    assert run_timed(run) == INTERVAL_MAX_S  # no longer


def test_a_reader_sees_what_was_committed_when_it_began() -> None:
    async def run() -> None:
        pace, log = TailPace(), _Log()
        await asyncio.gather(*(pace.moment(1, 0, EVENT_S, log.head) for _ in range(100)))
        assert (await pace.moment(1, 2, EVENT_S, log.head)).visible_end == 2

    run_timed(run)


async def _append(node: InProcess) -> None:
    octets = {"content-type": "application/octet-stream"}
    answer = await node.client.post("/v1/logs/default/records", content=b"v", headers=octets)
    assert answer.status_code == 200


async def _reader(node: InProcess) -> Reader:
    """Return a reader of a log to which the service itself appends nothing more."""
    await _append(node)
    hosted = node.broker.lookup.find("default")
    assert hosted.driver is not None
    return Reader(Served(node.broker, hosted, hosted.driver), Consistency.COMMITTED)


def test_readers_that_wait_share_a_waiter_and_continue_in_small_groups(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            reader, pace, count = await _reader(node), TailPace(), 2 * WOKEN_AT_ONCE + 1
            index = reader.visible_end + 1
            waiting = [asyncio.ensure_future(pace.grown(reader, index, 30.0)) for _ in range(count)]
            await until(lambda: len(pace._waiting) == count)
            assert len(reader.driver._waiters._heap) == 1
            await _append(node)
            turns = []  # of the loop: readers that have continued by then
            while len(turns) < 100 and not all(each.done() for each in waiting):
                turns.append(sum(each.done() for each in waiting))
                await asyncio.sleep(0)
            assert await asyncio.gather(*waiting) == [True] * count
            steps = [after - before for before, after in zip(turns, [*turns[1:], count], strict=True)]
            assert max(steps) <= WOKEN_AT_ONCE

    asyncio.run(run())


def test_a_reader_waits_for_its_record_while_others_get_theirs(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            reader, pace = await _reader(node), TailPace()
            index = reader.visible_end + 1
            first = asyncio.ensure_future(pace.grown(reader, index, 30.0))
            await until(lambda: len(pace._waiting) == 1)
            pace._next_s = asyncio.get_running_loop().time() + 3_600  # the next moment
            await _append(node)
            second = asyncio.ensure_future(pace.grown(reader, index + 1, 30.0))
            await until(lambda: len(pace._waiting) == 2)
            assert pace._timer is not None
            pace._timer.cancel()
            pace._next_s = 0.0
            pace._wake()
            assert await first
            await until(lambda: len(pace._waiting) == 1)
            assert not second.done()
            await _append(node)
            assert await second

    asyncio.run(run())


def test_a_poll_shows_what_was_committed_before_it_although_the_last_moment_did_not(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            reader = await _reader(node)
            pace, index = pace_of(reader), reader.visible_end
            pace._head, pace._begun_s = reader.head(), asyncio.get_running_loop().time()
            pace._next_s = pace._begun_s + INTERVAL_MAX_S
            await _append(node)
            url = f"/v1/logs/default/records?from_index={index}&wait_ms=60000&consistency=committed"
            page = (await node.client.get(url)).json()
            assert (page["next_index"], page["committed_index"]) == (index + 2, index + 1)

    asyncio.run(run())


def test_a_wait_that_ends_without_a_record_leaves_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            reader, pace = await _reader(node), TailPace()
            for _ in range(3):
                assert not await pace.grown(reader, reader.visible_end + 1, 0.001)
            assert not pace._waiting
            assert not await pace.grown(reader, reader.visible_end + 9, 0.001)

    asyncio.run(run())


class _FallingReader:
    """A reader at a replica whose committed index may fall."""

    is_limited = False
    consistency = Consistency.COMMITTED

    def __init__(self) -> None:
        self.visible_end = 9
        self.broker = SimpleNamespace(waits=Waits(0))
        self._waiters = CommitWaiters()
        self.driver = SimpleNamespace(when_committed=self._waiters.add)

    def check_served(self) -> None: ...

    async def grown(self, index: int, timeout_s: float) -> bool:
        return False  # of a reader that is further away than the next record

    def commit(self, index: int) -> None:
        self.visible_end = index
        self._waiters.wake(index)


def test_a_reader_is_woken_although_the_committed_index_fell_meanwhile() -> None:
    """A slave with an empty log that begins earlier than it believed has committed less than before."""

    async def run() -> None:
        replica, pace = _FallingReader(), TailPace()
        reader = cast(Reader, replica)
        early = asyncio.ensure_future(pace.grown(reader, 10, 30.0))
        await until(lambda: len(pace._waiting) == 1)
        replica.commit(5)
        late = asyncio.ensure_future(pace.grown(reader, 6, 30.0))
        await until(lambda: len(pace._waiting) == 2)
        replica.commit(6)
        async with asyncio.timeout(5):
            assert await late
            assert not await early

    asyncio.run(run())
