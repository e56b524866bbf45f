"""The metadata state machine: total, deterministic, idempotent; its snapshot is all of it."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.controller.events import (
    AnyEvent,
    LogChanged,
    LogCreated,
    LogDeleted,
    LogDeletionBegun,
    MasterElected,
    MasterLost,
    ReplicaIdApplied,
    ReplicaRegistered,
    SyncStateSetChanged,
    decode_event,
    encode_event,
)
from app.controller.metadata import Log, LogSpec
from app.controller.state_machine import Metadata
from tests.unit.controller.support import spec

NAMES = st.sampled_from(["a", "b"])
NODES = st.sampled_from(["n1", "n2", "n3"])
SMALL = st.integers(0, 6)


def events() -> st.SearchStrategy[AnyEvent]:
    """Any events at all, sensible or not."""
    specs = st.builds(spec, min_in_sync_replicas=st.integers(1, 3))
    sets = st.lists(SMALL, max_size=4).map(lambda ids: tuple(sorted(set(ids))))
    return st.one_of(
        st.builds(LogCreated, log=NAMES, spec=specs, log_id=SMALL, generation=SMALL),
        st.builds(LogChanged, log=NAMES, spec=specs, change_id=st.just("x")),
        st.builds(LogDeletionBegun, log=NAMES),
        st.builds(LogDeleted, log=NAMES),
        st.builds(ReplicaIdApplied, log=NAMES, node=NODES, replica_id=SMALL, check_code=st.just("c")),
        st.builds(ReplicaRegistered, log=NAMES, replica_id=SMALL, address=st.just("h:1")),
        st.builds(
            MasterElected,
            log=NAMES,
            master=SMALL,
            master_epoch=SMALL,
            set_epoch=SMALL,
            reason=st.just("r"),
            unclean=st.booleans(),
        ),
        st.builds(MasterLost, log=NAMES, master_epoch=SMALL),
        st.builds(SyncStateSetChanged, log=NAMES, master_epoch=SMALL, sync_state_set=sets, set_epoch=SMALL),
    )


def state_after(history: list[AnyEvent]) -> Metadata:
    metadata = Metadata()
    for index, event in enumerate(history):
        metadata.apply(index, event)
    return metadata


@pytest.mark.rule("C-01")
@settings(max_examples=200, deadline=None)
@given(st.lists(events(), max_size=30))
def test_the_same_events_give_the_same_metadata_for_any_content(history: list[AnyEvent]) -> None:
    one, other = state_after(history), Metadata()
    for index, event in enumerate(history):
        other.apply(index, decode_event(encode_event(event)))
        other.apply(index, event)  # again: as if it had not come
        other.apply(0, event)
    assert one.snapshot() == other.snapshot()


@pytest.mark.rule("C-09")
@settings(max_examples=100, deadline=None)
@given(st.lists(events(), max_size=30), st.integers(0, 30))
def test_a_snapshot_and_the_events_after_it_are_the_whole_log(history: list[AnyEvent], cut: int) -> None:
    restored = Metadata.restore(state_after(history[:cut]).snapshot())
    for index, event in enumerate(history[cut:], min(cut, len(history))):
        restored.apply(index, event)
    assert restored.snapshot() == state_after(history).snapshot()


@pytest.mark.rule("C-04", "C-05")
@settings(max_examples=200, deadline=None)
@given(st.lists(events(), max_size=40))
def test_epochs_never_fall_nor_repeat_and_the_master_is_in_the_set(history: list[AnyEvent]) -> None:
    metadata = Metadata()
    before: dict[int, Log] = {}
    for index, event in enumerate(history):
        metadata.apply(index, event)
        for log in metadata:
            born = log.name, log.generation, log.log_id, id_of_birth(history, index, log)
            old = before.get(hash(born))
            if old is not None:
                assert log.master_epoch >= old.master_epoch
                assert log.set_epoch >= old.set_epoch
                assert log.next_replica_id >= old.next_replica_id
                if log.sync_state_set != old.sync_state_set:
                    assert log.set_epoch > old.set_epoch
                if log.master not in (None, old.master):
                    assert log.master_epoch > old.master_epoch
            if log.master is not None:
                assert log.master in log.sync_state_set
            before[hash(born)] = log


def id_of_birth(history: list[AnyEvent], until: int, log: Log) -> int:
    """The index of the event that created this log: a later log of the name starts again."""
    deleted = [
        index
        for index in range(until + 1)
        if isinstance(history[index], LogDeleted) and history[index].log == log.name
    ]
    return len(deleted)


def test_a_damaged_snapshot_is_refused() -> None:
    data = state_after([LogCreated(log="a", spec=spec(), log_id=1, generation=0)]).snapshot()
    assert Metadata.restore(data).log("a") is not None
    for position in (0, 1):
        with pytest.raises((msgspec.DecodeError, ValueError)):
            Metadata.restore(bytes([data[position] ^ 0x7F]) if position == 0 else data[: len(data) // 2])


def test_a_copy_goes_its_own_way() -> None:
    history: list[AnyEvent] = [LogCreated(log="a", spec=spec(), log_id=1, generation=0)]
    metadata = state_after(history)
    other = metadata.copy()
    other.apply(
        1, LogCreated(log="b", spec=LogSpec(replication="raft", replicas=("n1",)), log_id=2, generation=1)
    )
    assert [log.name for log in metadata] == ["a"]
    assert [log.name for log in other] == ["a", "b"]
