"""A replica that failed to open its epoch is passed over only while nothing was acknowledged (C-05, A-11)."""

import pytest

from app.controller.commands import StepDown
from tests.unit.controller.elections.test_elections import let_die
from tests.unit.controller.support import CONFIG, Quorum


def fails_to_open(quorum: Quorum) -> None:
    log = quorum.log()
    assert log.master is not None
    quorum.done(StepDown("a", log.generation, log.master, log.master_epoch))


def only_n1() -> Quorum:
    """A log whose first master, the only one that lives, could not open two epochs: its disk was full."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.create()
    quorum.offsets["n1", "a"] = (0, 0, 0)
    for node in ("n2", "n3"):
        quorum.register(node)
    quorum.register("n1")
    quorum.heartbeats()
    quorum.scan()
    assert quorum.log().master_node == "n1"
    let_die(quorum, "n2", "n3")
    for _ in range(2):
        fails_to_open(quorum)
        assert quorum.log().master_node == "n1"
    return quorum


@pytest.mark.rule("C-05", "A-11")
def test_a_master_that_failed_to_open_before_gets_no_lease_until_its_epoch_is_open() -> None:
    quorum = only_n1()
    epoch = quorum.log().master_epoch
    assert not quorum.heartbeat(
        "n1"
    ).granted  # it may acknowledge nothing that the controllers do not hear of
    quorum.offsets["n1", "a"] = (epoch, 100, 0)
    assert quorum.heartbeat("n1").granted == (("a", epoch),)
    quorum.offsets["n1", "a"] = (0, 0, 0)  # a heartbeat that arrives late
    quorum.heartbeats()
    let_die(quorum, "n1")  # it has acknowledged, and no other replica holds that
    assert quorum.log().master is None


@pytest.mark.rule("C-05")
def test_another_one_begins_the_log_when_the_first_master_cannot() -> None:
    quorum = only_n1()
    quorum.pass_time(1)
    quorum.heartbeats()
    quorum.heartbeats()  # it is still empty after it has given the last epoch up
    let_die(quorum, "n1")
    assert quorum.log().master_node in ("n2", "n3")


@pytest.mark.rule("C-05", "A-11")
def test_an_empty_report_from_before_the_last_lease_proves_nothing() -> None:
    """The master acknowledged within its lease, and was killed before its next heartbeat."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.create()
    for node in ("n1", "n2", "n3"):
        quorum.offsets[node, "a"] = (0, 0, 0)
    quorum.heartbeats()
    quorum.register("n1")
    quorum.scan()
    for node in ("n2", "n3"):
        quorum.register(node)
    quorum.heartbeats()
    assert quorum.log().master_node == "n1"
    fails_to_open(quorum)
    epoch = quorum.log().master_epoch
    assert quorum.heartbeat("n1").granted == (("a", epoch),)
    quorum.active.liveness.disconnected("n1")
    fails_to_open(quorum)  # the next incarnation gives the epoch up, and its heartbeat is on the way
    assert quorum.log().master is None
    quorum.offsets["n1", "a"] = (epoch, 100, 100)
    quorum.let_pass(CONFIG.scan_interval_ms)
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n1", 0)
