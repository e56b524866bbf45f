"""Logs for the tests of storage: batches that follow, and what a log must look like."""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from random import Random
from typing import Any

from storage.file_system import FileSystem
from storage.format.batch import AppendMark, Batch, stamp
from storage.format.epoch_file import decode_epochs
from storage.format.records import RecordColumns, encode_body, encode_control
from storage.log.commitlog import NO_INDEX, Commitlog, CommitlogConfig
from tests.support.memory_files import MemoryFiles, PowerCut

LOG_ID = 7
FOLDER = "/data/logs/default"
DURABLE_LOAD_OPERATIONS = 5  # of one slot file: each slot written and synced, then its folder
SMALL = CommitlogConfig(segment_max_bytes=8_000, mark_interval_bytes=3_000, tail_cache_bytes=2_000)


def open_log(
    files: FileSystem, config: CommitlogConfig = SMALL, committed_index: int = NO_INDEX, folder: str = FOLDER
) -> Commitlog:
    return Commitlog.open(files, folder, log_id=LOG_ID, config=config, committed_index=committed_index)


def next_batch(
    log: Commitlog,
    values: Sequence[bytes] = (b"v",),
    *,
    term: int | None = None,
    control: dict[str, Any] | None = None,
    timestamp_ms: int = 1_000,
    timestamps_ms: Sequence[int | None] = (),
    marks: Sequence[AppendMark] = (),
) -> Batch:
    """The batch that a leader would stamp next: with the log's last term, unless another is given."""
    records = RecordColumns()
    for place, value in enumerate(values):
        records.add(value, timestamp_ms=timestamps_ms[place] if timestamps_ms else None)
    return stamp(
        encode_body(records) if control is None else encode_control(control),
        log_id=LOG_ID,
        base_index=log.next_index,
        term=log.last_term if term is None else term,
        timestamp_ms=timestamp_ms,
        offset=log.end_offset,
        previous_chain=log.last_chain,
        control=control is not None,
        marks=marks,
    )


def open_term(log: Commitlog, term: int, leader: str = "n1") -> Batch:
    batch = next_batch(log, term=term, control={"kind": "term", "leader": leader}, timestamp_ms=term * 1_000)
    log.append([batch])
    return batch


def grow(log: Commitlog, count: int, chance: Random | None = None, *, sync: bool = True) -> list[Batch]:
    """Append `count` batches of 1 to 3 records."""
    chance = chance or Random(0)
    batches = []
    for _ in range(count):
        values = [chance.randbytes(chance.randrange(300)) for _ in range(chance.randint(1, 3))]
        batches.append(next_batch(log, values))
        log.append(batches[-1:])
    if sync:
        sync_log(log)
    return batches


def sync_log(log: Commitlog) -> None:
    ticket = log.start_sync()
    if ticket is not None:
        ticket.run()
        log.finish_sync(ticket)


def content(log: Commitlog) -> list[Batch]:
    """Every batch of the log, as its readers get them."""
    batches: list[Batch] = []
    while log.begin_index != NO_INDEX and (not batches or batches[-1].last_index < log.end_index):
        start = log.begin_index if not batches else batches[-1].next_index
        batches += log.read_batches(start, 2_500)
    return batches


def check_whole(log: Commitlog, expected: Sequence[Batch]) -> None:
    """The log holds exactly these batches, and every question about them is answered from them."""
    assert content(log) == list(expected)
    if not expected:
        assert (log.begin_index, log.end_index, log.last_term) == (NO_INDEX, NO_INDEX, 0)
        assert log.last_index_of_term_at_most(1 << 40) == NO_INDEX
        return
    assert (log.begin_index, log.begin_offset) == (expected[0].base_index, expected[0].offset)
    assert (log.end_index, log.end_offset) == (expected[-1].last_index, expected[-1].next_offset)
    assert (log.last_term, log.last_chain) == (expected[-1].term, expected[-1].header.chain)
    previous_end = NO_INDEX
    for batch in expected:
        assert log.holds(batch)
        for index in (batch.base_index, batch.last_index):
            assert log.batch_at(index) == batch
            assert log.term_at(index) == batch.term
        assert log.floor_batch_end(batch.last_index) == batch.last_index
        if batch.count > 1:
            assert log.floor_batch_end(batch.last_index - 1) == previous_end
        previous_end = batch.last_index
    for term in range(expected[-1].term + 2):
        last = max((batch.last_index for batch in expected if batch.term <= term), default=NO_INDEX)
        assert log.last_index_of_term_at_most(term) == last


def snapshot(files: MemoryFiles, folder: str = FOLDER) -> dict[str, bytes]:
    """Every file of the folder."""
    return {name: files.read(f"{folder}/{name}") for name in files.sizes(folder)}


def epochs_on_disk(files: MemoryFiles, folder: str = FOLDER) -> list[tuple[int, str, int]]:
    epochs = decode_epochs(files.read(f"{folder}/epochs"))
    return [(epoch.term, epoch.leader, epoch.start_index) for epoch in epochs]


def check_idempotent(files: MemoryFiles) -> None:
    """A second recovery changes nothing; it only writes the manifest as it stands, to make it durable."""
    before, operations = snapshot(files), files.operations
    open_log(files)
    assert (snapshot(files), files.operations) == (before, operations + DURABLE_LOAD_OPERATIONS)


def crash_everywhere(
    prepare: Callable[[MemoryFiles], Commitlog],
    operation: Callable[[Commitlog], None],
    check: Callable[[MemoryFiles, bool], None],
) -> int:
    """Cut the power before each operation on the disk in turn, with several fates of what was not synced.

    check(files, done): the files after the crash; done: the operation had returned. Returns how many places.
    """
    place = 0
    while True:
        done = False
        for seed in range(4):
            files = MemoryFiles(Random(seed))
            log = prepare(files)
            files.power_cut_at = files.operations + place
            try:
                operation(log)
                done = True
            except PowerCut:
                pass
            files.crash()
            check(files, done)
            check_idempotent(files)
        if done:
            return place
        place += 1


@cache
def batches_of_three_terms() -> Sequence[Sequence[Batch]]:
    log = open_log(MemoryFiles())
    return [[open_term(log, term, f"n{term}"), *grow(log, 14, Random(term))] for term in (1, 2, 3)]


def three_terms(files: MemoryFiles, *, synced: bool = True) -> Commitlog:
    log = open_log(files)
    for batches in batches_of_three_terms():
        for batch in batches:
            log.append([batch])
        if synced:
            sync_log(log)
    return log


def expected_content() -> list[Batch]:
    return list(chain.from_iterable(batches_of_three_terms()))


def copied(files: MemoryFiles) -> MemoryFiles:
    """The same files in a memory of their own, all durable."""
    copy = MemoryFiles(Random(1))
    for name, data in snapshot(files).items():
        file = copy.open(f"{FOLDER}/{name}", create=True)
        file.pwrite(data, 0)
        file.sync()
    copy.sync_folder(FOLDER)
    return copy
