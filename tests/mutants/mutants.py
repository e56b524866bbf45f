"""Planted bugs: each one a small patch that breaks a rule, with the test that must detect it.

A bug that survives shows that the simulator, or a test, cannot fail at that place.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from app.api.read.reader import Reader
from app.errors import QuorumTimeout, TermChanged
from app.errors.base import Outcome
from app.log.contract import NO_INDEX, Acks, Durability, PendingAppend
from app.log.restoring import Restoring
from app.log.state import LogState
from app.node.opening import open_replica, replica_modes
from app.node.replica import append_queue, checkpoints
from app.node.replica.confirmed_answers import ConfirmedAnswer
from app.node.replica.open_appends import OpenAppends
from app.node.replica.read_index_queue import ReadGate
from app.node.replica.state_transfer import StateTransfer
from app.node.replica.trimming import Trimmer
from app.raft import core as core_module
from app.raft import membership as membership_module
from app.raft import peers as peers_module
from app.raft import quorum as quorum_module
from app.raft.ballot import Ballot
from app.raft.core import RaftCore
from app.raft.dispatcher import Dispatcher, DispatcherState
from app.raft.doubt import Doubt
from app.raft.entry_handler import EntryHandler
from app.raft.messages import PushAnswer, PushCode, PushRequest, PushType, TimeoutNow, VoteAnswer, VoteRequest
from app.raft.peers import Peers
from app.raft.quorum import QuorumChecker, quorum_index
from app.raft.reads import LeaderReads
from app.raft.standing import Standing
from app.raft.state import MemberState
from app.raft.transfer import Transfer
from storage.errors import SyncFailed
from storage.log.commitlog import SyncTicket
from storage.log.hard_state import HardState
from storage.log.recovery import Recovery
from tests.unit.api.read import test_reader
from tests.unit.log import test_state as test_log_state
from tests.unit.node.opening import test_trust
from tests.unit.node.replica import (
    test_confirmed_answers,
    test_driver,
    test_driver_commands,
    test_driver_disk,
)
from tests.unit.raft import (
    test_dispatcher,
    test_doubt,
    test_elections,
    test_entry_handler,
    test_membership,
    test_quorum,
    test_reads,
    test_removal,
    test_transfer,
)
from tests.unit.raft import test_opening as test_raft_opening
from tests.unit.storage import test_commitlog

Patch = Callable[[pytest.MonkeyPatch], None]
Killer = Callable[[Path], None]
Bug = TypeVar("Bug", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mutant:
    """killer: the test that must fail under the patch, called with an empty folder; None: the simulator."""

    name: str
    rule: str
    patch: Patch
    killer: Killer | None


MUTANTS: list[Mutant] = []


def mutant(rule: str, killer: Killer | None = None) -> Callable[[Patch], Patch]:
    """Take the function, which plants the bug, into MUTANTS."""

    def register(patch: Patch) -> Patch:
        MUTANTS.append(Mutant(patch.__name__, rule, patch, killer))
        return patch

    return register


def planted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> Callable[[Bug], Bug]:
    """Replace `owner.name` by the function, which gets the original as its first argument."""
    original = getattr(owner, name)

    def plant(bug: Bug) -> Bug:
        patch.setattr(owner, name, lambda *given, **options: bug(original, *given, **options))
        return bug

    return plant


# --- acknowledged, committed ---


@mutant("R-05", lambda _: test_quorum.test_records_of_older_terms_are_committed_only_by_one_of_the_own_term())
def commit_by_counting_records_of_older_terms(patch: pytest.MonkeyPatch) -> None:
    def check(self: QuorumChecker, now_ms: int) -> None:
        self._watermarks[self._state.node_id] = self._state.held_index(self._log)
        index = quorum_index(self._watermarks[voter] for voter in self._state.group.voters)
        self._state.committed_index = max(self._state.committed_index, index)
        self._release()

    patch.setattr(QuorumChecker, "check", check)


@mutant("R-11")
def acknowledge_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemberState, "held_index", lambda self, log: log.end_index)


@mutant("R-11")
def a_follower_acknowledges_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntryHandler, "_acknowledged_index", property(lambda self: self.matched_index))


@mutant("D-24")
def a_minority_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(quorum_module, "quorum_index", max)


@mutant(
    "D-23",
    lambda _: test_quorum.test_watermarks_of_an_older_term_do_not_count_in_the_next_one(),
)
def watermarks_outlive_their_term(patch: pytest.MonkeyPatch) -> None:
    opening, closing = QuorumChecker.open_term, QuorumChecker.close_term

    def open_term(self: QuorumChecker, now_ms: int) -> None:
        opening(self, now_ms)
        self._watermarks.update(getattr(self, "_kept", {}))

    def close_term(self: QuorumChecker, now_ms: int) -> None:
        self._kept = dict(self._watermarks)  # type: ignore[attr-defined]
        closing(self, now_ms)

    patch.setattr(QuorumChecker, "open_term", open_term)
    patch.setattr(QuorumChecker, "close_term", close_term)


@mutant("D-10", lambda _: test_dispatcher.test_answers_of_an_earlier_session_change_nothing())
def an_ack_counts_whatever_its_session(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Dispatcher, "answer")
    def answer(original: Any, self: Dispatcher, answer: Any, now_ms: int) -> None:
        if answer.type is PushType.APPEND and answer.code is PushCode.SUCCESS:
            self._quorum.raise_watermark(self.peer, answer.index)
        original(self, answer, now_ms)


@mutant(
    "R-12",
    lambda _: test_entry_handler.test_the_committed_index_is_clamped_to_what_is_matched_with_this_leader(),
)
def the_committed_index_passes_what_is_matched(patch: pytest.MonkeyPatch) -> None:
    def adopt(self: EntryHandler, index: int) -> None:
        index = min(index, self._log.end_index)
        self._member.committed_index = max(self._member.committed_index, index)

    patch.setattr(EntryHandler, "adopt_committed", adopt)


@mutant("R-12", lambda _: test_entry_handler.test_a_new_term_starts_with_nothing_matched())
def what_was_matched_outlives_the_term(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, EntryHandler, "reset")
    def reset(original: Any, self: EntryHandler) -> None:
        before = getattr(self, "matched_index", NO_INDEX)
        original(self)
        self.matched_index = before


# --- the logs ---


@mutant("R-06")
def appends_are_stored_behind_any_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EntryHandler, "_agrees", lambda self, index, term: True)


@mutant("D-12")
def compare_looks_at_the_record_before(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, EntryHandler, "_agrees")
    def agrees(original: Any, self: EntryHandler, index: int, term: int) -> bool:
        return index <= 0 or original(self, index - 1, self._log.term_at(min(index - 1, self._log.end_index)))


@mutant(
    "D-14",
    lambda _: test_entry_handler.test_compare_and_truncate_are_answered_only_when_the_named_end_is_durable(),
)
def compare_names_an_end_that_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, EntryHandler, "_answer_deferred")
    def at_once(original: Any, self: EntryHandler) -> None:
        self._member.durability = Durability.REPLICATED
        original(self)
        self._member.durability = Durability.FSYNC


@mutant(
    "R-07",
    lambda _: (
        test_entry_handler.test_truncate_below_the_committed_index_is_refused_loudly_and_changes_nothing()
    ),
)
def truncate_below_the_committed_index(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, EntryHandler, "_truncate")
    def lax(original: Any, self: EntryHandler, request: PushRequest) -> None:
        committed, self._member.committed_index = self._member.committed_index, NO_INDEX
        original(self, request)
        self._member.committed_index = committed


@mutant(
    "D-21",
    lambda _: test_entry_handler.test_a_push_of_an_older_term_or_a_second_leader_changes_nothing(
        PushType.TRUNCATE
    ),
)
def a_stale_leader_is_obeyed(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, RaftCore, "step")
    def step(original: Any, self: RaftCore, source: str, message: Any, now_ms: int) -> None:
        if isinstance(message, PushRequest) and not self._member.leads:
            self._handler.handle(message, now_ms)
            self._settle(now_ms)
        else:
            original(self, source, message, now_ms)


@mutant(
    "D-14",
    lambda _: test_entry_handler.test_a_late_truncate_of_an_earlier_session_takes_nothing_away(),
)
def a_late_truncate_is_obeyed(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, EntryHandler, "handle")
    def handle(original: Any, self: EntryHandler, request: PushRequest, now_ms: int) -> None:
        self._session = min(self._session, request.session)
        original(self, request, now_ms)


@mutant(
    "D-14",
    lambda _: (
        test_entry_handler.test_a_late_truncate_is_known_for_one_also_after_the_leader_was_lost_and_found()
    ),
)
def the_session_is_forgotten_with_the_leader(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, EntryHandler, "reset")
    def reset(original: Any, self: EntryHandler) -> None:
        original(self)
        self._session = 0


@mutant(
    "D-11",
    lambda _: test_dispatcher.test_an_answer_to_a_comparison_of_an_earlier_session_counts_for_nothing(
        PushCode.SUCCESS
    ),
)
def a_stale_answer_to_a_comparison_counts(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Dispatcher, "answer")
    def answer(original: Any, self: Dispatcher, answer: PushAnswer, now_ms: int) -> None:
        if answer.type is PushType.COMPARE:
            answer = msgspec.structs.replace(answer, session=self.session)
        original(self, answer, now_ms)


@mutant("D-05", lambda _: test_dispatcher.test_commit_finds_a_peer_that_was_wiped_while_nothing_is_appended())
def an_idle_leader_never_looks_at_its_peers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Dispatcher, "_commit", lambda self, now_ms: None)


# --- elections ---


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


# --- reads, repeats, restarts ---


@mutant("R-08")
def a_read_index_without_a_quorum(patch: pytest.MonkeyPatch) -> None:
    def ask(self: LeaderReads, reader: Any) -> None:
        self._give(reader, self._member.committed_index)

    patch.setattr(LeaderReads, "ask", ask)


@mutant("R-08")
def a_read_index_before_the_term_is_open(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderReads, "term_is_open", True)


@mutant("D-28")
def the_key_table_is_lost_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(open_replica, "load_state", lambda log, snapshot_file, **_options: LogState())


@mutant("D-28", test_driver.test_a_truncation_takes_back_the_keys_of_what_is_gone)
def the_key_table_keeps_what_was_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogState, "truncate_after", lambda self, index: None)


@mutant("D-20", test_driver.test_the_checkpoint_never_names_what_is_not_durable_here)
def the_checkpoint_names_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "min", lambda committed, durable: committed, raising=False)


@mutant("D-28")
def a_producers_sequences_are_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogState, "check_producer", lambda self, id, epoch, sequence, allow_gap=False: None)


@mutant("D-23")
def an_append_that_lost_its_leader_is_said_not_to_be_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TermChanged, "outcome", Outcome.NOT_APPLIED)


@mutant("D-26")
def an_append_that_waited_too_long_is_said_not_to_be_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuorumTimeout, "outcome", Outcome.NOT_APPLIED)


@mutant("D-28")
def the_fence_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, append_queue, "check_conditions")
    def check(original: Any, state: LogState, request: Any, **options: int) -> None:
        original(LogState(), request, **options)


@mutant("R-08", lambda _: test_reads.test_rounds_of_an_older_term_confirm_nothing())
def answers_of_an_older_term_confirm_reads(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, LeaderReads, "close_term")
    def close_term(original: Any, self: LeaderReads) -> None:
        answered = dict(self._answered)
        original(self)
        self._answered.update(answered)


@mutant("R-08", test_driver_disk.test_a_follower_answers_a_read_only_when_it_has_the_index)
def a_confirmed_read_does_not_wait_for_this_replica(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReadGate, "give")
    def give(original: Any, self: ReadGate, done: Any, index: int | None, now_ms: int) -> None:
        if index is None:
            original(self, done, index, now_ms)
        else:
            done(index)


@mutant("R-08", test_reader.test_only_a_local_read_sees_what_is_not_committed)
def every_read_shows_uncommitted_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reader, "visible_end", property(lambda self: self.log.end_index))


# --- storage ---


@mutant("R-11", lambda _: test_commitlog.test_only_what_was_synced_is_durable())
def a_failed_sync_passes_for_a_good_one(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SyncTicket, "run")
    def run(original: Any, self: SyncTicket) -> None:
        with contextlib.suppress(SyncFailed):
            original(self)


@mutant("R-11")
def what_recovery_scanned_is_not_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_rewrite", lambda self, segment: None)


# --- transfer, members, trims ---


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


@mutant("R-10", lambda _: test_quorum.test_learners_receive_the_log_and_do_not_count())
def a_learner_counts_for_the_quorum(patch: pytest.MonkeyPatch) -> None:
    def check(self: QuorumChecker, now_ms: int) -> None:
        self._watermarks[self._state.node_id] = self._state.held_index(self._log)
        group = self._state.group
        marks = sorted(self._watermarks[peer] for peer in (*group.voters, *group.learners))
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


@mutant("R-10", lambda _: test_membership.test_a_damaged_member_is_no_witness_in_an_election())
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


@mutant("D-24", lambda _: test_doubt.test_the_acknowledgement_of_an_unsound_voter_does_not_count())
def acknowledgements_of_unsound_voters_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuorumChecker, "set_sound", lambda _self, _peer, _sound: None)


@mutant("R-08", lambda _: test_doubt.test_an_unsound_voter_confirms_no_read())
def unsound_voters_confirm_reads(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, LeaderReads, "answered")
    def answered(original: Any, self: LeaderReads, peer: str, number: int, *, sound: bool) -> None:
        original(self, peer, number, sound=True)


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


@mutant(
    "D-20", lambda folder: test_raft_opening.test_a_reset_survives_a_crash_before_the_next_checkpoint(folder)
)
def a_restart_believes_the_checkpoint_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(core_module, "committed_at_open", lambda log, index: min(index, log.end_index))


@mutant("R-10", lambda _: test_membership.test_no_change_before_a_record_of_the_own_term_is_committed())
def members_change_before_the_term_has_committed(patch: pytest.MonkeyPatch) -> None:
    def change(self: RaftCore, kind: Any, node_id: str, now_ms: int) -> Any:
        view = self._peers.view(now_ms, settled=self._standing.is_settled)
        return membership_module.changed(view, kind, node_id)

    patch.setattr(RaftCore, "change", change)


OUTSIDE = test_removal.test_a_member_outside_its_newest_group_neither_votes_for_itself_nor_counts_its_own_copy


@mutant("R-10", lambda _: OUTSIDE())
def a_leader_that_leaves_counts_itself(patch: pytest.MonkeyPatch) -> None:
    def check(self: QuorumChecker, now_ms: int) -> None:
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
    lambda _: test_removal.test_a_leader_that_removed_itself_alone_leads_again_until_its_removal_is_committed(
        True
    ),
)
def a_member_outside_its_newest_group_never_campaigns(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Standing, "configure")
    def configure(original: Any, self: Standing, *given: Any) -> bool:
        changed = bool(original(self, *given))
        self._former = None
        return changed


@mutant("R-10", lambda _: test_removal.test_a_notice_that_is_older_than_the_own_group_is_not_believed())
def a_notice_of_any_age_is_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Standing, "take", lambda self, notice: setattr(self, "notice", notice))


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


@mutant("R-10", lambda _: test_log_state.test_a_membership_goes_with_its_record())
def a_change_of_members_outlives_its_record(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, LogState, "truncate_after")
    def truncate_after(original: Any, self: LogState, index: int) -> None:
        kept = dict(self._membership)
        original(self, index)
        self._membership = kept


@mutant("C-09")
def a_trim_outruns_the_snapshot_of_the_state(patch: pytest.MonkeyPatch) -> None:
    def trim(self: Trimmer) -> None:
        until_index = self._state.trim_index
        if until_index > self._trimmed_index:
            self._trimmed_index = until_index
            ticket = self._log.start_trim(until_index)
            if ticket is not None:
                self._disk.submit(ticket.run, self._ended)

    patch.setattr(Trimmer, "trim", trim)


@mutant("D-12", lambda _: test_dispatcher.test_what_was_trimmed_while_the_peer_was_asked_is_compared_anew())
def a_peer_is_appended_to_from_what_is_trimmed(patch: pytest.MonkeyPatch) -> None:
    def enter(self: Dispatcher, index: int) -> None:
        self._change(DispatcherState.APPEND)
        self._compare_index = NO_INDEX
        self._quorum.set_watermark(self.peer, index)
        self._acked_offset = self._log.end_offset
        self._write_index = index + 1
        self._throttled = False

    patch.setattr(Dispatcher, "_enter_append", enter)


@mutant(
    "D-28", test_driver_commands.test_a_log_that_begins_after_the_past_gets_its_state_and_does_not_lead_before
)
def an_emptied_replica_leads_without_the_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateTransfer, "is_whole", property(lambda self: True))


@mutant("D-12", lambda _: test_log_state.test_a_trim_goes_with_its_record())
def a_trim_outlives_the_truncation_of_its_record(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, LogState, "truncate_after")
    def truncate_after(original: Any, self: LogState, index: int) -> None:
        trims = deque(self._trims)
        original(self, index)
        self._trims = trims


@mutant("D-12", test_driver_commands.test_the_state_that_is_sent_holds_what_is_committed_alone)
def the_state_from_the_leader_keeps_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Restoring, "finish")
    def finish(original: Any, self: Restoring[LogState]) -> LogState:
        state: LogState = original(self)
        state.truncate_after = lambda index: None  # type: ignore[method-assign]
        return state


@mutant("R-07", lambda _: test_log_state.test_readers_get_the_cursor_that_is_committed())
def readers_get_cursors_that_may_be_undone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogState, "committed_cursor", lambda self, name: self.cursors.get(name))


def _led(test: Callable[[test_confirmed_answers.Led], None]) -> Killer:
    return lambda folder: test(test_confirmed_answers.Led(folder))


@mutant("R-08", _led(test_confirmed_answers.test_a_refusal_by_what_is_undone_is_never_given))
def a_refusal_tells_of_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        ConfirmedAnswer, "pending", lambda self: PendingAppend(0, 0, Acks.LEADER, self.deadline_ms, self)
    )


@mutant("R-08", _led(test_confirmed_answers.test_a_refusal_waits_until_the_lead_is_confirmed))
def a_deposed_leader_refuses_by_its_own_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RaftCore, "read_index", lambda self, token, now_ms: token(self.committed_index))


@mutant("D-29", test_confirmed_answers.test_nothing_of_a_stream_is_stored_after_what_the_disk_refused)
def a_stream_goes_on_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, OpenAppends, "_answer")
    def answer(original: Any, self: OpenAppends, append: Any, result: Any) -> None:
        stream = append.request.stream
        broken = stream is not None and stream.broken
        original(self, append, result)
        if stream is not None:
            stream.broken = broken
