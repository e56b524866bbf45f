"""Planted bugs in the metadata of the controllers: registration, SyncStateSets, rebuilt logs, settings."""

from typing import Any

import msgspec
import pytest

from app.controller import complete_copies, elect_master, registration, replica_changes, state_machine
from app.controller import sync_state_set as alter_module
from app.controller.active import controller as active_module
from app.controller.active import copied_folders
from app.controller.active import masters as masters_module
from app.controller.active.controller import ActiveController
from app.controller.commands import AlterSyncStateSet, Reason
from app.controller.events import MasterElected
from app.controller.liveness import Liveness
from app.controller.log_state import MetadataLogState
from app.controller.metadata import Log
from tests.mutants.planting import group_mutant, plant, planted
from tests.simulation.controller.cases import test_rebuilt_controllers
from tests.unit.controller import (
    test_log_state,
    test_logs,
    test_lost_records,
    test_partial_acks,
    test_rebuilt_metadata,
    test_registration,
    test_replica_changes,
    test_settings_at_run_time,
    test_sync_state_set,
)


@group_mutant(
    "C-09",
    lambda _: (
        test_rebuilt_metadata.test_the_newest_of_all_is_not_elected_while_it_lacks_what_a_master_needs()
    ),
    mode="controller",
)
def a_rebuilt_log_gets_a_master_that_cannot_lead(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, elect_master, "_newest_of_all")
    def newest(
        original: Any, log: Log, liveness: Liveness, living: Any, _able: Any, *args: Any, **options: Any
    ) -> list[Any]:
        found: list[Any] = original(log, liveness, living, living, *args, **options)
        return found


@group_mutant(
    "C-09",
    lambda _: (
        test_rebuilt_metadata.test_each_copy_that_equals_the_winner_of_a_rebuilt_log_may_replace_it_alone()
    ),
    mode="controller",
)
def the_acks_of_an_outdated_set_count(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, elect_master, "_elected")
    def elected(original: Any, log: Log, *args: Any, **options: Any) -> MasterElected:
        event: MasterElected = original(log, *args, **options)
        return msgspec.structs.replace(event, former_acks=complete_copies.counted_acks(log))


@group_mutant(
    "C-09",
    lambda _: (
        test_rebuilt_metadata.test_an_empty_copy_vouches_for_nothing_that_its_node_held_before_the_rebuild(
            empty=True
        )
    ),
    mode="controller",
)
def an_empty_copy_vouches_for_a_lost_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "_lost_copies", lambda log, liveness, living: [])


@group_mutant(
    "C-09",
    lambda _: test_replica_changes.test_no_copy_leaves_a_log_whose_last_set_is_not_known(),
    mode="controller",
)
def a_copy_leaves_a_rebuilt_log(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, replica_changes, "may_leave")
    def may_leave(original: Any, log: Log, liveness: Liveness, now_ms: int) -> bool:
        return bool(original(msgspec.structs.replace(log, lost_history=False), liveness, now_ms))


@group_mutant(
    "C-06",
    lambda _: test_sync_state_set.test_a_refusal_names_its_reason_and_changes_nothing(
        {"set_epoch": 0}, Reason.STALE_SET_EPOCH
    ),
    mode="controller",
)
def a_stale_set_epoch_is_accepted(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, alter_module, "alter")
    def alter(original: Any, log: Log, command: AlterSyncStateSet, liveness: Liveness, now_ms: int) -> Any:
        command = msgspec.structs.replace(command, set_epoch=log.set_epoch)
        return original(log, command, liveness, now_ms)


@group_mutant(
    "C-06",
    lambda _: test_sync_state_set.test_a_refusal_names_its_reason_and_changes_nothing(
        {"master_epoch": 0}, Reason.STALE_MASTER_EPOCH
    ),
    mode="controller",
)
def a_stale_master_changes_the_set(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, alter_module, "alter")
    def alter(original: Any, log: Log, command: AlterSyncStateSet, liveness: Liveness, now_ms: int) -> Any:
        command = msgspec.structs.replace(command, master_epoch=log.master_epoch)
        return original(log, command, liveness, now_ms)


@group_mutant(
    "C-06",
    lambda _: test_sync_state_set.test_a_dead_or_unregistered_replica_or_a_learner_does_not_join(),
    mode="controller",
)
def every_copy_may_join_the_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alter_module, "_check_member", lambda log, member, liveness, now_ms: None)


@group_mutant(
    "C-02",
    lambda _: (
        test_logs.test_a_round_that_was_not_stored_is_decided_again_and_its_answers_wait_for_the_commit()
    ),
    mode="controller",
)
def a_controller_answers_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    original = ActiveController.applied
    patch.setattr(ActiveController, "applied", lambda self, index: original(self, 1 << 60))


@group_mutant(
    "C-03",
    lambda _: test_registration.test_an_id_is_registered_by_its_own_copy_alone(),
    mode="controller",
)
def another_copy_registers_with_an_old_id(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, active_module.registration, "register")
    def register(original: Any, log: Log, command: Any, confirmed: Any = None) -> Any:
        known = registration._known(log, command.node)
        code = known[0].check_code if known else command.check_code
        return original(log, msgspec.structs.replace(command, check_code=code), confirmed)


@group_mutant(
    "C-09",
    lambda _: test_log_state.test_a_snapshot_keeps_the_metadata_and_what_is_not_committed_yet(-1),
    mode="controller",
)
def a_snapshot_forgets_what_is_not_committed_yet(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, MetadataLogState, "snapshot")
    def snapshot(original: Any, self: MetadataLogState) -> bytes:
        waiting, self._waiting = self._waiting, type(self._waiting)()
        data = original(self)
        self._waiting = waiting
        return data


@group_mutant(
    "C-03",
    lambda _: test_registration.test_a_copy_that_replaces_another_raises_the_epoch_of_the_set(),
    mode="controller",
)
def replaced_copy_keeps_set_epoch(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, state_machine, "_registered")
    def registered(original: Any, log: Log, event: Any) -> Log:
        return msgspec.structs.replace(original(log, event), set_epoch=log.set_epoch)


@group_mutant(
    "C-03",
    lambda _: test_registration.test_a_late_repeat_of_an_earlier_copy_displaces_no_live_one(),
    mode="controller",
)
def only_the_newest_id_of_a_node_is_known(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, registration, "_known")
    def known(original: Any, log: Log, node: str) -> Any:
        return original(log, node)[:1]


@group_mutant(
    "C-02",
    lambda _: test_logs.test_a_late_repeat_of_a_change_does_not_undo_a_later_one(fail_over=True),
    mode="controller",
)
def the_changes_carried_out_are_forgotten_with_the_active_controller(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, state_machine.Metadata, "snapshot")
    def snapshot(original: Any, self: state_machine.Metadata) -> bytes:
        self._changes.clear()
        return original(self)


@group_mutant(
    "A-11",
    lambda _: test_settings_at_run_time.test_a_lease_that_was_granted_is_not_shortened(),
    mode="controller",
)
def a_changed_lease_counts_for_the_present_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActiveController, "_lease_ms_of", lambda self, name: self.config.lease_ms)


@group_mutant(
    "C-03",
    lambda _: test_lost_records.test_an_older_copy_is_no_member_of_the_former_set_either(),
    mode="controller",
)
def an_older_copy_stays_in_the_former_set(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, registration, "_check_epoch")
    def check_epoch(original: Any, log: Log, command: Any) -> None:
        original(msgspec.structs.replace(log, former_set=()), command)


plant(
    "a_node_leaves_while_its_copy_may_be_elected",
    "C-12",
    (replica_changes, "may_leave", "log.is_opening or ", ""),
    lambda _: test_replica_changes.test_a_leaving_master_gives_its_lease_up_before_another_is_elected(),
    mode="controller",
)


plant(
    "a_rebuilt_log_had_no_unclean_election",
    "A-04",
    (state_machine, "_rebuilt", "master_epoch - 1 if is_lost else log.unclean_epoch", "log.unclean_epoch"),
    lambda _: (
        test_rebuilt_controllers.test_an_unclean_election_that_no_copy_of_the_metadata_has_leaves_no_copy_behind()
    ),
    mode="controller",
)


plant(
    "a_rebuilt_log_forgets_the_set_before_an_epoch_that_is_not_open",
    "C-09",
    (state_machine, "_rebuilt", "event.keeps_former and not is_lost", "False"),
    lambda _: (
        test_rebuilt_metadata.test_rebuilt_metadata_elect_a_former_member_when_the_winner_of_the_last_election_is_lost()
    ),
    mode="controller",
)


plant(
    "metadata_record_what_has_not_moved",
    "C-09",
    (
        masters_module.Masters,
        "_is_record_due",
        "is_due and bool(self._liveness.changes_of_confirmed(log))",
        "is_due",
    ),
    lambda _: (
        test_lost_records.test_the_metadata_record_what_copies_have_confirmed_only_when_that_has_moved()
    ),
    mode="controller",
)


plant(
    "a_kept_copy_of_a_folder_proves_what_it_has_acknowledged",
    "C-03",
    (complete_copies, "_proving", "if len(sure) == len(existing):", "if True:"),
    lambda _: test_lost_records.test_a_copied_folder_is_elected_only_if_no_original_can_hold_more(0),
    mode="controller",
)


plant(
    "a_copied_folder_is_elected_beside_a_lost_member",
    "C-12",
    (complete_copies, "_proving", "(existing, len(members))", "(existing, len(existing))"),
    lambda _: test_partial_acks.test_no_copied_folder_is_elected_by_itself_beside_a_lost_member((), {}),
    mode="controller",
)


plant(
    "an_unclean_election_beside_a_lost_member_waits_for_no_other",
    "C-05",
    (elect_master, "_is_any_starting", "if is_new or liveness", "if liveness"),
    lambda _: (
        test_partial_acks.test_an_unclean_election_beside_a_lost_member_waits_for_those_that_had_no_time_to_be_heard()
    ),
    mode="controller",
)


plant(
    "a_set_counts_that_was_requested_before_a_copied_folder_was_registered",
    "C-06",
    (state_machine, "_registered", "event.is_copy or bool(gone)", "bool(gone)"),
    lambda _: (
        test_lost_records.test_no_set_that_was_requested_before_a_copied_folder_was_registered_is_accepted_later()
    ),
    mode="controller",
)


plant(
    "a_copied_folder_leaves_a_set_that_keeps_another_lost_copy",
    "C-12",
    (copied_folders, "is_replaced", "all(log.is_current(member) for member in log.sync_state_set)", "True"),
    lambda _: (
        test_lost_records.test_copied_folders_leave_a_set_that_counts_some_of_its_members_one_after_the_other()
    ),
    mode="controller",
)


plant(
    "a_copied_folder_stays_a_member_while_a_new_master_opens",
    "C-03",
    (copied_folders, "is_replaced", "if master.id in log.copied and not log", "if log"),
    lambda _: test_lost_records.test_a_copied_folder_waits_while_a_new_master_opens_its_epoch(),
    mode="controller",
)


plant(
    "a_copied_folder_stays_a_member_while_another_one_opens",
    "C-03",
    (copied_folders, "is_replaced", " and not log.is_opening", ""),
    lambda _: test_partial_acks.test_a_copied_folder_waits_also_while_another_one_opens_its_epoch(),
    mode="controller",
)


plant(
    "an_unclean_election_waits_without_limit_for_members_that_start",
    "C-05",
    (Liveness, "is_registering", "and now_ms - newest_ms < self.config.registering_timeout_ms", ""),
    lambda _: test_lost_records.test_an_unclean_election_waits_a_limited_time_for_members_that_register_none(
        True
    ),
    mode="controller",
)


plant(
    "a_master_that_hears_nothing_alters_the_set",
    "C-06",
    (alter_module, "alter", "if log.master_node is not None and not liveness", "if False and not liveness"),
    lambda _: (
        test_sync_state_set.test_a_master_that_receives_no_answers_does_not_make_itself_the_only_member()
    ),
    mode="controller",
)
