"""The note of a clean stop: without it, a power failure may have removed unsynced acknowledged records."""

import pytest

from storage.files import OsFileSystem
from storage.log.clean_stop import UNKNOWN_BOOT, CleanStop, OpenMark, may_have_lost
from tests.support.memory_files import MemoryFiles, PowerCut

FOLDER = "data/logs/default"


@pytest.mark.rule("R-11")
@pytest.mark.parametrize(
    ("opened", "boot_id", "lost"),
    [
        (None, "b", False),
        (OpenMark("a"), "a", False),
        (OpenMark("a"), "b", True),
        (OpenMark("a", clean=True), "b", False),
        (OpenMark("a", acks_unsynced=False), "b", False),
        (OpenMark(UNKNOWN_BOOT), UNKNOWN_BOOT, True),
        (OpenMark("a"), UNKNOWN_BOOT, True),
        (OpenMark(UNKNOWN_BOOT, clean=True), "b", False),
    ],
)
def test_only_another_boot_without_a_clean_stop_may_have_lost(
    opened: OpenMark | None, boot_id: str, lost: bool
) -> None:
    assert may_have_lost(opened, boot_id) is lost


def test_a_killed_process_has_lost_nothing_and_a_power_failure_may_have() -> None:
    files = MemoryFiles()
    stop = CleanStop(files, FOLDER)
    assert not stop.may_have_lost()
    stop.opened(acks_unsynced=True)
    assert not stop.may_have_lost()
    files.crash()
    assert stop.may_have_lost()
    stop.opened(acks_unsynced=True)
    assert not stop.may_have_lost()
    stop.stopped()
    files.crash()
    assert not stop.may_have_lost()


def test_a_log_that_syncs_before_it_acknowledges_has_no_note() -> None:
    files = MemoryFiles()
    stop = CleanStop(files, FOLDER)
    stop.opened(acks_unsynced=False)
    stop.stopped()
    assert stop.load() is None
    stop.opened(acks_unsynced=True)
    stop.opened(acks_unsynced=False)  # the setting has changed
    files.crash()
    assert not stop.may_have_lost()


def test_a_note_that_cannot_be_read_is_a_doubt() -> None:
    files = MemoryFiles()
    stop = CleanStop(files, FOLDER)
    stop.opened(acks_unsynced=True)
    stop.stopped()
    files.open(f"{FOLDER}/opened").pwrite(b"?", 3)
    assert stop.may_have_lost()
    stop.opened(acks_unsynced=True)
    assert not stop.may_have_lost()


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("acks_unsynced", [True, False])
def test_a_note_that_has_no_space_is_a_doubt_of_a_log_that_acknowledges_before_it_syncs(
    acks_unsynced: bool,
) -> None:
    files = MemoryFiles()
    stop = CleanStop(files, FOLDER)
    stop.opened(acks_unsynced=True)
    stop.stopped()
    files.space_bytes = 0
    stop.opened(acks_unsynced=acks_unsynced)
    files.crash()
    assert stop.may_have_lost() is acks_unsynced


def test_the_note_is_whole_after_a_power_failure_at_any_moment() -> None:
    for operation in range(12):
        files = MemoryFiles()
        stop = CleanStop(files, FOLDER)
        stop.opened(acks_unsynced=True)
        files.power_cut_at = files.operations + operation
        try:
            stop.stopped()
        except PowerCut:
            files.crash()
            assert stop.load() in (OpenMark("boot-0"), OpenMark("boot-0", clean=True))
        else:
            files.crash()
            assert stop.load() == OpenMark("boot-0", clean=True)


def test_the_operating_system_names_its_run() -> None:
    assert OsFileSystem().boot_id() == OsFileSystem().boot_id()
