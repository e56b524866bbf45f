"""Acknowledgements of a master, and their conditions (C-12)."""

from dataclasses import replace

import pytest

from app.errors import NotEnoughInSync
from app.ha.auto_switch.sync_state_set import SyncStateSet
from app.ha.messages import Closed
from app.ha.roles import MANAGER, MasterRole, SyncStateSetUpdate
from app.log.contract import Acks, AppendFate, Durability, LogOptions, PendingAppend
from app.log.pending_appends import PendingAppends
from tests.unit.ha.lab import NAMES, REPLICAS, Replicated
from tests.unit.ha.masters import ack_all, grant, in_sync_with_n2, join


@pytest.mark.rule("C-12")
def test_an_append_waits_for_every_member_of_the_set() -> None:
    master = Replicated()
    master.lead()
    keys = {node: join(master, node, number) for number, node in enumerate(("n2", "n3"), 1)}
    grant(master, NAMES)
    pending = master.append(b"a")
    ack_all(master, keys["n2"])
    assert master.fates() == []
    ack_all(master, keys["n3"])
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_the_masters_own_disk_counts_too() -> None:
    master, key = in_sync_with_n2()
    master.auto_sync = False
    pending = master.append(b"a")
    ack_all(master, key)
    assert master.fates() == []
    master.sync()
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_while_a_join_is_unanswered_the_joiner_counts() -> None:
    """A known hole: the set grows at the controller before the master counts with it."""
    master = Replicated()
    master.lead()
    key = join(master)
    assert master.wanted_set == (1, 2)  # asked, not answered: it may be so already
    pending = master.append(b"a")
    assert master.fates() == []
    ack_all(master, key)
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_while_a_shrink_is_unanswered_the_old_set_counts() -> None:
    master, key = in_sync_with_n2()
    master.deliver(key, Closed("cut"))
    pending = master.append(b"a", timeout_ms=60_000)
    master.tick(1_600)
    assert master.wanted_set == (1,)
    master.tick(1_600)
    assert master.fates() == []
    grant(master, (1,))
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_a_refused_request_stays_in_doubt_until_a_newer_set_is_known() -> None:
    """The joiner dies while its join is unanswered: the master asks for the set that it has, to settle it."""
    master = Replicated()
    master.lead()
    key = join(master)
    pending = master.append(b"a", timeout_ms=60_000)
    master.deliver(key, Closed("died"))
    assert master.wanted_set == (1,)
    assert master.fates() == []  # the join may still be accepted
    grant(master, (1,))
    assert master.wanted_set is None
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_older_versions_of_the_set_change_nothing() -> None:
    master, _ = in_sync_with_n2()
    master.deliver(MANAGER, SyncStateSetUpdate(1, 1, (1,)))
    master.deliver(MANAGER, SyncStateSetUpdate(1, 2, (1,)))
    master.deliver(MANAGER, SyncStateSetUpdate(2, 9, (1,)))
    master.deliver(MANAGER, MasterRole(1, (1,), 1, REPLICAS))
    assert master.core.status().sync_state_set == ("n1", "n2")


@pytest.mark.rule("C-12")
def test_below_the_floor_appends_are_refused_and_nothing_is_acknowledged() -> None:
    master = Replicated(min_in_sync=2)
    master.lead()
    assert isinstance(master.core.refusal, NotEnoughInSync)
    key = join(master)
    grant(master, (1, 2))
    assert master.core.refusal is None
    pending = master.append(b"a", timeout_ms=60_000)
    master.deliver(key, Closed("cut"))
    master.tick(1_600)  # it wants to shrink: the set may be below the floor already
    assert isinstance(master.core.refusal, NotEnoughInSync)
    grant(master, (1,))
    assert master.fates() == []
    key = join(master, number=2)
    grant(master, (1, 2))
    ack_all(master, key)
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_a_replica_that_is_asked_to_join_does_not_count_for_the_floor_yet() -> None:
    asked = SyncStateSet("n1", ("n1", "n2"), 1)
    asked.want(("n1", "n2", "n3"))
    assert (asked.counted, asked.certain_size) == (("n1", "n2", "n3"), 2)
    asked.want(("n1", "n3"))  # n3 may be dead by the time this is granted: then n1 is alone
    assert (asked.counted, asked.certain_size) == (("n1", "n2", "n3"), 1)
    asked.changed(2, ("n1", "n3"))
    assert (asked.counted, asked.certain_size) == (("n1", "n3"), 2)


@pytest.mark.rule("C-12")
def test_a_set_that_was_only_prepared_ends_with_the_next_one_of_the_controller() -> None:
    prepared = SyncStateSet(1, (1, 2), 1)
    prepared.want((1, 2, 3), ready=False)
    assert prepared.confirmed({1: 5, 2: 5, 3: 2}) == 2
    prepared.changed(2, (1, 2))
    assert prepared.counted == (1, 2)
    assert prepared.confirmed({1: 5, 2: 5, 3: 2}) == 5


@pytest.mark.rule("C-12")
def test_two_replicas_are_enough() -> None:
    master = Replicated()
    pair = REPLICAS[:2]
    master.lead(replicas=pair)
    key = join(master)
    grant(master, (1, 2))
    both = master.append(b"a")
    ack_all(master, key)
    master.deliver(key, Closed("died"))
    alone = master.append(b"b", timeout_ms=60_000)
    master.tick(1_600)
    grant(master, (1,))
    assert master.fates() == [(both.last_index, "acknowledged"), (alone.last_index, "acknowledged")]


@pytest.mark.rule("D-26")
def test_an_append_that_joins_has_a_deadline_too() -> None:
    waiting = PendingAppends()
    append = PendingAppend(0, 0, Acks.QUORUM, 500, "repeat")
    waiting.join(append)
    assert waiting.time_out(499, AppendFate.TIMED_OUT) == []
    assert waiting.time_out(500, AppendFate.TIMED_OUT) == [(append, AppendFate.TIMED_OUT)]


def test_an_append_that_waits_too_long_is_refused() -> None:
    master, _ = in_sync_with_n2()
    first = master.append(b"a", timeout_ms=500)
    at_once = master.append(b"b", acks=Acks.LEADER, timeout_ms=500)
    assert master.fates() == [(at_once.last_index, "acknowledged")]
    master.tick(600)
    assert master.fates() == [(first.last_index, "quorum-timeout")]


def test_an_append_without_room_is_refused() -> None:
    master, _ = in_sync_with_n2()
    master.full = True
    pending = master.append(b"a")
    assert master.fates() == [(pending.last_index, "refused")]
    master.tick(60_000)
    assert master.fates() == []


@pytest.mark.rule("C-12")
def test_with_replicated_durability_written_is_enough_for_acks_but_not_for_an_epoch() -> None:
    master = Replicated(durability=Durability.REPLICATED)
    master.auto_sync = False
    master.lead()
    assert not master.core.accepts_appends  # the opening is on disk first
    master.sync()
    pending = master.append(b"a")
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_another_floor_counts_at_once() -> None:
    master, key = in_sync_with_n2()
    assert master.core.refusal is None
    options = LogOptions(durability=Durability.FSYNC, min_in_sync_replicas=3)
    master.core.apply_options(options, master.now_ms)
    assert isinstance(master.core.refusal, NotEnoughInSync)
    pending = master.append(b"a", timeout_ms=60_000)  # it was on its way
    ack_all(master, key)
    assert master.fates() == []
    master.core.apply_options(replace(options, min_in_sync_replicas=2), master.now_ms)
    assert master.core.refusal is None
    master.tick()
    assert master.fates() == [(pending.last_index, "acknowledged")]


def test_lapsed_leases_and_the_time_below_the_floor_are_counted() -> None:
    master = Replicated()
    master.core.apply_options(LogOptions(durability=Durability.FSYNC, min_in_sync_replicas=2), master.now_ms)
    master.lead(lease_ms=1_000)
    master.tick(100)
    before_ms = master.core.lease.below_floor_ms
    master.tick(400)
    assert master.core.lease.below_floor_ms == before_ms + 400
    left_ms = master.core.lease.remaining_ms(master.now_ms)
    assert 0 < left_ms < 1_000
    assert master.core.lease.lapses == 0
    master.tick(left_ms + 1)
    master.tick(100)
    assert (master.core.lease.lapses, master.core.lease.remaining_ms(master.now_ms)) == (1, 0)
