"""Classic HA: a report counts for nothing before the slave's history is known to be the master's (H-07)."""

from dataclasses import replace

import pytest

from app.ha.classic.slaves import Ranges, held_by
from app.ha.frames import ClassicFrame, ClassicReport, History
from app.ha.messages import Closed, Connect, Disconnect, Opened
from app.log.contract import NO_INDEX, Acks, Reset
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState
from tests.unit.ha.classic.test_classic import Master, Slave, frame_of
from tests.unit.ha.lab import CONFIG, copy, history_of, new_log, write
from tests.unit.ha.streams import as_read


def log_of(*values: bytes, opened_by: str = "n1", epoch: int = 1) -> Commitlog:
    log = new_log()
    write(log, epoch, opened_by=opened_by)
    for value in values:
        write(log, epoch, value)
    return log


def connect(
    master: Master, log: Commitlog, *, place: int = 2, number: int = 1, in_doubt: bool = False
) -> str:
    """A slave with that log connects with its history, and reports."""
    key = master.connected(number, place, replace(history_of(log), in_doubt=in_doubt))
    master.deliver(key, ClassicReport(log.end_offset))
    return key


def master_of(log: Commitlog, **settings: object) -> Master:
    """Go on with the log as the master that wrote it."""
    return Master(log, hard_state=HardState(log.last_term, "n1"), **settings)  # type: ignore[arg-type]


# --- history -----------------------------------------------------------------------------------------


@pytest.mark.rule("H-07", "H-04")
def test_a_slave_of_another_history_is_refused_and_counts_for_nothing() -> None:
    master = master_of(log_of(b"a", b"b"))
    pending = master.append(b"c")
    key = connect(master, log_of(b"a", b"x"))  # the same length, other records
    assert [type(message) for message in master.frames(key)] == [Disconnect]
    assert master.fates() == []
    assert master.core.committed_index == NO_INDEX
    (peer, _) = master.core.status().peers
    assert (peer.state, peer.in_sync) == ("REFUSED", False)
    assert "another history" in (peer.reason or "")
    good = connect(master, master.log, number=2)
    assert master.fates() == [(pending.last_index, "acknowledged")]
    assert master.core.status().peers[0].reason is None
    assert master.frames(good, ClassicFrame)


@pytest.mark.rule("H-04")
@pytest.mark.parametrize("refused", [True, False], ids=["another-history", "not-verified"])
def test_a_replaced_slave_is_not_shown_with_the_watermark_of_the_copy_before(refused: bool) -> None:
    master = master_of(log_of(b"a", b"b"))
    held = master.log.end_index
    master.deliver(connect(master, master.log), Closed("gone"))
    assert master.core.watermarks()[master.log.last_term]["n2"] == held
    if refused:
        connect(master, log_of(b"a", b"x"), number=2)
    else:  # it does not send its history
        key = master.connected(2, 2, None)
        master.deliver(key, ClassicReport(master.log.end_offset))
        master.deliver(key, Closed("gone"))
    assert master.core.watermarks()[master.log.last_term]["n2"] == NO_INDEX
    assert master.core.status().peers[0].watermark == NO_INDEX


@pytest.mark.rule("H-07")
def test_a_slave_of_the_same_history_counts_at_once() -> None:
    master = master_of(log_of(b"a"))
    first = master.append(b"b")
    second = master.append(b"c")
    connect(master, copy(master.log, until=master.log.batch_at(first.last_index)))
    assert master.fates() == [(first.last_index, "acknowledged")]
    assert master.core.committed_index == first.last_index < second.last_index


@pytest.mark.rule("H-07")
def test_a_report_must_be_that_of_the_history() -> None:
    master = master_of(log_of(b"a"))
    key = master.connected(1, 2, history_of(master.log))
    master.deliver(key, ClassicReport(master.log.batch_at(1).offset))
    assert [type(message) for message in master.frames(key)] == [Disconnect]


@pytest.mark.rule("H-07")
def test_a_replica_without_a_history_counts_once_it_has_stored_a_batch() -> None:
    """It stores a batch only when the chain continues its own: that proves everything before."""
    master = master_of(log_of(b"a"))
    waiting = master.append(b"b")
    key = master.connected(1, 2)
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.fates() == []
    assert master.core.committed_index == NO_INDEX
    later = master.append(b"c")
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.fates() == [(each.last_index, "acknowledged") for each in (waiting, later)]


@pytest.mark.rule("H-02", "H-03", "H-07")
def test_a_slave_of_the_seeds_protocol_counts_for_what_its_connection_carried() -> None:
    master = master_of(log_of(b"a"))
    before = master.append(b"b", timeout_ms=500)
    key = master.slave(place=0)  # it reports the end: its bytes are unknown
    assert master.fates() == []
    after = master.append(b"c", timeout_ms=900)
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.fates() == [(after.last_index, "acknowledged")]
    assert master.core.committed_index == after.last_index
    master.tick(501)
    assert master.fates() == [(before.last_index, "flush-slave-timeout")]


@pytest.mark.rule("H-07")
def test_the_rest_of_a_batch_proves_nothing_about_its_beginning() -> None:
    master = master_of(log_of(b"a"))
    pending = master.append(b"b")
    key = master.slave(place=0, at=master.log.batch_at(pending.first_index).offset + 8)
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.fates() == []


@pytest.mark.rule("H-06", "H-07")
def test_an_empty_slave_counts_from_where_it_began() -> None:
    """It gets the newest segment alone, so it must not acknowledge what stands before."""
    log = new_log(segment_max_bytes=2_000)
    write(log, 1, opened_by="n1")
    master = Master(log, hard_state=HardState(1, "n1"))
    pendings = [master.append(b"x" * 500) for _ in range(10)]
    key = master.slave(at=0)
    begin = log.last_segment_index
    master.deliver(key, ClassicReport(log.end_offset))
    held = [pending.last_index for pending in pendings if pending.first_index >= begin]
    assert 0 < len(held) < len(pendings)
    assert [index for index, _ in master.fates()] == held
    again = connect(master, log, number=2)  # its log still begins there
    assert master.fates() == []
    reasons = {peer.id: peer.reason for peer in master.core.status().peers}
    assert str(reasons["n2"]).startswith(f"it began empty, at index {begin}: ")
    assert reasons["n3"] is None
    assert master.frames(again, ClassicFrame)


@pytest.mark.rule("H-06", "H-07")
@pytest.mark.parametrize("next_master", ["the same", "another one"])
def test_a_slave_counts_from_where_it_began_also_for_a_master_that_did_not_see_that(next_master: str) -> None:
    """A repeat by key of an append before that, which was never acknowledged, is not acknowledged now."""
    log = new_log(segment_max_bytes=2_000)
    write(log, 1, opened_by="n1")
    former = Master(log, hard_state=HardState(1, "n1"))
    pendings = [former.append(b"x" * 500) for _ in range(10)]
    begin = log.last_segment_index
    master = master_of(log) if next_master == "the same" else Master(log, hard_state=HardState(1, "n3"))
    for pending in pendings:
        master.core.join(pending, master.now_ms)
    key = master.connected(1, 2, replace(history_of(log), begin_index=begin))
    master.deliver(key, ClassicReport(log.end_offset))
    held = [pending.last_index for pending in pendings if pending.first_index >= begin]
    assert 0 < len(held) < len(pendings)
    assert [index for index, fate in master.fates() if fate == "acknowledged"] == held
    reasons = {peer.id: peer.reason for peer in master.core.status().peers}
    assert str(reasons["n2"]).startswith(f"it began empty, at index {begin}: ")


@pytest.mark.rule("H-06", "H-07")
def test_a_slave_whose_connection_leaves_its_begin_out_connects_again_and_names_it() -> None:
    """Three connections have ended before a frame: the fourth one is for a master of an earlier version."""
    log = new_log(segment_max_bytes=2_000)
    write(log, 1, opened_by="n1")
    former = Master(log, hard_state=HardState(1, "n1"))
    pendings = [former.append(b"x" * 500) for _ in range(10)]
    held = [pending for pending in pendings if pending.first_index >= log.last_segment_index]
    begun = Slave()
    key = begun.connect()
    for pending in held:
        begun.deliver(key, frame_of(log.batch_at(pending.first_index)))
    slave = Slave(begun.log, hard_state=HardState(1, "n1"))
    slave.core.electable = False
    master = master_of(log)
    for pending in pendings:
        master.core.join(pending, master.now_ms)
    for _ in range(3):
        slave.deliver(slave.connect(), Closed("no log here"))
        slave.tick(CONFIG.ha_refused_interval_max_ms)
    for number in (1, 2):
        ((key, connecting),) = [each for each in slave.take() if isinstance(each[1], Connect)]
        slave.deliver(key, Opened())
        at_master = master.connected(number, 2, as_read(connecting.history))
        master.deliver(at_master, ClassicReport(log.end_offset))
        if number == 1:
            frame, end = master.frames(at_master, (ClassicFrame, Disconnect))
            assert isinstance(end, Disconnect)
            slave.deliver(key, frame)
            slave.deliver(key, Closed("closed by the peer"))
            assert master.fates() == []
            slave.tick(CONFIG.ha_reconnect_interval_ms)
    assert [index for index, _ in master.fates()] == [pending.last_index for pending in held]


@pytest.mark.rule("H-07")
def test_acknowledged_records_stay_so_without_their_slave() -> None:
    """A repeat by key of an acknowledged append is answered although no slave is connected."""
    master = master_of(log_of(b"a"))
    key = connect(master, master.log)
    pending = master.append(b"b")
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.fates() == [(pending.last_index, "acknowledged")]
    master.deliver(key, Closed("gone"))
    master.core.join(pending, master.now_ms)
    master.carry_out()
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("unproven", ["other history", "no history", "empty"])
def test_acks_all_need_every_replica_to_hold_the_record(unproven: str) -> None:
    master = master_of(log_of(b"a"))
    key = connect(master, master.log, place=2)
    pending = master.append(b"b", acks=Acks.ALL)
    master.deliver(key, ClassicReport(master.log.end_offset))
    if unproven == "other history":
        connect(master, log_of(b"a", b"x"), place=3, number=2)
    elif unproven == "no history":
        master.deliver(master.connected(2, 3), ClassicReport(master.log.end_offset))
    else:
        master.slave(2, place=3, at=0)
    assert master.fates() == []
    last = connect(master, master.log, place=3, number=3)
    fates = master.fates()
    if unproven == "empty":  # it began at the newest segment, which is the first one here
        master.deliver(last, ClassicReport(master.log.end_offset))
    assert fates == [(pending.last_index, "acknowledged")]


def test_a_refused_replica_is_not_in_sync_with_a_master_that_has_committed_nothing() -> None:
    master = Master(unclean=True)
    connect(master, log_of(b"a", b"b"), place=3)
    assert master.core.status().committed_index == NO_INDEX
    assert master.core.status().sync_state_set == ("n1",)
    master.slave(2, place=2, at=0)
    assert master.core.status().sync_state_set == ("n1", "n2")


@pytest.mark.rule("R-08", "H-08")
def test_a_slave_reads_only_while_its_records_are_known_to_be_the_masters() -> None:
    master = master_of(log_of(b"a"))
    master.deliver("n2", ReadIndexRequest(1, 5))
    assert master.take() == [("n2", ReadIndexAnswer(1, 5, None))]
    connect(master, master.log)
    master.take()
    master.deliver("n2", ReadIndexRequest(1, 6))
    master.deliver("n3", ReadIndexRequest(1, 7))
    assert master.take() == [("n2", ReadIndexAnswer(1, 6, 1)), ("n3", ReadIndexAnswer(1, 7, None))]


def test_ranges_of_what_slaves_hold() -> None:
    assert held_by([(0, 9), (4, 20)], 1) == [(0, 3), (4, 20)]
    assert held_by([(0, 9), (4, 20)], 2) == [(4, 9)]
    assert held_by([(0, 9)], 2) == []
    assert held_by([(2, 3), (8, 9)], 1) == [(2, 3), (8, 9)]
    ranges = Ranges()
    for first, last in ((5, 9), (0, 2), (3, 4), (20, 19), (30, 31)):
        ranges.add(first, last)
    assert list(ranges) == [(0, 9), (30, 31)]


# --- a slave whose log the master has trimmed --------------------------------------------------------


def trimmed_log() -> tuple[Commitlog, Commitlog]:
    """A log of n1, and a copy of its beginning: the log begins after the end of the copy."""
    log = new_log(segment_max_bytes=2_000)
    write(log, 1, opened_by="n1")
    old = copy(log)
    for _ in range(10):
        write(log, 1, b"x" * 500)
    log.settle(log.end_index)
    ticket = log.start_trim(log.last_segment_index)
    assert ticket is not None
    log.carry_out_trim(ticket)
    assert log.begin_offset > old.end_offset
    return log, old


@pytest.mark.rule("H-04")
def test_a_slave_below_the_masters_begin_starts_again_from_there() -> None:
    log, old = trimmed_log()
    master, slave = Master(log, hard_state=HardState(1, "n1")), Slave(old)
    pending = master.append(b"y")
    slave.tick()
    (out, dial) = slave.sent[-1]
    assert isinstance(dial, Connect)
    assert dial.history == history_of(old)
    slave.take()
    into = master.connected(1, 2, dial.history)
    slave.deliver(out, Opened())
    for _ in range(5):
        for report in slave.frames(out, ClassicReport):
            master.deliver(into, report)
        for frame in master.frames(into, ClassicFrame):
            slave.deliver(out, frame)
    assert slave.truncations == [Reset(log.begin_index, log.begin_offset)]
    assert slave.log.last_chain == log.last_chain
    assert slave.log.begin_index == log.begin_index
    assert master.fates() == [(pending.last_index, "acknowledged")]


@pytest.mark.rule("H-04", "H-06")
@pytest.mark.parametrize("is_same", [True, False])
def test_a_slave_whose_log_ends_where_the_masters_begins_continues_if_the_history_is_the_same(
    is_same: bool,
) -> None:
    log = new_log(segment_max_bytes=2_000)
    write(log, 1, opened_by="n1")
    for _ in range(10):
        write(log, 1, b"x" * 500)
    old = copy(log, until=log.batch_at(log.last_segment_index - 1))
    log.settle(log.end_index)
    ticket = log.start_trim(log.last_segment_index)
    assert ticket is not None
    log.carry_out_trim(ticket)
    assert (log.begin_index, log.begin_offset) == (old.next_index, old.end_offset)
    master = Master(log, hard_state=HardState(1, "n1"))
    pending = master.append(b"y")
    history = history_of(old) if is_same else replace(history_of(old), chain=b"12345678")
    key = master.connected(1, 2, history)
    master.deliver(key, ClassicReport(old.end_offset))
    if is_same:
        frames = master.frames(key, ClassicFrame)
        assert (frames[0].offset, [frame.restart for frame in frames]) == (
            old.end_offset,
            [False] * len(frames),
        )
        master.deliver(key, ClassicReport(log.end_offset))
        assert master.fates() == [(pending.last_index, "acknowledged")]
    else:
        assert [type(message) for message in master.frames(key)] == [Disconnect]
        assert master.fates() == []


@pytest.mark.rule("H-04")
def test_a_slave_starts_again_only_where_its_own_log_has_ended() -> None:
    slave = Slave(log_of(b"a"))
    key = slave.connect()
    slave.take()
    slave.deliver(key, ClassicFrame(slave.log.end_offset - 8, restart=True))
    assert [type(message) for message in slave.frames(key)] == [Disconnect]
    assert slave.truncations == []


@pytest.mark.rule("H-04")
def test_records_after_a_restart_must_lie_beyond_the_slaves_log() -> None:
    log = log_of(b"a", b"b")
    slave = Slave(copy(log, until=log.batch_at(1)))
    key = slave.connect()
    slave.take()
    other = log_of(opened_by="n3", epoch=5)
    batch = other.batch_at(0)
    slave.deliver(key, ClassicFrame(slave.log.end_offset + 64, restart=True))
    slave.deliver(key, ClassicFrame(slave.log.end_offset + 64, bytes(batch.data)))
    assert [type(message) for message in slave.frames(key)] == [Disconnect]
    assert (slave.truncations, slave.log.end_index) == ([], 1)


@pytest.mark.rule("H-04")
def test_a_slave_refuses_an_epoch_beyond_reason() -> None:
    slave = Slave(new_log())
    key = slave.connect()
    slave.take()
    slave.deliver(key, frame_of(log_of(epoch=(1 << 63) - 2).batch_at(0)))
    assert [type(message) for message in slave.frames(key)] == [Disconnect]
    assert (slave.core.term, slave.log.end_index) == (0, NO_INDEX)
    assert "beyond any that follows" in str([event.data for event in slave.events])


# --- refused connections are retried with pauses -----------------------------------------------------


def test_a_refused_slave_waits_longer_each_time_and_the_journal_has_one_event() -> None:
    log = log_of(b"a")
    slave = Slave(copy(log))
    other = log_of(b"x", b"y")
    pauses = []
    for _ in range(8):
        key = slave.connect()
        slave.take()
        slave.deliver(key, frame_of(other.batch_at(2)))
        left_ms = slave.now_ms
        while not any(isinstance(message, Connect) for _, message in slave.sent):
            slave.tick(50)
        pauses.append(slave.now_ms - left_ms)
    assert pauses[:3] == [600, 1_200, 2_400]
    assert max(pauses) == CONFIG.ha_refused_interval_max_ms
    assert len(slave.reported("corruption")) == 1


def test_a_master_that_closes_before_a_frame_is_dialled_ever_less_often() -> None:
    slave = Slave(log_of(b"a"))
    attempts = 0
    for _ in range(1_200):  # a minute
        slave.tick(50)
        for key, message in slave.take():
            if isinstance(message, Connect):
                attempts += 1
                slave.deliver(key, Opened())
                slave.deliver(key, Closed("hung up"))
    assert attempts < 12
    link = slave.core.status().link
    assert link is not None
    assert "connections ended before anything" in (link.reason or "")


def test_a_refusal_is_in_the_masters_journal_once_for_each_cause() -> None:
    master = master_of(log_of(b"a", b"b"))
    for number in range(5):
        connect(master, log_of(b"x"), number=number)
    assert len(master.reported("corruption")) == 1
    connect(master, log_of(b"x", b"y", b"z", b"x" * 5_000), number=8)  # now it is ahead as well
    assert len(master.reported("corruption")) == 2
    connect(master, master.log, number=9)
    connect(master, log_of(b"x"), number=10)
    assert len(master.reported("corruption")) == 3


def test_an_empty_masters_log_is_not_a_history() -> None:
    master = Master(waits=True)
    key = master.connected(1, 2, History(500, 3, 1, b"12345678"))
    master.deliver(key, ClassicReport(500))
    assert [type(message) for message in master.frames(key)] == [Disconnect]
