"""Leadership transfer (R-09)."""

import pytest

from app.errors import AlreadyLeader, StorageFull, TransferFailed
from app.raft.messages import PushRequest, TimeoutNow, VoteRequest
from app.replication import AppendFate
from tests.unit.raft.support import Group


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
def test_while_it_hands_over_the_leader_takes_no_appends_and_goes_on_when_it_fails() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    leader.append()
    group.take(target="n2", kind=PushRequest)
    leader.core.transfer("n2", group.now_ms)
    assert not leader.core.accepts_appends
    group.pass_time(1_100, "n1", "n3")
    assert (leader.leads, leader.core.accepts_appends) == (True, True)


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
    with pytest.raises(TransferFailed, match="no voter"):
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
    group.elect("n1")
    for _ in range(3):
        group["n1"].core.has_room = False
        group.pass_time(2_500)
        group["n1"].core.has_room = True
        group.pass_time(200)
    assert group.leader.name == "n1"


@pytest.mark.rule("D-28")
def test_records_are_refused_while_no_majority_has_room_for_them() -> None:
    group = Group(3)
    leader = group.elect("n1")
    group["n2"].core.has_room = False
    group.pass_time(300)
    assert leader.core.refusal is None
    group["n3"].core.has_room = False
    group.pass_time(300)
    assert isinstance(leader.core.refusal, StorageFull)
    group["n2"].core.has_room = True
    group.pass_time(300)
    assert leader.core.refusal is None
