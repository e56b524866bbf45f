"""The disk threads: order, group commit, and what a failed sync does (R-11)."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.node.disk import LANE_MAX, DiskLane, DiskThreads
from app.node.hosted_logs import HostedLogs
from app.node.hosting.log_journals import LogJournals
from app.node.hosting.node_logs import NodeLogs
from app.node.repair.registry import Repairs
from storage.errors import InvariantError
from storage.log.commitlog import CommitlogConfig


class RecordingJournal:
    def __init__(self, kinds: list[str]) -> None:
        self._kinds = kinds

    def record(self, kind: str, *_: Any) -> str:
        self._kinds.append(kind)
        return kind


class Source:
    """Something that is dirty when it has been written, and whose sync can be held up or fail."""

    def __init__(self) -> None:
        self.written = 0
        self.durable = 0
        self.rounds = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def write(self) -> None:
        self.written += 1

    def start_sync(self) -> Any:
        return None if self.durable == self.written else Ticket(self, self.written)

    def finish_sync(self, ticket: "Ticket") -> None:
        self.durable = ticket.end


class Ticket:
    def __init__(self, source: Source, end: int) -> None:
        self.source, self.end = source, end

    def run(self) -> None:
        assert threading.current_thread().name.startswith("disk-")
        self.source.gate.wait(10)
        self.source.rounds += 1
        if self.source.error is not None:
            raise self.source.error


async def until_failed(failures: list[str]) -> None:
    while not failures:  # noqa: ASYNC110  # a list has no event, and the test has a time limit
        await asyncio.sleep(0.001)


def run(test: Callable[[DiskLane, list[str]], Awaitable[None]]) -> None:
    async def bounded() -> None:
        failures: list[str] = []
        threads = DiskThreads(
            asyncio.get_running_loop(), lambda what, error: failures.append(f"{what}: {error}"), 2
        )
        threads.start()
        async with asyncio.timeout(20):
            await test(threads.lane("log"), failures)
        assert threads.stop(10)

    asyncio.run(bounded())


def test_work_is_done_and_answered_in_order() -> None:
    async def test(disk: DiskLane, failures: list[str]) -> None:
        done: list[int] = []
        answered: list[tuple[int, bool]] = []
        for number in range(100):

            def work(number: int = number) -> int:
                done.append(number)
                if number % 10 == 7:
                    raise OSError("no")
                return number

            def then(result: Any, error: BaseException | None, number: int = number) -> None:
                assert (error is None) == (result == number)
                answered.append((number, error is None))

            disk.submit(work, then)
        await disk.drain()
        assert done == list(range(100))
        assert answered == [(number, number % 10 != 7) for number in range(100)]
        assert failures == []

    run(test)


def test_syncs_of_one_turn_share_a_round_and_late_ones_the_next() -> None:
    async def test(disk: DiskLane, failures: list[str]) -> None:
        one, two = Source(), Source()
        notified: list[int] = []
        one.gate.clear()
        for _ in range(50):
            one.write()
            two.write()
            disk.request_sync(one, lambda: notified.append(one.durable))
            disk.request_sync(two, lambda: None)
        await asyncio.sleep(0)  # the first round begins, and is held up by the gate
        for _ in range(10):
            one.write()
            disk.request_sync(one, lambda: notified.append(one.durable))
        one.gate.set()
        await disk.drain()
        assert (one.rounds, two.rounds) == (2, 1)
        assert notified[:50] == [50] * 50
        assert notified[50:] == [60] * 10
        assert failures == []

    run(test)


@pytest.mark.rule("R-11")
def test_a_lane_that_is_never_idle_is_drained_too() -> None:
    """A log that is written all the time: the node can stop, and give the files of a log back."""

    async def test(disk: DiskLane, failures: list[str]) -> None:
        source, before = Source(), list[str]()

        def write_again() -> None:
            source.write()
            disk.request_sync(source, write_again)

        write_again()
        disk.submit(lambda: None, lambda _result, _error: before.append("work"))
        last = Source()
        last.write()
        disk.request_sync(last, lambda: before.append("sync"))
        await disk.drain()
        assert sorted(before) == ["sync", "work"]
        disk._threads.failed = True  # ends the writer

    run(test)


@pytest.mark.rule("R-11")
def test_a_log_is_closed_while_the_disk_hangs_for_another_one() -> None:
    async def test(lane: DiskLane, failures: list[str]) -> None:
        stuck = Source()
        stuck.gate.clear()
        stuck.write()
        lane._threads.lane("another").request_sync(stuck, lambda: None)
        ended: list[str] = []
        driver = SimpleNamespace(
            abandon=lambda: ended.append("abandoned"), close=lambda: ended.append("closed")
        )
        hosted = SimpleNamespace(name="log", driver=driver, ha=None, wake=lambda: None)
        ha = SimpleNamespace(detach=lambda _hosted: None)
        await NodeLogs.end_driver(cast(Any, SimpleNamespace(_disk=lane._threads, _ha=ha)), cast(Any, hosted))
        assert (ended, stuck.rounds) == (["abandoned", "closed"], 0)
        stuck.gate.set()
        await lane._threads.drain()

    run(test)


@pytest.mark.rule("R-11")
def test_a_repair_begins_after_the_sync_that_was_requested_in_the_same_turn() -> None:
    async def test(lane: DiskLane, failures: list[str]) -> None:
        source, order = Source(), list[tuple[str, int]]()

        async def repaired() -> None:
            order.append(("repaired", source.rounds))

        transport = SimpleNamespace(send=None)
        services: Any = SimpleNamespace(transport=transport, random=None, files=None, clock=None)
        repairs = Repairs(
            services,
            {},
            lambda _hosted, _event: None,
            disk=lane._threads,
            open_log=cast(Any, None),
            predates_folder=cast(Any, None),
            serve=lambda _hosted, _driver: None,
            tasks=cast(Any, None),
        )
        driver = SimpleNamespace(close=lambda: order.append(("closed", source.rounds)))
        source.gate.clear()
        source.write()
        lane.request_sync(source, lambda: None)
        asyncio.get_running_loop().call_later(0.1, source.gate.set)  # a slow sync
        await repairs._run(
            cast(Any, SimpleNamespace(name="log", repair=None)),
            cast(Any, SimpleNamespace(run=repaired)),
            cast(Any, driver),
        )
        assert order == [("closed", 1), ("repaired", 1)]

    run(test)


def test_a_caller_that_no_longer_waits_for_the_disk_does_not_end_the_node() -> None:
    """A stop waits for the disk for a limited time."""

    async def test(disk: DiskLane, failures: list[str]) -> None:
        gate = threading.Event()
        disk.submit(partial(gate.wait, 10), lambda _result, _error: None)
        waits = asyncio.ensure_future(disk.drain())
        await asyncio.sleep(0)
        waits.cancel()
        gate.set()
        await disk.drain()
        assert waits.cancelled()
        assert failures == []

    run(test)


def test_nothing_to_sync_is_answered_too() -> None:
    async def test(disk: DiskLane, failures: list[str]) -> None:
        source = Source()
        notified: list[int] = []
        disk.request_sync(source, lambda: notified.append(source.rounds))
        await disk.drain()
        assert notified == [0]

    run(test)


@pytest.mark.rule("R-11")
def test_a_failed_sync_stops_the_node_and_is_never_answered_or_tried_again() -> None:
    async def test(disk: DiskLane, failures: list[str]) -> None:
        source = Source()
        source.error = OSError("the disk is gone")
        notified: list[str] = []
        source.write()
        disk.request_sync(source, lambda: notified.append("synced"))
        disk.submit(lambda: None, lambda _result, _error: notified.append("behind it"))
        await until_failed(failures)
        source.error = None
        disk.request_sync(source, lambda: notified.append("again"))
        await asyncio.sleep(0.02)
        assert failures == ["sync: the disk is gone"]
        assert "synced" not in notified
        assert "again" not in notified
        assert (source.rounds, source.durable) == (1, 0)

    run(test)


def test_an_answer_that_raises_stops_the_node_once() -> None:
    async def test(disk: DiskLane, failures: list[str]) -> None:
        def raises(_result: Any, _error: BaseException | None) -> None:
            raise ZeroDivisionError

        disk.submit(lambda: None, raises)
        disk.submit(lambda: None, raises)
        await until_failed(failures)
        await asyncio.sleep(0.01)
        assert len(failures) == 1

    run(test)


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("moment", ["start_sync", "finish_sync"])
def test_a_source_that_raises_stops_the_node_and_no_caller_waits_without_end(moment: str) -> None:
    class Broken(Source):
        def start_sync(self) -> Any:
            if moment == "start_sync":
                raise OSError("broken")
            return super().start_sync()

        def finish_sync(self, ticket: Ticket) -> None:
            raise OSError("broken")

    async def test(disk: DiskLane, failures: list[str]) -> None:
        source = Broken()
        notified: list[str] = []
        source.write()
        disk.request_sync(source, lambda: notified.append("synced"))
        await until_failed(failures)
        await asyncio.sleep(0.02)
        assert notified == []
        assert [failure.rpartition(": ")[2] for failure in failures] == ["broken"]

    run(test)


def test_lanes_do_not_wait_for_one_another() -> None:
    async def test(lane: DiskLane, failures: list[str]) -> None:
        other = lane._threads.lane("other")
        assert lane._threads.lane("other") is other
        slow, fast = Source(), Source()
        slow.gate.clear()
        slow.write()
        fast.write()
        synced = asyncio.Event()
        order: list[str] = []
        lane.request_sync(slow, lambda: order.append("slow"))
        other.request_sync(fast, synced.set)
        await synced.wait()  # with the other lane's sync still at the disk
        lane.submit(lambda: order.append("work"), lambda _result, _error: None)
        assert (order, lane.waiting) == ([], 1)
        slow.gate.set()
        await lane._threads.drain()
        assert order == ["slow", "work"]
        assert failures == []

    run(test)


def test_a_log_does_not_wait_for_the_sync_of_its_journal() -> None:
    async def test(lane: DiskLane, failures: list[str]) -> None:
        log, journal = Source(), Source()
        journal.gate.clear()
        log.write()
        journal.write()
        synced = asyncio.Event()
        notified: list[int] = []
        lane.request_sync(journal, lambda: notified.append(journal.durable))
        lane.request_sync(log, synced.set)
        await synced.wait()
        assert (log.durable, notified) == (1, [])
        journal.gate.set()
        await lane.drain()
        assert notified == [1]

    run(test)


def test_a_lane_refuses_what_exceeds_its_bound_while_the_disk_hangs() -> None:
    async def test(disk: DiskLane, failures: list[str]) -> None:
        gate, source = threading.Event(), Source()
        disk.submit(lambda: gate.wait(10), lambda _result, _error: None)
        try:
            for _ in range(LANE_MAX):
                disk.submit(lambda: None, lambda _result, _error: None)
                disk.request_sync(source, lambda: None)
            with pytest.raises(InvariantError, match="one lane"):
                disk.submit(lambda: None, lambda _result, _error: None)
            with pytest.raises(InvariantError, match="one lane"):
                disk.request_sync(source, lambda: None)
            assert disk.waiting == LANE_MAX
        finally:
            gate.set()
        await disk.drain()
        assert (disk.waiting, failures) == (0, [])

    run(test)


def test_requests_to_sync_the_journal_do_not_pile_up_while_the_disk_hangs() -> None:
    requested: list[Callable[[], None]] = []
    lane = SimpleNamespace(request_sync=lambda _journal, then: requested.append(then))
    services = SimpleNamespace(
        storage=CommitlogConfig(),
        disk=SimpleNamespace(lane=lambda _name: lane),
        clock=SimpleNamespace(now_ms=lambda: 1),
    )
    notified: list[str] = []
    journal = RecordingJournal(notified)
    hosted: Any = SimpleNamespace(name="a", journal=journal, driver=None)
    journals = LogJournals(cast(Any, services), 1_000_000, HostedLogs())
    for _ in range(1_000):
        journals.record(hosted, cast(Any, SimpleNamespace(kind="repair", data={})))
    assert (len(notified), len(requested)) == (1_000, 1)
    requested.pop()()  # the events since the request need another sync
    assert len(requested) == 1
    requested.pop()()
    assert requested == []


def test_jobs_beyond_the_threads_wait_in_order_and_each_runs_once() -> None:
    async def test(lane: DiskLane, failures: list[str]) -> None:
        threads, gate = lane._threads, threading.Event()
        started: list[int] = []
        answered: list[int] = []

        def job(number: int) -> Callable[[], int]:
            def work() -> int:
                started.append(number)
                assert gate.wait(10)
                return number

            return work

        for number in range(40):  # two threads
            threads.run(job(number), lambda result, _error: answered.append(result))
        while len(started) < 2:  # noqa: ASYNC110  # a thread sets it, and the test has a time limit
            await asyncio.sleep(0.001)
        assert threads.waiting == 38
        gate.set()
        while len(answered) < 40:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert sorted(started[:2]) == [0, 1]
        assert sorted(started) == sorted(answered) == list(range(40))
        assert threads.waiting == 0
        assert failures == []

    run(test)
