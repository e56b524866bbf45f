"""AutoSwitch at the slave after its handshake: transfer, confirm offset, time, roles."""

from dataclasses import replace

import pytest

from app.ha.config import HaConfig
from app.ha.frames import Ack, Handshake, TransferFrame
from app.ha.messages import Closed, Connect, Disconnect, Opened
from app.ha.roles import MANAGER, MasterRole, SlaveRole
from app.log.contract import NO_INDEX, Durability, LogOptions, TruncateAfter
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from tests.unit.ha.auto_switch.test_slave import answer_of, following, frames_of, master_log, send
from tests.unit.ha.lab import CONFIG, REPLICAS, Replicated, copy, new_log, next_batch, write


@pytest.mark.rule("A-06", "A-03")
def test_a_new_epoch_is_recorded_before_anything_of_it_is_acknowledged() -> None:
    theirs = master_log(1, 2)
    slave, key = following(new_log(), theirs, 2)
    slave.auto_sync = False
    send(slave, key, [frame for index in range(4) for frame in frames_of(theirs, theirs.batch_at(index))])
    assert slave.frames(key, Ack) == [Ack(0)]
    slave.sync()
    assert slave.frames(key, Ack) == [Ack(theirs.end_offset)]
    assert [(each.epoch, each.start_offset) for each in slave.log.epochs] == [
        (each.epoch, each.start_offset) for each in theirs.epochs
    ]


@pytest.mark.rule("A-06")
@pytest.mark.parametrize("wrong", ["not opened", "elsewhere"])
def test_an_epoch_that_does_not_open_as_in_its_header_is_refused(wrong: str) -> None:
    theirs = master_log(1)
    ours = copy(theirs)
    batch = next_batch(ours, 2, b"x") if wrong == "not opened" else next_batch(ours, 2, opened_by="n1")
    start = batch.offset if wrong == "not opened" else batch.offset - 8
    slave, key = following(ours, theirs, 2)
    slave.take()
    slave.deliver(key, TransferFrame(batch.offset, 2, start, 0, bytes(batch.data)))
    assert len(slave.frames(key, Disconnect)) == 1
    assert ours.end_index == theirs.end_index


@pytest.mark.rule("H-03", "A-08")
def test_only_whole_batches_are_stored_and_acknowledged() -> None:
    theirs = master_log(1)
    big = write(theirs, 1, b"x" * 5_000)
    slave, key = following(copy(theirs, until=theirs.batch_at(1)), theirs, 1)
    slave.take()
    pieces = frames_of(theirs, big, size=700)
    send(slave, key, pieces[:-1])
    assert slave.frames(key, Ack) == []
    assert slave.log.end_index == 1
    send(slave, key, pieces[-1:])
    assert slave.frames(key, Ack) == [Ack(big.next_offset)]


@pytest.mark.rule("A-10")
def test_a_slave_serves_up_to_the_confirm_offset_only() -> None:
    theirs = master_log(1, records=3)
    slave, key = following(new_log(), theirs, 1)
    for index in range(4):
        send(slave, key, frames_of(theirs, theirs.batch_at(index), confirm=theirs.batch_at(1).next_offset))
    assert (slave.log.end_index, slave.core.committed_index) == (3, 1)
    slave.deliver(key, TransferFrame(theirs.end_offset, 1, 0, theirs.batch_at(2).next_offset + 8))
    assert slave.core.committed_index == 2  # wholly below
    slave.deliver(key, TransferFrame(theirs.end_offset, 1, 0, theirs.end_offset + 10_000))
    assert slave.core.committed_index == 3  # as far as it holds
    slave.deliver(key, TransferFrame(theirs.end_offset, 1, 0, 0))
    assert slave.core.committed_index == 3  # it never falls
    assert slave.core.confirm_offset == theirs.end_offset


@pytest.mark.rule("A-10")
def test_after_a_reconnect_what_was_stored_before_is_confirmed_too() -> None:
    theirs = master_log(1, records=3)
    slave, key = following(copy(theirs), theirs, 1)
    assert slave.core.committed_index == NO_INDEX
    slave.deliver(key, TransferFrame(theirs.end_offset, 1, 0, theirs.batch_at(2).next_offset))
    assert slave.core.committed_index == 2


@pytest.mark.rule("A-10")
def test_records_stored_before_a_reconnect_are_confirmed_while_no_record_follows() -> None:
    """Otherwise linearizable reads at this replica fail until the next append."""
    theirs = master_log(1, records=3)
    slave, key = following(copy(theirs), theirs, 1)
    for confirmed in (1, 2, 3):
        slave.deliver(key, TransferFrame(theirs.end_offset, 1, 0, theirs.batch_at(confirmed).next_offset))
        assert slave.core.committed_index == confirmed


@pytest.mark.rule("H-04", "A-05")
@pytest.mark.parametrize(
    "wrong", ["gap", "repeat", "other epoch", "newer epoch", "garbage", "other log", "chain"]
)
def test_whatever_does_not_fit_exactly_costs_the_connection_and_stores_nothing(wrong: str) -> None:
    theirs = master_log(1, records=3)
    ours = copy(theirs, until=theirs.batch_at(2))
    batch = theirs.batch_at(3)
    if wrong == "other log":
        batch = next_batch(ours, 1, b"x", log_id=8)
    if wrong == "chain":
        fork = master_log(1, records=1)
        write(fork, 1, b"1-X")
        batch = next_batch(fork, 1, b"1-2")
    (frame,) = frames_of(theirs, batch)
    frame = {
        "gap": TransferFrame(frame.offset - 8, 1, 0, 0, frame.body),
        "repeat": frames_of(theirs, theirs.batch_at(2))[0],
        "other epoch": TransferFrame(frame.offset, 2, frame.offset, 0, frame.body),
        "newer epoch": TransferFrame(frame.offset, 9, 0, 0, frame.body),
        "garbage": TransferFrame(frame.offset, 1, 0, 0, b"\x01" * 200),
    }.get(wrong, frame)
    slave, key = following(ours, theirs, 2)
    slave.take()
    slave.deliver(key, frame)
    assert len(slave.frames(key, Disconnect)) == 1
    assert slave.log.end_index == 2
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    assert isinstance(slave.take()[-1][1], Connect)


@pytest.mark.rule("A-04", "A-05")
@pytest.mark.parametrize("fitting", [0, 1])
def test_a_frame_with_a_batch_that_is_refused_replaces_nothing_and_is_in_no_event(fitting: int) -> None:
    """The logs have no epoch in common: the first frame that fits replaces this one. fitting: batches of the
    refused frame that come before."""
    theirs = master_log(2)
    slave, key = following(master_log(1), theirs, 2)
    held = slave.log.end_index
    (frame,) = frames_of(theirs, theirs.batch_at(0))
    before = copy(theirs, until=theirs.batch_at(0)) if fitting else new_log()
    other = next_batch(before, 2, opened_by="n1", log_id=8)
    slave.deliver(key, TransferFrame(0, 2, 0, 0, bytes(frame.body) * fitting + bytes(other.data)))
    assert len(slave.frames(key, Disconnect)) == 1
    assert (slave.log.end_index, slave.truncations, slave.reported("truncate")) == (held, [], [])
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    key = slave.dialled()
    slave.deliver(key, answer_of(theirs, 2))
    slave.deliver(key, frame)
    assert slave.log.end_index == 0
    assert len(slave.reported("truncate")) == 1


def test_no_room_on_the_disk_costs_the_connection_and_nothing_else() -> None:
    theirs = master_log(1)
    slave, key = following(new_log(), theirs, 1)
    slave.full = True
    send(slave, key, frames_of(theirs, theirs.batch_at(0)))
    assert len(slave.frames(key, Disconnect)) == 1
    slave.full = False
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    key = slave.dialled()
    slave.deliver(key, answer_of(theirs, 1))
    send(slave, key, [frame for index in (0, 1) for frame in frames_of(theirs, theirs.batch_at(index))])
    assert slave.log.last_chain == theirs.last_chain


@pytest.mark.rule("H-01", "H-05")
def test_a_lost_or_silent_connection_is_made_again_after_a_pause() -> None:
    theirs = master_log(1)
    slave, key = following(copy(theirs), theirs, 1)
    slave.take()
    slave.deliver(key, Closed("reset"))
    slave.tick(CONFIG.ha_reconnect_interval_ms - 1)
    assert slave.take() == []
    slave.tick(1)
    key = slave.dialled()
    slave.take()
    slave.tick(CONFIG.ha_housekeeping_interval_ms + 1)
    assert slave.frames(key, Disconnect) == [Disconnect("the master is silent", "n1")]


@pytest.mark.rule("H-02")
def test_a_quiet_slave_reports_at_every_heartbeat() -> None:
    theirs = master_log(1)
    slave, key = following(copy(theirs), theirs, 1)
    slave.take()
    slave.tick(CONFIG.ha_send_heartbeat_interval_ms)
    assert slave.take() == [(key, Ack(theirs.end_offset))]


def test_events_of_old_connections_are_ignored() -> None:
    theirs = master_log(1)
    slave, old = following(copy(theirs), theirs, 1)
    slave.deliver(old, Closed("reset"))
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    new = slave.dialled()
    slave.take()
    slave.deliver(old, Closed("again"))
    slave.deliver(old, answer_of(theirs, 1))
    assert slave.take() == []
    slave.deliver(new, answer_of(theirs, 1))
    assert slave.take() == [(new, Ack(theirs.end_offset))]


@pytest.mark.rule("A-12")
def test_a_slave_becomes_master_with_all_it_has_and_drops_half_a_batch() -> None:
    theirs = master_log(1, records=3)
    slave, key = following(copy(theirs, until=theirs.batch_at(2)), theirs, 1)
    send(slave, key, frames_of(theirs, theirs.batch_at(3), size=100)[:-1])
    slave.take()
    slave.lead(epoch=2, members=(2,))
    assert len(slave.frames(key, Disconnect)) == 1
    assert slave.core.accepts_appends
    assert (slave.log.end_index, slave.log.last_term) == (3, 2)
    assert slave.core.committed_index == 3
    assert slave.log.epochs[-1].start_offset == theirs.batch_at(2).next_offset


@pytest.mark.rule("C-10")
def test_the_same_role_again_changes_nothing() -> None:
    theirs = master_log(1)
    slave, _ = following(copy(theirs), theirs, 1)
    slave.take()
    slave.deliver(MANAGER, SlaveRole(1, 1, REPLICAS))
    slave.deliver(MANAGER, SlaveRole(1, 1, REPLICAS, sync_state_set=(1, 2)))
    assert slave.take() == []
    assert slave.core.status().sync_state_set == ("n1", "n2")
    slave.deliver(MANAGER, SlaveRole(3, 2, REPLICAS))
    slave.tick()
    assert [type(message) for _, message in slave.take()] == [Disconnect, Connect]


def test_slaves_of_a_slave_are_sent_away() -> None:
    slave = Replicated("n2")
    slave.follow()
    key = slave.connected()
    assert [type(message) for message in slave.frames(key)] == [Disconnect]


def test_a_slave_asks_its_master_what_a_linearizable_read_must_see() -> None:
    theirs = master_log(1)
    slave, _ = following(copy(theirs), theirs, 1)
    slave.take()
    slave.core.read_index("reader", slave.now_ms)
    slave.carry_out()
    ((target, request),) = slave.take()
    assert (target, type(request)) == ("n1", ReadIndexRequest)
    slave.deliver("n3", ReadIndexAnswer(1, request.id, 7))
    assert slave.reads == []
    slave.deliver("n1", ReadIndexAnswer(1, request.id, 1))
    assert slave.reads == [("reader", 1)]
    slave.deliver(MANAGER, SlaveRole(None, 1, REPLICAS))
    slave.core.read_index("other", slave.now_ms)
    slave.carry_out()
    assert slave.reads[-1] == ("other", None)


@pytest.mark.rule("A-04", "A-10")
def test_records_that_an_unclean_election_may_have_lost_are_in_no_linearizable_read() -> None:
    """The index of the new master is of another history than the records at it here."""
    theirs = master_log(1)
    lost, kept = copy(theirs), copy(theirs)
    write(lost, 1, b"confirmed, and lost")
    for ours in (lost, kept):
        slave = Replicated("n2", ours, committed_index=ours.end_index)
        key = slave.follow(epoch=2, unclean_epoch=2)
        slave.core.read_index("before the comparison", slave.now_ms)
        slave.carry_out()
        assert slave.reads == [("before the comparison", None)]
        slave.deliver(key, answer_of(theirs, 2))
        slave.take()
        slave.core.read_index("after it", slave.now_ms)
        slave.carry_out()
        asked = [message for _, message in slave.take() if isinstance(message, ReadIndexRequest)]
        assert len(asked) == (0 if ours is lost else 1)  # before the rollback it is the same
    newer = Replicated("n2", master_log(1, 2))
    newer.follow(epoch=3, unclean_epoch=2)
    newer.core.read_index("of the new history", newer.now_ms)
    newer.carry_out()
    assert newer.reads == []


@pytest.mark.rule("A-07")
def test_the_handshake_of_newer_builds_is_spoken_when_asked_for() -> None:
    config = HaConfig(ha_handshake_by_number=True, ha_sync_from_last_file=True)
    slave = Replicated("n2", config=config)
    key = slave.follow()
    assert slave.frames(key, Handshake) == [Handshake("n2:10911", sync_from_last_file=True, number=2)]


@pytest.mark.rule("A-07")
@pytest.mark.parametrize(
    ("size", "asked", "number"), [(50, None, 0), (51, None, 2), (51, True, 2), (50, False, 0)]
)
def test_an_address_without_room_in_the_handshake_is_replaced_by_the_number(
    size: int, asked: bool | None, number: int
) -> None:
    address = "x" * (size - 6) + ":10911"
    slave = Replicated("n2", config=HaConfig(ha_handshake_by_number=asked))
    replicas = (REPLICAS[0], replace(REPLICAS[1], address=address))
    slave.deliver(MANAGER, SlaveRole(1, 1, replicas))
    slave.tick()
    key = slave.dialled()
    assert slave.frames(key, Handshake) == [Handshake(address, number=number)]


def test_a_stop_sends_a_disconnect() -> None:
    theirs = master_log(1)
    slave, key = following(copy(theirs), theirs, 1)
    slave.take()
    slave.core.stop(slave.now_ms)
    slave.carry_out()
    assert [type(message) for message in slave.frames(key)] == [Disconnect]


@pytest.mark.rule("C-12")
def test_with_replicated_durability_what_is_written_is_acknowledged() -> None:
    theirs = master_log(1)
    slave, key = following(new_log(), theirs, 1, durability=Durability.REPLICATED)
    slave.auto_sync = False
    slave.take()
    send(slave, key, frames_of(theirs, theirs.batch_at(0)))
    assert slave.frames(key, Ack) == [Ack(theirs.batch_at(0).next_offset)]


@pytest.mark.rule("A-12")
def test_a_master_cut_off_with_unconfirmed_records_comes_back_as_a_slave() -> None:
    old = Replicated("n1")
    old.lead(epoch=1)
    old.append(b"a")
    theirs = copy(old.log)
    old.deliver(MANAGER, MasterRole(1, (1, 2), 2, REPLICAS))
    old.append(b"only here")
    write(theirs, 2, opened_by="n2")
    key = old.follow(2, 2)
    old.deliver(key, answer_of(theirs, 2))
    send(old, key, frames_of(theirs, theirs.batch_at(2), confirm=theirs.end_offset))
    assert old.truncations == [TruncateAfter(1)]
    assert old.log.last_chain == theirs.last_chain
    assert old.core.committed_index == 2


@pytest.mark.rule("R-11", "C-12")
def test_a_change_to_fsync_takes_no_acknowledgement_back() -> None:
    """A report of less would end the connection, and an election could take this copy for an older one."""
    theirs = master_log(1, records=2)
    slave, key = following(new_log(), theirs, 1, durability=Durability.REPLICATED, auto_sync=False)
    send(slave, key, [frame for index in range(3) for frame in frames_of(theirs, theirs.batch_at(index))])
    end_offset = theirs.end_offset
    assert slave.frames(key, Ack)[-1] == Ack(end_offset)
    slave.core.apply_options(LogOptions(durability=Durability.FSYNC), slave.now_ms)
    slave.core.synced(slave.now_ms)
    slave.tick(CONFIG.ha_send_heartbeat_interval_ms)
    assert slave.frames(key) == [Ack(end_offset)]
    assert (slave.core.max_offset, slave.core.log_epoch) == (end_offset, 1)
    send(slave, key, frames_of(theirs, write(theirs, 1, b"after the change")))
    assert slave.frames(key) == []
    slave.sync()
    assert slave.frames(key) == [Ack(theirs.end_offset)]


@pytest.mark.rule("R-11")
def test_after_a_change_to_fsync_a_connection_begins_with_what_is_synced() -> None:
    """The connection may have ended before the report of a record that the master promises to have synced."""
    theirs = master_log(1, records=2)
    slave, key = following(new_log(), theirs, 1, durability=Durability.REPLICATED, auto_sync=False)
    send(slave, key, [frame for index in range(3) for frame in frames_of(theirs, theirs.batch_at(index))])
    slave.deliver(key, Closed("cut"))
    slave.core.apply_options(LogOptions(durability=Durability.FSYNC), slave.now_ms)
    slave.take()
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    ((again, connect),) = slave.take()
    assert isinstance(connect, Connect)
    slave.deliver(again, Opened())
    slave.deliver(again, answer_of(theirs, 1))
    assert slave.frames(again, Ack) == []
    slave.sync()
    assert slave.frames(again, Ack) == [Ack(theirs.end_offset)]


@pytest.mark.rule("R-11")
def test_records_in_the_place_of_truncated_ones_are_acknowledged_once_they_are_synced() -> None:
    theirs = master_log(1, records=1)
    slave = Replicated("n2", copy(theirs), durability=Durability.REPLICATED, auto_sync=False)
    slave.log.append([next_batch(slave.log, 1, b"of the master before")])
    slave.core.apply_options(LogOptions(durability=Durability.FSYNC), slave.now_ms)
    write(theirs, 2, opened_by="n1")
    key = slave.follow(epoch=2)
    slave.deliver(key, answer_of(theirs, 2))
    assert slave.truncations == [TruncateAfter(1)]
    slave.take()
    send(slave, key, frames_of(theirs, theirs.batch_at(2)))
    assert slave.frames(key) == []
    slave.sync()
    assert slave.frames(key) == [Ack(theirs.end_offset)]
