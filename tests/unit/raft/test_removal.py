"""Members that are removed, leaders among them, and what they learn of it (R-10)."""

from contextlib import suppress

import pytest

from app.errors import ChangeInProgress
from app.log.contract import NO_INDEX, ChangeKind, Durability, GroupConfig, Role
from app.raft.messages import GroupNotice, Heartbeat, PushRequest, PushType, VoteAnswer, VoteRequest
from app.raft.standing import Standing
from app.raft.state import MemberState, Outbox
from storage.log.hard_state import HardState
from tests.unit.raft.support import Group, Member, MemoryLog
from tests.unit.raft.test_doubt import wipe


def led_group(size: int) -> tuple[Group, Member]:
    group = Group(size)
    leader = group.elect("n1")
    group.settle()
    leader.append()
    group.settle()
    group.pass_time(100)
    return group, leader


def removed_alone(size: int, *, restart: bool) -> tuple[Group, Member]:
    """n1 led, removed itself, and its record has reached no other member; it leads no longer."""
    group, leader = led_group(size)
    leader.change(ChangeKind.REMOVE, "n1")
    group.sent.clear()
    if restart:
        leader.restart(committed=leader.core.committed_index)
    else:
        group.pass_time(2_000, "n1")
        group.sent.clear()
    assert not leader.leads
    return group, leader


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("restart", [False, True], ids=["cut off", "restarted"])
def test_a_leader_that_removed_itself_alone_leads_again_until_its_removal_is_committed(restart: bool) -> None:
    group, leader = removed_alone(2, restart=restart)
    group.pass_time(5_000)
    assert [member.name for member in group.members.values() if member.leads] == ["n2"]
    assert group["n2"].core.group == GroupConfig(voters=("n2",), learners=("n1",))
    assert group["n2"].log.batches == leader.log.batches
    group["n2"].change(ChangeKind.REMOVE, "n1")
    group.pass_time(5_000)
    assert group["n2"].core.group == GroupConfig(voters=("n2",))
    assert leader.core.role is Role.REMOVED


@pytest.mark.rule("R-10")
def test_a_leader_that_removed_itself_alone_is_enough_for_a_majority_with_a_member_down() -> None:
    group, _ = removed_alone(4, restart=True)
    group.pass_time(5_000, "n1", "n2", "n3")
    assert [member.name for member in group.members.values() if member.leads] in (["n2"], ["n3"])


@pytest.mark.rule("R-10")
def test_a_member_outside_its_newest_group_neither_votes_for_itself_nor_counts_its_own_copy() -> None:
    group, leader = removed_alone(3, restart=True)
    group.pass_time(3_000, "n1", "n2")  # of n2 and n3 both are needed
    assert not leader.leads
    group.pass_time(5_000)
    assert group.leader.name in ("n2", "n3")

    group, leader = led_group(3)
    leader.change(ChangeKind.REMOVE, "n1")
    removal = leader.log.end_index
    group.settle("n1", "n2")
    assert leader.core.committed_index < removal
    group.settle()
    assert leader.core.committed_index == removal


@pytest.mark.rule("R-10")
def test_a_learner_does_not_campaign_while_its_addition_is_in_doubt() -> None:
    group, leader = led_group(3)
    learner = group.join("n4")
    leader.change(ChangeKind.ADD, "n4")
    group.settle("n1", "n4")
    assert learner.core.group.learners == ("n4",)
    assert learner.core.committed_index < learner.log.end_index
    group.pass_time(5_000, "n4")
    assert (learner.core.role, learner.core.term) == (Role.LEARNER, leader.core.term)


@pytest.mark.rule("R-10")
def test_a_removed_member_learns_it_from_the_others_and_who_leads() -> None:
    group, leader = led_group(3)
    leader.change(ChangeKind.REMOVE, "n3")
    removal, removed = leader.log.end_index, group["n3"]
    group.pass_time(2_500)
    assert removed.log.end_index < removal  # no leader pushes to it
    assert (removed.core.role, removed.core.leader_id) == (Role.REMOVED, "n1")
    assert removed.core.notice == GroupNotice(removal, ("n1", "n2"), (), "n1", {}, 1)
    assert leader.leads
    removed.restart()
    group.pass_time(2_500)
    assert removed.core.role is Role.REMOVED
    leader.core.transfer("n2", group.now_ms)
    group.pass_time(15_000)
    assert removed.core.leader_id == "n2"


@pytest.mark.rule("R-10")
def test_a_removed_learner_and_a_node_that_was_never_added_learn_it_too() -> None:
    group, leader = led_group(2)
    learner = group.join("n3")
    leader.change(ChangeKind.ADD, "n3")
    group.pass_time(300)
    assert learner.core.role is Role.LEARNER
    leader.change(ChangeKind.REMOVE, "n3")
    group.pass_time(2_500)
    assert learner.core.role is Role.REMOVED
    never = group.join("n4")
    group.pass_time(2_500)
    assert (never.core.role, never.core.leader_id) == (Role.REMOVED, "n1")
    damaged = group["n2"]
    damaged.restart(sound=False)
    group.pass_time(2_500)
    assert damaged.core.role is Role.FOLLOWER


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("wiped", [False, True], ids=["its old log", "an empty log"])
def test_a_removed_member_that_is_added_again_follows_at_once(wiped: bool) -> None:
    group, leader = led_group(3)
    leader.change(ChangeKind.REMOVE, "n3")
    group.pass_time(2_500)
    removed = group["n3"]
    if wiped:
        removed.log.batches, removed.log.durable_index = [], NO_INDEX
        removed.saved = [HardState()]
        removed.restart()
        group.pass_time(2_500)
    assert removed.core.role is Role.REMOVED
    leader.change(ChangeKind.ADD, "n3")
    group.pass_time(300)
    assert (removed.core.role, removed.core.notice) == (Role.LEARNER, None)
    leader.change(ChangeKind.PROMOTE, "n3")
    group.pass_time(300)
    assert removed.core.role is Role.FOLLOWER
    assert removed.log.batches == leader.log.batches
    group.pass_time(5_000, "n2", "n3")
    assert group.leader.name in ("n2", "n3")


@pytest.mark.rule("R-10")
def test_a_notice_that_is_older_than_the_own_group_is_not_believed() -> None:
    """A member that lags behind judges by a group of before the promotion."""
    group, leader = led_group(2)
    added = group.join("n3")
    leader.change(ChangeKind.ADD, "n3")
    group.pass_time(300)
    own = leader.log.end_index
    group.pass_time(1_100, "n3")
    assert added.core.leader_id is None
    for index, role in ((own - 1, Role.LEARNER), (own, Role.REMOVED)):
        notice = GroupNotice(index, ("n1", "n2"), (), "n1", {})
        added.step("n2", VoteAnswer(1, False, pre_vote=True, group=notice))
        assert added.core.role is role


def standing_of(node_id: str, *voters: str) -> Standing:
    """A member whose log contains a group, in record 3, that is not known to be committed."""
    group = GroupConfig(voters=voters)
    member = MemberState(node_id, group, Durability.FSYNC, Role.FOLLOWER, 1, None, NO_INDEX)
    standing = Standing(member, Outbox())
    standing.configure(group, 3, {})
    return standing


@pytest.mark.rule("R-10")
def test_a_notice_holds_until_the_own_log_has_a_newer_group_than_it_is_about() -> None:
    """The record that it is about arrives late, and does not prove that it is committed."""
    standing = standing_of("n3", "n1", "n2", "n3")
    notice = GroupNotice(5, ("n1", "n2"), (), "n1", {})
    standing.take(notice, 0)
    standing.configure(GroupConfig(voters=("n1", "n2")), 5, {})
    assert (standing.notice, standing.may_campaign, standing.idle_role) == (notice, False, Role.REMOVED)
    standing.configure(GroupConfig(voters=("n1", "n2"), learners=("n3",)), 6, {})
    assert (standing.notice, standing.idle_role) == (None, Role.LEARNER)


@pytest.mark.rule("R-10")
def test_an_older_notice_does_not_replace_a_newer_one() -> None:
    """A member that was cut off too answers later: the nodes that it names may be gone."""
    standing = standing_of("n3", "n1", "n2", "n3")
    newer = GroupNotice(7, ("n1", "n4"), (), "n1", {})
    for notice in (newer, GroupNotice(5, ("n1", "n2"), (), "n1", {})):
        standing.take(notice, 0)
    assert standing.notice == newer


@pytest.mark.rule("R-10")
def test_a_group_that_was_undone_is_no_former_group() -> None:
    """The record of the promotion of n3 is truncated: no member needs n3 as a leader."""
    standing = standing_of("n3", "n1", "n2")
    standing.configure(GroupConfig(voters=("n1", "n2", "n3")), 5, {})
    assert standing.may_campaign
    standing.configure(GroupConfig(voters=("n1", "n2")), 3, {})
    assert not standing.may_campaign


@pytest.mark.rule("R-10")
def test_only_a_member_of_a_committed_group_that_the_log_names_gives_notice() -> None:
    def notices(member: Member) -> list[GroupNotice | None]:
        member.step("n9", VoteRequest(member.core.term + 1, NO_INDEX, 0, pre_vote=True))
        answers = member.group.take(source=member.name, target="n9", kind=VoteAnswer)
        return [answer.group for answer in answers if isinstance(answer, VoteAnswer)]

    fresh = Group(2)["n1"]
    assert notices(fresh) == [None]  # it may be the other's configuration that is right

    group, leader = led_group(3)
    assert notices(leader) == [GroupNotice(0, ("n1", "n2", "n3"), (), "n1", {}, 1)]
    leader.change(ChangeKind.REMOVE, "n2")
    assert notices(leader) == [None]  # that group may be undone
    group.pass_time(3_000)
    assert notices(group["n2"]) == [None]  # it is outside itself
    assert notices(group["n3"]) == [GroupNotice(2, ("n1", "n3"), (), "n1", {}, 1)]


@pytest.mark.rule("R-10")
def test_a_leader_writes_the_first_group_into_the_log_and_no_configuration_changes_it() -> None:
    group, _ = led_group(3)
    group.config = GroupConfig(voters=("n1", "n2", "n3", "n4", "n5"))  # five nodes in the file, restarted
    for name in ("n1", "n2", "n3"):
        group[name].restart()
        assert group[name].core.group == GroupConfig(voters=("n1", "n2", "n3"))
    group["n1"].step("n4", Heartbeat(0, "n4", NO_INDEX, 1))
    group.pass_time(3_000, "n2", "n3")
    assert group.leader.name in ("n2", "n3")


@pytest.mark.rule("R-10")
def test_a_log_of_an_older_version_gets_its_group_with_the_next_term() -> None:
    logs = {name: MemoryLog() for name in ("n1", "n2")}
    for log in logs.values():
        log.add(1)
        log.sync()
    group = Group(logs)
    group.elect("n1")
    group.pass_time(100)
    group.config = GroupConfig(voters=("n1", "n2", "n3"))
    group["n2"].restart()
    assert group["n2"].core.group == GroupConfig(voters=("n1", "n2"))


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_removed_leader_learns_it_although_its_own_log_has_a_later_change_of_the_group(
    trimmed: bool, restart: bool
) -> None:
    """n1 is cut off with more records, and an addition after them, than the group had when it removed n1."""
    group, leader = led_group(3)
    for _ in range(5):
        leader.append()
    leader.change(ChangeKind.ADD, "n4")
    group.sent.clear()
    group.elect("n2", "n2", "n3")
    group.settle("n2", "n3")
    group.pass_time(1_500, "n2", "n3")
    group["n2"].change(ChangeKind.REMOVE, "n1")
    group.pass_time(200, "n2", "n3")
    group.sent.clear()
    assert group["n2"].core._standing.index < leader.core._standing.index
    if trimmed:
        group["n2"].append()
        group.pass_time(200, "n2", "n3")
        group.sent.clear()
        for name in ("n2", "n3"):
            group[name].log.trim(group["n2"].core.committed_index)
    if restart:
        leader.restart()
    group.pass_time(15_000)
    assert (leader.core.role, leader.core.leader_id) == (Role.REMOVED, "n2")


@pytest.mark.rule("R-10")
def test_a_replica_without_the_state_of_its_log_removes_no_node() -> None:
    """Its group may be older than the log that it holds: n4 may have been added in between."""
    group, leader = led_group(3)
    leader.change(ChangeKind.REMOVE, "n3")
    group.pass_time(200)
    member = group["n1"]
    for electable in (False, True):
        member.core.electable = electable
        member.step("n4", VoteRequest(member.core.term + 1, 9, 1, pre_vote=True))
        [answer] = group.take(source="n1", target="n4")
        assert isinstance(answer, VoteAnswer)
        assert (answer.group is not None) is electable


@pytest.mark.rule("R-10")
def test_a_leader_that_has_removed_itself_changes_no_members() -> None:
    """The voters have committed its removal. Its record of a second one reaches none of them: by that it is
    no candidate, and with a replaced disk they need its vote, which their older logs do not get."""
    group = Group(3)
    removed = group.elect("n2")
    group.pass_time(500)
    removed.change(ChangeKind.REMOVE, "n2")
    group.deliver("n2")
    group.deliver(target="n2")
    assert removed.leads
    assert removed.core.committed_index == removed.log.end_index
    with suppress(ChangeInProgress):
        removed.change(ChangeKind.REMOVE, "n3")
    removed.restart()
    group["n1"].restart()
    wipe(group["n3"])
    group.take()
    group.pass_time(10_000)
    assert any(member.leads for member in group.members.values())


@pytest.mark.rule("R-10")
def test_the_configuration_is_no_former_group() -> None:
    """n2 has a replaced disk and the longest log; its configuration names nodes that do not run."""
    group = Group(2)
    group.elect("n1")
    group.pass_time(500)
    member, whole = group["n2"], group.config
    member.log.add(2)
    member.log.sync()
    member.saved.append(HardState(2, "n2"))
    group.config = GroupConfig(voters=("n1", "n2", "n3", "n4"))
    member.restart(sound=False, knows_vote=False)
    group.config = whole
    group.take()
    group.pass_time(10_000)
    assert member.leads


def let_n3_replace_n1(group: Group, leader: Member, pause_ms: int) -> None:
    """n3 joins and becomes a voter, then n1 leaves. pause_ms: after each change."""
    group.join("n3")
    for kind, name in ((ChangeKind.ADD, "n3"), (ChangeKind.PROMOTE, "n3"), (ChangeKind.REMOVE, "n1")):
        leader.change(kind, name)
        group.pass_time(pause_ms)


@pytest.mark.rule("R-02", "R-10")
def test_a_removed_member_with_an_empty_log_does_not_elect_a_replaced_disk() -> None:
    """Both configurations are of the time before n3 joined: n1 and n2 are all voters that they name."""
    group = Group(2)
    leader = group.elect("n2")
    group.pass_time(500)
    let_n3_replace_n1(group, leader, 1_000)
    leader.append()
    wipe(group["n1"])
    group.pass_time(2_000)
    assert group["n1"].core.role is Role.REMOVED
    wipe(leader)
    group.take()
    group.pass_time(5_000, "n1", "n2")
    assert not leader.leads
    group.pass_time(5_000)
    assert group.leader.name == "n3"
    assert leader.log.batches == group["n3"].log.batches


@pytest.mark.rule("R-02", "R-10")
@pytest.mark.parametrize("restarted", ["none", "n1", "n2"])
def test_all_voters_of_an_old_group_do_not_elect_the_beginning_of_a_log(restarted: str) -> None:
    """n1 was removed, and is added again with an empty folder. While it catches up, the disk of n2 is
    replaced. Then n3 is cut off: the first record, which is all that they hold, names the two as all voters.
    """
    group = Group(2)
    group.elect("n2")
    group.pass_time(500)
    let_n3_replace_n1(group, group["n2"], 200)
    group["n2"].core.transfer("n3", group.now_ms)
    group.pass_time(500, "n2", "n3")
    leader = group["n3"]
    wipe(group["n1"])
    leader.change(ChangeKind.ADD, "n1")
    group.settle("n2", "n3")
    committed = list(leader.log.batches)
    wipe(group["n2"])
    while group["n1"].log.end_index < 0 or group["n2"].log.end_index < 0:
        group.now_ms += 20
        for member in group.members.values():
            member.tick()
        for source, target, message in group.sent.copy():
            if not (isinstance(message, PushRequest) and message.type is PushType.APPEND):
                group[target].step(source, message)
            group.sent.popleft()
    assert group["n1"].core.group.voters == group["n2"].core.group.voters == ("n1", "n2")
    if restarted != "none":
        group[restarted].restart(sound=False, knows_vote=False)
    group.take()
    group.pass_time(3_000, "n1", "n2")
    assert not group["n1"].leads
    assert not group["n2"].leads
    group.pass_time(5_000)
    for member in group.members.values():
        assert member.log.batches[: len(committed)] == committed


@pytest.mark.rule("R-02")
def test_the_committed_index_that_a_voter_stated_ends_with_its_disk() -> None:
    """n2 has a new disk, and n3 lags. The disk of their leader is lost, too: the longest log that is left
    wins, although n2 knows of a higher committed index."""
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    leader.append()
    group.settle("n1", "n2")
    assert leader.core.committed_index > group["n3"].log.end_index
    wipe(group["n2"])
    group["n2"].step("n1", Heartbeat(leader.core.term, "n1", leader.core.committed_index, 1))
    wipe(leader)
    group.take()
    group.pass_time(5_000)
    assert group["n3"].leads


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("removed", ["n1", "n3"])
def test_the_committed_index_that_a_lost_leader_stated_ends_with_the_next_leader(removed: str) -> None:
    """The disks of n1, which leads, and of n2 are replaced, and n3, which lags, is elected by all. n2 and n3
    know of a higher committed index. Then one of the two leaders is removed, and n3 leads no longer."""
    group = Group(3)
    leader = group.elect("n1")
    group.pass_time(200)
    for _ in range(20):
        leader.append()
        group.settle("n1", "n2")
    group.take()
    wipe(group["n2"])
    for name in ("n2", "n3"):
        group[name].step("n1", Heartbeat(leader.core.term, "n1", leader.core.committed_index, 1))
    wipe(leader)
    group.take()
    group.pass_time(5_000)
    assert group["n3"].leads
    group["n3"].change(ChangeKind.REMOVE, removed)
    group.pass_time(500)
    if removed == "n1":
        group.pass_time(3_000, "n3")
    group.take()
    group.pass_time(5_000)
    assert any(member.leads for member in group.members.values())


@pytest.mark.rule("R-10")
def test_a_voter_that_missed_the_replacement_of_all_voters_follows_when_it_is_added_again() -> None:
    """n3 did not run. It is a candidate of the former group, whose voters it asks: they do not run now."""
    group, leader = led_group(3)
    group.join("n4")
    for kind, name in ((ChangeKind.ADD, "n4"), (ChangeKind.PROMOTE, "n4"), (ChangeKind.REMOVE, "n3")):
        leader.change(kind, name)
        group.pass_time(200, "n1", "n2", "n4")
    leader.core.transfer("n4", group.now_ms)
    group.pass_time(500, "n1", "n2", "n4")
    leader = group["n4"]
    for name in ("n2", "n1", "n1"):  # the first of two voters that leaves becomes a learner before
        leader.change(ChangeKind.REMOVE, name)
        group.pass_time(500, "n1", "n2", "n4")
    assert leader.core.group == GroupConfig(voters=("n4",))
    group.take()
    group.pass_time(5_000, "n3", "n4")
    assert group["n3"].core.role is Role.CANDIDATE
    leader.change(ChangeKind.ADD, "n3")
    group.pass_time(1_000, "n3", "n4")
    assert group["n3"].core.role is Role.LEARNER
    assert group["n3"].log.batches == leader.log.batches
    leader.change(ChangeKind.REMOVE, "n3")
    group.pass_time(1_000, "n3", "n4")
    assert group["n3"].core.role is Role.REMOVED
