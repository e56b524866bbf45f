"""Classic HA: the slave's core, rule by rule, without sockets."""

import pytest

from app.errors import InvariantError
from app.ha.config import HaConfig
from app.ha.frames import (
    FLAG_DOUBT,
    ClassicFrame,
    ClassicReport,
    Preface,
    decode_preface,
    encode_preface,
)
from app.ha.messages import Closed, Connect, Disconnect, Drained, Opened
from app.log.contract import Durability, LogOptions, Reset, Role
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState
from tests.unit.ha.classic.test_classic import Master, Slave, bytes_of, frame_of
from tests.unit.ha.lab import CONFIG, check_last_heard, copy, history_of, new_log, next_batch, write


def master_log(records: int = 3) -> Commitlog:
    log = new_log()
    write(log, 1, opened_by="n1")
    for number in range(records):
        write(log, 1, b"%d" % number)
    return log


@pytest.mark.rule("H-01", "H-02")
def test_a_slave_connects_reports_and_comes_back_after_a_pause() -> None:
    log = master_log()
    slave = Slave(copy(log))
    slave.tick()
    assert slave.sent[-1] == ("out-1", Connect("n1:10101", history_of(log), node="n1"))
    key = slave.dialled()
    assert slave.take() == [(key, ClassicReport(log.end_offset))]
    slave.deliver(key, ClassicFrame(log.end_offset))
    slave.deliver(key, Closed("refused"))
    slave.tick(CONFIG.ha_reconnect_interval_ms - 1)
    assert slave.take() == []
    slave.tick(1)
    assert slave.take() == [("out-2", Connect("n1:10101", history_of(log), node="n1"))]


@pytest.mark.rule("H-02")
def test_a_slave_reports_at_every_heartbeat_and_whenever_it_has_grown() -> None:
    log = master_log()
    slave = Slave(copy(log, until=log.batch_at(2)))
    key = slave.connect()
    slave.take()
    slave.deliver(key, frame_of(log.batch_at(3)))
    assert slave.take() == [(key, ClassicReport(log.end_offset))]
    slave.tick(CONFIG.ha_send_heartbeat_interval_ms - 1)
    assert slave.take() == []
    slave.tick(1)
    assert slave.take() == [(key, ClassicReport(log.end_offset))]


@pytest.mark.rule("H-02")
def test_reported_records_are_durable() -> None:
    log = master_log()
    slave = Slave(copy(log, until=log.batch_at(2)), auto_sync=False)
    key = slave.connect()
    slave.take()
    slave.deliver(key, frame_of(log.batch_at(3)))
    assert slave.take() == []
    assert slave.core.committed_index == 2
    slave.sync()
    assert slave.take() == [(key, ClassicReport(log.end_offset))]
    assert slave.core.committed_index == 3


@pytest.mark.rule("H-03")
def test_a_batch_that_comes_in_pieces_is_stored_when_it_is_whole() -> None:
    log = master_log()
    big = write(log, 1, b"x" * 3_000)
    slave = Slave(copy(log, until=log.batch_at(3)))
    key = slave.connect()
    data = bytes(big.data)
    slave.take()
    for at in range(0, len(data), 500):
        assert slave.log.end_index == 3
        slave.deliver(key, ClassicFrame(big.offset + at, data[at : at + 500]))
    assert slave.log.end_index == 4
    assert slave.take() == [(key, ClassicReport(log.end_offset))]


@pytest.mark.rule("H-04")
@pytest.mark.parametrize("wrong", ["gap", "repeat", "heartbeat", "garbage", "other log", "unopened epoch"])
def test_a_gap_costs_the_connection_and_stores_nothing(wrong: str) -> None:
    log = master_log()
    held = copy(log, until=log.batch_at(2))
    batch = log.batch_at(3)
    frame = {
        "gap": ClassicFrame(batch.offset + 8, bytes(batch.data)),
        "repeat": frame_of(log.batch_at(2)),
        "heartbeat": ClassicFrame(batch.offset - 8),
        "garbage": ClassicFrame(batch.offset, b"\x07" * 200),
        "other log": frame_of(next_batch(held, 1, b"x", log_id=8)),
        "unopened epoch": frame_of(next_batch(held, 2, b"x")),
    }[wrong]
    slave = Slave(held)
    key = slave.connect()
    slave.take()
    slave.deliver(key, frame)
    assert [type(message) for message in slave.frames(key)] == [Disconnect]
    assert held.end_index == 2
    assert slave.reported("corruption")


@pytest.mark.rule("H-04")
def test_an_empty_slave_accepts_any_start() -> None:
    log = master_log()
    slave = Slave()
    key = slave.connect()
    assert slave.take() == [(key, ClassicReport(0))]
    slave.deliver(key, ClassicFrame(log.batch_at(2).offset))  # a heartbeat
    slave.deliver(key, frame_of(log.batch_at(2)))
    slave.deliver(key, frame_of(log.batch_at(3)))
    assert slave.truncations == [Reset(2, log.batch_at(2).offset)]
    assert (slave.log.begin_index, slave.log.end_index, slave.core.committed_index) == (2, 3, 3)


@pytest.mark.rule("H-05")
def test_a_silent_master_is_left() -> None:
    slave = Slave()
    key = slave.connect()
    slave.take()
    for _ in range(20):
        slave.tick(CONFIG.ha_send_heartbeat_interval_ms)
        slave.deliver(key, ClassicFrame(0))
    assert Disconnect not in [type(message) for message in slave.frames(key)]
    slave.tick(CONFIG.ha_housekeeping_interval_ms + 1)
    assert Disconnect("the master is silent", "n1") in slave.frames(key)


@pytest.mark.rule("H-08")
def test_a_slave_serves_what_it_holds_and_is_never_master() -> None:
    log = master_log()
    slave = Slave(copy(log))
    key = slave.connect()
    assert slave.core.committed_index == log.end_index
    slave.deliver(key, Closed("the master died"))
    for _ in range(100):
        slave.tick(1_000)
    assert (slave.core.role, slave.core.accepts_appends, slave.core.leader_id) == (Role.SLAVE, False, "n1")
    with pytest.raises(InvariantError):
        slave.core.propose(next_batch(log, 1, b"x"), (), slave.now_ms)
    slave.take()
    slave.core.read_index("reader", slave.now_ms)
    slave.carry_out()
    ((target, request),) = slave.take()
    assert target == "n1"
    slave.deliver("n1", ReadIndexAnswer(0, request.id, 3))
    assert slave.reads[-1] == ("reader", 3)
    slave.deliver("n3", ReadIndexRequest(0, 9))
    assert slave.take() == [("n3", ReadIndexAnswer(0, 9, None))]
    stranger = slave.connected()
    assert [type(message) for message in slave.frames(stranger)] == [Disconnect]


def test_no_room_on_a_slaves_disk_costs_the_connection_only() -> None:
    log = master_log()
    slave = Slave(copy(log, until=log.batch_at(2)))
    key = slave.connect()
    slave.take()
    slave.full = True
    slave.deliver(key, frame_of(log.batch_at(3)))
    assert [type(message) for message in slave.frames(key)] == [Disconnect]
    slave.full = False
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    key = slave.dialled()
    slave.deliver(key, frame_of(log.batch_at(3)))
    assert slave.log.last_chain == log.last_chain


@pytest.mark.rule("H-03", "H-06")
def test_our_slave_follows_our_master_frame_by_frame() -> None:
    master = Master(config=HaConfig(ha_transfer_batch_size=300))
    slave = Slave()
    out = slave.connect()
    into = master.connected(1, 2)

    def exchange() -> None:
        while True:
            to_master, to_slave = slave.frames(out), master.frames(into)
            if not (to_master or to_slave):
                return
            for frame in to_master:
                master.deliver(into, frame)
            for frame in to_slave:
                slave.deliver(out, frame)
            master.deliver(into, Drained())

    for number in range(30):
        pending = master.append(b"%d" % number * 100)
        exchange()
        assert master.fates() == [(pending.last_index, "acknowledged")]
    assert bytes_of(slave.log) == bytes_of(master.log)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("is_new", [True, False])
def test_a_copy_that_may_lack_records_has_caught_up_with_what_its_master_confirms(is_new: bool) -> None:
    log = master_log()
    if is_new:
        slave = Slave(hard_state=HardState(0, "n1"))
    else:
        slave = Slave(copy(log, until=log.batch_at(0)), hard_state=HardState(3))
    doubt = HardState(1 if is_new else 3)
    assert slave.saved == [doubt]
    slave.tick()
    (connecting,) = [message for _, message in slave.sent if isinstance(message, Connect)]
    assert connecting.history is not None
    assert connecting.history.in_doubt
    key = slave.dialled()
    slave.tick()
    assert slave.frames("n1", ReadIndexRequest) == []  # the master may count an earlier connection
    for index in range(slave.log.next_index, 2):
        slave.deliver(key, frame_of(log.batch_at(index)))
    (asked,) = slave.frames("n1", ReadIndexRequest)
    slave.deliver("n1", ReadIndexAnswer(1, asked.id, None))  # it has not opened its epoch
    assert slave.frames("n1", ReadIndexRequest) == []
    slave.tick()
    (asked,) = slave.frames("n1", ReadIndexRequest)
    slave.deliver("n1", ReadIndexAnswer(1, asked.id, 2))
    assert slave.saved == [doubt]
    slave.deliver(key, frame_of(log.batch_at(2)))
    assert slave.saved == [doubt, HardState(doubt.term, "n1")]
    slave.tick()
    assert (slave.frames("n1", ReadIndexRequest), slave.reads, len(slave.saved)) == ([], [], 2)


@pytest.mark.rule("H-07")
def test_three_connections_that_end_before_a_frame_do_not_end_a_doubt() -> None:
    """A master of an earlier version refuses the flag of a doubt, and one of this version has no frame for a
    slave either while its log is not open yet."""
    slave = Slave(copy(master_log()), hard_state=HardState(3))

    def introduced(*frames: ClassicFrame) -> tuple[bool, bool]:
        """Return whether the next connection has that flag, and whether a master of this version sees the
        doubt; then the master ends it, after these frames."""
        while not (taken := [each for each in slave.take() if isinstance(each[1], Connect)]):
            slave.tick(50)
        ((key, connecting),) = taken
        for message in (Opened(), *frames, Closed("closed by the peer")):
            slave.deliver(key, message)
        data = encode_preface(Preface(1, 2, history=connecting.history))
        found = decode_preface(memoryview(data))
        assert found is not None
        assert found[0].history is not None
        return bool(data[5] & FLAG_DOUBT), found[0].history.in_doubt

    seen = [introduced() for _ in range(7)]
    assert [has_flag for has_flag, _ in seen] == [True, True, True, False, True, True, True]
    assert all(in_doubt for _, in_doubt in seen)
    assert introduced(ClassicFrame(slave.log.end_offset)) == (False, True)  # an earlier version serves it
    assert introduced() == (True, True)


@pytest.mark.rule("H-06", "H-07")
def test_a_slave_reports_where_its_log_begins_while_it_lacks_earlier_records() -> None:
    """Every fourth connection without a frame is for a master of an earlier version."""
    log = new_log(segment_max_bytes=2_000)
    write(log, 1, opened_by="n1")
    for _ in range(10):
        write(log, 1, b"x" * 500)
    slave = Slave()
    begun = log.batch_at(log.last_segment_index)
    slave.deliver(slave.connect(), frame_of(begun))
    assert slave.log.begin_index == begun.base_index > 0

    def introduced(*, complete: bool) -> list[tuple[int, int]]:
        """(length, begin index) of the prefaces of four connections that end without a frame."""
        again = Slave(slave.log, hard_state=HardState(1, "n1"))
        again.core.electable = complete
        found = []
        for _ in range(4):
            while not (taken := [each for each in again.take() if isinstance(each[1], Connect)]):
                again.tick(50)
            ((key, connecting),) = taken
            for message in (Opened(), Closed("closed by the peer")):
                again.deliver(key, message)
            data = encode_preface(Preface(1, 2, history=connecting.history))
            decoded = decode_preface(memoryview(data))
            assert decoded is not None
            assert decoded[0].history is not None
            found.append((len(data), decoded[0].history.begin_index))
        return found

    assert introduced(complete=False) == [(56, begun.base_index)] * 3 + [(48, 0)]
    assert introduced(complete=True) == [(48, 0)] * 4


def test_a_slave_whose_connection_ended_was_heard_last_when_it_reported() -> None:
    master = Master()
    began_ms = master.now_ms
    master.tick(600)
    key = master.slave()
    reported_ms = master.now_ms
    check_last_heard(master, key, began_ms=began_ms, heard_ms=reported_ms)


def replicated_slave() -> tuple[Commitlog, Slave, str]:
    """The log of a master, and the open connection of a slave that lacks its last batch and does not sync."""
    log = master_log()
    slave = Slave(copy(log, until=log.batch_at(2)), auto_sync=False)
    slave.core.apply_options(LogOptions(durability=Durability.REPLICATED), slave.now_ms)
    return log, slave, slave.connect()


@pytest.mark.rule("R-11", "H-02")
def test_a_change_to_fsync_takes_no_report_back() -> None:
    """The master would close the connection."""
    log, slave, key = replicated_slave()
    slave.take()
    slave.deliver(key, frame_of(log.batch_at(3)))
    assert slave.take() == [(key, ClassicReport(log.end_offset))]
    slave.core.apply_options(LogOptions(durability=Durability.FSYNC), slave.now_ms)
    slave.core.synced(slave.now_ms)
    slave.tick(CONFIG.ha_send_heartbeat_interval_ms)
    assert slave.take() == [(key, ClassicReport(log.end_offset))]
    slave.deliver(key, frame_of(write(log, 1, b"after the change")))
    assert slave.take() == []
    slave.sync()
    assert slave.take() == [(key, ClassicReport(log.end_offset))]


@pytest.mark.rule("R-11", "H-02")
def test_after_a_change_to_fsync_a_connection_begins_with_what_is_synced() -> None:
    """The connection may have ended before the report of a record that the master promises to have synced."""
    log, slave, key = replicated_slave()
    slave.deliver(key, frame_of(log.batch_at(3)))
    slave.deliver(key, Closed("cut"))
    slave.core.apply_options(LogOptions(durability=Durability.FSYNC), slave.now_ms)
    slave.take()
    slave.tick(CONFIG.ha_reconnect_interval_ms)
    slave.deliver("out-2", Opened())
    assert [message for _, message in slave.take() if isinstance(message, ClassicReport)] == []
    slave.sync()
    assert slave.take() == [("out-2", ClassicReport(log.end_offset))]
