"""Events of a node's journal: every kind is read as it was written, and as earlier versions wrote it."""

from typing import Any

import pytest
from msgspec import UNSET

from app.log.events import (
    KINDS,
    AnyJournalEvent,
    Corruption,
    EpochAdded,
    RoleChanged,
    Stopped,
    Truncated,
    decode_event,
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
def test_an_event_is_read_as_it_was_written(event: AnyJournalEvent) -> None:
    assert "kind" not in event.data
    assert decode_event(event.kind, event.data) == event


def test_a_field_without_a_value_is_absent_and_null_is_a_value() -> None:
    assert Corruption(reason="checksum", offset=None).data == {"reason": "checksum", "offset": None}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            {"after_index": 3, "end_index": 7, "offset": 512, "master": "n1"},
            Truncated(from_index=4, to_index=7, offset=512, leader="n1"),
        ),
        (
            {
                "after_index": 3,
                "epoch": 2,
                "reason": "unclean-election",
                "receipt": "receipts/log/2-4-7.arrow",
            },
            Truncated(
                from_index=4,
                to_index=3,
                epoch=2,
                reason="unclean-election",
                receipt="receipts/log/2-4-7.arrow",
            ),
        ),
        (
            {
                "from_index": 4,
                "to_index": 7,
                "committed_index": 3,
                "leader": "n1",
                "reset": False,
                "refused": False,
            },
            Truncated(from_index=4, to_index=7, committed_index=3, leader="n1"),
        ),
    ],
    ids=["on return", "unclean election", "raft"],
)
def test_truncations_of_earlier_versions_are_read(data: dict[str, Any], expected: Truncated) -> None:
    assert decode_event("truncate", data) == expected


def test_kinds_and_fields_of_newer_versions_are_ignored() -> None:
    assert decode_event("weather", {"sky": "blue"}) is None
    assert decode_event("stop", {"reason": "upgrade"}) == Stopped()


def test_a_known_kind_without_its_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="leader"):
        decode_event("role", {"role": "leader"})


def test_every_kind_has_its_tag() -> None:
    assert [struct.__struct_config__.tag for struct in KINDS.values()] == list(KINDS)
    assert Truncated(from_index=0, to_index=-1).receipt is UNSET
