"""State of a replica at its start: the saved snapshot, as far as the log bears it out."""

from typing import Any

import pytest

from app.log.contract import NO_INDEX
from app.log.snapshot import HEAD, MAGIC, _frame
from app.log.state import DAY_MS, LogState
from app.node.state.checkpoints import _Taken, load_snapshot, load_state
from storage.errors import NewerFormat
from storage.format.batch import AppendMark
from storage.log.checkpoint import SnapshotFile
from tests.support.memory_files import MemoryFiles
from tests.unit.raft.support import MemoryLog, body_of


def snapshot_of(log: MemoryLog, committed_index: int) -> SnapshotFile:
    state = LogState()
    for batch in log.batches:
        state.apply(batch)
    state.committed(committed_index)
    taken = _Taken(state.capture(), log.last_chain)
    taken.copy(1 << 30)
    file = SnapshotFile(MemoryFiles(), "log/state")
    file.save(*taken.payload())
    return file


def add(log: MemoryLog, key: str, term: int) -> None:
    log.write([log.stamp(body_of(1, b"v"), term, marks=(AppendMark(0, 1, key, digest=b"d" * 16),))])


@pytest.mark.rule("D-20", "C-05")
@pytest.mark.parametrize("may_lose_committed", [False, True])
def test_a_snapshot_that_is_committed_beyond_the_logs_end_is_believed_in_raft_only(
    may_lose_committed: bool,
) -> None:
    """In the modes with a master an unclean election may have lost what it knows: a retry would be answered
    with the place of a record that no log holds, and the records that come there would be passed over."""
    before, log = MemoryLog(), MemoryLog()
    for each in (before, log):
        add(each, "held", 1)
    add(before, "lost", 1)
    held: Any = log
    snapshot = snapshot_of(before, 1)
    state, safe_index = load_state(
        held, snapshot, idempotency_ms=DAY_MS, may_lose_committed=may_lose_committed
    )
    assert safe_index == (NO_INDEX if may_lose_committed else 1)
    assert state.find_key("held") is not None
    assert (state.find_key("lost") is None) is may_lose_committed
    assert (state.applied_index == log.end_index) is may_lose_committed
    add(log, "other", 2)  # it may come to the place of the lost one before the next snapshot is saved
    state, _ = load_state(held, snapshot, idempotency_ms=DAY_MS, may_lose_committed=may_lose_committed)
    assert (state.find_key("other") is not None) is may_lose_committed


@pytest.mark.rule("D-20")
@pytest.mark.parametrize(
    "data",
    [b"CLS3", MAGIC + _frame(99, b"?"), MAGIC + _frame(HEAD, b"\x91\xc0")],
    ids=["frames", "kind", "head"],
)
def test_an_intact_snapshot_that_cannot_be_read_is_not_taken_for_damage(data: bytes) -> None:
    """A later version wrote it. A repair would remove it, and if the log is trimmed at every node, nothing
    else has the keys, producers and cursors."""
    log = MemoryLog()
    file = SnapshotFile(MemoryFiles(), "log/state")
    file.save(*_Taken(LogState().capture(), log.last_chain, [data]).payload())
    with pytest.raises(NewerFormat, match=r"log/state: .*a later version"):
        load_snapshot(file, idempotency_ms=DAY_MS)
