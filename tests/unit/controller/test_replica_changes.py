"""The nodes of a log change while it runs: nothing leaves before the log can do without it."""

from typing import Any

import msgspec
import pytest

from app.controller.commands import (
    ApplyForReplicaId,
    ChangeLog,
    ChangeReplica,
    Done,
    ElectMaster,
    Reason,
    RegisterReplica,
    ReplicaChange,
    StepDown,
)
from app.controller.metadata import Log
from app.controller.state_machine import Metadata
from tests.unit.controller.support import CONFIG, Quorum, spec
from tests.unit.controller.test_lost_records import heard, restored

FOUR = ("n1", "n2", "n3", "n4")
KEEPING = ("n1", "n2", "n3")


def in_sync(**settings: Any) -> Quorum:
    """Four nodes, three of them keep the log and are in its SyncStateSet, n1 is its master."""
    quorum = Quorum(FOUR)
    quorum.nodes = KEEPING
    quorum.with_master(**settings)
    open_epoch(quorum)
    quorum.join_all()
    quorum.nodes = FOUR
    quorum.heartbeats()
    return quorum


def open_epoch(quorum: Quorum) -> None:
    """Every copy holds a record of the newest epoch."""
    for node in FOUR:
        quorum.offsets[node, "a"] = (quorum.log().master_epoch, 100, 100)
    quorum.heartbeats()
    quorum.scan()


def change(quorum: Quorum, *replicas: str, force: bool = False, **others: Any) -> Log:
    changes = {"replicas": replicas, **others}
    quorum.done(ChangeLog("a", changes, f"change {len(quorum.events)}", force=force))
    return quorum.log()


def alter(quorum: Quorum, *nodes: str) -> Log:
    quorum.heartbeats()
    assert isinstance(quorum.alter(*nodes), Done)
    return quorum.log()


def hand_over(quorum: Quorum) -> None:
    """The master hears that it is to give up, and does."""
    log = quorum.log()
    assert log.master is not None
    assert log.master_node is not None
    assert quorum.heartbeat(log.master_node).withheld == ("a",)
    quorum.done(StepDown("a", log.generation, log.master, log.master_epoch))


def one(quorum: Quorum, kind: ReplicaChange, node: str, *, force: bool = False) -> ChangeReplica:
    generation = quorum.log().generation
    return ChangeReplica("a", node, kind, f"{kind} {len(quorum.events)}", generation, force)


@pytest.mark.rule("C-03", "C-08", "C-12")
def test_a_replaced_replica_leaves_when_the_new_one_is_in_sync() -> None:
    quorum = in_sync()
    log = change(quorum, "n1", "n2", "n4")
    assert (log.spec.replicas, log.leaving, log.arriving) == (("n1", "n2", "n4"), ("n3",), ("n4",))
    assert log.set_nodes == KEEPING
    quorum.register("n4")
    quorum.scan()
    assert quorum.log().leaving == ("n3",)
    old = quorum.id_of("n3")
    log = alter(quorum, *FOUR)
    assert (log.set_nodes, log.leaving, log.arriving) == (("n1", "n2", "n4"), (), ())
    assert log.replica(old) is None
    assert log.master_node == "n1"


@pytest.mark.rule("C-05", "C-12")
def test_a_dead_replica_is_replaced_too() -> None:
    quorum = in_sync()
    quorum.active.liveness.disconnected("n3")
    assert isinstance(quorum.alter("n1", "n2"), Done)
    change(quorum, "n1", "n2", "n4")
    quorum.register("n4")
    quorum.heartbeats("n1", "n2", "n4")
    assert quorum.log().leaving == ("n3",)
    assert isinstance(quorum.alter("n1", "n2", "n4"), Done)
    quorum.scan()
    assert quorum.log().leaving == ()
    assert quorum.log().nodes == ("n1", "n2", "n4")


@pytest.mark.rule("C-05", "A-11")
def test_a_leaving_master_gives_its_lease_up_before_another_is_elected() -> None:
    quorum = in_sync()
    quorum.heartbeat("n1")  # it holds a lease
    log = change(quorum, "n2", "n3")
    assert log.master_node == "n1"
    quorum.scan()
    assert quorum.log().master_node == "n1"
    hand_over(quorum)
    former = quorum.log().former_set
    assert quorum.id_of("n1") in former
    quorum.scan()
    log = quorum.log()
    assert (log.master_node, log.set_nodes) == ("n2", ("n2",))
    assert (log.leaving, log.former_set) == (("n1",), former)  # the new master has not opened its epoch
    open_epoch(quorum)
    quorum.scan()
    assert quorum.log().nodes == ("n2", "n3")
    assert quorum.log().of_node("n1") is None


@pytest.mark.rule("C-05", "A-11")
def test_a_leaving_master_is_granted_its_lease_again_when_no_other_can_be_elected() -> None:
    quorum = in_sync()
    quorum.heartbeat("n1")
    change(quorum, "n2", "n3")
    quorum.scan()
    assert quorum.heartbeat("n1").withheld == ("a",)
    for node in ("n2", "n3"):
        quorum.active.liveness.disconnected(node)
    quorum.scan()
    answer = quorum.heartbeat("n1")
    assert (answer.withheld, answer.granted) == ((), (("a", quorum.log().master_epoch),))


@pytest.mark.rule("C-12")
def test_the_last_copies_in_sync_and_the_floor_stay_until_others_are_in_sync() -> None:
    quorum = in_sync(min_in_sync_replicas=2)
    assert isinstance(quorum.alter("n1", "n2"), Done)
    log = change(quorum, "n1", "n3", min_in_sync_replicas=2)
    assert (log.leaving, log.arriving) == (("n2",), ())
    quorum.scan()
    assert quorum.log().set_nodes == ("n1", "n2")
    assert quorum.refused(one(quorum, ReplicaChange.REMOVE, "n1")) is Reason.LAST_IN_SYNC
    log = alter(quorum, "n1", "n2", "n3")
    assert (log.set_nodes, log.leaving) == (("n1", "n3"), ())


@pytest.mark.rule("C-12")
def test_a_member_that_is_dead_does_not_count_when_another_leaves() -> None:
    quorum = in_sync()
    assert isinstance(quorum.alter("n1", "n2"), Done)
    quorum.active.liveness.disconnected("n1")  # the master, heard no more, holds a lease still
    change(quorum, "n1", "n3")
    assert quorum.log().leaving == ("n2",)
    assert quorum.log().set_nodes == ("n1", "n2")


@pytest.mark.rule("C-12")
def test_nodes_leave_a_set_of_which_a_part_acknowledges_when_all_of_it_does() -> None:
    """A record may be on the leaving copy and the master alone; the master counts all while nodes leave."""
    quorum = in_sync(in_sync_replicas=2)
    assert isinstance(quorum.alter(*KEEPING, acks=2), Done)
    log = change(quorum, "n1", "n2")
    assert (log.leaving, log.set_nodes) == (("n3",), KEEPING)
    assert (log.spec.in_sync_replicas, log.acting_spec.in_sync_replicas) == (2, None)
    quorum.scan()
    assert quorum.log().leaving == ("n3",)
    assert isinstance(quorum.alter(*KEEPING, acks=0), Done)
    quorum.scan()
    log = quorum.log()
    assert (log.leaving, log.set_nodes, log.acting_spec.in_sync_replicas) == ((), ("n1", "n2"), 2)


def test_replicas_become_learners_and_learners_replicas() -> None:
    quorum = in_sync()
    quorum.done(one(quorum, ReplicaChange.DEMOTE, "n3"))
    log = quorum.log()
    assert (log.spec.learners, log.set_nodes, log.leaving) == (("n3",), ("n1", "n2"), ())
    assert log.of_node("n3") is not None
    quorum.heartbeats()
    answer = quorum.alter("n1", "n2", "n3")
    assert not isinstance(answer, Done)
    assert answer.reason is Reason.LEARNER
    quorum.done(one(quorum, ReplicaChange.PROMOTE, "n3"))
    assert quorum.log().spec.learners == ()
    assert alter(quorum, "n1", "n2", "n3").set_nodes == KEEPING


def test_a_node_is_added_as_a_learner_and_its_second_adding_changes_nothing() -> None:
    quorum = in_sync()
    added = one(quorum, ReplicaChange.ADD, "n4")
    quorum.done(added)
    assert (quorum.log().spec.replicas, quorum.log().spec.learners) == (FOUR, ("n4",))
    version = quorum.log().version
    quorum.done(added)  # its answer was lost
    quorum.done(one(quorum, ReplicaChange.ADD, "n4"))
    assert quorum.log().version == version
    quorum.done(one(quorum, ReplicaChange.REMOVE, "n4"))
    assert quorum.log().nodes == KEEPING
    quorum.done(added)  # late
    assert quorum.log().nodes == KEEPING


@pytest.mark.rule("C-03")
def test_a_node_that_was_taken_out_does_not_come_back_by_a_late_command() -> None:
    quorum = in_sync()
    log, old = quorum.log(), quorum.id_of("n3")
    change(quorum, "n1", "n2")
    apply = ApplyForReplicaId("a", log.generation, "n3", "code n3")
    register = RegisterReplica("a", log.generation, "n3", old, "code n3", "n3:10911")
    assert quorum.refused(apply) is Reason.NOT_A_REPLICA
    assert quorum.refused(register) is Reason.NOT_A_REPLICA
    change(quorum, "n1", "n2", "n3")
    assert quorum.refused(register) is Reason.UNKNOWN_REPLICA
    new = quorum.register("n3", code="another copy")
    assert new > old
    assert quorum.refused(register) is Reason.UNKNOWN_REPLICA
    late = quorum.alter("n1", set_epoch=log.set_epoch)
    assert not isinstance(late, Done)
    assert late.reason is Reason.STALE_SET_EPOCH


@pytest.mark.rule("C-05", "A-11")
def test_by_force_the_last_copy_goes_and_only_an_unclean_election_follows_after_its_lease() -> None:
    quorum = in_sync()
    assert isinstance(quorum.alter("n1"), Done)
    quorum.heartbeat("n1")
    granted_ms = quorum.now_ms
    log = change(quorum, "n2", "n3", force=True)
    assert (log.master, log.set_nodes, log.leaving, log.nodes) == (None, (), (), ("n2", "n3"))
    quorum.scan()
    assert quorum.log().master is None
    unclean = ElectMaster("a", None, True, log.master_epoch, log.generation)
    quorum.active.ask(unclean, unclean)
    assert not quorum.turn()  # the lease of n1 may hold
    while quorum.log().master is None:
        quorum.pass_time(100)
        quorum.heartbeats("n2", "n3")
        quorum.turn()
    assert quorum.now_ms > granted_ms + CONFIG.lease_ms
    assert quorum.log().unclean_epoch == quorum.log().master_epoch > log.master_epoch


def test_metadata_of_removed_nodes_are_cleaned_of_the_living_and_the_last_by_force() -> None:
    quorum = in_sync()
    assert quorum.refused(one(quorum, ReplicaChange.CLEAN, "n3")) is Reason.NODE_ALIVE
    assert quorum.refused(one(quorum, ReplicaChange.CLEAN, "n4")) is Reason.NOT_A_REPLICA
    for node in ("n2", "n3"):
        quorum.active.liveness.disconnected(node)
    quorum.done(one(quorum, ReplicaChange.CLEAN, "n3"))
    assert (quorum.log().nodes, quorum.log().set_nodes) == (("n1", "n2"), ("n1", "n2"))
    assert isinstance(quorum.alter("n1"), Done)
    quorum.active.liveness.disconnected("n1")
    assert quorum.refused(one(quorum, ReplicaChange.CLEAN, "n1")) is Reason.LAST_IN_SYNC
    quorum.done(one(quorum, ReplicaChange.CLEAN, "n1", force=True))
    assert (quorum.log().nodes, quorum.log().set_nodes, quorum.log().master) == (("n2",), (), None)
    assert quorum.refused(one(quorum, ReplicaChange.CLEAN, "n2", force=True)) is Reason.INVALID


def test_metadata_of_a_node_that_joined_just_now_are_not_cleaned() -> None:
    """It had no time to send a heartbeat; a node that never sends one is dead after the time of all."""
    quorum = in_sync()
    quorum.active.liveness.joined(("n1", "n9"), quorum.now_ms)
    change(quorum, "n1", "n2", "n9")
    assert quorum.refused(one(quorum, ReplicaChange.CLEAN, "n9")) is Reason.NODE_ALIVE
    quorum.now_ms += CONFIG.broker_timeout_ms
    quorum.heartbeats("n1", "n2", "n3")
    quorum.done(one(quorum, ReplicaChange.CLEAN, "n9"))


@pytest.mark.rule("C-03", "C-12")
@pytest.mark.parametrize("leaving", ["n1", "n2"])
def test_no_node_leaves_while_the_copies_of_all_members_are_lost(leaving: str) -> None:
    """The copies that are left are all that an unclean election can choose from. n1 was the only member."""
    quorum = Quorum()
    quorum.with_master()
    quorum.done(one(quorum, ReplicaChange.DEMOTE, "n1"))
    if leaving == "n2":
        quorum.done(one(quorum, ReplicaChange.PROMOTE, "n1"))
    quorum.active.liveness.disconnected("n1")
    quorum.register("n1", code="an older folder")
    assert (quorum.log().sync_state_set, quorum.log().set_nodes) == ((1,), ())
    assert quorum.refused(one(quorum, ReplicaChange.REMOVE, "n3")) is Reason.LAST_IN_SYNC
    if leaving == "n2":
        quorum.done(one(quorum, ReplicaChange.DEMOTE, "n2"))
    quorum.let_pass(500)
    assert quorum.log().leaving == (leaving,)


@pytest.mark.rule("C-05", "C-09")
def test_no_copy_leaves_a_log_whose_last_set_is_not_known() -> None:
    """After a rebuild of the controllers, n3 alone has the records of a later master."""
    quorum = in_sync()
    quorum.rebuild("a")
    quorum.fail_over()
    quorum.offsets["n3", "a"] = (2, 120, 120)
    quorum.heartbeats("n1", "n2", "n4")
    assert change(quorum, "n1", "n2").leaving == ("n3",)
    assert quorum.refused(one(quorum, ReplicaChange.REMOVE, "n2")) is Reason.LAST_IN_SYNC
    quorum.active.liveness.disconnected("n2")
    assert quorum.refused(one(quorum, ReplicaChange.CLEAN, "n2")) is Reason.LAST_IN_SYNC
    for _ in range(8):
        quorum.let_pass(500)
    assert quorum.log().master_node == "n3"
    assert quorum.log().unclean_epoch < quorum.log().master_epoch
    open_epoch(quorum)
    alter(quorum, *KEEPING)
    quorum.scan()
    hand_over(quorum)
    open_epoch(quorum)
    alter(quorum, "n1", "n2")
    quorum.scan()
    assert quorum.log().nodes == ("n1", "n2")


def test_a_change_that_is_under_way_survives_a_fail_over_and_can_be_taken_back() -> None:
    quorum = in_sync()
    change(quorum, "n1", "n2", "n4")
    quorum.metadata = Metadata.restore(quorum.metadata.snapshot())
    quorum.fail_over()
    quorum.heartbeats()
    quorum.scan()
    assert (quorum.log().leaving, quorum.log().arriving) == (("n3",), ("n4",))
    log = change(quorum, *KEEPING)
    assert (log.leaving, log.set_nodes) == ((), KEEPING)
    quorum.done(ChangeLog("a", {"unclean": True}, "another setting"))
    assert quorum.log().set_nodes == KEEPING


def test_other_settings_leave_a_change_under_way_alone() -> None:
    quorum = in_sync()
    change(quorum, "n1", "n2", "n4")
    quorum.done(ChangeLog("a", {"unclean": True}, "x"))
    assert (quorum.log().leaving, quorum.log().arriving) == (("n3",), ("n4",))


def test_changes_that_cannot_work_are_refused() -> None:
    quorum = in_sync(preferred="n3")
    log = quorum.log()
    for bad in ((), ("n9",), ("n1", "n1")):
        assert quorum.refused(ChangeLog("a", {"replicas": bad}, f"x{bad}")) is Reason.INVALID
    floor = ChangeLog("a", {"replicas": ("n1",), "min_in_sync_replicas": 2}, "floor")
    assert quorum.refused(floor) is Reason.INVALID
    assert quorum.log() == log
    assert change(quorum, "n1", "n2").spec.preferred is None


def test_the_file_takes_replicas_out_as_a_client_does() -> None:
    quorum = Quorum(FOUR, configured={"a": spec(*KEEPING)})
    quorum.heartbeats()
    quorum.scan()
    for node in KEEPING:
        quorum.register(node)
    quorum.heartbeats()
    quorum.scan()
    open_epoch(quorum)
    quorum.scan()
    assert quorum.log().set_nodes == ("n1",)
    quorum.configured = {"a": spec("n2", "n3", "n4")}
    quorum.fail_over()
    quorum.heartbeats()
    quorum.scan()
    log = quorum.log()
    assert (log.spec.replicas, log.leaving) == (("n2", "n3", "n4"), ("n1",))
    assert log.master_node == "n1"
    assert log.configured == spec("n2", "n3", "n4")


def test_a_snapshot_of_the_version_before_opens() -> None:
    quorum = in_sync()
    document = msgspec.msgpack.decode(quorum.metadata.snapshot())
    for log in document[1]:
        del log["leaving"], log["arriving"]
    assert Metadata.restore(msgspec.msgpack.encode(document)).log("a") == quorum.log()


@pytest.mark.rule("C-03", "C-12")
def test_a_lost_copy_beside_copied_folders_leaves_by_force_alone() -> None:
    """Its folder was found to lack records, and may still hold more than theirs."""
    quorum = restored("n2", "n3")
    quorum.register("n1", code="n1 with an older folder")
    assert heard(quorum, n1=120, n2=100, n3=110) is None
    assert quorum.refused(one(quorum, ReplicaChange.REMOVE, "n1")) is Reason.LAST_IN_SYNC
    quorum.done(one(quorum, ReplicaChange.REMOVE, "n1", force=True))
    assert heard(quorum, n2=100, n3=110) == "n3"


@pytest.mark.rule("C-03", "C-12")
def test_the_last_original_of_a_set_is_not_removed_beside_copied_folders() -> None:
    quorum = restored("n2", "n3")
    assert heard(quorum, n2=100, n3=100) is None
    assert quorum.refused(one(quorum, ReplicaChange.REMOVE, "n1")) is Reason.LAST_IN_SYNC
