"""Classic HA: the master's core, rule by rule, without sockets."""

from random import Random
from typing import Any

import pytest

from app.errors import AlreadyLeader, TransferFailed
from app.ha.classic.master import ClassicMasterCore
from app.ha.classic.slave import ClassicSlaveCore
from app.ha.config import HaConfig
from app.ha.frames import (
    ClassicFrame,
    ClassicReport,
    History,
)
from app.ha.log import index_before
from app.ha.messages import Closed, Disconnect, Drained
from app.log.contract import NO_INDEX, Acks, Durability, GroupConfig, LogOptions, Role
from app.log.core_start import CoreStart
from app.log.recorded_values import SyncFloor
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from storage.format.batch import Batch
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState
from tests.unit.ha.lab import CONFIG, LOG_ID, NAMES, Lab, new_log, write

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
        begins: bool = True,
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
            begins=begins,
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
    silent = "silent for too long"
    sent = [(target, message) for target, message in master.take() if isinstance(message, Disconnect)]
    assert sent == [(mute, Disconnect(silent))]
    master.tick(1_900)
    assert Disconnect(silent, "n2") in master.frames(key)


def test_appends_without_room_are_refused_and_the_opening_is_tried_again() -> None:
    master = Master()
    master.full = True
    pending = master.append(b"a")
    assert master.fates() == [(pending.last_index, "refused")]
    master.full = False
    assert master.append(b"b", acks=Acks.LEADER).last_index == pending.last_index


def test_an_epoch_without_room_is_tried_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver writes what the core wants before it does anything else: tried at once, the node hangs. Each
    attempt is undone by several syncs, in the loop of all logs."""
    master = Master(waits=True, recorded=None)
    propose, tries = ClassicMasterCore.propose, []

    def counted(core: ClassicMasterCore, batch: Batch, *rest: Any) -> None:
        tries.append(batch.base_index)
        assert len(tries) < 9, "the driver does not end"
        propose(core, batch, *rest)

    monkeypatch.setattr(ClassicMasterCore, "propose", counted)
    master.full = True
    master.tick(CONFIG.opening_wait_ms)
    for _ in range(50):
        master.tick(20)
    assert tries == [0, 0]
    assert "the disk is full" in (master.core.status().waits_for or "")
    assert not master.core.accepts_appends
    assert master.core._epoch._recorded is None  # no record states what the epoch needs
    master.full = False
    master.tick(1_000)
    assert (tries, master.core.status().waits_for) == ([0, 0, 0], None)
    assert master.core.accepts_appends


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


def test_the_watermark_of_a_slave_outlives_its_connection_and_counts_for_nothing() -> None:
    master = Master()
    key = master.slave()
    first = master.append(b"a")
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.fates() == [(first.last_index, "acknowledged")]
    master.deliver(key, Closed("gone"))
    assert master.core.watermarks() == {1: {"n1": 1, "n2": 1, "n3": -1}}
    assert [(peer.id, peer.state, peer.watermark, peer.lag_bytes) for peer in master.core.status().peers] == [
        ("n2", "DISCONNECTED", 1, None),
        ("n3", "DISCONNECTED", -1, None),
    ]
    master.tick(3_000)
    assert master.reported("watermarks")[-1]["peers"] == {"n1": 1, "n2": 1, "n3": -1}
    master.append(b"b")
    assert (master.fates(), master.core.committed_index) == ([], 1)


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


@pytest.mark.rule("H-07")
def test_an_append_that_the_masters_disk_has_not_stored_has_no_known_outcome() -> None:
    """The disk hangs: to report that the master keeps the append would promise what a power failure ends."""
    master = Master()
    master.auto_sync = False
    pending = master.append(b"a", timeout_ms=1_000)
    master.tick(1_100)
    assert master.fates() == [(pending.last_index, "quorum-timeout")]
