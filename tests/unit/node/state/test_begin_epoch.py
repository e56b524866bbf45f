"""The epoch of a log's beginning: an answer that arrives late, and an epoch that cannot be saved. A full disk
is no failure, a failed sync is one (R-11)."""

from typing import Any

import pytest

from app.node.state.state_transfer import ASK_AGAIN_MS, BeginEpoch
from app.raft.messages import StateChunk, StateRequest
from storage.errors import DiskError, StorageFull, SyncFailed
from storage.format.epoch_file import Epoch


class ResetLog:
    """A log whose begin is within an epoch that it does not know."""

    begin_index, truncation_count, knows_begin_epoch = 5, 1, False

    def term_at(self, index: int) -> int:
        return 2

    def __init__(self) -> None:
        self.adopted: list[Epoch] = []

    def adopt_begin_epoch(self, epoch: Epoch) -> Any:
        self.adopted.append(epoch)
        return self

    def move_begin(self) -> None: ...


class Now:
    """Transport and disk: keeps what is sent; every sync ends at once, with `error` if there is one."""

    def __init__(self, error: DiskError | None = None) -> None:
        self.requests: list[StateRequest] = []
        self._error = error

    def send(self, target: str, log_id: int, message: StateRequest) -> None:
        self.requests.append(message)

    def submit(self, work: Any, then: Any) -> None:
        then(None, self._error)


@pytest.mark.rule("R-11")
@pytest.mark.parametrize(
    ("error", "fails"),
    [(None, 0), (StorageFull("manifest", "write", ""), 0), (SyncFailed("manifest", "sync", ""), 1)],
)
def test_a_failed_sync_of_the_begin_fails_the_node_and_a_full_disk_does_not(
    error: DiskError | None, fails: int
) -> None:
    failures: list[tuple[str, BaseException]] = []
    log: Any = ResetLog()
    now: Any = Now(error)
    begin = BeginEpoch("n2", 7, log, now, now, lambda *failure: failures.append(failure))
    begin.tick("n1", 3, 1_000)
    begin.take(StateChunk(now.requests[0].id, 0, 0, 0, b"", Epoch(2, 2, "n1", 3, 300, 0)))
    assert [failed for _, failed in failures] == [error] * fails


@pytest.mark.rule("A-03")
@pytest.mark.parametrize("is_reset", [False, True])
def test_an_answer_that_takes_longer_than_the_pause_is_taken_unless_the_log_was_reset(is_reset: bool) -> None:
    """Behind a queue of pushes all answers are late."""
    log: Any = ResetLog()
    now: Any = Now()
    begin = BeginEpoch("n2", 7, log, now, now, lambda *_: None)
    begin.tick("n1", 3, 1_000)
    log.truncation_count += is_reset
    begin.tick("n1", 3, 1_000 + ASK_AGAIN_MS)
    first, second = now.requests
    assert first.id != second.id
    epoch = Epoch(2, 2, "n1", 3, 300, 0)
    begin.take(StateChunk(first.id, 0, 0, 0, b"", epoch))
    assert log.adopted == ([] if is_reset else [epoch])
