"""Times at which a log is synced: every write is covered, and no sync is without effect."""

from collections.abc import Callable
from typing import Any

import pytest

from app.log.contract import Durability
from app.log.driver_interfaces import DriverConfig, SyncSource
from app.node.replica.syncing import LogSyncer
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import grow, open_log


class OneRound:
    """A disk whose rounds of syncs the test carries out."""

    def __init__(self) -> None:
        self.asked: list[tuple[SyncSource, Callable[[], None]]] = []

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        raise AssertionError("a syncer submits nothing")

    def request_sync(self, source: SyncSource, then: Callable[[], None]) -> None:
        self.asked.append((source, then))


@pytest.mark.rule("R-11")
def test_a_write_that_falls_due_during_a_sync_is_synced_after_it() -> None:
    log, disk = open_log(MemoryFiles()), OneRound()
    syncer = LogSyncer(log, disk, Durability.REPLICATED, DriverConfig(), lambda: None)
    grow(log, 1, sync=False)
    syncer.written(0)
    syncer.tick(20)
    source, then = disk.asked.pop()
    ticket = source.start_sync()
    grow(log, 1, sync=False)
    syncer.written(25)
    syncer.tick(40)  # due, while the first round is still under way
    ticket.run()
    source.finish_sync(ticket)
    then()
    syncer.tick(60)
    assert len(disk.asked) == 1


def test_no_sync_is_requested_while_a_truncation_is_under_way() -> None:
    log, disk = open_log(MemoryFiles()), OneRound()
    syncer = LogSyncer(log, disk, Durability.FSYNC, DriverConfig(), lambda: None)
    grow(log, 1, sync=False)
    syncer.written(0)
    syncer.is_truncating = True
    _, then = disk.asked.pop()
    then()
    assert disk.asked == []
