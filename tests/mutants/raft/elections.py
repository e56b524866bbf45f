"""Planted bugs in elections: votes, terms, transfers of the lead, replaced disks."""

from typing import Any

import pytest

from app.node.opening import replica_modes
from app.node.opening.folder_birth import FolderBirth
from app.raft import core as core_module
from app.raft import peers as peers_module
from app.raft.core import RaftCore
from app.raft.doubt import Doubt
from app.raft.elections import Ballot
from app.raft.entry_handler import EntryHandler
from app.raft.messages import TimeoutNow, VoteAnswer, VoteRequest
from app.raft.peers import Peers
from app.raft.reads import LeaderReads
from app.raft.state import MemberState
from app.raft.transfer import Transfer
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState
from tests.mutants.planting import mutant, plant, planted
from tests.unit.node.opening import test_trust
from tests.unit.raft import (
    test_doubt,
    test_doubt_members,
    test_elections,
    test_membership,
    test_planted_bugs,
    test_removal,
    test_transfer,
    test_witnesses,
)
from tests.unit.raft.support import MemoryLog
from tests.unit.storage import test_recovery


@mutant("R-01", lambda _: test_elections.test_one_vote_a_term_also_over_a_restart())
def the_vote_is_not_persisted(patch: pytest.MonkeyPatch) -> None:
    def save(self: RaftCore, now_ms: int) -> None:
        self._outbox.hard_state = HardState(self._member.term, None)
        self._timer.saving(now_ms)

    patch.setattr(RaftCore, "_save", save)


@mutant("R-02")
def votes_go_to_logs_that_lack_records(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, RaftCore, "_vote")
    def vote(original: Any, self: RaftCore, source: str, request: VoteRequest, now_ms: int) -> None:
        original(self, source, VoteRequest(request.term, 1 << 60, 1 << 60, request.pre_vote), now_ms)


@mutant("R-01")
def a_candidate_counts_refusals(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Ballot, "count")
    def count(original: Any, self: Ballot, source: str, answer: VoteAnswer) -> None:
        original(self, source, VoteAnswer(self._term, True, answer.pre_vote))


@mutant(
    "R-03",
    lambda _: test_elections.test_a_node_that_was_cut_off_neither_raises_the_term_nor_unseats_the_leader(),
)
def no_pre_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftCore, "_ask_pre_votes", RaftCore._campaign)


@mutant(
    "R-04",
    lambda _: (
        test_elections.test_a_leader_that_a_majority_does_not_answer_stands_down_within_an_election_timeout()
    ),
)
def no_check_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(peers_module, "quorum_index", max)


@mutant("R-09", lambda _: test_transfer.test_the_target_is_asked_only_when_it_holds_everything_committed())
def the_successor_gets_votes_whatever_it_lacks(patch: pytest.MonkeyPatch) -> None:
    """The target is asked to campaign before it has all records."""
    original = core_module.grants

    def grants(
        member: MemberState, log: Any, source: str, request: VoteRequest, *, hears_leader: bool
    ) -> bool:
        if request.transfer:
            request = VoteRequest(request.term, 1 << 60, 1 << 60, False, True)
        return original(member, log, source, request, hears_leader=hears_leader)

    def go_on(self: Transfer, now_ms: int) -> None:
        if self._attempt is not None and not self._attempt.asked:
            self._attempt.asked = True
            self._outbox.send(self._attempt.target, TimeoutNow(self._member.term))

    patch.setattr(core_module, "grants", grants)
    patch.setattr(Transfer, "go_on", go_on)


@mutant("R-10", lambda _: test_membership.test_a_damaged_member_does_not_count_in_an_election())
def a_damaged_member_votes(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, core_module, "grants")
    def grants(
        original: Any, member: MemberState, log: Any, source: str, request: VoteRequest, *, hears_leader: bool
    ) -> bool:
        member.sound = True
        return original(member, log, source, request, hears_leader=hears_leader)


@mutant("R-02", lambda _: test_doubt.test_a_ballot_is_won_by_sound_votes_or_by_all())
def unsound_votes_are_witnesses(patch: pytest.MonkeyPatch) -> None:
    def is_won(self: Ballot) -> bool:
        voters = self._member.group.voters
        votes = [vote for voter in voters if (vote := self._votes.get(voter))]
        return sum(vote.granted for vote in votes) >= self._member.majority

    patch.setattr(Ballot, "is_won", property(is_won))


@mutant("R-01", lambda _: test_doubt.test_a_lost_vote_in_a_newer_term_does_not_elect_two_leaders())
def a_replaced_disk_remembers_its_vote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Doubt, "_leader_is_confirmed", property(lambda _self: True))


@mutant(
    "R-02",
    lambda folder: test_trust.test_an_empty_folder_of_a_voter_opens_without_a_vote_and_stays_so(folder),
)
def an_empty_folder_opens_sound(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, replica_modes, "judge_opening")
    def judge_opening(original: Any, *given: Any, is_empty: bool, **options: Any) -> Any:
        return original(*given, is_empty=False, **options)


plant(
    "the_only_voter_of_the_settings_begins_an_older_log",
    "R-02",
    (replica_modes.RaftMode, "judge", "(self.predates_folder or not alone)", "not alone"),
    lambda folder: (
        test_trust.test_the_only_voter_of_the_settings_does_not_begin_a_log_that_is_older_than_its_folder(
            folder
        )
    ),
)
plant(
    "a_transfer_does_not_wait_for_the_commit",
    "R-09",
    (Transfer, "go_on", "held_index == end_index == self._member.committed_index", "held_index == end_index"),
    lambda _: test_transfer.test_a_target_that_holds_what_no_majority_holds_is_not_asked_yet(),
)
plant(
    "votes_of_another_term_count",
    "R-03",
    (Ballot, "count", "answer.term == self._term", "True"),
    lambda _: test_planted_bugs.test_a_grant_of_an_earlier_pre_vote_does_not_count(),
)
plant(
    "an_empty_log_votes_for_whoever_lacks_what_was_before_it",
    "R-02",
    (core_module, "grants", "log.last_position", "(log.last_term, log.end_index)"),
    lambda _: test_elections.test_a_log_that_a_reset_has_left_empty_refuses_who_lacks_what_was_before_it(
        2, 99, False, False
    ),
)
plant(
    "all_voters_of_an_old_group_elect_a_beginning_of_the_log",
    "R-02",
    (Ballot, "is_won", "self._log.last_position[1] < member.needed_index", "False"),
    lambda _: test_removal.test_all_voters_of_an_old_group_do_not_elect_the_beginning_of_a_log("n1"),
)
plant(
    "a_voter_with_a_new_disk_elects_a_beginning_of_the_log",
    "R-02",
    (core_module, "grants", "member.needed_index", "member.committed_index"),
    lambda _: test_removal.test_all_voters_of_an_old_group_do_not_elect_the_beginning_of_a_log("n1"),
)
plant(
    "what_a_voter_has_stated_counts_without_its_disk",
    "R-02",
    (MemberState, "needed_index", "self.stated_index if is_old else NO_INDEX", "self.stated_index"),
    lambda _: test_removal.test_the_committed_index_that_a_voter_stated_ends_with_its_disk(),
)
plant(
    "what_a_lost_leader_stated_counts_at_the_next_leader",
    "R-10",
    (RaftCore, "_lead", "member.stated_index = NO_INDEX", "pass"),
    lambda _: test_removal.test_the_committed_index_that_a_lost_leader_stated_ends_with_the_next_leader("n1"),
)
plant(
    "what_a_lost_leader_stated_counts_at_the_followers_of_the_next",
    "R-10",
    (EntryHandler, "adopt_committed", "self._stated_term < member.term", "False"),
    lambda _: test_removal.test_the_committed_index_that_a_lost_leader_stated_ends_with_the_next_leader("n3"),
)
plant(
    "an_empty_log_claims_nothing_as_a_candidate",
    "R-02",
    (Ballot, "open", "= log.last_position", "= log.last_term, log.end_index"),
    lambda _: test_elections.test_logs_that_a_power_failure_has_emptied_after_a_trim_elect_one_of_them(
        MemoryLog()
    ),
)
plant(
    "a_reset_forgets_the_term_of_its_begin",
    "R-02",
    (Commitlog, "reset", "self._base_term = base_term", "self._base_term = 0"),
    lambda _: test_recovery.test_a_reset_is_whole_or_has_not_begun(),
)
plant(
    "a_vote_although_the_term_has_a_leader",
    "R-01",
    (core_module, "grants", " and member.leader_id is None", ""),
    lambda _: test_planted_bugs.test_a_member_that_follows_a_leader_gives_no_vote_in_its_term(),
)
plant(
    "answers_to_the_pre_vote_count_in_the_election",
    "R-03",
    (Ballot, "count", "answer.pre_vote is self.pre_vote and ", ""),
    lambda _: test_doubt.test_a_late_answer_to_the_pre_vote_is_not_a_vote(),
)
plant(
    "a_confirmation_of_an_older_term_ends_the_doubt",
    "R-02",
    (Doubt, "_leader_is_confirmed", "self._asked_term == self._member.term and ", ""),
    lambda _: test_doubt.test_a_confirmation_of_an_older_term_does_not_end_the_doubt(),
)
plant(
    "a_transfer_waits_for_a_target_that_is_no_voter",
    "R-09",
    (Transfer, "go_on", " or attempt.target not in self._member.group.voters", ""),
    lambda _: test_transfer.test_a_transfer_ends_when_its_target_is_no_voter_any_more(),
)
plant(
    "a_leader_without_room_offers_the_lead_without_a_pause",
    "R-09",
    (Transfer, "leave_full_disk", "self._full_since_ms = now_ms  # and", "pass  # and"),
    lambda _: (
        test_transfer.test_a_leader_without_room_whose_transfer_failed_offers_the_lead_after_the_same_time_again()
    ),
)
plant(
    "the_confirmation_of_the_leader_before_counts_while_the_next_is_asked",
    "R-02",
    (Doubt, "tick", "confirmation.is_asked, confirmation.index = True, None", "confirmation.is_asked = True"),
    lambda _: test_doubt.test_a_confirmation_of_an_older_term_does_not_end_the_doubt(),
)
plant(
    "a_removal_that_is_not_committed_counts_when_all_grant",
    "R-02",
    (Ballot, "is_won", "every = member.every_voter", "every = voters"),
    lambda _: test_doubt_members.test_a_voter_that_may_lead_without_its_removal_must_grant_too(),
)
plant(
    "a_removal_that_is_not_committed_counts_when_all_confirm",
    "R-01",
    (LeaderReads, "_settle", "for voter in member.every_voter", "for voter in member.group.voters"),
    lambda _: test_doubt_members.test_a_voter_that_may_lead_without_its_removal_must_confirm_the_leader_too(),
)
plant(
    "the_voter_that_is_removed_is_not_asked",
    "R-10",
    (Ballot, "repeat", "self._member.every_voter", "self._member.group.voters"),
    lambda _: test_doubt_members.test_a_removal_is_committed_although_a_disk_is_replaced_meanwhile(True),
)
plant(
    "one_of_two_voters_and_a_third_elect_a_leader",
    "R-01",
    (Ballot, "is_won", " and by_witnesses", ""),
    lambda _: test_witnesses.test_both_of_two_voters_elect_the_leader_whose_log_alone_names_the_third(),
)
plant(
    "a_late_vote_counts",
    "R-01",
    (RaftCore, "_take_vote", " and now_ms < self._timer.due_ms", ""),
    lambda _: test_doubt.test_a_vote_that_comes_late_does_not_count(),
)
plant(
    "half_of_four_voters_and_a_fifth_elect_a_leader",
    "R-01",
    (Ballot, "is_won", "> len(witnesses) // 2", ">= len(witnesses) // 2"),
    lambda _: test_witnesses.test_three_of_four_voters_elect_the_leader_whose_log_names_the_fifth(),
)
plant(
    "a_former_voter_in_doubt_does_not_help_to_elect",
    "R-01",
    (Ballot, "is_won", "sum(voter in granted for", "sum(granted.get(voter, False) for"),
    lambda _: test_witnesses.test_a_former_voter_in_doubt_helps_to_elect_and_holds_nothing(),
)
plant(
    "a_former_voter_that_refuses_helps_to_elect",
    "R-01",
    (Ballot, "is_won", "sum(voter in granted for", "sum(voter in self._votes for"),
    lambda _: test_witnesses.test_a_former_voter_that_refuses_does_not_help_to_elect(),
)
plant(
    "a_vote_for_another_group_counts",
    "R-02",
    (Ballot, "_is_of_another_group", "set(answer.voters) != set(member.group.voters)", "False"),
    lambda _: (
        test_doubt_members.test_a_replaced_disk_whose_configuration_names_fewer_voters_is_not_elected_before_the_first_record(
            3, ("n3",)
        )
    ),
)
plant(
    "a_lost_request_for_a_vote_is_not_repeated",
    "R-01",
    (RaftCore, "tick", "self._ballot.repeat()", "pass"),
    lambda _: test_elections.test_a_candidate_with_a_slow_disk_repeats_requests_that_may_have_been_lost(),
)
plant(
    "the_voter_that_is_removed_gets_no_heartbeat",
    "R-10",
    (RaftCore, "_broadcast", "*member.every_voter", ""),
    lambda _: test_doubt_members.test_a_removal_is_committed_although_a_disk_is_replaced_meanwhile(False),
)
plant(
    "a_doubt_of_an_earlier_term_ends_the_next_one",
    "R-04",
    (Peers, "open_term", "self._doubting_ms = {}", "pass"),
    lambda _: test_doubt.test_a_doubt_of_an_earlier_term_does_not_end_the_next_one_at_once(),
)
plant(
    "a_full_disk_of_an_earlier_term_counts",
    "D-29",
    (Peers, "open_term", "self.has_room = {}", "pass"),
    lambda _: test_transfer.test_a_new_term_begins_without_the_reports_about_disks_of_an_older_one(),
)
plant(
    "a_restored_copy_is_as_old_as_what_it_replaces",
    "R-02",
    (FolderBirth, "save", "is_copy = self._marker.exists and self._marker.lost_vote", "is_copy = False"),
    lambda _: test_trust.test_logs_that_are_newer_than_a_restored_copy_have_been_here_before_it(),
)
