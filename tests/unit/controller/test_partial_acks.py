"""Elections of a log whose records are acknowledged by a part of the SyncStateSet (C-05, C-12)."""

import pytest

from app.controller.commands import ChangeLog, ElectMaster, Reason, Refusal, RegisterReplica, StepDown
from app.controller.config import ControllerConfig
from app.controller.events import MasterElected, MasterLost, decode_event, encode_event
from app.controller.liveness import Liveness, Report
from tests.unit.controller.support import CONFIG, Quorum
from tests.unit.controller.test_lost_records import copy_of, heard, restored

STEP_MS = CONFIG.broker_timeout_ms // 10


def by_two_of_three(**settings: object) -> Quorum:
    """n1 is master of {n1, n2, n3}; each acknowledged record is on two of them, n2 holds more than n3."""
    quorum = Quorum()
    quorum.confirms = True
    quorum.with_master(in_sync_replicas=2, **settings)
    quorum.offsets.update({("n1", "a"): (1, 30, 20), ("n2", "a"): (1, 20, 20), ("n3", "a"): (1, 10, 10)})
    quorum.heartbeats()
    quorum.alter("n1", "n2", "n3", acks=2)
    assert quorum.log().set_acks == 2
    quorum.heartbeats()
    return quorum


def live(quorum: Quorum, *nodes: str, steps: int = 14) -> None:
    """Only these are heard, for longer than a lease and the time until a silent node is dead."""
    for _ in range(steps):
        quorum.pass_time(STEP_MS)
        quorum.heartbeats(*nodes)
        quorum.turn()


def elected(quorum: Quorum) -> str | None:
    """The master of a newer epoch than the first."""
    log = quorum.log()
    return log.master_node if log.master_epoch > 1 else None


@pytest.mark.rule("C-05", "C-12")
def test_the_most_advanced_of_enough_members_is_elected() -> None:
    quorum = by_two_of_three(priorities={"n1": 0, "n3": 1})
    live(quorum, "n2", "n3")
    assert elected(quorum) == "n2"
    event = [event for event in quorum.events if isinstance(event, MasterElected)][-1]
    assert (event.unclean, event.former_set, event.former_acks) == (False, (1, 2, 3), 2)


@pytest.mark.rule("C-05", "C-12")
def test_a_member_alone_may_lack_what_was_acknowledged_and_is_not_elected() -> None:
    for survivor in ("n2", "n3"):
        quorum = by_two_of_three()
        live(quorum, survivor)
        assert elected(quorum) is None
        assert isinstance(
            quorum.events[-1], MasterLost
        )  # no replica can be elected, and the group is notified
        assert quorum.active.masters.refused_elections == {
            ("a", "no-eligible-replica"): 1
        }  # once, not at each scan
        live(quorum, "n2", "n3")
        assert elected(quorum) == "n2"


@pytest.mark.rule("C-05", "A-11")
def test_a_report_from_before_the_end_of_the_lease_proves_nothing() -> None:
    """n2 held 20 when it was last heard; then it may have acknowledged more, and died with the master."""
    quorum = by_two_of_three()
    quorum.offsets["n3", "a"] = (1, 25, 20)
    live(quorum, "n1", "n2", "n3", steps=2)
    live(quorum, "n3")
    assert elected(quorum) is None


@pytest.mark.rule("C-05", "A-11")
def test_heartbeats_that_confirm_no_answer_prove_nothing() -> None:
    quorum = by_two_of_three()
    quorum.confirms = False  # as nodes of an earlier version do
    live(quorum, "n2", "n3")
    assert elected(quorum) is None


@pytest.mark.rule("C-05", "A-11")
def test_a_heartbeat_that_was_overtaken_proves_nothing_about_what_it_reports() -> None:
    liveness = Liveness(ControllerConfig(), ("n1", "n2"), ("n1", "n2"), 0)
    report = Report("a", 0, 2, 1, 10, 10)

    def hear(now_ms: int, answered: int) -> None:
        liveness.heard("n2", 0, [report], now_ms, answered)

    liveness.granted("a", 0)
    hear(100, 0)
    liveness.answers("n2", 1, 100)
    hear(1_600, 1)
    liveness.answers("n2", 2, 1_600)
    assert not liveness.was_written_after_lease("n2", "a")  # written after the answer of 100 ms
    hear(1_700, 2)
    assert liveness.was_written_after_lease("n2", "a")
    hear(1_710, 1)  # the one of 1 600 ms, once more
    assert not liveness.was_written_after_lease("n2", "a")
    hear(1_720, 2)
    assert liveness.was_written_after_lease("n2", "a")


@pytest.mark.rule("C-05", "A-11")
def test_an_election_moves_the_end_of_the_last_lease_neither_forth_nor_back() -> None:
    """The leases of the new epoch have another length; its winner may be replaced before it has any."""
    lease_ms = 1_500
    liveness = Liveness(ControllerConfig(), ("n1",), ("n1",), 0, lambda _log: lease_ms)
    liveness.granted("a", 100)
    liveness.granted("b", 100)
    liveness.given_up("b", 300)
    for log in ("a", "b"):
        liveness.elected(log)
    lease_ms = 500
    assert [liveness.lease_over_ms(log) for log in ("a", "b")] == [1_600, 300]
    liveness.granted("a", 2_000)
    assert liveness.lease_over_ms("a") == 2_500


@pytest.mark.rule("C-05", "C-12")
def test_the_end_that_a_master_hands_over_makes_other_reports_unnecessary() -> None:
    for confirmed, winner in ((10, "n3"), (15, None)):
        quorum = by_two_of_three()
        quorum.active.liveness.disconnected("n2")
        log = quorum.log()
        quorum.done(StepDown("a", log.generation, 1, 1, leaving=True, confirmed=confirmed))
        assert elected(quorum) == winner


@pytest.mark.rule("C-05", "C-12")
def test_the_end_that_a_master_hands_over_counts_in_its_epoch_only() -> None:
    quorum = by_two_of_three()
    quorum.offsets["n3", "a"] = (0, 99, 10)  # of an earlier epoch: another history
    quorum.heartbeats()
    quorum.active.liveness.disconnected("n2")
    log = quorum.log()
    quorum.done(StepDown("a", log.generation, 1, 1, leaving=True, confirmed=10))
    assert elected(quorum) is None


@pytest.mark.rule("A-11")
def test_a_master_that_gave_its_epoch_up_is_granted_no_lease() -> None:
    quorum = by_two_of_three()
    log = quorum.log()
    assert quorum.heartbeat("n1").granted
    quorum.done(StepDown("a", log.generation, 1, 1))
    assert quorum.heartbeat("n1").granted == ()
    quorum.done(StepDown("a", log.generation, 1, 1))  # it asks again: the proof is not put off by that
    live(quorum, "n1", "n2", "n3", steps=4)
    quorum.done(StepDown("a", log.generation, 1, 1))
    assert quorum.log().master_epoch == 2


def answer_to(quorum: Quorum, command: ElectMaster, *nodes: str, steps: int) -> object:
    """Return the answer to the command while these nodes are heard, None without an answer."""
    for _ in range(steps):
        quorum.pass_time(STEP_MS)
        quorum.heartbeats(*nodes)
        for token, answer in quorum.turn():
            if token is command:
                return answer
    return None


@pytest.mark.rule("C-05", "C-12")
@pytest.mark.parametrize("catches_up", [True, False])
def test_an_operators_election_waits_for_records_while_the_master_leads(catches_up: bool) -> None:
    quorum = by_two_of_three()
    command = ElectMaster("a", "n3", False, 1)
    quorum.active.ask(command, command)
    quorum.turn()
    assert answer_to(quorum, command, steps=1) is None
    assert quorum.heartbeat("n1").withheld == ()
    if catches_up:
        quorum.offsets["n3", "a"] = (1, 20, 20)
        assert answer_to(quorum, command, steps=1) is None
        assert quorum.heartbeat("n1").withheld == ("a",)
        quorum.done(StepDown("a", quorum.log().generation, 1, 1, confirmed=20))
        answer_to(quorum, command, steps=2)
        assert elected(quorum) == "n3"
        return
    answer = answer_to(quorum, command, steps=8)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.NO_ELIGIBLE_REPLICA
    assert "n3 lacks 10 bytes" in answer.detail
    assert (quorum.heartbeat("n1").granted, quorum.log().master_epoch) == ((("a", 1),), 1)


@pytest.mark.rule("C-05", "C-12")
def test_elections_of_two_copies_that_lack_records_are_both_refused_in_time() -> None:
    """Each waits on its own: they do not begin to wait again because of each other."""
    quorum = by_two_of_three()
    quorum.offsets["n2", "a"] = (1, 15, 15)
    quorum.heartbeats()
    elections = [ElectMaster("a", node, False, 1) for node in ("n2", "n3")]
    for election in elections:
        quorum.active.ask(election.candidate, election)
    answers = quorum.turn()
    for _ in range(3 * CONFIG.heartbeat_interval_ms // STEP_MS):
        quorum.pass_time(STEP_MS)
        quorum.heartbeats()
        answers += quorum.turn()
    assert sorted(token for token, answer in answers if isinstance(answer, Refusal)) == ["n2", "n3"]
    assert quorum.log().master_node == "n1"


def handing_over_to_n3() -> tuple[Quorum, ElectMaster]:
    """An operator has asked for n3, which is behind, so n1 gets no lease any more."""
    quorum = by_two_of_three()
    quorum.offsets["n3", "a"] = (1, 20, 20)
    quorum.heartbeats()
    command = ElectMaster("a", "n3", False, 1)
    quorum.active.ask(command, command)
    quorum.turn()
    assert quorum.heartbeat("n1").withheld == ("a",)
    return quorum, command


@pytest.mark.rule("C-05", "C-12")
def test_an_operators_election_is_refused_as_soon_as_the_copy_cannot_get_what_it_lacks() -> None:
    """n3 held all that n1 had confirmed; n1 acknowledged more before it gave its lease up."""
    quorum, command = handing_over_to_n3()
    quorum.offsets["n2", "a"] = (1, 30, 30)
    down = StepDown("a", quorum.log().generation, 1, 1, confirmed=30)
    quorum.active.ask(down, down)
    quorum.turn()
    answer = answer_to(quorum, command, steps=3)  # not for the whole time until a silent node is dead
    assert isinstance(answer, Refusal)
    live(quorum, "n1", "n2", "n3", steps=1)
    quorum.active.ask(down, down)
    quorum.turn()
    assert elected(quorum) in ("n1", "n2")


@pytest.mark.rule("C-05", "C-12")
def test_a_report_from_before_the_end_of_the_lease_refuses_no_operators_election() -> None:
    """n3 has received since what n1 acknowledged last; its next heartbeat reports that."""
    quorum, command = handing_over_to_n3()
    quorum.done(StepDown("a", quorum.log().generation, 1, 1, confirmed=30))
    quorum.scan()
    quorum.offsets["n3", "a"] = (1, 30, 30)
    answer_to(quorum, command, steps=2)
    assert elected(quorum) == "n3"


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("catches_up", [True, False])
def test_an_operators_election_waits_for_the_proof_and_is_refused_without_one(catches_up: bool) -> None:
    quorum = by_two_of_three()
    quorum.offsets["n3", "a"] = (1, 20, 20)
    quorum.heartbeats()
    command = ElectMaster("a", "n3", False, 1)
    quorum.active.ask(command, command)
    quorum.turn()
    quorum.offsets["n2", "a"] = (1, 30, 20)
    down = StepDown("a", quorum.log().generation, 1, 1)
    quorum.active.ask(down, down)
    quorum.turn()
    live(quorum, "n1", "n2", "n3", steps=3)
    assert elected(quorum) is None  # n1 and n2 hold more: a record may be on these two
    if catches_up:
        quorum.offsets["n3", "a"] = (1, 30, 20)
        live(quorum, "n1", "n2", "n3", steps=3)
        assert elected(quorum) == "n3"
        return
    live(quorum, "n1", "n2", "n3", steps=9)
    assert quorum.done(down)  # the operator's time is over: the best is elected
    assert elected(quorum) == "n1"


@pytest.mark.rule("A-11", "C-05")
def test_an_operators_election_is_not_unclean_while_the_master_leads() -> None:
    """The master is the only member that is heard: too few to prove what n4 holds after the lease."""
    quorum = Quorum(("n1", "n2", "n3", "n4"))
    quorum.confirms = True
    quorum.with_master(in_sync_replicas=2, unclean=True)
    quorum.offsets.update({(node, "a"): (1, 20, 20) for node in quorum.nodes})
    quorum.heartbeats()
    quorum.alter("n1", "n2", "n3", acks=2)
    for node in ("n2", "n3"):
        quorum.active.liveness.disconnected(node)
    assert quorum.heartbeat("n1").granted == (("a", 1),)
    assert quorum.refused(ElectMaster("a", "n4", False, 1)) is Reason.NO_ELIGIBLE_REPLICA
    assert (quorum.log().master_node, quorum.log().unclean_epoch) == ("n1", 0)
    assert quorum.heartbeat("n1").granted == (("a", 1),)


@pytest.mark.rule("C-05", "C-11")
@pytest.mark.parametrize("allowed", [False, True])
def test_an_unclean_election_is_possible_when_the_proven_member_lacks_the_logs_state(allowed: bool) -> None:
    """n1 was to send it to n2, and is dead. n3 holds less than n2, so nothing proves that it holds all."""
    quorum = by_two_of_three(unclean=allowed)
    quorum.lacking.add("n2")
    live(quorum, "n2", "n3")
    if not allowed:
        assert elected(quorum) is None
        assert isinstance(quorum.events[-1], MasterLost)
        quorum.done(ElectMaster("a", None, True, 1))
    assert (elected(quorum), quorum.log().unclean_epoch) == ("n2", 2)


@pytest.mark.rule("C-05")
def test_a_member_that_has_not_reported_yet_gives_hope_of_a_clean_election() -> None:
    quorum = by_two_of_three(unclean=True)
    quorum.lacking.add("n2")
    quorum.fail_over()
    for _ in range(3):
        quorum.let_pass(STEP_MS, "n2", "n3")
    assert quorum.log().master_epoch == 1  # the lease of n1 may last
    live(quorum, "n1", "n2", "n3")
    assert quorum.log().unclean_epoch == 0


@pytest.mark.rule("C-03", "C-05")
def test_a_member_whose_disk_was_replaced_counts_as_not_heard() -> None:
    """A record may have been on n1 and n2 only. n2 comes back empty: n3 must not be elected without n1."""
    quorum = by_two_of_three()
    quorum.register("n2", code="another disk")
    assert quorum.log().sync_state_set == (1, 2, 3)
    live(quorum, "n2", "n3")
    assert elected(quorum) is None
    live(quorum, "n1", "n2", "n3", steps=3)
    assert quorum.log().master_node == "n1"


@pytest.mark.rule("C-05", "C-12")
def test_the_set_before_counts_by_its_acks_while_the_winner_has_not_opened_its_epoch() -> None:
    quorum = by_two_of_three()
    live(quorum, "n2", "n3")
    assert elected(quorum) == "n2"
    live(quorum, "n3")  # the winner dies before it opens epoch 2
    assert quorum.log().master_node in (None, "n2")
    live(quorum, "n1", "n3")
    log = quorum.log()
    assert (log.master_node, log.master_epoch, log.former_acks) == ("n1", 3, 2)


@pytest.mark.rule("A-11", "C-05", "C-12")
def test_the_set_before_is_not_restored_while_too_few_of_it_live() -> None:
    """n2 stops before its first lease, and is alone when it returns. It was proven to be complete."""
    quorum = by_two_of_three()
    live(quorum, "n2", "n3")
    quorum.offsets["n2", "a"] = (2, 40, 20)
    live(quorum, "n2", "n3", steps=1)
    assert (quorum.log().is_opening, quorum.log().sync_state_set) == (False, (2,))
    live(quorum, "n2")
    leaves = StepDown("a", quorum.log().generation, 2, 2, leaving=True, confirmed=20, unused=True)
    quorum.done(leaves)
    live(quorum, "n2")
    assert (quorum.log().master_node, quorum.log().master_epoch) == ("n2", 3)


@pytest.mark.rule("C-05")
def test_an_unclean_election_needs_no_proof_and_is_recorded_as_unclean() -> None:
    quorum = by_two_of_three(unclean=True)
    live(quorum, "n3")
    assert elected(quorum) == "n3"
    assert quorum.log().unclean_epoch == 2


def test_the_acks_of_a_set_are_in_the_events_and_in_the_snapshot() -> None:
    quorum = by_two_of_three()
    changed = quorum.events[-1]
    assert decode_event(encode_event(changed)) == changed
    assert type(quorum.metadata).restore(quorum.metadata.snapshot()).log("a") == quorum.log()
    assert RegisterReplica("a", 0, "n1", 1, "c", "x").max_offset is None


@pytest.mark.rule("C-05", "C-12")
def test_a_node_that_is_taken_out_by_force_counts_as_not_heard_until_the_set_changes() -> None:
    quorum = by_two_of_three()
    generation = quorum.log().generation
    quorum.done(ChangeLog("a", {"replicas": ("n1", "n3")}, "out", None, generation, force=True))
    log = quorum.log()
    assert (log.nodes, log.sync_state_set) == (("n1", "n3"), (1, 2, 3))
    live(quorum, "n3")
    assert elected(quorum) is None
    live(quorum, "n1", "n3", steps=3)
    assert quorum.log().master_node == "n1"


@pytest.mark.rule("C-05", "C-12")
def test_a_node_of_the_set_before_that_is_taken_out_by_force_counts_as_not_heard() -> None:
    """n2 is elected and has not opened its epoch. Without n1 and n2 nothing proves what n3 holds."""
    quorum = by_two_of_three()
    live(quorum, "n2", "n3")
    assert elected(quorum) == "n2"
    generation = quorum.log().generation
    quorum.done(ChangeLog("a", {"replicas": ("n2", "n3")}, "out", None, generation, force=True))
    assert quorum.log().former_set == (1, 2, 3)
    live(quorum, "n3")
    assert quorum.log().master_node != "n3"
    live(quorum, "n2", "n3")
    assert quorum.log().master_node == "n2"


@pytest.mark.rule("C-05")
def test_a_master_leaves_the_log_once_all_of_its_set_count() -> None:
    quorum = by_two_of_three()
    generation = quorum.log().generation
    quorum.done(ChangeLog("a", {"replicas": ("n2", "n3")}, "out", None, generation))
    quorum.scan()
    assert quorum.heartbeat("n1").withheld == ()
    quorum.alter("n1", "n2", "n3", acks=0)  # n3 has what it lacked by now
    quorum.scan()
    assert "a" in quorum.heartbeat("n1").withheld
    quorum.done(StepDown("a", generation, 1, 1, confirmed=20))
    quorum.scan()
    assert elected(quorum) in ("n2", "n3")


@pytest.mark.rule("C-03", "C-12")
def test_too_few_originals_wait_for_the_copies_of_all_other_members() -> None:
    quorum = restored("n2", "n3", in_sync_replicas=2)
    assert heard(quorum, n1=100, n2=110) is None
    assert heard(quorum, n1=100, n2=110, n3=90) == "n2"


@pytest.mark.rule("C-03", "C-12")
def test_the_last_member_is_a_copied_folder_and_may_lack_what_the_lost_ones_held() -> None:
    """With two of three members that hold each record, one copy that is left proves nothing."""
    quorum = restored("n1", in_sync_replicas=2)
    for node in ("n2", "n3"):
        quorum.register(node, code=f"{node} with an empty disk")
    assert heard(quorum, n1=100, n2=0, n3=0) is None


@pytest.mark.rule("C-03", "C-12")
@pytest.mark.parametrize("settings", [{}, {"in_sync_replicas": 2}])
@pytest.mark.parametrize("later", [(), ("n2", "n3")])
def test_no_copied_folder_is_elected_by_itself_beside_a_lost_member(
    later: tuple[str, ...], settings: dict[str, int]
) -> None:
    """The lost one may have been a copy too, which was newer and was found to lack records. later: copies
    that are registered after that."""
    quorum = restored(*(node for node in ("n2", "n3") if node not in later), **settings)
    quorum.register("n1", code="n1 with an older folder")
    for node in later:
        quorum.done(copy_of(quorum, node))
    assert heard(quorum, n1=120, n2=100, n3=110) is None
    quorum.done(ElectMaster("a", None, True, quorum.log().master_epoch))
    assert quorum.log().master_node == "n1"


@pytest.mark.rule("C-05", "C-12")
def test_an_unclean_election_beside_a_lost_member_waits_for_those_that_had_no_time_to_be_heard() -> None:
    """No clean election is possible. The copy of n3 holds most, and its node starts later than n2."""
    quorum = restored("n2", "n3", unclean=True)
    quorum.register("n1", code="n1 with an older folder")
    quorum.pass_time(60_000)
    quorum.fail_over()
    began_ms = quorum.now_ms
    quorum.offsets["n2", "a"], quorum.offsets["n3", "a"] = (1, 100, 0), (1, 110, 0)
    while quorum.now_ms - began_ms < CONFIG.broker_timeout_ms - STEP_MS:
        quorum.let_pass(STEP_MS, "n2")
    assert quorum.log().master is None
    for _ in range(2):
        quorum.let_pass(STEP_MS // 2, "n2", "n3")
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("C-03", "C-06")
def test_a_copied_folder_waits_also_while_another_one_opens_its_epoch() -> None:
    """The new master may count what the folder before has acknowledged. If it gives the epoch up, it is not
    elected again without the copy that waits: the log has no master, and the copy is a member again."""
    quorum = restored("n2", "n3", in_sync_replicas=2)
    assert heard(quorum, n1=100, n2=100, n3=120) == "n3"
    log = quorum.log()
    unregistered = [Report("a", log.generation, 0, 1, 100, 0)]
    quorum.active.heartbeat(quorum.now_ms, "n1", len(quorum.events) - 1, unregistered, quorum.now_ms)
    assert quorum.refused(copy_of(quorum, "n1")) is Reason.NOT_ALIVE
    quorum.done(StepDown("a", log.generation, quorum.id_of("n3"), log.master_epoch))
    assert quorum.log().master is None
    quorum.done(copy_of(quorum, "n1"))
    assert heard(quorum, n1=100, n2=100, n3=120) == "n3"


@pytest.mark.rule("C-03", "C-05")
def test_no_copied_folder_is_elected_beside_a_lost_winner_that_had_yet_to_open_its_epoch() -> None:
    """The set before counts, and the winner was one of its members."""
    quorum = Quorum()
    quorum.with_master()
    quorum.offsets.update({(node, "a"): (1, 100, 0) for node in quorum.nodes})
    quorum.heartbeats()
    quorum.alter("n1", "n2")
    quorum.done(StepDown("a", quorum.log().generation, 1, 1))
    assert (quorum.log().master_node, quorum.log().former_set) == ("n1", (1, 2))
    quorum.fail_over()
    quorum.confirms = True
    quorum.register("n1", code="n1 with an older folder")
    quorum.done(copy_of(quorum, "n2"))
    assert (quorum.log().former_set, quorum.log().copied) == ((1, 2), (2,))
    assert heard(quorum, n1=120, n2=100, n3=100) is None
