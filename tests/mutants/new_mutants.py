"""Twenty bugs that were chosen by reading the product code alone, before any test was looked at.

A test that was there killed fourteen of them. The tests of the other six are in test_planted_bugs.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.errors import SequenceGap
from app.log.producers import ProducerTable
from app.node.opening import open_replica
from app.node.replica import checkpoints
from app.node.replica.append_queue import AppendQueue
from app.node.replica.checkpoints import Checkpointer
from app.node.replica.state_transfer import StateTransfer
from app.raft import core
from app.raft.ballot import Ballot
from app.raft.dispatcher import Dispatcher
from app.raft.entry_handler import EntryHandler
from app.raft.quorum import QuorumChecker
from app.raft.reads import FollowerReads, LeaderReads
from storage.log.commitlog import Commitlog
from storage.log.recovery import Recovery
from tests.mutants.edited import plant
from tests.mutants.mutants import Killer
from tests.unit.log import test_state as test_log_state
from tests.unit.node.replica import test_driver
from tests.unit.raft import test_dispatcher, test_entry_handler, test_planted_bugs, test_quorum, test_reads
from tests.unit.storage import test_commitlog, test_recovery


def _without_gap(test: Callable[[], None]) -> Killer:
    """Take the refusal of a sequence that the test wants to be accepted for its failure."""

    def kill(_folder: Path) -> None:
        try:
            test()
        except SequenceGap as gap:
            raise AssertionError(str(gap)) from gap

    return kill


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
    lambda _: test_dispatcher.test_truncate_is_repeated_until_the_peers_end_is_the_truncate_index(),
)
plant(
    "a_comparison_goes_into_a_batch",
    "D-13",
    (Dispatcher, "_further_back", "self._log.floor_batch_end(index)", "index"),
    lambda _: test_dispatcher.test_case_5_within_a_batch_of_the_leader_goes_on_at_the_batch_before(),
)
plant(
    "held_batches_are_not_compared",
    "D-17",
    (EntryHandler, "_append", "fits = all(log.holds(batch) for batch in held)", "fits = True"),
    lambda _: test_entry_handler.test_what_is_held_already_succeeds_when_equal_and_is_inconsistent_when_not(),
)
plant(
    "pushes_to_an_earlier_incarnation_are_taken",
    "D-14",
    (EntryHandler, "handle", "request.life != self._life", "False"),
    lambda _: test_entry_handler.test_a_truncate_meant_for_an_earlier_life_takes_nothing_away(),
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
    lambda _: test_entry_handler.test_a_commit_that_names_more_than_is_held_is_inconsistent(),
)
plant(
    "votes_of_another_term_count",
    "R-03",
    (Ballot, "count", "answer.term == self._term", "True"),
    lambda _: test_planted_bugs.test_a_grant_of_an_earlier_pre_vote_does_not_count(),
)
plant(
    "a_vote_although_the_term_has_a_leader",
    "R-01",
    (core, "grants", " and member.leader_id is None", ""),
    lambda _: test_planted_bugs.test_a_member_that_follows_a_leader_gives_no_vote_in_its_term(),
)
plant(
    "a_refused_batch_leaves_its_first_append",
    "R-11",
    (
        QuorumChecker,
        "drop",
        "waiting[-1].first_index >= first_index",
        "waiting[-1].first_index > first_index",
    ),
    lambda _: test_quorum.test_appends_that_found_no_room_on_disk_are_refused_and_leave_nothing(),
)
plant(
    "a_late_read_index_answers_newer_readers",
    "R-08",
    (FollowerReads, "answered", " or answer.id != self._id", ""),
    lambda _: test_reads.test_an_answer_to_an_earlier_life_is_not_taken(),
)
plant(
    "reads_share_the_round_under_way",
    "R-08",
    (LeaderReads, "begin_round", "(self._round, self._member", "(self._round - 1, self._member"),
    lambda _: test_reads.test_a_read_index_is_given_only_after_a_quorum_has_confirmed_the_leader(),
)
plant(
    "a_key_twice_in_a_turn_is_two_appends",
    "D-28",
    (AppendQueue, "enter", "self._batch.decides_about(request) or ", ""),
    lambda folder: test_driver.test_a_repeat_in_the_same_turn_waits_for_the_first(test_driver.Node(folder)),
)
plant(
    "a_snapshot_outlives_the_truncation_of_what_it_holds",
    "D-20",
    (Checkpointer, "cut", "self._taken = None", "pass"),
    lambda _: test_planted_bugs.test_a_snapshot_that_is_not_saved_yet_goes_with_a_truncation(),
)
plant(
    "a_snapshot_is_believed_whatever_the_log_holds",
    "D-20",
    (
        open_replica,
        "load_state",
        "if not held or log.batch_at(index).header.chain != saved.chain:",
        "if not held:",
    ),
    lambda _: test_planted_bugs.test_a_snapshot_of_a_replaced_batch_goes_back_to_what_was_committed(
        checkpoints.BIN_MAX, pytest.MonkeyPatch()
    ),
)
plant(
    "a_new_epoch_of_a_producer_keeps_the_old_sequences",
    "D-28",
    (ProducerTable, "add", "if before is not None and _epoch_of(before) == epoch:", "if before is not None:"),
    _without_gap(test_log_state.test_a_newer_epoch_fences_the_older_and_counts_anew),
)
plant(
    "a_truncation_leaves_the_durable_index",
    "R-11",
    (Commitlog, "_cut_to", "self._durable_index = self.end_index", "pass"),
    lambda _: test_commitlog.test_a_sync_that_began_before_a_cut_proves_nothing(),
)
plant(
    "recovery_believes_a_batch_of_another_chain",
    "R-06",
    (Recovery, "_problem", "None if follows_chain(batch, last.header.chain) else", "None if True else"),
    lambda _: test_recovery.test_a_batch_that_does_not_follow_ends_the_log(),
)
plant(
    "a_state_from_before_the_log_begins_is_taken",
    "D-12",
    (StateTransfer, "take", "if taken.applied_index < self._log.first_index - 1:", "if False:"),
    test_planted_bugs.test_a_state_from_before_the_log_begins_is_asked_for_again,
)
