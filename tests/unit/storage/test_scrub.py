"""The scrub finds whatever has changed on the disk since it was written, and disturbs nothing."""

import threading
from pathlib import Path
from random import Random

import pytest

from storage.care.scrub import Scrub
from storage.errors import CorruptFile, CorruptLog
from storage.files import OsFileSystem
from storage.format.batch import FIRST_CHAIN, Batch, next_chain
from storage.format.segment_format import SegmentIndex, index_name
from storage.log.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState, HardStateFile
from storage.log.segment import Segment
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import (
    FOLDER,
    check_whole,
    content,
    grow,
    next_batch,
    open_log,
    snapshot,
    sync_log,
    three_terms,
)


def settled_log(files: MemoryFiles) -> Commitlog:
    log = three_terms(files)
    log.settle(log.end_index)
    return log


def scrub(files: MemoryFiles, log: Commitlog, step_bytes: int = 2_000) -> int:
    """Run a whole round; return how many bytes it read."""
    size_bytes = 0
    for step in Scrub(files, log, step_bytes):
        step.run()
        size_bytes += step.size_bytes
    return size_bytes


def test_a_round_reads_every_settled_batch_and_changes_nothing() -> None:
    for step_bytes in (1, 700, 100_000):
        files = MemoryFiles()
        log = settled_log(files)
        before = snapshot(files)
        assert scrub(files, log, step_bytes) == log.end_offset
        assert snapshot(files) == before
    grow(log, 3)
    assert scrub(files, log) == content(log)[-3].offset  # what is not settled may still be cut


def test_every_bit_of_a_settled_log_is_watched() -> None:
    chance = Random(3)
    files = MemoryFiles()
    log = settled_log(files)
    batches = content(log)
    for name in [name for name in files.list(FOLDER) if name.endswith(".log")]:
        path, whole = f"{FOLDER}/{name}", files.read(f"{FOLDER}/{name}")
        for _ in range(40):
            place = chance.randrange(len(whole))
            files.open(path).pwrite(bytes([whole[place] ^ 1 << chance.randrange(8)]), place)
            with pytest.raises(CorruptLog) as caught:
                scrub(files, log)
            at = caught.value.offset
            assert (caught.value.path, at) == (
                path,
                max(b.offset for b in batches if b.offset <= place + int(name[:20])),
            )
            files.open(path).pwrite(whole, 0)
    scrub(files, log)


def test_a_valid_batch_of_another_history_is_found_by_the_chain() -> None:
    files = MemoryFiles()
    log, other = open_log(files), open_log(MemoryFiles())
    other.append(grow(log, 5))
    ours, foreign = next_batch(log, [b"one"]), next_batch(other, [b"two"])
    log.append([ours])
    grow(log, 2)
    log.settle(log.end_index)
    scrub(files, log)
    files.open(f"{FOLDER}/{0:020d}.log").pwrite(foreign.data, ours.offset)
    with pytest.raises(CorruptLog, match="chain"):
        scrub(files, log)


def remove_records(log: Commitlog, act: str) -> None:
    if act == "trim":
        ticket = log.start_trim(log.end_index - 20)
        assert ticket is not None
        ticket.run()
    elif act == "cut":
        log.truncate_after(log.floor_batch_end(log.end_index - 3))
    else:
        log.reset(5_000, 400_000)


@pytest.mark.parametrize("real", [False, True])
def test_a_trim_a_cut_and_a_reset_may_come_in_between(
    real: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = OsFileSystem() if real else MemoryFiles()
    folder = str(tmp_path_factory.mktemp("log")) if real else FOLDER
    log = open_log(files, folder=folder)
    grow(log, 60)
    log.settle(log.end_index - 10)
    for act in ("trim", "cut", "reset"):
        steps = iter(Scrub(files, log, 3_000))
        next(steps).run()
        pending = next(steps)
        remove_records(log, act)
        pending.run()
        for step in steps:
            step.run()
        grow(log, 30)
        log.settle(log.end_index - 10)


@pytest.mark.parametrize("act", ["trim", "cut", "reset"])
def test_the_index_of_a_segment_that_has_left_the_log_is_not_rebuilt(act: str) -> None:
    """A trim removes the index file first, while the segment is still being read."""
    files = MemoryFiles()
    log = open_log(files)
    grow(log, 60)
    log.settle(log.end_index - 10)
    name = index_name(0)
    steps = iter(Scrub(files, log, 3_000))
    first = next(steps)
    files.remove(f"{FOLDER}/{name}")
    first.run()
    remove_records(log, act)
    for step in steps:
        step.run()
    assert files.exists(f"{FOLDER}/{name}") == (act == "cut")  # then the segment is still there


def test_damage_of_an_index_or_of_the_epochs_is_put_right() -> None:
    for damage in ("missing", "flip", "noise"):
        files = MemoryFiles()
        log = settled_log(files)
        whole = content(log)
        before = snapshot(files)
        sealed = [name for name in before if name.endswith(".index")][:-1]
        for name in [*sealed, "epochs"]:
            path, data = f"{FOLDER}/{name}", before[name]
            if damage == "missing":
                files.remove(path)
            elif damage == "flip":
                files.open(path).pwrite(bytes([data[70] ^ 1]), 70)
            else:
                files.open(path).pwrite(Random(1).randbytes(len(data)), 0)
        scrub(files, log)
        scrub(files, log)
        assert snapshot(files) == before
        check_whole(log, whole)


@pytest.mark.parametrize("act", ["", "trim", "reset"])
def test_an_index_is_rebuilt_by_the_steps_that_a_thread_runs(
    monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """The owner's thread is the event loop, and a large segment takes seconds."""
    files = MemoryFiles()
    log = settled_log(files)
    path = f"{FOLDER}/{index_name(0)}"
    whole, _ = files.read(path), log.batch_at(0)  # which maps the index
    files.remove(path)
    scanned_index, runs = Segment.scanned_index, False

    def scanned_by_step(segment: Segment) -> SegmentIndex:
        assert runs
        return scanned_index(segment)

    monkeypatch.setattr(Segment, "scanned_index", scanned_by_step)
    for step in Scrub(files, log, 3_000):
        runs = True
        step.run()
        runs = False
        if act and step.size_bytes > 3_000:  # the index is about to be written
            if act == "reset":
                log.reset(5_000, 400_000)
            elif (ticket := log.start_trim(log.begin_index + 2)) is not None:
                ticket.run()
            act = ""
    assert not act
    if log.begin_index == 0:
        assert files.read(path) == whole
    for index in range(max(log.begin_index, 0), log.end_index + 1):
        assert log.batch_at(index).base_index <= index


def test_a_reader_may_rebuild_an_index_while_the_scrub_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the same temporary file: a rename that finds none would be damage, or end the node."""
    files, rename, renamed = OsFileSystem(), OsFileSystem.rename, list[str]()
    log = open_log(files, folder=str(tmp_path))
    grow(log, 60)
    sync_log(log)
    log.settle(log.end_index)
    whole = content(log)
    log.batch_at(0)  # which maps the index
    path = tmp_path / index_name(0)
    stretch = log.stretch(0, 1)
    assert stretch is not None
    reader = threading.Thread(target=stretch.segment.rebuild_index)
    path.write_bytes(b"noise" * 20)

    def meet(files: OsFileSystem, source: str, target: str) -> None:
        if target == str(path):
            renamed.append(source)
            if len(renamed) == 1:
                reader.start()
                reader.join(0.1)  # it waits for this very write
        rename(files, source, target)

    monkeypatch.setattr(OsFileSystem, "rename", meet)
    for step in Scrub(files, log, 3_000):
        step.run()
    reader.join()
    assert len(renamed) == 2
    check_whole(log, whole)


def test_a_round_over_a_range_leaves_the_index_files_alone() -> None:
    """Each comparison of replicas runs one in a thread of its own: two of them must not write one file."""
    files = MemoryFiles()
    log = settled_log(files)
    log.batch_at(0)  # which maps the index
    files.remove(f"{FOLDER}/{index_name(0)}")
    before = snapshot(files)
    for step in Scrub(files, log, 3_000, until_index=log.end_index):
        step.run()
    assert snapshot(files) == before
    scrub(files, log)
    assert files.exists(f"{FOLDER}/{index_name(0)}")


def test_one_bad_slot_is_written_again_and_two_are_damage() -> None:
    files = MemoryFiles()
    log = settled_log(files)
    vote, checkpoint = HardStateFile(files, f"{FOLDER}/vote"), CheckpointFile(files, f"{FOLDER}/checkpoint")
    vote.load(), checkpoint.load()
    vote.save(HardState(3, "n1"))
    checkpoint.save(Checkpoint(5, 5))
    SnapshotFile(files, f"{FOLDER}/state").save(b"state")
    before = snapshot(files)
    for name in ("vote", "checkpoint", "manifest"):
        path = f"{FOLDER}/{name}"
        for slot in (0, 4096):
            files.open(path).pwrite(b"\xff", slot + 9)
            scrub(files, log)
            assert snapshot(files) == before
        for slot in (0, 4096):
            files.open(path).pwrite(b"\xff", slot + 9)
        with pytest.raises(CorruptFile, match=name):
            scrub(files, log)
        files.open(path).pwrite(before[name], 0)
    files.open(f"{FOLDER}/state").pwrite(b"\xff", 17)
    with pytest.raises(CorruptFile, match="state"):
        scrub(files, log)


def test_an_old_slot_is_brought_up_to_date() -> None:
    """Were the newer slot to rot, an old vote would be believed."""
    files = MemoryFiles()
    log = settled_log(files)
    vote = HardStateFile(files, f"{FOLDER}/vote")
    vote.load()
    vote.save(HardState(3, "n1"))
    old = files.read(f"{FOLDER}/vote")[:4096]
    vote.save(HardState(4, "n2"))
    for slot in (0, 4096):
        files.open(f"{FOLDER}/vote").pwrite(old, slot)
        scrub(files, log)
        files.open(f"{FOLDER}/vote").pwrite(bytes(4096), 4096 - slot)
        assert HardStateFile(files, f"{FOLDER}/vote").load() == HardState(4, "n2")


def chain_of(batches: list[Batch]) -> bytes:
    chain = FIRST_CHAIN
    for batch in batches:
        data = memoryview(batch.data)
        chain = next_chain(chain, data, data[128 : len(data) - len(batch.body)])
    return chain


def chain_at(log: Commitlog, index: int) -> bytes:
    return log.batch_at(index).header.chain


def test_the_chain_at_an_index_proves_all_before_it() -> None:
    files = MemoryFiles()
    log = settled_log(files)
    batches = content(log)
    for place, batch in enumerate(batches):
        expected = chain_of(batches[: place + 1])
        assert {chain_at(log, batch.base_index), chain_at(log, batch.last_index)} == {expected}
        part = Scrub(files, log, from_index=batches[place // 2].base_index, until_index=batch.last_index)
        for step in part:
            step.run()
        assert part.chain == expected
    for index in (-1, log.end_index + 1):
        with pytest.raises(IndexError):
            chain_at(log, index)
    other = open_log(MemoryFiles())
    other.append(batches[:20])
    changed = grow(other, 20, Random(77))
    shared = batches[19].last_index
    assert chain_at(log, shared) == chain_at(other, shared)
    assert chain_at(log, changed[3].base_index) != chain_at(other, changed[3].base_index)
    sync_log(other)
    assert list(Scrub(files, other, from_index=0, until_index=shared)) == []  # nothing is settled there


def test_a_damaged_header_has_no_chain() -> None:
    files = MemoryFiles()
    log = settled_log(files)
    log.close()
    log = open_log(files)
    files.open(f"{FOLDER}/{0:020d}.log").pwrite(b"\xff", 75)
    with pytest.raises(CorruptLog, match="checksum of the header"):
        chain_at(log, 0)
