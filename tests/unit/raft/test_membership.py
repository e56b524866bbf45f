"""Membership changes, one at a time (R-10), and members that lost what they had promised."""

import pytest

from app.errors import ChangeInProgress, NotCaughtUp, NotFound, WouldLoseQuorum
from app.log.contract import NO_INDEX, ChangeKind, Durability, GroupConfig, Role
from app.raft.elections import Ballot
from app.raft.membership import GroupView, changed, next_change
from app.raft.messages import GroupNotice, PushRequest, PushType, VoteAnswer, VoteRequest
from app.raft.standing import Standing
from app.raft.state import MemberState, Outbox
from storage.log.hard_state import HardState
from tests.unit.raft.support import Group, Member, MemoryLog
from tests.unit.raft.test_removal import standing_of


def led_group(size: int = 3) -> tuple[Group, Member]:
    group = Group(size)
    leader = group.elect("n1")
    group.settle()
    return group, leader


def added(group: Group, leader: Member, name: str) -> Member:
    """A learner that has caught up."""
    member = group.join(name)
    leader.change(ChangeKind.ADD, name)
    group.pass_time(300)
    return member


@pytest.mark.rule("R-10")
def test_a_learner_gets_the_log_and_becomes_a_voter() -> None:
    group, leader = led_group()
    learner = added(group, leader, "n4")
    assert (learner.core.role, learner.log.end_index) == (Role.LEARNER, leader.log.end_index)
    leader.change(ChangeKind.PROMOTE, "n4")
    group.pass_time(300)
    for member in group.members.values():
        assert member.core.group == GroupConfig(voters=("n1", "n2", "n3", "n4"))
    assert learner.core.role is Role.FOLLOWER
    leader.append(token="a")
    group.settle("n1", "n4")
    assert leader.answers == []  # two of four are no majority any more
    group.settle()
    assert [token for token, _ in leader.answers] == ["a"]


@pytest.mark.rule("R-10", "R-11")
def test_with_replicated_durability_a_change_of_the_group_is_committed_when_it_is_on_the_disks() -> None:
    """A power failure at the only voter would make it forget the second one, and elect itself alone."""
    group = Group(1, durability=Durability.REPLICATED)
    leader = group.elect("n1")
    learner = added(group, leader, "n2")
    leader.auto_sync = learner.auto_sync = False
    leader.append(token="before")
    group.settle()
    assert [token for token, _ in leader.answers] == ["before"]  # nothing is synced
    leader.change(ChangeKind.PROMOTE, "n2")
    leader.append(token="after")
    index = leader.log.end_index - 1
    group.settle()
    leader.sync()
    group.settle()
    assert leader.core.committed_index == index - 1
    learner.sync()
    group.settle()
    assert leader.core.committed_index == index + 1
    assert [token for token, _ in leader.answers] == ["before", "after"]


@pytest.mark.rule("R-10")
def test_a_member_records_in_its_journal_who_counts_when_it_starts_and_with_each_change() -> None:
    group, leader = led_group()
    added(group, leader, "n4")
    leader.restart()
    reported = [event.data for event in leader.events if event.kind == "membership"]
    first = {"voters": ["n1", "n2", "n3"], "learners": []}
    change = {"voters": ["n1", "n2", "n3"], "learners": ["n4"], "index": 1}
    assert reported == [first | {"index": -1}, first | {"index": 0}, change, first | {"index": 0}, change]


@pytest.mark.rule("R-10")
def test_a_member_that_left_and_comes_back_within_the_term_gets_the_log() -> None:
    group, leader = led_group()
    learner = added(group, leader, "n4")
    for kind in (ChangeKind.REMOVE, ChangeKind.ADD):
        leader.change(kind, "n4")
        group.pass_time(300)
        leader.append(token=kind)
        group.pass_time(300)
    assert learner.log.end_index == leader.log.end_index


@pytest.mark.rule("R-10")
def test_a_change_counts_from_its_append() -> None:
    group, leader = led_group()
    leader.change(ChangeKind.REMOVE, "n3")
    assert leader.core.group.voters == ("n1", "n2")
    assert leader.core.committed_index < leader.log.end_index
    group.settle("n1", "n2")
    assert leader.core.committed_index == leader.log.end_index


@pytest.mark.rule("R-10")
def test_a_change_is_undone_when_its_record_is_truncated() -> None:
    group, leader = led_group()
    leader.change(ChangeKind.ADD, "n4")
    group.take(source="n1")
    assert leader.core.group.learners == ("n4",)
    group.pass_time(3_000, "n2", "n3")
    group.pass_time(5_000)
    assert leader.core.group == group.config
    assert leader.log.batches == group["n2"].log.batches


@pytest.mark.rule("R-10")
def test_one_change_at_a_time_and_none_before_the_term_is_open() -> None:
    group, leader = led_group()
    leader.change(ChangeKind.ADD, "n4")
    with pytest.raises(ChangeInProgress):
        leader.core.change(ChangeKind.ADD, "n5", group.now_ms)
    group.settle()
    assert leader.core.change(ChangeKind.ADD, "n5", group.now_ms) is not None


@pytest.mark.rule("R-10")
def test_no_change_before_a_record_of_the_own_term_is_committed() -> None:
    """Everything in the log is committed, but by an earlier leader (Raft thesis 4.1, the erratum)."""
    group, leader = led_group()
    group.pass_time(200)
    for member in group.members.values():
        member.auto_sync = False
    leader = group.elect("n2")
    assert (leader.core.term, leader.core.committed_index, leader.log.end_index) == (2, 0, 1)
    refused = False
    try:
        leader.core.change(ChangeKind.ADD, "n4", group.now_ms)
    except ChangeInProgress:
        refused = True
    assert refused
    for member in group.members.values():
        member.sync()
    group.settle()
    assert leader.core.committed_index == 1
    assert leader.core.change(ChangeKind.ADD, "n4", group.now_ms) is not None


@pytest.mark.rule("R-10")
def test_changes_that_make_no_sense_or_would_stop_the_group_are_refused() -> None:
    group, leader = led_group()
    now_ms = group.now_ms
    assert leader.core.change(ChangeKind.ADD, "n2", now_ms) is None
    assert leader.core.change(ChangeKind.PROMOTE, "n2", now_ms) is None
    with pytest.raises(NotFound):
        leader.core.change(ChangeKind.PROMOTE, "n9", now_ms)
    leader.change(ChangeKind.ADD, "n4")
    group.settle()
    with pytest.raises(
        NotCaughtUp, match=r"^n4 has not caught up with the log, and does not answer the leader$"
    ):
        leader.core.change(ChangeKind.PROMOTE, "n4", group.now_ms)
    group.pass_time(1_500, "n1", "n2")
    with pytest.raises(WouldLoseQuorum):
        leader.core.change(ChangeKind.REMOVE, "n2", group.now_ms)
    assert leader.core.change(ChangeKind.REMOVE, "n3", group.now_ms) is not None
    alone = Group(1).elect("n1")
    with pytest.raises(WouldLoseQuorum, match=r"^n1 is the only voter$"):
        alone.core.change(ChangeKind.REMOVE, "n1", alone.group.now_ms)


@pytest.mark.rule("R-10")
def test_a_voter_that_has_not_answered_a_new_leader_yet_is_not_counted_on() -> None:
    group = Group(3)
    leader = group.elect("n1", "n1", "n2")
    group.settle("n1", "n2")
    with pytest.raises(WouldLoseQuorum):
        leader.core.change(ChangeKind.REMOVE, "n2", group.now_ms)
    group.settle()
    group.pass_time(100)
    assert leader.core.change(ChangeKind.REMOVE, "n2", group.now_ms) is not None


@pytest.mark.rule("R-10")
def test_a_voter_in_doubt_is_not_counted_on() -> None:
    group, leader = led_group()
    lost = group["n2"]
    lost.restart(sound=False, knows_vote=False)
    group.take()
    group.pass_time(300, "n1", "n2")
    with pytest.raises(WouldLoseQuorum, match=r"^1 of 2 voters would be in reach, and not in doubt$"):
        leader.core.change(ChangeKind.REMOVE, "n3", group.now_ms)
    group.pass_time(3_000)
    assert lost.core.sound
    assert leader.core.change(ChangeKind.REMOVE, "n3", group.now_ms) is not None


@pytest.mark.rule("R-10")
def test_a_leader_that_is_removed_commits_its_removal_and_leaves() -> None:
    group, leader = led_group()
    leader.change(ChangeKind.REMOVE, "n1")
    assert leader.leads
    removal = leader.log.end_index
    group.pass_time(200)
    assert not leader.leads
    assert leader.core.committed_index >= removal
    assert group.leader.name in ("n2", "n3")
    group.pass_time(5_000)
    assert leader.core.role is Role.REMOVED


@pytest.mark.rule("R-10")
def test_a_removed_member_that_does_not_know_it_disturbs_no_member() -> None:
    group, leader = led_group()
    group.pass_time(200)
    leader.change(ChangeKind.REMOVE, "n3")
    group.pass_time(100, "n1", "n2")
    term = leader.core.term
    for _ in range(50):
        group.pass_time(100, "n1", "n2")
        group["n3"].tick()
        group.settle()
    assert (leader.leads, leader.core.term) == (True, term)


@pytest.mark.rule("R-10")
def test_a_new_voter_can_be_elected_by_a_member_that_never_heard_of_it() -> None:
    group, leader = led_group(3)
    added(group, leader, "n4")
    leader.change(ChangeKind.PROMOTE, "n4")
    group.settle("n1", "n4")
    assert "n4" not in group["n2"].core.group.voters
    group.take()
    group.elect("n4", "n2", "n3", "n4")


@pytest.mark.rule("R-10")
def test_a_learner_may_vote_when_it_was_promoted_without_knowing() -> None:
    group, leader = led_group(2)
    learner = added(group, leader, "n3")
    last = leader.log.end_index
    learner.step("n2", VoteRequest(9, last, leader.log.last_term, transfer=True))
    assert learner.saved[-1] == HardState(9, "n2")


@pytest.mark.rule("R-04", "R-10")
def test_a_promoted_learner_with_the_newest_log_leads_until_the_voters_have_it() -> None:
    """n1 alone has the promotion of n4, n4 alone a record of the term of n3, and the disk of n3 is replaced:
    n1 needs the vote of n4, whose log is newer, and n2 that of n1."""
    group, leader = led_group()
    learner = added(group, leader, "n4")
    leader.change(ChangeKind.PROMOTE, "n4")
    leader.append()
    group.take()
    lost = group["n3"]
    group.wait(group.raft.election_timeout_ms[1])
    lost.tick()
    for _ in range(2):  # pre-votes, then votes
        group.deliver(target="n2", kind=VoteRequest)
        group.deliver(target="n3", kind=VoteAnswer)
    group.pass_time(100, "n3", "n4")
    newest = learner.log.batches[-1]
    assert newest.term == lost.core.term > leader.core.term
    assert group["n1"].log.last_term == group["n2"].log.last_term == leader.core.term
    lost.log = MemoryLog()
    lost.saved = [HardState()]
    lost.restart(sound=False, knows_vote=False)
    group.take()
    group.pass_time(10_000, "n1", "n2", "n4")
    assert group.leader.name in ("n1", "n2")
    assert learner.core.role is Role.LEARNER
    assert group.leader.log.holds(newest)
    assert group.leader.core.group == GroupConfig(voters=("n1", "n2", "n3"), learners=("n4",))
    group.leader.append(token="after")
    group.pass_time(200, "n1", "n2", "n4")
    assert "after" in [token for token, _ in group.leader.answers]


@pytest.mark.rule("R-10")
def test_a_learner_forgets_that_it_has_the_newest_log_when_a_leader_is_known() -> None:
    group, leader = led_group()
    learner = added(group, leader, "n4")
    group.pass_time(4_000, "n4")
    learner.step("n2", VoteRequest(9, 0, 1, pre_vote=True))
    group.pass_time(4_000, "n4")
    assert learner.core.role is Role.CANDIDATE
    group.take()
    group.pass_time(200)
    assert learner.core.role is Role.LEARNER
    group.pass_time(4_000, "n4")
    assert learner.core.role is Role.LEARNER


@pytest.mark.rule("R-03", "R-10")
def test_a_learner_that_follows_a_leader_does_not_take_a_candidate_for_one_that_needs_it() -> None:
    """A voter that was cut off asks for pre-votes, although the group has a leader."""
    group, leader = led_group()
    learner = added(group, leader, "n4")
    learner.step("n2", VoteRequest(9, 0, 1, pre_vote=True))
    group.pass_time(4_000, "n4")
    assert (learner.core.leader_id, learner.core.role) == (None, Role.LEARNER)


def damaged_group() -> tuple[Group, Member, Member]:
    """n2 acknowledged three records, restarts without the last two, and knows that its disk is damaged."""
    group = Group(3)
    leader = group.elect("n1")
    group.settle()
    for _ in range(3):
        leader.append()
        group.settle()
    member = group["n2"]
    member.log.batches = member.log.batches[:2]
    member.log.durable_index = member.log.end_index
    member.restart(sound=False)
    return group, leader, member


@pytest.mark.rule("R-02")
def test_a_damaged_member_does_not_count_in_an_election() -> None:
    group, _, member = damaged_group()
    group.pass_time(5_000, "n2")
    assert member.core.term == 1  # it asks, and raises no term
    group.pass_time(5_000, "n2", "n3")  # n3 has everything, but it is the only witness
    assert not group["n3"].leads
    assert not member.leads


@pytest.mark.rule("R-02")
def test_a_damaged_member_votes_again_once_it_holds_all_that_is_committed() -> None:
    group, leader, member = damaged_group()
    assert not member.core.sound
    group.pass_time(4_000)
    assert member.core.sound
    assert member.log.batches == leader.log.batches
    group.pass_time(5_000, "n2", "n3")
    assert group["n2"].leads or group["n3"].leads


@pytest.mark.rule("R-02")
def test_answers_to_an_earlier_incarnation_do_not_make_a_member_sound() -> None:
    group, leader, member = damaged_group()
    group.deliver(source="n1", kind=PushRequest)  # on their way since before
    leader.append()
    stale = [push for push in group.pushes("n2") if push.type is not PushType.COMPARE]
    for push in stale:
        member.step("n1", push)
    assert not member.core.sound


@pytest.mark.rule("R-10")
def test_a_learner_without_the_logs_state_is_not_promoted() -> None:
    """As a voter it could be all that is left, and could not lead."""
    group, leader = led_group()
    learner = group.join("n4")
    learner.core.electable = False
    leader.change(ChangeKind.ADD, "n4")
    group.pass_time(300)
    with pytest.raises(NotCaughtUp, match=r"^n4 has not caught up with the log$"):
        leader.core.change(ChangeKind.PROMOTE, "n4", group.now_ms)
    learner.core.electable = True
    leader.append()
    group.pass_time(100)
    assert leader.core.change(ChangeKind.PROMOTE, "n4", group.now_ms) is not None


@pytest.mark.rule("R-10")
@pytest.mark.parametrize(
    ("voters", "learners", "steps"),
    [
        ("n1 n2 n4", "", ["add n4", "promote n4", "remove n3"]),
        ("n2 n3", "", ["remove n1"]),
        ("n4", "n5", ["add n4", "add n5", "promote n4", *["remove " + n for n in ("n2", "n3", "n1", "n1")]]),
        ("n1 n2", "n3", ["remove n3", "add n3"]),
        ("n1 n2 n3", "", []),
    ],
)
def test_a_group_becomes_another_one_by_single_changes_the_leader_last(
    voters: str, learners: str, steps: list[str]
) -> None:
    wanted = GroupConfig(voters=tuple(voters.split()), learners=tuple(learners.split()))
    group, done = GroupConfig(voters=("n1", "n2", "n3")), []
    while (change := next_change(group, wanted, "n1")) is not None:
        kind, node = change
        nodes = ("n1", "n2", "n3", "n4", "n5")
        view = GroupView(group, settled=True, level=("n4", "n5"), awake=nodes, counted=nodes)
        after = changed(view, kind, node)
        assert after is not None
        group, done = after, [*done, f"{kind.value} {node}"]
    assert (set(group.voters), set(group.learners)) == (set(wanted.voters), set(wanted.learners))
    assert done == steps


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("learners", [(), ("n3",)])
def test_a_notice_that_names_the_member_does_not_remove_it(learners: tuple[str, ...]) -> None:
    standing = standing_of("n3", "n1", "n2")
    voters = ("n1", "n2") if learners else ("n1", "n2", "n3")
    standing.take(GroupNotice(5, voters, learners, "n1", {}), 0)
    assert standing.notice is None


@pytest.mark.rule("R-10")
def test_a_former_voter_campaigns_only_until_the_group_without_it_is_committed() -> None:
    standing = standing_of("n3", "n1", "n2", "n3")
    standing.configure(GroupConfig(voters=("n1", "n2")), 5, {})
    assert standing.may_campaign
    standing._member.committed_index = 5
    assert not standing.may_campaign


@pytest.mark.rule("R-10")
def test_a_member_outside_its_committed_group_is_removed_while_it_has_no_leader() -> None:
    standing = standing_of("n3", "n1", "n2")
    member = standing._member
    assert standing.idle_role is Role.LEARNER  # the group may be undone
    member.committed_index = 3
    assert standing.idle_role is Role.REMOVED
    member.leader_id = "n1"  # which pushes to it: the record that adds it is to come
    assert standing.idle_role is Role.LEARNER


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("node_id", ["n1", "n3"], ids=["member", "not a member"])
def test_a_group_that_no_record_names_removes_no_node(node_id: str) -> None:
    """It may be another's configuration that is right."""
    group = GroupConfig(voters=("n1", "n2"))
    member = MemberState(node_id, group, Durability.FSYNC, Role.FOLLOWER, 1, None, NO_INDEX)
    standing = Standing(member, Outbox())
    assert standing.idle_role is not Role.REMOVED
    assert standing.notice_for("n9", None, 0) is None


@pytest.mark.rule("R-02", "R-10")
@pytest.mark.parametrize(
    ("voters", "sound", "is_won"),
    [
        (("n1", "n2"), ("n1", "n2"), True),  # one of the three may be unsound
        (("n1", "n2"), ("n1",), False),
        (("n1",), ("n3",), False),  # one present voter alone may have made another group since
    ],
)
def test_a_removed_member_is_elected_by_all_with_at_most_one_of_them_in_doubt(
    voters: tuple[str, ...], sound: tuple[str, ...], is_won: bool
) -> None:
    standing = standing_of("n3", *dict.fromkeys((*voters, "n3")))
    standing.configure(GroupConfig(voters=voters), 5, {})
    member = standing._member
    member.group_index, member.sound = 5, "n3" in sound
    ballot = Ballot(member, MemoryLog(), Outbox())
    ballot.open(2)
    for voter in voters:
        assert not ballot.is_won
        ballot.count(voter, VoteAnswer(2, True, sound=voter in sound))
    assert ballot.is_won is is_won


@pytest.mark.rule("R-10")
def test_a_learner_may_leave_a_group_whose_voters_are_in_doubt() -> None:
    """The majority stays what it is."""
    group = GroupConfig(voters=("n1", "n2", "n3"), learners=("n4",))
    view = GroupView(group, settled=True, level=(), awake=("n1",), counted=("n1",))
    assert changed(view, ChangeKind.REMOVE, "n4") == GroupConfig(voters=group.voters)
    with pytest.raises(WouldLoseQuorum):
        changed(view, ChangeKind.REMOVE, "n2")
