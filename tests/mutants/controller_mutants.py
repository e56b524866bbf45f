"""Planted bugs in controller mode and classic HA (C, A, H), each noticed by a test named for it.

`make mutants` also asks the simulator of the mode (tests/simulation/controller).
"""

from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from app.controller import complete_copies, elect_master, registration, state_machine
from app.controller import sync_state_set as alter_module
from app.controller.active import controller as active_module
from app.controller.active.controller import ActiveController
from app.controller.commands import AlterSyncStateSet, Reason, StepDown
from app.controller.events import MasterElected, SyncStateSetChanged
from app.controller.liveness import Liveness
from app.controller.log_state import MetadataLogState
from app.controller.metadata import Log, LogSpec
from app.controller.replicas_manager import Action, ControllerRequest, ReplicasManager, Tell
from app.ha.auto_switch import slave_side
from app.ha.auto_switch.core import AutoSwitchCore
from app.ha.auto_switch.master_side import MasterSide
from app.ha.auto_switch.slave_side import SlaveSide
from app.ha.auto_switch.sync_state_set import SyncStateSet
from app.ha.classic import slave as classic_slave
from app.ha.classic.master import ClassicMasterCore
from app.ha.classic.slave import ClassicSlaveCore
from app.ha.epochs import EpochSpan
from app.ha.roles import HaView, KnownReplica, Lease, MasterRole, SlaveRole
from app.ha.sending import _Cutter
from app.log.contract import NO_INDEX
from app.node.metadata.replica_identity import IdentityFile
from tests.mutants.mutants import Killer, Mutant, Patch, planted
from tests.simulation.classic import group as classic
from tests.simulation.controller import run
from tests.simulation.controller.cases import test_power_failure
from tests.unit.controller import (
    test_electable as test_copies_that_may_lead,
)
from tests.unit.controller import (
    test_elections,
    test_log_state,
    test_logs,
    test_registration,
    test_replicas_manager,
    test_settings_at_run_time,
    test_sync_state_set,
)
from tests.unit.controller import (
    test_partial_acks as test_elections_by_part,
)
from tests.unit.ha.auto_switch import (
    test_electable,
    test_master,
    test_master_acks,
    test_master_set,
    test_replaced_copy,
    test_slave,
)
from tests.unit.ha.auto_switch import (
    test_partial_acks as test_master_partial_acks,
)
from tests.unit.ha.classic import test_classic

GROUP_SEEDS, GROUP_SECONDS = 12, 20.0  # that are tried


@dataclass(frozen=True)
class GroupMutant(Mutant):
    """mode: of the logs that the bug is about, controller or classic: which simulator looks for it."""

    mode: str


GROUP_MUTANTS: list[GroupMutant] = []


def mutant(rule: str, killer: Killer, *, mode: str) -> Callable[[Patch], Patch]:
    """Take the function, which plants the bug, into GROUP_MUTANTS."""

    def register(patch: Patch) -> Patch:
        GROUP_MUTANTS.append(GroupMutant(patch.__name__, rule, patch, killer, mode))
        return patch

    return register


def killed_by_group(mutant: GroupMutant) -> str | None:
    """The first seed whose group breaks a promise under the mutant, and which promise."""
    simulator = run if mutant.mode == "controller" else classic
    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        for seed in range(GROUP_SEEDS):
            _, violation = simulator.run_seed(seed, GROUP_SECONDS)
            if violation is not None:
                return f"seed {seed}: {violation}"
    return None


# --- the controllers ---


@mutant(
    "C-05",
    lambda _: test_elections.test_nobody_outside_the_set_is_elected_and_the_log_waits_without_a_master(),
    mode="controller",
)
def somebody_from_outside_the_set_is_elected(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, elect_master, "elect")
    def elect(original: Any, log: Log, liveness: Liveness, now_ms: int, **options: Any) -> MasterElected:
        everybody = tuple(replica.id for replica in log.replicas)
        log = msgspec.structs.replace(log, sync_state_set=everybody)
        return original(log, liveness, now_ms, **options)


@mutant(
    "C-05",
    lambda _: (
        test_elections.test_no_unclean_election_before_a_new_active_controller_has_had_time_to_hear_the_set()
    ),
    mode="controller",
)
def an_unclean_election_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "may_live", Liveness.is_alive)


@mutant(
    "A-11",
    lambda _: test_elections.test_a_new_active_controller_waits_for_leases_that_it_does_not_know(),
    mode="controller",
)
def an_election_does_not_wait_for_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "may_be_leased", lambda self, log, now_ms: False)


@mutant(
    "A-11",
    lambda _: (
        test_elections.test_a_lease_is_granted_to_the_master_alone_and_not_while_an_election_is_on_its_way()
    ),
    mode="controller",
)
def a_lease_is_granted_while_an_election_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActiveController, "_is_electing", lambda self, log: False)


@mutant(
    "A-11",
    lambda _: test_elections.test_a_master_that_is_elected_again_goes_on_with_its_lease(),
    mode="controller",
)
def what_was_given_up_once_is_given_up_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "elected", lambda self, log: None)


@mutant(
    "C-06",
    lambda _: test_sync_state_set.test_what_is_refused_says_why_and_changes_nothing(
        {"set_epoch": 0}, Reason.STALE_SET_EPOCH
    ),
    mode="controller",
)
def a_stale_set_epoch_is_accepted(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, alter_module, "alter")
    def alter(original: Any, log: Log, command: AlterSyncStateSet, liveness: Liveness, now_ms: int) -> Any:
        command = msgspec.structs.replace(command, set_epoch=log.set_epoch)
        return original(log, command, liveness, now_ms)


@mutant(
    "C-06",
    lambda _: test_sync_state_set.test_what_is_refused_says_why_and_changes_nothing(
        {"master_epoch": 0}, Reason.STALE_MASTER_EPOCH
    ),
    mode="controller",
)
def a_stale_master_changes_the_set(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, alter_module, "alter")
    def alter(original: Any, log: Log, command: AlterSyncStateSet, liveness: Liveness, now_ms: int) -> Any:
        command = msgspec.structs.replace(command, master_epoch=log.master_epoch)
        return original(log, command, liveness, now_ms)


@mutant(
    "C-06",
    lambda _: test_sync_state_set.test_who_is_dead_unregistered_or_a_learner_does_not_join(),
    mode="controller",
)
def anybody_may_join_the_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(alter_module, "_check_member", lambda log, member, liveness, now_ms: None)


@mutant(
    "C-02",
    lambda _: (
        test_logs.test_a_round_that_was_not_stored_is_decided_anew_and_its_answers_wait_for_the_commit()
    ),
    mode="controller",
)
def a_controller_answers_before_the_commit(patch: pytest.MonkeyPatch) -> None:
    original = ActiveController.applied
    patch.setattr(ActiveController, "applied", lambda self, index: original(self, 1 << 60))


@mutant(
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


@mutant(
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


@mutant(
    "C-05",
    lambda _: test_elections.test_a_clean_election_keeps_the_epoch_of_the_last_unclean_one(),
    mode="controller",
)
def clean_election_forgets_the_unclean_one(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, state_machine, "_changed")
    def changed(original: Any, log: Log, index: int, event: Any) -> Log | None:
        after: Log | None = original(log, index, event)
        if after is not None and isinstance(event, MasterElected) and not event.unclean:
            after = msgspec.structs.replace(after, unclean_epoch=0)
        return after


@mutant(
    "C-03",
    lambda _: test_registration.test_a_copy_that_replaces_another_raises_the_epoch_of_the_set(),
    mode="controller",
)
def replaced_copy_keeps_set_epoch(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, state_machine, "_registered")
    def registered(original: Any, log: Log, event: Any) -> Log:
        return msgspec.structs.replace(original(log, event), set_epoch=log.set_epoch)


@mutant(
    "C-05",
    lambda _: test_elections.test_a_replica_that_died_with_the_master_is_not_elected(),
    mode="controller",
)
def a_replica_that_died_with_the_master_is_elected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "missed_master_ms", lambda log, liveness, now_ms: None)


@mutant(
    "C-05",
    lambda _: (
        test_elections.test_a_winner_that_does_not_open_its_epoch_gives_way_to_another_member_of_the_set_before(
            "dies"
        )
    ),
    mode="controller",
)
def the_set_before_is_forgotten_at_the_election(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "_former_set", lambda log, chosen, *, unclean: ())


@mutant(
    "A-11",
    lambda _: test_elections.test_the_set_before_is_forgotten_before_the_first_lease_of_an_epoch(),
    mode="controller",
)
def the_set_before_stays_electable_after_the_first_lease(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, state_machine, "_changed")
    def changed(original: Any, log: Log, index: int, event: Any) -> Log | None:
        after: Log | None = original(log, index, event)
        if after is not None and isinstance(event, SyncStateSetChanged):
            after = msgspec.structs.replace(after, former_set=log.former_set)
        return after

    patch.setattr(Log, "is_opening", False)


@mutant(
    "A-11",
    lambda _: test_elections.test_a_master_that_is_heard_and_cannot_hear_is_replaced(),
    mode="controller",
)
def a_node_that_cannot_hear_is_alive(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Liveness, "heard")
    def heard(
        original: Any, self: Liveness, node: str, index: int, reports: Any, now_ms: int, _answered: Any = None
    ) -> None:
        original(self, node, index, reports, now_ms)


@mutant("A-11", lambda _: test_master.test_a_lease_does_not_outlive_its_epoch(), mode="controller")
def a_lease_outlives_its_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AutoSwitchCore, "_take_lease", lambda self, lease: self.lease_until(lease.until_ms))


@mutant(
    "C-03",
    lambda _: test_registration.test_a_late_repeat_of_an_earlier_copy_displaces_no_live_one(),
    mode="controller",
)
def only_the_newest_id_of_a_node_is_known(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, registration, "_known")
    def known(original: Any, log: Log, node: str) -> Any:
        return original(log, node)[:1]


@mutant(
    "C-02",
    lambda _: test_logs.test_a_late_repeat_of_a_change_does_not_undo_a_later_one(fail_over=True),
    mode="controller",
)
def the_changes_carried_out_are_forgotten_with_the_active_controller(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, state_machine.Metadata, "snapshot")
    def snapshot(original: Any, self: state_machine.Metadata) -> bytes:
        self._changes.clear()
        return original(self)


# --- the managers ---


@mutant(
    "C-10",
    lambda _: test_replicas_manager.test_a_lease_counts_for_the_epoch_that_it_was_granted_for(),
    mode="controller",
)
def a_lease_counts_for_any_epoch(patch: pytest.MonkeyPatch) -> None:
    def tell_lease(self: ReplicasManager, log: Log, actions: list[Any]) -> None:
        if self._lease is not None:
            (_, until_ms), self._lease = self._lease, None
            actions.append(Tell(Lease(until_ms)))

    patch.setattr(ReplicasManager, "_tell_lease", tell_lease)


@mutant(
    "A-11",
    lambda _: test_replicas_manager.test_a_mastership_is_given_up_before_the_controller_hears_of_it("leaves"),
    mode="controller",
)
def a_mastership_is_given_up_after_the_controller_has_heard(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReplicasManager, "step")
    def step(
        original: Any, self: ReplicasManager, log: Log | None, view: HaView, now_ms: int
    ) -> list[Action]:
        actions = original(self, log, view, now_ms)
        gives_up = any(
            isinstance(each, ControllerRequest) and isinstance(each.command, StepDown) for each in actions
        )
        return actions[::-1] if gives_up else actions


@mutant(
    "A-11",
    lambda _: (
        test_replicas_manager.test_a_core_that_has_not_heard_of_its_new_epoch_is_not_taken_to_have_given_it_up()
    ),
    mode="controller",
)
def a_need_of_the_epoch_before_gives_the_new_one_up(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReplicasManager, "_ask_for_more")
    def ask(
        original: Any, self: ReplicasManager, log: Log, view: HaView, actions: list[Action], now_ms: int
    ) -> None:
        if view.needs_election and view.epoch < log.master_epoch:
            view = copy(view)
            view.epoch = log.master_epoch  # type: ignore[misc]
        original(self, log, view, actions, now_ms)


# --- the master ---


@mutant("A-11", lambda _: test_master.test_past_its_lease_a_master_acknowledges_nothing(), mode="controller")
def a_master_is_never_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AutoSwitchCore, "_is_fenced", lambda self, now_ms: False)


@mutant("C-04", lambda _: test_master.test_an_epoch_is_opened_by_one_life_only(), mode="controller")
def an_epoch_is_opened_by_every_life(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, AutoSwitchCore, "_become_master")
    def become_master(original: Any, self: AutoSwitchCore, role: MasterRole, now_ms: int) -> None:
        self._member.voted_for = None
        original(self, role, now_ms)


@mutant("C-10", lambda _: test_master.test_roles_of_older_epochs_change_nothing(), mode="controller")
def a_role_of_an_older_epoch_is_taken_up(patch: pytest.MonkeyPatch) -> None:
    def change_role(self: AutoSwitchCore, role: MasterRole | SlaveRole, now_ms: int) -> None:
        if isinstance(role, MasterRole):
            self._become_master(role, now_ms)
        else:
            self._become_slave(role, now_ms)

    patch.setattr(AutoSwitchCore, "change_role", change_role)


@mutant(
    "A-01",
    lambda _: test_master.test_the_epoch_is_open_only_when_its_first_record_is_durable(),
    mode="controller",
)
def an_epoch_is_open_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, AutoSwitchCore, "advance")
    def advance(original: Any, self: AutoSwitchCore, ready: Any, now_ms: int) -> None:
        original(self, ready, now_ms)
        if self._master is not None and ready.batches and not self._master.open and self._opening is None:
            self._master.opened(now_ms)


@mutant(
    "C-12", lambda _: test_master_acks.test_an_append_waits_for_every_member_of_the_set(), mode="controller"
)
def the_fastest_of_the_set_is_enough(patch: pytest.MonkeyPatch) -> None:
    def confirmed(self: SyncStateSet, marks: Any) -> int:
        return max(marks.get(member, NO_INDEX) for member in self.members)

    patch.setattr(SyncStateSet, "confirmed", confirmed)


@mutant(
    "C-12", lambda _: test_master_acks.test_while_a_join_is_unanswered_the_joiner_counts(), mode="controller"
)
def an_open_change_of_the_set_does_not_count(patch: pytest.MonkeyPatch) -> None:
    def confirmed(self: SyncStateSet, marks: Any) -> int:
        return min(marks.get(member, NO_INDEX) for member in self.members)

    patch.setattr(SyncStateSet, "confirmed", confirmed)


@mutant(
    "C-12",
    lambda _: test_master_acks.test_below_the_floor_appends_are_refused_and_nothing_is_acknowledged(),
    mode="controller",
)
def the_floor_of_the_set_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterSide, "below_floor", False)


@mutant(
    "C-03",
    lambda _: test_replaced_copy.test_the_half_open_connection_of_a_lost_copy_brings_nobody_into_the_set(),
    mode="controller",
)
def a_lost_copy_keeps_its_connection(patch: pytest.MonkeyPatch) -> None:
    def replicas_changed(self: MasterSide, replicas: tuple[KnownReplica, ...]) -> None:
        by_node = {replica.node: replica for replica in replicas}
        self._replicas = replicas
        for connection in self._connections.values():
            if connection.replica is not None:
                connection.replica = by_node.get(connection.replica.node)

    patch.setattr(MasterSide, "replicas_changed", replicas_changed)


@mutant(
    "C-03",
    lambda _: test_replicas_manager.test_a_copy_follows_nobody_while_the_metadata_here_name_an_earlier_one(),
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


@mutant(
    "C-03",
    lambda _: test_power_failure.test_a_master_that_lost_its_unsynced_end_is_not_elected(0),
    mode="controller",
)
def a_copy_keeps_its_identity_over_a_power_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdentityFile, "forget", lambda self: None)


@mutant(
    "C-08",
    lambda _: test_electable.test_a_copy_that_may_not_lead_introduces_itself_as_a_learner(),
    mode="controller",
)
def a_copy_without_state_joins_as_any_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlaveSide, "_is_learner", property(lambda self: self._me.learner))


@mutant(
    "C-05",
    lambda _: (
        test_electable.test_a_copy_that_may_not_lead_takes_no_mastership_up_but_by_an_unclean_election()
    ),
    mode="controller",
)
def a_core_does_not_read_electable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        AutoSwitchCore, "electable", property(lambda self: True, lambda self, value: None), raising=False
    )


@mutant(
    "C-05",
    lambda _: test_copies_that_may_lead.test_a_member_that_lacks_the_logs_state_is_not_elected(),
    mode="controller",
)
def the_controllers_do_not_read_electable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "may_lead", Liveness.has_copy)


@mutant(
    "C-05",
    lambda _: test_elections.test_priorities_decide_between_equal_copies(
        {"priorities": {"n2": 2, "n3": 1}}, "n3"
    ),
    mode="controller",
)
def the_larger_priority_number_wins(patch: pytest.MonkeyPatch) -> None:
    original = LogSpec.preference

    def preference(self: LogSpec, node: str) -> tuple[int, int, int]:
        preferred, priority, order = original(self, node)
        return preferred, -priority, order

    patch.setattr(LogSpec, "preference", preference)


@mutant(
    "C-05",
    lambda _: test_elections_by_part.test_a_member_alone_may_lack_what_was_acknowledged_and_is_not_elected(),
    mode="controller",
)
def any_member_of_the_set_is_elected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "complete_copies", lambda log, liveness: log.holders)


@mutant(
    "A-11",
    lambda _: test_elections_by_part.test_a_report_from_before_the_end_of_the_lease_proves_nothing(),
    mode="controller",
)
def a_report_from_before_the_end_of_the_lease_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "was_written_after_lease", lambda self, node, log: True)


@mutant(
    "A-11",
    lambda _: (
        test_elections_by_part.test_a_heartbeat_that_was_overtaken_proves_nothing_about_what_it_reports()
    ),
    mode="controller",
)
def any_heartbeat_is_as_new_as_the_last_confirmed_answer(patch: pytest.MonkeyPatch) -> None:
    def was_written_after_lease(self: Liveness, node: str, log: str) -> bool:
        return self._nodes[node].answered_ms > self.lease_over_ms(log)

    patch.setattr(Liveness, "was_written_after_lease", was_written_after_lease)


@mutant(
    "C-03",
    lambda _: test_elections_by_part.test_a_member_whose_disk_was_replaced_counts_as_not_heard(),
    mode="controller",
)
def a_replaced_copy_leaves_a_set_that_counts_a_part(patch: pytest.MonkeyPatch) -> None:
    def set_without(self: Log, gone: Collection[int]) -> tuple[int, ...]:
        left = tuple(member for member in self.sync_state_set if member not in gone)
        return left or self.sync_state_set

    patch.setattr(Log, "set_without", set_without)


@mutant(
    "C-05",
    lambda _: (
        test_elections_by_part.test_a_node_that_is_taken_out_by_force_counts_as_not_heard_until_the_set_changes()
    ),
    mode="controller",
)
def a_node_that_is_taken_out_leaves_a_set_that_counts_a_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_machine, "acks_needed", lambda size, acks: size)


@mutant(
    "A-11",
    lambda _: test_settings_at_run_time.test_a_lease_that_was_granted_is_not_shortened(),
    mode="controller",
)
def a_changed_lease_counts_for_the_present_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActiveController, "_lease_ms_of", lambda self, name: self.config.lease_ms)


@mutant(
    "C-05",
    lambda _: (
        test_elections_by_part.test_the_set_before_counts_by_its_acks_while_the_winner_has_not_opened_its_epoch()
    ),
    mode="controller",
)
def the_set_before_forgets_its_acks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "counted_acks", lambda log: 0)


@mutant(
    "C-05",
    lambda _: test_elections_by_part.test_what_a_master_hands_over_counts_in_its_epoch_only(),
    mode="controller",
)
def what_a_master_hands_over_counts_in_every_epoch(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, complete_copies, "_report_of")
    def _report_of(original: Any, log: Log, member: int, liveness: Liveness) -> Any:
        report = original(log, member, liveness)
        return report and msgspec.structs.replace(report, epoch=log.master_epoch)


@mutant(
    "A-11",
    lambda _: test_elections_by_part.test_a_master_that_gave_its_epoch_up_is_granted_no_lease(),
    mode="controller",
)
def a_master_that_gave_its_epoch_up_is_granted_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "is_given_up", lambda self, log: False)


@mutant(
    "C-12",
    lambda _: (
        test_replicas_manager.test_the_controllers_hear_of_a_mastership_given_up_when_the_core_acts_no_more_and_where_it_ends()
    ),
    mode="controller",
)
def a_mastership_is_given_up_while_the_core_still_acts(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReplicasManager, "_step_down")
    def _step_down(original: Any, self: ReplicasManager, log: Log, view: Any, actions: list[Action]) -> None:
        role, view.role = view.role, None
        original(self, log, view, actions)
        view.role = role


@mutant(
    "C-12",
    lambda _: (
        test_replicas_manager.test_a_process_that_was_not_master_in_the_epoch_does_not_say_what_was_acknowledged()
    ),
    mode="controller",
)
def a_restarted_master_says_what_it_acknowledged(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ReplicasManager, "_step_down")
    def _step_down(original: Any, self: ReplicasManager, log: Log, view: Any, actions: list[Action]) -> None:
        self._acted_epoch = log.master_epoch
        original(self, log, view, actions)


@mutant(
    "C-12",
    lambda _: (
        test_master_partial_acks.test_a_smaller_set_is_asked_for_only_once_each_of_its_members_holds_what_is_confirmed()
    ),
    mode="controller",
)
def a_set_is_asked_for_although_a_member_lacks_what_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterSide, "_hold_all", lambda self, members: True)


@mutant(
    "C-12",
    lambda _: (
        test_master_partial_acks.test_while_a_change_is_unanswered_each_member_of_the_new_set_counts_and_enough_of_the_old()
    ),
    mode="controller",
)
def only_the_old_set_counts_while_a_change_is_unanswered(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SyncStateSet, "confirmed")
    def confirmed(original: Any, self: SyncStateSet, marks: Any) -> int:
        asked, self._asked = self._asked, {}
        try:
            return int(original(self, marks))
        finally:
            self._asked = asked


@mutant(
    "C-12",
    lambda _: test_master_partial_acks.test_the_whole_set_counts_until_the_controllers_have_recorded_fewer(),
    mode="controller",
)
def a_part_of_the_set_counts_before_the_controllers_know(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SyncStateSet, "want")
    def want(
        original: Any, self: SyncStateSet, members: tuple[int, ...], acks: int = 0, *, ready: bool = True
    ) -> None:
        self.acks = acks
        original(self, members, acks, ready=ready)


@mutant(
    "C-12",
    lambda _: test_electable.test_a_member_that_comes_back_as_a_learner_leaves_the_set(),
    mode="controller",
)
def a_learners_ack_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterSide, "_learners", lambda self: frozenset())


@mutant(
    "A-10",
    lambda _: test_slave.test_after_a_reconnect_what_was_stored_before_is_confirmed_too(),
    mode="controller",
)
def a_reconnected_slave_never_confirms_what_it_stored_before(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SlaveSide, "_learn_confirmed")
    def _learn_confirmed(original: Any, self: SlaveSide, confirm_offset: int) -> None:
        self._must_search = False
        original(self, confirm_offset)


@mutant(
    "A-10",
    lambda _: test_electable.test_bytes_that_the_master_does_not_have_are_never_taken_for_confirmed("piece"),
    mode="controller",
)
def a_log_that_gives_way_is_taken_for_the_masters(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SlaveSide, "_learn_confirmed")
    def _learn_confirmed(original: Any, self: SlaveSide, confirm_offset: int) -> None:
        starts_anew, self._starts_anew = self._starts_anew, False
        original(self, confirm_offset)
        self._starts_anew = starts_anew


@mutant("C-07", lambda _: test_master_set.test_a_slave_that_does_not_catch_up_falls_out(), mode="controller")
def nobody_falls_out_of_the_set(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SyncStateSet, "want")
    def want(original: Any, self: SyncStateSet, members: Any, *given: Any, **options: Any) -> None:
        original(self, (*self.members, *members), *given, **options)


@mutant(
    "C-08",
    lambda _: test_master_set.test_a_slave_joins_when_it_has_reached_the_confirm_offset(),
    mode="controller",
)
def whoever_connects_joins_the_set(patch: pytest.MonkeyPatch) -> None:
    original = MasterSide._acked
    patch.setattr(MasterSide, "_acked", lambda self: dict.fromkeys(original(self), 1 << 60))


@mutant(
    "C-08",
    lambda _: test_master_set.test_nobody_joins_before_the_epochs_first_record_is_confirmed(),
    mode="controller",
)
def a_slave_joins_before_the_epoch_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, MasterSide, "judge")
    def judge(original: Any, self: MasterSide, now_ms: int, *, fenced: bool) -> None:
        self._opening_index = -1
        original(self, now_ms, fenced=fenced)


@mutant(
    "C-11",
    lambda _: test_master_set.test_a_learner_gets_the_log_and_is_never_in_the_set("handshake"),
    mode="controller",
)
def a_learner_joins_the_set(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, MasterSide, "_acked")
    def acked(original: Any, self: MasterSide) -> dict[str, int]:
        for connection in self._connections.values():
            connection.is_learner = False
        return original(self)


@mutant("A-05", lambda _: test_master.test_no_frame_spans_two_epochs(), mode="controller")
def a_frame_spans_two_epochs(patch: pytest.MonkeyPatch) -> None:
    original = _Cutter.add
    patch.setattr(
        _Cutter, "add", lambda self, epoch, data: original(self, self._epoch if self._parts else epoch, data)
    )


# --- the slave ---


@mutant(
    "A-04", lambda _: test_slave.test_what_the_master_does_not_have_is_cut_epochs_and_all(), mode="controller"
)
def a_slave_keeps_what_its_master_does_not_have(patch: pytest.MonkeyPatch) -> None:
    def keep(slave: tuple[EpochSpan, ...], master: tuple[EpochSpan, ...]) -> int:
        return slave[-1].end_offset

    patch.setattr(slave_side, "truncation_point", keep)


@mutant(
    "A-04",
    lambda _: (
        test_slave.test_what_may_have_been_confirmed_goes_by_receipt_only_even_if_this_replica_has_not_heard(
            True
        )
    ),
    mode="controller",
)
def what_an_unclean_election_loses_leaves_no_receipt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlaveSide, "_loses_confirmed", lambda self, index: False)


@mutant(
    "A-06",
    lambda _: test_slave.test_an_epoch_that_does_not_open_as_its_header_says_is_refused("not opened"),
    mode="controller",
)
def any_record_opens_an_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slave_side, "epoch_of", lambda batch: batch.term)


@mutant("A-10", lambda _: test_slave.test_a_slave_serves_up_to_the_confirm_offset_only(), mode="controller")
def a_slave_takes_all_that_it_holds_for_confirmed(patch: pytest.MonkeyPatch) -> None:
    def learn(self: SlaveSide, confirm_offset: int) -> None:
        self._member.committed_index = max(self._member.committed_index, self._log.end_index)

    patch.setattr(SlaveSide, "_learn_confirmed", learn)


@mutant(
    "A-02",
    lambda _: test_slave.test_the_first_report_waits_until_all_of_the_log_is_durable(),
    mode="controller",
)
def a_slave_reports_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slave_side, "held_index", lambda log, durability: log.end_index)


# --- classic ---


@mutant(
    "H-04", lambda _: test_classic.test_a_gap_costs_the_connection_and_stores_nothing("gap"), mode="classic"
)
def a_slave_asks_not_where_a_frame_belongs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicSlaveCore, "_why_not", lambda self, frame: None)
    patch.setattr(ClassicSlaveCore, "_why_not_these", lambda self, batches: None)


@mutant(
    "H-07",
    lambda _: test_classic.test_a_synchronous_append_waits_for_the_configured_number_of_slaves(),
    mode="classic",
)
def a_synchronous_append_waits_for_nobody(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ClassicMasterCore, "_check")
    def check(original: Any, self: ClassicMasterCore, now_ms: int) -> None:
        self._asked_slaves = self._min_slaves = 0
        original(self, now_ms)


@mutant("H-02", lambda _: test_classic.test_what_is_reported_is_durable(), mode="classic")
def a_slave_reports_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic_slave, "held_index", lambda log, durability: log.end_index)
