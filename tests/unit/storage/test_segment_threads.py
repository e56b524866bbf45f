"""A log is read while the disk thread truncates it."""

import threading
from random import Random

import pytest

from storage.format.batch import Batch
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.segment import Segment
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import check_whole, content, grow, open_log, open_term

CONFIG = CommitlogConfig(segment_max_bytes=12_000, mark_interval_bytes=4_000, tail_cache_bytes=0)
WITHIN_S = 0.2  # a truncation that does not wait for the read ends within that


def log_with_a_damaged_index(files: MemoryFiles) -> tuple[Commitlog, list[Batch]]:
    log = open_log(files, CONFIG)
    open_term(log, 1)
    while sum(segment.mapped for segment in log._segments) < 3:
        grow(log, 4, Random(1))
    whole = content(log)
    log.close()
    log = open_log(files, CONFIG)
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
    check_whole(open_log(files, CONFIG), left)
