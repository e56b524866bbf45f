"""Journals of a node lose old events, one trim at a time."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.node.retention.journals import JournalKeeper
from app.settings.model import JournalConfig
from storage.errors import DiskError, StorageFull
from storage.log.journal import KEPT_EVENTS, Journal
from tests.support.memory_files import MemoryFiles

EVENTS = KEPT_EVENTS + 500


class Lane:
    """Keeps its work until the test runs it."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = []

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        self.waiting.append((work, then))

    def run(self, error: BaseException | None = None) -> None:
        work, then = self.waiting.pop(0)
        then(None if error else work(), error)


class Scene:
    """One log with an event each millisecond, now = EVENTS."""

    def __init__(self, config: JournalConfig) -> None:
        self.files = MemoryFiles()
        self.journal = Journal(self.files, "data/journal/log", "n1", "log")
        for number in range(EVENTS):
            self.journal.append("start", 0, {}, number)
        ticket = self.journal.start_sync()
        assert ticket is not None
        ticket.run()
        self.journal.finish_sync(ticket)
        self.lane, self.failures = Lane(), list[str]()
        clock: Any = SimpleNamespace(now_ms=lambda: EVENTS)
        disk: Any = SimpleNamespace(lane=lambda _name: self.lane)
        self.keeper = JournalKeeper(config, clock, disk, lambda what, _error: self.failures.append(what))
        self.hosted: Any = SimpleNamespace(name="log", journal=self.journal)

    def reopened(self) -> Journal:
        """Return the journal as the next start would find it."""
        return Journal(self.files, "data/journal/log", "n1", "log")

    def trim(self) -> None:
        self.keeper.trim(self.hosted)


@pytest.mark.parametrize(
    ("config", "begin_seq"),
    [
        (JournalConfig(retention_ms=EVENTS - 300, retention_bytes=None), 300),
        (JournalConfig(retention_ms=None, retention_bytes=1), EVENTS - KEPT_EVENTS),
        (JournalConfig(retention_ms=None, retention_bytes=None), 0),
        (JournalConfig(), 0),  # a week, 64 MiB
    ],
)
def test_events_beyond_the_age_or_the_size_go(config: JournalConfig, begin_seq: int) -> None:
    scene = Scene(config)
    scene.trim()
    while scene.lane.waiting:
        scene.lane.run()
    assert (scene.journal.begin_seq, scene.journal.next_seq) == (begin_seq, EVENTS)


@pytest.mark.parametrize(
    ("error", "failures"),
    [
        (StorageFull("manifest", "write", "no space left"), []),
        (DiskError("manifest", "write", "input/output error"), ["trim of the journal of log log"]),
    ],
)
def test_one_trim_runs_at_a_time_and_a_full_disk_ends_no_node(error: DiskError, failures: list[str]) -> None:
    scene = Scene(JournalConfig(retention_ms=EVENTS - 300, retention_bytes=None))
    scene.trim()
    scene.trim()  # the disk hangs
    assert len(scene.lane.waiting) == 1
    scene.lane.run(error)
    assert scene.failures == failures


def test_a_trim_that_a_full_disk_did_not_record_is_recorded_by_the_next_check() -> None:
    """The begin has moved in memory, so nothing exceeds the limit for now; its segments are still there."""
    scene = Scene(JournalConfig(retention_ms=EVENTS - 300, retention_bytes=None))
    scene.trim()
    scene.lane.run(StorageFull("manifest", "write", "no space left"))
    assert (scene.journal.begin_seq, scene.reopened().begin_seq) == (300, 0)
    scene.trim()
    scene.lane.run()
    assert scene.reopened().begin_seq == 300
    scene.trim()
    assert scene.lane.waiting == []
