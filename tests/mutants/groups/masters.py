"""Planted bugs in masters of controller mode: epochs, fencing, the SyncStateSet."""

from typing import Any

import pytest

from app.ha.auto_switch.core import AutoSwitchCore
from app.ha.auto_switch.disk_watch import DiskWatch
from app.ha.auto_switch.master_side import MasterSide
from app.ha.auto_switch.sync_state_set import SyncStateSet
from app.ha.roles import KnownReplica, MasterRole, SlaveRole
from app.ha.sending import _Cutter
from app.log.contract import NO_INDEX, Durability
from app.log.pending_appends import PendingAppends
from tests.mutants.planting import group_mutant, plant, planted
from tests.simulation.controller.cases import test_hung_disk
from tests.unit.ha.auto_switch import (
    test_electable,
    test_master,
    test_master_acks,
    test_master_set,
    test_replaced_copy,
)
from tests.unit.ha.auto_switch import (
    test_hung_disk as test_slow_disks,
)
from tests.unit.ha.auto_switch import (
    test_partial_acks as test_master_partial_acks,
)


@group_mutant("A-11", lambda _: test_master.test_a_lease_does_not_outlive_its_epoch(), mode="controller")
def a_lease_outlives_its_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AutoSwitchCore, "_take_lease", lambda self, lease: self.lease_until(lease.until_ms))


@group_mutant(
    "A-11", lambda _: test_master.test_past_its_lease_a_master_acknowledges_nothing(), mode="controller"
)
def a_master_is_never_fenced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AutoSwitchCore, "_is_fenced", lambda self, now_ms: False)


@group_mutant(
    "C-05", lambda _: test_hung_disk.test_a_master_whose_disk_hangs_gives_its_role_up(), mode="controller"
)
def a_master_with_a_hung_disk_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DiskWatch, "hangs", lambda self, now_ms, master: False)


@group_mutant(
    "C-05", lambda _: test_slow_disks.test_a_master_whose_disk_is_slow_keeps_the_role(), mode="controller"
)
def a_slow_disk_is_taken_for_one_that_hangs(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, DiskWatch, "hangs")
    def hangs(original: Any, self: DiskWatch, now_ms: int, master: Any) -> Any:
        if self._since_ms:
            self._progress = self._log.durable_index  # its progress does not count
        return original(self, now_ms, master)


@group_mutant(
    "C-05",
    lambda _: test_slow_disks.test_a_master_that_acknowledges_before_its_disk_keeps_the_role(),
    mode="controller",
)
def a_master_that_needs_no_disk_is_judged_by_it(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, DiskWatch, "hangs")
    def hangs(original: Any, self: DiskWatch, now_ms: int, master: Any) -> Any:
        known, self._member.durability = self._member.durability, Durability.FSYNC
        found = original(self, now_ms, master)
        self._member.durability = known
        return found


@group_mutant("C-04", lambda _: test_master.test_an_epoch_is_opened_by_one_life_only(), mode="controller")
def an_epoch_is_opened_by_every_incarnation(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, AutoSwitchCore, "_become_master")
    def become_master(original: Any, self: AutoSwitchCore, role: MasterRole, now_ms: int) -> None:
        self._member.voted_for = None
        original(self, role, now_ms)


@group_mutant("C-10", lambda _: test_master.test_roles_of_older_epochs_change_nothing(), mode="controller")
def a_role_of_an_older_epoch_is_taken_up(patch: pytest.MonkeyPatch) -> None:
    def change_role(self: AutoSwitchCore, role: MasterRole | SlaveRole, now_ms: int) -> None:
        if isinstance(role, MasterRole):
            self._become_master(role, now_ms)
        else:
            self._become_slave(role, now_ms)

    patch.setattr(AutoSwitchCore, "change_role", change_role)


@group_mutant(
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


@group_mutant(
    "C-12", lambda _: test_master_acks.test_an_append_waits_for_every_member_of_the_set(), mode="controller"
)
def the_fastest_of_the_set_is_enough(patch: pytest.MonkeyPatch) -> None:
    def confirmed(self: SyncStateSet, marks: Any) -> int:
        return max(marks.get(member, NO_INDEX) for member in self.members)

    patch.setattr(SyncStateSet, "confirmed", confirmed)


@group_mutant(
    "C-12", lambda _: test_master_acks.test_while_a_join_is_unanswered_the_joiner_counts(), mode="controller"
)
def an_open_change_of_the_set_does_not_count(patch: pytest.MonkeyPatch) -> None:
    def confirmed(self: SyncStateSet, marks: Any) -> int:
        return min(marks.get(member, NO_INDEX) for member in self.members)

    patch.setattr(SyncStateSet, "confirmed", confirmed)


@group_mutant(
    "C-12",
    lambda _: test_master_acks.test_below_the_floor_appends_are_refused_and_nothing_is_acknowledged(),
    mode="controller",
)
def the_floor_of_the_set_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterSide, "below_floor", False)


@group_mutant(
    "C-03",
    lambda _: (
        test_replaced_copy.test_the_half_open_connection_of_a_lost_copy_brings_no_replica_into_the_set()
    ),
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


@group_mutant(
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


@group_mutant(
    "C-12",
    lambda _: (
        test_master_partial_acks.test_a_smaller_set_is_asked_for_only_once_each_of_its_members_holds_what_is_confirmed()
    ),
    mode="controller",
)
def a_set_is_asked_for_although_a_member_lacks_what_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterSide, "_hold_all", lambda self, members: True)


@group_mutant(
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


@group_mutant(
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


@group_mutant(
    "C-12",
    lambda _: test_electable.test_a_member_that_comes_back_as_a_learner_leaves_the_set(),
    mode="controller",
)
def a_learners_ack_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MasterSide, "_learners", lambda self: frozenset())


@group_mutant(
    "C-07", lambda _: test_master_set.test_a_slave_that_does_not_catch_up_falls_out(), mode="controller"
)
def no_copy_leaves_the_set(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SyncStateSet, "want")
    def want(original: Any, self: SyncStateSet, members: Any, *given: Any, **options: Any) -> None:
        original(self, (*self.members, *members), *given, **options)


@group_mutant(
    "C-08",
    lambda _: test_master_set.test_a_slave_joins_when_it_has_reached_the_confirm_offset(),
    mode="controller",
)
def every_copy_that_connects_joins_the_set(patch: pytest.MonkeyPatch) -> None:
    original = MasterSide._acked
    patch.setattr(MasterSide, "_acked", lambda self: dict.fromkeys(original(self), 1 << 60))


@group_mutant(
    "C-08",
    lambda _: test_master_set.test_no_replica_joins_before_the_epochs_first_record_is_confirmed(),
    mode="controller",
)
def a_slave_joins_before_the_epoch_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, MasterSide, "judge")
    def judge(original: Any, self: MasterSide, now_ms: int, *, fenced: bool) -> None:
        self._opening_index = -1
        original(self, now_ms, fenced=fenced)


@group_mutant(
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


@group_mutant("A-05", lambda _: test_master.test_no_frame_spans_two_epochs(), mode="controller")
def a_frame_spans_two_epochs(patch: pytest.MonkeyPatch) -> None:
    original = _Cutter.add
    patch.setattr(
        _Cutter, "add", lambda self, epoch, data: original(self, self._epoch if self._parts else epoch, data)
    )


plant(
    "a_prepared_set_outlives_the_next_one_of_the_controller",
    "C-12",
    (SyncStateSet, "changed", "self._prepared = ()", "pass"),
    lambda _: test_master_acks.test_a_set_that_was_only_prepared_ends_with_the_next_one_of_the_controller(),
    mode="controller",
)


plant(
    "an_append_that_joins_has_no_deadline",
    "D-26",
    (
        PendingAppends,
        "join",
        "self._next_deadline_ms = min(self._next_deadline_ms, append.deadline_ms)",
        "pass",
    ),
    lambda _: test_master_acks.test_an_append_that_joins_has_a_deadline_too(),
    mode="controller",
)


@group_mutant(
    "C-12",
    lambda _: (
        test_master_partial_acks.test_a_change_that_is_prepared_and_not_wanted_any_more_delays_nothing()
    ),
    mode="controller",
)
def a_change_that_is_not_wanted_any_more_counts(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SyncStateSet, "want")
    def want(original: Any, self: SyncStateSet, members: Any, acks: int = 0, *, ready: bool = True) -> None:
        prepared = self._prepared
        original(self, members, acks, ready=ready)
        self._prepared = self._prepared or prepared
