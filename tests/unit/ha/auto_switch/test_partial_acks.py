"""A master that acknowledges what a part of its SyncStateSet holds (C-07, C-08, C-12)."""

import pytest

from app.ha.messages import Closed
from app.ha.roles import MANAGER, SyncStateSetUpdate
from app.log.contract import Acks, Durability, LogOptions
from tests.unit.ha.lab import NAMES, Replicated
from tests.unit.ha.masters import ack_all, join


def grant(master: Replicated, members: tuple[int, ...], acks: int) -> None:
    """The controllers record the set that was asked for."""
    request = master.core.set_request
    assert request is not None
    assert (request.members, request.acks) == (members, acks)
    epoch = request.sync_state_set_epoch
    master.deliver(MANAGER, SyncStateSetUpdate(request.master_epoch, epoch + 1, members, acks))


def by_two_of_three() -> tuple[Replicated, dict[str, str]]:
    """n1 is master of {n1, n2, n3}; two of them acknowledge."""
    master = Replicated()
    master.core.apply_options(LogOptions(durability=Durability.FSYNC, in_sync_replicas=2), master.now_ms)
    master.lead()
    keys = {node: join(master, node, number) for number, node in enumerate(NAMES[1:], 1)}
    for members in ((1, 2), (1, 2, 3)):
        if master.wanted_set == members:
            grant(master, members, 2)
    assert master.wanted_set is None
    master.take()
    return master, keys


@pytest.mark.rule("C-12")
def test_two_of_three_acknowledge_and_acks_all_waits_for_the_third() -> None:
    master, keys = by_two_of_three()
    one = master.append(b"a")
    other = master.append(b"b", acks=Acks.ALL)
    ack_all(master, keys["n3"])
    assert master.core.committed_index == other.last_index
    assert master.fates() == [(one.last_index, "acknowledged")]
    ack_all(master, keys["n2"])
    assert master.fates() == [(other.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_the_whole_set_counts_until_the_controllers_have_recorded_fewer() -> None:
    master = Replicated()
    master.lead()
    keys = {node: join(master, node, number) for number, node in enumerate(NAMES[1:], 1)}
    request = master.core.set_request
    assert request is not None
    master.deliver(MANAGER, SyncStateSetUpdate(1, 9, (1, 2, 3)))
    assert master.core.set_request is None
    master.core.apply_options(LogOptions(durability=Durability.FSYNC, in_sync_replicas=2), master.now_ms)
    master.tick(1)
    pending = master.append(b"a")
    ack_all(master, keys["n2"])
    assert master.fates() == []
    master.deliver(MANAGER, SyncStateSetUpdate(1, 10, (1, 2, 3), 2))
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("C-12")
def test_to_count_all_again_every_member_must_hold_what_is_confirmed_first() -> None:
    master, keys = by_two_of_three()
    master.append(b"a")
    ack_all(master, keys["n2"])
    master.core.apply_options(LogOptions(durability=Durability.FSYNC), master.now_ms)
    master.tick(1)
    assert master.core.set_request is None
    ack_all(master, keys["n3"])
    grant(master, (1, 2, 3), 0)


@pytest.mark.rule("C-07", "C-12")
def test_a_smaller_set_is_asked_for_only_once_each_of_its_members_holds_what_is_confirmed() -> None:
    """A record is on n1 and n2. Without n2 the set would be {n1, n3}, and n3 alone could be elected."""
    master, keys = by_two_of_three()
    pending = master.append(b"a")
    ack_all(master, keys["n2"])
    assert master.fates() == [(pending.last_index, "acknowledged")]
    master.deliver(keys["n2"], Closed("restarted"))
    join(master, "n2", 9, learner=True)  # it has lost the log's state, and must leave
    assert master.wanted_set is None
    ack_all(master, keys["n3"])
    assert master.wanted_set == (1, 3)


@pytest.mark.rule("C-12")
def test_records_that_a_member_to_be_kept_lacks_are_not_confirmed_while_the_change_is_prepared() -> None:
    """Else a member that is always a little late would keep the set from changing under load."""
    master, keys = by_two_of_three()
    master.append(b"a")
    ack_all(master, keys["n2"])
    assert master.wanted_set is None
    master.core.apply_options(LogOptions(durability=Durability.FSYNC, in_sync_replicas=3), master.now_ms)
    master.tick(1)
    master.take()
    pending = master.append(b"b")
    ack_all(master, keys["n2"])
    assert (pending.last_index, "acknowledged") not in master.fates()
    ack_all(master, keys["n3"])
    assert (pending.last_index, "acknowledged") in master.fates()
    assert master.wanted_set == (1, 2, 3)


@pytest.mark.rule("C-12")
def test_a_change_that_is_prepared_and_not_wanted_any_more_delays_nothing() -> None:
    master, keys = by_two_of_three()
    master.append(b"a")
    ack_all(master, keys["n2"])
    for acks in (3, 2):  # n3 lacks a record: the first change waits, and is taken back
        options = LogOptions(durability=Durability.FSYNC, in_sync_replicas=acks)
        master.core.apply_options(options, master.now_ms)
        master.tick(1)
        assert master.core.set_request is None
    pending = master.append(b"b")
    ack_all(master, keys["n2"])
    assert (pending.last_index, "acknowledged") in master.fates()


@pytest.mark.rule("C-12")
def test_while_a_change_is_unanswered_each_member_of_the_new_set_counts_and_enough_of_the_old() -> None:
    master, keys = by_two_of_three()
    master.deliver(keys["n2"], Closed("died"))
    for _ in range(4):
        master.tick(450)
        ack_all(master, keys["n3"])
    assert master.wanted_set == (1, 3)
    pending = master.append(b"a", timeout_ms=60_000)
    assert master.fates() == []
    ack_all(master, keys["n3"])  # two of {1, 2, 3}, all of {1, 3}: no wait for the dead
    assert master.fates() == [(pending.last_index, "acknowledged")]
    key = join(master, "n2", 9)
    later = master.append(b"b", timeout_ms=60_000)
    ack_all(master, key)
    assert (later.last_index, "acknowledged") not in master.fates()  # {1, 3} may be the set by now
    ack_all(master, keys["n3"])
    assert (later.last_index, "acknowledged") in master.fates()


@pytest.mark.rule("C-07")
def test_a_member_that_holds_less_than_it_acknowledged_leaves_the_set() -> None:
    master, keys = by_two_of_three()
    before = master.log.end_offset
    master.append(b"a")
    ack_all(master, keys["n2"])
    ack_all(master, keys["n3"])
    master.deliver(keys["n3"], Closed("repaired"))
    join(master, "n3", 7, at=before)
    assert master.wanted_set == (1, 2)
