"""Commands that a log's state decides: members whose addresses are taken (R-10)."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.errors import InvalidRequest
from app.log.commands import ChangeMembers
from app.log.contract import ChangeKind, GroupConfig
from app.log.control_records import MembershipRecord
from app.log.state import Address

N4 = Address("http://h4:8101", "h4:9101")


def control(
    change: ChangeMembers, members: Mapping[str, Address], *, learners: tuple[str, ...] = ("n4",)
) -> MembershipRecord:
    """learners: of the group after the change."""
    state = cast(Any, SimpleNamespace(membership=SimpleNamespace(nodes=members)))
    after = GroupConfig(voters=("n1",), learners=learners)
    record = change.control(state, cast(Any, SimpleNamespace(changed_group=lambda _kind, _node: after)))
    assert isinstance(record, MembershipRecord)
    return record


@pytest.mark.rule("R-10")
@pytest.mark.parametrize(
    ("taken", "pointer"),
    [
        (Address("http://other:8101", N4.peer_address), "/peer_address"),
        (Address(N4.url, "other:9101"), "/url"),
        (N4, "/peer_address"),
    ],
)
def test_a_member_with_the_address_of_another_one_is_refused(taken: Address, pointer: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        control(ChangeMembers(ChangeKind.ADD, "n5", N4), {"n4": taken})
    assert [error["pointer"] for error in refused.value.errors] == [pointer]
    assert "n4" in str(refused.value)


@pytest.mark.rule("R-10")
def test_a_member_keeps_its_address_until_it_is_removed() -> None:
    with pytest.raises(InvalidRequest, match="remove it first"):
        control(ChangeMembers(ChangeKind.ADD, "n4", N4), {"n4": Address("http://old:8101", "old:9101")})
    assert control(ChangeMembers(ChangeKind.ADD, "n4", N4), {"n4": N4}).nodes == {"n4": N4}
    assert control(ChangeMembers(ChangeKind.REMOVE, "n4"), {"n4": N4}, learners=()).nodes == {}


@pytest.mark.rule("R-10")
def test_one_of_two_voters_that_becomes_a_learner_before_its_removal_keeps_its_address() -> None:
    """The leader needs it: the record is committed once that learner holds it."""
    assert control(ChangeMembers(ChangeKind.REMOVE, "n4"), {"n4": N4}).nodes == {"n4": N4}
