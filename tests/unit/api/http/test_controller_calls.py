"""Refusals of the active controller as problems of the call."""

from app.api.http.controller_calls import _refusal
from app.controller.commands import AnyCommand, ChangeLog, ChangeReplica, Reason, Refusal, ReplicaChange
from app.errors import InvalidRequest

DETAIL = "min_in_sync_replicas is from 1 to 1"
REFUSAL = Refusal(Reason.INVALID, DETAIL, (("/min_in_sync_replicas", DETAIL),))


def pointers(command: AnyCommand, refusal: Refusal) -> list[str]:
    problem = _refusal(command, refusal)
    assert isinstance(problem, InvalidRequest)
    return [error["pointer"] for error in problem.errors]


def test_a_refused_setting_is_pointed_to_where_the_call_has_settings() -> None:
    change = ChangeLog("a", {"min_in_sync_replicas": 5}, "id", None, 1, False)
    assert pointers(change, REFUSAL) == ["/min_in_sync_replicas"]
    assert pointers(change, Refusal(Reason.INVALID, DETAIL)) == [""]  # by an earlier version
    assert pointers(ChangeReplica("a", "n2", ReplicaChange.DEMOTE, "id", 1, False), REFUSAL) == [""]
