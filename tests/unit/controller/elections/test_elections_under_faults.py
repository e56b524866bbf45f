"""ElectMaster while replicas fail, hang or are not heard: who is elected, and who lives (C-05)."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from app.controller.commands import (
    ChangeReplica,
    Done,
    ElectMaster,
    Reason,
    RegisterReplica,
    ReplicaChange,
    StepDown,
)
from app.controller.events import MasterElected
from app.controller.liveness import Report
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.replicas_manager import Action, ControllerRequest, SendToCore
from app.ha.roles import Lease, SlaveRole
from app.log.contract import Role
from tests.unit.controller.elections.test_elections import TIMEOUT_MS, elections, let_die, opened_by_n2
from tests.unit.controller.support import CONFIG, Quorum
from tests.unit.controller.test_lost_records import copy_of, heard, restored
from tests.unit.controller.test_replicas_manager import Bench


def heartbeat(quorum: Quorum, node: str, id: int, answered: int) -> BrokerHeartbeatAnswer:
    """As a node that reports which answer it has received last."""
    replica = quorum.log().of_node(node)
    assert replica is not None
    report = Report("a", quorum.log().generation, replica.id, quorum.log().master_epoch, 0, 0)
    return quorum.active.heartbeat(id, node, len(quorum.events) - 1, [report], quorum.now_ms, answered)


def opened(quorum: Quorum, node: str) -> None:
    """The node reports a record of the epoch that it was elected for."""
    quorum.offsets[node, "a"] = (quorum.log().master_epoch, 100, 0)
    quorum.heartbeat(node)
    quorum.scan()


@pytest.mark.rule("C-05")
def test_a_replica_that_died_with_the_master_is_not_elected() -> None:
    """It was heard a moment later than the master, and holds as much as the one that lives."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.heartbeat("n1")
    quorum.pass_time(CONFIG.heartbeat_interval_ms - 1)
    quorum.offsets["n2", "a"] = (1, 500, 0)  # it would be preferred
    quorum.heartbeat("n2")
    for _ in range(20):
        quorum.pass_time(TIMEOUT_MS // 10)
        quorum.heartbeat("n3")
        quorum.turn()
    assert [event.master for event in elections(quorum)] == [1, quorum.id_of("n3")]


@pytest.mark.rule("C-05", "A-11")
def test_a_winner_that_dies_at_once_is_replaced_although_a_lease_that_was_given_up_has_not_ended() -> None:
    """No lease is granted in an epoch that is not open: the one of the epoch before decides, and is over."""
    quorum = Quorum()
    log = quorum.with_master()
    quorum.join_all()
    quorum.let_pass(100)
    quorum.done(StepDown("a", log.generation, log.master or 0, log.master_epoch, leaving=True))
    assert quorum.log().master_node == "n2"
    quorum.let_pass(100, "n2", "n3")
    quorum.active.liveness.disconnected("n2")
    missed_ms = CONFIG.heartbeat_interval_ms + CONFIG.retry_interval_ms + 1
    assert missed_ms < CONFIG.lease_ms / 2
    quorum.let_pass(missed_ms, "n3")  # it has not died with n2
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n3", 0)


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("fate", ["dies", "cannot open", "hangs"])
def test_a_winner_that_does_not_open_its_epoch_gives_way_to_another_member_of_the_set_before(
    fate: str,
) -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    assert (quorum.log().master_node, quorum.log().set_nodes) == ("n2", ("n2",))
    assert quorum.log().former_set == (1, 2, 3)
    assert quorum.heartbeat("n2").granted == ()  # so it cannot have acknowledged anything
    if fate == "dies":
        let_die(quorum, "n1", "n2")
    elif fate == "hangs":
        for _ in range(3):
            let_die(quorum, "n1")
    else:
        for _ in range(2):
            log = quorum.log()
            quorum.done(StepDown("a", log.generation, log.master or 0, log.master_epoch))
    log = quorum.log()
    assert (log.master_node, log.set_nodes, log.unclean_epoch) == ("n3", ("n3",), 0)
    assert quorum.events[-2].restored  # type: ignore[union-attr]
    assert isinstance(quorum.events[-1], MasterElected)


@pytest.mark.rule("A-11", "C-05")
@pytest.mark.parametrize("case", ["unused", "used", "unclean", "other set"])
def test_a_master_that_has_used_no_lease_leaves_its_role_to_the_set_before(case: str) -> None:
    """Its disk hangs: the metadata by which its epoch is open are not on it. It has acknowledged nothing."""
    quorum = Quorum()
    quorum.with_master(unclean=case == "unclean")
    if case != "unclean":
        quorum.join_all()
    let_die(quorum, "n1")
    quorum.offsets["n2", "a"] = (2, 100, 0)
    quorum.let_pass(100, "n2", "n3")
    assert not quorum.log().is_opening
    if case == "other set":
        quorum.alter("n2")
    log = quorum.log()
    master = log.master or 0
    quorum.done(StepDown("a", log.generation, master, 2, confirmed=0, unused=case != "used"))
    quorum.let_pass(100, "n2", "n3")
    log = quorum.log()
    assert (log.master_node, log.unclean_epoch) == (
        "n3" if case == "unused" else "n2",
        2 * (case == "unclean"),
    )
    if case == "unused":
        assert (log.former_set, log.opened_epoch) == ((1, 2, 3), 1)


@pytest.mark.rule("A-11", "C-03", "C-05")
def test_an_older_copy_is_no_member_of_the_set_that_may_be_restored() -> None:
    """The set before may count again. Without the records of epoch 1, n3 must not be elected from it."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (1, 900, 0) for node in quorum.nodes})
    quorum.join_all()
    let_die(quorum, "n1")
    quorum.offsets["n2", "a"] = (2, 1_000, 0)
    quorum.let_pass(100, "n2", "n3")
    log = quorum.log()
    assert (log.is_opening, log.sync_state_set, log.opened_epoch) == (False, (2,), 2)
    older = RegisterReplica("a", log.generation, "n3", 3, "code n3", "n3:10911", 0, 0)
    assert quorum.refused(older) is Reason.LOST_RECORDS
    quorum.done(msgspec.structs.replace(older, max_offset=900, log_epoch=1))


@pytest.mark.rule("C-11")
def test_a_set_with_a_node_that_has_become_a_learner_is_not_restored() -> None:
    quorum = opened_by_n2()
    quorum.done(ChangeReplica("a", "n3", ReplicaChange.DEMOTE, "demote"))
    quorum.done(StepDown("a", quorum.log().generation, 2, 2, confirmed=0, unused=True))
    assert not any(quorum.log().is_learner(node) for node in quorum.log().nodes_of(quorum.log().holders))


@pytest.mark.rule("C-05")
def test_a_master_that_hangs_gives_way_within_two_timeouts() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    assert quorum.log().master_node == "n2"
    elected_ms = quorum.now_ms
    while quorum.log().master_node == "n2":
        quorum.let_pass(CONFIG.scan_interval_ms, "n2", "n3")
        assert quorum.now_ms - elected_ms <= 2 * CONFIG.broker_timeout_ms
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("nodes", [("n1", "n2", "n3"), ("n1", "n2", "n3", "n4")])
@pytest.mark.parametrize(("timeouts", "attempts"), [(5, 2), (8, 3), (30, 4), (120, 6)])
def test_a_log_whose_disks_are_all_slow_gets_a_master(
    nodes: tuple[str, ...], timeouts: int, attempts: int
) -> None:
    """Each needs so many timeouts of a broker for its first record: each attempt lasts longer."""
    quorum = Quorum(nodes)
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    epoch, elected_ms = 0, 0
    for _ in range(10_000):
        log = quorum.log()
        if log.master_epoch != epoch:
            epoch, elected_ms = log.master_epoch, quorum.now_ms
        assert log.master_node is not None
        if quorum.now_ms - elected_ms >= timeouts * CONFIG.broker_timeout_ms:
            quorum.offsets[log.master_node, "a"] = (epoch, 100, 0)
        quorum.let_pass(CONFIG.broker_timeout_ms // 10, *nodes[1:])
    assert not quorum.log().is_opening
    assert quorum.log().master_epoch <= 1 + attempts * (len(nodes) - 1)


@pytest.mark.rule("C-05")
def test_a_disk_that_hangs_gives_way_to_one_that_was_slow_before() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    was_slow = False
    for _ in range(500):
        log = quorum.log()
        if log.master_node == "n3" and was_slow:
            quorum.offsets["n3", "a"] = (log.master_epoch, 100, 0)
        was_slow = was_slow or (log.master_node == "n2" and log.master_epoch > 2)
        quorum.let_pass(CONFIG.broker_timeout_ms // 10, "n2", "n3")
    assert (quorum.log().master_node, quorum.log().is_opening) == ("n3", False)


@pytest.mark.rule("C-05")
def test_a_slow_epoch_counts_once_against_its_master_however_long_no_other_can_be_elected() -> None:
    """n2 hangs for a minute, alone; then its disk recovers, and that of n3 hangs."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    for _ in range(30 * CONFIG.broker_timeout_ms // 200):
        quorum.let_pass(200, "n2")
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n2", 2)
    for _ in range(8 * CONFIG.broker_timeout_ms // 200):
        quorum.let_pass(200, "n2", "n3")
        if quorum.log().master_node == "n2" and quorum.log().master_epoch > 2:
            quorum.offsets["n2", "a"] = (quorum.log().master_epoch, 100, 0)
    assert (quorum.log().master_node, quorum.log().is_opening) == ("n2", False)


@pytest.mark.rule("C-05", "A-11")
def test_the_set_before_is_forgotten_before_the_first_lease_of_an_epoch() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    let_die(quorum, "n1")
    opened(quorum, "n2")
    assert quorum.log().former_set == ()
    assert quorum.heartbeat("n2").granted == (("a", 2),)
    let_die(quorum, "n1", "n2")
    assert quorum.log().master is None  # n2 may have acknowledged what n3 lacks


@pytest.mark.rule("C-05")
def test_an_unclean_winner_keeps_no_set_before() -> None:
    """Members of it may give up what was acknowledged as soon as they follow the winner."""
    quorum = Quorum()
    quorum.with_master(unclean=True)
    let_die(quorum, "n1")
    log = quorum.log()
    assert (log.master_node, log.unclean_epoch, log.former_set) == ("n2", 2, ())
    quorum.heartbeats()
    let_die(quorum, "n2", "n3")
    assert elections(quorum)[-1].unclean  # n1 is back: another unclean election, not a clean one


@pytest.mark.rule("C-05")
def test_a_clean_election_keeps_the_epoch_of_the_last_unclean_one() -> None:
    """A replica that was away for both still has to give up what the unclean one has lost."""
    quorum = Quorum()
    quorum.with_master(unclean=True)
    let_die(quorum, "n1")
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n2", 2)
    assert isinstance(quorum.alter("n2", "n3"), Done)
    opened(quorum, "n2")
    let_die(quorum, "n1", "n2")
    log = quorum.log()
    assert (log.master_node, log.master_epoch, log.unclean_epoch) == ("n3", 3, 2)
    assert not elections(quorum)[-1].unclean


@pytest.mark.rule("C-05", "A-11")
def test_a_master_that_is_heard_and_cannot_hear_is_replaced() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    ids = dict.fromkeys(quorum.nodes, 0)  # of the last heartbeat that was answered
    deaf_ms = None
    for id in range(1, 40):
        quorum.pass_time(CONFIG.heartbeat_interval_ms // 5)
        for node in quorum.nodes:
            heartbeat(quorum, node, id, ids[node])
            if node != "n1" or id < 10:
                ids[node] = id
        quorum.turn()
        if id == 10:
            deaf_ms = quorum.now_ms
        if quorum.log().master_node != "n1":
            break
    assert deaf_ms is not None
    assert quorum.log().master_node in ("n2", "n3")
    assert quorum.now_ms - deaf_ms <= CONFIG.broker_timeout_ms + CONFIG.lease_ms


@pytest.mark.rule("C-05")
def test_a_replica_that_cannot_hear_is_not_elected() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.fail_over()
    for id in range(1, 30):
        quorum.pass_time(CONFIG.heartbeat_interval_ms // 4)
        heartbeat(quorum, "n2", id, 0)  # n2 would be the first choice
        heartbeat(quorum, "n3", id, id - 1)
        quorum.turn()
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("A-11")
def test_the_lease_is_the_epochs_comes_with_the_answer_and_leaves_a_margin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another lease in the settings of the next active controller counts from the next election on."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    answer = quorum.heartbeat("n1")
    assert (answer.granted, answer.leases) == ((("a", 1),), (CONFIG.lease_ms * 9 // 10,))
    shorter = replace(CONFIG, lease_ms=1_000, broker_timeout_ms=1_100)
    monkeypatch.setattr("tests.unit.controller.support.CONFIG", shorter)
    quorum.connected.discard("n1")
    quorum.fail_over()
    quorum.let_pass(CONFIG.lease_ms, "n2", "n3")
    assert quorum.log().master_node == "n1"  # its lease may still last
    quorum.pass_time(CONFIG.scan_interval_ms)
    quorum.turn()
    log = quorum.log()
    assert (log.master_node, log.lease_ms) == ("n2", 1_000)
    opened(quorum, "n2")
    assert quorum.heartbeat("n2").leases == (900,)


@pytest.mark.rule("A-11", "C-05")
@pytest.mark.parametrize("other", ["outdated", "not a replica", "of an earlier log"])
def test_an_election_that_waits_is_left_alone_by_commands_that_change_nothing(other: str) -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.heartbeats()
    log = quorum.log()
    election = ElectMaster("a", "n3", False, log.master_epoch)
    quorum.active.ask(election, election)
    quorum.turn()
    assert quorum.heartbeat("n1").withheld == ("a",)
    changes: dict[str, dict[str, Any]] = {
        "outdated": {"seen_epoch": 0},
        "not a replica": {"candidate": "n9"},
        "of an earlier log": {"generation": log.generation - 1},
    }
    late = msgspec.structs.replace(election, **changes[other])
    down = StepDown("a", log.generation, 1, log.master_epoch)
    quorum.active.ask(late, late)
    quorum.active.ask(down, down)
    answers = quorum.turn() + quorum.turn()
    assert quorum.log().master_node == "n3"
    assert isinstance(next(answer for token, answer in answers if token is election), Done)


@pytest.mark.rule("A-11", "C-05")
@pytest.mark.parametrize(("durable", "others"), [(False, True), (True, True), (False, False)])
def test_a_master_gives_up_the_epoch_in_which_its_disk_lets_it_use_no_lease(
    durable: bool, others: bool
) -> None:
    """It keeps the epoch while no other member of the set before lives."""
    bench = Bench()
    bench.become_master()
    quorum = bench.quorum
    quorum.join_all()
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    quorum.let_pass(100)
    epoch = quorum.log().master_epoch
    assert (epoch, quorum.log().master_node, quorum.log().is_opening) == (2, "n1", True)
    old_index = quorum.metadata.applied_index
    bench.reported()
    bench.view.role, bench.view.epoch = Role.MASTER, epoch
    bench.view.log_epoch, bench.view.max_offset = epoch, 100
    quorum.offsets["n1", "a"] = (epoch, 100, 0)
    quorum.let_pass(100)
    assert quorum.log().set_before is not None

    def step() -> list[Action]:
        index = quorum.metadata.applied_index if durable else old_index
        return bench.manager.step(quorum.metadata, bench.view, quorum.now_ms, index)

    grant = quorum.heartbeat("n1")
    alive = ("n1", "n2") if others else ("n1",)
    bench.manager.heartbeat_answered(grant.granted, (), alive, quorum.now_ms, grant.leases)
    assert (Lease in [type(each.message) for each in step() if isinstance(each, SendToCore)]) is durable
    quorum.pass_time(CONFIG.opening_timeout_ms)
    roles = [type(each.message) for each in step() if isinstance(each, SendToCore)]
    assert roles == ([SlaveRole] if others and not durable else [])
    bench.view.role = Role.SLAVE
    quorum.pass_time(CONFIG.retry_interval_ms)
    bench.manager.leave()
    asked = [each.command for each in step() if isinstance(each, ControllerRequest)]
    assert [(type(each), each.unused) for each in asked] == [(StepDown, not durable)]  # type: ignore[union-attr]


@pytest.mark.rule("C-03", "C-05")
def test_a_winner_whose_folder_becomes_a_copy_is_no_holder_because_of_its_election() -> None:
    """It was elected as an original. Its epoch is not open, and the former members hold everything."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (1, 100, 0) for node in quorum.nodes})
    quorum.join_all()
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    assert (quorum.log().master_node, quorum.log().former_set) == ("n1", (1, 2, 3))
    quorum.fail_over()
    quorum.confirms = True
    quorum.done(copy_of(quorum, "n1", 90))
    heard(quorum, n1=90)
    quorum.done(StepDown("a", quorum.log().generation, 1, 2))
    assert quorum.log().master_epoch == 2
    assert heard(quorum, n1=90, n2=100) == "n2"


@pytest.mark.rule("C-03", "C-05")
def test_a_copied_folder_stays_doubtful_when_the_set_before_an_election_is_restored() -> None:
    quorum = restored("n3")
    assert heard(quorum, n1=100, n2=100, n3=100) == "n1"
    let_die(quorum, "n1")
    assert (quorum.log().master_node, quorum.log().former_set) == ("n2", (1, 2, 3))
    assert quorum.log().copied == (quorum.id_of("n3"),)
