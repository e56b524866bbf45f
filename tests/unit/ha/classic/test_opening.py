"""Classic HA: roles change by configuration, so a new master hears the others before it opens an epoch."""

from typing import Any

import pytest

from app.errors import NoLeader
from app.ha.frames import ClassicReport, Preface, decode_preface, encode_preface
from app.ha.messages import Closed, Connect, Disconnect
from app.log.contract import Acks, LogOptions
from app.log.recorded_values import SyncFloor
from app.log.state import LogState
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState
from tests.unit.ha.classic.test_classic import Master, Slave
from tests.unit.ha.classic.test_history import connect, log_of, trimmed_log
from tests.unit.ha.lab import CONFIG, copy, write

WAIT_MS = CONFIG.opening_wait_ms


def taken_over(*, records: int = 2, **settings: object) -> Master:
    """n1 is made master of a log that n2 wrote."""
    log = log_of(*(b"%d" % number for number in range(records)), opened_by="n2")
    return Master(log, waits=True, **settings)  # type: ignore[arg-type]


def longer(log: Commitlog) -> Commitlog:
    other = copy(log)
    write(other, 1, b"more")
    return other


def recorded_in(log: Commitlog) -> SyncFloor | None:
    state = LogState()
    for batch in log.read_batches(0, 1 << 20):
        state.apply(batch)
    return state.sync_floor


def is_open(master: Master) -> bool:
    return master.core.accepts_appends


# --- a log that another master wrote -----------------------------------------------------------------


def test_a_promoted_slave_waits_for_a_replica_that_may_hold_synchronous_appends() -> None:
    master = taken_over()  # of three replicas with one synchronous slave, two must be looked at
    master.tick(10 * WAIT_MS)
    assert not is_open(master)
    assert master.core.term == 1
    refusal = master.core.refusal
    assert isinstance(refusal, NoLeader)
    assert "n2, n3 may hold synchronous appends" in refusal.detail
    connect(master, copy(master.log, until=master.log.batch_at(1)), place=3)
    master.tick()
    assert is_open(master)
    assert (master.core.term, master.core.refusal) == (2, None)
    assert [(epoch.epoch, epoch.leader) for epoch in master.log.epochs] == [(1, "n2"), (2, "n1")]


def test_it_opens_at_once_when_all_others_hold_no_more() -> None:
    master = taken_over()
    connect(master, master.log, place=2, number=1)
    master.tick()
    assert not is_open(master)  # n3 may hold more than both
    connect(master, copy(master.log, until=master.log.batch_at(0)), place=3, number=2)
    master.tick()
    assert is_open(master)


@pytest.mark.parametrize("acks", [1, 2])
def test_how_many_must_be_heard_follows_from_the_synchronous_slaves(acks: int) -> None:
    """With two of them every synchronous append is at this copy; without any it may be nowhere else."""
    master = taken_over(sync_slaves=acks)
    master.tick(WAIT_MS)
    assert is_open(master) == (acks == 2)


def test_automatic_degradation_makes_the_floor_count() -> None:
    master = taken_over(sync_slaves=2, auto_in_sync_replicas=True)
    connect(master, master.log, place=2)
    master.tick(WAIT_MS)
    assert not is_open(master)
    connect(master, master.log, place=3, number=2)
    master.tick()
    assert is_open(master)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("auto", [False, True])
def test_a_floor_that_was_raised_lets_no_master_open_without_the_holders_of_earlier_records(
    auto: bool,
) -> None:
    """A record that one slave had acknowledged before is on no other one since."""
    master = taken_over(auto_in_sync_replicas=auto, min_in_sync_replicas=3, raised_from=1 if auto else 2)
    master.tick(10 * WAIT_MS)
    assert not is_open(master)
    for place in (2, 3) if auto else (3,):
        assert not is_open(master)
        connect(master, master.log, place=place, number=place)
        master.tick()
    assert is_open(master)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize(
    "recorded",
    [SyncFloor(0, 1, 2), SyncFloor(0, 1, 1), SyncFloor(0, 0, 1), None],
    ids=["sync_slaves", "replicas", "automatic", "unknown"],
)
def test_settings_that_were_raised_let_no_master_open_without_the_holders_of_earlier_records(
    recorded: SyncFloor | None,
) -> None:
    """The file asks for two slaves now, but this copy may lack records of the epoch before that change."""
    master = taken_over(sync_slaves=2, recorded=recorded)
    others = 2 if recorded is None or recorded.sync_slaves == 0 else 1
    for place in (2, 3)[:others]:
        master.tick(10 * WAIT_MS)
        assert not is_open(master)
        connect(master, master.log, place=place, number=place)
    master.tick()
    assert is_open(master)


@pytest.mark.rule("H-07")
def test_a_replica_that_left_the_settings_may_have_held_the_other_copy() -> None:
    """The epoch began with four replicas; a record of the removed one and of its master needs two reports."""
    master = taken_over(recorded=SyncFloor(0, 1, 3))
    connect(master, master.log, place=2)
    master.tick(10 * WAIT_MS)
    assert not is_open(master)
    connect(master, master.log, place=3, number=2)
    master.tick()
    assert is_open(master)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("change", [{"sync_slaves": 2}, {"auto_in_sync_replicas": True}], ids=str)
def test_a_master_with_other_settings_opens_the_next_epoch_and_records_them(change: dict[str, Any]) -> None:
    """A copy that holds the record holds everything that was acknowledged by the settings before it."""
    before = Master()
    assert recorded_in(before.log) == SyncFloor(0, 1, 2)
    before.append(b"a", acks=Acks.LEADER)
    found = {"hard_state": before.saved[-1], "recorded": recorded_in(before.log)}
    same = Master(before.log, **found)  # type: ignore[arg-type]
    assert (same.core.term, same.log.end_index) == (1, 1)
    other = Master(before.log, **found, **change)  # type: ignore[arg-type]
    assert (other.core.term, other.core.accepts_appends) == (2, True)
    assert recorded_in(other.log) == SyncFloor(2, 0 if "auto_in_sync_replicas" in change else 2, 2)
    newer = copy(other.log)
    write(newer, 2, b"more")
    connect(other, newer)
    assert not is_open(other)
    other.slave(2, at=0)  # its operator has removed that copy
    other.tick(WAIT_MS)
    assert (other.core.term, other.core.accepts_appends) == (2, True)


def test_settings_that_change_before_the_epoch_is_open_are_those_that_it_records() -> None:
    master = taken_over()
    connect(master, master.log, place=3)
    master.core.tick(master.now_ms + WAIT_MS)
    options = LogOptions(durability=master.durability, min_in_sync_replicas=3)
    master.core.apply_options(options, master.now_ms)
    master.carry_out()
    assert recorded_in(master.log) == SyncFloor(3, 2, 2)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize(
    "change", [{"min_in_sync_replicas": 1}, {"min_in_sync_replicas": 3, "raised_from": 1}]
)
def test_a_master_that_waits_requires_what_newer_settings_require(change: dict[str, int]) -> None:
    """Its own copy of the settings was older: it would open without the replica that holds more."""
    master = taken_over(min_in_sync_replicas=3)
    master.core.apply_options(LogOptions(durability=master.durability, **change), master.now_ms)
    master.tick(10 * WAIT_MS)
    assert not is_open(master)
    connect(master, longer(master.log), place=2)
    master.tick()
    assert "make n2 the master" in (master.core.status().waits_for or "")


def test_a_replica_that_holds_more_forbids_the_epoch() -> None:
    master = taken_over(sync_slaves=2)
    key = connect(master, longer(master.log), place=2)
    assert [type(message) for message in master.frames(key)] == [Disconnect]
    master.tick(10 * WAIT_MS)
    assert not is_open(master)
    assert master.core.refusal is not None
    assert "make n2 the master" in master.core.refusal.detail
    assert master.core.status().waits_for == master.core.refusal.detail.partition(": ")[2]
    assert len(master.reported("corruption")) == 1
    master.core.read_index("reader", master.now_ms)
    master.carry_out()
    assert master.reads == [("reader", None)]
    master.slave(2, place=2, at=0)  # its operator has removed its copy
    master.tick()
    assert is_open(master)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("lacks", [False, True])
def test_a_master_that_may_lack_its_own_records_counts_not_among_their_holders(lacks: bool) -> None:
    """With one synchronous slave, what a power failure took from this copy is on one other replica."""
    log = log_of(b"a", b"b", opened_by="n1" if lacks else "n2")
    master = Master(log, hard_state=HardState(1, None if lacks else "n2"), waits=True)
    connect(master, copy(log), place=3)
    master.tick(WAIT_MS)
    assert is_open(master) is not lacks
    connect(master, copy(log), place=2, number=2)
    master.tick()
    assert is_open(master)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("last_in_doubt", [False, True])
def test_a_replica_that_may_lack_records_vouches_only_when_all_report(last_in_doubt: bool) -> None:
    """The former master and the lost part of n3 may be the two that held an acknowledged record."""
    master = taken_over()
    connect(master, copy(master.log), place=3, in_doubt=True)
    master.tick(10 * WAIT_MS)
    assert not is_open(master)
    assert (master.core.status().waits_for or "").startswith("n2 may hold synchronous appends")
    connect(master, copy(master.log), place=2, number=2, in_doubt=last_in_doubt)
    master.tick()
    assert is_open(master)


@pytest.mark.rule("H-07")
def test_a_replica_that_may_lack_records_vouches_for_no_master_whose_log_was_not_open_at_first() -> None:
    """The node of n1 ended three connections of n3 while it had not opened the log yet."""
    master = taken_over()
    slave = Slave(copy(master.log), hard_state=HardState(1))
    for _ in range(3):
        slave.deliver(slave.connect(), Closed("no log here"))
        slave.tick(CONFIG.ha_refused_interval_max_ms)
    ((_, connecting),) = [each for each in slave.take() if isinstance(each[1], Connect)]
    found = decode_preface(memoryview(encode_preface(Preface(1, 3, history=connecting.history))))
    assert found is not None
    key = master.connected(1, 3, found[0].history)
    master.deliver(key, ClassicReport(master.log.end_offset))
    master.tick(10 * WAIT_MS)
    assert not is_open(master)


def test_an_empty_replica_vouches_for_nothing() -> None:
    master = taken_over()
    master.slave(1, place=2, at=0)
    master.slave(2, place=3, at=0)
    master.tick(WAIT_MS)
    assert not is_open(master)


def test_a_replica_that_returns_empty_vouches_no_more() -> None:
    master = taken_over(sync_slaves=2, auto_in_sync_replicas=True)  # both must vouch
    connect(master, master.log, place=2)
    master.slave(3, place=2, at=0)
    connect(master, master.log, place=3, number=2)
    master.tick(WAIT_MS)
    assert not is_open(master)


def test_unclean_takes_over_at_once() -> None:
    master = taken_over(unclean=True)
    assert is_open(master)
    newer = copy(master.log)
    write(newer, 3, opened_by="n2")
    connect(master, newer, place=2)
    master.tick()
    assert is_open(master)  # n2 is refused, and prevents nothing


def test_a_master_that_waits_takes_over_when_the_setting_becomes_unclean() -> None:
    """The refusal of appends names this setting: it needs no restart of the node."""
    master = taken_over()
    for unclean in (False, True):
        options = LogOptions(durability=master.durability, unclean=unclean)
        master.core.apply_options(options, master.now_ms)
        master.carry_out()
        assert is_open(master) == unclean


def test_a_copy_without_the_logs_state_is_not_opened() -> None:
    master = taken_over(sync_slaves=2)
    master.core.electable = False
    master.tick(WAIT_MS)
    assert not is_open(master)
    assert "state" in (master.core.status().waits_for or "")
    master.core.electable = True
    master.tick()
    assert is_open(master)


# --- an empty log ------------------------------------------------------------------------------------


def test_a_new_log_opens_when_all_replicas_are_empty_or_none_objects() -> None:
    master = Master(waits=True)
    assert not is_open(master)
    master.slave(1, place=2, at=0)
    master.slave(2, place=3, at=0)
    master.tick()
    assert is_open(master)
    alone = Master(waits=True)
    alone.tick(WAIT_MS - 1)
    assert not is_open(alone)
    alone.tick(1)
    assert is_open(alone)


@pytest.mark.rule("H-07")
def test_a_master_with_an_empty_folder_hears_all_before_it_begins_the_log() -> None:
    """Its disk may be new. When it began after a wait, and its log became the longer one, it refused the
    slave that held the acknowledged records, and continued without them."""
    master = Master(waits=True, begins=False)
    master.slave(1, place=3, at=0)
    master.tick(10 * WAIT_MS)
    assert not is_open(master)
    assert (master.core.status().waits_for or "").startswith("n2 may hold records")
    connect(master, log_of(b"a", opened_by="n1"), place=2, number=2)
    master.tick()
    assert not is_open(master)
    assert "make n2 the master" in (master.core.status().waits_for or "")
    master.slave(3, place=2, at=0)  # its operator has removed its copy
    master.tick()
    assert is_open(master)


def test_a_master_whose_disk_was_replaced_does_not_begin_the_log_again() -> None:
    master = Master(waits=True, begins=False)
    connect(master, log_of(b"a", opened_by="n1"), place=2)
    master.tick(WAIT_MS)
    assert not is_open(master)
    assert "this master's log is empty" in (master.core.status().waits_for or "")


@pytest.mark.rule("A-01")
@pytest.mark.parametrize("known", [HardState(0, "n2"), HardState(1), HardState(2, "n3")], ids=str)
def test_an_empty_copy_that_knows_of_another_master_does_not_begin_the_log_alone(known: HardState) -> None:
    """It was a slave, or a power failure took the epoch: the others hold what was acknowledged."""
    master = Master(hard_state=known, waits=True, sync_slaves=0)
    master.tick(10 * WAIT_MS)
    assert not is_open(master)
    assert "n2, n3 may hold records" in (master.core.status().waits_for or "")
    master.slave(1, place=3, at=0)
    master.tick(WAIT_MS)
    assert not is_open(master)
    assert (master.core.status().waits_for or "").startswith("n2 may hold records")
    master.slave(2, place=2, at=0)
    master.tick()
    assert is_open(master)


def test_a_master_that_ended_before_its_first_record_begins_the_log_alone() -> None:
    master = Master(hard_state=HardState(1, "n1"), waits=True)
    master.tick(WAIT_MS)
    assert is_open(master)


def test_unidentified_replicas_decide_nothing() -> None:
    master = Master(waits=True)
    key = master.connected(1, 0)
    master.deliver(key, ClassicReport(1 << 40))
    master.tick(WAIT_MS)
    assert is_open(master)


def test_the_master_of_the_last_epoch_continues_with_it() -> None:
    """It hears those that connect in time; it needs none of them."""
    log = log_of(b"a", opened_by="n1")
    master = Master(log, hard_state=HardState(1, "n1"), waits=True)
    master.slave(1, place=2, at=0)
    connect(master, log, place=3, number=2)
    master.tick()
    assert (is_open(master), master.core.term, log.end_index) == (True, 1, 1)
    alone = Master(log, hard_state=HardState(1, "n1"), waits=True)
    alone.tick(WAIT_MS)
    assert is_open(alone)


@pytest.mark.rule("A-01")
def test_a_copy_on_another_disk_does_not_continue_with_the_epoch_that_its_node_had_opened() -> None:
    """A slave that received it back may lack records of that epoch, and the state before its beginning."""
    log = log_of(b"a", opened_by="n1")
    master = Master(log, hard_state=HardState(1), waits=True)
    master.core.electable = False
    connect(master, log, place=2)
    connect(master, log, place=3, number=2)
    master.tick(WAIT_MS)
    assert not is_open(master)
    master.core.electable = True
    master.tick()
    assert (is_open(master), master.core.term) == (True, 2)


def test_a_former_master_does_not_continue_when_another_has_taken_over_since() -> None:
    log = log_of(b"a", opened_by="n1")
    newer = copy(log)
    write(newer, 2, opened_by="n2")
    master = Master(log, hard_state=HardState(1, "n1"), waits=True)
    connect(master, newer, place=2)
    master.tick(WAIT_MS)
    assert not is_open(master)
    late = Master(log, hard_state=HardState(1, "n1"))  # no peer objected in time
    pending = late.append(b"b")
    connect(late, newer, place=2)
    assert not is_open(late)
    assert late.fates() == [(pending.last_index, "term-changed")]
    assert isinstance(late.core.refusal, NoLeader)


def test_a_former_master_does_not_continue_when_a_newer_epoch_ends_before_its_begin() -> None:
    """After an unclean takeover by a replica that lacked much. Such a slave must not start again either."""
    log, newer = trimmed_log()
    write(newer, 2, opened_by="n2")
    assert newer.end_offset < log.begin_offset
    master = Master(log, hard_state=HardState(1, "n1"), waits=True)
    key = connect(master, newer, place=2)
    assert [type(message) for message in master.frames(key)] == [Disconnect]
    master.tick(WAIT_MS)
    assert not is_open(master)
    assert master.core.refusal is not None
    assert "make n2 the master" in master.core.refusal.detail


def test_an_older_history_is_refused_and_stops_no_replica() -> None:
    """The tail of a former master, which no slave follows, must not close the log."""
    log = log_of(b"a", opened_by="n1")
    tail = copy(log)
    write(tail, 1, b"x" * 5_000)
    write(log, 2, opened_by="n1")
    master = Master(log, hard_state=HardState(2, "n1"))
    key = connect(master, tail, place=2)
    assert [type(message) for message in master.frames(key)] == [Disconnect]
    assert is_open(master)
