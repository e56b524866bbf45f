"""Planted bugs in replication: what a leader acknowledges and commits, which records a log keeps."""

from typing import Any

import msgspec
import pytest

from app.errors import QuorumTimeout, TermChanged
from app.errors.base import Outcome
from app.log.contract import NO_INDEX, Durability
from app.log.pending_appends import PendingAppends
from app.raft import quorum as quorum_module
from app.raft.core import RaftCore
from app.raft.dispatcher import Dispatcher, DispatcherState
from app.raft.entry_handler import EntryHandler
from app.raft.messages import PushAnswer, PushCode, PushRequest, PushType
from app.raft.quorum import QuorumChecker, quorum_index
from app.raft.state import MemberState
from tests.mutants.planting import mutant, plant, planted
from tests.unit.raft import (
    test_comparison,
    test_dispatcher,
    test_doubt,
    test_durable_answers,
    test_entry_handler,
    test_planted_bugs,
    test_quorum,
)


@mutant("R-05", lambda _: test_quorum.test_records_of_older_terms_are_committed_only_by_one_of_the_own_term())
def commit_by_counting_records_of_older_terms(patch: pytest.MonkeyPatch) -> None:
    def check(self: QuorumChecker) -> None:
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
    lambda _: (
        test_durable_answers.test_compare_and_truncate_are_answered_only_when_the_named_end_is_durable()
    ),
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
    lambda _: test_durable_answers.test_a_late_truncate_of_an_earlier_session_takes_nothing_away(),
)
def a_late_truncate_is_obeyed(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, EntryHandler, "handle")
    def handle(original: Any, self: EntryHandler, request: PushRequest, now_ms: int) -> None:
        self._session = min(self._session, request.session)
        original(self, request, now_ms)


@mutant(
    "D-14",
    lambda _: (
        test_durable_answers.test_a_late_truncate_is_known_for_one_also_after_the_leader_was_lost_and_found()
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


@mutant("D-23")
def an_append_that_lost_its_leader_is_said_not_to_be_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TermChanged, "outcome", Outcome.NOT_APPLIED)


@mutant("D-26")
def an_append_that_waited_too_long_is_said_not_to_be_applied(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuorumTimeout, "outcome", Outcome.NOT_APPLIED)


@mutant("D-24", lambda _: test_doubt.test_the_acknowledgement_of_an_unsound_voter_does_not_count())
def acknowledgements_of_unsound_voters_count(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuorumChecker, "set_sound", lambda _self, _peer, _sound: None)


@mutant("D-12", lambda _: test_comparison.test_records_trimmed_while_the_peer_was_asked_are_compared_again())
def a_peer_is_appended_to_from_what_is_trimmed(patch: pytest.MonkeyPatch) -> None:
    def enter(self: Dispatcher, index: int) -> None:
        self._change(DispatcherState.APPEND)
        self._compare_index = NO_INDEX
        self._quorum.set_watermark(self.peer, index)
        self._acked_offset = self._log.end_offset
        self._write_index = index + 1
        self._throttled = False

    patch.setattr(Dispatcher, "_enter_append", enter)


plant(
    "a_reset_keeps_the_watermark",
    "D-12",
    (Dispatcher, "_enter_truncate", "self._quorum.set_watermark(self.peer, NO_INDEX)", "pass"),
    lambda _: test_dispatcher.test_a_peer_that_is_reset_counts_for_nothing_until_it_has_answered(),
)
plant(
    "an_ack_past_the_leaders_end_counts",
    "D-10",
    (Dispatcher, "_acknowledged", " and answer.index <= self._log.end_index", ""),
    lambda _: test_dispatcher.test_an_answer_past_the_leaders_end_counts_for_nothing(),
)
plant(
    "a_truncate_is_done_whatever_the_peers_end",
    "D-14",
    (Dispatcher, "_truncated", " and answer.end_index == self._truncate_index", ""),
    lambda _: test_comparison.test_truncate_is_repeated_until_the_peers_end_is_the_truncate_index(),
)
plant(
    "a_comparison_goes_into_a_batch",
    "D-13",
    (Dispatcher, "_further_back", "self._log.floor_batch_end(index)", "index"),
    lambda _: test_comparison.test_case_5_within_a_batch_of_the_leader_continues_at_the_batch_before(),
)
plant(
    "the_rest_of_a_partial_sync_is_not_acknowledged",
    "D-19",
    (EntryHandler, "_acknowledge", "self._owes_ack = index < self.matched_index", "self._owes_ack = False"),
    lambda _: test_durable_answers.test_the_rest_of_a_partial_sync_is_acknowledged_after_the_next_one(),
)
plant(
    "a_repeat_waits_for_all_that_came_later",
    "D-25",
    (
        PendingAppends,
        "join",
        "insort(self._waiting[append.acks], append, key=_last_index)",
        "self._waiting[append.acks].append(append)",
    ),
    lambda _: test_quorum.test_a_repeat_joins_those_that_wait_in_its_place(),
)
plant(
    "held_batches_are_not_compared",
    "D-17",
    (EntryHandler, "_append", "fits = all(log.holds(batch) for batch in held)", "fits = True"),
    lambda _: test_entry_handler.test_records_held_already_succeed_when_equal_and_are_inconsistent_when_not(),
)
plant(
    "pushes_to_an_earlier_incarnation_are_taken",
    "D-14",
    (EntryHandler, "handle", "request.incarnation != self._incarnation", "False"),
    lambda _: test_durable_answers.test_a_truncate_meant_for_an_earlier_incarnation_takes_nothing_away(),
)
plant(
    "what_was_not_written_stays_matched",
    "R-12",
    (EntryHandler, "not_written", "min(self.matched_index, self._log.end_index)", "self.matched_index"),
    lambda _: test_planted_bugs.test_a_truncation_without_room_for_its_batch_takes_back_what_was_matched(),
)
plant(
    "a_commit_matches_what_it_names",
    "D-05",
    (
        EntryHandler,
        "_commit",
        "if request.index != NO_INDEX and not self._agrees",
        "if False and self._agrees",
    ),
    lambda _: test_durable_answers.test_a_commit_that_names_more_than_is_held_is_inconsistent(),
)
plant(
    "a_refused_batch_leaves_its_first_append",
    "R-11",
    (
        PendingAppends,
        "drop",
        "waiting[-1].first_index >= first_index",
        "waiting[-1].first_index > first_index",
    ),
    lambda _: test_quorum.test_appends_that_found_no_room_on_disk_are_refused_and_leave_nothing(),
)
plant(
    "a_stale_answer_to_a_comparison_counts",
    "D-11",
    (Dispatcher, "answer", "answer.session != self.session", "answer.session > self.session"),
    lambda _: test_dispatcher.test_an_answer_to_a_comparison_of_an_earlier_session_counts_for_nothing(
        PushCode.INCONSISTENT_STATE
    ),
)
plant(
    "a_damaged_member_believes_an_index_from_before_the_comparison",
    "R-12",
    (EntryHandler, "handle", "request.type in (PushType.APPEND, PushType.COMMIT) and not", "not"),
    lambda _: test_planted_bugs.test_the_committed_index_before_the_comparison_proves_nothing(),
)
plant(
    "unsound_voters_count_for_acks_of_all",
    "D-25",
    (QuorumChecker, "_release", "self._counted(voter)", "marks[voter]"),
    lambda _: test_quorum.test_an_unsound_voter_does_not_count_for_acks_of_all(),
)
plant(
    "the_last_acknowledged_index_outlives_a_cut",
    "D-19",
    (EntryHandler, "handle", "self._acked_index = NO_INDEX", "pass"),
    lambda _: test_entry_handler.test_after_a_cut_the_same_indexes_are_acknowledged_again(),
)
plant(
    "a_late_push_weakens_the_durability_that_later_ones_ask_for",
    "R-11",
    (EntryHandler, "_take_durability", "request.batches[0].base_index > self._synced_push_index", "True"),
    lambda _: test_durable_answers.test_a_late_push_does_not_weaken_what_later_ones_ask_for(),
)
