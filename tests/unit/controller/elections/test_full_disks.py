"""A master whose disk is full gives way to a member of the SyncStateSet that has space (C-05, A-11)."""

from typing import Any

import pytest

from app.controller.commands import ChangeLog, ElectMaster, StepDown
from tests.unit.controller.elections.test_elections import elections
from tests.unit.controller.support import CONFIG, Quorum


def in_sync(*names: str, **settings: Any) -> Quorum:
    """n1 is the master of logs whose replicas are all in sync: of `a` by default."""
    quorum = Quorum()
    for name in names or ("a",):
        quorum.with_master(name, **settings)
        opened(quorum, name)
    return quorum


def opened(quorum: Quorum, name: str = "a") -> None:
    """Every copy holds the opening of the newest epoch, and is in the set."""
    for node in quorum.nodes:
        quorum.offsets[node, name] = (quorum.log(name).master_epoch, 100, 100)
    quorum.heartbeats()
    quorum.scan()
    quorum.join_all(name)


def live(quorum: Quorum, ms: int) -> None:
    """All nodes are heard meanwhile, and a master that is asked to give up its epoch does so."""
    until_ms = quorum.now_ms + ms
    while quorum.now_ms < until_ms:
        quorum.let_pass(CONFIG.heartbeat_interval_ms // 2)
        for name in [name for node in quorum.nodes for name in quorum.heartbeat(node).withheld]:
            give_up(quorum, name)


def give_up(quorum: Quorum, name: str = "a") -> None:
    log = quorum.log(name)
    quorum.done(StepDown(name, log.generation, log.master or 0, log.master_epoch, confirmed=100))


@pytest.mark.rule("C-05", "A-11")
def test_a_master_without_disk_space_gives_way_to_a_member_that_has_some() -> None:
    quorum = in_sync()
    quorum.full = {"n1", "n2"}
    live(quorum, CONFIG.full_disk_timeout_ms)
    assert quorum.log().master_node == "n1"
    live(quorum, CONFIG.heartbeat_interval_ms)
    log = quorum.log()
    assert (log.master_node, log.master_epoch, log.unclean_epoch) == ("n3", 2, 0)
    assert elections(quorum)[-1].reason == "disk-full"


@pytest.mark.rule("A-11")
def test_no_other_is_elected_while_the_master_without_disk_space_may_hold_its_lease() -> None:
    quorum = in_sync()
    quorum.full = {"n1"}
    for _ in range(0, CONFIG.full_disk_timeout_ms + CONFIG.heartbeat_interval_ms, 250):
        quorum.let_pass(250)
    assert quorum.heartbeat("n1").withheld == ("a",)
    assert quorum.log().master_node == "n1"
    for _ in range(0, CONFIG.lease_ms + CONFIG.heartbeat_interval_ms, 250):
        quorum.let_pass(250)
    assert quorum.log().master_node == "n2"


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("later", ["records are stored", "forgotten"])
def test_a_master_whose_disk_has_space_again_in_time_stays(later: str) -> None:
    quorum = in_sync()
    for number in range(3):
        quorum.full = {"n1"}
        live(quorum, CONFIG.full_disk_timeout_ms // 2)
        quorum.full = set()
        if later == "forgotten":
            live(quorum, CONFIG.full_disk_remembered_ms)
        else:
            quorum.offsets["n1", "a"] = (1, 101 + number, 100)
            live(quorum, CONFIG.heartbeat_interval_ms)
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n1", 1)


@pytest.mark.rule("C-05")
def test_an_election_that_was_begun_is_carried_out_though_the_former_master_sees_no_refusal_any_more() -> (
    None
):
    """It takes no appends since it was asked to give its epoch up, so it notices no full disk."""
    quorum = in_sync()
    quorum.full = {"n1"}
    while not quorum.heartbeat("n1").withheld:
        quorum.let_pass(CONFIG.scan_interval_ms)
    quorum.full = set()
    live(quorum, 2 * CONFIG.heartbeat_interval_ms)
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n2", 2)


@pytest.mark.rule("C-05", "C-12")
@pytest.mark.parametrize("case", ["all full", "floor", "not in sync", "dead", "not all count"])
def test_a_master_without_disk_space_stays_where_no_other_could_take_appends(case: str) -> None:
    quorum = in_sync(min_in_sync_replicas=2 if case == "floor" else 1)
    quorum.full = {"n1"}
    if case == "all full":
        quorum.full = set(quorum.nodes)
    elif case == "floor":
        quorum.full = {"n1", "n3"}
    elif case == "not in sync":
        quorum.alter("n1")
    elif case == "dead":
        quorum.nodes = ("n1",)
    elif case == "not all count":
        quorum.done(ChangeLog("a", {"in_sync_replicas": 2}, "change"))
        quorum.alter("n1", "n2", "n3", acks=2)
    live(quorum, 3 * CONFIG.full_disk_timeout_ms)
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n1", 1)


@pytest.mark.rule("C-05")
def test_where_all_disks_are_full_and_only_a_master_notices_it_each_leads_once() -> None:
    quorum = in_sync()
    for _ in range(20):
        quorum.full = {quorum.log().master_node or ""}
        live(quorum, 2 * CONFIG.full_disk_timeout_ms)
        if quorum.log().is_opening:
            opened(quorum)
    assert [each.master for each in elections(quorum)] == [1, 2, 3]


@pytest.mark.rule("C-05")
def test_a_master_whose_writers_pause_for_longer_than_it_remembers_a_refusal_gives_way_too() -> None:
    """A replica reports a full disk for 2 s after a refused write. Earlier records reach its disk then."""
    quorum = in_sync()
    quorum.full = {"n1"}
    quorum.let_pass(CONFIG.scan_interval_ms)
    quorum.offsets["n1", "a"] = (1, 200, 100)
    live(quorum, 2_000)
    quorum.full = set()
    live(quorum, 8_000)
    assert quorum.log().master_node == "n1"
    quorum.full = {"n1"}
    live(quorum, CONFIG.heartbeat_interval_ms)
    assert quorum.log().master_node == "n2"


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("full", ["a", "b"])
def test_only_the_log_whose_records_are_refused_gets_another_master(full: str) -> None:
    quorum = in_sync("a", "b")
    quorum.full = {("n1", full)}
    live(quorum, CONFIG.full_disk_timeout_ms + CONFIG.heartbeat_interval_ms)
    assert [name for name in ("a", "b") if quorum.log(name).master_node != "n1"] == [full]


@pytest.mark.rule("C-05")
def test_an_operators_election_that_waits_for_the_lease_comes_first() -> None:
    quorum = in_sync()
    quorum.full = {"n1"}
    while not quorum.heartbeat("n1").withheld:
        quorum.let_pass(CONFIG.scan_interval_ms)
    election = ElectMaster("a", "n3", False, quorum.log().master_epoch)
    quorum.active.ask(election, election)
    quorum.turn()
    give_up(quorum)
    quorum.scan()
    assert (quorum.log().master_node, elections(quorum)[-1].reason) == ("n3", "operator")


@pytest.mark.rule("C-05")
def test_a_full_disk_of_an_earlier_master_costs_no_other_its_role() -> None:
    """The next master leaves the log, and has to stay because the others cannot lead any more."""
    quorum = in_sync()
    quorum.full = {"n1"}
    live(quorum, CONFIG.full_disk_timeout_ms + CONFIG.heartbeat_interval_ms)
    opened(quorum)
    quorum.done(ChangeLog("a", {"replicas": ("n1", "n3")}, "change"))
    quorum.let_pass(CONFIG.scan_interval_ms)
    assert quorum.heartbeat("n2").withheld == ("a",)
    quorum.lacking = {"n1", "n3"}
    for _ in range(0, CONFIG.lease_ms + CONFIG.heartbeat_interval_ms, 250):
        quorum.let_pass(250)
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n2", 2)
    assert quorum.heartbeat("n2").granted == (("a", 2),)


@pytest.mark.rule("C-05")
def test_replicas_that_cannot_open_an_epoch_are_not_elected_one_directly_after_the_other() -> None:
    """There is no space for the record that opens it at any of them."""
    quorum = in_sync()
    give_up(quorum)
    tried_ms = 10 * CONFIG.opening_timeout_ms
    for _ in range(0, tried_ms, CONFIG.retry_interval_ms):
        quorum.let_pass(CONFIG.retry_interval_ms)
        give_up(quorum)
    assert len(quorum.nodes) * 2 < len(elections(quorum)) < len(quorum.nodes) * 2 + 11
    assert {each.master for each in elections(quorum)[-3:]} == {1, 2, 3}
