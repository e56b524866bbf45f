"""Times at which a log is synced: every write is covered, and no sync is without effect. The change from
`fsync` to `replicated`: the note in the folder comes first."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.log.contract import Durability
from app.log.driver_interfaces import DriverConfig, SyncSource
from app.node.replica.syncing import LogSyncer
from app.node.replica.weaker_durability import RETRY_MS, WeakerDurability
from storage.errors import DiskError, StorageFull
from tests.support.memory_files import MemoryFiles
from tests.unit.node.replica.driver_support import Node, Seams
from tests.unit.storage.support import grow, open_log


class OneRound:
    """A disk whose rounds of syncs the test carries out."""

    def __init__(self) -> None:
        self.asked: list[tuple[SyncSource, Callable[[], None]]] = []

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        raise AssertionError("a syncer submits nothing")

    def request_sync(self, source: SyncSource, then: Callable[[], None]) -> None:
        self.asked.append((source, then))

    def begin(self) -> Callable[[], None]:
        """Begin the round that was requested last; return what ends it."""
        source, then = self.asked.pop()
        ticket = source.start_sync()

        def end() -> None:
            ticket.run()
            source.finish_sync(ticket)
            then()

        return end


@pytest.mark.rule("R-11")
def test_a_write_that_falls_due_during_a_sync_is_synced_after_it() -> None:
    log, disk = open_log(MemoryFiles()), OneRound()
    syncer = LogSyncer(log, disk, Durability.REPLICATED, DriverConfig(), lambda: None)
    grow(log, 1, sync=False)
    syncer.written(0)
    syncer.tick(20)
    end = disk.begin()
    grow(log, 1, sync=False)
    syncer.written(25)
    syncer.tick(40)  # due, while the first round is still under way
    end()
    syncer.tick(60)
    assert len(disk.asked) == 1


@pytest.mark.rule("R-11", "D-28")
@pytest.mark.parametrize("changes", [False, True])
def test_records_written_during_a_sync_are_synced_after_it_without_another_write(changes: bool) -> None:
    """Its append waits for that sync. changes: the log gets `fsync` while the first one is under way."""
    log, disk, rounds = open_log(MemoryFiles()), OneRound(), list[int]()
    durability = Durability.REPLICATED if changes else Durability.FSYNC
    syncer = LogSyncer(log, disk, durability, DriverConfig(), lambda: rounds.append(log.durable_index))
    grow(log, 1, sync=False)
    syncer.written(0)
    syncer.tick(20)
    end = disk.begin()
    grow(log, 1, sync=False)
    syncer.written(25)
    if changes:
        syncer.change_durability(Durability.FSYNC)
    assert disk.asked == []
    end()
    disk.begin()()
    assert (disk.asked, rounds[-1]) == ([], log.end_index)


def test_no_sync_is_requested_while_a_truncation_is_under_way() -> None:
    log, disk = open_log(MemoryFiles()), OneRound()
    syncer = LogSyncer(log, disk, Durability.FSYNC, DriverConfig(), lambda: None)
    grow(log, 1, sync=False)
    syncer.written(0)
    syncer.is_truncating = True
    _, then = disk.asked.pop()
    then()
    assert disk.asked == []


class LogWithWeakerDurability:
    """A log that was opened with `fsync`."""

    def __init__(self) -> None:
        self.seams = Seams()
        self.notes = 0
        self.noted = 0
        self.weaker = WeakerDurability(
            "default", Durability.FSYNC, self.seams, self._note, self._on_noted, self.seams.fail
        )

    def _note(self) -> None:
        self.notes += 1

    def _on_noted(self) -> None:
        self.noted += 1

    def allowed(self, wanted: Durability = Durability.REPLICATED, now_ms: int = 0) -> Durability:
        return self.weaker.allowed(wanted, now_ms)


@pytest.mark.rule("R-11")
def test_unsynced_records_are_acknowledged_only_after_the_note_is_durable() -> None:
    log = LogWithWeakerDurability()
    for _ in range(3):  # the settings may change again before that
        assert log.allowed() is Durability.FSYNC
    log.seams.run()
    assert (log.notes, log.noted) == (1, 1)
    assert log.allowed() is Durability.REPLICATED


@pytest.mark.rule("R-11")
def test_a_full_disk_delays_the_note() -> None:
    log = LogWithWeakerDurability()
    log.seams.disk_error = StorageFull("opened", "write", "no space")
    log.allowed()
    log.seams.run()
    log.seams.disk_error = None
    log.weaker.tick(RETRY_MS - 1)
    log.seams.run()
    assert log.notes == 0
    log.weaker.tick(RETRY_MS)
    log.seams.run()
    assert (log.notes, log.noted) == (1, 1)


@pytest.mark.rule("R-11")
def test_a_failed_note_stops_the_node() -> None:
    log = LogWithWeakerDurability()
    error = DiskError("opened", "write", "broken")
    log.seams.disk_error = error
    log.allowed()
    log.seams.run()
    assert [each for _, each in log.seams.failures] == [error]
    assert log.allowed() is Durability.FSYNC


def test_the_log_of_a_node_names_each_leader(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The journal of events has it too, but needs a call; an operator reads the log of the node first."""
    caplog.set_level("INFO", "app.node.replica.syncing")
    Node(tmp_path)
    found = [vars(record) for record in caplog.records if record.message == "leader known"]
    assert [(each["log"], each["term"], each["leader"]) for each in found] == [("default", 1, "n1")]
