"""AlterSyncStateSet: every refusal with its reason, and retries (C-06)."""

from typing import Any

import pytest

from app.controller.commands import AlterSyncStateSet, Done, Reason, Refusal
from tests.unit.controller.support import CONFIG, Quorum


def reason_of(answer: object) -> Reason:
    assert isinstance(answer, Refusal), answer
    return answer.reason


@pytest.mark.rule("C-06")
def test_the_master_grows_and_shrinks_the_set_by_the_newest_epochs() -> None:
    quorum = Quorum()
    quorum.with_master()
    assert isinstance(quorum.alter("n1", "n2"), Done)
    assert quorum.log().set_nodes == ("n1", "n2")
    assert isinstance(quorum.alter("n1", "n2", "n3"), Done)
    assert isinstance(quorum.alter("n1"), Done)
    assert (quorum.log().set_nodes, quorum.log().set_epoch) == (("n1",), 5)


@pytest.mark.rule("C-06")
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"master": 2}, Reason.NOT_MASTER),
        ({"master_epoch": 0}, Reason.STALE_MASTER_EPOCH),
        ({"master_epoch": 2}, Reason.STALE_MASTER_EPOCH),
        ({"set_epoch": 1}, Reason.STALE_SET_EPOCH),
        ({"set_epoch": 3}, Reason.STALE_SET_EPOCH),
        ({"wanted": (2, 3)}, Reason.MASTER_NOT_IN_SET),
        ({"wanted": ()}, Reason.MASTER_NOT_IN_SET),
        ({"wanted": (1, 9)}, Reason.NOT_REGISTERED),
        ({"generation": 99}, Reason.OTHER_GENERATION),
        ({"log": "b"}, Reason.UNKNOWN_LOG),
    ],
)
def test_a_refusal_names_its_reason_and_changes_nothing(changes: dict[str, Any], reason: Reason) -> None:
    quorum = Quorum()
    quorum.with_master()
    events = len(quorum.events)
    assert reason_of(quorum.alter("n1", "n2", **changes)) is reason
    assert len(quorum.events) == events


@pytest.mark.rule("C-06", "C-11")
def test_a_dead_or_unregistered_replica_or_a_learner_does_not_join() -> None:
    quorum = Quorum(("n1", "n2", "n3", "n4"))
    quorum.create(learners=("n3",))
    quorum.heartbeats()
    for node in ("n1", "n2", "n3"):
        quorum.register(node)
    quorum.heartbeats()
    quorum.scan()
    assert reason_of(quorum.alter("n1", "n3")) is Reason.LEARNER
    quorum.pass_time(CONFIG.broker_timeout_ms)
    quorum.heartbeats("n1")
    assert reason_of(quorum.alter("n1", "n2")) is Reason.NOT_ALIVE
    quorum.heartbeats()
    assert isinstance(quorum.alter("n1", "n2"), Done)
    quorum.register("n2", code="an empty disk")
    assert reason_of(quorum.alter("n1", wanted=(1, 2))) is Reason.NOT_REGISTERED


@pytest.mark.rule("C-06")
def test_without_a_master_the_set_does_not_change() -> None:
    quorum = Quorum()
    quorum.create(preferred="n3")
    quorum.heartbeats()
    quorum.register("n1")
    answer = quorum.ask(AlterSyncStateSet("a", quorum.log().generation, 1, 0, 0, (1,)))
    assert reason_of(answer) is Reason.NO_MASTER


@pytest.mark.rule("C-06")
def test_an_unanswered_request_is_asked_again_without_a_second_effect() -> None:
    quorum = Quorum()
    quorum.with_master()
    log = quorum.log()
    command = AlterSyncStateSet("a", log.generation, 1, log.master_epoch, log.set_epoch, (1, 2))
    assert isinstance(quorum.ask(command), Done)
    events = len(quorum.events)
    quorum.fail_over()
    assert isinstance(quorum.ask(command), Done)
    assert len(quorum.events) == events
    assert reason_of(quorum.alter("n1")) is Reason.NOT_ALIVE  # the new active one has heard no broker yet
    quorum.heartbeats()
    assert isinstance(quorum.alter("n1"), Done)
    assert reason_of(quorum.ask(command)) is Reason.STALE_SET_EPOCH  # late, and overtaken


@pytest.mark.rule("C-06", "C-12")
def test_the_set_that_holds_is_accepted_under_a_new_epoch_so_that_doubt_can_be_settled() -> None:
    quorum = Quorum()
    quorum.with_master()
    before = quorum.log()
    assert isinstance(quorum.alter("n1"), Done)
    after = quorum.log()
    assert (after.sync_state_set, after.set_epoch) == (before.sync_state_set, before.set_epoch + 1)


@pytest.mark.rule("C-12")
def test_a_group_of_two_loses_and_regains_either_replica() -> None:
    quorum = Quorum(("n1", "n2"))
    quorum.with_master()
    quorum.join_all()
    for dead, left in (("n1", "n2"), ("n2", "n1")):
        for _ in range(12):
            quorum.pass_time(CONFIG.broker_timeout_ms // 10)
            quorum.heartbeats(left)
            quorum.turn()
        assert quorum.log().master_node == left
        assert quorum.log().set_nodes == (left,)
        quorum.heartbeats(dead, left)
        assert isinstance(quorum.alter("n1", "n2"), Done)


def confirming(interval_ms: int) -> Quorum:
    """n1 is the master of a set of all. Each node has confirmed answers, one in each interval."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.with_master()
    quorum.join_all()
    for _ in range(4):
        quorum.let_pass(interval_ms)
    return quorum


@pytest.mark.rule("C-05", "C-06")
def test_a_master_that_receives_no_answers_does_not_make_itself_the_only_member() -> None:
    """Its requests arrive, and acks of its slaves do not. Its lease is over by then, so it could not use the
    smaller set, but no other replica could be elected."""
    quorum = confirming(CONFIG.heartbeat_interval_ms)
    quorum.deaf = {"n1"}
    for waited_ms in range(0, CONFIG.broker_timeout_ms, 100):
        quorum.let_pass(100)
        if waited_ms >= 1_200 and quorum.log().master_node == "n1":
            assert reason_of(quorum.alter("n1")) is Reason.NOT_ALIVE
    quorum.let_pass(CONFIG.lease_ms)
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n2", 0)


@pytest.mark.rule("C-06")
def test_a_master_whose_heartbeats_are_slow_alters_the_set() -> None:
    quorum = confirming(CONFIG.heartbeat_interval_ms)
    quorum.pass_time(CONFIG.heartbeat_interval_ms)
    assert isinstance(quorum.alter("n1"), Done)


@pytest.mark.rule("C-06")
def test_a_master_that_is_granted_leases_alters_the_set_at_any_time_between_its_heartbeats() -> None:
    """A refused one asks again one interval later, thus at the same place between two heartbeats: it might be
    refused each time, and a dead slave would stop the appends."""
    late_ms = CONFIG.heartbeat_interval_ms + CONFIG.retry_interval_ms
    quorum = confirming(late_ms)
    assert quorum.heartbeat("n1").granted
    quorum.let_pass(late_ms)
    quorum.pass_time(late_ms)  # the next heartbeat is about to arrive
    assert isinstance(quorum.alter("n1", "n2"), Done)
