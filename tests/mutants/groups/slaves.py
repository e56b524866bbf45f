"""Planted bugs in slaves of controller mode and in classic HA."""

from typing import Any

import pytest

from app.ha.auto_switch import slave_side
from app.ha.auto_switch.slave_side import SlaveSide
from app.ha.classic import slave as classic_slave
from app.ha.classic.master import ClassicMasterCore
from app.ha.classic.master_epoch import MasterEpoch
from app.ha.classic.slave import ClassicSlaveCore
from app.ha.classic.slaves import Slave
from app.ha.epochs import EpochSpan
from app.log.recorded_values import SyncFloor
from app.node.opening.replica_modes import ClassicMode
from app.node.replica.state_keeper import StateKeeper
from app.raft.reads import Confirmation
from storage.log.hard_state import HardState
from tests.mutants.planting import group_mutant, plant, planted
from tests.unit.ha import test_state_of_another_epoch
from tests.unit.ha.auto_switch import (
    test_electable,
    test_slave,
    test_slave_transfer,
)
from tests.unit.ha.classic import test_classic, test_classic_slave, test_degradation, test_opening
from tests.unit.node.opening import test_replica_modes
from tests.unit.node.replica import test_driver_state_transfer
from tests.unit.node.state import test_load_state


@group_mutant(
    "C-08",
    lambda _: test_electable.test_a_copy_that_may_not_lead_introduces_itself_as_a_learner(),
    mode="controller",
)
def a_copy_without_state_joins_as_any_other(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlaveSide, "_is_learner", property(lambda self: self._me.learner))


plant(
    "a_copy_joins_before_its_state_is_durable",
    "C-08",
    (StateKeeper, "judge_electable", "is_kept or ", "True or "),
    test_driver_state_transfer.test_a_copy_of_a_log_with_a_master_may_join_once_its_state_is_on_its_disk,
    mode="controller",
)


@group_mutant(
    "A-10",
    lambda _: test_slave_transfer.test_after_a_reconnect_what_was_stored_before_is_confirmed_too(),
    mode="controller",
)
def a_reconnected_slave_never_confirms_what_it_stored_before(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SlaveSide, "_learn_confirmed")
    def _learn_confirmed(original: Any, self: SlaveSide, confirm_offset: int) -> None:
        self._must_search = False
        original(self, confirm_offset)


@group_mutant(
    "A-10",
    lambda _: (
        test_slave_transfer.test_records_stored_before_a_reconnect_are_confirmed_while_no_record_follows()
    ),
    mode="controller",
)
def a_reconnected_slave_searches_for_the_confirmed_index_once(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SlaveSide, "_learn_confirmed")
    def _learn_confirmed(original: Any, self: SlaveSide, confirm_offset: int) -> None:
        original(self, confirm_offset)
        self._must_search = False


@group_mutant(
    "A-10",
    lambda _: test_electable.test_bytes_that_the_master_does_not_have_are_never_taken_for_confirmed("piece"),
    mode="controller",
)
def a_log_that_gives_way_is_taken_for_the_masters(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SlaveSide, "_learn_confirmed")
    def _learn_confirmed(original: Any, self: SlaveSide, confirm_offset: int) -> None:
        may_replace, self._may_replace = self._may_replace, False
        original(self, confirm_offset)
        self._may_replace = may_replace


@group_mutant(
    "A-04",
    lambda _: test_slave.test_records_and_epochs_that_the_master_lacks_are_truncated(),
    mode="controller",
)
def a_slave_keeps_what_its_master_does_not_have(patch: pytest.MonkeyPatch) -> None:
    def keep(slave: tuple[EpochSpan, ...], master: tuple[EpochSpan, ...]) -> int:
        return slave[-1].end_offset

    patch.setattr(slave_side, "truncation_point", keep)


@group_mutant(
    "A-04",
    lambda _: (
        test_slave.test_records_that_may_be_confirmed_are_removed_by_receipt_only_even_if_this_replica_has_not_heard(
            True
        )
    ),
    mode="controller",
)
def what_an_unclean_election_loses_leaves_no_receipt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlaveSide, "_loses_confirmed", lambda self, index: False)


@group_mutant(
    "A-06",
    lambda _: test_slave_transfer.test_an_epoch_that_does_not_open_as_in_its_header_is_refused("not opened"),
    mode="controller",
)
def any_record_opens_an_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slave_side, "epoch_of", lambda batch: batch.term)


@group_mutant(
    "A-10",
    lambda _: test_slave_transfer.test_a_slave_serves_up_to_the_confirm_offset_only(),
    mode="controller",
)
def a_slave_takes_all_that_it_holds_for_confirmed(patch: pytest.MonkeyPatch) -> None:
    def learn(self: SlaveSide, confirm_offset: int) -> None:
        self._member.committed_index = max(self._member.committed_index, self._log.end_index)

    patch.setattr(SlaveSide, "_learn_confirmed", learn)


@group_mutant(
    "A-02",
    lambda _: test_slave.test_the_first_report_waits_until_all_of_the_log_is_durable(),
    mode="controller",
)
def a_slave_reports_what_is_not_durable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slave_side, "held_index", lambda log, member: log.end_index)
    patch.setattr(slave_side, "may_begin", lambda log, member: True)


@group_mutant(
    "H-04",
    lambda _: test_classic_slave.test_a_gap_costs_the_connection_and_stores_nothing("gap"),
    mode="classic",
)
def a_slave_asks_not_where_a_frame_belongs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicSlaveCore, "_why_not", lambda self, frame: None)
    patch.setattr(ClassicSlaveCore, "_why_not_these", lambda self, batches: None)


@group_mutant(
    "H-07",
    lambda _: test_classic.test_a_synchronous_append_waits_for_the_configured_number_of_slaves(),
    mode="classic",
)
def a_synchronous_append_waits_for_no_slave(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, ClassicMasterCore, "_check")
    def check(original: Any, self: ClassicMasterCore) -> None:
        self._needs.asked = self._needs.floor = 0
        original(self)


@group_mutant("H-02", lambda _: test_classic_slave.test_reported_records_are_durable(), mode="classic")
def a_slave_reports_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(classic_slave, "held_index", lambda log, member: log.end_index)


plant(
    "a_replica_without_a_proven_history_is_in_sync",
    "H-07",
    (Slave, "in_sync", " or (self.is_replica and not self.verified)", ""),
    lambda _: test_degradation.test_a_replica_without_a_proven_history_is_not_in_sync(),
    mode="classic",
)


@group_mutant(
    "D-28",
    lambda _: (
        test_state_of_another_epoch.test_a_slave_forgets_at_the_next_epoch_what_its_state_knows_and_its_log_lacks()
    ),
    mode="controller",
)
def a_state_that_is_ahead_of_its_log_outlives_its_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateKeeper, "epoch_began", lambda self, first_index: None)


plant(
    "what_precedes_the_log_is_taken_for_confirmed_in_it",
    "A-09",
    (SlaveSide, "_replaces_confirmed", " and self._log.begin_index <= confirmed", ""),
    lambda _: test_slave.test_a_log_that_holds_nothing_confirmed_is_replaced_by_what_precedes_it(),
    mode="controller",
)


plant(
    "a_trimmed_master_shares_no_epoch_with_a_longer_log",
    "A-04",
    (slave_side, "truncation_point", "position == 0 or theirs is master[0]", "position == 0"),
    lambda _: (
        test_slave.test_a_master_that_lists_its_first_epoch_from_its_begin_shares_it_with_a_longer_log()
    ),
    mode="controller",
)


plant(
    "a_snapshot_beyond_the_log_is_believed",
    "D-20",
    (test_load_state, "load_state", "state.applied_index >= log.next_index", "False"),
    lambda _: test_load_state.test_a_snapshot_that_is_committed_beyond_the_logs_end_is_believed_in_raft_only(
        True
    ),
    mode="controller",
)


plant(
    "a_slave_keeps_the_epoch_that_it_opened_as_master",
    "A-01",
    (ClassicMode, "judge", "(is_slave and ", "(False and "),
    lambda _: (
        test_replica_modes.test_a_slave_and_a_master_that_may_lack_acknowledged_records_have_opened_no_epoch(
            "n2", acks_unsynced=False, power_fails=False, sound=True, kept="n2"
        )
    ),
    mode="classic",
)


plant(
    "an_empty_copy_of_a_slave_begins_the_log_alone",
    "A-01",
    (MasterEpoch, "_wait", "is_empty(self._log) and may_have_held", "False"),
    lambda _: test_opening.test_an_empty_copy_that_knows_of_another_master_does_not_begin_the_log_alone(
        HardState(0, "n2")
    ),
    mode="classic",
)


plant(
    "a_master_with_a_new_disk_begins_the_log_alone",
    "H-07",
    (ClassicMode, "core", "begins=self.begins and self.sound", "begins=True"),
    lambda folder: test_replica_modes.test_a_classic_master_begins_a_log_alone_only_if_no_disk_was_replaced(
        folder, begins=False, sound=True
    ),
    mode="classic",
)


@group_mutant(
    "H-07",
    lambda _: test_opening.test_a_master_that_may_lack_its_own_records_counts_not_among_their_holders(True),
    mode="classic",
)
def a_master_counts_itself_among_the_holders_of_what_it_may_lack(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, MasterEpoch, "start")
    def start(original: Any, self: MasterEpoch, now_ms: int) -> None:
        self._may_lack = False
        original(self, now_ms)


plant(
    "a_restart_as_a_slave_ends_the_doubt_about_a_copy",
    "H-07",
    (ClassicMode, "judge", "has_lost or may_lack(known)", "has_lost"),
    lambda _: test_replica_modes.test_a_copy_that_may_lack_records_stays_so_until_it_has_caught_up("n2"),
    mode="classic",
)


plant(
    "a_folder_that_is_a_copy_passes_for_the_original",
    "H-07",
    (ClassicMode, "judge", "if origin.is_copy():", "if False:"),
    lambda _: test_replica_modes.test_a_folder_that_a_backup_has_replaced_may_lack_what_it_acknowledged(
        "n2", True
    ),
    mode="classic",
)


plant(
    "a_slave_leaves_its_doubt_out_for_a_master_of_an_earlier_version",
    "H-07",
    (
        ClassicSlaveCore,
        "_history",
        "self._doubt is not None",
        "self._doubt is not None and self._fruitless < 3",
    ),
    lambda _: test_classic_slave.test_three_connections_that_end_before_a_frame_do_not_end_a_doubt(),
    mode="classic",
)


plant(
    "a_replica_that_may_lack_records_vouches_for_a_master",
    "H-07",
    (MasterEpoch, "verified", "slave.history.in_doubt", "False"),
    lambda _: test_opening.test_a_replica_that_may_lack_records_vouches_only_when_all_report(False),
    mode="classic",
)


@group_mutant(
    "H-07",
    lambda _: (
        test_classic_slave.test_a_copy_that_may_lack_records_has_caught_up_with_what_its_master_confirms(
            False
        )
    ),
    mode="classic",
)
def a_slave_ends_its_doubt_before_it_holds_what_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Confirmation, "give")
    def give(original: Any, self: Confirmation, index: int | None) -> None:
        original(self, None if index is None else -1)


@group_mutant(
    "H-07",
    lambda _: (
        test_opening.test_settings_that_were_raised_let_no_master_open_without_the_holders_of_earlier_records(
            SyncFloor(0, 1, 2)
        )
    ),
    mode="classic",
)
def a_master_trusts_the_settings_of_today_alone(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, MasterEpoch, "start")
    def start(original: Any, self: MasterEpoch, now_ms: int) -> None:
        self._recorded = SyncFloor(0, *self._floor)
        original(self, now_ms)
