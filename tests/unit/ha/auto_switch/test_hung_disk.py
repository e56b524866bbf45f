"""A master whose disk completes no sync gives its role up; one whose disk is slow keeps it (C-05)."""

import pytest

from app.ha.frames import Ack
from app.log.contract import AppendFate, Durability, Role
from tests.unit.ha.lab import CONFIG, Replicated
from tests.unit.ha.masters import grant, in_sync_with_n2, join
from tests.unit.storage.support import sync_log

HALF_MS = CONFIG.ha_disk_timeout_ms // 2 + 1


@pytest.mark.rule("C-05", "D-23")
def test_a_master_whose_disk_hangs_requests_an_election_and_answers_its_callers() -> None:
    master, _key = in_sync_with_n2()
    master.auto_sync = False
    waiting = master.append(b"in doubt", timeout_ms=60_000)
    master.tick()
    master.tick(HALF_MS)
    assert master.core.role is Role.MASTER
    master.tick(HALF_MS)
    assert (master.core.role, master.core.needs_election) == (Role.SLAVE, True)
    assert (waiting, AppendFate.TERM_CHANGED) in master.answers


@pytest.mark.rule("C-05", "C-12")
def test_a_requested_member_may_be_in_the_set_already() -> None:
    """The set that the controllers accepted counts here once it is on the same disk, which hangs."""
    master = Replicated()
    master.lead()
    master.auto_sync = False
    waiting = master.append(b"in doubt", timeout_ms=60_000)
    master.tick()
    for _ in range(3):
        master.tick(HALF_MS)
    assert master.core.role is Role.MASTER  # alone
    join(master, at=master.log.batch_at(master.log.durable_index).next_offset)
    assert master.wanted_set == (1, 2)
    master.tick()
    assert (master.core.role, master.core.needs_election) == (Role.SLAVE, True)
    assert (waiting, AppendFate.TERM_CHANGED) in master.answers


@pytest.mark.rule("C-05")
def test_a_master_whose_disk_is_slow_keeps_the_role() -> None:
    """Some record always waits, and each sync makes others durable."""
    master, _key = in_sync_with_n2()
    master.auto_sync = False
    for number in range(6):
        master.append(b"%d" % number)
        ticket = master.log.start_sync()
        assert ticket is not None
        master.append(b"written during the sync")
        ticket.run()
        master.log.finish_sync(ticket)
        assert master.log.durable_index < master.log.end_index
        master.tick(HALF_MS)
        assert master.core.role is Role.MASTER
    sync_log(master.log)
    for _ in range(3):
        master.tick(HALF_MS)
    assert master.core.role is Role.MASTER


@pytest.mark.rule("C-05")
def test_a_master_that_acknowledges_before_its_disk_keeps_the_role() -> None:
    master, key = replicated_with_n2()
    master.append(b"on no disk")
    master.deliver(key, Ack(master.log.end_offset))
    for _ in range(3):
        master.tick(HALF_MS)
    assert (master.core.role, master.core.needs_election) == (Role.MASTER, False)


@pytest.mark.rule("C-05", "C-07")
def test_a_master_that_loses_a_member_needs_its_disk_for_the_smaller_set() -> None:
    """It acknowledges nothing until that is on the disk, and another member could lead."""
    master, _key = replicated_with_n2()
    waiting = master.append(b"not at n2", timeout_ms=60_000)
    master.tick()
    master.tick(HALF_MS)
    assert (master.core.role, master.wanted_set) == (Role.MASTER, (1,))
    master.tick(HALF_MS)
    assert (master.core.role, master.core.needs_election) == (Role.SLAVE, True)
    assert (waiting, AppendFate.TERM_CHANGED) in master.answers


def replicated_with_n2() -> tuple[Replicated, str]:
    """A master that acknowledges before its disk, whose disk hangs, and the connection of a member."""
    master = Replicated(durability=Durability.REPLICATED)
    master.lead()
    key = join(master)
    grant(master, (1, 2))
    master.auto_sync = False
    return master, key
