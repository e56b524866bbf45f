"""Planted bugs in the state of a log, its files, snapshots and trims."""

import contextlib
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from app.controller.metadata import Log
from app.errors import SequenceGap
from app.log import state as state_module
from app.log.contract import NO_INDEX
from app.log.producers import ProducerTable
from app.log.restoring import Restoring
from app.log.schemas import LogSchemas
from app.log.state import LogState
from app.node.metadata.logs import MetadataLogs
from app.node.opening import open_replica
from app.node.replica import append_queue
from app.node.replica.append_queue import AppendQueue
from app.node.replica.open_appends import OpenAppends
from app.node.replica.ready_executor import ReadyExecutor
from app.node.replica.state_keeper import StateKeeper
from app.node.replica.weaker_durability import WeakerDurability
from app.node.state import checkpoints
from app.node.state.checkpoints import Checkpointer, LoadedState
from app.node.state.state_transfer import StateTransfer
from app.node.state.trimming import Trimmer
from app.raft import member as member_module
from storage.care import survey as survey_module
from storage.errors import CorruptFile, SyncFailed
from storage.log.commitlog import Commitlog, SyncTicket
from storage.log.log_folder import LogFolder
from storage.log.recovery import Recovery
from tests.mutants.planting import Killer, mutant, plant, planted
from tests.unit.log import test_state as test_log_state
from tests.unit.log import test_state_snapshots
from tests.unit.node.metadata import test_logs
from tests.unit.node.replica import (
    test_confirmed_answers,
    test_driver,
    test_driver_commands,
    test_driver_durability,
    test_driver_endings,
    test_driver_state_transfer,
    test_syncing,
)
from tests.unit.node.state import test_state_transfer, test_trimming
from tests.unit.raft import test_opening as test_raft_opening
from tests.unit.raft import (
    test_planted_bugs,
)
from tests.unit.storage import test_commitlog, test_damage, test_recovery


@mutant("D-28")
def the_key_table_is_lost_at_a_restart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(open_replica, "load_state", lambda *_given, **_options: LoadedState(LogState(), NO_INDEX))


@mutant("D-28", test_driver.test_a_truncation_takes_back_the_keys_of_removed_records)
def the_key_table_keeps_what_was_truncated(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogState, "truncate_after", lambda self, index: None)


@mutant("D-20", test_driver.test_the_checkpoint_never_names_what_is_not_durable_here)
def the_checkpoint_names_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoints, "min", lambda committed, durable: committed, raising=False)


@mutant("D-28")
def a_producers_sequences_are_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogState, "check_producer", lambda self, id, epoch, sequence, allow_gap=False: None)


@mutant(
    "D-28",
    lambda folder: test_driver.test_a_fence_comes_before_the_other_conditions(test_driver.Node(folder)),
)
def the_fence_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, append_queue, "check_conditions")
    def check(original: Any, state: LogState, request: Any, **options: int) -> None:
        original(LogState(), request, **options)


@mutant("R-11", lambda _: test_commitlog.test_only_what_was_synced_is_durable())
def a_failed_sync_passes_for_a_good_one(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SyncTicket, "run")
    def run(original: Any, self: SyncTicket) -> None:
        with contextlib.suppress(SyncFailed):
            original(self)


@mutant(
    "R-11",
    lambda _: test_recovery.test_records_of_a_failed_sync_are_written_again_before_they_count_as_durable(),
)
def what_recovery_scanned_is_not_written_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recovery, "_rewrite", lambda self, segment: None)


@mutant(
    "D-20", lambda folder: test_raft_opening.test_a_reset_survives_a_crash_before_the_next_checkpoint(folder)
)
def a_restart_believes_the_checkpoint_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(member_module, "committed_at_open", lambda log, index: min(index, log.end_index))


@mutant(
    "D-28",
    test_driver_state_transfer.test_a_log_that_begins_after_the_past_gets_its_state_and_does_not_lead_before,
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


@mutant("D-12", test_driver_state_transfer.test_the_state_that_is_sent_holds_what_is_committed_alone)
def the_state_from_the_leader_keeps_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Restoring, "finish")
    def finish(original: Any, self: Restoring[LogState]) -> LogState:
        state: LogState = original(self)
        state.truncate_after = lambda index: None  # type: ignore[method-assign]
        return state


@mutant("D-29", test_confirmed_answers.test_nothing_of_a_stream_is_stored_after_what_the_disk_refused)
def a_stream_goes_on_after_a_failure(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, OpenAppends, "_answer")
    def answer(original: Any, self: OpenAppends, append: Any, result: Any) -> None:
        stream = append.request.stream
        broken = stream is not None and stream.broken
        original(self, append, result)
        if stream is not None:
            stream.broken = broken


def _without(refusal: type[Exception], test: Killer) -> Killer:
    """Take a refusal of what the test wants to be accepted for its failure."""

    def kill(folder: Path) -> None:
        try:
            test(folder)
        except refusal as error:
            raise AssertionError(str(error)) from error

    return kill


plant(
    "a_trim_outruns_the_snapshot_of_the_state",
    "C-09",
    (Trimmer, "trim", "if safe_index < until_index - 1:", "if False:"),
    _without(CorruptFile, test_driver_commands.test_nothing_is_trimmed_before_the_state_is_safe),
)
plant(
    "a_key_twice_in_a_turn_is_two_appends",
    "D-28",
    (AppendQueue, "enter", "self._batch.decides_about(request) or ", ""),
    lambda folder: test_driver.test_a_repeat_in_the_same_turn_waits_for_the_first(test_driver.Node(folder)),
)
plant(
    "what_is_refused_at_its_deadline_stays_counted",
    "D-29",
    (AppendQueue, "tick", "self._uncount(append)", "pass"),
    test_driver_endings.test_requests_that_were_refused_at_their_deadline_leave_room_for_others,
)
plant(
    "a_snapshot_outlives_the_truncation_of_what_it_holds",
    "D-20",
    (Checkpointer, "log_truncated", "self._taken = None", "pass"),
    lambda _: test_planted_bugs.test_a_snapshot_that_is_not_saved_yet_goes_with_a_truncation(),
)
plant(
    "a_snapshot_is_believed_whatever_the_log_holds",
    "D-20",
    (
        open_replica,
        "load_state",
        "if not held or log.batch_at(index).header.chain != chain:",
        "if not held:",
    ),
    lambda _: test_planted_bugs.test_a_snapshot_of_a_replaced_batch_goes_back_to_what_was_committed(
        checkpoints.BIN_MAX, pytest.MonkeyPatch()
    ),
)
plant(
    "a_new_epoch_of_a_producer_keeps_the_old_sequences",
    "D-28",
    (ProducerTable, "add", "_epoch_of(before) == epoch and ", ""),
    _without(SequenceGap, lambda _: test_log_state.test_a_newer_epoch_fences_the_older_and_counts_again()),
)
plant(
    "a_forgotten_producer_keeps_its_old_sequences",
    "D-28",
    (ProducerTable, "add", " and _last_sequence_of(before) < sequence", ""),
    lambda _: test_log_state.test_a_producer_whose_leader_had_forgotten_it_counts_again(2),
)
plant(
    "a_truncation_leaves_the_durable_index",
    "R-11",
    (Commitlog, "_truncate_to", "self.durable_index = self.end_index", "pass"),
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
plant(
    "pieces_of_two_snapshots_are_a_state",
    "D-28",
    (StateTransfer, "take", "if self._crc != chunk.crc:", "if False:"),
    test_state_transfer.test_pieces_with_another_checksum_are_not_a_state,
)
plant(
    "a_part_of_the_state_is_sent_for_the_whole",
    "D-28",
    (StateTransfer, "serve", " and self.is_whole", ""),
    test_state_transfer.test_a_replica_without_the_whole_state_sends_none,
)
plant(
    "a_state_is_completed_with_truncated_records",
    "D-28",
    (StateTransfer, "log_truncated", "self._taken = None", "pass"),
    test_state_transfer.test_a_truncation_takes_its_records_out_of_a_state_that_is_being_completed,
)
plant(
    "a_replica_that_was_reset_may_lead_without_the_state",
    "D-12",
    (ReadyExecutor, "_finish", "self._state.judge_electable()", "pass"),
    test_state_transfer.test_a_replica_that_is_reset_may_not_lead_before_it_has_the_state,
)
plant(
    "a_snapshot_of_an_earlier_epoch_is_sent_on",
    "C-05",
    (StateTransfer, "epoch_began", "self._served.clear()", "pass"),
    test_state_transfer.test_no_snapshot_of_an_earlier_epoch_is_sent_on,
)
plant(
    "an_uncommitted_trim_outlives_its_record",
    "R-07",
    (LogState, "truncate_after", "self._trims.pop()", "break"),
    lambda _: test_log_state.test_a_trim_goes_with_its_record(),
)
plant(
    "the_state_that_is_sent_keeps_uncommitted_claims",
    "D-28",
    (StateTransfer, "take", "taken.truncate_after(taken.committed_index)", "pass"),
    test_driver_state_transfer.test_the_state_that_is_sent_holds_what_is_committed_alone,
)
plant(
    "a_reset_keeps_uncommitted_keys",
    "D-12",
    (
        StateKeeper,
        "truncated",
        "max(kept_index, self.state.committed_index)",
        "self.state.applied_index if isinstance(truncate, Reset) else kept_index",
    ),
    test_planted_bugs.test_a_reset_takes_back_keys_that_were_not_committed,
)
plant(
    "a_truncated_schema_stays",
    "R-06",
    (LogSchemas, "truncate_after", "self._versions[-1].index > index", "False"),
    lambda _: test_log_state.test_a_schema_goes_with_its_record_and_readers_get_what_they_may_see(),
)
plant(
    "a_snapshot_lacks_the_schemas",
    "R-07",
    (LogState, "capture", "schemas=list(self._schemas.versions)", "schemas=[]"),
    lambda _: test_log_state.test_a_schema_goes_with_its_record_and_readers_get_what_they_may_see(),
)
plant(
    "the_durable_point_moves_before_the_epochs",
    "A-01",
    (
        LogFolder,
        "sync",
        """self.write_epochs(epochs)
            if mark is not None and mark[1] > self._manifest.durable_offset:  # a trim may have moved it
                self._save(replace(self._manifest, durable_index=mark[0], durable_offset=mark[1]))
""",
        """if mark is not None and mark[1] > self._manifest.durable_offset:
                self._save(replace(self._manifest, durable_index=mark[0], durable_offset=mark[1]))
            self.write_epochs(epochs)
""",
    ),
    lambda _: test_recovery.test_a_moved_mark_never_leaves_an_epoch_behind(),
)
plant(
    "recovery_leaves_segments_behind_a_gap",
    "R-06",
    (Recovery, "_walk_tail", "torn or bool(later)", "torn"),
    lambda _: test_recovery.test_a_segment_behind_a_gap_is_removed(),
)
plant(
    "a_survey_reads_a_small_log_from_the_cache",
    "R-11",
    (survey_module, "_walk_segment", "- offset) > 0:", "- offset) > 4_000:"),
    lambda _: test_damage.test_a_survey_reads_also_a_small_log_from_the_disk(),
)
plant(
    "a_snapshot_outlives_the_truncation_of_its_records",
    "D-20",
    (StateKeeper, "truncated", "self.checkpointer.log_truncated()", "pass"),
    lambda folder: (
        test_state_transfer.test_a_snapshot_that_waits_for_the_disk_goes_with_its_truncated_records(folder)
    ),
)
plant(
    "unsynced_records_are_acknowledged_before_the_note",
    "R-11",
    (WeakerDurability, "_begin", "self._is_noting, self._retry_ms = True, None", "self._is_noted = True"),
    lambda _: test_syncing.test_unsynced_records_are_acknowledged_only_after_the_note_is_durable(),
)
plant(
    "a_reset_keeps_what_was_settled",
    "R-07",
    (Commitlog, "reset", "self._settled_index = NO_INDEX", "pass"),
    lambda _: test_commitlog.test_a_log_that_was_reset_has_settled_nothing(),
)
plant(
    "a_key_is_twice_in_a_snapshot_of_a_partly_committed_batch",
    "D-28",
    (state_module, "pieces_of", "first_index - 1)", "first_index)"),
    lambda _: test_state_snapshots.test_a_snapshot_of_a_batch_that_is_committed_in_part_holds_each_key_once(),
)
plant(
    "a_trim_waits_for_a_snapshot_that_needs_its_space",
    "D-20",
    (Trimmer, "trim", "until_index = safe_index + 1", "return"),
    lambda _: test_trimming.test_a_trim_removes_all_that_the_saved_state_covers_before_the_next_snapshot(),
)
plant(
    "a_snapshot_forgets_uncommitted_trims",
    "D-20",
    (LogState, "take_head", "deque(head.trims)", "deque()"),
    lambda _: (
        test_state_snapshots.test_a_trim_that_was_not_committed_at_the_snapshot_is_carried_out_after_it()
    ),
)
plant(
    "segments_are_sealed_by_the_durable_point_before_a_truncation",
    "R-11",
    (Commitlog, "_truncate_to", "min(self._marked_offset, offset)", "self._marked_offset"),
    lambda _: test_commitlog.test_a_segment_written_during_a_sync_is_not_durable_after_a_truncation(),
)
plant(
    "an_append_that_was_pushed_with_replicated_is_reported_as_fsync",
    "R-11",
    (OpenAppends, "_durability_at", "index <= self._unsynced_index", "False"),
    test_driver_durability.test_an_append_that_peers_may_have_acknowledged_before_their_sync_is_not_reported_as_fsync,
)


@mutant("R-07", lambda _: test_logs.test_metadata_of_an_earlier_time_neither_begin_nor_replace_a_log())
def metadata_of_a_checkpoint_replace_later_copies(patch: pytest.MonkeyPatch) -> None:
    async def waits(self: MetadataLogs, log: Log, *, is_replica: bool) -> bool:
        return False

    patch.setattr(MetadataLogs, "_waits", waits)
