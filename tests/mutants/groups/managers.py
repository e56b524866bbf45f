"""Planted bugs in a node's replica managers: between the controllers and the core of a log."""

from typing import Any

import pytest

from app.controller.commands import StepDown
from app.controller.metadata import Log
from app.controller.replicas_manager import Action, ControllerRequest, ReplicasManager, SendToCore
from app.controller.state_machine import Metadata
from app.ha.roles import HaView, KnownReplica, Lease, MasterRole, SlaveRole
from app.node.metadata.replica_identity import IdentityFile
from tests.mutants.planting import group_mutant, plant, planted
from tests.simulation.controller.cases import test_power_failure
from tests.unit.controller import (
    test_copies_of_a_node,
    test_lost_records,
    test_replicas_manager,
)
from tests.unit.controller.elections import test_elections_under_faults


@group_mutant(
    "C-10",
    lambda _: test_replicas_manager.test_a_lease_counts_for_the_epoch_that_it_was_granted_for(),
    mode="controller",
)
def a_lease_counts_for_any_epoch(patch: pytest.MonkeyPatch) -> None:
    def send_lease(self: ReplicasManager, log: Log, actions: list[Any], durable_index: int) -> None:
        if self._lease is not None:
            (_, until_ms), self._lease = self._lease, None
            actions.append(SendToCore(Lease(until_ms)))

    patch.setattr(ReplicasManager, "_send_lease", send_lease)


@group_mutant(
    "A-11",
    lambda _: test_replicas_manager.test_a_lease_of_a_deleted_log_counts_for_no_later_log_of_its_name(
        registered=False
    ),
    mode="controller",
)
def a_lease_from_before_the_registration_counts(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReplicasManager, "heartbeat_answered")
    def heartbeat_answered(original: Any, self: ReplicasManager, *args: Any) -> None:
        known, self._registered = self._registered, True
        original(self, *args)
        self._registered = known


@group_mutant(
    "A-11",
    lambda _: test_replicas_manager.test_a_mastership_is_given_up_before_the_controller_hears_of_it("leaves"),
    mode="controller",
)
def a_mastership_is_given_up_after_the_controller_has_heard(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReplicasManager, "step")
    def step(
        original: Any,
        self: ReplicasManager,
        metadata: Metadata,
        view: HaView,
        now_ms: int,
        durable_index: int,
    ) -> list[Action]:
        actions = original(self, metadata, view, now_ms, durable_index)
        gives_up = any(
            isinstance(each, ControllerRequest) and isinstance(each.command, StepDown) for each in actions
        )
        return actions[::-1] if gives_up else actions


plant(
    "a_master_takes_a_set_that_is_not_durable",
    "C-12",
    (ReplicasManager, "_send_role", "if is_new_set and durable_index < self._known_set[1]:", "if False:"),
    lambda _: test_replicas_manager.test_a_master_takes_a_set_only_once_it_is_durable_here(),
    mode="controller",
)


plant(
    "a_master_gets_a_lease_before_the_opening_of_its_epoch_is_durable",
    "C-09",
    (ReplicasManager, "_send_lease", "not log.is_opening and durable_index >=", "True or durable_index >="),
    lambda _: (
        test_replicas_manager.test_a_master_gets_a_lease_only_once_the_opening_of_its_epoch_is_durable_here()
    ),
    mode="controller",
)


plant(
    "a_need_of_the_epoch_before_gives_the_new_one_up",
    "A-11",
    (
        ReplicasManager,
        "_ask_for_more",
        "cannot = view.needs_election and view.epoch == log.master_epoch",
        "cannot = view.needs_election",
    ),
    lambda _: (
        test_replicas_manager.test_a_core_that_has_not_heard_of_its_new_epoch_is_not_taken_to_have_given_it_up()
    ),
    mode="controller",
)


@group_mutant(
    "C-03",
    lambda _: (
        test_copies_of_a_node.test_a_copy_follows_no_master_once_the_metadata_name_a_later_copy_of_its_node()
    ),
    mode="controller",
)
def a_copy_follows_under_the_name_of_an_earlier_one(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReplicasManager, "_role_of")
    def _role_of(original: Any, self: ReplicasManager, log: Log) -> MasterRole | SlaveRole:
        role = original(self, log)
        if log.is_current(self.replica_id):
            return role
        replicas = tuple(KnownReplica(each.id, each.node, each.address or "") for each in log.replicas)
        return SlaveRole(log.master, log.master_epoch, replicas, log.unclean_epoch, log.sync_state_set)


plant(
    "a_copy_takes_up_a_role_from_metadata_before_its_registration",
    "A-01",
    (
        ReplicasManager,
        "step",
        "if self._registered and metadata.applied_index >= self._registered_index:",
        "if self._registered:",
    ),
    lambda _: (
        test_copies_of_a_node.test_an_older_copy_of_a_folder_takes_up_no_epoch_that_another_has_followed()
    ),
    mode="controller",
)


plant(
    "a_copy_opens_the_epoch_of_the_incarnation_before",
    "A-01",
    (ReplicasManager, "answered", "self._given_up_epoch = answer.value or 0", "pass"),
    lambda _: (
        test_copies_of_a_node.test_a_copy_opens_no_epoch_of_which_it_was_master_before_its_registration()
    ),
    mode="controller",
)


@group_mutant(
    "C-03",
    lambda _: test_power_failure.test_a_master_that_lost_its_unsynced_end_is_not_elected(0),
    mode="controller",
)
def a_copy_keeps_its_identity_over_a_power_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdentityFile, "forget", lambda self: None)


plant(
    "a_mastership_is_given_up_while_the_core_still_acts",
    "C-12",
    (
        ReplicasManager,
        "_step_down",
        "if view.role is Role.MASTER and view.epoch == master_epoch:",
        "if False:",
    ),
    lambda _: (
        test_copies_of_a_node.test_the_controllers_hear_of_a_mastership_given_up_when_the_core_acts_no_more_and_where_it_ends()
    ),
    mode="controller",
)


plant(
    "a_master_that_has_used_a_lease_reports_that_it_has_not",
    "A-11",
    (ReplicasManager, "_is_unused", "self._leased_epoch != master_epoch", "True"),
    lambda _: (
        test_elections_under_faults.test_a_master_gives_up_the_epoch_in_which_its_disk_lets_it_use_no_lease(
            durable=True, others=True
        )
    ),
    mode="controller",
)


@group_mutant(
    "C-12",
    lambda _: (
        test_copies_of_a_node.test_a_process_that_was_not_master_in_the_epoch_does_not_report_what_was_acknowledged()
    ),
    mode="controller",
)
def a_restarted_master_says_what_it_acknowledged(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReplicasManager, "_step_down")
    def _step_down(
        original: Any, self: ReplicasManager, master_epoch: int, view: Any, actions: list[Action]
    ) -> None:
        self._acted_epoch = master_epoch
        original(self, master_epoch, view, actions)


plant(
    "a_copied_folder_is_noted_no_more_before_the_metadata_here_have_it",
    "C-09",
    (ReplicasManager, "_note_registration", " and durable_index >= self._registered_index", ""),
    lambda _: test_lost_records.test_a_copied_folder_is_noted_until_its_registration_is_durable_here(),
    mode="controller",
)
