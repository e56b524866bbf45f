"""ElectMaster while the disk of a living master hangs: how long until another one leads (C-05, A-11)."""

import pytest

from app.controller.commands import StepDown
from tests.unit.controller.elections.test_elections import elections, opened_by_n2
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
@pytest.mark.parametrize("holds", [False, True])
def test_a_first_master_that_hangs_gives_way_while_the_log_is_empty(*, holds: bool) -> None:
    """It reports an empty log after its last lease. One whose log may hold records remains master."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (0, 0, 0) for node in quorum.nodes})
    quorum.offsets["n1", "a"] = (0, 100 if holds else 0, 0)
    limit_ms = CONFIG.opening_timeout_ms + CONFIG.broker_timeout_ms
    lasted_ms = master_for_ms(quorum, "n1", limit_ms=2 * limit_ms)
    assert (lasted_ms <= limit_ms) is not holds
    assert [event.unclean for event in elections(quorum)] == [False, False][holds:]


@pytest.mark.rule("A-11", "C-05")
def test_a_first_master_with_a_slow_disk_keeps_its_epoch_once_it_is_open() -> None:
    """Its lease had been withheld for its slow opening."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (0, 0, 0) for node in quorum.nodes})
    assert master_for_ms(quorum, "n1", limit_ms=CONFIG.opening_timeout_ms) >= CONFIG.opening_timeout_ms
    assert quorum.heartbeat("n1").granted == ()
    quorum.offsets["n1", "a"] = (1, 100, 0)
    assert quorum.heartbeat("n1").granted == (("a", 1),)
    assert master_for_ms(quorum, "n1", limit_ms=20_000) >= 20_000
