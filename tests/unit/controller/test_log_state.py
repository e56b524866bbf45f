"""The state of `__controller` as the driver keeps it: committed events only, snapshots, cuts (C-01, C-09)."""

import pytest

from app.controller.events import AnyEvent, LogCreated, decode_event, encode_event
from app.controller.log_state import MetadataLogState
from storage.errors import NewerFormat
from storage.format.batch import Batch, stamp
from storage.format.records import RecordColumns, encode_body, encode_control
from tests.unit.controller.support import spec

LOG_ID = 7


def created(name: str) -> LogCreated:
    return LogCreated(log=name, spec=spec(), log_id=1, generation=0)


def batch_of(base_index: int, *events: AnyEvent, term: int = 1) -> Batch:
    records = RecordColumns()
    for event in events:
        records.add(encode_event(event))
    return _stamped(encode_body(records), base_index, term)


def _stamped(body: object, base_index: int, term: int, control: bool = False) -> Batch:
    return stamp(
        body,  # type: ignore[arg-type]
        log_id=LOG_ID,
        base_index=base_index,
        term=term,
        timestamp_ms=1,
        offset=base_index * 1_000,
        previous_chain=bytes(8),
        control=control,
    )


def names(state: MetadataLogState) -> list[str]:
    return [log.name for log in state.metadata]


@pytest.mark.rule("C-02")
def test_only_what_is_committed_is_in_the_metadata() -> None:
    state = MetadataLogState()
    state.apply(_stamped(encode_control({"kind": "term", "leader": "n1"}), 0, 1, control=True))
    state.apply(batch_of(1, created("a"), created("b")))
    state.apply(batch_of(3, created("c")))
    assert names(state) == []
    state.committed(2)
    assert names(state) == ["a", "b"]
    assert [index for index, _ in state.take_recent_events()] == [1, 2]
    state.truncate_after(2)
    state.apply(batch_of(3, created("d"), term=2))
    state.committed(3)
    assert names(state) == ["a", "b", "d"]
    assert state.metadata.applied_index == 3


@pytest.mark.rule("C-09")
@pytest.mark.parametrize("committed", [-1, 1, 2, 3])
def test_a_snapshot_keeps_the_metadata_and_what_is_not_committed_yet(committed: int) -> None:
    state = MetadataLogState()
    state.apply(_stamped(encode_control({"kind": "term", "leader": "n1"}), 0, 1, control=True))
    state.apply(batch_of(1, created("a")))
    state.apply(batch_of(2, created("b"), created("c")))
    state.committed(committed)
    restored = MetadataLogState.restore(state.snapshot())
    assert (names(restored), restored.applied_index) == (names(state), 3)
    for each in (state, restored):
        each.truncate_after(max(committed, 1))
        each.committed(1)
    assert names(restored) == names(state)
    assert restored.snapshot() == state.snapshot()


@pytest.mark.rule("C-09")
def test_a_state_that_comes_from_another_replica_brings_its_metadata() -> None:
    leader, late = MetadataLogState(), MetadataLogState()
    leader.apply(batch_of(0, created("a")))
    leader.committed(0)
    late.become(MetadataLogState.restore(leader.snapshot()))
    assert names(late) == ["a"]
    late.apply(batch_of(1, created("b")))
    late.committed(1)
    assert names(late) == ["a", "b"]


def test_an_event_of_a_later_version_is_refused_with_the_remedy() -> None:
    """The node ends, as for a file of a later version: an operator learns what to start."""
    records = RecordColumns()
    records.add(b'{"event":"no-such-event","log":"a"}')
    with pytest.raises(NewerFormat, match=r"record 0 of __controller: .*: start that version"):
        MetadataLogState().apply(_stamped(encode_body(records), 0, 1))
    with pytest.raises(ValueError, match="not a snapshot"):
        MetadataLogState.restore(b"\x01")


def test_metadata_written_before_a_setting_existed_stay_readable() -> None:
    event = (
        b'{"event":"log-created","log":"a","time_ms":5,"spec":{"replication":"controller",'
        b'"replicas":["n1","n2"],"preferred":"n2"},"log_id":7,"generation":3,"change_id":"x"}'
    )
    created = decode_event(event)
    assert isinstance(created, LogCreated)
    assert (created.spec.priorities, created.spec.preferred) == ({}, "n2")
