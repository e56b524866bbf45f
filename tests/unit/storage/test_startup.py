"""Start-up reads the tail of a log, not the log."""

from random import Random

import pytest

from storage.files import OsFileSystem
from storage.log.commitlog import Commitlog, CommitlogConfig
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import FOLDER, check_whole, content, grow, open_log, open_term, sync_log

CONFIG = CommitlogConfig(segment_max_bytes=4_000, mark_interval_bytes=3_000, tail_cache_bytes=2_000)


def log_of(files: MemoryFiles, segments: int) -> Commitlog:
    """A clean log of so many full segments and the same tail behind them."""
    log = open_log(files, CONFIG)
    open_term(log, 1)
    while len([name for name in files.list(FOLDER) if name.endswith(".log")]) < segments:
        grow(log, 8, Random(segments))
    log.close()
    return log


def cost_of_opening(files: MemoryFiles) -> tuple[int, int, int]:
    """(bytes read, files opened, changes made)."""
    before = files.bytes_read, files.opened, files.operations
    open_log(files, CONFIG)
    after = files.bytes_read, files.opened, files.operations
    return after[0] - before[0], after[1] - before[1], after[2] - before[2]


def test_a_thousand_segments_open_like_ten() -> None:
    costs = []
    for segments in (10, 1_000):
        files = MemoryFiles()
        log_of(files, segments)
        costs.append(cost_of_opening(files))
    few, many = costs
    assert many[1:] == few[1:]
    assert many[1] < 10
    assert (
        max(many[0], few[0]) <= min(many[0], few[0]) + CONFIG.segment_max_bytes
    )  # the newest segment's index


def test_a_log_that_was_killed_reads_what_was_not_marked_and_no_more() -> None:
    for segments in (5, 200):
        files = MemoryFiles()
        log_of(files, segments)
        log = open_log(files, CONFIG)
        grow(log, 3)
        files.crash()
        size_bytes, opened, _ = cost_of_opening(files)
        assert size_bytes < 8_192 + 2 * CONFIG.segment_max_bytes + 2 * CONFIG.mark_interval_bytes
        assert opened < 15


def test_batches_that_start_up_passed_over_are_verified_when_read() -> None:
    files = MemoryFiles()
    log = open_log(files, CONFIG)
    batches = [open_term(log, 1), *grow(log, 80)]
    log.close()
    for name in files.list(FOLDER)[:-3]:
        if name.endswith(".index"):
            files.remove(f"{FOLDER}/{name}")
    check_whole(open_log(files, CONFIG), batches)


@pytest.mark.parametrize("segments", [3, 40])
def test_the_real_file_system_opens_no_sealed_segment(
    segments: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = str(tmp_path_factory.mktemp("log"))
    log = open_log(OsFileSystem(), CONFIG, folder=folder)
    while len([name for name in OsFileSystem().list(folder) if name.endswith(".log")]) < segments:
        grow(log, 5, sync=False)
        sync_log(log)
    expected = content(log)
    log.close()
    opened: list[str] = []
    real = OsFileSystem.open

    def counted(self: OsFileSystem, path: str, create: bool = False) -> object:
        opened.append(path)
        return real(self, path, create)

    monkeypatch.setattr(OsFileSystem, "open", counted)
    log = open_log(OsFileSystem(), CONFIG, folder=folder)
    assert len({path for path in opened if path.endswith((".log", ".index"))}) == 2
    assert content(log) == expected
