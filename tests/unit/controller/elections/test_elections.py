"""ElectMaster: who, when, and what it changes (C-04, C-05, C-11); leases before elections (A-11)."""

from typing import Any

import pytest

from app.controller.commands import Done, ElectMaster, Reason, Refusal, StepDown
from app.controller.events import MasterElected, MasterLost
from tests.unit.controller.support import CONFIG, Quorum

TIMEOUT_MS = CONFIG.broker_timeout_ms


def let_die(quorum: Quorum, *dead: str) -> None:
    """Time passes in which everybody but `dead` is heard, until they count as dead and hold no lease."""
    for _ in range(12):
        quorum.let_pass(TIMEOUT_MS // 10, *[node for node in quorum.nodes if node not in dead])


def opened_by_n2() -> Quorum:
    """n1 has died, and n2 was elected from the set of all and has opened epoch 2."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    quorum.offsets["n2", "a"] = (2, 100, 0)
    quorum.let_pass(100, "n2", "n3")
    return quorum


def elections(quorum: Quorum) -> list[MasterElected]:
    return [event for event in quorum.events if isinstance(event, MasterElected)]


@pytest.mark.rule("C-05")
def test_the_first_master_is_the_one_named_first_once_it_is_registered() -> None:
    quorum = Quorum()
    quorum.create(preferred="n3")
    quorum.heartbeats()
    for node in ("n2", "n1"):
        quorum.register(node)
        quorum.scan()
        assert quorum.log().master is None
    quorum.register("n3")
    quorum.scan()
    log = quorum.log()
    assert (log.master_node, log.set_nodes, log.master_epoch, log.set_epoch) == ("n3", ("n3",), 1, 1)


@pytest.mark.rule("C-05")
def test_the_first_election_does_not_wait_without_end_for_the_one_named_first() -> None:
    quorum = Quorum()
    quorum.create()
    quorum.heartbeats()
    quorum.register("n2")
    let_die(quorum, "n1")
    assert quorum.log().master_node == "n2"


@pytest.mark.rule("C-05", "C-04")
def test_a_silent_master_is_replaced_from_the_set_and_the_set_becomes_the_new_master_alone() -> None:
    quorum = Quorum()
    before = quorum.with_master()
    quorum.join_all()
    set_epoch = quorum.log().set_epoch
    let_die(quorum, "n1")
    log = quorum.log()
    assert log.master_node in ("n2", "n3")
    assert log.set_nodes == (log.master_node,)
    assert log.master_epoch == before.master_epoch + 1
    assert log.set_epoch == set_epoch + 1
    assert not elections(quorum)[-1].unclean


@pytest.mark.rule("C-05")
@pytest.mark.parametrize(
    ("offsets", "winner"),
    [
        ({"n2": (3, 10, 0), "n3": (2, 99, 0)}, "n2"),  # epoch before offset
        ({"n2": (3, 10, 0), "n3": (3, 11, 0)}, "n3"),  # offset before priority
        ({"n2": (3, 11, 0), "n3": (3, 11, 0)}, "n3"),  # preferred
    ],
)
def test_larger_epoch_then_larger_offset_then_priority(
    offsets: dict[str, tuple[int, int, int]], winner: str
) -> None:
    quorum = Quorum()
    quorum.with_master(preferred="n3")
    quorum.join_all()
    quorum.active.liveness.given_up("a", quorum.now_ms)
    quorum.done(ElectMaster("a", "n1", False, 1))
    quorum.join_all()
    for node, offset in offsets.items():
        quorum.offsets[node, "a"] = offset
    quorum.heartbeats()
    let_die(quorum, "n1")
    assert quorum.log().master_node == winner


@pytest.mark.rule("C-05")
@pytest.mark.parametrize(
    ("settings", "winner"),
    [
        ({"priorities": {"n2": 2, "n3": 1}}, "n3"),  # the lower number wins
        ({"priorities": {"n3": 7}}, "n3"),  # a node without a priority comes last
        ({"priorities": {"n2": 5, "n3": 5}}, "n2"),  # order of the settings
        ({"priorities": {"n2": 1, "n3": 2}, "preferred": "n3"}, "n3"),  # preferred before any priority
    ],
)
def test_priorities_decide_between_equal_copies(settings: dict[str, Any], winner: str) -> None:
    quorum = Quorum()
    quorum.with_master(**{**settings, "priorities": {"n1": 0, **settings["priorities"]}})
    quorum.join_all()
    quorum.offsets.update({("n2", "a"): (1, 9, 9), ("n3", "a"): (1, 9, 9)})
    quorum.heartbeats()
    let_die(quorum, "n1")
    assert quorum.log().master_node == winner


@pytest.mark.rule("C-05")
def test_a_larger_offset_comes_before_a_better_priority() -> None:
    quorum = Quorum()
    quorum.with_master(priorities={"n1": 0, "n2": 1, "n3": 2})
    quorum.join_all()
    quorum.offsets.update({("n2", "a"): (1, 9, 9), ("n3", "a"): (1, 10, 9)})
    quorum.heartbeats()
    let_die(quorum, "n1")
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("C-05")
def test_the_first_election_waits_for_the_best_priority() -> None:
    quorum = Quorum()
    quorum.create(priorities={"n2": 1})
    quorum.heartbeats()
    quorum.register("n1")
    quorum.scan()
    assert quorum.log().master is None
    quorum.register("n2")
    quorum.scan()
    assert quorum.log().master_node == "n2"


@pytest.mark.rule("C-03", "C-05")
def test_an_offset_that_fell_by_a_truncation_counts_as_reported() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.offsets["n2", "a"] = (1, 500, 0)
    quorum.offsets["n3", "a"] = (1, 400, 0)
    quorum.heartbeats()
    quorum.offsets["n2", "a"] = (1, 300, 0)
    quorum.heartbeats()
    let_die(quorum, "n1")
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("C-05")
def test_no_replica_outside_the_set_is_elected_and_the_log_waits_without_a_master() -> None:
    quorum = Quorum()
    quorum.with_master()  # the set is n1 alone
    let_die(quorum, "n1")
    log = quorum.log()
    assert (log.master, log.set_nodes, log.master_epoch) == (None, ("n1",), 1)
    assert isinstance(quorum.events[-1], MasterLost)
    assert quorum.refused(ElectMaster("a", None, False, 1)) is Reason.NO_ELIGIBLE_REPLICA
    assert quorum.refused(ElectMaster("a", "n2", False, 1)) is Reason.NO_ELIGIBLE_REPLICA
    let_die(quorum)  # n1 comes back
    log = quorum.log()
    assert (log.master_node, log.master_epoch) == ("n1", 2)


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("by", ["operator", "settings"])
def test_an_unclean_election_is_allowed_explicitly_and_reports_the_loss(by: str) -> None:
    quorum = Quorum()
    quorum.with_master(unclean=by == "settings")
    quorum.offsets["n1", "a"] = (1, 900, 800)
    quorum.offsets["n2", "a"] = (1, 600, 500)
    quorum.offsets["n3", "a"] = (1, 700, 500)
    quorum.heartbeats()
    let_die(quorum, "n1")
    if by == "operator":
        assert quorum.log().master is None
        quorum.done(ElectMaster("a", None, True, 1))
    log = quorum.log()
    assert (log.master_node, log.master_epoch, log.unclean_epoch) == ("n3", 2, 2)
    event = elections(quorum)[-1]
    assert event.unclean
    assert event.lost == {
        "master": "n1" if by == "settings" else None,
        "sync_state_set": ["n1"],
        "max_offset": 900,
        "confirm_offset": 800,
        "from_offset": 700,
    }


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("candidate", [None, "n2", "n1"])
def test_the_refusal_of_a_clean_election_names_the_unclean_one_and_what_it_loses(
    candidate: str | None,
) -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update(
        {("n1", "a"): (1, 900, 800), ("n2", "a"): (1, 600, 500), ("n3", "a"): (1, 700, 500)}
    )
    quorum.heartbeats()
    let_die(quorum, "n1")
    refused = quorum.ask(ElectMaster("a", candidate, False, 1))
    assert isinstance(refused, Refusal)
    elected = {None: ("n3", 700), "n2": ("n2", 600)}.get(candidate)
    assert ("--unclean" in refused.detail) is (elected is not None)
    if elected is not None:
        assert refused.detail.endswith(
            f"; with `unclean` (--unclean) {elected[0]} becomes master, and the records that it lacks are"
            f" lost: its log ends at byte {elected[1]}, the replicas in sync at byte 900"
        )


@pytest.mark.rule("C-05")
def test_no_unclean_election_before_a_new_active_controller_has_had_time_to_hear_the_set() -> None:
    quorum = Quorum()
    quorum.with_master(unclean=True)
    quorum.fail_over()
    for _ in range(8):
        quorum.let_pass(TIMEOUT_MS // 10, "n2", "n3")
    assert quorum.log().master_node == "n1"
    for _ in range(8):
        quorum.let_pass(TIMEOUT_MS // 10, "n2", "n3")
    assert quorum.log().master_node in ("n2", "n3")
    assert quorum.log().unclean_epoch == 2


@pytest.mark.rule("C-11")
def test_a_learner_is_never_elected_not_even_unclean() -> None:
    quorum = Quorum()
    quorum.with_master(learners=("n3",), unclean=True)
    quorum.heartbeats()
    let_die(quorum, "n1", "n2")
    assert quorum.log().master is None
    assert quorum.refused(ElectMaster("a", "n3", True, 1)) is Reason.NO_ELIGIBLE_REPLICA


@pytest.mark.rule("C-05")
def test_a_closed_connection_counts_as_death_and_a_heartbeat_as_life() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.heartbeats()
    quorum.active.liveness.disconnected("n1")
    quorum.let_pass(CONFIG.lease_ms - 1, "n2", "n3")
    assert quorum.log().master_node == "n1"  # it may still hold its lease
    quorum.pass_time(CONFIG.scan_interval_ms)
    quorum.turn()
    assert quorum.log().master_node in ("n2", "n3")
    again = Quorum()
    again.with_master()
    again.join_all()
    again.active.liveness.disconnected("n1")
    again.heartbeats()  # it was a connection, not the node
    let_die(again)
    assert again.log().master_node == "n1"


@pytest.mark.rule("A-11", "C-05")
def test_an_operator_moves_a_living_master_only_when_its_lease_is_over_or_given_up() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.heartbeats()
    token = object()
    quorum.active.ask(token, ElectMaster("a", "n2", False, 1))
    assert quorum.turn() == []
    answer = quorum.heartbeat("n1")
    assert (answer.granted, answer.withheld) == ((), ("a",))
    assert quorum.log().master_node == "n1"
    log = quorum.log()
    quorum.done(StepDown("a", log.generation, quorum.id_of("n1"), log.master_epoch))
    quorum.pass_time(CONFIG.scan_interval_ms)
    answers = quorum.turn()
    assert [asked for asked, _ in answers] == [token]
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n2", 2)
    # without a word of the old master: after its lease
    quorum.join_all()
    quorum.heartbeats()
    quorum.active.ask(token, ElectMaster("a", "n3", False, 2))
    assert quorum.turn() == []
    quorum.pass_time(CONFIG.lease_ms - 1)
    quorum.heartbeats()
    assert quorum.turn() == []
    quorum.pass_time(CONFIG.scan_interval_ms)
    quorum.turn()
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("A-11")
def test_a_master_that_is_elected_again_continues_with_its_lease() -> None:
    """It resigned the epoch before, not this one: an operator who moves it has to wait."""
    quorum = Quorum()
    log = quorum.with_master()
    quorum.heartbeats()
    quorum.done(StepDown("a", log.generation, quorum.id_of("n1"), 1))
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n1", 2)
    assert isinstance(quorum.alter("n1", "n2"), Done)
    quorum.active.ask(object(), ElectMaster("a", "n2", False, 2))
    assert quorum.turn() == []
    assert quorum.log().master_node == "n1"


@pytest.mark.rule("C-05")
def test_an_election_asked_twice_happens_once_and_a_living_master_that_will_do_stays() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    assert isinstance(quorum.ask(ElectMaster("a", None, False, 1)), Done)
    assert isinstance(quorum.ask(ElectMaster("a", "n1", False, 1)), Done)
    assert quorum.log().master_epoch == 1
    quorum.active.liveness.given_up("a", quorum.now_ms)
    quorum.done(ElectMaster("a", "n2", False, 1))
    assert quorum.log().master_epoch == 2
    quorum.done(ElectMaster("a", "n2", False, 1))  # the answer was lost
    quorum.done(ElectMaster("a", "n1", False, 1))
    assert quorum.log().master_epoch == 2


@pytest.mark.rule("C-05")
def test_a_master_that_leaves_is_replaced_at_once_and_one_that_restarted_gets_a_new_epoch() -> None:
    quorum = Quorum()
    log = quorum.with_master()
    quorum.offsets["n1", "a"] = (1, 999, 0)
    quorum.join_all()
    quorum.done(StepDown("a", log.generation, quorum.id_of("n1"), 1))
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n1", 2)
    quorum.done(StepDown("a", log.generation, quorum.id_of("n1"), 1))  # an old role
    assert quorum.log().master_epoch == 2
    quorum.join_all()
    quorum.done(StepDown("a", log.generation, quorum.id_of("n1"), 2, leaving=True))
    assert quorum.log().master_node in ("n2", "n3")
    assert quorum.log().master_epoch == 3


@pytest.mark.rule("C-04")
def test_the_epoch_outlives_the_active_controller_and_a_log_without_a_master() -> None:
    quorum = Quorum()
    quorum.with_master()
    epochs = [quorum.log().master_epoch]
    for _ in range(4):
        let_die(quorum, "n1")
        quorum.fail_over()
        let_die(quorum)
        epochs.append(quorum.log().master_epoch)
    assert epochs == [1, 2, 3, 4, 5]
    assert [event.master_epoch for event in elections(quorum)] == epochs


@pytest.mark.rule("A-11")
def test_a_lease_is_granted_to_the_master_alone_and_not_while_an_election_is_on_its_way() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    assert quorum.heartbeat("n1").granted == (("a", 1),)
    assert quorum.heartbeat("n2").granted == ()
    log = quorum.log()
    quorum.active.ask(object(), StepDown("a", log.generation, quorum.id_of("n1"), 1))
    round_ = quorum.active.next_round(term=1, next_index=len(quorum.events), now_ms=quorum.now_ms, time_ms=0)
    assert round_ is not None
    assert quorum.heartbeat("n1").granted == ()  # the round may be committed any moment
    quorum.active.not_stored()
    assert quorum.heartbeat("n1").granted == (("a", 1),)


@pytest.mark.rule("A-11")
def test_a_new_active_controller_waits_for_leases_that_it_does_not_know() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.heartbeats()
    quorum.connected.discard("n1")
    quorum.fail_over()
    quorum.let_pass(CONFIG.lease_ms - 1, "n2", "n3")
    assert quorum.log().master_node == "n1"
    quorum.pass_time(CONFIG.scan_interval_ms)
    quorum.turn()
    assert quorum.log().master_node != "n1"
