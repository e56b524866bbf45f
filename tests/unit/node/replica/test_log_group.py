"""The groups that the core of a replica learns from its log (R-10)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.log.contract import GroupConfig
from app.log.state import LogState
from app.node.replica.state_keeper import LogGroup
from storage.format.records import encode_control
from tests.unit.raft.support import MemoryLog

NODES = ("n1", "n2", "n3", "n4")


@pytest.mark.rule("R-10")
def test_a_replica_that_starts_takes_only_the_last_change_for_one_in_progress() -> None:
    """The checkpoint is older than two changes. Of two voters that were there before them, one is gone: the
    record of the fourth voter waits for neither of them."""
    log, state = MemoryLog(), LogState()
    for count in (2, 3, 4):
        value = {"kind": "membership", "voters": NODES[:count], "learners": [], "nodes": {}}
        batch = log.stamp(encode_control(value), 1, control=True)
        log.write([batch])
        state.apply(batch)
    configured: list[tuple[tuple[str, ...], int]] = []

    def configure(group: GroupConfig, index: int, _now_ms: int, _nodes: Any) -> None:
        configured.append((group.voters, index))

    core, clock = SimpleNamespace(configure=configure), SimpleNamespace(monotonic_ms=lambda: 0)
    group = LogGroup(GroupConfig(voters=NODES[:2]), state, cast(Any, core), cast(Any, clock))
    group.refresh()
    assert configured == [(NODES[:3], 1), (NODES, 2)]
    group.refresh()
    state.truncate_after(1)
    group.refresh()
    assert configured[2:] == [(NODES[:3], 1)]
