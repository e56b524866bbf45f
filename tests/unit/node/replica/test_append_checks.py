"""Limits of the appends that wait at a leader."""

import pytest

from app.errors import LeaderPendingFull
from app.log.contract import AppendRequest
from app.log.driver_interfaces import AppendLimits
from app.node.replica.append_checks import check_quota
from storage.format.records import RecordColumns
from tests.unit.node.replica.driver_support import Limits


def test_an_append_beyond_the_limit_is_accepted_only_alone() -> None:
    """A group is none: of its members, only the first one would have been accepted."""
    records = RecordColumns()
    records.add(b"x" * 20)
    limits: AppendLimits = Limits(max_pending_bytes=10)
    check_quota(limits, 0, 0, AppendRequest(records))
    with pytest.raises(LeaderPendingFull):
        check_quota(limits, 1, 1, AppendRequest(records))
    with pytest.raises(LeaderPendingFull):
        check_quota(limits, 0, 0, AppendRequest(records, appends=2))
