"""The groups that the core of a replica learns from its log (R-10)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.log.contract import NO_INDEX, Durability, GroupConfig, Role
from app.log.state import LogState
from app.node.replica.state_keeper import LogGroup
from app.raft.standing import Standing
from app.raft.state import MemberState, Outbox
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

    def configure(group: GroupConfig, index: int, _now_ms: int, _nodes: Any, **_: bool) -> None:
        configured.append((group.voters, index))

    core, clock = SimpleNamespace(configure=configure), SimpleNamespace(monotonic_ms=lambda: 0)
    group = LogGroup(GroupConfig(voters=NODES[:2]), state, cast(Any, core), cast(Any, clock))
    group.refresh()
    assert configured == [(NODES[:3], 1), (NODES, 2)]
    group.refresh()
    state.truncate_after(1)
    group.refresh()
    assert configured[2:] == [(NODES[:3], 1)]


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("runs", [False, True], ids=["at the start", "received"])
def test_a_group_that_the_state_knows_to_be_committed_waits_for_no_former_voter(runs: bool) -> None:
    """The checkpoint is lost, or the state of another replica has arrived. The two voters that this replica
    knew before are not those that the group had: one may be gone for good."""
    log, state, newer = MemoryLog(), LogState(), LogState()
    for count in (2, 3, 4):
        value = {"kind": "membership", "voters": NODES[:count], "learners": [], "nodes": {}}
        batch = log.stamp(encode_control(value), 1, control=True)
        log.write([batch])
        newer.apply(batch)
    newer.committed(2)
    pair = GroupConfig(voters=NODES[:2])
    member = MemberState("n1", pair, Durability.FSYNC, Role.FOLLOWER, 1, None, NO_INDEX)
    standing = Standing(member, Outbox())

    def configure(group: GroupConfig, index: int, _now_ms: int, nodes: Any, **options: bool) -> None:
        standing.configure(group, index, nodes, **options)

    core, clock = SimpleNamespace(configure=configure), SimpleNamespace(monotonic_ms=lambda: 0)
    group = LogGroup(pair, state, cast(Any, core), cast(Any, clock))
    if runs:
        state.apply(log.batches[0])
        state.committed(0)
        group.refresh()
        assert standing.index == 0
    state.become(newer)
    group.refresh()
    assert (member.group.voters, standing.is_settled, member.former_voters) == (NODES, False, ())


@pytest.mark.rule("R-01", "R-10")
def test_a_received_state_names_the_voters_that_must_hold_the_change_in_progress() -> None:
    """Between the group of three that this replica knew and the one that is in progress there were two."""
    log, state, newer = MemoryLog(), LogState(), LogState()
    for count in (3, 2, 3):
        value = {"kind": "membership", "voters": NODES[:count], "learners": [], "nodes": {}}
        batch = log.stamp(encode_control(value), 1, control=True)
        log.write([batch])
        newer.apply(batch)
    newer.committed(1)
    whole = GroupConfig(voters=NODES[:3])
    member = MemberState("n3", whole, Durability.FSYNC, Role.FOLLOWER, 1, None, NO_INDEX)
    standing = Standing(member, Outbox())

    def configure(group: GroupConfig, index: int, _now_ms: int, nodes: Any, **options: bool) -> None:
        standing.configure(group, index, nodes, **options)

    core, clock = SimpleNamespace(configure=configure), SimpleNamespace(monotonic_ms=lambda: 0)
    group = LogGroup(whole, state, cast(Any, core), cast(Any, clock))
    state.apply(log.batches[0])
    state.committed(0)
    group.refresh()
    state.become(newer)
    group.refresh()
    assert (member.group.voters, member.former_voters) == (NODES[:3], NODES[:2])
