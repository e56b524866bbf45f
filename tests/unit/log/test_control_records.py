"""Control records: their bytes are those of earlier versions, and readers accept newer ones."""

from typing import Any

import pytest

from app.log.control_records import (
    CONTROL_KINDS,
    AnyControlRecord,
    CursorRecord,
    FenceRecord,
    MembershipRecord,
    SchemaRecord,
    TermRecord,
    TrimRecord,
    decode_control,
)
from app.log.state import Address
from storage.errors import CorruptBatch
from storage.format.records import encode_control


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (TermRecord(leader="n1"), {"kind": "term", "leader": "n1"}),
        (
            TermRecord(leader="n1", voters=("n1", "n2"), learners=()),
            {"kind": "term", "leader": "n1", "voters": ["n1", "n2"], "learners": []},
        ),
        (TermRecord(leader="n1", unclean=True), {"kind": "term", "leader": "n1", "unclean": True}),
        (
            MembershipRecord(voters=("n1",), learners=("n2",), nodes={"n2": Address("http://b", "b:1")}),
            {
                "kind": "membership",
                "voters": ["n1"],
                "learners": ["n2"],
                "nodes": {"n2": ["http://b", "b:1"]},
            },
        ),
        (FenceRecord(token=None), {"kind": "fence", "token": None}),
        (
            CursorRecord(name="etl", index=4, fence=True),
            {"kind": "cursor", "name": "etl", "index": 4, "fence": True},
        ),
        (
            CursorRecord(name="etl", index=4, fence=True, holder="etl-1"),
            {"kind": "cursor", "name": "etl", "index": 4, "fence": True, "holder": "etl-1"},
        ),
        (TrimRecord(until_index=7), {"kind": "trim", "until_index": 7}),
        (
            SchemaRecord(
                version=1, format="json", definition="a int", key_columns=("a",), on_invalid="reject"
            ),
            {
                "kind": "schema",
                "version": 1,
                "format": "json",
                "definition": "a int",
                "message": None,
                "key_columns": ["a"],
                "compatibility": "backward",
                "on_invalid": "reject",
                "cluster_by": [],
            },
        ),
    ],
)
def test_a_record_has_the_bytes_of_earlier_versions(record: AnyControlRecord, value: dict[str, Any]) -> None:
    assert bytes(encode_control(record).data) == bytes(encode_control(value).data)
    assert decode_control(value) == record


def test_kinds_and_fields_of_newer_versions_are_ignored() -> None:
    assert decode_control({"kind": "weather", "sky": "blue"}) is None
    assert decode_control({"sky": "blue"}) is None
    assert decode_control({"kind": "trim", "until_index": 7, "reason": "age"}) == TrimRecord(until_index=7)


@pytest.mark.parametrize("kind", CONTROL_KINDS)
def test_a_known_kind_without_its_fields_is_damage(kind: str) -> None:
    with pytest.raises(CorruptBatch, match="control record"):
        decode_control({"kind": kind})
