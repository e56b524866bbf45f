"""Leadership transfer (R-09)."""

from itertools import pairwise

import pytest

from app.api.routes.members import not_taken_over
from app.errors import AlreadyLeader, StorageFull, TransferFailed
from app.log.contract import AppendFate, ChangeKind
from app.raft.config import RaftConfig
from app.raft.messages import TimeoutNow, VoteAnswer, VoteRequest
from tests.unit.raft.support import Group, Member


@pytest.mark.rule("R-09")
def test_the_chosen_voter_leads_at_once_and_nothing_is_lost() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    leader.append(token="a")
    assert leader.core.transfer("n3", group.now_ms) == "n3"
    group.settle()
    assert (group.leader.name, group.leader.core.term) == ("n3", 2)
    assert leader.answers == [("a", AppendFate.ACKNOWLEDGED)]


@pytest.mark.rule("R-09")
def test_without_a_name_the_most_up_to_date_voter_is_chosen() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    leader.append()
    group.settle("n1", "n3")
    assert leader.core.transfer(None, group.now_ms) == "n3"


@pytest.mark.rule("R-09")
def test_the_target_is_asked_only_when_it_holds_everything_committed() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    leader.append()
    leader.core.transfer("n2", group.now_ms)
    leader.run()
    assert group.take(kind=TimeoutNow) == []
    group.settle()
    assert group.leader.name == "n2"


@pytest.mark.rule("R-09")
def test_a_target_that_holds_what_no_majority_holds_is_not_asked_yet() -> None:
    """Its election would leave the outcome of these appends unknown."""
    group = Group(5)
    leader = group.elect("n1")
    group.settle()
    leader.append(token="a")
    leader.core.transfer("n2", group.now_ms)
    group.settle("n1", "n2")
    assert (leader.leads, group["n2"].core.term, leader.answers) == (True, 1, [])
    group.settle()
    assert (group.leader.name, leader.answers) == ("n2", [("a", AppendFate.ACKNOWLEDGED)])


@pytest.mark.rule("R-09")
def test_appends_wait_only_while_the_target_takes_over_and_continue_when_it_does_not() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    group.take(target="n2")
    leader.core.transfer("n2", group.now_ms)  # it holds everything
    assert not leader.core.accepts_appends
    group.pass_time(1_100, "n1", "n3")
    assert (leader.leads, leader.core.accepts_appends) == (True, True)


@pytest.mark.rule("R-09", "R-10")
def test_a_transfer_ends_when_its_target_is_no_voter_any_more() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    group.pass_time(100)
    leader.core.transfer("n2", group.now_ms)
    leader.run()
    group.take(target="n2")
    assert not leader.core.accepts_appends
    leader.change(ChangeKind.REMOVE, "n2")
    assert (leader.core.is_transferring, leader.core.accepts_appends) == (False, True)


@pytest.mark.rule("R-09")
def test_appends_continue_while_the_target_catches_up_and_when_it_never_does() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    group["n2"].auto_sync = False  # its disk is slow
    leader.append()
    leader.core.transfer("n2", group.now_ms)
    group.pass_time(1_000)
    assert (leader.core.is_transferring, leader.core.accepts_appends) == (True, True)
    group["n2"].sync()  # a round of a second: it lags by as much
    leader.append()
    group.settle()
    assert leader.core.accepts_appends
    group["n2"].sync()  # a short one
    group.settle()
    assert group.leader.name == "n2"

    group["n3"].auto_sync = False
    group["n2"].append()
    group["n2"].core.transfer("n3", group.now_ms)
    for _ in range(60):
        group.pass_time(100)
        assert group["n2"].core.accepts_appends
        group["n2"].append()
    assert not group["n2"].core.is_transferring


@pytest.mark.rule("R-09")
def test_the_vote_of_a_transfer_skips_pre_vote_and_stickiness() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    group.pass_time(200)
    leader.core.transfer("n2", group.now_ms)
    leader.run()
    group.deliver(kind=TimeoutNow)
    requests = [message for message in group.take(source="n2") if isinstance(message, VoteRequest)]
    assert [(request.pre_vote, request.transfer) for request in requests] == [(False, True)] * 2
    group["n3"].step("n2", requests[0])  # it has just heard of n1, and votes all the same
    assert group["n3"].core.term == 2
    group.settle()
    assert group.leader.name == "n2"


@pytest.mark.rule("R-09")
def test_only_the_own_leader_can_make_a_member_campaign() -> None:
    group = Group(3)
    group.elect("n1")
    group.settle()
    group["n2"].step("n3", TimeoutNow(1))
    assert group["n2"].core.term == 1


@pytest.mark.rule("R-09")
def test_impossible_targets_are_refused() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    with pytest.raises(AlreadyLeader):
        leader.core.transfer("n1", group.now_ms)
    with pytest.raises(TransferFailed, match="not a voter"):
        leader.core.transfer("n9", group.now_ms)
    with pytest.raises(TransferFailed, match="does not lead"):
        group["n2"].core.transfer("n3", group.now_ms)
    group.pass_time(800, "n1", "n2")
    with pytest.raises(TransferFailed, match="answer"):
        leader.core.transfer("n3", group.now_ms)


@pytest.mark.rule("R-09")
def test_the_preferred_leader_gets_the_lead_back() -> None:
    group = Group(3, preferred_leader="n2")
    group.elect("n1")
    group.settle()
    group.pass_time(4_000)
    assert group.leader.name == "n1"  # not at once: it may have come up a moment ago
    group.pass_time(2_000)
    assert group.leader.name == "n2"
    group.pass_time(12_000)
    assert (group.leader.name, group.leader.core.term) == ("n2", 2)


@pytest.mark.rule("R-09")
def test_a_voter_that_could_not_lead_is_not_chosen() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group["n2"].core.electable = False
    group.settle()
    leader.append()
    group.settle()
    with pytest.raises(TransferFailed, match="could not lead"):
        leader.core.transfer("n2", group.now_ms)
    assert leader.core.transfer(None, group.now_ms) == "n3"


@pytest.mark.rule("R-09")
def test_a_lead_that_no_voter_could_take_is_kept() -> None:
    group = Group(3)
    leader = group.elect("n1")
    for name in ("n2", "n3"):
        group[name].core.electable = False
    group.settle()
    leader.append()
    group.settle()
    with pytest.raises(TransferFailed, match="each other voter could not lead"):
        leader.core.transfer(None, group.now_ms)


@pytest.mark.rule("R-09")
def test_a_leader_without_room_hands_over_to_a_voter_that_has_it_and_not_at_once() -> None:
    group = Group(3)
    leader = group.elect("n1")
    leader.append()
    group["n1"].core.has_room = group["n2"].core.has_room = False
    began_ms = group.now_ms
    while group.leader.name == "n1" and group.now_ms < began_ms + 6_000:
        group.pass_time(100)
    assert group.leader.name == "n3"
    assert 3_000 <= group.now_ms - began_ms <= 4_000


@pytest.mark.rule("R-09")
def test_a_short_lack_of_room_changes_no_leader() -> None:
    group = Group(3)
    leader = group.elect("n1")
    for _ in range(3):
        group["n1"].core.has_room = False
        group.pass_time(2_500)
        group["n1"].core.has_room = True
        leader.append()
        group.pass_time(200)
    assert group.leader.name == "n1"


@pytest.mark.rule("R-09")
def test_a_leader_without_room_hands_over_however_seldom_its_writers_notice_that() -> None:
    """A leader has no room for 2 s after a refused write, as far as is known."""
    group = Group(3)
    group.elect("n1").append()
    for has_room, ms in ((False, 2_000), (True, 8_000), (False, 1_000)):
        assert group.leader.name == "n1"
        group["n1"].core.has_room = has_room
        group.pass_time(ms)
    assert group.leader.name != "n1"


@pytest.mark.rule("R-09")
def test_a_leader_without_room_whose_transfer_failed_offers_the_lead_after_the_same_time_again() -> None:
    """Appends wait during an attempt: records that fit, such as trims, would otherwise never get through."""
    group = Group(3)
    group.elect("n1")
    group["n1"].core.has_room = False
    begun: list[int] = []
    under_way = False
    for _ in range(500):
        group.now_ms += 20
        for member in group.members.values():
            member.tick()
            group.take(kind=TimeoutNow)
            group.settle()
        if group["n1"].core.is_transferring and not under_way:
            begun.append(group.now_ms)
        under_way = group["n1"].core.is_transferring
    assert group["n1"].leads
    assert [later - former for former, later in pairwise(begun)] == [group.raft.full_disk_transfer_ms] * 2


@pytest.mark.rule("D-28")
def test_records_are_refused_while_no_majority_has_room_for_them() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group["n2"].core.has_room = False
    group.pass_time(300)
    assert leader.core.refusal is None
    group["n3"].core.has_room = False
    group.pass_time(300)
    refusal = leader.core.refusal
    assert isinstance(refusal, StorageFull)
    assert refusal.detail.startswith("the disks of nodes n2, n3: no space"), refusal.detail
    group["n2"].core.has_room = True
    group.pass_time(300)
    assert leader.core.refusal is None


@pytest.mark.rule("R-09")
@pytest.mark.parametrize("full", [("n2",), ("n3",), ("n2", "n3")])
def test_a_transfer_chooses_a_voter_whose_disk_is_full_only_if_there_is_no_other(full: tuple[str]) -> None:
    group = Group(3)
    leader = group.elect("n1")
    for name in full:
        group[name].core.has_room = False
    group.pass_time(300)
    assert leader.core.transfer(None, group.now_ms) in ({"n2", "n3"}.difference(full) or full)


@pytest.mark.rule("R-09")
def test_a_transfer_to_a_voter_whose_disk_is_full_fails_with_that_cause() -> None:
    """The refusal named no cause."""
    group = Group(3)
    leader = group.elect("n1")
    group["n2"].core.has_room = False
    group.pass_time(300)
    peers = leader.core.status().peers
    for target, cause in (("n2", ": the disk of n2 is full"), ("n3", "")):
        failed = not_taken_over(target, peers, 900)
        assert failed.detail == f"{target} did not become leader within 900 ms{cause}"


def preferred_group(**raft: int) -> tuple[Group, Member]:
    """n2 leads a group that prefers n1."""
    group = Group(3, preferred_leader="n1", raft=RaftConfig(**raft))
    leader = group.elect("n2", "n2", "n3")
    group.pass_time(300)
    return group, leader


@pytest.mark.rule("R-09")
def test_a_preferred_leader_whose_disk_hangs_stops_no_append() -> None:
    group, leader = preferred_group()
    group["n1"].auto_sync = False
    waited = 0
    for step in range(3_000):
        if step % 10 == 0:
            leader.append()
        group.pass_time(20)
        waited += 0 if leader.core.accepts_appends else 20
    assert leader.leads
    assert waited == 0


@pytest.mark.rule("R-09")
def test_a_preferred_leader_that_does_not_take_over_is_offered_the_lead_ever_more_rarely() -> None:
    group, leader = preferred_group()
    paused, since = [], group.now_ms
    for _ in range(2_500):
        group.take(kind=TimeoutNow)
        waits, before = not leader.core.accepts_appends, bool(paused and paused[-1][1] is None)
        if waits and not before:
            paused.append((group.now_ms - since, None))
        elif not waits and before:
            paused[-1] = (paused[-1][0], group.now_ms - since)
        group.now_ms += 20
        for member in group.members.values():
            member.tick()
            group.take(kind=TimeoutNow)
            group.settle()
    begun = [begin for begin, _ in paused]
    gaps = [later - former for former, later in pairwise(begun)]
    assert 2 <= len(paused) <= 3
    assert gaps[0] >= 10_000
    assert all(later >= 2 * former - 1_100 for former, later in pairwise(gaps))


@pytest.mark.rule("R-09")
def test_a_preferred_leader_that_soon_lost_the_lead_waits_longer_also_with_another_leader() -> None:
    group, _ = preferred_group()
    group.pass_time(6_000)
    assert group.leader.name == "n1"
    group.pass_time(3_000, "n2", "n3")  # n1 is cut off: one of the others leads
    back = group.now_ms
    group.pass_time(7_000)
    assert group.leader.name != "n1"
    while group.leader.name != "n1":
        group.pass_time(100)
    assert 7_000 <= group.now_ms - back <= 12_000  # counted from the election, some time before

    group.pass_time(61_000)  # it has kept the lead: the next pause is the short one
    group.pass_time(3_000, "n2", "n3")
    back = group.now_ms
    while group.leader.name != "n1":
        group.pass_time(100)
    assert group.now_ms - back <= 6_500


@pytest.mark.rule("D-29")
def test_a_new_term_begins_without_the_reports_about_disks_of_an_older_one() -> None:
    """The peers may have room since, or be down."""
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(300)
    for name in ("n2", "n3"):
        group[name].core.has_room = False
    group.pass_time(300)
    assert isinstance(leader.core.refusal, StorageFull)
    for name in ("n2", "n3"):
        group[name].core.has_room = True
    group["n2"].step("n1", TimeoutNow(1))
    group.settle()
    assert group["n2"].leads
    leader.tick()
    group.now_ms += 2_000
    leader.tick()
    group.deliver(kind=VoteRequest)
    group.deliver(kind=VoteAnswer)
    group.deliver(kind=VoteRequest)
    group.deliver(kind=VoteAnswer)
    assert leader.leads
    assert leader.core.refusal is None


@pytest.mark.rule("R-09", "R-10")
def test_a_leader_that_is_removed_again_hands_the_lead_over_again() -> None:
    group = Group(3)
    for _ in range(2):
        leader = group.elect("n1")
        group.pass_time(500)
        group.take()
        leader.change(ChangeKind.REMOVE, "n1")
        group.settle("n1", "n2", "n3")
        assert not leader.leads
        assert any(member.leads for member in group.members.values())  # without the wait for an election
        group.pass_time(500)
        for kind in (ChangeKind.ADD, ChangeKind.PROMOTE):
            group.leader.change(kind, "n1")
            group.pass_time(500)


@pytest.mark.rule("R-09")
def test_a_transfer_that_is_asked_for_again_is_given_up_in_the_same_time() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(500)
    group["n3"].full = True
    leader.append()
    leader.core.transfer("n3", group.now_ms)
    group.pass_time(group.raft.transfer_catch_up_ms - 500)
    leader.core.transfer("n3", group.now_ms)
    assert leader.core.is_transferring
    group.pass_time(600)
    assert not leader.core.is_transferring
