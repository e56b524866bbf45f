"""The log as its owner sees it: append, sync, read, cut, and open again."""

from random import Random

import pytest

from storage.errors import InvariantError, StorageFull, SyncFailed
from storage.files import OsFileSystem
from storage.format.batch import FIRST_CHAIN, Batch
from storage.log.commitlog import NO_INDEX, Commitlog, CommitlogConfig
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import (
    DURABLE_LOAD_OPERATIONS,
    FOLDER,
    LOG_ID,
    SMALL,
    check_whole,
    content,
    epochs_on_disk,
    grow,
    next_batch,
    open_log,
    open_term,
    snapshot,
    sync_log,
)


def test_a_new_log_is_empty() -> None:
    log = open_log(MemoryFiles())
    check_whole(log, [])
    assert (log.next_index, log.end_offset, log.durable_index) == (0, 0, NO_INDEX)
    assert (log.last_chain, log.epochs, log.term_at(NO_INDEX)) == (FIRST_CHAIN, (), 0)
    assert log.start_sync() is None
    assert log.first_index_at_or_after(0) is None
    for index in (NO_INDEX, 0):
        with pytest.raises(IndexError):
            log.batch_at(index)


@pytest.mark.parametrize("seed", range(5))
def test_appended_records_are_read_and_found_again(seed: int) -> None:
    files, chance = MemoryFiles(), Random(seed)
    log, expected = open_log(files), []
    for term in (1, 2, 5):
        expected.append(open_term(log, term))
        expected += grow(log, 40, chance)
    check_whole(log, expected)
    assert len([name for name in files.list(FOLDER) if name.endswith(".log")]) > 3
    again = open_log(files, committed_index=log.end_index)
    check_whole(again, expected)
    assert again.durable_index == again.end_index
    assert again.epochs == log.epochs


def test_a_real_file_system_gives_the_same(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("log") / "default")
    log, memory = open_log(OsFileSystem(), folder=folder), MemoryFiles()
    other = open_log(memory)
    for each in (log, other):
        expected = [open_term(each, 1), *grow(each, 60, Random(1))]
        each.settle(each.end_index)
        check_whole(each, expected)
        each.close()
    check_whole(open_log(OsFileSystem(), folder=folder, committed_index=10), content(open_log(memory)))
    files = OsFileSystem()
    assert {name: files.read(f"{folder}/{name}") for name in files.list(folder)} == snapshot(memory)


def test_reads_stop_at_bytes_and_index_but_give_one_batch() -> None:
    for tail_cache_bytes in (0, 1 << 20):
        config = CommitlogConfig(tail_cache_bytes=tail_cache_bytes)
        log = open_log(MemoryFiles(), config)
        batches = grow(log, 10)
        sizes = [batch.size_bytes for batch in batches]
        middle = batches[3]
        assert log.read_batches(middle.last_index, 0) == [middle]
        assert log.read_batches(middle.base_index, sizes[3] + sizes[4]) == batches[3:5]
        assert log.read_batches(middle.base_index, sizes[3] + sizes[4] - 1) == [middle]
        assert log.read_batches(0, 1 << 20) == batches
        assert log.read_batches(0, 1 << 20, until_index=middle.base_index) == batches[:4]
        assert log.read_batches(middle.base_index, 1 << 20, until_index=0) == [middle]


def test_settled_batches_are_views_and_others_are_not(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("log") / "default")
    config = CommitlogConfig(tail_cache_bytes=0)
    log = open_log(OsFileSystem(), config, folder=folder)
    batches = grow(log, 3)
    log.settle(batches[1].last_index)
    first, second = log.read_batches(0, batches[0].size_bytes + batches[1].size_bytes)
    assert isinstance(first.data, memoryview)
    assert first.data.obj is second.data.obj
    assert type(first.data.obj).__name__ == "mmap"
    unsettled = log.batch_at(batches[2].base_index)
    assert isinstance(unsettled.data, memoryview)
    assert isinstance(unsettled.data.obj, bytes)
    log.truncate_after(batches[1].last_index)
    grow(log, 50, Random(3))
    assert bytes(first.data) == bytes(batches[0].data)  # views outlive growth and cuts behind them
    log.close()
    assert bytes(second.data) == bytes(batches[1].data)


def test_settled_batches_are_read_later_though_they_leave_the_log_meanwhile(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    log = open_log(OsFileSystem(), folder=str(tmp_path_factory.mktemp("log") / "default"))
    batches = grow(log, 60)
    assert log.stored_batches(0, 3_000, log.end_index) is None  # may be truncated
    log.settle(batches[29].last_index)
    places, at = [], 0
    while at < 30:
        place = log.stored_batches(batches[at].last_index, 3_000, log.end_index)
        assert place is not None
        found = place.read()
        assert found == batches[at : at + len(found)]
        assert place.size_bytes == sum(batch.size_bytes for batch in found) <= 3_000
        places.append(place)
        at += len(found)
    assert at == 30
    assert log.stored_batches(batches[30].base_index, 3_000, log.end_index) is None
    assert log.stored_batches(log.end_index, 3_000, log.end_index) is None  # in memory
    first_two = log.stored_batches(0, 1 << 20, batches[1].base_index)
    assert first_two is not None
    assert first_two.read() == batches[:2]
    ticket = log.start_trim(batches[20].base_index)
    assert ticket is not None
    ticket.run()
    log.close()
    assert [batch for each in places for batch in each.read()] == batches[:30]


def test_the_entries_of_batches_are_found_without_reading_them() -> None:
    files = MemoryFiles()
    log = open_log(files)
    batches = [open_term(log, 1), *grow(log, 60)]
    again = open_log(files, committed_index=log.end_index)  # its index is in mapped files
    for each in (log, again):
        before = files.bytes_read
        found = each.entries(batches[3].last_index, batches[50].base_index)
        assert [(entry.base_index, entry.last_index) for entry in found] == [
            (batch.base_index, batch.last_index) for batch in batches[3:51]
        ]
        assert [entry.is_control for entry in each.entries(0, each.end_index)] == [True, *[False] * 60]
        assert files.bytes_read == before
        for wrong in ((-1, 3), (0, each.end_index + 1)):
            with pytest.raises(IndexError):
                each.entries(*wrong)


@pytest.mark.rule("D-17")
def test_a_log_holds_only_the_very_same_batch() -> None:
    log, other = open_log(MemoryFiles()), open_log(MemoryFiles())
    batch = grow(log, 1)[0]
    assert log.holds(batch)
    assert not log.holds(next_batch(other, [b"another content"]))
    assert not log.holds(next_batch(other, [b"v"], term=1))
    assert not log.holds(next_batch(log))
    reset = open_log(MemoryFiles())
    reset.reset(100, 8_000)
    grow(reset, 1)
    assert not reset.holds(batch)


@pytest.mark.rule("R-06")
def test_only_a_batch_that_follows_is_appended() -> None:
    log, other = open_log(MemoryFiles()), open_log(MemoryFiles())
    open_term(log, 3)
    good = next_batch(log)
    stale = next_batch(log, term=2)
    grow(other, 1)
    foreign = next_batch(other, term=3)
    other.append([foreign])
    for batch in (stale, foreign, next_batch(other, term=3)):
        with pytest.raises(InvariantError):
            log.append([batch])
    with pytest.raises(InvariantError):
        log.append([good, good])
    assert log.end_index == 0
    log.append([good])
    assert log.end_index == 1


def test_the_same_place_with_another_history_does_not_follow() -> None:
    """Equal index, offset and term are not enough: the hash chain distinguishes two histories."""
    log, other = open_log(MemoryFiles()), open_log(MemoryFiles())
    log.append([next_batch(log, [b"one"])])
    other.append([next_batch(other, [b"two"])])
    assert log.end_offset == other.end_offset
    with pytest.raises(InvariantError, match="history"):
        log.append([next_batch(other)])


@pytest.mark.rule("R-11")
def test_only_what_was_synced_is_durable() -> None:
    files = MemoryFiles(Random(1))
    log = open_log(files)
    first = grow(log, 3)
    ticket = None
    log.append([next_batch(log)])
    assert log.durable_index == first[-1].last_index
    ticket = log.start_sync()
    assert ticket is not None
    log.append([next_batch(log)])
    assert log.durable_index == first[-1].last_index
    ticket.run()
    log.finish_sync(ticket)
    assert log.durable_index == first[-1].last_index + 1 == log.end_index - 1
    files.syncs_fail = True
    ticket = log.start_sync()
    assert ticket is not None
    with pytest.raises(SyncFailed):
        ticket.run()
    assert log.durable_index == log.end_index - 1


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("seed", range(40))
def test_a_power_cut_takes_nothing_that_was_durable(seed: int) -> None:
    chance = Random(seed)
    files = MemoryFiles(chance)
    log, expected = open_log(files), []
    durable: list[Batch] = []
    for _ in range(chance.randint(1, 60)):
        expected += grow(log, 1, chance, sync=False)
        if chance.random() < 0.3:
            sync_log(log)
            durable = list(expected)
    files.crash()
    again = open_log(files, committed_index=durable[-1].last_index if durable else NO_INDEX)
    kept = content(again)
    assert kept == expected[: len(kept)]
    assert len(kept) >= len(durable)
    before = snapshot(files)
    open_log(files)
    assert snapshot(files) == before


def test_a_sync_that_began_before_a_cut_proves_nothing() -> None:
    log = open_log(MemoryFiles())
    kept = grow(log, 2)
    grow(log, 2, sync=False)
    ticket = log.start_sync()
    assert ticket is not None
    log.truncate_after(kept[0].last_index)
    log.append([next_batch(log)])
    ticket.run()
    log.finish_sync(ticket)
    assert log.durable_index == kept[0].last_index


@pytest.mark.rule("R-07")
def test_a_segment_written_during_a_sync_is_not_durable_after_a_truncation() -> None:
    """It ends before the durable point that the log had before an earlier truncation."""
    files = MemoryFiles(Random(1))
    config = CommitlogConfig(segment_max_bytes=1_000, mark_interval_bytes=1)
    log = open_log(files, config)
    first = open_term(log, 1)
    grow(log, 12)
    log.truncate_after(first.last_index)
    grow(log, 3, sync=False)
    ticket = log.start_sync()
    assert ticket is not None
    ticket.run()
    later = grow(log, 6, sync=False)
    log.finish_sync(ticket)
    log.truncate_after(later[3].last_index)
    assert log.durable_index == later[3].last_index
    files.crash()
    assert open_log(files, config).end_index == later[3].last_index


def test_settled_records_are_never_truncated() -> None:
    log = open_log(MemoryFiles())
    batches = grow(log, 5)
    log.settle(batches[2].last_index)
    with pytest.raises(InvariantError, match="committed"):
        log.truncate_after(batches[1].last_index)
    check_whole(log, batches)
    log.truncate_after(batches[2].last_index)
    check_whole(log, batches[:3])


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_log_is_the_log_that_never_had_the_tail(seed: int) -> None:
    chance = Random(seed)
    files = MemoryFiles()
    log, expected = open_log(files), []
    for term in (1, 2, 3):
        expected.append(open_term(log, term, f"n{term}"))
        expected += grow(log, chance.randint(1, 30), chance, sync=chance.random() < 0.5)
    keep = chance.randrange(len(expected) + 1)
    log.truncate_after(expected[keep - 1].last_index if keep else NO_INDEX)
    expected = expected[:keep]
    check_whole(log, expected)
    assert log.durable_index == log.end_index
    assert [epoch.term for epoch in log.epochs] == [b.term for b in expected if b.is_control]
    check_whole(open_log(files), expected)
    expected += [open_term(log, 4), *grow(log, 10, chance)]
    check_whole(log, expected)
    files.crash()
    check_whole(open_log(files), expected)
    assert [term for term, _, _ in epochs_on_disk(files)] == [b.term for b in expected if b.is_control]


def test_a_cut_within_a_batch_or_before_the_begin_is_refused() -> None:
    log = open_log(MemoryFiles())
    log.append([next_batch(log, [b"a", b"b"])])
    with pytest.raises(InvariantError, match="within"):
        log.truncate_after(0)
    log.reset(100, 8_000)
    grow(log, 2)
    with pytest.raises(InvariantError, match="begin"):
        log.truncate_after(50)
    log.truncate_after(99)
    assert (log.next_index, log.end_offset) == (100, 8_000)


@pytest.mark.rule("D-12")
def test_a_reset_log_begins_at_the_given_place() -> None:
    files = MemoryFiles()
    log = open_log(files)
    open_term(log, 1)
    grow(log, 30)
    log.settle(log.end_index)
    log.reset(500, 40_000)
    assert (log.next_index, log.end_offset, log.durable_index, log.epochs) == (500, 40_000, NO_INDEX, ())
    check_whole(log, [])
    again = open_log(files)
    assert (again.next_index, again.end_offset) == (500, 40_000)
    batches = grow(again, 30)
    check_whole(open_log(files), batches)
    assert batches[0].base_index == 500
    assert batches[0].offset == 40_000


@pytest.mark.rule("A-03")
@pytest.mark.parametrize("damage", ["missing", "noise", "cut"])
def test_the_epoch_file_comes_from_the_log_alone(damage: str) -> None:
    files, others = MemoryFiles(), MemoryFiles()
    log, other = open_log(files), open_log(others, CommitlogConfig())
    for term in (1, 4, 9):
        batches = [open_term(log, term, "nö"), *grow(log, 20)]
        for batch in batches:  # one by one at one node, in one go at the other
            other.append([batch])
    sync_log(other)
    path = f"{FOLDER}/epochs"
    whole = files.read(path)
    assert whole == others.read(path)
    assert [(term, leader) for term, leader, _ in epochs_on_disk(files)] == [(1, "nö"), (4, "nö"), (9, "nö")]
    if damage == "missing":
        files.remove(path)
    else:
        file = files.open(path)
        file.truncate(len(whole) // 2)
        if damage == "noise":
            file.pwrite(bytes(len(whole) // 2), len(whole) // 2)
    assert open_log(files).epochs == log.epochs
    assert files.read(path) == whole


def test_records_are_found_by_time() -> None:
    log = open_log(MemoryFiles())
    log.append([next_batch(log, [b"a", b"b"], timestamp_ms=1_000)])
    log.append([next_batch(log, [b"c", b"d"], timestamp_ms=2_000, timestamps_ms=[5_000, None])])
    for time in range(3_000, 7_000, 100):
        log.append([next_batch(log, [b"e" * 300] * 2, timestamp_ms=time)])
    log.append([next_batch(log, [b"f", b"g"], timestamp_ms=7_000, timestamps_ms=[10, 9_000])])
    expected = {0: 0, 1_000: 0, 1_001: 2, 5_000: 2, 5_001: 4 + 2 * 21, 6_900: 82, 6_901: 85, 9_000: 85}
    for each in (log, log):
        assert {ms: each.first_index_at_or_after(ms) for ms in expected} == expected
        assert each.first_index_at_or_after(9_001) is None
        later = {
            (0, 3): 3,
            (5_000, 3): 4 + 2 * 20,
            (6_900, 83): 83,
            (11, 84): 85,
            (6_900, 84): 85,
            (9_000, 85): 85,
        }
        found = {(ms, start): each.first_index_at_or_after(ms, start) for ms, start in later}
        assert found == later
        assert each.first_index_at_or_after(9_000, 86) is None


def test_a_full_disk_stores_nothing_and_later_continues() -> None:
    files = MemoryFiles(Random(5))
    log = open_log(files)
    kept = grow(log, 3)
    batch = next_batch(log, [b"x" * 500] * 3)
    for room in range(0, batch.size_bytes * 2, 300):
        follower = open_log(MemoryFiles())
        follower.append(kept)
        follower.append([batch])
        second = next_batch(follower, [b"y" * 500] * 2)
        files.space_bytes = sum(map(len, snapshot(files).values())) + room
        if room < batch.size_bytes + second.size_bytes:
            with pytest.raises(StorageFull):
                log.append([batch, second])
            check_whole(log, kept)
            files.crash()
            log = open_log(files, committed_index=kept[-1].last_index)
            check_whole(log, kept)
    files.space_bytes = None
    log.append([batch])
    sync_log(log)
    check_whole(open_log(files), [*kept, batch])


def test_a_full_disk_holds_up_the_durable_point_but_no_sync() -> None:
    """Index, epochs and durable point wait for room; what was written is durable all the same."""
    files = MemoryFiles(Random(6))
    log = open_log(files)
    batches = [open_term(log, 1)]
    while log.end_offset < 2 * SMALL.mark_interval_bytes:
        batches += grow(log, 1, sync=False)
    files.space_bytes = sum(map(len, snapshot(files).values()))
    sync_log(log)
    assert log.durable_index == log.end_index
    assert epochs_on_disk(files) == []
    with pytest.raises(StorageFull):
        log.append([next_batch(log, [b"x" * 5_000])])  # its undoing needs no room
    files.crash()
    check_whole(open_log(files, committed_index=batches[-1].last_index), batches)
    files.space_bytes = None
    batches += grow(log, 1)
    assert epochs_on_disk(files) == [(1, "n1", 0)]
    check_whole(open_log(files), batches)


def test_a_batch_larger_than_a_segment_has_one_of_its_own() -> None:
    files = MemoryFiles()
    log = open_log(files)
    batches = [*grow(log, 2)]
    for _ in range(2):
        batches.append(next_batch(log, [b"x" * 9_000]))
        log.append(batches[-1:])
    batches += grow(log, 2)
    check_whole(open_log(files), batches)
    assert len([name for name in files.list(FOLDER) if name.endswith(".log")]) == 4


def test_many_batches_in_one_append_roll_on_their_way() -> None:
    source, files = open_log(MemoryFiles(), CommitlogConfig()), MemoryFiles()
    batches = grow(source, 100)
    log = open_log(files)
    log.append(batches)
    sync_log(log)
    check_whole(log, batches)
    files.crash()
    check_whole(open_log(files), batches)


def test_a_clean_stop_leaves_nothing_to_do() -> None:
    files = MemoryFiles()
    log = open_log(files)
    open_term(log, 1)
    batches = content(log) + grow(log, 30, sync=False)
    log.close()
    before, operations = snapshot(files), files.operations
    check_whole(open_log(files), batches)
    assert (snapshot(files), files.operations) == (before, operations + DURABLE_LOAD_OPERATIONS)


def test_sizes_must_be_sizes() -> None:
    with pytest.raises(ValueError, match="positive"):
        CommitlogConfig(segment_max_bytes=0)
    assert SMALL.segment_max_bytes < CommitlogConfig().segment_max_bytes
    assert Commitlog.open(MemoryFiles(), FOLDER, log_id=LOG_ID).end_index == NO_INDEX


@pytest.mark.rule("R-07")
def test_a_log_that_was_reset_has_settled_nothing() -> None:
    """An unclean election may give other records to the places of settled ones."""
    log = open_log(MemoryFiles())
    grow(log, 3)
    log.settle(log.end_index)
    log.reset(0, 0)
    assert log.settled_index == NO_INDEX
    first, _ = grow(log, 2)
    log.truncate_after(first.last_index)
    assert log.end_index == first.last_index
