"""ElectMaster while the disk of a living master hangs: how long until another one leads (C-05, A-11)."""

import pytest

from app.controller.commands import StepDown
from tests.unit.controller.elections.test_elections import elections, let_die, opened_by_n2
from tests.unit.controller.support import CONFIG, Quorum
from tests.unit.controller.test_partial_acks import STEP_MS, by_two_of_three, live


def master_for_ms(quorum: Quorum, node: str, *heard: str, limit_ms: int = 60_000) -> int:
    """Return how long that node remains master, in milliseconds."""
    since_ms = quorum.now_ms
    while quorum.log().master_node == node and quorum.now_ms - since_ms < limit_ms:
        quorum.let_pass(CONFIG.scan_interval_ms, *heard)
    return quorum.now_ms - since_ms


@pytest.mark.rule("A-11", "C-05")
def test_a_master_that_hangs_again_gives_way_as_soon_as_a_member_of_the_set_before_returns() -> None:
    """n3 restarts when n2 gives its epoch up, so n2 is elected again. Its longer time is for a log without
    other replicas that may be faster."""
    quorum = opened_by_n2()
    quorum.active.liveness.heard("n3", 0, (), quorum.now_ms)  # without its copy
    quorum.done(StepDown("a", quorum.log().generation, 2, 2, confirmed=0, unused=True))
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n2", 3)
    assert master_for_ms(quorum, "n2", "n2", "n3") <= CONFIG.opening_timeout_ms
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n3", 0)


@pytest.mark.rule("A-11", "C-05", "C-12")
def test_a_master_that_gave_its_epoch_up_is_not_preferred_because_it_had_opened_it() -> None:
    """The election waits for reports. Meanwhile n2 still reports a record of its epoch."""
    quorum = by_two_of_three()
    live(quorum, "n2", "n3")
    quorum.offsets["n2", "a"] = quorum.offsets["n3", "a"] = (2, 40, 20)
    live(quorum, "n2", "n3", steps=1)
    log = quorum.log()
    assert (log.master_node, log.master_epoch, log.is_opening) == ("n2", 2, False)
    gives_up = StepDown("a", log.generation, 2, 2, confirmed=20, unused=True)
    while quorum.log().master_epoch == 2:
        quorum.active.ask(None, gives_up)  # until it knows the outcome
        quorum.pass_time(STEP_MS)
        quorum.heartbeats("n2", "n3")
        quorum.turn()
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("A-11", "C-05")
@pytest.mark.parametrize("case", ["no lease", "leased", "another controller", "other set"])
def test_a_winner_that_dies_between_its_opening_and_its_first_lease_leaves_its_role_to_the_set_before(
    case: str,
) -> None:
    """The controller that noted the opening knows that it has granted no lease since."""
    quorum = opened_by_n2()
    log = quorum.log()
    assert (log.master_node, log.is_opening, log.set_nodes) == ("n2", False, ("n2",))
    if case == "leased":
        quorum.heartbeat("n2")
    elif case == "another controller":
        quorum.fail_over()
    elif case == "other set":
        quorum.alter("n2")
    let_die(quorum, "n1", "n2")
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n3" if case == "no lease" else None, 0)
    assert len(elections(quorum)) == 2 + (case == "no lease")


@pytest.mark.rule("A-11", "C-05")
def test_a_winner_that_dies_as_soon_as_it_has_reported_its_opening_keeps_the_former_set() -> None:
    """It was to get no lease yet, whichever controller is active."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    quorum.offsets["n2", "a"] = (2, 100, 0)
    quorum.heartbeat("n2")
    quorum.active.liveness.disconnected("n2")
    quorum.scan()
    assert quorum.log().is_opening
    quorum.connected = {"n1", "n3"}
    quorum.fail_over()
    let_die(quorum, "n1", "n2")
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n3", 0)


@pytest.mark.rule("A-11", "C-05")
def test_a_winner_that_returns_before_another_can_be_elected_leads_with_its_own_set() -> None:
    """Its connection closed for a moment. n3 can be elected once it is heard after that: until then the set
    before holds not again, or n2 would acknowledge alone what n3 lacks."""
    quorum = opened_by_n2()
    quorum.active.liveness.disconnected("n2")
    quorum.scan()
    log = quorum.log()
    assert quorum.heartbeat("n2").granted == (("a", 2),)
    assert (log.master_node, log.set_nodes) == ("n2", ("n2",))
    let_die(quorum, "n1", "n2")
    assert quorum.log().master is None
