"""A copy that holds less than it had confirmed, such as a restored folder, is another replica (C-03)."""

from collections.abc import Sequence

import msgspec
import pytest

from app.controller.commands import (
    AlterSyncStateSet,
    AnyCommand,
    ChangeReplica,
    Done,
    Reason,
    Refusal,
    RegisterReplica,
    ReplicaChange,
    StepDown,
)
from app.controller.liveness import Report
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.replicas_manager import Save, SendToCore
from app.ha.roles import MasterRole
from app.log.contract import NO_INDEX
from tests.unit.controller.elections.test_elections import let_die
from tests.unit.controller.support import CONFIG, NODES, Quorum
from tests.unit.controller.test_replicas_manager import Bench


def start_of(quorum: Quorum, node: str, max_offset: int | None) -> RegisterReplica:
    """The question of a node at each start, for the copy that it has registered."""
    log = quorum.log()
    copy = quorum.id_of(node)
    return RegisterReplica("a", log.generation, node, copy, f"code {node}", f"{node}:10911", max_offset)


@pytest.mark.rule("C-03")
def test_a_copy_that_lacks_what_it_had_confirmed_is_refused_with_both_numbers() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets["n2", "a"] = (1, 900, 700)
    quorum.heartbeats()
    quorum.offsets["n2", "a"] = (1, 800, 650)  # a heartbeat that arrives late
    quorum.heartbeats()
    answer = quorum.ask(start_of(quorum, "n2", 699))
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.LOST_RECORDS
    assert "700" in answer.detail
    assert "699" in answer.detail
    quorum.done(start_of(quorum, "n2", 700))  # what was not confirmed may be gone
    quorum.done(start_of(quorum, "n2", None))  # a node of an earlier version
    quorum.done(start_of(quorum, "n3", 0))


@pytest.mark.rule("C-03")
def test_a_later_controller_refuses_a_copy_that_lacks_what_was_recorded_as_confirmed() -> None:
    """Reports since the last record are in the memory of one controller; the record is replicated."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets["n1", "a"] = (1, 900, 700)
    quorum.offsets["n2", "a"] = (1, 900, 700)
    for _ in range(24):  # 12 s: heartbeats of all, 500 ms apart
        quorum.heartbeats()
        quorum.pass_time(500)
        quorum.scan()
    recorded = quorum.log().confirmed_by(quorum.id_of("n2"))
    assert recorded is not None
    assert (recorded.offset, recorded.epoch) == (700, 1)
    set_epoch = quorum.log().set_epoch
    for _ in range(24):
        quorum.heartbeats()
        quorum.pass_time(500)
        quorum.scan()
    assert quorum.log().confirmed_by(quorum.id_of("n2")) == recorded  # nothing has moved
    quorum.offsets["n1", "a"] = (1, 900, 800)
    quorum.offsets["n2", "a"] = (1, 900, 800)
    for _ in range(24):
        quorum.heartbeats()
        quorum.pass_time(500)
        quorum.scan()
    assert quorum.log().set_epoch == set_epoch  # what is recorded changes no set
    quorum.fail_over()
    assert quorum.refused(start_of(quorum, "n2", 799)) is Reason.LOST_RECORDS
    quorum.done(start_of(quorum, "n2", 800))


@pytest.mark.rule("C-03", "A-01")
def test_a_member_without_the_record_that_opened_the_epoch_is_an_older_copy() -> None:
    """A restored master would open its epoch again, with other records."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    quorum.heartbeats("n2", "n3")
    master = quorum.log().master_node
    assert master is not None
    quorum.offsets[master, "a"] = (2, 100, 0)
    quorum.heartbeats("n2", "n3")
    quorum.scan()
    assert (quorum.log().opened_epoch, quorum.log().is_opening) == (2, False)
    quorum.fail_over()
    older = msgspec.structs.replace(start_of(quorum, master, 100), log_epoch=1)
    assert quorum.refused(older) is Reason.LOST_RECORDS
    quorum.done(msgspec.structs.replace(older, log_epoch=2))
    quorum.done(msgspec.structs.replace(older, log_epoch=None))  # a node of an earlier version
    other = "n3" if master == "n2" else "n2"  # not in the set: it follows, whatever it holds
    quorum.done(msgspec.structs.replace(start_of(quorum, other, 100), log_epoch=1))


@pytest.mark.rule("C-03", "A-04")
def test_records_lost_by_an_unclean_election_are_not_a_loss_of_the_copy() -> None:
    quorum = Quorum()
    quorum.with_master(unclean=True)
    quorum.offsets["n1", "a"] = (1, 900, 700)
    quorum.offsets["n2", "a"] = (1, 100, 100)
    quorum.heartbeats()
    let_die(quorum, "n1")
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n2", 2)
    quorum.done(start_of(quorum, "n1", 100))
    quorum.offsets["n2", "a"] = (2, 200, 180)  # of the epoch that the election began: nothing of it is lost
    quorum.heartbeats("n2")
    assert quorum.refused(start_of(quorum, "n2", 179)) is Reason.LOST_RECORDS
    quorum.done(start_of(quorum, "n2", 180))


@pytest.mark.rule("C-03")
def test_a_refused_copy_registers_as_another_replica() -> None:
    bench = Bench()
    bench.register()
    first = bench.manager.replica_id
    identity = bench.manager._identity
    bench.quorum.offsets["n1", "a"] = (1, 900, 700)
    bench.quorum.heartbeats()
    bench.start(identity)
    bench.view.max_offset = 300
    command: AnyCommand = bench.ask(RegisterReplica)
    bench.manager.answered(command, bench.quorum.ask(command), bench.quorum.now_ms)
    bench.quorum.pass_time(10_000)
    bench.quorum.heartbeats()
    bench.register()
    assert bench.manager.replica_id > first


@pytest.mark.rule("A-11", "C-10")
def test_a_late_answer_that_withholds_a_lease_ends_no_later_mastership() -> None:
    bench = Bench()
    bench.become_master()
    bench.reported()
    late = BrokerHeartbeatAnswer(1, "c1", 0, (), ("a",), ("n1",), (), (1,))
    bench.quorum.done(StepDown("a", bench.quorum.log().generation, 1, 1))
    (role,) = [message for message in bench.reported() if isinstance(message, MasterRole)]
    assert role.master_epoch == 2
    hear = bench.manager.heartbeat_answered
    hear((), late.withheld, late.alive, bench.quorum.now_ms, (), late.withheld_epochs)
    assert bench.reported() == []
    hear((), ("a",), ("n1",), bench.quorum.now_ms, (), (2,))
    (tell,) = [action for action in bench.step() if isinstance(action, SendToCore)]
    assert not isinstance(tell.message, MasterRole)


def test_an_answer_and_a_registration_of_an_older_build_are_understood() -> None:
    old = msgspec.msgpack.encode([33, 1, "c1", 0, [], ["a"], ["n1"]])
    answer = msgspec.msgpack.decode(old, type=BrokerHeartbeatAnswer)
    assert (answer.withheld, answer.withheld_epochs) == (("a",), ())
    command = msgspec.msgpack.encode(["register-replica", "a", -1, "n1", 1, "code", "n1:1"])
    assert msgspec.msgpack.decode(command, type=RegisterReplica).max_offset is None


@pytest.mark.rule("C-03", "C-05")
def test_an_older_copy_is_no_member_of_the_former_set_either() -> None:
    """While n2 has not opened its epoch, n3 may replace it; without the records of epoch 1 it must not."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (1, 900, 0) for node in quorum.nodes})
    quorum.join_all()
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    log = quorum.log()
    assert (log.opened_epoch, log.former_set, log.sync_state_set) == (1, (1, 2, 3), (log.master,))
    other = next(node for node in ("n3", "n2") if node != log.master_node)
    command = msgspec.structs.replace(start_of(quorum, other, 500), log_epoch=0)
    assert quorum.refused(command) is Reason.LOST_RECORDS
    quorum.done(msgspec.structs.replace(command, log_epoch=1))


@pytest.mark.rule("C-03", "C-09")
def test_the_metadata_record_what_copies_have_confirmed_only_when_that_has_moved() -> None:
    quorum = Quorum()
    quorum.with_master()
    for confirmed in (100, 200):
        for node in quorum.nodes:
            quorum.offsets[node, "a"] = (1, confirmed, confirmed)
        for _ in range(3 * CONFIG.confirmed_interval_ms // 1_000):
            quorum.let_pass(1_000)
        assert {each.offset for each in quorum.log().confirmed} == {confirmed}
        count = len(quorum.events)
        for _ in range(3 * CONFIG.confirmed_interval_ms // 1_000):
            quorum.let_pass(1_000)
        assert len(quorum.events) == count


def copy_of(quorum: Quorum, node: str, max_offset: int = 100) -> RegisterReplica:
    """The registration of a copied folder that holds all that the controllers have recorded."""
    return msgspec.structs.replace(start_of(quorum, node, max_offset), log_epoch=1, is_copy=True)


def restored(*nodes: str, members: Sequence[str] = NODES, **settings: int) -> Quorum:
    """All are stopped, and the folders of these nodes replaced by copies, which are registered now. members:
    of the SyncStateSet."""
    quorum = Quorum()
    quorum.with_master(**settings)
    quorum.heartbeats()
    assert isinstance(quorum.alter(*members, acks=settings.get("in_sync_replicas", 0)), Done)
    quorum.fail_over()
    quorum.pass_time(CONFIG.broker_timeout_ms)
    quorum.scan()
    assert quorum.log().master is None
    for node in nodes:
        quorum.done(copy_of(quorum, node))
    quorum.confirms = True
    return quorum


def heard(quorum: Quorum, **ends: int) -> str | None:
    """These nodes report ends of their logs in epoch 1; the node that is elected, None for none."""
    for node, end in ends.items():
        quorum.offsets[node, "a"] = (1, end, 0)
    for _ in range(4):
        quorum.let_pass(500, *ends)
    return quorum.log().master_node


@pytest.mark.rule("C-03", "C-05")
def test_a_copied_folder_is_another_replica_beside_a_master_that_leads() -> None:
    """It held all that the last controller had recorded, and less than it has acknowledged since: this
    controller elected it."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.fail_over()
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.NOT_ALIVE  # until the master is heard
    for _ in range(2):
        quorum.heartbeats("n1", "n3")
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.LOST_RECORDS
    quorum.register("n2", code="another replica")
    assert quorum.log().set_nodes == ("n1", "n3")


@pytest.mark.rule("C-03", "C-05")
def test_copied_folders_stay_replicas_where_no_master_leads() -> None:
    """After a restore of all folders one of them has to lead."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.fail_over()
    quorum.pass_time(CONFIG.lease_ms + 1)
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.NOT_ALIVE  # the master may live still
    quorum.pass_time(CONFIG.broker_timeout_ms)
    quorum.scan()
    members = quorum.log().sync_state_set
    for node in ("n2", "n1", "n3"):
        quorum.done(copy_of(quorum, node))
    assert quorum.log().sync_state_set == members


@pytest.mark.rule("C-03", "C-05")
def test_a_copied_folder_waits_while_a_silent_master_may_return() -> None:
    """It would be in the set of a master that counts the acknowledgements of the folder before."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.fail_over()
    quorum.active.liveness.disconnected("n1")
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.NOT_ALIVE
    quorum.heartbeats("n1", "n3")
    quorum.active.liveness.disconnected("n1")  # it has a lease, and may be lost
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.NOT_ALIVE
    quorum.heartbeats("n1", "n3")
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.LOST_RECORDS
    assert (quorum.log().set_nodes, quorum.log().copied) == (("n1", "n3"), ())


@pytest.mark.rule("C-03", "C-06")
def test_a_copied_folder_waits_while_a_new_master_opens_its_epoch() -> None:
    """The new master may still have the connection of the folder before, and count what that held."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (1, 100, 0) for node in quorum.nodes})
    quorum.join_all()
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    assert (quorum.log().master_node, quorum.log().is_opening) == ("n1", True)
    quorum.active.liveness.disconnected("n2")
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.NOT_ALIVE
    quorum.open_epoch()
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.LOST_RECORDS


@pytest.mark.rule("C-03", "C-12")
def test_copied_folders_leave_a_set_that_counts_some_of_its_members_one_after_the_other() -> None:
    """The set keeps the ids of lost copies until its master has requested another one. Two of them would be
    more than the set can do without, and the master itself could not be elected again."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.with_master(in_sync_replicas=2)
    quorum.heartbeats()
    assert isinstance(quorum.alter(*quorum.nodes, acks=2), Done)
    quorum.heartbeats()
    for node in ("n2", "n3"):
        quorum.active.liveness.disconnected(node)
    quorum.heartbeat("n1")
    assert quorum.refused(copy_of(quorum, "n2")) is Reason.LOST_RECORDS
    assert quorum.refused(copy_of(quorum, "n3")) is Reason.NOT_ALIVE
    quorum.heartbeat("n1")
    assert isinstance(quorum.alter("n1"), Done)
    assert quorum.refused(copy_of(quorum, "n3")) is Reason.LOST_RECORDS
    assert quorum.log().set_nodes == ("n1",)


@pytest.mark.rule("C-03", "C-05")
def test_a_master_whose_folder_is_a_copy_makes_no_other_copy_a_new_replica() -> None:
    """All nodes start with copies. The old master has the oldest, and is heard before it gives its epoch
    up."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.fail_over()
    quorum.confirms = True
    quorum.done(copy_of(quorum, "n1", 90))
    assert heard(quorum, n1=90) == "n1"
    for node in ("n2", "n3"):
        quorum.done(copy_of(quorum, node))
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    assert heard(quorum, n1=90, n2=100) != "n1"
    assert heard(quorum, n1=90, n2=100, n3=95) == "n2"


@pytest.mark.rule("C-03", "C-05")
def test_the_only_member_is_elected_and_no_more_a_copy() -> None:
    """The other replica is lost, and can be removed."""
    quorum = Quorum()
    quorum.with_master()
    quorum.fail_over()
    quorum.pass_time(CONFIG.broker_timeout_ms)
    quorum.scan()
    quorum.done(copy_of(quorum, "n1"))
    assert quorum.log().copied == (quorum.id_of("n1"),)
    quorum.confirms = True
    assert heard(quorum, n1=100) == "n1"
    assert (quorum.log().copied, quorum.log().is_opening) == ((), False)
    quorum.done(ChangeReplica("a", "n3", ReplicaChange.CLEAN, "clean n3"))


@pytest.mark.rule("C-03", "C-05")
def test_a_lost_replica_outside_of_a_set_of_copies_may_have_the_last_records() -> None:
    """Its removal by mistake would be final, so it is refused. It is not known to be in sync."""
    quorum = restored("n1", "n2", members=("n1", "n2"))
    answer = quorum.ask(ChangeReplica("a", "n3", ReplicaChange.CLEAN, "clean n3"))
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.LAST_IN_SYNC
    assert answer.detail.startswith("n3 may have the last copy of acknowledged records")
    quorum.done(ChangeReplica("a", "n3", ReplicaChange.CLEAN, "clean n3 by force", force=True))


@pytest.mark.rule("C-03", "C-05", "C-12")
@pytest.mark.parametrize("in_sync", [0, 2])
def test_a_copied_folder_is_elected_only_if_no_original_can_hold_more(in_sync: int) -> None:
    """The node that was restored is the first one that starts."""
    settings = {"in_sync_replicas": in_sync} if in_sync else {}
    quorum = restored("n2", **settings)
    assert heard(quorum, n2=100) is None
    if in_sync:
        assert heard(quorum, n2=100, n3=90) is None  # n1 may hold what neither has
    assert heard(quorum, n2=100, n1=100, n3=90) == "n1"


@pytest.mark.rule("C-03", "C-05", "C-12")
@pytest.mark.parametrize("in_sync", [0, 2])
def test_the_newest_of_copied_folders_is_elected_once_all_have_reported(in_sync: int) -> None:
    settings = {"in_sync_replicas": in_sync} if in_sync else {}
    quorum = restored("n1", "n2", "n3", **settings)
    members = quorum.log().sync_state_set
    assert heard(quorum, n1=100, n2=110) is None
    assert heard(quorum, n1=100, n2=110, n3=120) == "n3"
    assert quorum.log().former_set == members
    quorum.open_epoch()
    assert quorum.log().copied == (quorum.id_of("n1"), quorum.id_of("n2"))


@pytest.mark.rule("C-03", "C-06")
def test_a_copied_folder_counts_again_once_a_master_has_requested_a_set_with_it() -> None:
    quorum = restored("n2", "n3")
    assert heard(quorum, n1=100, n2=100, n3=100) == "n1"
    quorum.offsets["n1", "a"] = (2, 200, 0)
    quorum.let_pass(500)
    quorum.join_all()
    assert quorum.log().copied == ()
    let_die(quorum, "n1")
    assert quorum.log().master_node in ("n2", "n3")


def start_nodes(quorum: Quorum, *, is_open: bool, times: int) -> None:
    """n1 has registered its copy after a start of all nodes. The others are heard, and register none.
    is_open: they have opened theirs."""
    for _ in range(times):
        for node in ("n2", "n3"):
            reports = [Report("a", quorum.log().generation, 0, 1, 100, 0)] if is_open else []
            index = len(quorum.events) - 1 if is_open else NO_INDEX
            quorum.active.heartbeat(quorum.now_ms, node, index, reports, quorum.now_ms)
        quorum.let_pass(500, "n1")


def restored_with_unclean() -> Quorum:
    """All are stopped, and n1 has registered a copy of its folder that is older."""
    quorum = Quorum()
    quorum.with_master(unclean=True)
    quorum.join_all()
    quorum.fail_over()
    quorum.pass_time(CONFIG.broker_timeout_ms)
    quorum.scan()
    quorum.done(copy_of(quorum, "n1"))
    quorum.offsets["n1", "a"] = (1, 90, 0)
    return quorum


@pytest.mark.rule("C-03", "C-05")
@pytest.mark.parametrize("is_open", [True, False])
def test_no_copied_folder_wins_an_unclean_election_while_members_are_being_registered(is_open: bool) -> None:
    quorum = restored_with_unclean()
    start_nodes(quorum, is_open=is_open, times=4)
    assert quorum.log().master_node is None
    quorum.done(start_of(quorum, "n2", 100))
    assert heard(quorum, n1=90, n2=100) == "n2"
    assert quorum.log().unclean_epoch == 0


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("is_open", [True, False])
def test_an_unclean_election_waits_a_limited_time_for_members_that_register_none(is_open: bool) -> None:
    """Their disks are full, for example."""
    quorum = restored_with_unclean()
    start_nodes(quorum, is_open=is_open, times=CONFIG.registering_timeout_ms // 500 - 1)
    assert quorum.log().master_node is None
    start_nodes(quorum, is_open=is_open, times=1)
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n1", quorum.log().master_epoch)


@pytest.mark.rule("C-03", "C-05", "C-06")
def test_no_set_that_was_requested_before_a_copied_folder_was_registered_is_accepted_later() -> None:
    """The master requested a smaller set. Its folder is older now, and the other members hold more."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    log = quorum.log()
    late = AlterSyncStateSet("a", log.generation, 1, log.master_epoch, log.set_epoch, (1,))
    quorum.fail_over()
    quorum.confirms = True
    quorum.done(copy_of(quorum, "n1", 90))
    quorum.heartbeat("n1")
    assert quorum.refused(late) is Reason.STALE_SET_EPOCH
    heard(quorum, n1=90, n2=100)
    quorum.done(StepDown("a", log.generation, 1, 1))
    assert quorum.log().master_node == "n2"


@pytest.mark.rule("C-03")
def test_a_late_registration_of_a_copied_folder_takes_no_working_replica_out() -> None:
    """Its node would follow no master until its next start: the replica that it keeps does not exist."""
    quorum = restored("n2")
    late = copy_of(quorum, "n2")
    assert heard(quorum, n1=100, n2=100, n3=100) == "n1"
    quorum.offsets["n1", "a"] = (2, 200, 0)
    for _ in range(2):
        quorum.let_pass(500)
    assert quorum.active.liveness.is_leased("a", quorum.now_ms)
    assert quorum.refused(late) is Reason.NOT_ALIVE
    assert quorum.log().is_current(late.replica_id)


@pytest.mark.rule("C-03", "C-09")
def test_a_copied_folder_is_noted_until_its_registration_is_durable_here() -> None:
    bench = Bench()
    bench.register()
    bench.quorum.heartbeats()
    bench.quorum.scan()
    assert bench.quorum.log().former_set == (1,)
    identity = bench.manager._identity
    assert identity is not None
    bench.start(msgspec.structs.replace(identity, is_copy=True))
    command = bench.ask(RegisterReplica)
    assert command.is_copy
    assert bench.quorum.refused(command) is Reason.NOT_ALIVE  # the incarnation before may live still
    bench.quorum.active.liveness.disconnected("n1")
    bench.manager.answered(command, bench.quorum.ask(command), bench.quorum.now_ms)
    metadata, now_ms = bench.quorum.metadata, bench.quorum.now_ms
    for _ in range(2):  # not durable here: a rebuild may lose the registration
        actions = bench.manager.step(metadata, bench.view, now_ms, metadata.applied_index - 1)
        assert not any(isinstance(action, Save) for action in actions)
    bench.step()
    assert bench.save() == identity
