"""A copy without the log's state, or without older records, follows as a learner (C-05, C-08)."""

import pytest

from app.ha.auto_switch.slave_side import Rollback
from app.ha.frames import Ack, Handshake, TransferFrame
from app.ha.messages import Connect, Disconnect
from app.log.contract import NO_INDEX, Reset, Role
from storage.log.hard_state import HardState
from tests.unit.ha.auto_switch.test_slave import answer_of, following, frames_of, master_log, send
from tests.unit.ha.lab import CONFIG, Replicated, copy, new_log, write
from tests.unit.ha.masters import SLOW, ack_all, in_sync_with_n2, join


@pytest.mark.rule("C-11", "C-08")
def test_a_copy_that_may_not_lead_introduces_itself_as_a_learner() -> None:
    theirs = master_log(1)
    slave = Replicated("n2", copy(theirs))
    slave.core.electable = False
    key = slave.follow()
    assert slave.frames(key, Handshake) == [Handshake("n2:10911", is_learner=True)]
    slave.deliver(key, answer_of(theirs, 1))
    assert slave.frames(key, Ack) == [Ack(theirs.end_offset)]  # it is sent the log all the same


@pytest.mark.rule("C-11", "C-08")
def test_a_copy_that_may_lead_by_now_introduces_itself_again_at_once() -> None:
    theirs = master_log(1)
    slave = Replicated("n2", copy(theirs))
    slave.core.electable = False
    key = slave.follow()
    slave.deliver(key, answer_of(theirs, 1))
    slave.take()
    slave.core.electable = True
    slave.tick()
    assert [type(message) for _, message in slave.take()] == [Disconnect]
    slave.tick()
    key = slave.dialled()
    assert slave.frames(key, Handshake) == [Handshake("n2:10911")]


@pytest.mark.rule("C-08", "A-04")
def test_no_ack_of_a_log_that_begins_later_leaves_on_the_connection_of_a_member() -> None:
    """The master has trimmed: what the copy knew of the log's state ends before its new beginning."""
    theirs = master_log(1, 2, records=3)
    slave, key = following(copy(theirs, until=theirs.batch_at(1)), theirs, 2)
    slave.take()
    slave.auto_sync = False
    slave.core.electable = False  # as the driver finds out once the log begins there
    send(slave, key, frames_of(theirs, theirs.batch_at(5)))
    assert len(slave.truncations) == 1
    assert [type(message) for message in slave.frames(key)] == [Disconnect]
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    key = slave.dialled()
    assert slave.frames(key, Handshake) == [Handshake("n2:10911", is_learner=True)]


@pytest.mark.rule("C-07", "C-12")
def test_a_member_that_comes_back_as_a_learner_leaves_the_set() -> None:
    master, _ = in_sync_with_n2()
    pending = master.append(b"a")
    key = join(master, number=2, learner=True)
    ack_all(master, key)
    assert master.fates() == []
    assert master.wanted_set == (1,)
    for _ in range(8):  # and however long the controller takes to answer
        master.tick(SLOW // 8)
        ack_all(master, key)
    assert (master.fates(), master.wanted_set) == ([], (1,))
    assert master.core.watermarks()[1]["n2"] == pending.last_index  # how far it is shows all the same


@pytest.mark.rule("C-05", "A-01")
def test_a_copy_that_may_not_lead_takes_no_mastership_up_but_by_an_unclean_election() -> None:
    replica = Replicated("n1", copy(master_log(1)))
    replica.core.electable = False
    replica.lead(epoch=2)
    assert (replica.core.role, replica.core.epoch, replica.core.needs_election) == (Role.SLAVE, 2, True)
    assert replica.saved[-1] == HardState(2)  # this epoch is not opened here
    replica.lead(epoch=3, unclean_epoch=2)
    assert (replica.core.role, replica.core.needs_election) == (Role.SLAVE, True)
    replica.lead(epoch=4, unclean_epoch=4)
    assert (replica.core.role, replica.core.needs_election) == (Role.MASTER, False)
    assert replica.core.accepts_appends


# --- a log that is about to be replaced ---------------------------------------------------------------


@pytest.mark.rule("A-10", "A-04")
@pytest.mark.parametrize("between", ["piece", "heartbeat"])
def test_bytes_that_the_master_does_not_have_are_never_taken_for_confirmed(between: str) -> None:
    """The master has trimmed beyond the common epoch, and its first batch arrives in pieces."""
    theirs = master_log(1, 3, records=4)
    ours = copy(theirs, until=theirs.batch_at(1))
    fork = master_log(2, records=6)  # no epoch in common; never confirmed
    first = theirs.batch_at(6)
    slave = Replicated("n2", fork, committed_index=1)
    key = slave.follow(epoch=3)
    answer = answer_of(theirs, 3)
    slave.deliver(key, type(answer)(answer.max_offset, 3, answer.epochs[-1:]))
    pieces = frames_of(theirs, first, confirm=theirs.end_offset, size=100)
    assert len(pieces) > 1
    slave.deliver(key, pieces[0])
    if between == "heartbeat":
        slave.deliver(
            key, TransferFrame(pieces[1].offset, 3, pieces[1].epoch_start_offset, theirs.end_offset)
        )
    assert slave.core.committed_index == 1
    send(slave, key, pieces[1:])
    assert slave.truncations == [Reset(first.base_index, first.offset)]
    assert slave.core.committed_index == first.last_index  # of the master's log, and as far as it is here
    assert ours.end_index == 1


@pytest.mark.rule("A-04", "R-07")
def test_a_master_that_begins_before_the_confirmed_is_refused_loudly_and_seldom() -> None:
    theirs = master_log(2)
    slave, key = following(master_log(1), theirs, 2, committed_index=1)
    send(slave, key, frames_of(theirs, theirs.batch_at(0)))
    assert "confirmed" in slave.reported("corruption")[0]["reason"]
    slave.take()
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    assert slave.take() == []
    slave.tick(9 * CONFIG.ha_reconnect_interval_ms)
    assert [type(message) for _, message in slave.take()] == [Connect]


@pytest.mark.rule("A-04", "R-07")
def test_an_empty_log_takes_any_masters_log() -> None:
    """A crash amid a reset has left it empty at an index that a later master's log begins before."""
    theirs = master_log(1, 2)
    ours = new_log()
    ours.reset(9, 4_000)
    slave, key = following(ours, theirs, 2)
    assert slave.core.committed_index == 8
    send(slave, key, frames_of(theirs, theirs.batch_at(0), confirm=theirs.batch_at(0).next_offset))
    assert slave.truncations == [Reset(0, 0)]
    assert (ours.end_index, slave.core.committed_index) == (0, 0)


@pytest.mark.rule("C-10", "A-04")
def test_a_master_of_an_epoch_that_the_metadata_here_do_not_name_is_left() -> None:
    """The same node may have been elected uncleanly since: without the receipt nothing is truncated."""
    theirs = master_log(1)
    ours = copy(theirs)
    write(ours, 1, b"confirmed, which is not known here")
    write(theirs, 2, opened_by="n1")
    slave = Replicated("n2", ours)
    key = slave.follow(epoch=1)
    slave.take()
    slave.deliver(key, answer_of(theirs, 2))
    assert [type(message) for message in slave.frames(key)] == [Disconnect]
    assert (slave.truncations, slave.core.term) == ([], 1)
    key = slave.follow(epoch=2, unclean_epoch=2)
    slave.deliver(key, answer_of(theirs, 2))
    assert slave.core.wanted_rollback == Rollback(1, 2)
    assert slave.truncations == []


@pytest.mark.rule("A-09", "A-10")
def test_a_last_segment_that_is_not_confirmed_yet_is_not_where_a_slave_begins() -> None:
    master = Replicated(log=new_log(segment_max_bytes=4_096))
    master.lead(members=(1, 3))
    for number in range(6):
        master.append(b"%d" % number * 2_000)
    assert master.core.committed_index == NO_INDEX
    assert master.log.last_segment_index > 0
    key = master.connected()
    master.deliver(key, Handshake("n2:10911", sync_from_last_file=True))
    master.take()
    master.deliver(key, Ack(0))
    assert master.frames(key, TransferFrame)[0].offset == 0
