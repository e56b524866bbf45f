"""Logs whose metadata `rebuild-controllers` took from an older copy: who may win an election (C-09)."""

import msgspec
import pytest

from app.controller.commands import (
    ApplyForReplicaId,
    ChangeReplica,
    ElectMaster,
    Reason,
    Refusal,
    RegisterReplica,
    ReplicaChange,
    StepDown,
)
from tests.unit.controller.support import Quorum, spec


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


def with_a_winner() -> Quorum:
    """n1 has given the lead up. The master elected from the set of all has yet to open its epoch."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (1, 900, 900) for node in quorum.nodes})
    quorum.join_all()
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
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
    quorum = with_a_winner()
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
    quorum = with_a_winner()
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
