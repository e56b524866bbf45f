"""Whatever happens to a log's files: it is named, healed here, or healed with the batches of a replica."""

from random import Random

import pytest

from storage.care.patch import patch
from storage.care.survey import NO_OFFSET, survey
from storage.errors import CorruptFile, CorruptLog, DiskError, DiskRefused, PatchRefused, StorageError
from storage.format.batch import FIRST_CHAIN, Batch, stamp
from storage.format.records import RecordColumns, decode_body, encode_body
from storage.log.aside import ASIDE_FOLDER, set_aside
from storage.log.commitlog import Commitlog
from tests.support.memory_files import MemoryFile, MemoryFiles, PowerCut
from tests.unit.storage.damages import damage_once, heal, refill
from tests.unit.storage.support import (
    FOLDER,
    LOG_ID,
    SMALL,
    check_idempotent,
    check_whole,
    content,
    copied,
    grow,
    next_batch,
    open_log,
    open_term,
    snapshot,
    sync_log,
)


def closed_log(files: MemoryFiles, *, trimmed: bool = False) -> list[Batch]:
    log = open_log(files)
    batches = []
    for term in (1, 2, 3):
        batches += [open_term(log, term, f"n{term}"), *grow(log, 25, Random(term))]
    if trimmed:
        log.settle(log.end_index)
        ticket = log.start_trim(batches[20].base_index)
        assert ticket is not None
        ticket.run()
        batches = batches[20:]
    log.close()
    return batches


def segment_of(files: MemoryFiles, offset: int) -> tuple[str, int]:
    """Path of the segment that holds a log offset, and the position in it."""
    name = max(n for n in files.list(FOLDER) if n.endswith(".log") and int(n[:20]) <= offset)
    return f"{FOLDER}/{name}", offset - int(name[:20])


def spoil(files: MemoryFiles, batch: Batch, place: int = 90) -> None:
    path, position = segment_of(files, batch.offset)
    byte = files.read(path)[position + place]
    files.open(path).pwrite(bytes([byte ^ 16]), position + place)


def log_files(files: MemoryFiles) -> dict[str, bytes]:
    return {name: data for name, data in snapshot(files).items() if name != "manifest"}


# --- survey


def test_a_whole_log_has_no_damage_and_is_left_as_it_is() -> None:
    for trimmed in (False, True):
        files = MemoryFiles()
        batches = closed_log(files, trimmed=trimmed)
        before = log_files(files)
        found = survey(files, FOLDER, LOG_ID, batches[-1].last_index)
        assert (found.damages, found.structural) == ((), "")
        check_whole(open_log(files), batches)
        after = log_files(files)
        assert {n: d for n, d in after.items() if n.endswith(".log") or n == "epochs"} == {
            n: d for n, d in before.items() if n.endswith(".log") or n == "epochs"
        }


@pytest.mark.parametrize("place", [0, 8, 24, 70, 75, 124, 140, -1])
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_survey_names_each_damaged_stretch_between_its_neighbours(place: int, trimmed: bool) -> None:
    files = MemoryFiles()
    batches = closed_log(files, trimmed=trimmed)
    for first, end in ((0, 1), (5, 6), (10, 13), (30, 31), (len(batches) - 1, len(batches))):
        copy = copied(files)
        for batch in batches[first:end]:
            spoil(copy, batch, place if place >= 0 else batch.size_bytes - 1)
        found = survey(copy, FOLDER, LOG_ID)
        assert found.structural == ""
        (damage,) = found.damages
        assert (damage.first_index, damage.last_index) == (
            batches[first].base_index,
            batches[end - 1].last_index,
        )
        last = end == len(batches)
        assert (damage.first_offset, damage.next_offset) == (
            batches[first].offset,
            NO_OFFSET if last else batches[end].offset,
        )
        assert damage.reason
        assert patch(copy, FOLDER, LOG_ID, damage, batches[first:end]) is None
        check_whole(open_log(copy), batches)


def test_an_old_block_after_a_damage_is_not_a_neighbour() -> None:
    """A lost write leaves a valid batch of a truncated history: its successor reveals it."""
    files = MemoryFiles()
    log = open_log(files)
    batches = grow(log, 10)
    old = next_batch(log, [b"old"], term=1)
    new = next_batch(log, [b"new"], term=1)
    log.append([new])
    batches += [new, *grow(log, 5)]
    log.close()
    path, position = segment_of(files, old.offset)
    assert old.size_bytes == new.size_bytes
    for spoiled in (False, True):
        files.open(path).pwrite(old.data, position)
        if spoiled:
            spoil(files, batches[9])
        (damage,) = survey(files, FOLDER, LOG_ID).damages
        lost = [batches[9], new] if spoiled else [new, batches[11]]  # without a doubt, or one of the two
        assert (damage.first_index, damage.last_index) == (lost[0].base_index, lost[1].last_index)
        assert patch(files, FOLDER, LOG_ID, damage, lost) is None
        check_whole(open_log(files), batches)


def test_damage_between_durable_point_and_checkpoint_counts_and_a_torn_tail_does_not() -> None:
    files = MemoryFiles()
    log = open_log(files)
    batches = grow(log, 4, sync=False)
    spoil(files, batches[1])
    assert survey(files, FOLDER, LOG_ID).damages == ()
    assert survey(files, FOLDER, LOG_ID, batches[0].last_index).damages == ()
    (damage,) = survey(files, FOLDER, LOG_ID, batches[2].last_index).damages
    assert (damage.first_index, damage.last_index) == (batches[1].base_index, batches[1].last_index)
    with pytest.raises(CorruptLog, match="was committed"):
        open_log(files, committed_index=batches[2].last_index)
    patch(files, FOLDER, LOG_ID, damage, batches[1:2])
    check_whole(open_log(files, committed_index=batches[2].last_index), batches)


def test_unknown_files_are_left_alone() -> None:
    files = MemoryFiles()
    batches = closed_log(files)
    for name in ("notes.txt", "12.log", "vote", "manifest.tmp", "state", f"{0:020d}.index.tmp"):
        files.open(f"{FOLDER}/{name}", create=True).pwrite(b"x", 0)
    found = survey(files, FOLDER, LOG_ID)
    assert (found.damages, found.structural) == ((), "")
    check_whole(open_log(files), batches)
    assert files.read(f"{FOLDER}/notes.txt") == b"x"


def test_damage_that_cannot_be_patched_is_structural() -> None:
    for damage in ("manifest", "no manifest", "another log", "folder"):
        files = MemoryFiles()
        closed_log(files)
        log_id = LOG_ID
        if damage == "manifest":
            files.open(f"{FOLDER}/manifest").pwrite(bytes(8192), 0)
        elif damage == "no manifest":
            files.remove(f"{FOLDER}/manifest")
        elif damage == "another log":
            log_id += 1
        else:
            files.open(f"{FOLDER}/{10**19:020d}.log/x", create=True)
        assert survey(files, FOLDER, log_id).structural


def test_an_index_that_contradicts_a_whole_segment_is_rebuilt() -> None:
    """Valid entries, of another log: neither their checksums nor their order betray them."""
    files, others = MemoryFiles(), MemoryFiles()
    batches = closed_log(files)
    other = open_log(others)
    while other.end_offset < 30_000:
        grow(other, 1, Random(other.next_index))
    other.close()
    name = f"{0:020d}.index"
    files.open(f"{FOLDER}/{name}").pwrite(others.read(f"{FOLDER}/{name}")[:640], 0)
    found = survey(files, FOLDER, LOG_ID)
    assert found.damages == ()
    assert found.healed == (name,)
    check_whole(open_log(files), batches)


def test_blocks_that_the_disk_cannot_read_are_damage_to_a_survey_and_named_by_a_read() -> None:
    files = MemoryFiles()
    batches = closed_log(files)
    path, position = segment_of(files, batches[30].offset)
    real = MemoryFile.read
    index_path = path.replace(".log", ".index")

    def read(self: MemoryFile, offset: int, size: int) -> bytes:
        if self.path == path and offset <= position < offset + size and bad:
            raise DiskError(path, "read", "input/output error")
        return real(self, offset, size)

    def refuse(operation: str, name: str) -> None:
        if name == index_path and operation == "read" and bad:
            raise DiskError(name, operation, "input/output error")

    bad = True
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(MemoryFile, "read", read)
        log = open_log(files)
        with pytest.raises(DiskError, match="input/output error"):
            log.batch_at(batches[30].base_index)
        files.refuse = refuse
        (damage,) = survey(files, FOLDER, LOG_ID).damages
        assert damage.first_index <= batches[30].base_index <= damage.last_index
        bad = False  # written again, the blocks are readable
        lost = [b for b in batches if damage.first_index <= b.base_index <= damage.last_index]
        assert patch(files, FOLDER, LOG_ID, damage, lost) is None
        check_whole(open_log(files), batches)


def test_bytes_behind_a_sealed_segment_are_cut() -> None:
    files = MemoryFiles()
    batches = closed_log(files)
    path = f"{FOLDER}/{0:020d}.log"
    size = len(files.read(path))
    files.open(path).pwrite(b"noise", size)
    with pytest.raises(CorruptLog, match="bytes"):
        open_log(files)
    assert survey(files, FOLDER, LOG_ID).healed == (f"{0:020d}.log",)
    check_whole(open_log(files), batches)


def test_bytes_behind_a_damaged_end_of_a_sealed_segment_are_cut_with_the_patch() -> None:
    files = MemoryFiles()
    batches = closed_log(files)
    names = sorted(name for name in files.list(FOLDER) if name.endswith(".log"))
    last = max(place for place, batch in enumerate(batches) if batch.offset < int(names[1][:20]))
    for lost in (batches[last : last + 1], batches[last : last + 2]):
        for batch in lost:
            spoil(files, batch)
        files.open(f"{FOLDER}/{names[0]}").pwrite(b"noise", int(names[1][:20]))
        (damage,) = survey(files, FOLDER, LOG_ID).damages
        assert patch(files, FOLDER, LOG_ID, damage, lost) is None
        check_whole(open_log(files), batches)


# --- patch


def test_another_history_of_the_same_size_is_refused_at_the_begin_of_a_trimmed_log() -> None:
    """The batch before it is unknown: only the one behind it shows which history this log has."""
    files = MemoryFiles()
    batches = closed_log(files, trimmed=True)
    first = batches[0]
    spoil(files, first)
    (damage,) = survey(files, FOLDER, LOG_ID).damages
    records = RecordColumns()
    for size in (len(value.as_py()) for value in decode_body(first.header, first.body).column(2)):
        records.add(bytes(size))
    other = stamp(
        encode_body(records),
        log_id=LOG_ID,
        base_index=first.base_index,
        term=first.term,
        timestamp_ms=first.timestamp_ms,
        offset=first.offset,
        previous_chain=FIRST_CHAIN,
    )
    assert (other.next_index, other.next_offset) == (first.next_index, first.next_offset)
    with pytest.raises(PatchRefused):
        patch(files, FOLDER, LOG_ID, damage, [other])
    assert patch(files, FOLDER, LOG_ID, damage, [first]) is None
    check_whole(open_log(files), batches)


def test_only_the_very_batches_are_taken() -> None:
    files, others = MemoryFiles(), MemoryFiles()
    batches = closed_log(files)
    other = open_log(others)
    foreign = []
    for term in (1, 2, 3):
        foreign += [open_term(other, term, f"n{term}"), *grow(other, 25, Random(term + 50))]
    spoil(files, batches[10])
    spoil(files, batches[11])
    (damage,) = survey(files, FOLDER, LOG_ID).damages
    before = snapshot(files)
    flipped = bytearray(batches[10].data)
    flipped[-1] ^= 1
    for wrong in (
        foreign[10:12],
        batches[11:12],
        batches[9:12],
        batches[10:13],
        [batches[10], batches[10]],
        [Batch(batches[10].header, bytes(flipped)), batches[11]],
    ):
        with pytest.raises(PatchRefused):
            patch(files, FOLDER, LOG_ID, damage, wrong)
        assert snapshot(files) == before
    assert patch(files, FOLDER, LOG_ID, damage, []) == damage
    rest = patch(files, FOLDER, LOG_ID, damage, batches[10:11])
    assert rest is not None
    assert (rest.first_index, rest.last_index) == (batches[11].base_index, batches[11].last_index)
    assert patch(files, FOLDER, LOG_ID, rest, batches[11:12]) is None
    check_whole(open_log(files), batches)


@pytest.mark.parametrize("reported", [True, False])
def test_missing_segments_come_back(reported: bool) -> None:
    """If their indexes are readable, they begin where they began; else the segment before them grows."""
    files = MemoryFiles()
    batches = closed_log(files)
    twin = open_log(copied(files))
    whole = {name: data for name, data in snapshot(files).items() if name.endswith(".log")}
    names = list(whole)
    for missing in (names[:1], names[1:2], names[1:3], names[-1:], names[-2:], names):
        copy = copied(files)
        for name in missing:
            copy.remove(f"{FOLDER}/{name}")
            if not reported:
                copy.remove(f"{FOLDER}/{name[:20]}.index")
        with pytest.raises(CorruptLog):
            open_log(copy)
        assert heal(copy, twin, batches[-1].last_index, Random(1))[0] == "patched"
        check_whole(open_log(copy), batches)
        if reported:
            assert {n: d for n, d in snapshot(copy).items() if n.endswith(".log")} == whole


@pytest.mark.parametrize("seed", range(100))
def test_a_random_damage_is_healed_with_the_help_of_a_twin(seed: int) -> None:
    """Survey and patch give the same log again, batch by batch; what is beyond that starts empty."""
    chance = Random(seed)
    files = MemoryFiles(chance)
    batches = closed_log(files, trimmed=seed % 3 == 0)
    twin = open_log(copied(files))
    done = [damage_once(files, FOLDER, chance) for _ in range(chance.randint(1, 3))]
    committed_index = batches[-1].last_index
    try:
        held = content(open_log(files, committed_index=committed_index))
        assert held == batches, done  # healed at the start, or by reading
    except (CorruptLog, CorruptFile):
        how, _ = heal(files, twin, committed_index, chance)
        if how == "patched":
            log = open_log(files, committed_index=committed_index)
            check_whole(log, batches)
        else:
            assert "manifest" in "".join(done), done
            log = open_log(files)
            assert log.end_index == -1
            if seed % 3 == 0:
                log.reset(twin.begin_index, twin.begin_offset)
            assert refill(log, twin) == batches
        log.close()
    check_whole(open_log(files), batches)
    check_idempotent(files)


@pytest.mark.parametrize("kind", ["closed", "open"])
def test_a_crash_within_a_patch_is_healed_by_the_next_one(kind: str) -> None:
    whole = MemoryFiles()
    batches = closed_log(whole)
    twin = open_log(copied(whole))
    place = 0
    done = False
    while not done:
        for seed in range(4):
            files = copied(whole)
            files.random = Random(seed)
            if kind == "closed":
                files.remove(f"{FOLDER}/{sorted(n for n in snapshot(files) if n.endswith('.log'))[1]}")
                files.sync_folder(FOLDER)
            else:
                spoil(files, batches[-3])
                spoil(files, batches[-1])
                spoil(files, batches[-2])
            files.power_cut_at = files.operations + place
            try:
                heal(files, twin, batches[-1].last_index, Random(seed))
                open_log(files, committed_index=batches[-1].last_index)
                done = True
            except PowerCut:
                done = False
            files.crash()
            assert heal(files, twin, batches[-1].last_index, Random(seed))[0] == "patched"
            check_whole(open_log(files, committed_index=batches[-1].last_index), batches)
        place += 1
    assert place > 8


# --- set aside


@pytest.mark.rule("R-07", "R-11")
def test_a_patch_that_was_not_synced_is_still_damage_to_the_next_survey() -> None:
    """The kernel takes its pages for clean: a survey that read them would end the repair."""
    files, twin = MemoryFiles(), MemoryFiles()
    batches = closed_log(files)
    closed_log(twin)
    spoil(files, batches[30])
    for path in files.list(FOLDER):
        files.open(f"{FOLDER}/{path}").sync()
    (damage,) = survey(files, FOLDER, LOG_ID).damages
    files.syncs_fail = True
    with pytest.raises(DiskError):
        patch(files, FOLDER, LOG_ID, damage, batches[30:31])
    files.syncs_fail = False
    assert survey(files, FOLDER, LOG_ID).damages == (damage,)
    assert patch(files, FOLDER, LOG_ID, damage, batches[30:31]) is None
    files.crash()
    check_whole(open_log(files), batches)


@pytest.mark.rule("R-07", "R-11")
def test_a_survey_reads_also_a_small_log_from_the_disk() -> None:
    """Two batches are durable; the cache holds the first one after a patch that was not synced."""
    files = MemoryFiles()
    log = open_log(files)
    batch = open_term(log, 1)
    open_term(log, 2)
    sync_log(log)
    assert log.end_offset < 4_000
    log.close()
    spoil(files, batch)
    for path in files.list(FOLDER):
        files.open(f"{FOLDER}/{path}").sync()
    (damage,) = survey(files, FOLDER, LOG_ID).damages
    files.syncs_fail = True
    with pytest.raises(DiskError):
        patch(files, FOLDER, LOG_ID, damage, [batch])
    files.syncs_fail = False
    assert survey(files, FOLDER, LOG_ID).damages == (damage,)


def test_a_log_that_is_set_aside_is_kept_once_and_an_empty_one_takes_its_place() -> None:
    for place in range(60):
        files = MemoryFiles(Random(place))
        closed_log(files)
        first = log_files(files)
        files.open(f"{FOLDER}/vote", create=True).pwrite(b"vote", 0)
        files.open(f"{FOLDER}/vote").sync()
        files.sync_folder(FOLDER)
        set_aside(files, FOLDER)
        aside = f"{FOLDER}/{ASIDE_FOLDER}"
        assert {name: files.read(f"{aside}/{name}") for name in first} == first
        log = open_log(files)
        kept = [open_term(log, 7), *grow(log, 30)]
        log.close()
        second = log_files(files)
        files.power_cut_at = files.operations + place
        try:
            set_aside(files, FOLDER)
            done = True
        except PowerCut:
            done = False
        files.crash()
        assert files.read(f"{FOLDER}/vote") == b"vote"
        if not done:
            try:
                assert content(open_log(files)) in (kept, [])
            except StorageError:
                set_aside(files, FOLDER)
        else:
            names = [name for name in second if name not in ("vote", ASIDE_FOLDER)]
            assert {name: files.read(f"{aside}/{name}") for name in names} == {n: second[n] for n in names}
            check_whole(open_log(files), [])
            return
    raise AssertionError("never came to its end")


def test_the_log_of_another_is_refused_by_name() -> None:
    files = MemoryFiles()
    closed_log(files)
    sync_log(open_log(files))
    with pytest.raises(CorruptLog, match="another log"):
        Commitlog.open(files, FOLDER, log_id=LOG_ID + 1, config=SMALL)


@pytest.mark.rule("R-07")
def test_a_survey_without_memory_or_descriptors_finds_no_damage() -> None:
    files = MemoryFiles()
    closed_log(files)

    def refuse(operation: str, path: str) -> None:
        if operation == "read" and path.endswith(".log"):
            raise DiskRefused(path, operation, "out of memory")

    files.refuse = refuse
    with pytest.raises(DiskRefused):
        survey(files, FOLDER, LOG_ID)
    files.refuse = None
    assert survey(files, FOLDER, LOG_ID).damages == ()
