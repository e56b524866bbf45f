"""A node whose disk was replaced keeps another copy: reports of the old one do not count (C-03, C-08)."""

import pytest

from app.ha.frames import Ack, Handshake
from app.ha.messages import Disconnect
from app.ha.roles import MANAGER, KnownReplica, MasterRole, SyncStateSetUpdate
from tests.unit.ha.lab import REPLICAS, Replicated
from tests.unit.ha.masters import SLOW, ack_all, in_sync_with_n2, join

NEW_COPY = KnownReplica(4, "n2", "n2:10911")
REPLACED = (REPLICAS[0], NEW_COPY, REPLICAS[2])


def replace_n2(master: Replicated) -> None:
    """The controllers have registered another copy at n2; the old one has left the set."""
    master.deliver(MANAGER, MasterRole(1, (1,), 3, REPLACED))


@pytest.mark.rule("C-03", "C-08")
def test_the_half_open_connection_of_a_lost_copy_brings_no_replica_into_the_set() -> None:
    master, old = in_sync_with_n2()
    replace_n2(master)
    assert len(master.frames(old, Disconnect)) == 1
    ack_all(master, old)  # it was on its way
    master.tick(SLOW)
    assert master.wanted_set is None
    assert master.core.watermarks() == {1: {"n1": master.log.end_index, "n2": -1, "n3": -1}}


@pytest.mark.rule("C-03", "C-12")
def test_records_of_a_lost_copy_do_not_count_as_acks_of_the_new_one() -> None:
    master, old = in_sync_with_n2()
    pending = master.append(b"a")
    ack_all(master, old)
    assert master.fates() == [(pending.last_index, "acknowledged")]
    replace_n2(master)
    master.deliver(MANAGER, SyncStateSetUpdate(1, 4, (1, NEW_COPY.id)))
    late = master.append(b"b")
    ack_all(master, old)
    assert master.fates() == []
    new = join(master, number=2, at=0)
    assert master.fates() == []
    ack_all(master, new)
    assert master.fates() == [(late.last_index, "acknowledged")]


@pytest.mark.rule("C-03", "A-07")
@pytest.mark.parametrize("by_number", [False, True])
def test_a_new_copy_joins_by_its_own_acks(by_number: bool) -> None:
    master, _ = in_sync_with_n2()
    replace_n2(master)
    key = master.connected(2)
    master.deliver(key, Handshake("", number=NEW_COPY.id) if by_number else Handshake(NEW_COPY.address))
    master.deliver(key, Ack(0))
    assert master.wanted_set is None
    ack_all(master, key)
    assert master.wanted_set == (1, NEW_COPY.id)
    assert master.core.status().sync_state_set == ("n1",)


@pytest.mark.rule("C-03", "A-07")
@pytest.mark.parametrize("number", [2, 9])
def test_a_copy_that_is_not_registered_is_refused_by_its_number(number: int) -> None:
    """2: an old copy whose handshake arrives late. 9: one that this master has not heard of yet."""
    master, _ = in_sync_with_n2()
    replace_n2(master)
    key = master.connected(2)
    master.deliver(key, Handshake("", number=number))
    assert len(master.frames(key, Disconnect)) == 1


@pytest.mark.rule("C-03")
def test_a_copy_that_moves_or_becomes_a_learner_introduces_itself_again() -> None:
    for changed in (
        KnownReplica(2, "n2", "elsewhere:10911"),
        KnownReplica(2, "n2", "n2:10911", learner=True),
    ):
        master, key = in_sync_with_n2()
        master.deliver(MANAGER, MasterRole(1, (1, 2), 2, (REPLICAS[0], changed, REPLICAS[2])))
        assert len(master.frames(key, Disconnect)) == 1
        master, key = in_sync_with_n2()
        master.deliver(MANAGER, MasterRole(1, (1, 2), 2, REPLICAS))
        assert master.frames(key, Disconnect) == []
