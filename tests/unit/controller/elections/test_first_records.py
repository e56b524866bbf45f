"""A replica that failed to open its epoch is passed over only while nothing was acknowledged (C-05, A-11)."""

import pytest

from app.controller.commands import StepDown
from tests.unit.controller.elections.test_elections import let_die
from tests.unit.controller.support import Quorum


def fails_to_open(quorum: Quorum) -> None:
    log = quorum.log()
    assert log.master is not None
    quorum.done(StepDown("a", log.generation, log.master, log.master_epoch))


def only_n1() -> Quorum:
    """A log whose first master, the only one that lives, could not open two epochs: its disk was full."""
    quorum = Quorum()
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
    quorum.heartbeats()
    quorum.heartbeats()
    let_die(quorum, "n1")
    assert quorum.log().master_node in ("n2", "n3")
