"""How a committed trim reaches the disk: one segment after the other, and again when there was no room."""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from app.node.state.trimming import RETRY_TICKS, Trimmer
from storage.errors import StorageFull
from storage.format.batch import stamp
from storage.format.segment_format import segment_offset
from storage.log.commitlog import Commitlog, CommitlogConfig, TrimTicket
from tests.support.memory_files import MemoryFiles
from tests.unit.raft.support import LOG_ID, body_of


class Disk:
    """A lane that does its work when a test calls it."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], None]] = deque()

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        def do() -> None:
            try:
                result = work()
            except StorageFull as error:
                then(None, error)
            else:
                then(result, None)

        self.work.append(do)

    def request_sync(self, source: object, then: Callable[[], None]) -> None:
        self.work.append(then)


class Trimmed:
    """A log of many segments, of which all but the last few may go."""

    def __init__(self) -> None:
        self.files, self.disk = MemoryFiles(), Disk()
        self.log = Commitlog.open(
            self.files, "log", log_id=LOG_ID, config=CommitlogConfig(segment_max_bytes=4_000)
        )
        self.append(40)
        self.log.settle(self.log.end_index)
        state: Any = SimpleNamespace(trim_index=35)
        self.demands = 0
        self.checkpointer: Any = SimpleNamespace(safe_index=39, demand=self._demand)
        self.failures: list[str] = []
        self.trimmer = Trimmer(
            self.log, state, self.checkpointer, self.disk, lambda what, _error: self.failures.append(what)
        )

    def _demand(self) -> None:
        self.demands += 1

    def append(self, count: int, *, sync: bool = True) -> None:
        for _ in range(count):
            batch = stamp(
                body_of(1, b"v" * 1_000),
                log_id=LOG_ID,
                base_index=self.log.next_index,
                term=1,
                timestamp_ms=1,
                offset=self.log.end_offset,
                previous_chain=self.log.last_chain,
            )
            self.log.append([batch])
        if sync:
            self.sync()

    def sync(self) -> None:
        ticket = self.log.start_sync()
        assert ticket is not None
        ticket.run()
        self.log.finish_sync(ticket)

    @property
    def segments(self) -> int:
        return sum(segment_offset(name) is not None for name in self.files.list("log"))


def test_a_sync_runs_between_the_removals_of_two_segments() -> None:
    trimmed = Trimmed()
    before = trimmed.segments
    trimmed.trimmer.trim()
    held, synced = [], 0
    while trimmed.disk.work:
        assert len(trimmed.disk.work) == 1  # never more than one piece, however often it looks
        trimmed.trimmer.trim()
        trimmed.disk.request_sync(None, lambda: None)
        trimmed.disk.work.popleft()()
        held.append(trimmed.segments)
        trimmed.disk.work.popleft()()
        synced += 1
    assert held[0] == before  # first the beginning is durable
    assert all(earlier - later <= 1 for earlier, later in pairwise(held))
    assert trimmed.segments < before / 2
    assert synced == len(held)
    assert trimmed.failures == []


def test_a_trim_that_finds_no_room_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = Trimmed()
    before = trimmed.segments

    def full(_ticket: TrimTicket) -> None:
        raise StorageFull("manifest", "write", "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(TrimTicket, "move_begin", full)
        trimmed.trimmer.trim()
        trimmed.disk.work.popleft()()
    for _ in range(RETRY_TICKS):
        assert trimmed.segments == before
        trimmed.trimmer.trim()
    while trimmed.disk.work:
        trimmed.disk.work.popleft()()
    assert trimmed.segments < before / 2


def test_a_trim_removes_all_that_the_saved_state_covers_before_the_next_snapshot() -> None:
    """On a full disk that snapshot may need the space."""
    trimmed = Trimmed()
    before = trimmed.segments
    trimmed.checkpointer.safe_index = 19
    for _ in range(3):
        trimmed.trimmer.trim()
        while trimmed.disk.work:
            trimmed.disk.work.popleft()()
    assert (trimmed.log.begin_index, trimmed.demands) == (20, 3)
    assert trimmed.segments < before
    trimmed.checkpointer.safe_index = 39
    trimmed.trimmer.trim()
    while trimmed.disk.work:
        trimmed.disk.work.popleft()()
    assert (trimmed.log.begin_index, trimmed.demands) == (35, 3)
    assert trimmed.failures == []


def test_a_trim_without_room_does_not_move_the_begin_of_a_log_that_was_reset_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slave begins again where its master does, which has trimmed less so far (A-04)."""
    trimmed = Trimmed()

    def full(_ticket: TrimTicket) -> None:
        raise StorageFull("manifest", "write", "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(TrimTicket, "move_begin", full)
        trimmed.trimmer.trim()
        trimmed.disk.work.popleft()()
    trimmed.log.reset(0, 0)
    for _ in range(RETRY_TICKS):
        trimmed.trimmer.trim()
    while trimmed.disk.work:
        trimmed.disk.work.popleft()()
    trimmed.append(30)
    trimmed.log.close()
    reopened = Commitlog.open(trimmed.files, "log", log_id=LOG_ID)
    assert (reopened.begin_index, reopened.end_index) == (0, 29)


def test_a_log_that_was_reset_is_trimmed_again_once_it_has_the_records() -> None:
    """A slave begins again where its master does, which had trimmed less at that moment (A-04)."""
    trimmed = Trimmed()
    trimmed.trimmer.trim()
    while trimmed.disk.work:
        trimmed.disk.work.popleft()()
    trimmed.log.reset(0, 0)
    trimmed.trimmer.trim()
    trimmed.append(20)
    trimmed.log.settle(trimmed.log.end_index)
    trimmed.trimmer.trim()
    assert (trimmed.log.begin_index, len(trimmed.disk.work)) == (0, 0)  # it does not hold index 35 yet
    trimmed.append(20)
    trimmed.trimmer.trim()
    assert (trimmed.log.begin_index, len(trimmed.disk.work)) == (0, 0)  # nor knows that it is committed
    trimmed.log.settle(trimmed.log.end_index)
    trimmed.trimmer.trim()
    while trimmed.disk.work:
        trimmed.disk.work.popleft()()
    assert trimmed.log.begin_index == 35
    assert trimmed.failures == []


def test_records_are_trimmed_once_they_are_durable() -> None:
    """After a repair that has removed the end of a log, the saved state may cover records that are new in it.
    A sync of the rest would let them count as acknowledged, and a crash before the beginning moves take
    them."""
    trimmed = Trimmed()
    trimmed.log.reset(0, 0)
    trimmed.append(40, sync=False)
    trimmed.log.settle(trimmed.log.end_index)
    trimmed.trimmer.trim()
    assert (trimmed.log.begin_index, len(trimmed.disk.work)) == (0, 0)
    trimmed.sync()
    trimmed.trimmer.trim()
    assert trimmed.log.begin_index == 35
    assert len(trimmed.disk.work) == 1


def test_nothing_more_is_removed_once_the_log_is_given_back() -> None:
    trimmed = Trimmed()
    trimmed.trimmer.trim()
    trimmed.disk.work.popleft()()
    trimmed.trimmer.stop()
    trimmed.disk.work.popleft()()
    assert not trimmed.disk.work
