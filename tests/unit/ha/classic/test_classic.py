"""Classic HA: the master's and the slave's core, rule by rule, without sockets."""

from random import Random
from typing import Any

import pytest

from app.errors import AlreadyLeader, InvariantError, TransferFailed
from app.ha.classic.master import ClassicMasterCore
from app.ha.classic.slave import ClassicSlaveCore
from app.ha.config import HaConfig
from app.ha.frames import (
    FLAG_DOUBT,
    ClassicFrame,
    ClassicReport,
    History,
    Preface,
    decode_preface,
    encode_preface,
)
from app.ha.log import index_before
from app.ha.messages import Closed, Connect, Disconnect, Drained, Opened
from app.log.contract import NO_INDEX, Acks, Durability, GroupConfig, LogOptions, Reset, Role
from app.log.core_start import CoreStart
from app.log.facts import SyncFloor
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from storage.format.batch import Batch
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState
from tests.unit.ha.lab import CONFIG, LOG_ID, NAMES, Lab, copy, history_of, new_log, next_batch, write

CAUGHT_UP = HardState(1, "n1")


def start_of(node: str, durability: Durability, hard_state: HardState) -> CoreStart:
    return CoreStart(
        node_id=node,
        log_id=LOG_ID,
        group=GroupConfig(voters=NAMES),
        durability=durability,
        hard_state=hard_state,
        committed_index=NO_INDEX,
        random=Random(1),
    )


class Master(Lab):
    core: ClassicMasterCore

    def __init__(
        self,
        log: Commitlog | None = None,
        *,
        sync_slaves: int = 1,
        config: HaConfig = CONFIG,
        hard_state: HardState | None = None,
        auto_sync: bool = True,
        waits: bool = False,
        auto_in_sync_replicas: bool = False,
        **settings: Any,
    ) -> None:
        """waits: stop before the time is over that other replicas have to object to an epoch. settings: of
        LogOptions, and `recorded`; without it those that the log has always had. hard_state: None for that of
        a new log, or of a slave that has caught up with n2."""
        super().__init__(new_log() if log is None else log)
        if hard_state is None:
            hard_state = HardState() if self.log.last_term == 0 else HardState(1, "n2")
        self.auto_sync = auto_sync
        options = {name: value for name, value in settings.items() if name != "recorded"}
        floor = options.get("min_in_sync_replicas", 1) - 1
        sure = floor if auto_in_sync_replicas else max(sync_slaves, floor)
        self.core = ClassicMasterCore(
            start_of("n1", self.durability, hard_state),
            self.log,
            config=config,
            sync_slaves=sync_slaves,
            auto_in_sync_replicas=auto_in_sync_replicas,
            options=LogOptions(durability=self.durability, **options),
            recorded=settings.get("recorded", SyncFloor(0, sure, len(NAMES) - 1)),
        )
        self.core.start(self.now_ms)
        self.carry_out()
        if not waits:
            self.tick(config.opening_wait_ms)

    def slave(self, number: int = 1, *, place: int = 2, at: int | None = None) -> str:
        """A slave that holds everything up to byte `at` (all) has reported; place 0: it is unidentified."""
        end = self.log.end_offset if at is None else at
        history = None
        if place and end == 0:
            history = History(0, 0, 0, bytes(8))
        elif place:
            last = self.log.batch_at(index_before(self.log, end))
            history = History(end, last.next_index, last.term, last.header.chain)
        key = self.connected(number, place, history)
        self.deliver(key, ClassicReport(end))
        return key


class Slave(Lab):
    core: ClassicSlaveCore

    def __init__(
        self,
        log: Commitlog | None = None,
        *,
        auto_sync: bool = True,
        hard_state: HardState = CAUGHT_UP,
    ) -> None:
        super().__init__(new_log() if log is None else log)
        self.auto_sync = auto_sync
        self.core = ClassicSlaveCore(
            start_of("n2", self.durability, hard_state),
            self.log,
            master_id="n1",
            master_address="n1:10101",
            config=CONFIG,
        )
        self.core.start(self.now_ms)
        self.carry_out()

    def connect(self) -> str:
        self.tick()
        return self.dialled()


def frame_of(batch: Batch) -> ClassicFrame:
    return ClassicFrame(batch.offset, bytes(batch.data))


def body_of(frames: list[Any]) -> bytes:
    return b"".join(frame.body for frame in frames)


def bytes_of(log: Commitlog) -> bytes:
    data, index = b"", log.begin_index
    while NO_INDEX < index <= log.end_index:
        batch = log.batch_at(index)
        data += bytes(batch.data)
        index = batch.next_index
    return data


# --- master ------------------------------------------------------------------------------------------


def test_the_master_opens_an_epoch_once_and_continues_with_it() -> None:
    master = Master()
    assert (master.core.role, master.core.term, master.core.accepts_appends) == (Role.MASTER, 1, True)
    master.append(b"a", acks=Acks.LEADER)
    again = Master(master.log, hard_state=master.saved[-1])
    assert (again.core.term, again.log.end_index, again.core.accepts_appends) == (1, 1, True)


def test_a_master_that_takes_over_another_ones_log_opens_the_next_epoch() -> None:
    log = new_log()
    write(log, 3, opened_by="n2")
    master = Master(log, waits=True)
    master.slave()
    master.tick(CONFIG.opening_wait_ms)
    assert [(epoch.epoch, epoch.leader) for epoch in log.epochs] == [(3, "n2"), (4, "n1")]
    assert master.saved == [HardState(4, "n1")]


@pytest.mark.rule("H-06")
def test_a_slave_without_data_starts_at_the_newest_segment_any_other_where_it_reports() -> None:
    log = new_log(segment_max_bytes=2_000)
    write(log, 1, opened_by="n1")
    for _ in range(10):
        write(log, 1, b"x" * 500)
    master = Master(log, hard_state=HardState(1, "n1"))
    empty, other = master.slave(1, place=2, at=0), None
    first = master.frames(empty, ClassicFrame)
    newest = log.batch_at(log.last_segment_index).offset
    assert (first[0].offset, body_of(first)) == (newest, bytes_of(log)[newest:])
    other = master.slave(2, place=3, at=log.batch_at(1).offset)
    frames = master.frames(other, ClassicFrame)
    assert (frames[0].offset, body_of(frames)) == (
        log.batch_at(1).offset,
        bytes_of(log)[log.batch_at(1).offset :],
    )


@pytest.mark.rule("H-06")
def test_a_peer_that_stores_bytes_may_continue_in_the_middle_of_a_batch() -> None:
    master = Master()
    master.append(b"x" * 1_000, acks=Acks.LEADER)
    key = master.slave(place=0, at=1_003)
    frames = master.frames(key, ClassicFrame)
    assert (frames[0].offset, body_of(frames)) == (1_003, bytes_of(master.log)[1_003:])
    assert master.core.committed_index == 0  # it holds only the first batch whole
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.core.committed_index == 1


@pytest.mark.rule("H-06")
def test_frames_have_at_most_the_configured_size_and_wait_for_room() -> None:
    master = Master(config=HaConfig(ha_transfer_batch_size=1_000, ha_window_bytes=3_000))
    key = master.slave()
    master.take()
    master.append(b"x" * 10_000, acks=Acks.LEADER)
    frames = master.frames(key, ClassicFrame)
    assert [len(frame.body) for frame in frames] == [1_000] * 3
    for _ in range(20):
        master.deliver(key, Drained())
        frames += master.frames(key, ClassicFrame)
    assert body_of(frames) == bytes(master.log.batch_at(1).data)


@pytest.mark.rule("H-06", "H-02")
def test_an_empty_frame_is_the_heartbeat() -> None:
    master = Master()
    key = master.slave()
    assert master.frames(key) == [ClassicFrame(master.log.end_offset)]
    master.tick(CONFIG.ha_send_heartbeat_interval_ms)
    assert master.frames(key) == [ClassicFrame(master.log.end_offset)]


def test_slaves_get_only_what_the_master_holds_durably() -> None:
    """Classic frames know no epochs: what a slave holds, the master must never lose."""
    master = Master()
    key = master.slave()
    master.auto_sync = False
    master.append(b"a")
    assert body_of(master.frames(key)[1:]) == b""
    master.sync()
    assert body_of(master.frames(key)) == bytes(master.log.batch_at(1).data)


@pytest.mark.rule("H-04")
def test_a_slave_that_is_past_the_master_is_sent_away_and_recorded() -> None:
    master = Master()
    key = master.slave(at=master.log.end_offset + 8)
    assert [type(message) for message in master.frames(key)] == [Disconnect]
    assert master.reported("corruption")


def test_an_unidentified_peer_past_the_master_leaves_nothing_in_the_journal() -> None:
    master = Master()
    key = master.slave(place=0, at=1 << 62)
    assert [type(message) for message in master.frames(key)] == [Disconnect]
    assert not master.reported("corruption")


@pytest.mark.rule("H-07")
def test_a_synchronous_append_waits_for_the_configured_number_of_slaves() -> None:
    master = Master(sync_slaves=2)
    keys = [master.slave(1, place=2), master.slave(2, place=3)]
    sync = master.append(b"a")
    at_once = master.append(b"b", acks=Acks.LEADER)
    assert master.fates() == [(at_once.last_index, "acknowledged")]
    master.deliver(keys[0], ClassicReport(master.log.end_offset))
    assert master.fates() == []
    assert master.core.committed_index == 0
    master.deliver(keys[1], ClassicReport(master.log.batch_at(sync.last_index).next_offset))
    assert master.fates() == [(sync.last_index, "acknowledged")]
    assert master.core.committed_index == sync.last_index


@pytest.mark.rule("H-07")
def test_after_the_timeout_the_fate_is_a_timeout_and_the_record_stays() -> None:
    master = Master()
    pending = master.append(b"a", timeout_ms=300)
    master.tick(301)
    assert master.fates() == [(pending.last_index, "flush-slave-timeout")]
    assert master.log.end_index == pending.last_index
    master.slave()
    assert master.core.committed_index == pending.last_index


@pytest.mark.rule("H-07")
def test_one_slave_with_two_connections_counts_once() -> None:
    master = Master(sync_slaves=2)
    old = master.slave(1, place=2)
    master.take()
    new = master.slave(2, place=2)
    assert [type(message) for message in master.frames(old)] == [Disconnect]
    pending = master.append(b"a")
    master.deliver(new, ClassicReport(master.log.end_offset))
    assert master.fates() == []
    assert master.core.committed_index < pending.last_index


@pytest.mark.rule("H-07")
def test_without_synchronous_slaves_what_the_master_holds_is_committed() -> None:
    master = Master(sync_slaves=0)
    pending = master.append(b"a")
    assert master.fates() == [(pending.last_index, "acknowledged")]
    assert master.core.committed_index == pending.last_index


@pytest.mark.rule("H-07")
def test_a_report_of_what_was_never_sent_counts_for_nothing() -> None:
    master = Master()
    key = master.slave()
    master.append(b"a")
    master.take()
    master.deliver(key, ClassicReport(master.log.end_offset + 8))
    assert [type(message) for message in master.frames(key)] == [Disconnect]
    assert master.fates() == []


@pytest.mark.rule("H-05")
def test_silent_slaves_are_closed() -> None:
    master = Master()
    mute, key = master.connected(8), master.slave(1)
    master.take()
    master.tick(1_900)
    master.deliver(key, ClassicReport(master.log.end_offset))
    master.tick(200)
    assert [target for target, message in master.take() if isinstance(message, Disconnect)] == [mute]
    master.tick(1_900)
    assert Disconnect in [type(message) for message in master.frames(key)]


def test_appends_without_room_are_refused_and_the_opening_is_tried_again() -> None:
    master = Master()
    master.full = True
    pending = master.append(b"a")
    assert master.fates() == [(pending.last_index, "refused")]
    master.full = False
    assert master.append(b"b", acks=Acks.LEADER).last_index == pending.last_index


def test_after_a_restart_readers_wait_for_what_may_have_been_acknowledged() -> None:
    master = Master()
    key = master.slave()
    master.append(b"a")
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.fates() == [(1, "acknowledged")]
    again = Master(master.log, hard_state=master.saved[-1], sync_slaves=2)
    again.core.read_index("reader", again.now_ms)
    again.carry_out()
    again.deliver("n2", ReadIndexRequest(1, 4))
    assert again.take() == [("n2", ReadIndexAnswer(1, 4, None))]  # nothing proves yet what n2 holds
    again.slave()
    again.take()
    assert again.core.committed_index == NO_INDEX
    again.deliver("n2", ReadIndexRequest(1, 5))
    assert again.take() == [("n2", ReadIndexAnswer(1, 5, 1))]
    assert again.reads == [("reader", 1)]


def test_a_classic_master_answers_reads_transfers_and_status() -> None:
    master = Master()
    master.slave()
    master.take()
    master.deliver("n2", ReadIndexRequest(0, 5))
    assert master.take() == [("n2", ReadIndexAnswer(0, 5, 0))]
    master.core.read_index("reader", master.now_ms)
    master.carry_out()
    assert master.reads == [("reader", 0)]
    with pytest.raises(TransferFailed):
        master.core.transfer("n2", master.now_ms)
    with pytest.raises(AlreadyLeader):
        master.core.transfer("n1", master.now_ms)
    status = master.core.status()
    assert (status.master, status.sync_state_set) == ("n1", ("n1", "n2"))
    assert [(peer.id, peer.state, peer.watermark) for peer in status.peers] == [
        ("n2", "TRANSFER", 0),
        ("n3", "DISCONNECTED", -1),
    ]
    assert master.core.watermarks() == {1: {"n1": 0, "n2": 0, "n3": -1}}
    pending = master.append(b"a")
    master.core.stop(master.now_ms)
    master.carry_out()
    assert master.fates() == [(pending.last_index, "term-changed")]


# --- slave -------------------------------------------------------------------------------------------


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
    assert slave.sent[-1] == ("out-1", Connect("n1:10101", history_of(log)))
    key = slave.dialled()
    assert slave.take() == [(key, ClassicReport(log.end_offset))]
    slave.deliver(key, ClassicFrame(log.end_offset))
    slave.deliver(key, Closed("refused"))
    slave.tick(CONFIG.ha_reconnect_interval_ms - 1)
    assert slave.take() == []
    slave.tick(1)
    assert slave.take() == [("out-2", Connect("n1:10101", history_of(log)))]


@pytest.mark.rule("H-02")
def test_a_slave_reports_at_every_heartbeat_and_whenever_it_has_grown() -> None:
    log = master_log()
    slave = Slave(copy(log, until=log.batch_at(2)))
    key = slave.connect()
    slave.take()
    slave.deliver(key, frame_of(log.batch_at(3)))
    assert slave.take() == [(key, ClassicReport(log.end_offset))]
    slave.tick(CONFIG.ha_send_heartbeat_interval_ms)
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
    assert Disconnect in [type(message) for message in slave.frames(key)]


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


def test_a_slave_whose_connection_ended_was_heard_last_when_it_reported() -> None:
    master = Master()
    began_ms = master.now_ms
    master.tick(600)
    key = master.slave()
    reported_ms = master.now_ms
    master.tick(600)

    def heard() -> dict[str, int | None]:
        return {peer.id: peer.heard_ms for peer in master.core.status().peers}

    assert heard()["n2"] is None
    master.deliver(key, Closed("gone"))
    never = heard()["n3"]
    assert heard()["n2"] == reported_ms > began_ms
    assert never is not None
    assert never <= began_ms
