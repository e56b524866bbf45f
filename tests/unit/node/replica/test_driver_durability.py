"""Durability of a log at its driver: `fsync`, `replicated`, and a change while it runs (R-11)."""

from pathlib import Path
from typing import Any

import pytest

from app.log.contract import Durability, LogOptions
from app.raft.messages import PushAnswer, PushCode, PushRequest, PushType
from storage import errors as storage_errors
from storage.file_system import FileSystem
from storage.log.clean_stop import CleanStop
from storage.log.commitlog import Commitlog
from tests.support.memory_files import MemoryFiles
from tests.unit.node.replica.driver_support import Node, leading_node, result


def test_with_replicated_durability_an_answer_does_not_wait_for_the_sync(tmp_path: Path) -> None:
    node = Node(tmp_path, durability=Durability.REPLICATED)
    answers = node.ask()
    node.seams.turn()
    assert result(answers[0]).durability is Durability.REPLICATED
    assert node.driver.log.durable_index < 1
    node.tick(10)
    assert node.driver.log.durable_index == 1


@pytest.mark.rule("R-11")
def test_the_durability_of_a_log_changes_while_it_runs(tmp_path: Path) -> None:
    node = Node(tmp_path, durability=Durability.REPLICATED)
    first = node.ask(b"a")
    node.seams.turn()
    assert result(first[0]).durability is Durability.REPLICATED
    node.driver.change_options(LogOptions(durability=Durability.FSYNC))
    node.seams.turn()
    second = node.ask(b"b")
    node.seams.turn()
    assert second == []  # it waits for the disk now
    node.seams.run()
    assert result(second[0]).durability is Durability.FSYNC
    third = node.ask(b"c")
    node.seams.turn()
    node.driver.change_options(LogOptions(durability=Durability.REPLICATED))
    node.seams.turn()
    assert result(third[0]).durability is Durability.REPLICATED  # what is written counts at once


@pytest.mark.rule("R-11")
def test_an_append_that_peers_may_have_acknowledged_before_their_sync_is_not_reported_as_fsync(
    tmp_path: Path,
) -> None:
    """It was pushed before the change, and is answered after it."""
    node = leading_node(tmp_path, durability=Durability.REPLICATED)
    session = compared(node, end=0)
    first = node.ask(b"a")
    node.seams.run()
    node.driver.change_options(LogOptions(durability=Durability.FSYNC))
    node.seams.run()
    second = node.ask(b"b")
    node.seams.run()
    acknowledged(node, session, 2)
    assert [result(each).durability for each in (*first, *second)] == list(Durability)[::-1]


def compared(node: Node, end: int) -> int:
    """n2 holds the leader's log up to `end`; return the session of the pushes that follow."""
    [push] = [push for target, push in node.seams.sent if target == "n2" and isinstance(push, PushRequest)]
    same = PushAnswer(push.term, push.type, PushCode.SUCCESS, push.session, 9, end, 0, end)
    node.driver.deliver("n2", same)
    node.seams.run()
    return push.session + 1


def acknowledged(node: Node, session: int, end: int) -> None:
    ack = PushAnswer(1, PushType.APPEND, PushCode.SUCCESS, session, 9, end, 0, end)
    node.driver.deliver("n2", ack)
    node.seams.run()


@pytest.mark.rule("R-11", "C-03")
def test_a_log_acknowledges_unsynced_records_only_after_the_note_for_its_next_opening(tmp_path: Path) -> None:
    files = MemoryFiles()
    node = Node(tmp_path, files=files)
    stop = CleanStop(files, f"{tmp_path}/logs/default")
    assert stop.load() is None
    node.driver.change_options(LogOptions(durability=Durability.REPLICATED))
    node.seams.turn()
    first = node.ask(b"a")
    node.seams.turn()
    assert first == []  # as strict as before, until the note is durable
    assert node.driver.status().durability is Durability.FSYNC
    node.seams.run()
    assert node.driver.status().durability is Durability.REPLICATED
    second = node.ask(b"b")
    node.seams.turn()
    assert result(second[0]).durability is Durability.REPLICATED
    files.crash()
    assert stop.may_have_lost()


def test_without_room_for_the_note_a_log_stays_strict_and_tries_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.seams.disk_error = storage_errors.StorageFull("opened", "pwrite", "no space left")
    node.driver.change_options(LogOptions(durability=Durability.REPLICATED))
    node.seams.run()
    node.tick(2_000)
    assert node.driver.status().durability is Durability.FSYNC
    node.seams.disk_error = None
    node.tick(2_000)
    assert node.driver.status().durability is Durability.REPLICATED
    assert node.seams.failures == []


def test_the_newest_durability_counts_when_the_note_of_an_earlier_one_is_ready(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.driver.change_options(LogOptions(durability=Durability.REPLICATED))
    node.seams.turn()
    node.driver.change_options(LogOptions(durability=Durability.FSYNC))
    node.seams.run()
    assert node.driver.status().durability is Durability.FSYNC


@pytest.mark.rule("R-11")
def test_an_opening_syncs_what_a_killed_process_wrote_before_it_ends_the_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = MemoryFiles()
    node = Node(tmp_path, files=files, durability=Durability.REPLICATED)
    result(node.append(b"a"))
    node.options["durability"] = Durability.FSYNC

    opens = Commitlog.open

    def power_fails(files: FileSystem, folder: str, **options: Any) -> Commitlog:
        if folder.endswith("/logs/default"):
            raise storage_errors.DiskError(folder, "open", "power failure")
        return opens(files, folder, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Commitlog, "open", power_fails)
        with pytest.raises(storage_errors.DiskError):
            node.open()
    files.crash()
    assert CleanStop(files, f"{tmp_path}/logs/default").may_have_lost()
