"""Replica ids: permanent, crash-safe to obtain, never those of another copy (C-03)."""

import pytest

from app.controller.commands import ApplyForReplicaId, Reason, Refusal, RegisterReplica
from tests.unit.controller.support import CONFIG, Quorum


@pytest.mark.rule("C-03")
def test_an_id_belongs_to_the_check_code_also_when_the_answer_was_lost() -> None:
    quorum = Quorum()
    generation = quorum.create().generation
    first = quorum.done(ApplyForReplicaId("a", generation, "n1", "code"))
    again = quorum.done(ApplyForReplicaId("a", generation, "n1", "code"))
    other = quorum.done(ApplyForReplicaId("a", generation, "n2", "code 2"))
    assert (first.value, again.value, other.value) == (1, 1, 2)
    quorum.fail_over()
    assert quorum.done(ApplyForReplicaId("a", generation, "n1", "code")).value == 1


@pytest.mark.rule("C-03")
def test_an_id_is_registered_by_its_own_copy_alone() -> None:
    quorum = Quorum()
    generation = quorum.create().generation
    quorum.done(ApplyForReplicaId("a", generation, "n1", "code"))
    assert quorum.log().of_node("n1") is None  # applied for is not registered

    def register(replica_id: int, code: str) -> RegisterReplica:
        return RegisterReplica("a", generation, "n1", replica_id, code, "h:1")

    assert quorum.refused(register(1, "other")) is Reason.CHECK_CODE
    assert quorum.refused(register(2, "code")) is Reason.UNKNOWN_REPLICA
    assert quorum.refused(RegisterReplica("a", 99, "n1", 1, "code", "h:1")) is Reason.OTHER_GENERATION
    assert quorum.refused(ApplyForReplicaId("a", generation, "n9", "c")) is Reason.NOT_A_REPLICA
    quorum.done(register(1, "code"))
    events = len(quorum.events)
    quorum.done(register(1, "code"))  # the answer was lost, or the node has started again
    assert len(quorum.events) == events
    quorum.done(RegisterReplica("a", generation, "n1", 1, "code", "h:2"))  # it has moved
    assert [(each.id, each.address) for each in quorum.log().replicas] == [(1, "h:2")]


@pytest.mark.rule("C-03", "C-05")
def test_a_copy_that_was_lost_leaves_the_set_and_is_never_elected_for_the_old_one() -> None:
    quorum = Quorum()
    log = quorum.with_master()
    quorum.join_all()
    assert len(quorum.log().sync_state_set) == 3
    new = quorum.register("n2", code="an empty disk")
    log = quorum.log()
    assert new == 4
    assert log.set_nodes == ("n1", "n3")
    assert not log.is_current(2)
    assert (
        quorum.refused(RegisterReplica("a", log.generation, "n2", 2, "code n2", "h:1"))
        is Reason.UNKNOWN_REPLICA
    )
    quorum.heartbeats("n2")
    for _ in range(60):  # n1 and n3 die
        quorum.pass_time(CONFIG.broker_timeout_ms // 20)
        quorum.heartbeat("n2")
        quorum.turn()
    assert quorum.log().master is None


@pytest.mark.rule("C-03", "C-05")
def test_the_last_member_that_lost_its_disk_is_not_taken_for_itself() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.register("n1", code="an empty disk")  # it was the whole set
    assert quorum.log().master is None
    assert quorum.log().sync_state_set == (1,)
    for _ in range(60):
        quorum.pass_time(CONFIG.broker_timeout_ms // 20)
        quorum.heartbeats()
        quorum.turn()
    assert quorum.log().master is None
    assert quorum.log().set_nodes == ()


@pytest.mark.rule("C-03")
def test_a_late_repeat_of_an_earlier_copy_displaces_no_live_one() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    new = quorum.register("n2", code="an empty disk")
    generation = quorum.log().generation
    late = quorum.done(ApplyForReplicaId("a", generation, "n2", "code n2")).value  # the copy that was lost
    assert late not in (2, new)
    quorum.done(RegisterReplica("a", generation, "n2", new, "an empty disk", "n2:10911"))  # it starts again
    assert quorum.id_of("n2") == new
    assert quorum.done(ApplyForReplicaId("a", generation, "n2", "an empty disk")).value == new
    other = quorum.register("n2", code="another empty disk")
    assert other > new
    command = RegisterReplica("a", generation, "n2", new, "an empty disk", "n2:10911")
    assert quorum.refused(command) is Reason.UNKNOWN_REPLICA


@pytest.mark.rule("C-03", "C-06")
def test_a_copy_that_replaces_another_raises_the_epoch_of_the_set() -> None:
    """A request that the master made for the set with the copy before must not be accepted any more."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    before = quorum.log()
    quorum.register("n3", code="an empty disk")
    assert quorum.log().set_epoch == before.set_epoch + 1
    answer = quorum.alter("n1", set_epoch=before.set_epoch)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.STALE_SET_EPOCH
