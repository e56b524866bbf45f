"""AutoSwitch at the master: opening an epoch, sending to slaves, the lease, reads."""

import pytest

from app.errors import InvariantError
from app.ha.config import HaConfig
from app.ha.frames import Ack, Handshake, HandshakeAnswer, TransferFrame
from app.ha.messages import Closed, Disconnect, Drained
from app.ha.roles import MANAGER, Lease, MasterRole, SlaveRole
from app.log.contract import NO_INDEX, Acks, Durability, Role
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from storage.log.hard_state import HardState
from tests.unit.ha.lab import REPLICAS, Replicated, check_last_heard, new_log, next_batch, write
from tests.unit.ha.masters import ack_all, grant, in_sync_with_n2, join

# --- A-01 -----------------------------------------------------------------------------------------


@pytest.mark.rule("A-01")
def test_the_epoch_is_open_only_when_its_first_record_is_durable() -> None:
    master = Replicated()
    master.auto_sync = False
    early = master.connected()
    master.lead(epoch=4)
    assert master.saved == [HardState(4, "n1")]
    assert (master.core.role, master.core.term, master.core.accepts_appends) == (Role.MASTER, 4, False)
    early = master.connected()
    master.deliver(early, Handshake("n2:10911"))
    master.take()
    master.tick(10)
    assert master.frames(early, HandshakeAnswer) == []
    master.sync()
    assert [(epoch.epoch, epoch.start_offset) for epoch in master.log.epochs] == [(4, 0)]
    assert master.core.accepts_appends
    (answer,) = master.frames(early, HandshakeAnswer)
    assert (answer.epoch, answer.max_offset) == (4, master.log.end_offset)


@pytest.mark.rule("A-01", "C-05")
@pytest.mark.parametrize("durability", list(Durability))
def test_an_epoch_is_not_reported_before_it_is_open(durability: Durability) -> None:
    """The controllers would take it for open: a master whose disk hangs would not be replaced."""
    log = new_log()
    write(log, 3, opened_by="n2")
    end_offset = log.end_offset
    master = Replicated(log=log, durability=durability)
    master.auto_sync = False
    master.lead(epoch=4)
    assert log.end_offset > end_offset
    assert not master.core.accepts_appends
    assert (master.core.log_epoch, master.core.max_offset) == (3, end_offset)
    master.sync()
    assert master.core.accepts_appends
    assert (master.core.log_epoch, master.core.max_offset) == (4, log.end_offset)


@pytest.mark.rule("A-01")
def test_an_epoch_is_opened_by_one_life_only() -> None:
    """It may have lost what its slaves hold: going on in the same epoch could write other records there."""
    again = Replicated(hard_state=HardState(4, "n1"))
    again.lead(epoch=4)
    assert again.core.needs_election
    assert (again.core.role, again.core.leader_id, again.log.end_index) == (Role.SLAVE, None, NO_INDEX)
    again.lead(epoch=5)
    assert not again.core.needs_election
    assert again.core.accepts_appends


@pytest.mark.rule("A-01")
def test_no_epoch_is_opened_that_the_log_is_past() -> None:
    log = new_log()
    write(log, 7, opened_by="n3")
    master = Replicated(log=log)
    master.lead(epoch=6)
    assert (master.core.role, master.core.epoch, master.core.needs_election) == (Role.SLAVE, 7, False)
    master.lead(epoch=7)
    assert master.core.needs_election


@pytest.mark.rule("A-01")
def test_a_master_that_cannot_write_its_first_record_asks_for_an_election() -> None:
    master = Replicated()
    master.full = True
    master.lead()
    assert master.core.needs_election
    assert master.core.role is Role.SLAVE


# --- transfer -------------------------------------------------------------------------------------


@pytest.mark.rule("A-05")
def test_no_frame_spans_two_epochs() -> None:
    log = new_log()
    for epoch in (1, 2, 3):
        write(log, epoch, opened_by="n1")
        write(log, epoch, b"x" * 100)
    master = Replicated(log=log)
    master.lead(epoch=4)
    key = join(master, at=0)
    frames = master.frames(key, TransferFrame)
    starts = {epoch.epoch: epoch.start_offset for epoch in log.epochs}
    assert [frame.epoch for frame in frames] == [1, 2, 3, 4]
    assert b"".join(frame.body for frame in frames) == b"".join(
        bytes(batch.data) for batch in log.read_batches(0, 1 << 20)
    )
    for frame in frames:
        assert frame.epoch_start_offset == frame.offset == starts[frame.epoch]


@pytest.mark.rule("A-08", "H-06")
def test_a_batch_larger_than_a_frame_travels_in_many() -> None:
    master = Replicated(config=HaConfig(ha_transfer_batch_size=1_000, ha_window_bytes=5_000))
    master.lead()
    key = join(master)
    master.take()
    master.append(b"x" * 20_000)
    frames = master.frames(key, TransferFrame)
    while True:
        master.deliver(key, Drained())
        more = master.frames(key, TransferFrame)
        if not more:
            break
        assert sum(len(frame.body) for frame in more) <= 5_000
        frames += more
    assert max(len(frame.body) for frame in frames) == 1_000
    data = b"".join(frame.body for frame in frames)
    assert data == bytes(master.log.batch_at(1).data)


@pytest.mark.rule("A-09")
def test_an_empty_slave_may_start_at_the_newest_segment() -> None:
    log = new_log(segment_max_bytes=2_000)
    write(log, 1, opened_by="n1")
    for _ in range(10):
        write(log, 1, b"x" * 500)
    master = Replicated(log=log)
    master.lead(epoch=2)
    whole = join(master, "n2", 1, at=0)
    assert master.frames(whole, TransferFrame)[0].offset == 0
    last = master.connected(2)
    master.deliver(last, Handshake("n3:10911", sync_from_last_file=True))
    master.deliver(last, Ack(0))
    first = master.frames(last, TransferFrame)[0]
    assert first.offset == log.batch_at(log.last_segment_index).offset > 0
    assert (first.epoch, first.epoch_start_offset) == (1, 0)


def test_unregistered_replicas_and_impossible_reports_are_sent_away() -> None:
    master = Replicated()
    master.lead()
    stranger = master.connected(1)
    master.deliver(stranger, Handshake("n9:10911"))
    itself = master.connected(2)
    master.deliver(itself, Handshake("n1:10911"))
    early = master.connected(3)
    master.deliver(early, Ack(0))
    within = join(master, number=4, at=8)
    past = join(master, number=5, at=master.log.end_offset + 8)
    sent = master.take()
    for key in (stranger, itself, early, within, past):
        assert [message for target, message in sent if target == key and isinstance(message, Disconnect)]
    assert master.core.status().peers[0].state == "DISCONNECTED"


@pytest.mark.rule("C-12")
def test_an_ack_of_what_was_never_sent_counts_for_nothing() -> None:
    """A known hole: acks counted from an offset past the master's end."""
    master, key = in_sync_with_n2()
    pending = master.append(b"a")
    master.deliver(key, Ack(master.log.end_offset + 128))
    assert [type(message) for message in master.frames(key, Disconnect)] == [Disconnect]
    assert master.fates() == []
    assert master.core.committed_index < pending.last_index


def test_a_slave_that_connects_again_has_one_connection() -> None:
    master, old = in_sync_with_n2()
    new = join(master, number=2)
    assert len(master.frames(old, Disconnect)) == 1
    pending = master.append(b"a")
    master.deliver(old, Ack(master.log.end_offset))
    assert master.fates() == []
    ack_all(master, new)
    assert master.fates() == [(pending.last_index, "acknowledged")]


def test_newer_builds_introduce_themselves_by_number() -> None:
    master = Replicated()
    master.lead()
    key = master.connected()
    master.deliver(key, Handshake("", number=3))
    master.deliver(key, Ack(0))
    assert [peer.id for peer in master.core.status().peers if peer.state == "TRANSFER"] == ["n3"]


@pytest.mark.rule("H-05")
def test_silent_connections_are_closed() -> None:
    master = Replicated()
    master.lead()
    mute = master.connected(1)
    talker = join(master, "n3", 2)
    master.tick(1_900)
    ack_all(master, talker)
    master.take()
    master.tick(200)
    sent = master.take()
    silent = "silent for too long"
    ended = [(target, message) for target, message in sent if isinstance(message, Disconnect)]
    assert ended == [(mute, Disconnect(silent))]
    master.tick(2_000)
    assert master.frames(talker, Disconnect) == [Disconnect(silent, "n3")]


# --- fencing --------------------------------------------------------------------------------


@pytest.mark.rule("A-11")
def test_past_its_lease_a_master_acknowledges_nothing() -> None:
    master = Replicated()
    master.lead(lease_ms=500)
    key = join(master)
    grant(master, (1, 2))
    pending = master.append(b"a", timeout_ms=60_000)
    at_leader = master.append(b"b", acks=Acks.LEADER, timeout_ms=60_000)
    assert master.fates() == [(at_leader.last_index, "acknowledged")]
    master.now_ms += 501
    ack_all(master, key)
    assert master.fates() == []
    assert master.core.committed_index < pending.last_index
    master.tick()
    assert not master.core.accepts_appends
    master.core.read_index("reader", master.now_ms)
    master.carry_out()
    assert master.reads == [("reader", None)]
    master.deliver(MANAGER, Lease(master.now_ms + 500))
    assert master.fates() == [(pending.last_index, "acknowledged")]
    assert master.core.accepts_appends


@pytest.mark.rule("A-11")
def test_a_lease_does_not_outlive_its_epoch() -> None:
    """A master that is elected again acknowledges nothing before it is granted a lease of the new epoch."""
    master = Replicated()
    master.lead(lease_ms=None)
    master.deliver(MANAGER, Lease(master.now_ms + 500, 1))
    assert master.core.accepts_appends
    master.lead(2, lease_ms=None)
    assert master.core.role is Role.MASTER
    assert not master.core.accepts_appends
    master.deliver(MANAGER, Lease(master.now_ms + 500, 1))  # it was on its way
    assert not master.core.accepts_appends
    master.deliver(MANAGER, Lease(master.now_ms + 500, 2))
    assert master.core.accepts_appends


@pytest.mark.rule("A-11")
def test_without_a_lease_a_master_is_fenced() -> None:
    master = Replicated()
    master.lead(lease_ms=None)
    assert master.core.role is Role.MASTER
    assert not master.core.accepts_appends
    assert master.core.committed_index == NO_INDEX


@pytest.mark.rule("A-11")
@pytest.mark.parametrize("master_id", [2, None])
def test_a_master_that_hears_of_another_one_stops_at_once(master_id: int | None) -> None:
    master, key = in_sync_with_n2()
    pending = master.append(b"a")
    master.deliver(MANAGER, SlaveRole(master_id, 2, REPLICAS))
    assert master.fates() == [(pending.last_index, "term-changed")]
    assert len(master.frames(key, Disconnect)) == 1
    ack_all(master, key)
    assert master.fates() == []
    assert (master.core.role, master.core.term, master.core.leader_id) == (
        Role.SLAVE,
        2,
        None if master_id is None else "n2",
    )
    with pytest.raises(InvariantError):
        master.core.propose(next_batch(master.log, 1, b"late"), (), master.now_ms)


@pytest.mark.rule("A-11")
def test_a_master_that_has_given_its_epoch_up_never_takes_it_again() -> None:
    master, _ = in_sync_with_n2()
    master.deliver(MANAGER, SlaveRole(None, 1, REPLICAS))
    assert master.core.role is Role.SLAVE
    master.lead(epoch=1)
    assert master.core.role is Role.SLAVE
    assert master.core.needs_election


@pytest.mark.rule("C-10")
def test_roles_of_older_epochs_change_nothing() -> None:
    master = Replicated()
    master.lead(epoch=5)
    master.deliver(MANAGER, SlaveRole(2, 4, REPLICAS))
    master.deliver(MANAGER, MasterRole(4, (1, 2, 3), 9, REPLICAS))
    assert (master.core.role, master.core.term) == (Role.MASTER, 5)
    assert master.core.status().sync_state_set == ("n1",)


@pytest.mark.rule("A-11")
def test_nothing_is_read_before_the_epochs_first_record_is_confirmed() -> None:
    master = Replicated()
    master.lead(members=(1, 2))
    master.core.read_index("early", master.now_ms)
    master.carry_out()
    key = join(master)
    ack_all(master, key)
    master.core.read_index("late", master.now_ms)
    master.carry_out()
    assert master.reads == [("early", None), ("late", 0)]


def test_reads_see_what_is_confirmed_and_slaves_are_notified() -> None:
    master, key = in_sync_with_n2()
    master.append(b"a")
    ack_all(master, key)
    index = master.core.committed_index
    master.core.read_index("reader", master.now_ms)
    master.carry_out()
    assert master.reads == [("reader", index)]
    master.take()
    master.deliver("n2", ReadIndexRequest(1, 77))
    master.deliver("n2", ReadIndexRequest(0, 78))
    assert master.take() == [("n2", ReadIndexAnswer(1, 77, index)), ("n2", ReadIndexAnswer(1, 78, None))]


def test_status_and_journal_record_each_step() -> None:
    master, key = in_sync_with_n2()
    master.append(b"a")
    ack_all(master, key)
    master.tick(600)
    status = master.core.status()
    assert (status.master, status.epoch, status.sync_state_set) == ("n1", 1, ("n1", "n2"))
    assert status.confirm_offset == master.log.end_offset
    assert [(peer.id, peer.state, peer.watermark, peer.lag_bytes) for peer in status.peers] == [
        ("n2", "TRANSFER", 1, 0),
        ("n3", "DISCONNECTED", -1, None),
    ]
    assert master.core.watermarks() == {1: {"n1": 1, "n2": 1, "n3": -1}}
    assert master.core.watermarks(9) == {}
    assert [(data["set_epoch"], data["members"]) for data in master.reported("sync_state_set")] == [
        (1, ["n1"]),
        (2, ["n1", "n2"]),
    ]
    assert master.reported("watermarks")[-1]["peers"] == {"n1": 1, "n2": 1, "n3": -1}
    assert master.reported("role")[-1] == {"role": "master", "leader": "n1"}


def test_the_watermark_of_a_slave_outlives_its_connection_and_counts_for_nothing() -> None:
    master, key = in_sync_with_n2()
    master.append(b"a")
    ack_all(master, key)
    master.deliver(key, Closed("gone"))
    marks = {1: {"n1": 1, "n2": 1, "n3": -1}}
    assert master.core.watermarks() == marks
    assert [(peer.id, peer.state, peer.watermark, peer.lag_bytes) for peer in master.core.status().peers] == [
        ("n2", "DISCONNECTED", 1, None),
        ("n3", "DISCONNECTED", -1, None),
    ]
    master.tick(3_000)
    assert master.reported("watermarks")[-1]["peers"] == marks[1]
    master.append(b"b")
    assert master.core.committed_index == 1
    again = join(master, at=0)
    assert master.core.watermarks()[1]["n2"] == -1  # what this connection has acknowledged
    ack_all(master, again)
    assert master.core.watermarks()[1]["n2"] == 2


@pytest.mark.rule("A-05", "A-08")
def test_a_slave_that_ends_exactly_where_a_trimmed_log_begins_continues_there() -> None:
    master = Replicated()
    master.lead()
    for number in range(6):
        master.append(b"%d" % number)
    ticket = master.log.start_trim(4)
    assert ticket is not None
    ticket.move_begin()
    assert (master.log.begin_index, master.log.begin_offset > 0) == (4, True)
    master.take()
    key = join(master, at=master.log.begin_offset)
    frames = master.frames(key, TransferFrame)
    assert frames[0].offset == master.log.begin_offset
    assert sum(len(frame.body) for frame in frames) == master.log.end_offset - master.log.begin_offset
    assert master.core.watermarks()[1]["n2"] == 3
    ack_all(master, key)
    assert master.core.watermarks()[1]["n2"] == master.log.end_index


@pytest.mark.rule("A-07", "C-03")
@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize(("proved", "taken"), [(None, True), ("n2", True), ("n3", False)])
def test_a_connection_speaks_only_for_a_copy_of_the_node_that_it_has_proved(
    number: int, proved: str | None, taken: bool
) -> None:
    master = Replicated()
    master.lead()
    key = master.connected(node=proved)
    master.take()
    master.deliver(key, Handshake("" if number else "n2:10911", number=number))
    answers = master.frames(key, (HandshakeAnswer, Disconnect))
    assert [type(answer) for answer in answers] == [HandshakeAnswer if taken else Disconnect]


def test_a_slave_whose_connection_ended_was_heard_last_when_it_acknowledged() -> None:
    master, key = in_sync_with_n2()
    began_ms = master.now_ms
    master.tick(600)
    master.append(b"a")
    ack_all(master, key)
    acked_ms = master.now_ms
    check_last_heard(master, key, began_ms=began_ms, heard_ms=acked_ms)
