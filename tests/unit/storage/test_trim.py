"""A trimmed log: it begins later, and is the same log in all else, whatever comes in between."""

from pathlib import Path
from random import Random

import pytest

from storage.errors import InvariantError, StorageFull
from storage.files import OsFileSystem
from storage.format.batch import Batch
from storage.format.epoch_file import Epoch
from storage.format.segment_format import ENTRY_SIZE_BYTES, index_name
from storage.log.commitlog import NO_INDEX, Commitlog, CommitlogConfig, SyncTicket, TrimTicket
from tests.support.memory_files import MemoryFiles, PowerCut
from tests.unit.storage.support import (
    FOLDER,
    check_whole,
    content,
    crash_everywhere,
    expected_content,
    grow,
    next_batch,
    open_log,
    open_term,
    snapshot,
    sync_log,
    three_terms,
)


def trim(log: Commitlog, index: int) -> None:
    ticket = log.start_trim(index)
    assert ticket is not None
    ticket.run()


def epochs_of(batches: list[Batch], base_index: int) -> list[tuple[int, int]]:
    """(term, start index) of the epochs that hold or follow `base_index`."""
    starts = [(batch.term, batch.base_index) for batch in batches if batch.is_control]
    return [
        start
        for place, start in enumerate(starts)
        if place + 1 == len(starts) or starts[place + 1][1] > base_index
    ]


def check_trimmed(log: Commitlog, whole: list[Batch], first: int) -> None:
    check_whole(log, whole[first:])
    base = whole[first].base_index
    assert [(epoch.term, epoch.start_index) for epoch in log.epochs] == epochs_of(whole, base)
    if first:
        for ask in (log.batch_at, log.term_at):
            with pytest.raises(IndexError):
                ask(base - 1)
        assert not log.holds(whole[first - 1])
        assert log.floor_batch_end(base - 1) == NO_INDEX


@pytest.mark.parametrize("first", [1, 7, 14, 15, 16, 29, 30, 31, 44])
def test_a_trimmed_log_is_the_rest_of_itself_before_and_after_a_restart(first: int) -> None:
    whole = expected_content()
    files = MemoryFiles(Random(first))
    log = three_terms(files)
    log.settle(log.end_index)
    trim(log, whole[first].last_index)
    check_trimmed(log, whole, first)
    names = [name for name in files.list(FOLDER) if name.endswith((".log", ".index"))]
    assert all(int(name[:20]) == int(names[0][:20]) or int(name[:20]) > whole[first].offset for name in names)
    files.crash()
    log = open_log(files, committed_index=whole[-1].last_index)
    check_trimmed(log, whole, first)
    whole = [*whole, open_term(log, 4), *grow(log, 20, Random(4))]
    check_trimmed(log, whole, first)
    files.crash()
    check_trimmed(open_log(files), whole, first)


def test_a_trim_stops_at_the_newest_settled_batch() -> None:
    log = three_terms(MemoryFiles())
    whole = content(log)
    assert log.start_trim(whole[20].base_index) is None  # nothing is settled
    log.settle(whole[10].last_index)
    trim(log, log.end_index)
    check_trimmed(log, whole, 10)
    for index in (NO_INDEX, 0, whole[10].base_index, whole[10].last_index, log.end_index):
        assert log.start_trim(index) is None
    assert open_log(MemoryFiles()).start_trim(5) is None


@pytest.mark.parametrize("damage", ["epochs", "index", "both"])
def test_small_files_that_a_trimmed_log_lost_are_rebuilt(damage: str) -> None:
    whole = expected_content()
    for first in (4, 15, 20, 35):
        files = MemoryFiles()
        log = three_terms(files)
        log.settle(log.end_index)
        trim(log, whole[first].base_index)
        log.close()
        epochs = files.read(f"{FOLDER}/epochs")
        for name in files.list(FOLDER):
            if name == "epochs" and damage != "index":
                files.remove(f"{FOLDER}/{name}")
            if name.endswith(".index") and damage != "epochs":
                files.remove(f"{FOLDER}/{name}")
        check_trimmed(open_log(files), whole, first)
        assert files.read(f"{FOLDER}/epochs") == epochs


def test_damage_in_trimmed_records_is_ignored() -> None:
    whole = expected_content()
    files = MemoryFiles()
    log = three_terms(files)
    log.settle(log.end_index)
    first = next(k for k, b in enumerate(whole) if k > 3 and b.offset not in range(0, 600))
    trim(log, whole[first].base_index)
    log.close()
    path = f"{FOLDER}/{0:020d}.log"
    files.open(path).pwrite(b"\xff" * whole[first].offset, 0)
    files.remove(f"{FOLDER}/{0:020d}.index")
    check_trimmed(open_log(files), whole, first)
    check_trimmed(open_log(files), whole, first)


@pytest.mark.parametrize("synced", [True, False])
@pytest.mark.parametrize("first", [1, 20, 44])
def test_a_crash_within_a_trim_leaves_the_log_before_or_after_it(first: int, synced: bool) -> None:
    whole = expected_content()

    def work(log: Commitlog) -> None:
        log.settle(log.end_index)
        trim(log, whole[first].base_index)

    def check(files: MemoryFiles, done: bool) -> None:
        log = open_log(files)
        held = content(log)
        if held and held[0].base_index > 0:
            check_trimmed(log, whole[: first + len(held)], first)
        else:
            assert not done
            assert held == whole[: len(held)]
        assert len(held) >= len(whole) - first or not synced
        log.settle(log.end_index)
        new = grow(log, 2)
        if len(held) > 1:
            trim(log, held[-1].last_index)
        files.crash()
        check_whole(open_log(files), held[-1:] + new)

    places = crash_everywhere(lambda files: three_terms(files, synced=synced), work, check)
    assert places >= 4


def test_a_sync_on_its_way_neither_loses_a_trim_nor_undoes_it() -> None:
    whole = expected_content()
    for order in range(3):
        files = MemoryFiles(Random(order))
        log = three_terms(files, synced=False)
        log.settle(log.end_index)
        sync = log.start_sync()
        assert sync is not None
        ticket = log.start_trim(whole[40].base_index)
        assert ticket is not None
        more = grow(log, 3, sync=False)
        later = log.start_sync()
        assert later is not None
        runs: tuple[SyncTicket | TrimTicket, ...] = [
            (sync, ticket, later),
            (ticket, sync, later),
            (sync, later, ticket),
        ][order]
        for each in runs:
            each.run()
        log.finish_sync(sync)
        log.finish_sync(later)
        assert log.durable_index == log.end_index
        check_trimmed(log, whole + more, 40)
        files.crash()
        check_trimmed(open_log(files, committed_index=log.end_index), whole + more, 40)
        assert len([name for name in files.list(FOLDER) if name.endswith(".index")]) <= len(
            [name for name in files.list(FOLDER) if name.endswith(".log")]
        )


@pytest.mark.parametrize("change", ["sync", "earlier trim", "cut"])
def test_the_file_keeps_epochs_until_the_begin_after_them_is_recorded(change: str) -> None:
    """A power cut before that leaves the earlier begin, and with it records of those epochs."""
    files = MemoryFiles()
    log = three_terms(files)
    whole = content(log)
    log.settle(log.end_index)
    earlier = log.start_trim(whole[4].base_index)
    assert log.start_trim(whole[-1].base_index) is not None  # it does not run
    assert len(log.epochs) == 1
    if change == "sync":
        whole += [open_term(log, 4)]
    elif change == "earlier trim":
        assert earlier is not None
        earlier.run()
    else:
        whole += grow(log, 3)
        log.truncate_after(whole[-2].last_index)
        whole = whole[:-1]
    sync_log(log)
    files.crash()
    log = open_log(files)
    check_trimmed(log, whole, 4 if change == "earlier trim" else 0)


def test_a_crash_within_a_truncation_that_overtook_the_removal_of_trimmed_segments() -> None:
    whole = expected_content()

    def trimmed(files: MemoryFiles) -> Commitlog:
        log = three_terms(files)
        log.settle(whole[-3].last_index)
        ticket = log.start_trim(whole[-3].base_index)
        assert ticket is not None
        ticket.move_begin()
        assert ticket.remove_oldest()  # there are more
        return log

    def check(files: MemoryFiles, done: bool) -> None:
        log = open_log(files)
        held = content(log)
        assert held == whole[-3:-1] or (held == whole[-3:] and not done)
        check_trimmed(log, whole[:-1] if len(held) == 2 else whole, len(whole) - 3)

    assert crash_everywhere(trimmed, lambda log: log.truncate_after(whole[-2].last_index), check) > 5


def test_trims_cuts_and_resets_may_follow_each_other_before_they_ran() -> None:
    whole = expected_content()
    files = MemoryFiles()
    log = three_terms(files)
    log.settle(whole[20].last_index)
    first = log.start_trim(whole[10].base_index)
    second = log.start_trim(whole[17].base_index)
    assert first is not None
    assert second is not None
    second.run()
    log.truncate_after(whole[25].last_index)
    first.run()
    check_trimmed(log, whole[:26], 17)
    files.crash()
    check_trimmed(open_log(files), whole[:26], 17)
    log = open_log(files)
    log.settle(log.end_index)
    third = log.start_trim(whole[20].base_index)
    assert third is not None
    log.reset(900, 80_000)
    third.run()
    new = grow(log, 3)
    check_whole(log, new)
    files.crash()
    check_whole(open_log(files), new)


@pytest.mark.parametrize("first", [20, 15])
def test_a_trimmed_log_may_be_cut_to_nothing(first: int) -> None:
    """After a restart with an older checkpoint more may be cut than was settled before."""
    whole = expected_content()
    begin = whole[first]
    assert begin.term == 2
    for place in range(40):
        files = MemoryFiles(Random(place))
        log = three_terms(files)
        log.settle(log.end_index)
        trim(log, begin.base_index)
        log = open_log(files)
        files.power_cut_at = files.operations + place
        try:
            log.truncate_after(NO_INDEX)
            done = True
        except PowerCut:
            done = False
        files.crash()
        log = open_log(files)
        held = content(log)
        assert held == [] or (held == whole[first:] and not done)
        if not held:
            assert (log.next_index, log.end_offset) == (begin.base_index, begin.offset)
            assert log.last_position == (2, begin.base_index - 1)
            assert [epoch.term for epoch in log.epochs] == ([2] if first == 20 else [])
            log.append([begin])
            assert [epoch.term for epoch in log.epochs] == [2]
            with pytest.raises(InvariantError):
                log.append([begin])


def test_times_are_found_in_what_is_left() -> None:
    """The index's running maximum may stem from a batch that was trimmed."""
    log = open_log(MemoryFiles())
    log.append([next_batch(log, [b"late"], timestamp_ms=9_000)])
    for time in (1_000, 2_000, 9_500, 3_000):
        log.append([next_batch(log, [b"x"], timestamp_ms=time)])
    sync_log(log)
    log.settle(log.end_index)
    trim(log, 1)
    expected = {0: 1, 1_000: 1, 1_500: 2, 2_500: 3, 9_500: 3}
    assert {ms: log.first_index_at_or_after(ms) for ms in expected} == expected
    assert log.first_index_at_or_after(9_501) is None
    trim(log, 4)
    assert log.first_index_at_or_after(3_001) is None


def test_a_full_disk_delays_a_trim_at_most() -> None:
    whole = expected_content()
    files = MemoryFiles()
    log = three_terms(files)
    log.settle(log.end_index)
    ticket = log.start_trim(whole[40].base_index)
    assert ticket is not None
    files.space_bytes = 0
    ticket.run()  # the slots of the manifest are there already; the epoch file waits
    check_trimmed(log, whole, 40)
    check_trimmed(open_log(files), whole, 40)
    files.space_bytes = None
    sync_log(log)
    before = snapshot(files)
    check_trimmed(open_log(files), whole, 40)
    assert snapshot(files) == before


def test_the_epoch_that_holds_the_begin_keeps_its_true_start() -> None:
    log = three_terms(MemoryFiles())
    whole = content(log)
    log.settle(log.end_index)
    trim(log, whole[20].base_index)
    opening = next(batch for batch in whole if batch.term == 2)
    assert log.epochs[0] == Epoch(2, 2, "n2", opening.base_index, opening.offset, opening.timestamp_ms)


def test_a_trim_that_met_a_full_disk_may_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = expected_content()
    files = MemoryFiles()
    log = three_terms(files)
    log.settle(log.end_index)
    ticket = log.start_trim(whole[40].base_index)
    assert ticket is not None
    with monkeypatch.context() as patch:
        patch.setattr(
            "storage.log.slots.SlotFile.save",
            lambda *_: (_ for _ in ()).throw(StorageFull("manifest", "write", "full")),
        )
        with pytest.raises(StorageFull):
            ticket.run()
    more = grow(log, 2)
    ticket.run()
    files.crash()
    check_trimmed(open_log(files), whole + more, 40)


@pytest.mark.parametrize("segment_max_bytes", [1_000, 1_000_000])
def test_a_sync_that_began_before_a_trim_does_not_move_the_durable_point_back(segment_max_bytes: int) -> None:
    """The trim has made durable what comes before the new beginning."""
    files = MemoryFiles(Random(1))
    config = CommitlogConfig(segment_max_bytes=segment_max_bytes, mark_interval_bytes=1)
    log = open_log(files, config)
    open_term(log, 1)
    sync = log.start_sync()
    assert sync is not None
    assert sync.mark is not None
    batches = grow(log, 9, sync=False)
    log.settle(log.end_index)
    trim(log, batches[6].base_index)
    sync.run()
    log.finish_sync(sync)
    files.crash()
    assert open_log(files, config).first_index == batches[6].base_index


def test_an_index_that_is_damaged_while_it_is_in_use_is_rebuilt_by_a_trim(tmp_path: Path) -> None:
    """The file is mapped, and the first read has verified its order: each row of it may change since."""
    files, row, rows = OsFileSystem(), 0, 1
    while row < rows:
        folder = f"{tmp_path}/{row}"
        log = open_log(files, folder=folder)
        grow(log, 30)
        log.settle(log.end_index)
        whole = content(log)
        path = Path(folder) / index_name(0)
        rows = path.stat().st_size // ENTRY_SIZE_BYTES
        with path.open("r+b") as file:
            file.seek(row * ENTRY_SIZE_BYTES + 9)
            file.write(b"\x7f" * 6)  # of the offset
        trim(log, whole[rows // 2].base_index)
        check_whole(log, whole[rows // 2 :])
        log.close()
        row += 1
    assert rows > 5
