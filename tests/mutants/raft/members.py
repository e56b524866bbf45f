"""Planted bugs in changes of the members of a Raft group."""

from typing import Any

import pytest

from app.log.state import LogState
from app.raft import membership as membership_module
from app.raft.core import RaftCore
from app.raft.elections import Ballot
from app.raft.peers import Peers
from app.raft.quorum import QuorumChecker, quorum_index
from app.raft.standing import Standing
from app.raft.state import MemberState
from app.raft.transfer import Transfer
from tests.mutants.planting import mutant, plant, planted
from tests.unit.log import test_state as test_log_state
from tests.unit.node.replica import test_log_group
from tests.unit.raft import (
    test_doubt_members,
    test_membership,
    test_opening,
    test_planted_bugs,
    test_quorum,
    test_removal,
    test_transfer,
    test_witnesses,
)


@mutant("R-10", lambda _: test_quorum.test_learners_receive_the_log_and_do_not_count())
def a_learner_counts_for_the_quorum(patch: pytest.MonkeyPatch) -> None:
    def check(self: QuorumChecker) -> None:
        self._watermarks[self._state.node_id] = self._state.held_index(self._log)
        group = self._state.group
        marks = sorted(self._watermarks[peer] for peer in group.members)
        index = marks[-(len(group.voters) // 2 + 1)]
        if index > self._state.committed_index and self._log.term_at(index) == self._state.term:
            self._state.committed_index = index
        self._release()

    patch.setattr(QuorumChecker, "check", check)


@mutant(
    "R-10", lambda _: test_membership.test_a_member_that_left_and_comes_back_within_the_term_gets_the_log()
)
def a_returning_member_is_pushed_to_in_old_sessions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Peers, "_sessions", property(lambda self: {}, lambda self, value: None), raising=False)


@mutant("R-10", lambda _: test_membership.test_no_change_before_a_record_of_the_own_term_is_committed())
def members_change_before_the_term_has_committed(patch: pytest.MonkeyPatch) -> None:
    def change(self: RaftCore, kind: Any, node_id: str, now_ms: int) -> Any:
        view = self._peers.view(now_ms, settled=self._standing.is_settled)
        return membership_module.changed(view, kind, node_id)

    patch.setattr(RaftCore, "change", change)


OUTSIDE = test_removal.test_a_member_outside_its_newest_group_neither_votes_for_itself_nor_counts_its_own_copy


@mutant("R-10", lambda _: OUTSIDE())
def a_leader_that_leaves_counts_itself(patch: pytest.MonkeyPatch) -> None:
    def check(self: QuorumChecker) -> None:
        self._watermarks[self._state.node_id] = self._state.held_index(self._log)
        voters = dict.fromkeys((*self._state.group.voters, self._state.node_id))
        index = quorum_index(self._watermarks[voter] for voter in voters)
        if index > self._state.committed_index and self._log.term_at(index) == self._state.term:
            self._state.committed_index = index
        self._release()

    patch.setattr(QuorumChecker, "check", check)


@mutant("R-10", lambda _: OUTSIDE())
def a_candidate_outside_its_group_votes_for_itself(patch: pytest.MonkeyPatch) -> None:
    def is_won(self: Ballot) -> bool:
        return sum(vote.granted for vote in self._votes.values()) >= self._member.majority

    patch.setattr(Ballot, "is_won", property(is_won))


@mutant(
    "R-10",
    lambda _: (
        test_removal.test_a_leader_that_removed_itself_alone_is_enough_for_a_majority_with_a_member_down()
    ),
)
def a_member_outside_its_newest_group_never_campaigns(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Standing, "configure")
    def configure(original: Any, self: Standing, *given: Any, **options: Any) -> bool:
        changed = bool(original(self, *given, **options))
        self._member.former_voters = ()
        return changed


@mutant("R-10", lambda _: test_removal.test_a_notice_that_is_older_than_the_own_group_is_not_believed())
def a_notice_of_any_age_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Standing, "take", lambda self, notice, _term: setattr(self, "notice", notice))


@mutant(
    "R-10",
    lambda _: (
        test_removal.test_a_leader_writes_the_first_group_into_the_log_and_no_configuration_changes_it()
    ),
)
def the_first_group_is_not_written(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, RaftCore, "_lead")
    def lead(original: Any, self: RaftCore, now_ms: int) -> None:
        original(self, now_ms)
        self._opening = {"kind": "term", "leader": self._member.node_id}


@mutant("R-10", lambda _: test_opening.test_a_voter_alone_waits_until_it_may_begin_the_group())
def a_group_begins_beside_another_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberState, "may_take_part", property(lambda _: True))


@mutant("R-10", lambda _: test_opening.test_a_group_that_exists_elects_leaders_whatever_other_nodes_report())
def a_group_that_exists_stops_beside_another_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberState, "may_take_part", property(lambda self: self.may_found))


@mutant("R-10", lambda _: test_log_state.test_a_membership_goes_with_its_record())
def a_change_of_members_outlives_its_record(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, LogState, "truncate_after")
    def truncate_after(original: Any, self: LogState, index: int) -> None:
        kept = dict(self._membership)
        original(self, index)
        self._membership = kept


plant(
    "members_change_before_the_term_has_committed",
    "R-10",
    (RaftCore, "change", "self._leader_reads.term_is_open", "True"),
    lambda _: test_membership.test_no_change_before_a_record_of_the_own_term_is_committed(),
)
plant(
    "a_leader_that_leaves_counts_itself",
    "R-10",
    (
        QuorumChecker,
        "check",
        "for voter in state.group.voters",
        "for voter in {*state.group.voters, state.node_id}",
    ),
    lambda _: test_planted_bugs.test_a_leader_that_removed_itself_does_not_count_itself(),
)
plant(
    "a_removed_member_is_elected_by_an_unsound_vote",
    "R-02",
    (Ballot, "is_won", " and is_known", ""),
    lambda _: test_doubt_members.test_a_removed_leader_is_not_elected_by_a_replaced_disk_alone(),
)
plant(
    "one_of_two_voters_and_a_third_commit_that_it_joins",
    "R-10",
    (QuorumChecker, "check", "if witnesses := state.needed_witnesses", "if witnesses := ()"),
    lambda _: test_witnesses.test_two_voters_both_know_the_third_before_it_helps_to_commit(),
)
plant(
    "half_of_four_voters_and_a_fifth_commit_that_it_joins",
    "R-10",
    (QuorumChecker, "check", "held = quorum_index(self", "held = max(self"),
    lambda _: test_witnesses.test_three_of_four_voters_hold_the_fifth_before_it_helps_to_commit(),
)
plant(
    "all_of_four_voters_must_hold_that_a_fifth_joins",
    "R-10",
    (QuorumChecker, "check", "held = quorum_index(self", "held = min(self"),
    lambda _: test_witnesses.test_three_of_four_voters_hold_the_fifth_before_it_helps_to_commit(),
)
plant(
    "former_voters_need_no_record_of_the_term_that_commits_a_change",
    "R-05",
    (QuorumChecker, "check", " and is_of_term(self._log, held, state.term)", ""),
    lambda _: test_witnesses.test_three_of_four_voters_hold_a_record_of_the_term_that_commits_the_fifth(),
)
plant(
    "a_former_voter_in_doubt_holds_a_change",
    "R-10",
    (
        QuorumChecker,
        "check",
        "held = quorum_index(self._counted(voter)",
        "held = quorum_index(self._watermarks[voter]",
    ),
    lambda _: test_witnesses.test_a_former_voter_in_doubt_helps_to_elect_and_holds_nothing(),
)
plant(
    "what_five_voters_hold_waits_for_three_of_the_former_four",
    "R-10",
    (QuorumChecker, "check", "index if knows_group else ", ""),
    lambda _: (
        test_witnesses.test_a_majority_of_five_commits_once_three_of_the_former_four_hold_the_promotion()
    ),
)
plant(
    "one_of_two_voters_commits_alone_that_the_other_one_leaves",
    "R-10",
    (MemberState, "needed_witnesses", "<= set(self.group.members)", "<= set(self.group.voters)"),
    lambda _: test_witnesses.test_the_removal_of_one_of_two_voters_is_committed_once_both_hold_it(),
)
plant(
    "a_leader_stands_down_without_one_of_the_former_voters",
    "R-04",
    (
        Peers,
        "majority_heard_ms",
        "quorum_index(heard[voter] for voter in witnesses)",
        "min(heard[voter] for voter in witnesses)",
    ),
    lambda _: test_witnesses.test_a_leader_of_five_stays_with_three_of_the_former_four(),
)
plant(
    "a_leader_stays_without_the_voter_that_must_hold_its_change",
    "R-04",
    (Peers, "majority_heard_ms", "if witnesses := member.needed_witnesses", "if witnesses := ()"),
    lambda _: test_witnesses.test_a_leader_stands_down_without_the_voter_that_must_hold_its_change(
        removes=True
    ),
)
plant(
    "the_record_that_a_notice_is_about_ends_it",
    "R-10",
    (Standing, "configure", "index > self.notice.index", "index >= self.notice.index"),
    lambda _: test_removal.test_a_notice_holds_until_the_own_log_has_a_newer_group_than_it_is_about(),
)
plant(
    "a_group_that_was_undone_counts_as_the_former_one",
    "R-10",
    (Standing, "configure", "NO_INDEX < self.index < index", "NO_INDEX < self.index"),
    lambda _: test_removal.test_a_group_that_was_undone_is_no_former_group(),
)
plant(
    "the_configuration_counts_as_the_former_group",
    "R-10",
    (Standing, "configure", "NO_INDEX < self.index < index", "self.index < index"),
    lambda _: test_removal.test_the_configuration_is_no_former_group(),
)
plant(
    "a_leader_that_has_removed_itself_changes_members",
    "R-10",
    (RaftCore, "change", "standing.is_voter and ", ""),
    lambda _: test_removal.test_a_leader_that_has_removed_itself_changes_no_members(),
)
plant(
    "a_removed_member_with_an_empty_log_elects_another_one",
    "R-02",
    (Standing, "take", "max(self._member.noticed_index, notice.index)", "self._member.noticed_index"),
    lambda _: test_removal.test_a_removed_member_with_an_empty_log_does_not_elect_a_replaced_disk(),
)
plant(
    "a_learner_with_a_leader_takes_itself_for_needed",
    "R-10",
    (RaftCore, "_vote", "member.leader_id is None and ", ""),
    lambda _: (
        test_membership.test_a_learner_that_follows_a_leader_does_not_take_a_candidate_for_one_that_needs_it()
    ),
)
plant(
    "a_committed_group_waits_for_voters_of_an_older_one",
    "R-10",
    (Standing, "configure", " and not settled", ""),
    lambda _: test_log_group.test_a_group_that_the_state_knows_to_be_committed_waits_for_no_former_voter(
        True
    ),
)
plant(
    "a_group_that_was_given_up_counts_as_the_newer_one",
    "R-10",
    (Standing, "take", " and not is_given_up", ""),
    lambda _: (
        test_removal.test_a_removed_leader_learns_it_although_its_own_log_has_a_later_change_of_the_group(
            False, False
        )
    ),
)
plant(
    "a_notice_has_the_term_of_the_record_of_the_group",
    "R-10",
    (RaftCore, "_vote", "self._term_of(member.committed_index)", "self._term_of(self._standing.index)"),
    lambda _: (
        test_removal.test_a_removed_leader_learns_it_although_its_own_log_has_a_later_change_of_the_group(
            True, False
        )
    ),
)
plant(
    "a_replica_without_the_state_of_its_log_knows_who_is_removed",
    "R-10",
    (Standing, "notice_for", "not member.electable", "False"),
    lambda _: test_removal.test_a_replica_without_the_state_of_its_log_removes_no_node(),
)
plant(
    "a_leader_that_was_removed_before_does_not_hand_the_lead_over",
    "R-09",
    (Transfer, "close_term", "self._leaving = False", "pass"),
    lambda _: test_transfer.test_a_leader_that_is_removed_again_hands_the_lead_over_again(),
)
