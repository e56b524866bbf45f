"""Events of a node's journal: kind and data hold the whole event."""

import msgspec
import pytest
from msgspec import UNSET

from app.log.events import (
    KINDS,
    Corruption,
    EpochAdded,
    JournalEvent,
    RoleChanged,
    Stopped,
    Truncated,
)


@pytest.mark.parametrize(
    "event",
    [
        Stopped(),
        RoleChanged(role="follower", leader=None),
        Truncated(from_index=4, to_index=7, leader="n2", refused=True),
        Corruption(reason="checksum", offset=None, file="0.seg"),
        EpochAdded(
            epoch=2,
            term=2,
            leader="n1",
            start_index=4,
            start_offset=512,
            end_index=None,
            end_offset=None,
            started_ms=1_700_000_000_000,
        ),
    ],
    ids=lambda event: event.kind,
)
def test_kind_and_data_hold_the_whole_event(event: JournalEvent) -> None:
    assert "kind" not in event.data
    assert msgspec.convert({**event.data, "kind": event.kind}, KINDS[event.kind]) == event


def test_a_field_without_a_value_is_absent_and_null_is_a_value() -> None:
    assert Corruption(reason="checksum", offset=None).data == {"reason": "checksum", "offset": None}


def test_every_kind_has_its_tag() -> None:
    assert [struct.__struct_config__.tag for struct in KINDS.values()] == list(KINDS)
    assert Truncated(from_index=0, to_index=-1).receipt is UNSET
