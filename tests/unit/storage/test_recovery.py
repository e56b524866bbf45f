"""After any crash: what was durable is there, what was cut stays away, and a second start changes nothing."""

import contextlib
from random import Random

import pytest

from storage.errors import CorruptFile, CorruptLog
from storage.format.batch import Batch
from storage.format.segment_format import ENTRY_SIZE_BYTES, segment_name
from storage.log.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.log.commitlog import NO_INDEX, Commitlog
from storage.log.hard_state import HardState, HardStateFile
from storage.log.log_folder import segment_offsets
from storage.log.segment import Segment
from tests.support.memory_files import MemoryFiles, PowerCut
from tests.unit.storage.support import (
    FOLDER,
    LOG_ID,
    check_idempotent,
    check_whole,
    content,
    crash_everywhere,
    epochs_on_disk,
    expected_content,
    grow,
    next_batch,
    open_log,
    open_term,
    snapshot,
    sync_log,
    three_terms,
)
from tests.unit.storage.torn_tails import BEHIND, KIB, TornTail, flips_everywhere, torn_everywhere

FIRST_SEGMENT = f"{FOLDER}/{0:020d}.log"


def put(files: MemoryFiles, path: str, data: bytes) -> None:
    file = files.open(path, create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.sync()


# --- the tail


@pytest.mark.parametrize("behind", BEHIND)
def test_a_tail_torn_at_any_byte_leaves_the_longest_valid_prefix(behind: str) -> None:
    """Every byte of a small tail, some of one of 64 KiB, and its last batch's."""
    assert torn_everywhere(behind, tail_bytes=1_000) > 1_000
    assert torn_everywhere(behind, first=len(behind), stride=1_009) > 60
    torn = TornTail(64 * KIB)
    for size in (torn.tail[-1].offset - 1, torn.tail[-1].offset, len(torn.data) - 1, len(torn.data)):
        torn.check_torn(size, behind)


def test_a_flipped_bit_in_the_tail_is_never_read() -> None:
    assert flips_everywhere(first=5, stride=31) > 1_000


def test_a_committed_index_in_the_tail_is_never_cut() -> None:
    files = MemoryFiles()
    log = open_log(files)
    batches = grow(log, 2)
    put(files, FIRST_SEGMENT, files.read(FIRST_SEGMENT)[:-8])
    before = snapshot(files)
    with pytest.raises(CorruptLog, match="was committed") as caught:
        open_log(files, committed_index=batches[1].last_index)
    assert caught.value.offset == batches[1].offset
    assert snapshot(files) == before
    check_whole(open_log(files, committed_index=batches[0].last_index), batches[:1])


def test_a_batch_that_does_not_follow_ends_the_log() -> None:
    """A valid batch of another history, put where the log ends, is no part of it."""
    files, others = MemoryFiles(), MemoryFiles()
    log, other = open_log(files), open_log(others)
    kept = [next_batch(log, [b"one"])]
    log.append(kept)
    other.append([next_batch(other, [b"two"])])
    foreign = next_batch(other)
    file = files.open(FIRST_SEGMENT)
    file.pwrite(foreign.data, log.end_offset)
    check_whole(open_log(files), kept)
    assert files.open(FIRST_SEGMENT).size() == log.end_offset


# --- damage where the log was durable


def durable_log(files: MemoryFiles) -> list[Batch]:
    log = open_log(files)
    batches = [open_term(log, 1), *grow(log, 60, Random(2))]
    log.close()
    return batches


def test_a_short_or_missing_segment_is_reported_and_left_alone() -> None:
    files = MemoryFiles()
    durable_log(files)
    start = snapshot(files)
    names = [name for name in start if name.endswith(".log")]
    assert len(names) > 2
    for name in names:
        for data in (None, start[name][:-8], b""):
            if data is None:
                files.remove(f"{FOLDER}/{name}")
            else:
                put(files, f"{FOLDER}/{name}", data)
            before = snapshot(files)
            with pytest.raises(CorruptLog):
                open_log(files)
            assert snapshot(files) == before
            put(files, f"{FOLDER}/{name}", start[name])


def test_damage_in_the_last_durable_batch_is_found_at_the_start_and_elsewhere_when_read() -> None:
    files = MemoryFiles()
    batches = durable_log(files)
    for batch in (batches[-1], batches[5]):
        name = max(
            name for name in files.list(FOLDER) if name.endswith(".log") and int(name[:20]) <= batch.offset
        )
        path = f"{FOLDER}/{name}"
        whole = files.read(path)
        for place in (0, 8, 90, batch.size_bytes - 20):
            damaged = bytearray(whole)
            damaged[batch.offset - int(name[:20]) + place] ^= 4
            put(files, path, bytes(damaged))
            with pytest.raises(CorruptLog) as caught:
                open_log(files).batch_at(batch.base_index)
            assert (caught.value.path, caught.value.offset) == (path, batch.offset)
        put(files, path, whole)
    check_whole(open_log(files), batches)


@pytest.mark.parametrize("damage", ["missing", "zeros", "cut", "noise", "other", "field"])
def test_an_index_is_rebuilt_when_it_cannot_be_believed(damage: str) -> None:
    files = MemoryFiles()
    batches = durable_log(files)
    names = [name for name in files.list(FOLDER) if name.endswith(".index")]
    whole = {name: files.read(f"{FOLDER}/{name}") for name in names}
    for name in names:
        path, size = f"{FOLDER}/{name}", len(whole[name])
        row = size // ENTRY_SIZE_BYTES // 2 * ENTRY_SIZE_BYTES
        if damage == "missing":
            files.remove(path)
            continue
        flipped = bytearray(whole[name])
        flipped[row + 16] ^= 1
        put(
            files,
            path,
            {
                "zeros": bytes(size),
                "cut": whole[name][: size - 70],
                "noise": Random(1).randbytes(size),
                "other": whole[names[0]] if name != names[0] else whole[names[1]],
                "field": bytes(flipped),
            }[damage],
        )
    check_whole(open_log(files), batches)
    assert {name: files.read(f"{FOLDER}/{name}") for name in names} == whole


@pytest.mark.parametrize("damage", ["missing", "empty", "cut"])
def test_an_opening_leaves_no_index_to_rebuild_to_a_reader(
    monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """A reader would rebuild it on the event loop, which takes seconds for a large segment."""
    files = MemoryFiles()
    batches = durable_log(files)
    sealed = [f"{FOLDER}/{name}" for name in files.list(FOLDER) if name.endswith(".index")][:-1]
    whole = {path: files.read(path) for path in sealed}
    for path in sealed:
        files.remove(path)
        if damage != "missing":
            put(files, path, b"" if damage == "empty" else whole[path][:-1])
    log = open_log(files)
    assert {path: files.read(path) for path in sealed} == whole
    monkeypatch.delattr(Segment, "scanned_index")
    check_whole(log, batches)


def test_a_folder_of_another_log_is_refused() -> None:
    files = MemoryFiles()
    durable_log(files)
    with pytest.raises(CorruptLog, match="another log"):
        Commitlog.open(files, FOLDER, log_id=LOG_ID + 1)


def test_a_damaged_manifest_is_never_replaced_by_a_new_one() -> None:
    files = MemoryFiles()
    batches = durable_log(files)
    path = f"{FOLDER}/manifest"
    whole = bytearray(files.read(path))
    for slot in (0, 4096):
        damaged = bytearray(whole)
        damaged[slot + 20] ^= 1
        put(files, path, bytes(damaged))
        check_whole(open_log(files), batches)  # one of two slots is enough
    damaged[20] ^= 1
    put(files, path, bytes(damaged))
    with pytest.raises(CorruptFile):
        open_log(files)
    files.remove(path)
    with pytest.raises(CorruptLog, match="without a manifest"):
        open_log(files)


def test_files_of_others_are_left_alone() -> None:
    files = MemoryFiles()
    batches = durable_log(files)
    for name in ("notes.txt", "12.log", f"{0:020d}.log.bak", "x" * 20 + ".log"):
        put(files, f"{FOLDER}/{name}", b"not ours")
    check_whole(open_log(files), batches)
    assert files.read(f"{FOLDER}/12.log") == b"not ours"


# --- a crash between any two operations


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("keep", [0, 1, 10, 15, 16, 30, 44])
@pytest.mark.parametrize("synced", [True, False])
def test_a_cut_tail_never_returns_wherever_the_crash_falls(keep: int, synced: bool) -> None:
    whole = expected_content()
    index = whole[keep - 1].last_index if keep else NO_INDEX

    def check(files: MemoryFiles, done: bool) -> None:
        log = open_log(files)
        held = content(log)
        assert held == whole[: len(held)]
        if synced:
            assert len(held) in ({keep} if done else {keep, len(whole)})
        elif done:
            assert len(held) == keep
        before = [batch.term for batch in held if batch.is_control]
        assert [term for term, _, _ in epochs_on_disk(files)] == before == [e.term for e in log.epochs]
        # What is appended now may stand where the old tail stood: nothing of that shows through.
        new = grow(log, 3, Random(99))
        files.crash()
        check_whole(open_log(files), held + new)

    places = crash_everywhere(
        lambda files: three_terms(files, synced=synced), lambda log: log.truncate_after(index), check
    )
    assert places > 5


def test_a_reset_is_whole_or_has_not_begun() -> None:
    whole = expected_content()

    def check(files: MemoryFiles, done: bool) -> None:
        log = open_log(files)
        held = content(log)
        assert held in ([], whole)
        if not held:
            assert (log.next_index, log.end_offset, log.epochs) == (900, 80_000, ())
            assert log.last_position == (7, 899)
            grow(log, 1, sync=False)
            files.crash()
            log = open_log(files)
            new = content(log)
            assert new or log.last_position == (7, 899)
            new += grow(log, 2)
            files.crash()
            check_whole(open_log(files), new)
        assert held == [] or not done

    assert crash_everywhere(three_terms, lambda log: log.reset(900, 80_000, 7), check) > 5


def test_a_roll_or_a_moved_mark_loses_nothing_that_was_durable() -> None:
    synced: list[int] = []

    def work(log: Commitlog) -> None:
        synced.clear()
        for seed in range(5):
            grow(log, 4, Random(seed), sync=False)
            sync_log(log)
            synced.append(log.durable_index)

    log = three_terms(MemoryFiles())
    work(log)
    whole = content(log)

    def check(files: MemoryFiles, done: bool) -> None:
        log = open_log(files, committed_index=synced[-1] if synced else 0)
        held = content(log)
        assert held == whole[: len(held)]
        assert len(held) == len(whole) or not done
        assert log.end_index >= (synced[-1] if synced else NO_INDEX)

    assert crash_everywhere(three_terms, work, check) > 20


@pytest.mark.rule("A-01")
def test_a_moved_mark_never_leaves_an_epoch_behind() -> None:
    """Recovery reads the epochs before the durable point from their file alone."""

    def work(log: Commitlog) -> None:
        open_term(log, 9, "n3")
        grow(log, 20, sync=False)
        sync_log(log)

    def check(files: MemoryFiles, done: bool) -> None:
        held = content(open_log(files))
        assert [term for term, _, _ in epochs_on_disk(files)] == sorted({batch.term for batch in held})
        assert held[-1].term == 9 or not done

    assert crash_everywhere(three_terms, work, check) > 5


@pytest.mark.rule("R-06")
def test_a_segment_behind_a_gap_is_removed() -> None:
    """The end of the segment before it was lost at the limit of a batch: nothing there looks torn."""
    files = MemoryFiles()
    log = open_log(files)
    batches = grow(log, 60, sync=False)
    before, last = segment_offsets(files, FOLDER)[-2:]
    kept = [batch for batch in batches if batch.next_offset < last]
    end = kept[-1].next_offset
    file = files.open(f"{FOLDER}/{segment_name(before)}")
    file.truncate(end - before)
    file.close()
    check_whole(open_log(files), kept)
    assert segment_offsets(files, FOLDER)[-1] == before


def test_recovery_itself_may_crash_anywhere() -> None:
    """Recover a log whose truncation was interrupted, and whose tail is torn as well."""
    whole = expected_content()
    cut = whole[20]

    def interrupted(files: MemoryFiles) -> Commitlog:
        log = three_terms(files)
        files.power_cut_at = files.operations + 6
        with pytest.raises(PowerCut):
            log.truncate_after(cut.last_index)
        files.crash()
        return log

    def check(files: MemoryFiles, done: bool) -> None:
        assert content(open_log(files)) == whole[:21]

    def recover(log: Commitlog) -> None:
        open_log(log._files)

    assert crash_everywhere(interrupted, recover, check) > 3


def test_a_new_log_may_crash_while_it_is_made() -> None:
    place = 0
    while True:
        files = MemoryFiles(Random(place))
        files.power_cut_at = place
        try:
            log = open_log(files)
            grow(log, 2)
            done = True
        except PowerCut:
            done = False
        files.crash()
        log = open_log(files)
        assert log.begin_index in (NO_INDEX, 0)
        check_idempotent(files)
        if done:
            assert content(log) != []
            return
        place += 1


# --- kill -9, a restart, then a power cut: the restart has seen the page cache, the power cut has not


@pytest.mark.rule("R-11", "D-28")
def test_records_acknowledged_after_a_kill_within_a_truncation_outlive_a_power_cut() -> None:
    for seed in range(10):
        for step in range(20):
            files = MemoryFiles(Random(seed))
            log = open_log(files)
            open_term(log, 1)
            grow(log, 4)
            keep = log.batch_at(1).last_index
            files.power_cut_at = files.operations + step
            try:
                log.truncate_after(keep)
            except PowerCut:
                files.power_cut_at = None  # only the process was killed
                log = open_log(files)
            files.power_cut_at = None
            open_term(log, 2)
            sync_log(log)
            acknowledged = content(log)
            files.crash()
            check_whole(open_log(files), acknowledged)


@pytest.mark.rule("R-01")
def test_a_vote_that_a_restart_has_seen_outlives_a_power_cut() -> None:
    for seed in range(20):
        files = MemoryFiles(Random(seed))
        vote = HardStateFile(files, "d/vote")
        vote.load()
        vote.save(HardState(4, None))
        files.power_cut_at = files.operations + 1  # behind the first write of the next save, before its sync
        with pytest.raises(PowerCut):
            vote.save(HardState(5, "n2"))
        files.power_cut_at = None
        seen = HardStateFile(files, "d/vote").load()
        files.crash()
        assert HardStateFile(files, "d/vote").load() == seen


@pytest.mark.rule("R-01", "D-20")
def test_a_power_cut_within_a_save_leaves_the_old_value_or_the_new_one() -> None:
    def saves(files: MemoryFiles, done: list[int]) -> None:
        """Load, then save vote, checkpoint and snapshot as of 1, 2 and 3; done: what was saved whole."""
        vote, checkpoint = HardStateFile(files, "d/vote"), CheckpointFile(files, "d/checkpoint")
        snapshot_file = SnapshotFile(files, "d/state")
        vote.load()
        checkpoint.load()
        for value in (1, 2, 3):
            vote.save(HardState(value, f"n{value}"))
            snapshot_file.save(b"%d" % value)
            checkpoint.save(Checkpoint(value, value))
            done.append(value)

    for place in range(200):
        files = MemoryFiles(Random(place))
        files.power_cut_at = place
        done: list[int] = []
        with contextlib.suppress(PowerCut):
            saves(files, done)
        ended = files.operations < place
        files.crash()
        last = done[-1] if done else 0
        vote = HardStateFile(files, "d/vote").load()
        assert vote in [HardState(value, f"n{value}" if value else None) for value in (last, last + 1)]
        state = SnapshotFile(files, "d/state").load()
        assert int(state or b"0") in (last, last + 1)
        checkpoint = CheckpointFile(files, "d/checkpoint").load()
        assert (checkpoint.committed_index if last else max(0, checkpoint.committed_index)) in (
            last,
            last + 1,
        )
        assert checkpoint.state_index <= int(state or b"-1")
        if ended:
            assert place > 40
            return
    raise AssertionError("never came to its end")


@pytest.mark.rule("R-11")
def test_records_of_a_failed_sync_are_written_again_before_they_count_as_durable() -> None:
    """The kernel may treat their pages as clean, so that a later sync alone writes nothing."""
    files = MemoryFiles(Random(1))
    log = open_log(files)
    open_term(log, 1)
    batches = grow(log, 5, sync=False)
    for path in (f"{FOLDER}/{name}" for name in files.list(FOLDER) if name.endswith(".log")):
        files._found(path).changes.clear()  # the process reads them, the disk never got them
    again = open_log(files)
    assert again.durable_index == batches[-1].last_index
    files.crash()
    assert open_log(files).end_index == batches[-1].last_index
