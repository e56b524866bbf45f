"""Planted bugs in elections of masters by the controllers, and in their leases."""

from typing import Any

import msgspec
import pytest

from app.controller import complete_copies, elect_master, state_machine
from app.controller.active import masters as masters_module
from app.controller.active.catching_up import CatchingUp
from app.controller.active.controller import ActiveController
from app.controller.active.full_disks import FullDisks
from app.controller.events import MasterElected, SyncStateSetChanged
from app.controller.liveness import Liveness
from app.controller.metadata import Log, LogSpec
from tests.mutants.planting import group_mutant, plant, planted
from tests.unit.controller import test_partial_acks as test_elections_by_part
from tests.unit.controller.elections import test_electable as test_copies_that_may_lead
from tests.unit.controller.elections import (
    test_elections,
    test_elections_under_faults,
    test_first_records,
    test_full_disks,
    test_hung_masters,
)


@group_mutant(
    "C-05",
    lambda _: test_elections.test_no_replica_outside_the_set_is_elected_and_the_log_waits_without_a_master(),
    mode="controller",
)
def a_copy_outside_the_set_is_elected(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, elect_master, "elect")
    def elect(original: Any, log: Log, liveness: Liveness, now_ms: int, **options: Any) -> MasterElected:
        everybody = tuple(replica.id for replica in log.replicas)
        log = msgspec.structs.replace(log, sync_state_set=everybody)
        return original(log, liveness, now_ms, **options)


@group_mutant(
    "C-05",
    lambda _: (
        test_elections.test_no_unclean_election_before_a_new_active_controller_has_had_time_to_hear_the_set()
    ),
    mode="controller",
)
def an_unclean_election_waits_for_no_copy(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "may_live", Liveness.is_alive)


@group_mutant(
    "A-11",
    lambda _: test_elections.test_a_new_active_controller_waits_for_leases_that_it_does_not_know(),
    mode="controller",
)
def an_election_does_not_wait_for_the_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "may_be_leased", lambda self, log, now_ms: False)


@group_mutant(
    "A-11",
    lambda _: (
        test_elections.test_a_lease_is_granted_to_the_master_alone_and_not_while_an_election_is_on_its_way()
    ),
    mode="controller",
)
def a_lease_is_granted_while_an_election_is_on_its_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ActiveController, "_is_electing", lambda self, log: False)


@group_mutant(
    "A-11",
    lambda _: test_elections.test_a_master_that_is_elected_again_continues_with_its_lease(),
    mode="controller",
)
def what_was_given_up_once_is_given_up_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "elected", lambda self, log: None)


@group_mutant(
    "C-05",
    lambda _: test_elections_under_faults.test_a_clean_election_keeps_the_epoch_of_the_last_unclean_one(),
    mode="controller",
)
def clean_election_forgets_the_unclean_one(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, state_machine, "_changed")
    def changed(original: Any, log: Log, index: int, event: Any) -> Log | None:
        after: Log | None = original(log, index, event)
        if after is not None and isinstance(event, MasterElected) and not event.unclean:
            after = msgspec.structs.replace(after, unclean_epoch=0)
        return after


@group_mutant(
    "C-05",
    lambda _: test_elections_under_faults.test_a_replica_that_died_with_the_master_is_not_elected(),
    mode="controller",
)
def a_replica_that_died_with_the_master_is_elected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "missed_master_ms", lambda log, liveness, now_ms: None)


@group_mutant(
    "C-05",
    lambda _: (
        test_elections_under_faults.test_a_winner_that_does_not_open_its_epoch_gives_way_to_another_member_of_the_set_before(
            "dies"
        )
    ),
    mode="controller",
)
def the_set_before_is_forgotten_at_the_election(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "_former_set", lambda log, chosen, clean, **_: ())


@group_mutant(
    "A-11",
    lambda _: (
        test_elections_under_faults.test_the_set_before_is_forgotten_before_the_first_lease_of_an_epoch()
    ),
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


@group_mutant(
    "A-11",
    lambda _: test_elections_under_faults.test_a_master_that_is_heard_and_cannot_hear_is_replaced(),
    mode="controller",
)
def a_node_that_cannot_hear_is_alive(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Liveness, "heard")
    def heard(
        original: Any, self: Liveness, node: str, index: int, reports: Any, now_ms: int, _answered: Any = None
    ) -> None:
        original(self, node, index, reports, now_ms)


@group_mutant(
    "C-05",
    lambda _: test_copies_that_may_lead.test_a_member_that_lacks_the_logs_state_is_not_elected(),
    mode="controller",
)
def the_controllers_do_not_read_electable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "may_lead", Liveness.has_copy)


@group_mutant(
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


@group_mutant(
    "C-05",
    lambda _: test_elections_by_part.test_a_member_alone_may_lack_what_was_acknowledged_and_is_not_elected(),
    mode="controller",
)
def any_member_of_the_set_is_elected(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "complete_copies", lambda log, liveness: log.holders)


@group_mutant(
    "A-11",
    lambda _: test_elections_by_part.test_a_report_from_before_the_end_of_the_lease_proves_nothing(),
    mode="controller",
)
def a_report_from_before_the_end_of_the_lease_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "was_written_after_lease", lambda self, node, log: True)


@group_mutant(
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


plant(
    "a_replaced_copy_leaves_the_set_without_its_master",
    "C-12",
    (
        state_machine,
        "_registered",
        "copied=copied,",
        "copied=copied, sync_state_set=tuple({*log.sync_state_set}.difference(gone)) or log.sync_state_set,",
    ),
    lambda _: test_elections_by_part.test_no_copied_folder_is_elected_by_itself_beside_a_lost_member((), {}),
    mode="controller",
)


@group_mutant(
    "C-05",
    lambda _: (
        test_elections_by_part.test_a_node_that_is_taken_out_by_force_counts_as_not_heard_until_the_set_changes()
    ),
    mode="controller",
)
def a_node_that_is_taken_out_leaves_a_set_that_counts_a_part(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state_machine, "acks_needed", lambda size, acks: size)


@group_mutant(
    "C-05",
    lambda _: (
        test_elections_by_part.test_the_set_before_counts_by_its_acks_while_the_winner_has_not_opened_its_epoch()
    ),
    mode="controller",
)
def the_set_before_forgets_its_acks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elect_master, "counted_acks", lambda log: 0)


@group_mutant(
    "C-05",
    lambda _: test_elections_by_part.test_the_end_that_a_master_hands_over_counts_in_its_epoch_only(),
    mode="controller",
)
def what_a_master_hands_over_counts_in_every_epoch(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, complete_copies, "_report_of")
    def _report_of(original: Any, log: Log, member: int, liveness: Liveness) -> Any:
        report = original(log, member, liveness)
        return report and msgspec.structs.replace(report, epoch=log.master_epoch)


@group_mutant(
    "A-11",
    lambda _: test_elections_by_part.test_a_master_that_gave_its_epoch_up_is_granted_no_lease(),
    mode="controller",
)
def a_master_that_gave_its_epoch_up_is_granted_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Liveness, "is_given_up", lambda self, log: False)


@group_mutant(
    "C-12",
    lambda _: (
        test_elections_by_part.test_elections_of_two_copies_that_lack_records_are_both_refused_in_time()
    ),
    mode="controller",
)
def an_election_that_waits_replaces_another(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, CatchingUp, "must_wait")
    def must_wait(original: Any, self: CatchingUp, log: Log, command: Any, *args: Any) -> bool:
        self._waiting = {each: known for each, known in self._waiting.items() if each == command}
        return bool(original(self, log, command, *args))


plant(
    "a_lost_copy_leaves_the_set_before_of_which_a_part_acknowledged",
    "C-12",
    (
        state_machine,
        "_without_gone",
        "if acks_needed(len(former), log.former_acks) == len(former):",
        "if True:",
    ),
    lambda _: (
        test_elections_by_part.test_a_node_of_the_set_before_that_is_taken_out_by_force_counts_as_not_heard()
    ),
    mode="controller",
)


plant(
    "an_outdated_report_refuses_an_operators_election",
    "C-05",
    (
        masters_module,
        "surely_lacks",
        " or not liveness.was_written_after_lease(replica.node, log.name)",
        "",
    ),
    lambda _: (
        test_elections_by_part.test_a_report_from_before_the_end_of_the_lease_refuses_no_operators_election()
    ),
    mode="controller",
)


plant(
    "an_election_moves_the_end_of_the_last_lease",
    "A-11",
    (Liveness, "elected", "self._over_ms[log] = self.lease_over_ms(log)", "pass"),
    lambda _: (
        test_elections_by_part.test_an_election_moves_the_end_of_the_last_lease_neither_forth_nor_back()
    ),
    mode="controller",
)


plant(
    "a_slow_epoch_counts_with_each_scan",
    "C-05",
    (
        masters_module.Masters,
        "_count_failed",
        "if self._failed_epochs.get(log.name) != log.master_epoch:",
        "if True:",
    ),
    lambda _: (
        test_elections_under_faults.test_a_slow_epoch_counts_once_against_its_master_however_long_no_other_can_be_elected()
    ),
    mode="controller",
)


plant(
    "a_master_that_gave_its_epoch_up_has_not_failed",
    "A-11",
    (masters_module.Masters, "_has_opened", " and not self._liveness.is_given_up(log.name)", ""),
    lambda _: (
        test_hung_masters.test_a_master_that_gave_its_epoch_up_is_not_preferred_because_it_had_opened_it()
    ),
    mode="controller",
)


plant(
    "a_first_master_that_is_the_only_candidate_gets_a_lease_before_its_opening",
    "A-11",
    (elect_master, "_former_set", "if holds_nothing:", "if False:"),
    lambda _: test_first_records.test_a_first_master_that_dies_before_it_opens_its_epoch_is_replaced(
        ("n1",), fails_over=False
    ),
    mode="controller",
)


plant(
    "a_log_with_an_open_epoch_counts_as_never_open",
    "A-11",
    (state_machine, "_with_set", "never_open=log.never_open and event.restored", "never_open=log.never_open"),
    lambda _: (
        test_first_records.test_a_first_master_gets_no_lease_before_the_controllers_know_that_its_epoch_is_open()
    ),
    mode="controller",
)


plant(
    "the_set_before_is_restored_after_a_lease",
    "A-11",
    (masters_module.Masters, "granted", "self._unleased.pop(log.name, None)", "pass"),
    lambda _: (
        test_hung_masters.test_a_winner_that_dies_between_its_opening_and_its_first_lease_leaves_its_role_to_the_set_before(
            "leased"
        )
    ),
    mode="controller",
)


plant(
    "a_full_disk_costs_the_role_before_the_lease_is_over",
    "A-11",
    (masters_module.Masters, "_hand_over", "if is_leased or ", "if "),
    lambda _: (
        test_full_disks.test_no_other_is_elected_while_the_master_without_disk_space_may_hold_its_lease()
    ),
    mode="controller",
)


plant(
    "a_full_disk_is_forgotten_with_the_role",
    "C-05",
    (
        FullDisks,
        "left_out",
        "self._full_ms.get(node, forgotten_ms) > forgotten_ms",
        "self._full_ms.get(node) == now_ms",
    ),
    lambda _: test_full_disks.test_where_all_disks_are_full_and_only_a_master_notices_it_each_leads_once(),
    mode="controller",
)


plant(
    "a_full_master_with_partial_acks_gives_way",
    "C-12",
    (FullDisks, "left_out", " or not counts_all(log)", ""),
    lambda _: test_full_disks.test_a_master_without_disk_space_stays_where_no_other_could_take_appends(
        "not all count"
    ),
    mode="controller",
)


plant(
    "a_full_disk_comes_before_an_operators_election",
    "C-05",
    (masters_module.Masters, "_hand_over", " or self._withheld.get(log.name) is not None", ""),
    lambda _: test_full_disks.test_an_operators_election_that_waits_for_the_lease_comes_first(),
    mode="controller",
)


plant(
    "a_pause_of_the_writers_passes_for_disk_space",
    "C-05",
    (FullDisks, "_take_reports", "end > known.end or is_outdated", "True"),
    lambda _: (
        test_full_disks.test_a_master_whose_writers_pause_for_longer_than_it_remembers_a_refusal_gives_way_too()
    ),
    mode="controller",
)


plant(
    "replicas_that_cannot_open_an_epoch_are_elected_without_a_pause",
    "C-05",
    (
        masters_module.Masters,
        "_replace_master",
        "steps_down and self._is_too_soon",
        "False and self._is_too_soon",
    ),
    lambda _: (
        test_full_disks.test_replicas_that_cannot_open_an_epoch_are_not_elected_one_directly_after_the_other()
    ),
    mode="controller",
)
