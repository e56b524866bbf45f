"""AutoSwitch at the slave: handshake, truncation, and what it refuses."""

from typing import Any

import pytest

from app.ha.auto_switch.slave_side import Rollback
from app.ha.frames import Ack, EpochStart, Handshake, HandshakeAnswer, TransferFrame
from app.ha.messages import Connect, Disconnect, Opened
from app.ha.roles import MANAGER, SlaveRole
from app.log.contract import NO_INDEX, Durability, Reset, Role, TruncateAfter
from storage.format.batch import Batch
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState
from tests.unit.ha.lab import REPLICAS, Replicated, copy, new_log, next_batch, write


def answer_of(log: Commitlog, epoch: int) -> HandshakeAnswer:
    """Content of a handshake of a master with that log."""
    starts = tuple(EpochStart(each.epoch, each.start_offset) for each in log.epochs)
    return HandshakeAnswer(log.end_offset, epoch, starts)


def frames_of(log: Commitlog, batch: Batch, *, confirm: int = 0, size: int = 1 << 20) -> list[TransferFrame]:
    start = max(each.start_offset for each in log.epochs if each.epoch <= batch.term)
    data = bytes(batch.data)
    return [
        TransferFrame(batch.offset + at, batch.term, start, confirm, data[at : at + size])
        for at in range(0, len(data), size)
    ]


def send(slave: Replicated, key: str, frames: list[Any]) -> None:
    for frame in frames:
        slave.deliver(key, frame)


def master_log(*epochs: int, records: int = 1) -> Commitlog:
    """Every epoch with its opening and so many batches."""
    log = new_log()
    for epoch in epochs:
        write(log, epoch, opened_by="n1")
        for number in range(records):
            write(log, epoch, b"%d-%d" % (epoch, number))
    return log


def following(log: Commitlog, theirs: Commitlog, epoch: int, **options: Any) -> tuple[Replicated, str]:
    """A slave that has compared its log with the master's, and its connection."""
    slave = Replicated("n2", log, **options)
    key = slave.follow(epoch=epoch)
    slave.deliver(key, answer_of(theirs, epoch))
    return slave, key


# --- handshake ---------------------------------------------------------------------------------------


@pytest.mark.rule("A-02", "A-07")
def test_a_slave_connects_introduces_itself_and_reports() -> None:
    log = master_log(1, 2)
    slave = Replicated("n2", copy(log))
    slave.deliver(MANAGER, SlaveRole(1, 2, REPLICAS))
    slave.tick()
    assert slave.take()[-1] == ("out-1", Connect("n1:10911", node="n1"))
    slave.deliver("out-1", Opened())
    assert slave.take() == [("out-1", Handshake("n2:10911"))]
    slave.deliver("out-1", answer_of(log, 2))
    assert slave.take() == [("out-1", Ack(log.end_offset))]
    assert (slave.core.role, slave.core.leader_id, slave.truncations) == (Role.SLAVE, "n1", [])


@pytest.mark.rule("C-03", "C-05")
@pytest.mark.parametrize("durability", list(Durability))
def test_a_copy_reports_what_a_power_failure_would_leave(durability: Durability) -> None:
    """By this report it is elected; with `replicated` what is written counts."""
    log = master_log(1)
    held = log.end_offset
    log.append([next_batch(log, 2, opened_by="n1")])
    slave = Replicated("n2", log, durability=durability, auto_sync=False)
    synced_alone = durability is Durability.FSYNC
    reported = (slave.core.log_epoch, slave.core.max_offset)
    assert reported == ((1, held) if synced_alone else (2, log.end_offset))
    slave.sync()
    assert (slave.core.log_epoch, slave.core.max_offset) == (2, log.end_offset)


@pytest.mark.rule("A-04")
def test_records_and_epochs_that_the_master_lacks_are_truncated() -> None:
    theirs = master_log(1, 2)
    ours = copy(theirs)
    write(ours, 3, opened_by="n3")
    write(ours, 3, b"lost")
    write(theirs, 4, opened_by="n1")
    slave, key = following(ours, theirs, 4)
    assert slave.truncations == [TruncateAfter(3)]
    assert [epoch.epoch for epoch in ours.epochs] == [1, 2]
    assert slave.frames(key, Ack) == [Ack(ours.end_offset)]
    assert slave.reported("truncate")[0]["from_index"] == 4


@pytest.mark.rule("A-04")
def test_a_cut_within_an_epoch_keeps_it_open() -> None:
    theirs = master_log(1)
    ours = copy(theirs)
    write(ours, 1, b"never sent to the new master")
    write(theirs, 2, opened_by="n3")
    slave, key = following(ours, theirs, 2)
    assert slave.truncations == [TruncateAfter(1)]
    send(slave, key, frames_of(theirs, theirs.batch_at(2)))
    assert [epoch.epoch for epoch in ours.epochs] == [1, 2]
    assert ours.last_chain == theirs.last_chain


@pytest.mark.rule("A-04")
def test_without_a_common_epoch_the_slave_starts_again_at_the_masters_begin() -> None:
    ours, theirs = master_log(1), new_log()
    write(
        theirs,
        2,
        opened_by="n1",
    )
    slave, key = following(ours, theirs, 2)
    assert slave.frames(key, Ack) == [Ack(0)]
    assert ours.end_index == 1  # kept until the first batch is here
    send(slave, key, frames_of(theirs, theirs.batch_at(0)))
    assert slave.truncations == [Reset(0, 0)]
    assert ours.last_chain == theirs.last_chain
    assert slave.frames(key, Ack)[-1] == Ack(theirs.end_offset)


@pytest.mark.rule("A-04")
def test_nothing_confirmed_is_ever_cut_without_an_unclean_election() -> None:
    theirs = master_log(1)
    ours = copy(theirs)
    write(ours, 1, b"confirmed")
    write(theirs, 2, opened_by="n1")
    slave, key = following(ours, theirs, 2, committed_index=2)
    assert slave.truncations == []
    assert ours.end_index == 2
    assert slave.core.wanted_rollback is None
    assert len(slave.frames(key, Disconnect)) == 1
    assert "confirmed" in slave.reported("corruption")[0]["reason"]


@pytest.mark.rule("A-04")
def test_an_unclean_election_takes_the_confirmed_too_but_not_while_the_log_is_open() -> None:
    theirs = master_log(1)
    ours = copy(theirs)
    write(ours, 1, b"confirmed")
    write(theirs, 2, opened_by="n1")
    slave = Replicated("n2", ours, committed_index=2)
    key = slave.follow(epoch=2, unclean_epoch=2)
    slave.deliver(key, answer_of(theirs, 2))
    assert slave.core.wanted_rollback == Rollback(1, 2)
    assert slave.truncations == []
    slave.take()
    slave.tick(10_000)
    assert slave.take() == []  # it waits for the node


@pytest.mark.rule("A-04")
@pytest.mark.parametrize("common", [True, False])
def test_records_that_may_be_confirmed_are_removed_by_receipt_only_even_if_this_replica_has_not_heard(
    common: bool,
) -> None:
    theirs = master_log(1) if common else new_log()
    ours = copy(theirs) if common else master_log(1)
    write(ours, 1, b"confirmed, which is not known here")
    write(theirs, 2, opened_by="n1")
    slave = Replicated("n2", ours)
    key = slave.follow(epoch=2, unclean_epoch=2)
    slave.deliver(key, answer_of(theirs, 2))
    assert slave.core.wanted_rollback == Rollback(1 if common else NO_INDEX, 2)
    assert slave.truncations == []


@pytest.mark.rule("A-04")
def test_an_unclean_election_before_the_confirmed_records_excuses_nothing() -> None:
    theirs = master_log(1, 3)
    ours = copy(theirs)
    write(ours, 3, b"confirmed")
    write(theirs, 4, opened_by="n1")
    slave = Replicated("n2", ours, committed_index=ours.end_index)
    key = slave.follow(epoch=4, unclean_epoch=2)
    slave.deliver(key, answer_of(theirs, 4))
    assert slave.core.wanted_rollback is None
    assert slave.reported("corruption")


@pytest.mark.rule("A-04", "R-07")
def test_starting_again_never_replaces_what_is_confirmed() -> None:
    ours, theirs = master_log(1), new_log()
    write(theirs, 2, opened_by="n1")
    slave, key = following(ours, theirs, 2, committed_index=1)
    send(slave, key, frames_of(theirs, theirs.batch_at(0)))
    assert Disconnect in [type(message) for message in slave.frames(key)]
    assert (slave.truncations, ours.end_index) == ([], 1)


@pytest.mark.rule("A-04", "A-09")
def test_a_log_that_holds_nothing_confirmed_is_replaced_by_what_precedes_it() -> None:
    """It began with the last segment, whose records were never confirmed."""
    theirs = master_log(1)
    former = copy(theirs)
    first = write(former, 1, b"never confirmed")
    ours = new_log()
    ours.reset(first.base_index, first.offset)
    write(ours, 1, b"never confirmed")
    write(theirs, 2, opened_by="n1")
    slave, key = following(ours, theirs, 2)
    assert slave.core.committed_index == 1
    send(slave, key, frames_of(theirs, theirs.batch_at(0)))
    assert slave.truncations == [Reset(0, 0)]
    assert (ours.begin_index, ours.end_index, slave.core.committed_index) == (0, 0, NO_INDEX)


def test_a_master_that_trimmed_past_the_slave_resets_it() -> None:
    theirs = master_log(1, 2, records=3)
    ours = copy(theirs, until=theirs.batch_at(1))
    slave, key = following(ours, theirs, 2, committed_index=1)
    assert slave.frames(key, Ack) == [Ack(ours.end_offset)]
    first = theirs.batch_at(5)
    send(slave, key, frames_of(theirs, first))
    assert slave.truncations == [Reset(5, first.offset)]
    assert (ours.begin_index, ours.end_index) == (5, 5)
    assert slave.core.committed_index == 1


def test_a_slave_that_began_within_an_epoch_still_compares_by_it() -> None:
    """Its epoch file lacks the opening of its first epoch; the epoch alone determines the common part."""
    theirs = master_log(1, records=4)
    ours = new_log()
    first = theirs.batch_at(2)
    ours.reset(first.base_index, first.offset)
    ours.append([first])
    slave, key = following(ours, theirs, 1, auto_sync=False)
    assert slave.frames(key, Ack) == []  # not durable yet
    slave.sync()
    assert slave.frames(key, Ack) == [Ack(first.next_offset)]
    assert slave.truncations == []


@pytest.mark.rule("A-04")
def test_a_master_that_lists_its_first_epoch_from_its_begin_shares_it_with_a_longer_log() -> None:
    """It does not know where the epoch began, because it received its log from there on."""
    theirs = master_log(1, 2, records=3)
    slave = Replicated("n2", copy(theirs))
    key = slave.follow(epoch=2)
    begin = EpochStart(2, theirs.batch_at(6).offset)
    slave.deliver(key, HandshakeAnswer(theirs.end_offset, 2, (begin,)))
    assert slave.frames(key, Ack) == [Ack(theirs.end_offset)]


@pytest.mark.rule("A-02")
def test_the_first_report_waits_until_all_of_the_log_is_durable() -> None:
    theirs = master_log(1)
    ours = copy(theirs, until=theirs.batch_at(0))
    ours.append([theirs.batch_at(1)])
    slave, key = following(ours, theirs, 1, auto_sync=False)
    assert slave.frames(key, Ack) == []
    slave.sync()
    assert slave.frames(key, Ack) == [Ack(theirs.end_offset)]


@pytest.mark.rule("A-11", "C-10")
def test_a_master_of_an_older_epoch_is_left() -> None:
    slave = Replicated("n2", hard_state=HardState(5))
    slave.deliver(MANAGER, SlaveRole(1, 4, REPLICAS))
    slave.tick()
    assert slave.take() == []
    key = slave.follow(epoch=5)
    slave.deliver(key, HandshakeAnswer(0, 4, ()))
    assert len(slave.frames(key, Disconnect)) == 1


def test_the_epoch_of_the_role_is_adopted_durably() -> None:
    theirs = master_log(6)
    slave, _ = following(new_log(), theirs, 6)
    assert slave.saved == [HardState(6)]
    assert slave.core.term == 6
