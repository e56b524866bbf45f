"""Elections before a log has records: nothing was acknowledged, so every replica may lead (C-05, A-11)."""

import msgspec
import pytest

from app.controller.commands import ChangeReplica, ReplicaChange, StepDown
from app.controller.events import (
    AnyEvent,
    MasterElected,
    ReplicaIdApplied,
    ReplicaRegistered,
    SyncStateSetChanged,
)
from tests.unit.controller.elections.test_elections import elections, let_die
from tests.unit.controller.support import CONFIG, Quorum


def first_elected(*registered: str) -> Quorum:
    """A log whose first master n1 has not opened its epoch. registered: by then; the others follow."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.create()
    quorum.offsets.update({(node, "a"): (0, 0, 0) for node in quorum.nodes})
    quorum.heartbeats()
    for node in registered or quorum.nodes:
        quorum.register(node)
    quorum.heartbeats()
    quorum.scan()
    assert (quorum.log().master_node, quorum.log().is_opening) == ("n1", True)
    for node in quorum.nodes:
        if registered and node not in registered:
            quorum.register(node)
    quorum.heartbeats()
    return quorum


def reports_opening(quorum: Quorum, node: str) -> None:
    quorum.offsets[node, "a"] = (quorum.log().master_epoch, 100, 0)
    quorum.heartbeat(node)
    quorum.scan()
    assert not quorum.log().is_opening


def happen(quorum: Quorum, *events: AnyEvent) -> None:
    """Another controller, of an earlier version, has decided this."""
    for event in events:
        quorum.metadata.apply(len(quorum.events), event)
        quorum.events.append(event)


def led_by(quorum: Quorum) -> tuple[str | None, int]:
    """The master, and the epoch of the last unclean election."""
    return quorum.log().master_node, quorum.log().unclean_epoch


@pytest.mark.rule("A-11")
def test_a_first_master_gets_no_lease_before_the_controllers_know_that_its_epoch_is_open() -> None:
    quorum = first_elected()
    assert quorum.heartbeat("n1").granted == ()
    reports_opening(quorum, "n1")
    assert quorum.heartbeat("n1").granted == (("a", 1),)
    let_die(quorum, "n1")  # it may have acknowledged, and no other replica holds that
    assert led_by(quorum) == (None, 0)


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("registered", [(), ("n1",)])
@pytest.mark.parametrize("fails_over", [False, True])
def test_a_first_master_that_dies_before_it_opens_its_epoch_is_replaced(
    registered: tuple[str, ...], *, fails_over: bool
) -> None:
    """Also by replicas that were registered after its election."""
    quorum = first_elected(*registered)
    if fails_over:
        quorum.connected.discard("n1")
        quorum.fail_over()
    let_die(quorum, "n1")
    assert led_by(quorum) == ("n2", 0)
    assert quorum.log().is_opening
    let_die(quorum, "n1", "n2")
    assert led_by(quorum) == ("n3", 0)


@pytest.mark.rule("C-05")
def test_two_first_masters_that_hang_give_way_to_the_healthy_one() -> None:
    quorum = first_elected()
    since_ms = quorum.now_ms
    while quorum.log().master_node != "n3" and quorum.now_ms - since_ms < 60_000:
        quorum.let_pass(CONFIG.scan_interval_ms)
    assert quorum.now_ms - since_ms <= 2 * CONFIG.opening_timeout_ms + CONFIG.broker_timeout_ms
    assert [event.master for event in elections(quorum)] == [1, 2, 3]
    reports_opening(quorum, "n3")
    assert quorum.heartbeat("n3").granted == (("a", 3),)
    assert led_by(quorum) == ("n3", 0)


@pytest.mark.rule("C-05")
def test_a_first_master_whose_disk_is_full_gives_way() -> None:
    quorum = first_elected()
    for _ in range(2):
        log = quorum.log()
        assert log.master_node == "n1"
        quorum.done(StepDown("a", log.generation, 1, log.master_epoch))
        quorum.let_pass(CONFIG.heartbeat_interval_ms)
    assert led_by(quorum) == ("n2", 0)


@pytest.mark.rule("C-05")
def test_a_first_master_that_opens_its_epoch_slowly_keeps_it() -> None:
    quorum = first_elected()
    for _ in range(CONFIG.opening_timeout_ms // 200 - 1):
        quorum.let_pass(200)
    reports_opening(quorum, "n1")
    for _ in range(100):
        quorum.let_pass(200)
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n1", 1)


@pytest.mark.rule("A-11", "C-05")
@pytest.mark.parametrize("leased", [False, True])
def test_a_first_master_that_dies_between_its_opening_and_its_first_lease_is_replaced(
    *, leased: bool
) -> None:
    """By a replica that was registered after its election, too."""
    quorum = first_elected("n1")
    reports_opening(quorum, "n1")
    if leased:
        quorum.heartbeat("n1")
    let_die(quorum, "n1")
    assert led_by(quorum) == (None if leased else "n2", 0)


@pytest.mark.rule("A-11", "C-05")
@pytest.mark.parametrize("why", ["earlier version", "foreign records", "rebuilt"])
def test_a_log_that_may_hold_records_waits_for_its_first_master(why: str) -> None:
    """The first election of an earlier version gave a lease at once. Records of an epoch that the controllers
    have not given show that these have lost their metadata."""
    quorum = Quorum()
    quorum.create()
    held = (5, 100, 0) if why == "foreign records" else (0, 0, 0)
    quorum.offsets.update({(node, "a"): held for node in quorum.nodes})
    if why == "earlier version":
        happen(
            quorum,
            ReplicaIdApplied(log="a", node="n1", replica_id=1, check_code="code n1"),
            ReplicaRegistered(log="a", replica_id=1, address="n1:10911"),
            MasterElected(log="a", master=1, master_epoch=1, set_epoch=1, reason="first", lease_ms=1_500),
        )
    for node in quorum.nodes:
        quorum.register(node)
    assert led_by(quorum) == ("n1", 0)
    if why == "rebuilt":
        quorum.rebuild("a")
    assert not quorum.log().never_open
    if why != "rebuilt":
        let_die(quorum, "n1")
        assert led_by(quorum) == (None, 0)


@pytest.mark.rule("A-11", "C-05")
def test_a_master_without_a_former_set_may_have_acknowledged() -> None:
    """An earlier version elected n2 because n1 had failed, and named n1 alone. When that is taken out, n2
    gets a lease before any epoch is known to be open."""
    quorum = first_elected("n1")
    happen(
        quorum,
        SyncStateSetChanged(log="a", master_epoch=1, sync_state_set=(1, 2), set_epoch=2, restored=True),
        MasterElected(log="a", master=2, master_epoch=2, set_epoch=3, reason="master-lost", former_set=(1,)),
    )
    quorum.done(ChangeReplica("a", "n1", ReplicaChange.CLEAN, "clean n1", force=True))
    assert quorum.heartbeat("n2").granted == (("a", 2),)
    quorum.fail_over()
    let_die(quorum, "n1", "n2")
    assert led_by(quorum) == (None, 0)


@pytest.mark.rule("C-05")
def test_a_log_whose_first_replicas_are_taken_out_is_led_by_the_next_one() -> None:
    quorum = first_elected("n1")
    quorum.done(ChangeReplica("a", "n1", ReplicaChange.CLEAN, "clean n1", force=True))
    quorum.fail_over()
    let_die(quorum, "n1")
    assert led_by(quorum) == ("n2", 0)


@pytest.mark.rule("C-09")
def test_a_snapshot_of_an_earlier_version_does_not_show_that_a_log_was_never_open() -> None:
    quorum = first_elected()
    fields = msgspec.to_builtins(quorum.log())
    del fields["never_open"]
    assert quorum.log().never_open
    assert not msgspec.convert(fields, type(quorum.log())).never_open
