"""Checkpoints of a replica: a save that met a passing refusal is repeated, any other ends the node."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.log.driver_interfaces import DriverConfig
from app.log.state import LogState
from app.node.job_threads import result_or_error
from app.node.state.checkpoints import Checkpointer
from storage.errors import DiskError, DiskRefused, Exhausted, StorageFull
from storage.format.batch import AppendMark
from storage.log.checkpoint import Checkpoint
from tests.unit.log.test_state import DIGEST, Log


def submit(work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
    then(*result_or_error(work))


@pytest.mark.rule("R-11")
@pytest.mark.parametrize(
    ("kind", "is_repeated"), [(StorageFull, True), (Exhausted, True), (DiskRefused, False)]
)
def test_a_checkpoint_without_space_or_descriptor_is_saved_later(
    kind: type[DiskError], is_repeated: bool
) -> None:
    refusals = [kind("checkpoint.tmp", "open", "refused")]
    saved: list[Checkpoint] = []
    failures: list[str] = []

    def save(checkpoint: Checkpoint) -> None:
        if refusals:
            raise refusals.pop()
        saved.append(checkpoint)

    checkpointer = Checkpointer(
        SimpleNamespace(durable_index=7, last_chain=b""),  # type: ignore[arg-type]
        SimpleNamespace(save=save),  # type: ignore[arg-type]
        SimpleNamespace(),  # type: ignore[arg-type]
        SimpleNamespace(submit=submit),  # type: ignore[arg-type]
        DriverConfig(checkpoint_interval_ms=1),
        lambda what, _error: failures.append(what),
    )
    for now_ms in (0, 1, 2):
        if not failures:
            checkpointer.tick(LogState(), 7, now_ms)
    assert (saved == [Checkpoint(7, -1)], failures == []) == (is_repeated, is_repeated)


def test_an_idle_log_is_saved_once_and_a_large_state_less_often() -> None:
    """A node has many logs: each save costs it several syncs."""
    checkpoints, snapshots, failures = list[Checkpoint](), list[int](), list[str]()
    log, state = Log(), LogState()

    def grow() -> None:
        state.apply(log.add(AppendMark(0, 1, "k" * 200, digest=DIGEST), count=1))
        state.committed(state.applied_index)

    checkpointer = Checkpointer(
        SimpleNamespace(durable_index=7, last_chain=b""),  # type: ignore[arg-type]
        SimpleNamespace(save=checkpoints.append),  # type: ignore[arg-type]
        SimpleNamespace(save=lambda *pieces: snapshots.append(sum(map(len, pieces)))),  # type: ignore[arg-type]
        SimpleNamespace(submit=submit),  # type: ignore[arg-type]
        DriverConfig(checkpoint_interval_ms=1, snapshot_interval_ms=1),
        lambda what, _error: failures.append(what),
    )
    grow()
    for now_ms in range(10):
        checkpointer.tick(state, 0, now_ms)
    assert (checkpoints, len(snapshots)) == ([Checkpoint(0, 0)], 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.node.state.checkpoints.SAVED_BYTES_PER_S", 10)
        grow()
        for now_ms in range(10, 1_000):
            checkpointer.tick(state, 1, now_ms)
    assert (checkpoints[1:], len(snapshots), failures) == ([Checkpoint(1, 0)], 1, [])
