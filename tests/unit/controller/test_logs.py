"""Logs come and go by the controllers: settings, versions, retries, generations (docs/api.md §5)."""

from typing import Any

import msgspec
import pytest

from app.api.http.preconditions import NEVER
from app.controller.commands import (
    ChangeLog,
    CreateLog,
    DeleteLog,
    Done,
    ElectMaster,
    Reason,
    Refusal,
    StepDown,
)
from app.controller.metadata import LogSpec
from app.controller.settings_of_logs import complaints_about
from app.controller.state_machine import Metadata
from tests.unit.controller.support import CONFIG, Quorum, spec


def test_creating_twice_is_one_log_and_other_settings_are_refused() -> None:
    quorum = Quorum()
    first = quorum.done(CreateLog("a", spec(), "x"))
    repeat = quorum.done(CreateLog("a", spec(), "x"))
    again = quorum.done(CreateLog("a", spec(), "y"))
    assert (first.created, repeat.created, again.created) == (True, True, False)
    assert len(quorum.events) == 1
    assert quorum.refused(CreateLog("a", spec("n1"), "z")) is Reason.LOG_EXISTS


def test_a_refused_creation_names_the_settings_that_differ() -> None:
    quorum = Quorum()
    quorum.done(CreateLog("a", spec(), "x"))
    answer = quorum.ask(CreateLog("a", spec("n1", unclean=True), "z"))
    assert isinstance(answer, Refusal)
    assert answer.detail.endswith(": replicas, unclean")


@pytest.mark.parametrize(
    "bad",
    [
        spec("n1", "n9"),
        spec("n1", "n1"),
        spec(durability="sometimes"),
        spec(min_in_sync_replicas=4),
        spec(min_in_sync_replicas=0),
        spec("n1", "n2", learners=("n3",)),
        spec("n1", learners=("n1",)),
        spec(preferred="n9"),
        spec(learners=("n2",), preferred="n2"),
        spec(in_sync_replicas=1),
        spec(in_sync_replicas=4),
        spec(learners=("n3",), in_sync_replicas=3),
        LogSpec(replication="raft", replicas=("n1", "n2"), in_sync_replicas=2),
        spec(priorities={"n9": 1}),
        spec(priorities={"n1": -1}),
        spec(priorities={"n1": 2**31}),
        LogSpec(replication="raft", replicas=("n1", "n2"), priorities={"n1": 1}),
    ],
)
def test_settings_that_cannot_work_are_refused(bad: object) -> None:
    quorum = Quorum()
    assert quorum.refused(CreateLog("a", bad, "x")) is Reason.INVALID  # type: ignore[arg-type]
    assert quorum.events == []


@pytest.mark.parametrize(
    ("bad", "detail"),
    [
        (
            {"min_in_sync_replicas": 5},
            "min_in_sync_replicas is from 1 to 3, the number of replicas that are not learners, got 5",
        ),
        (
            {"min_in_sync_replicas": 3, "learners": ("n3",)},
            "from 1 to 2, the number of replicas that are not learners, got 3",
        ),
        ({"in_sync_replicas": 4}, "null for the whole SyncStateSet, got 4"),
        ({"durability": "disk"}, "durability is one of fsync, replicated, got 'disk'"),
        ({"replicas": ("n1", "n2", "n1")}, "a replica is named twice: n1"),
        ({"learners": ("n9",)}, "learners are replicas of the log; n9 keeps none"),
        ({"preferred": "n9"}, "preferred is a replica that is not a learner (n1, n2, n3), got 'n9'"),
        (
            {"replication": "raft", "min_in_sync_replicas": 5},
            "is a setting of controller and classic mode, got 5; Raft waits",
        ),
    ],
)
def test_a_refused_setting_is_named_with_its_value_and_what_is_allowed(
    bad: dict[str, Any], detail: str
) -> None:
    wanted = msgspec.structs.replace(spec(), **bad)
    complaints = complaints_about(wanted, ("n1", "n2", "n3"))
    assert [text for _, text in complaints if detail in text], complaints
    assert len(complaints) == 1


def test_changes_by_version_and_what_never_changes() -> None:
    quorum = Quorum()
    version = quorum.create().version
    quorum.done(ChangeLog("a", {"min_in_sync_replicas": 2}, "x", version))
    assert quorum.log().spec.min_in_sync_replicas == 2
    newer = quorum.log().version
    assert newer > version
    quorum.done(ChangeLog("a", {"min_in_sync_replicas": 2}, "x", version))  # the answer was lost
    assert quorum.log().version == newer
    assert quorum.refused(ChangeLog("a", {"unclean": True}, "y", version)) is Reason.CONFIG_CHANGED
    assert quorum.refused(ChangeLog("a", {"durability": "sometimes"}, "z")) is Reason.INVALID
    assert quorum.refused(ChangeLog("a", {"replication": "raft"}, "z")) is Reason.INVALID
    assert quorum.refused(ChangeLog("a", {"min_in_sync_replicas": 9}, "z")) is Reason.INVALID
    assert quorum.refused(ChangeLog("b", {"unclean": True}, "z")) is Reason.UNKNOWN_LOG


@pytest.mark.parametrize("changes", [{}, {"unclean": False, "replicas": ("n1", "n2", "n3")}])
def test_a_change_to_what_is_set_already_keeps_the_version(changes: dict[str, Any]) -> None:
    quorum = Quorum()
    version = quorum.create().version
    quorum.done(ChangeLog("a", changes, "x", version))
    assert quorum.log().version == version


@pytest.mark.rule("H-07")
def test_the_metadata_know_the_smallest_floor_that_a_log_had_before_it_was_raised() -> None:
    quorum = Quorum()
    quorum.create(min_in_sync_replicas=2)
    found = []
    for number, floor in enumerate((3, 2, 1, 2, 3, 3, 1)):
        quorum.done(ChangeLog("a", {"min_in_sync_replicas": floor}, f"x{number}"))
        found.append(quorum.log().raised_from)
    assert found == [2, 0, 0, 1, 1, 1, 0]
    quorum.done(ChangeLog("a", {"min_in_sync_replicas": 3}, "y"))
    restored = Metadata.restore(quorum.metadata.snapshot()).log("a")
    assert restored is not None
    assert restored.raised_from == 1


@pytest.mark.rule("C-09", "H-07")
@pytest.mark.parametrize(("floor", "raised_from"), [(1, 0), (3, 1)])
def test_rebuilt_metadata_do_not_know_how_low_the_floor_was(floor: int, raised_from: int) -> None:
    """A lost change may have lowered it: the next classic master hears the replicas that a floor of 1 asks
    for."""
    quorum = Quorum()
    quorum.create(min_in_sync_replicas=floor)
    quorum.rebuild()
    assert quorum.log().raised_from == raised_from


def test_the_refusal_of_a_version_names_the_current_one_and_no_internal_number() -> None:
    quorum = Quorum()
    current = quorum.create().version
    for command in (ChangeLog("a", {"unclean": True}, "x", NEVER), DeleteLog("a", version=NEVER)):
        answer = quorum.ask(command)
        assert isinstance(answer, Refusal)
        assert answer.detail == f"the settings are at version {current}; the change requires another version"


def test_a_deleted_log_is_removed_when_every_living_node_has_given_it_up_and_its_name_is_another_log() -> (
    None
):
    quorum = Quorum()
    first = quorum.with_master()
    quorum.active.liveness.disconnected("n3")
    assert quorum.refused(DeleteLog("a", version=99)) is Reason.CONFIG_CHANGED
    quorum.done(DeleteLog("a"))
    assert quorum.log().master is None
    assert quorum.refused(DeleteLog("a")) is Reason.LOG_DELETING
    assert quorum.refused(CreateLog("a", spec(), "y")) is Reason.LOG_DELETING
    assert quorum.refused(ChangeLog("a", {"unclean": True}, "z")) is Reason.LOG_DELETING
    quorum.let_pass(CONFIG.scan_interval_ms, "n1", "n2")  # they keep it still
    assert quorum.log().state == "deleting"
    for node in ("n1", "n2"):
        quorum.active.heartbeat(1, node, len(quorum.events) - 1, (), quorum.now_ms)
    quorum.scan()
    assert quorum.metadata.log("a") is None
    second = quorum.create()
    assert second.generation > first.generation
    assert second.log_id != first.log_id


def test_logs_of_the_configuration_file_exist_unasked_follow_it_and_are_not_deleted() -> None:
    quorum = Quorum(configured={"a": spec("n1", "n2")})
    quorum.scan()
    assert (quorum.log().generation, quorum.log().spec) == (-1, spec("n1", "n2"))
    assert quorum.refused(DeleteLog("a")) is Reason.CONFIGURED_LOG
    quorum.configured = {"a": spec("n1", "n2", unclean=True)}
    quorum.fail_over()
    quorum.scan()
    assert quorum.log().spec.unclean
    events = len(quorum.events)
    quorum.scan()
    assert len(quorum.events) == events


@pytest.mark.rule("C-02")
def test_a_round_that_was_not_stored_is_decided_again_and_its_answers_wait_for_the_commit() -> None:
    quorum = Quorum()
    token = object()
    quorum.active.ask(token, CreateLog("a", spec(), "x"))
    first = quorum.active.next_round(term=1, next_index=0, now_ms=quorum.now_ms, time_ms=0)
    assert first is not None
    assert (first.first_index, first.last_index) == (0, 0)
    assert quorum.active.applied(-1) == []
    quorum.active.not_stored()
    quorum.active.ask(object(), CreateLog("b", spec(), "y"))
    second = quorum.active.next_round(term=1, next_index=5, now_ms=quorum.now_ms, time_ms=0)
    assert second is not None
    assert [event.log for event in second.events] == ["a", "b"]
    assert quorum.active.applied(5) == []
    answers = quorum.active.applied(6)
    assert answers[0] == (token, Done(5, created=True))
    assert not quorum.active.is_busy


# --- repeats that arrive late -------------------------------------------------------------------------------


def delete(quorum: Quorum, command: DeleteLog) -> None:
    """Carried out, to the end: every node has removed its copy."""
    quorum.done(command)
    for node in quorum.nodes:
        quorum.active.heartbeat(1, node, len(quorum.events) - 1, (), quorum.now_ms)
    quorum.scan()
    assert quorum.metadata.log("a") is None


@pytest.mark.parametrize("fail_over", [False, True])
def test_a_late_repeat_of_a_change_does_not_undo_a_later_one(fail_over: bool) -> None:
    quorum = Quorum()
    quorum.create()
    first = ChangeLog("a", {"unclean": True}, "first")
    same = ChangeLog("a", {"min_in_sync_replicas": 1}, "same")  # as it is already
    quorum.done(first)
    quorum.done(same)
    quorum.done(ChangeLog("a", {"unclean": False, "min_in_sync_replicas": 2}, "second"))
    version = quorum.log().version
    if fail_over:
        quorum.metadata = Metadata.restore(quorum.metadata.snapshot())
        quorum.fail_over()
    for late in (first, same):
        quorum.done(late)
    assert (quorum.log().spec.unclean, quorum.log().spec.min_in_sync_replicas) == (False, 2)
    assert quorum.log().version == version


def test_late_repeats_leave_the_next_log_of_the_name_alone() -> None:
    quorum = Quorum()
    first = quorum.create()
    creation = CreateLog("a", spec("n1", "n2"), "first creation")
    change = ChangeLog("a", {"unclean": True}, "change", None, first.generation)
    election = ElectMaster("a", "n2", True, 9, first.generation)
    deletion = DeleteLog("a", None, first.generation, "deletion")
    delete(quorum, deletion)
    assert quorum.done(deletion).index == len(quorum.events) - 1  # its answer was lost
    quorum.done(creation)
    second = quorum.log()
    quorum.done(deletion)
    assert quorum.refused(DeleteLog("a", None, first.generation, "never carried out")) is (
        Reason.OTHER_GENERATION
    )
    assert quorum.refused(change) is Reason.OTHER_GENERATION
    assert quorum.refused(election) is Reason.OTHER_GENERATION
    assert quorum.log() == second
    for node in ("n1", "n2"):
        quorum.register(node)
    quorum.scan()
    assert quorum.log().master_node == "n1"
    assert quorum.refused(election) is Reason.OTHER_GENERATION  # at once: the lease of n1 is not withheld
    assert quorum.heartbeat("n1").withheld == ()
    delete(quorum, DeleteLog("a", None, second.generation, "second deletion"))
    quorum.done(creation)  # late: the log stays deleted
    assert quorum.metadata.log("a") is None


def test_a_controller_keeps_nothing_about_deleted_logs() -> None:
    quorum = Quorum()
    kept = quorum.create("b")
    quorum.offsets = {(node, log): (1, 100, 100) for node in quorum.nodes for log in ("a", "b")}
    for _ in range(3):
        first = quorum.with_master()
        for node in quorum.nodes:
            quorum.register(node, "b")
        quorum.heartbeats()
        assert quorum.active.liveness.confirmed(first, quorum.id_of("n1")) is not None
        quorum.done(StepDown("a", first.generation, first.master or 0, first.master_epoch, True))
        delete(quorum, DeleteLog("a", None, first.generation, f"deletion {first.generation}"))
    liveness = quorum.active.liveness
    assert {key[:2] for key in liveness._confirmed} == {("b", kept.generation)}
    for known in (liveness._granted_ms, liveness._given_up, liveness._handed_over, liveness._over_ms):
        assert "a" not in known


# --- logs of the configuration file -------------------------------------------------------------------------


def test_a_log_of_the_configuration_file_is_changed_and_the_newest_change_of_a_setting_holds() -> None:
    quorum = Quorum(configured={"a": spec("n1", "n2")})
    quorum.scan()
    quorum.done(ChangeLog("a", {"unclean": True, "min_in_sync_replicas": 2}, "x", None, -1))
    for _ in range(2):  # the file has not changed
        quorum.fail_over()
        quorum.scan()
    assert (quorum.log().spec.unclean, quorum.log().spec.min_in_sync_replicas) == (True, 2)
    quorum.configured = {"a": spec("n1", "n2", unclean=True, durability="replicated")}
    quorum.fail_over()
    quorum.scan()
    now = quorum.log().spec
    assert (now.unclean, now.min_in_sync_replicas, now.durability) == (True, 2, "replicated")
    quorum.configured = {"a": spec("n1", "n2", durability="replicated")}
    quorum.fail_over()
    quorum.scan()
    assert not quorum.log().spec.unclean
    events = len(quorum.events)
    quorum.fail_over()
    quorum.scan()
    assert len(quorum.events) == events


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"replication": "raft", "min_in_sync_replicas": 1}, "replication cannot be changed"),
        ({"replicas": ("n1", "n9")}, "no such nodes: n9"),
        ({"replicas": ("n1",)}, "min_in_sync_replicas"),
        ({"learners": ("n3",)}, "learners"),
        ({"durability": "perhaps"}, "durability"),
    ],
)
def test_the_configuration_file_changes_nothing_that_a_client_may_not(
    changes: dict[str, Any], detail: str
) -> None:
    first = spec("n1", "n2", min_in_sync_replicas=2)
    quorum = Quorum(configured={"a": first})
    quorum.scan()
    quorum.configured = {"a": msgspec.structs.replace(first, **changes)}
    quorum.fail_over()
    events = len(quorum.events)
    quorum.scan()
    assert quorum.log().spec == first
    assert len(quorum.events) == events
    assert detail in quorum.active.configuration_errors["a"]
    quorum.configured = {"a": msgspec.structs.replace(first, unclean=True)}
    quorum.fail_over()
    quorum.scan()
    assert quorum.log().spec.unclean
    assert not quorum.active.configuration_errors


def test_a_setting_that_would_do_nothing_is_refused() -> None:
    configured = LogSpec(replication="raft", replicas=("n1", "n2", "n3"), min_in_sync_replicas=2)
    quorum = Quorum(configured={"a": configured})
    quorum.scan()
    quorum.done(ChangeLog("a", {"durability": "replicated", "retention": {"ms": 1, "bytes": None}}, "x"))
    assert quorum.log().spec.durability == "replicated"
    assert quorum.refused(ChangeLog("a", {"unclean": True}, "y")) is Reason.INVALID
    other = LogSpec(replication="raft", replicas=("n1", "n2", "n3"))
    quorum.done(CreateLog("b", other, "z"))
    assert quorum.refused(ChangeLog("b", {"min_in_sync_replicas": 2}, "z2")) is Reason.INVALID
