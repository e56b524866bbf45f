"""Start-up reads the tail of a log, not the log; one that fails leaves no file open."""

import contextlib
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from storage.errors import DiskError, StorageError, StorageFull
from storage.files import OsFile, OsFileSystem
from storage.format.batch import Batch
from storage.format.segment_format import index_name
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.log_folder import segment_offsets
from storage.log.log_view import OPEN_SEGMENTS
from storage.log.recovery import Recovery
from storage.log.segment import Segment
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import (
    FOLDER,
    LOG_ID,
    SMALL,
    check_whole,
    content,
    grow,
    next_batch,
    open_log,
    open_term,
    sync_log,
)

CONFIG = CommitlogConfig(segment_max_bytes=4_000, mark_interval_bytes=3_000, tail_cache_bytes=2_000)
REBUILDS = CommitlogConfig(segment_max_bytes=12_000, mark_interval_bytes=4_000, tail_cache_bytes=0)
WITHIN_S = 0.2  # a truncation that does not wait for the read ends within that


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


class Watched(OsFileSystem):
    """full, unreadable: names of a file that cannot be opened for lack of space, and of one that cannot be
    read."""

    def __init__(self) -> None:
        self.files: weakref.WeakSet[OsFile] = weakref.WeakSet()
        self.full: str | None = None
        self.unreadable: str | None = None

    def open(self, path: str, create: bool = False) -> OsFile:
        name = path.rpartition("/")[2]
        if name == self.full:
            raise StorageFull(path, "open", "no space")
        file = super().open(path, create)
        self.files.add(file)
        if name == self.unreadable:
            file.read = _unreadable(path)  # type: ignore[method-assign]
        return file

    @property
    def open_count(self) -> int:
        return sum(file._descriptor >= 0 for file in self.files)


def _unreadable(path: str) -> Callable[[int, int], bytes]:
    def read(_offset: int, _size: int) -> bytes:
        raise DiskError(path, "read", "an error of the medium")

    return read


def _flip(path: Path, from_end: int) -> None:
    data = bytearray(path.read_bytes())
    data[-from_end] ^= 1
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", ["tail", "last durable", "short segment", "unreadable", "full"])
def test_an_opening_that_fails_closes_what_it_has_opened(tmp_path: Path, damage: str) -> None:
    """It is often repeated, for hours: a disk refuses to read, or has no space."""
    files, folder = Watched(), str(tmp_path / "log")
    log = open_log(files, SMALL, folder=folder)
    open_term(log, 1)
    grow(log, 60)
    log.close()
    log = open_log(files, SMALL, folder=folder)
    if damage != "last durable":
        grow(log, 3)  # beyond the durable point; a killed process closes no log
    committed_index = log.end_index
    for segment in log._segments:
        segment.close()
    offsets = segment_offsets(files, folder)
    assert len(offsets) > 2
    first, last = (tmp_path / "log" / f"{offset:020d}.log" for offset in (offsets[0], offsets[-1]))
    if damage in ("tail", "last durable"):
        _flip(last, from_end=40)
    elif damage == "short segment":
        _cut(first)
    elif damage == "unreadable":
        files.unreadable = last.name
    else:
        files.full = "manifest"
    assert files.open_count == 0
    for _ in range(3):
        with pytest.raises(StorageError):
            open_log(files, SMALL, committed_index, folder)
        assert files.open_count == 0
    with contextlib.suppress(StorageError):
        Recovery(files, folder, LOG_ID, committed_index).has_torn_tail()
    assert files.open_count == 0


def test_segments_that_a_trim_has_left_are_removed_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill may leave thousands, and each listing of the folder has all of them."""
    names_of, counts = MemoryFiles.list, list[int]()

    def counted(files: MemoryFiles, folder: str) -> list[str]:
        counts[-1] += 1
        return names_of(files, folder)

    monkeypatch.setattr(MemoryFiles, "list", counted)
    for segments in (5, 50):
        files = MemoryFiles()
        counts.append(0)
        log_of(files, segments)
        log = open_log(files, CONFIG)
        log.settle(log.end_index)
        ticket = log.start_trim(log.end_index)
        assert ticket is not None
        ticket.move_begin()
        counts[-1] = 0
        assert open_log(files, CONFIG).begin_index == ticket.base_index
        assert len(segment_offsets(files, FOLDER)) <= 2
        counts[-1] -= 1  # of this assertion
    assert counts[0] == counts[1]


def log_of_terms(files: OsFileSystem, folder: str) -> Commitlog:
    """A durable log of many terms and segments."""
    log = open_log(files, folder=folder)
    for term in range(1, 20):
        open_term(log, term)
        grow(log, 10)
        sync_log(log)
    return log


def test_an_opening_that_rebuilds_the_epochs_keeps_no_sealed_segment_open(tmp_path: Path) -> None:
    """Each repair leads to one, and a process may have fewer descriptors than a log has segments."""
    files, folder = OsFileSystem(), str(tmp_path)
    log = log_of_terms(files, folder)
    whole, epochs, segments = content(log), log.epochs, segment_offsets(files, folder)
    log.close()
    files.remove(f"{folder}/epochs")
    before = len(list(Path("/dev/fd").iterdir()))
    again = open_log(files, folder=folder)
    assert len(list(Path("/dev/fd").iterdir())) - before < 5 < len(segments)
    assert again.epochs == epochs
    check_whole(again, whole)
    again.close()


def test_a_log_that_grows_keeps_no_sealed_segment_open(tmp_path: Path) -> None:
    """A sync without a descriptor ends the node."""
    files, folder = OsFileSystem(), str(tmp_path)
    log = open_log(files, folder=folder)
    before = len(list(Path("/dev/fd").iterdir()))
    batches = [batch for _ in range(20) for batch in grow(log, 10)]
    after = len(list(Path("/dev/fd").iterdir()))
    assert after - before < 5 < len(segment_offsets(files, folder))
    check_whole(log, batches)
    log.close()


def test_a_log_whose_indexes_are_rebuilt_by_reads_keeps_two_sealed_segments_open(tmp_path: Path) -> None:
    """Until a restart each would keep its descriptor, and a sync without one ends the node."""
    files, folder = OsFileSystem(), str(tmp_path)
    log = log_of_terms(files, folder)
    whole = content(log)
    for each in segment_offsets(files, folder)[:-1]:
        path = tmp_path / index_name(each)
        path.write_bytes(b"?" + path.read_bytes()[1:])
    before = len(list(Path("/dev/fd").iterdir()))
    check_whole(log, whole)
    assert len(list(Path("/dev/fd").iterdir())) - before <= 2 < len(segment_offsets(files, folder)) - 5
    log.truncate_after(whole[len(whole) // 2].last_index)
    grow(log, 3)
    check_whole(log, whole[: len(whole) // 2 + 1] + content(log)[-3:])
    log.close()


def test_a_log_that_is_read_keeps_two_sealed_segments_open(tmp_path: Path) -> None:
    """Reads of every kind, in any order, also after trims and truncations, give what they gave."""
    files, folder = OsFileSystem(), str(tmp_path)
    log = log_of_terms(files, folder)
    whole = content(log)
    firsts = {b.base_index: log.first_index_at_or_after(b.header.max_timestamp_us // 1000) for b in whole}
    log.settle(log.end_index - 20)
    before = len(list(Path("/dev/fd").iterdir()))
    random = Random(1)
    for _ in range(300):
        batch = random.choice(whole)
        if batch.base_index < log.begin_index:
            continue
        index = random.randint(batch.base_index, batch.last_index)
        assert log.batch_at(index) == batch
        assert log.term_at(index) == batch.term
        found = log.last_index_of_term_at_most(batch.term - 1)
        assert found < index
        assert found < log.begin_index or log.term_at(found) < batch.term
        assert log.entries(index, index)[0].offset == batch.offset
        first = firsts[batch.base_index]
        if first is None or first >= log.begin_index:
            assert log.first_index_at_or_after(batch.header.max_timestamp_us // 1000) == first
        if random.random() < 0.02 and (ticket := log.start_trim(log.begin_index + 15)) is not None:
            ticket.run()
        assert len(list(Path("/dev/fd").iterdir())) - before <= 3 * OPEN_SEGMENTS
    log.truncate_after(log.floor_batch_end(log.settled_index + 5))
    check_whole(log, [batch for batch in whole if log.begin_index <= batch.base_index <= log.end_index])
    assert len(segment_offsets(files, folder)) > 5
    log.close()


def after_a_cut_to_a_sealed_segment(files: MemoryFiles) -> Commitlog:
    """The log goes on in a segment that was sealed; then two others were read."""
    log = open_log(files)
    open_term(log, 1)
    for _ in range(5):
        grow(log, 3)
        log.append([next_batch(log, [Random(0).randbytes(7_500)])])  # in a segment of its own
        log.append([next_batch(log)])
        sync_log(log)
    sealed = log._segments[-3]
    assert sealed.mapped
    log.truncate_after(log._segments[-2].base_index - 1)
    log.append([next_batch(log, timestamps_ms=[5_000])])
    assert log._segments[-1] is sealed
    for segment in log._segments[:3]:
        log.batch_at(segment.base_index)
    return log


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("seed", range(8))
def test_a_log_that_was_cut_to_a_sealed_segment_loses_nothing_durable(seed: int) -> None:
    """A sync has to reach the file, also when the log was read in between."""
    files = MemoryFiles(Random(seed))
    log = after_a_cut_to_a_sealed_segment(files)
    sync_log(log)
    expected, durable_index = content(log), log.durable_index
    assert durable_index == log.end_index
    files.crash()
    check_whole(open_log(files, committed_index=durable_index), expected)


def test_a_log_that_was_cut_to_a_sealed_segment_finds_new_records_by_time() -> None:
    log = after_a_cut_to_a_sealed_segment(MemoryFiles())
    assert log.first_index_at_or_after(4_000) == log.end_index
    log.append([next_batch(log, timestamps_ms=[9_000])])
    assert log.first_index_at_or_after(8_000) == log.end_index
    sync_log(log)
    check_whole(log, content(log))


def log_with_a_damaged_index(files: MemoryFiles) -> tuple[Commitlog, list[Batch]]:
    log = open_log(files, REBUILDS)
    open_term(log, 1)
    while sum(segment.mapped for segment in log._segments) < 3:
        grow(log, 4, Random(1))
    whole = content(log)
    log.close()
    log = open_log(files, REBUILDS)
    log.settle(whole[2].last_index)
    file = files.open(log._segments[0].index_path)
    file.pwrite(b"\xff", 3)
    return log, whole


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("operation", ["open", "read", "extend", "sync", "rename"])
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("at_the_end", [False, True])
def test_a_truncation_within_the_rebuild_of_an_index(operation: str, number: int, at_the_end: bool) -> None:
    """The rebuild must not meet a part of the truncation, nor return what that has removed.

    number: of the operation of that kind on the segment's files within which the truncation begins.
    """
    files = MemoryFiles(Random(0))
    log, whole = log_with_a_damaged_index(files)
    segment: Segment = log._segments[0]
    held = [batch for batch in whole if batch.next_offset <= segment.end_offset]
    cut = held[-1] if at_the_end else held[-3]
    left = whole[: whole.index(cut) + 1]
    truncation = threading.Thread(target=log.truncate_after, args=(cut.last_index,))
    owner, met = threading.current_thread(), list[str]()

    def observe(met_operation: str, path: str) -> None:
        is_its_file = path.removesuffix(".tmp") in (segment.path, segment.index_path)
        if threading.current_thread() is owner and is_its_file and met_operation == operation:
            met.append(path)
            if len(met) == number + 1:
                truncation.start()
                truncation.join(WITHIN_S)

    files.refuse = observe
    assert log.batch_at(whole[1].base_index) == whole[1]
    files.refuse = None
    if len(met) <= number:
        truncation.start()
    truncation.join()
    check_whole(log, left)
    left += grow(log, 6, Random(5))
    check_whole(log, left)
    log.close()
    check_whole(open_log(files, REBUILDS), left)
