"""A copy that holds less than it had confirmed, such as a restored folder, is another replica (C-03)."""

import msgspec
import pytest

from app.controller.commands import (
    AnyCommand,
    ApplyForReplicaId,
    ChangeReplica,
    ElectMaster,
    Reason,
    Refusal,
    RegisterReplica,
    ReplicaChange,
    StepDown,
)
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.replicas_manager import SendToCore
from app.ha.roles import MasterRole
from tests.unit.controller.elections.test_elections import let_die
from tests.unit.controller.support import CONFIG, Quorum, spec
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


def rebuilt_before_the_first_election() -> Quorum:
    """Metadata that know the log's replicas and no master."""
    quorum = Quorum()
    log = quorum.create()
    for node in quorum.nodes:
        code = f"code {node}"
        copy = quorum.done(ApplyForReplicaId("a", log.generation, node, code)).value
        assert copy is not None
        quorum.done(RegisterReplica("a", log.generation, node, copy, code, f"{node}:10911"))
    assert quorum.log().master_epoch == 0
    quorum.rebuild()
    quorum.fail_over()
    return quorum


@pytest.mark.rule("C-04", "C-05", "C-09")
def test_rebuilt_metadata_without_a_master_give_no_epoch_twice_and_elect_the_newest_of_all() -> None:
    """They may lack the first elections: a copy of a lost master holds records of epochs that were given."""
    quorum = rebuilt_before_the_first_election()
    quorum.offsets["n1", "a"] = (1, 900, 900)
    quorum.offsets["n2", "a"] = (0, 0, 0)
    quorum.offsets["n3", "a"] = (2, 500, 500)
    for _ in range(20):
        quorum.heartbeats("n1", "n2")
        quorum.pass_time(500)
        quorum.scan()
    assert quorum.log().master is None  # n3 may hold acknowledged records
    for _ in range(4):
        quorum.heartbeats()
        quorum.pass_time(500)
        quorum.scan()
    log = quorum.log()
    assert (log.master_node, log.lost_history) == ("n3", False)
    assert log.unclean_epoch < log.master_epoch  # this one was clean, but not all that are lost need be
    assert log.master_epoch > 1_000_000
    assert log.set_epoch > 1_000_000


@pytest.mark.rule("C-05", "C-09")
def test_rebuilt_metadata_elect_a_former_member_when_the_winner_of_the_last_election_is_lost() -> None:
    """n1 won, and its disk was replaced before it opened its epoch: the others hold everything."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (1, 900, 900) for node in quorum.nodes})
    quorum.join_all()
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    winner = quorum.log().master_node
    assert winner is not None
    quorum.register(winner, code="of another disk")
    assert (quorum.log().master, quorum.log().former_set) == (None, (1, 2, 3))
    quorum.rebuild()
    quorum.fail_over()
    quorum.offsets[winner, "a"] = (0, 0, 0)
    for _ in range(8):
        quorum.let_pass(500)
    log = quorum.log()
    assert log.master in (1, 2, 3)
    assert log.unclean_epoch == 0


@pytest.mark.rule("C-05", "C-09")
def test_rebuilt_metadata_without_the_last_set_elect_no_former_member_alone() -> None:
    """The winner may have opened its epoch since, and acknowledged records that the others lack."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (1, 900, 900) for node in quorum.nodes})
    quorum.join_all()
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    winner = quorum.log().master_node
    others = [node for node in quorum.nodes if node != winner]
    quorum.rebuild("a")
    quorum.fail_over()
    for _ in range(20):
        quorum.let_pass(500, *others)
    assert quorum.log().master is None
    assert not quorum.log().is_opening


@pytest.mark.rule("C-05", "C-09")
def test_rebuilt_metadata_without_the_last_election_elect_the_newest_of_all() -> None:
    """A node knows a newer master epoch: the set that the metadata have is not the last one."""
    quorum = Quorum()
    quorum.with_master()
    assert quorum.log().nodes_of(quorum.log().holders) == ("n1",)
    quorum.rebuild("a")
    quorum.fail_over()
    quorum.offsets["n1", "a"] = (1, 900, 900)
    quorum.offsets["n2", "a"] = (1, 900, 900)
    quorum.offsets["n3", "a"] = (2, 500, 500)
    for _ in range(20):
        quorum.heartbeats("n1", "n2")
        quorum.pass_time(500)
        quorum.scan()
    assert quorum.log().master is None
    for _ in range(4):
        quorum.heartbeats()
        quorum.pass_time(500)
        quorum.scan()
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("C-05", "C-09")
@pytest.mark.parametrize("is_configured", [False, True])
def test_a_replica_that_was_added_after_the_copy_of_the_metadata_may_be_the_last_master(
    is_configured: bool,
) -> None:
    file = spec("n1", "n2")
    quorum = Quorum(configured={"a": file} if is_configured else None)
    quorum.nodes = ("n1", "n2")
    if not is_configured:
        quorum.with_master()
    quorum.scan()
    quorum.nodes = ("n1", "n2", "n3")
    quorum.rebuild("a", unnamed={"a": ("n3",)})
    quorum.fail_over()
    assert quorum.log().spec.replicas == ("n1", "n2", "n3")
    assert quorum.log().configured == (file if is_configured else None)
    assert quorum.log().version == len(quorum.events) - 1
    quorum.offsets["n1", "a"] = quorum.offsets["n2", "a"] = (1, 900, 900)
    quorum.offsets["n3", "a"] = (2, 500, 500)
    for node in quorum.nodes:
        quorum.register(node)
    for _ in range(4):
        quorum.heartbeats()
        quorum.pass_time(500)
        quorum.scan()
    assert quorum.log().master_node == "n3"
    assert quorum.log().spec.replicas == ("n1", "n2", "n3")


@pytest.mark.rule("C-05", "C-09")
@pytest.mark.parametrize("equal", [False, True])
def test_the_set_of_rebuilt_metadata_replaces_no_winner_that_has_not_opened_its_epoch(equal: bool) -> None:
    """It is not the last set: its members may lack acknowledged records, unless they hold as much."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.rebuild("a")
    quorum.fail_over()
    quorum.offsets["n1", "a"] = quorum.offsets["n2", "a"] = (1, 900, 900)
    quorum.offsets["n3", "a"] = (2, 500, 500)
    if equal:
        quorum.offsets["n2", "a"] = (2, 500, 500)
    for _ in range(8):
        quorum.let_pass(500)
    winner = quorum.log().master_node
    assert winner == ("n2" if equal else "n3")
    others = [node for node in quorum.nodes if node != winner]
    quorum.active.liveness.disconnected(winner)
    for _ in range(20):
        quorum.let_pass(500, *others)
    assert quorum.log().master_node == ("n3" if equal else None)
    assert quorum.log().unclean_epoch < quorum.log().master_epoch


@pytest.mark.rule("C-05", "C-09")
def test_an_operator_may_give_up_a_node_that_rebuilt_metadata_would_wait_for() -> None:
    quorum = rebuilt_before_the_first_election()
    for _ in range(20):
        quorum.heartbeats("n1", "n2")
        quorum.pass_time(500)
        quorum.scan()
    epoch = quorum.log().master_epoch
    assert quorum.refused(ElectMaster("a", None, False, epoch)) is Reason.NO_ELIGIBLE_REPLICA
    quorum.heartbeats("n1", "n2")
    quorum.done(ElectMaster("a", None, True, epoch))
    assert quorum.log().unclean_epoch == quorum.log().master_epoch


@pytest.mark.rule("C-05", "C-09")
@pytest.mark.parametrize("by", ["operator", "settings"])
@pytest.mark.parametrize("missing", ["node", "copy"])
def test_an_unclean_election_of_a_rebuilt_log_does_not_wait_for_the_outdated_set(
    by: str, missing: str
) -> None:
    """Its members live. copy: the node of n3 lives too, and its copy is not served."""
    quorum = Quorum()
    quorum.with_master(unclean=by == "settings")
    quorum.join_all()
    quorum.rebuild("a")
    if missing == "node":
        quorum.connected.discard("n3")
    quorum.fail_over()
    quorum.offsets["n1", "a"] = (1, 800, 800)
    quorum.offsets["n2", "a"] = (1, 900, 900)

    def live() -> None:
        quorum.heartbeats("n1", "n2")
        if missing == "copy":
            quorum.active.heartbeat(1, "n3", len(quorum.events) - 1, (), quorum.now_ms)

    for _ in range(8):
        live()
        quorum.pass_time(500)
        quorum.scan()
    live()
    if by == "operator":
        assert quorum.log().master is None
        quorum.done(ElectMaster("a", None, True, quorum.log().master_epoch))
    is_elected = by == "operator" or missing == "node"  # a living node may serve its copy yet
    assert quorum.log().master_node == ("n2" if is_elected else None)
    assert (quorum.log().unclean_epoch == quorum.log().master_epoch) is is_elected


@pytest.mark.rule("C-05", "C-09")
@pytest.mark.parametrize("empty", [True, False])
def test_an_empty_copy_vouches_for_nothing_that_its_node_held_before_the_rebuild(empty: bool) -> None:
    """The last set is unknown, and the disk of n1 was lost with those of the controllers: it may have been
    alone in the set. A copy that is only not known any more, with its records, is as good as before."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.rebuild("a")
    quorum.fail_over()
    quorum.offsets["n1", "a"] = (0, 0, 0) if empty else (2, 600, 600)
    quorum.offsets["n2", "a"] = (1, 900, 900)
    quorum.offsets["n3", "a"] = (2, 500, 500)
    quorum.register("n1", code="another disk")
    for _ in range(8):
        quorum.let_pass(500)
    log = quorum.log()
    assert log.master_node == (None if empty else "n1")
    assert log.unclean_epoch < log.master_epoch
    if empty:
        election = ElectMaster("a", None, False, log.master_epoch)
        answer = quorum.ask(election)
        assert isinstance(answer, Refusal)
        assert answer.detail.startswith("n1 may have held acknowledged records")
        quorum.done(msgspec.structs.replace(election, unclean=True))
        assert quorum.log().master_node == "n3"
        assert quorum.log().unclean_epoch == quorum.log().master_epoch


@pytest.mark.rule("C-05", "C-09")
def test_the_newest_of_all_is_not_elected_while_it_lacks_what_a_master_needs() -> None:
    """No other copy has its records, so no copy is elected in its place."""
    quorum = rebuilt_before_the_first_election()
    quorum.offsets.update(
        {("n1", "a"): (1, 900, 900), ("n2", "a"): (1, 900, 900), ("n3", "a"): (2, 500, 500)}
    )
    quorum.lacking.add("n3")
    for _ in range(8):
        quorum.let_pass(500)
    assert quorum.log().master is None
    quorum.lacking.clear()
    for _ in range(4):
        quorum.let_pass(500)
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("C-05", "C-09", "C-11")
def test_a_learner_of_rebuilt_metadata_may_be_the_last_master() -> None:
    """It was promoted after the copy of the metadata. Once promoted again it is elected."""
    quorum = Quorum()
    quorum.with_master(learners=("n3",))
    quorum.rebuild("a")
    quorum.fail_over()
    quorum.offsets["n1", "a"] = quorum.offsets["n2", "a"] = (1, 900, 900)
    quorum.offsets["n3", "a"] = (2, 500, 500)
    for heard in (("n1", "n2"), quorum.nodes):
        for _ in range(20):
            quorum.let_pass(500, *heard)
        assert quorum.log().master is None
    answer = quorum.ask(ElectMaster("a", None, False, quorum.log().master_epoch))
    assert isinstance(answer, Refusal)
    assert answer.detail.startswith("n3 is a learner and may hold acknowledged records: promote it")
    assert quorum.refused(ChangeReplica("a", "n3", ReplicaChange.REMOVE, "r")) is Reason.LAST_IN_SYNC
    quorum.done(ChangeReplica("a", "n3", ReplicaChange.PROMOTE, "p"))
    quorum.let_pass(500)
    log = quorum.log()
    assert (log.master_node, log.unclean_epoch < log.master_epoch) == ("n3", True)


@pytest.mark.rule("C-09", "C-11")
def test_a_learner_that_is_gone_after_a_rebuild_is_named_and_removed_by_force() -> None:
    quorum = Quorum()
    quorum.with_master(learners=("n3",))
    quorum.rebuild("a")
    quorum.fail_over()
    quorum.offsets["n1", "a"] = quorum.offsets["n2", "a"] = (1, 900, 900)
    for _ in range(20):
        quorum.let_pass(500, "n1", "n2")
    answer = quorum.ask(ElectMaster("a", None, False, quorum.log().master_epoch))
    assert isinstance(answer, Refusal)
    assert answer.detail.startswith("n3 may hold acknowledged records: start it, or remove it by force")
    quorum.done(ChangeReplica("a", "n3", ReplicaChange.REMOVE, "r", force=True))
    quorum.let_pass(500, "n1", "n2")
    log = quorum.log()
    assert (log.master_node, log.unclean_epoch < log.master_epoch) == ("n1", True)


@pytest.mark.rule("C-05", "C-09", "C-12")
def test_each_copy_that_equals_the_winner_of_a_rebuilt_log_may_replace_it_alone() -> None:
    """Two of three held each record in the outdated set; of these three each one holds all."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.with_master(in_sync_replicas=2)
    quorum.offsets.update({(node, "a"): (1, 20, 20) for node in quorum.nodes})
    quorum.heartbeats()
    quorum.alter("n1", "n2", "n3", acks=2)
    assert quorum.log().set_acks == 2
    quorum.rebuild("a")
    quorum.fail_over()
    while quorum.log().master is None:
        quorum.let_pass(500)
    assert (quorum.log().former_set, quorum.log().former_acks) == ((1, 2, 3), 0)
    for node in ("n1", "n2"):
        quorum.active.liveness.disconnected(node)
    for _ in range(20):
        quorum.let_pass(500, "n3")
    assert quorum.log().master_node == "n3"
    assert quorum.log().unclean_epoch < quorum.log().master_epoch
