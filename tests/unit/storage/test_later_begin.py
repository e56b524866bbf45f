"""A damaged log that begins later, because every replica has trimmed what was before."""

from random import Random

import pytest

from storage.care.begin import begin_with
from storage.care.survey import survey
from storage.errors import PatchRefused
from storage.format.batch import Batch
from storage.log.commitlog import Commitlog, CommitlogConfig
from tests.support.memory_files import MemoryFiles, PowerCut
from tests.unit.storage.support import FOLDER, LOG_ID, check_whole, grow, next_batch, open_log
from tests.unit.storage.test_damage import closed_log, spoil

LAST = 50  # batch of the second term before the third one


def begun(files: MemoryFiles, batch: Batch) -> None:
    begin_with(files, FOLDER, LOG_ID, batch)
    assert survey(files, FOLDER, LOG_ID).damages == ()


@pytest.mark.parametrize("trimmed", [False, True])
@pytest.mark.parametrize("first", [21, 26, 30, 51, 52, 77])
def test_a_log_that_begins_later_is_the_rest_of_itself(first: int, trimmed: bool) -> None:
    files = MemoryFiles(Random(first))
    batches = closed_log(files, trimmed=trimmed)
    kept = batches[first - 20 :] if trimmed else batches[first:]
    spoil(files, batches[0])
    begun(files, kept[0])
    log = open_log(files, committed_index=kept[0].base_index)
    check_whole(log, kept)
    first_epoch = [epoch.term for epoch in log.epochs if epoch.start_index < kept[0].base_index]
    # The manifest of a trimmed log names the epoch of its beginning. That of another one comes from the
    # leader.
    assert first_epoch == ([1] if trimmed and kept[0].term == 1 else [])
    assert log.knows_begin_epoch is bool(first_epoch or kept[0].is_control)
    assert [name for name in files.list(FOLDER) if name.endswith(".log")][1:] == [
        name for name in files.list(FOLDER) if name.endswith(".log") and int(name[:20]) > kept[0].offset
    ]
    log.append([next_batch(log)])
    grow(log, 40)
    log.close()
    assert open_log(files).begin_index == kept[0].base_index


def test_a_power_cut_leaves_the_former_begin_or_the_new_one() -> None:
    place, is_over, begins = 0, False, set()
    while not is_over:
        files = MemoryFiles(Random(place))
        batches = closed_log(files)
        files.power_cut_at = files.operations + place
        try:
            begun(files, batches[LAST])
            is_over = True
        except PowerCut:
            pass
        files.crash()
        log = open_log(files)
        begins.add(log.begin_index)
        check_whole(log, batches if log.begin_index == 0 else batches[LAST:])
        place += 1
    assert begins == {0, batches[LAST].base_index}
    assert log.begin_index == batches[LAST].base_index


def test_a_begin_after_the_durable_point_moves_that_too() -> None:
    """Otherwise recovery would look for segments that are before the beginning."""
    files = MemoryFiles()
    log = open_log(files, CommitlogConfig())
    batches = [next_batch(log, term=1, control={"kind": "term", "leader": "n1"})]
    log.append(batches)
    batches += grow(log, 15)  # synced, before the first mark
    assert log._marked_offset == 0
    files.crash()
    begin_with(files, FOLDER, LOG_ID, batches[8])
    reopened = Commitlog.open(files, FOLDER, log_id=LOG_ID, committed_index=batches[-1].last_index)
    check_whole(reopened, batches[8:])


def test_a_batch_before_the_begin_or_of_another_log_is_refused() -> None:
    files = MemoryFiles()
    batches = closed_log(files, trimmed=True)
    for batch in (batches[0], Batch(batches[5].header, bytes(batches[5].data[:-1]) + b"?")):
        with pytest.raises(PatchRefused):
            begin_with(files, FOLDER, LOG_ID, batch)
    with pytest.raises(PatchRefused):
        begin_with(files, FOLDER, LOG_ID + 1, batches[5])
    check_whole(open_log(files), batches)
