"""Classic HA: acks that follow the slaves in sync, and flow control."""

import pytest

from app.errors import NotEnoughInSync
from app.ha.config import HaConfig
from app.ha.flow import Flow
from app.ha.frames import ClassicFrame, ClassicReport
from app.ha.messages import Closed
from app.log.contract import Acks, LogOptions
from storage.log.hard_state import HardState
from tests.unit.ha.classic.test_classic import Master
from tests.unit.ha.classic.test_history import connect, log_of
from tests.unit.ha.lab import CONFIG, copy


def degrading(*, floor: int = 1, sync_slaves: int = 2) -> Master:
    log = log_of(b"a", opened_by="n1")
    return Master(
        log,
        hard_state=HardState(1, "n1"),
        sync_slaves=sync_slaves,
        auto_in_sync_replicas=True,
        min_in_sync_replicas=floor,
    )


@pytest.mark.rule("H-07")
def test_the_acks_follow_the_slaves_in_sync() -> None:
    master = degrading()
    keys = [connect(master, master.log, place=2, number=1), connect(master, master.log, place=3, number=2)]
    assert master.core.status().acks_needed == 2
    pending = master.append(b"b", timeout_ms=60_000)
    master.deliver(keys[0], ClassicReport(master.log.end_offset))
    assert master.fates() == []
    master.deliver(keys[1], Closed("gone"))
    master.tick()
    assert master.fates() == [(pending.last_index, "acknowledged")]
    assert master.core.status().acks_needed == 1
    master.deliver(keys[0], Closed("gone"))
    master.tick()
    assert master.core.status().acks_needed == 0
    assert master.append(b"c").last_index == master.core.committed_index


@pytest.mark.rule("H-07")
def test_a_slave_that_does_not_keep_up_is_out_of_sync() -> None:
    master = degrading(sync_slaves=1)
    key = connect(master, master.log, place=2)
    pending = master.append(b"b", timeout_ms=60_000)
    limit_ms = CONFIG.ha_max_time_slave_not_catchup_ms
    for _ in range(limit_ms // 100):  # it lives, but reports no progress
        master.tick(100)
        master.deliver(key, ClassicReport(master.log.batch_at(pending.first_index).offset))
    assert master.fates() == []
    master.tick(100)
    assert master.fates() == [(pending.last_index, "acknowledged")]
    assert [peer.in_sync for peer in master.core.status().peers] == [False, False]
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert master.core.status().acks_needed == 1


@pytest.mark.rule("H-07")
def test_never_fewer_than_the_floor_and_then_refused() -> None:
    master = degrading(floor=2)
    assert master.core.status().acks_needed == 1
    refusal = master.core.refusal
    assert isinstance(refusal, NotEnoughInSync)
    assert (refusal.in_sync, refusal.min_in_sync_replicas) == (1, 2)
    assert master.core.takes_unreplicated  # acks=leader promises nothing of slaves
    connect(master, master.log, place=2)
    assert master.core.refusal is None


@pytest.mark.rule("H-07")
def test_a_replica_without_a_proven_history_is_not_in_sync() -> None:
    """It reports as many bytes as the master holds, which may be other ones."""
    master = degrading(floor=2)
    master.deliver(master.connected(1, 2), ClassicReport(master.log.end_offset))
    assert [peer.in_sync for peer in master.core.status().peers] == [False, False]
    assert isinstance(master.core.refusal, NotEnoughInSync)


@pytest.mark.rule("H-07")
def test_the_floor_can_be_changed_while_the_log_runs() -> None:
    master = Master(log_of(b"a", opened_by="n1"), hard_state=HardState(1, "n1"), sync_slaves=1)
    connect(master, master.log, place=2)
    assert (master.core.status().acks_needed, master.core.refusal) == (1, None)

    def floor(replicas: int) -> None:
        options = LogOptions(durability=master.durability, min_in_sync_replicas=replicas)
        master.core.apply_options(options, master.now_ms)

    floor(3)
    assert master.core.status().acks_needed == 2
    assert isinstance(master.core.refusal, NotEnoughInSync)
    floor(1)
    assert (master.core.status().acks_needed, master.core.refusal) == (1, None)


def test_without_degradation_the_number_stays() -> None:
    master = Master(log_of(b"a", opened_by="n1"), hard_state=HardState(1, "n1"), sync_slaves=2)
    assert (master.core.status().acks_needed, master.core.refusal) == (2, None)
    pending = master.append(b"b", acks=Acks.LEADER)
    assert master.fates() == [(pending.last_index, "acknowledged")]


def test_a_slave_gets_no_more_than_its_bytes_per_second() -> None:
    log = log_of(*[b"x" * 50_000] * 40, opened_by="n1")
    config = HaConfig(ha_flow_control=True, ha_max_transfer_bytes_per_s=200_000, ha_window_bytes=10_000_000)
    master = Master(log, hard_state=HardState(1, "n1"), config=config)
    key = connect(master, copy(log, until=log.batch_at(0)), place=2)
    sent = sum(len(frame.body) for frame in master.frames(key, ClassicFrame))
    assert sent <= 65_536  # the burst
    for _ in range(50):
        master.tick(100)
        if bodies := [len(frame.body) for frame in master.frames(key, ClassicFrame)]:
            sent += sum(bodies)
            master.deliver(key, ClassicReport(log.batch_at(0).next_offset))
    assert 900_000 <= sent <= 1_100_000
    rate = master.core.status().peers[0].bytes_per_s
    assert rate is not None
    assert 150_000 <= rate <= 250_000


def test_the_measured_rate_and_an_unlimited_flow() -> None:
    flow = Flow(None, 0)
    assert flow.room_bytes(0) > 1 << 40
    flow.sent(500, 0)
    flow.sent(500, 999)
    assert flow.bytes_per_s(999) == 0
    assert flow.bytes_per_s(1_000) == 1_000
    assert flow.bytes_per_s(2_000) == 0


@pytest.mark.rule("H-07")
def test_a_master_that_stops_takes_no_appends_and_waits_for_the_slaves_in_sync() -> None:
    master = Master(sync_slaves=0)
    key = master.slave()
    master.append(b"a", acks=Acks.LEADER)
    master.core.hand_over(master.now_ms)
    assert (master.core.accepts_appends, master.core.pauses_appends) == (False, True)
    assert master.core.is_transferring  # n2 may lack it: as the next master it would wait for this one
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert not master.core.is_transferring


@pytest.mark.rule("H-07")
def test_a_master_that_stops_sends_what_its_disk_has_not_stored_yet_too() -> None:
    master = Master(sync_slaves=0)
    key = master.slave()
    master.auto_sync = False
    master.append(b"a", acks=Acks.LEADER)
    master.core.hand_over(master.now_ms)
    assert master.core.is_transferring
    master.sync()
    master.deliver(key, ClassicReport(master.log.end_offset))
    assert not master.core.is_transferring


@pytest.mark.rule("H-07")
def test_a_master_that_stops_does_not_wait_for_slaves_that_are_gone_or_far_behind() -> None:
    master = Master(sync_slaves=0)
    keys = [master.slave(1, place=2), master.slave(2, place=3)]
    behind = master.log.end_offset
    master.append(b"a", acks=Acks.LEADER)
    master.core.hand_over(master.now_ms)
    master.deliver(keys[0], Closed("gone"))
    assert master.core.is_transferring
    for _ in range(CONFIG.ha_max_time_slave_not_catchup_ms // 100 + 1):
        master.deliver(keys[1], ClassicReport(behind))
        master.tick(100)
    assert not master.core.is_transferring
