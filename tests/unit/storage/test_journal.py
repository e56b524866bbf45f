"""The journal shows what is durable, in order, without gaps."""

from random import Random

import pytest

from storage.errors import CorruptFile, CorruptLog
from storage.log.commitlog import CommitlogConfig
from storage.log.journal import KEPT_EVENTS, LIMIT_BURST, LIMIT_REFILL_MS, Event, Journal, replace_journal
from tests.support.memory_files import MemoryFiles, PowerCut

FOLDER = "/data/journal/default"


def open_journal(files: MemoryFiles) -> Journal:
    return Journal(
        files, FOLDER, "n1", "default", CommitlogConfig(segment_max_bytes=5_000, tail_cache_bytes=0)
    )


def sync(journal: Journal) -> None:
    ticket = journal.start_sync()
    if ticket is not None:
        ticket.run()
        journal.finish_sync(ticket)


def test_events_are_seen_once_they_are_durable() -> None:
    journal = open_journal(MemoryFiles())
    assert journal.read(0, 10) == ([], 0, False)
    event = journal.append("role", 3, {"role": "leader", "leader": "n1"}, 1_000)
    assert event == Event(0, "n1", "default", 1_000, "role", 3, {"role": "leader", "leader": "n1"})
    assert journal.read(0, 10) == ([], 0, False)
    sync(journal)
    assert journal.read(0, 10) == ([event], 1, False)
    assert journal.next_seq == 1


def test_pages_follow_one_another() -> None:
    journal = open_journal(MemoryFiles())
    events = [journal.append("watermarks", 1, {"committed_index": k}, 1_000 + k) for k in range(25)]
    sync(journal)
    at, seen = 0, []
    while True:
        page, following, more = journal.read(at, 10)
        assert following == at + len(page)
        seen += page
        at = following
        if not more:
            break
    assert seen == events
    assert [event.seq for event in seen] == list(range(25))
    assert journal.read(7, 1) == ([events[7]], 8, True)
    assert journal.read(25, 10) == journal.read(25, 0) == ([], 25, False)
    assert journal.read(99, 10) == ([], 99, False)


@pytest.mark.parametrize("seed", range(10))
def test_a_power_cut_leaves_a_prefix_and_the_numbers_continue(seed: int) -> None:
    files = MemoryFiles(Random(seed))
    journal = open_journal(files)
    events = [journal.append("start", 0, {"version": "1"}, 1)]
    sync(journal)
    events += [journal.append("term", k, {"term": k}, k) for k in range(20)]
    files.crash()
    journal = open_journal(files)
    kept, following, more = journal.read(0, 100)
    assert kept == events[: len(kept)]
    assert kept
    assert not more
    assert journal.append("stop", 0, {}, 99).seq == following
    journal.close()
    assert open_journal(files).read(following, 1)[0][0].kind == "stop"


@pytest.mark.parametrize("kept", [True, False])
def test_a_damaged_journal_begins_again_after_its_last_event(kept: bool) -> None:
    files = MemoryFiles()
    journal = Journal(files, "j", "n1", "default")
    for number in range(20):
        journal.append("role", 1, {"number": number}, 1)
    journal.close()
    file = files.open("j/00000000000000000000.log")
    file.pwrite(b"noise" * 20, 300)
    if not kept:
        file.pwrite(bytes(file.size()), 0)
    files.remove("j/manifest")
    with pytest.raises(CorruptLog):
        Journal(files, "j", "n1", "default")
    replace_journal(files, "j")
    journal = Journal(files, "j", "n1", "default")
    assert journal.next_seq == (20 if kept else 0)
    assert journal.append("corruption", 1, {}, 1).seq == (20 if kept else 0)
    journal.close()
    (event,), next_seq, has_more = Journal(files, "j", "n1", "default").read(0, 10)
    assert (event.kind, next_seq, has_more) == ("corruption", event.seq + 1, False)
    assert files.exists("j/aside/00000000000000000000.log")


def filled(files: MemoryFiles, count: int) -> Journal:
    journal = open_journal(files)
    for number in range(count):
        journal.append("role", 1, {"number": number}, 1_000 + number)
    sync(journal)
    return journal


def replaced_if_damaged(files: MemoryFiles) -> Journal:
    """Open the journal as a node does at its start."""
    try:
        return open_journal(files)
    except (CorruptLog, CorruptFile):
        replace_journal(files, FOLDER)
        return open_journal(files)


@pytest.mark.parametrize("seed", range(4))
def test_no_power_failure_lets_a_replaced_journal_assign_a_number_again(seed: int) -> None:
    at = 0
    while True:
        files = MemoryFiles(Random(seed))
        filled(files, 100).close()
        files.remove(f"{FOLDER}/manifest")
        files.sync_folder(FOLDER)
        at += 1
        files.power_cut_at = files.operations + at
        try:
            journal = replaced_if_damaged(files)
        except PowerCut:
            files.crash()
            journal = replaced_if_damaged(files)
        else:
            break
        assert journal.next_seq == 100, f"after a power failure before operation {at}"
        journal.close()
    assert at > 10


def trim(journal: Journal, oldest_ms: int | None, max_bytes: int | None) -> None:
    ticket = journal.start_trim(oldest_ms, max_bytes)
    assert ticket is not None
    ticket.run()


def test_old_events_go_and_the_numbers_stay() -> None:
    files = MemoryFiles()
    journal = filled(files, 3_000)
    size_bytes = journal.size_bytes
    assert journal.start_trim(1_000, size_bytes) is None
    trim(journal, 1_000 + 700, None)
    assert (journal.begin_seq, journal.next_seq) == (700, 3_000)
    trim(journal, None, size_bytes // 2)
    assert 1_490 <= journal.begin_seq <= 1_510
    kept = journal.begin_seq
    assert [event.seq for event in journal.read(0, 2)[0]] == [kept, kept + 1]
    held = sum(files.sizes(FOLDER).values())
    journal.close()
    again = open_journal(files)
    assert (again.begin_seq, again.next_seq) == (kept, 3_000)
    assert held < size_bytes * 0.6


def test_a_clock_that_jumps_does_not_empty_a_journal() -> None:
    journal = filled(MemoryFiles(), KEPT_EVENTS + 10)
    trim(journal, 10**15, 1)
    assert (journal.begin_seq, journal.next_seq) == (10, KEPT_EVENTS + 10)
    assert journal.start_trim(10**15, 1) is None


def test_one_cause_does_not_flood_the_journal() -> None:
    journal, now_ms = open_journal(MemoryFiles()), 1_000_000
    reported = [
        journal.record("corruption", 0, {"offset": number}, now_ms + number) for number in range(1_000)
    ]
    assert sum(event is not None for event in reported) == LIMIT_BURST
    assert journal.suppressed == 1_000 - LIMIT_BURST
    later = journal.record("corruption", 0, {"offset": 1}, now_ms + 2 * LIMIT_REFILL_MS)
    assert later is not None
    assert later.data == {"offset": 1, "suppressed": 1_000 - LIMIT_BURST}
    assert journal.record("repair", 0, {}, now_ms) is not None
    assert all(journal.record("role", 0, {}, now_ms) is not None for _ in range(100))
