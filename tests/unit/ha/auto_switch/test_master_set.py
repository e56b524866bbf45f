"""Members of the SyncStateSet, as its master sees them (C-07, C-08, C-11)."""

import pytest

from app.ha.frames import Ack, Handshake, TransferFrame
from app.ha.messages import Closed
from app.ha.roles import MANAGER, KnownReplica, Lease, SlaveRole
from app.log.contract import Role
from tests.unit.ha.lab import REPLICAS, Replicated, new_log, write
from tests.unit.ha.masters import SLOW, ack_all, grant, in_sync_with_n2, join


@pytest.mark.rule("C-08")
def test_a_slave_joins_when_it_has_reached_the_confirm_offset() -> None:
    master = Replicated()
    master.lead()
    master.append(b"a")
    key = join(master, at=0)
    assert master.core.confirm_offset == master.log.end_offset
    assert master.wanted_set is None
    master.deliver(key, Ack(master.log.batch_at(0).next_offset))
    assert master.wanted_set is None
    ack_all(master, key)
    request = master.core.set_request
    assert request is not None
    assert (request.master_epoch, request.sync_state_set_epoch, request.members) == (1, 1, (1, 2))


@pytest.mark.rule("C-08")
def test_no_replica_joins_before_the_epochs_first_record_is_confirmed() -> None:
    """A new master may not know how far the old one had confirmed: a slave that lacks some of it waits."""
    log = new_log()
    write(log, 1, opened_by="n3")
    write(log, 1, b"confirmed by the old master")
    master = Replicated(log=log, committed_index=0)
    master.lead(epoch=2, members=(1, 3), lease_ms=None)
    join(master, at=log.batch_at(0).next_offset)
    member = join(master, "n3", number=2, at=log.batch_at(0).next_offset)
    assert master.core.committed_index == 0  # no lease yet: nothing is confirmed
    assert master.wanted_set is None
    master.deliver(MANAGER, Lease(master.now_ms + 1_000))
    assert master.core.committed_index == 0  # n3 lacks the opening
    assert master.wanted_set is None
    ack_all(master, member)
    assert master.core.committed_index == 2
    assert master.wanted_set is None


@pytest.mark.rule("C-08")
def test_the_confirm_offset_is_the_least_of_the_set_and_never_falls() -> None:
    master, key = in_sync_with_n2()
    before = master.core.confirm_offset
    master.append(b"a")
    assert master.core.confirm_offset == before
    ack_all(master, key)
    reached = master.core.confirm_offset
    assert reached == master.log.end_offset > before
    master.append(b"b")
    master.deliver(key, Closed("cut"))
    assert master.core.confirm_offset == reached  # neither down nor up because a member is gone
    join(master, number=2, at=before)  # it has lost some: it is out at once, and confirms nothing
    assert master.core.confirm_offset == reached
    assert master.wanted_set == (1,)


@pytest.mark.rule("C-07")
def test_a_slave_that_does_not_catch_up_falls_out() -> None:
    master, key = in_sync_with_n2()
    behind = master.log.end_offset
    master.append(b"a")
    for _ in range(4):
        master.tick(SLOW)
        master.deliver(key, Ack(behind))
    assert master.wanted_set == (1,)


@pytest.mark.rule("C-07", "C-08")
def test_a_slave_whose_disk_hangs_stays_out_once_the_others_confirm_more() -> None:
    """Its connection is open, and it holds all that was confirmed while appends waited for it."""
    master, hanging = in_sync_with_n2()
    other = join(master, "n3", number=2)
    grant(master, (1, 2, 3))
    master.append(b"a")
    ack_all(master, other)
    for _ in range(4):
        master.tick(SLOW)
        master.deliver(other, Ack(master.log.end_offset))
    assert master.wanted_set == (1, 3)
    grant(master, (1, 3))
    assert master.wanted_set is None
    assert master.core.committed_index == master.log.end_index
    ack_all(master, hanging)
    assert master.wanted_set == (1, 2, 3)


@pytest.mark.rule("C-07")
def test_an_ack_that_reaches_the_noted_end_counts_from_when_that_was_noted() -> None:
    """Under load no ack reaches the master's end of that moment: being milliseconds behind is in sync."""
    master, key = in_sync_with_n2()
    behind: list[int] = []
    for number in range(200):
        master.append(b"%d" % number)
        behind.append(master.log.end_offset)
        if len(behind) > 10:  # 200 ms behind
            master.deliver(key, Ack(behind[-10]))
        master.tick(20)
    assert master.wanted_set is None


@pytest.mark.rule("C-07")
def test_a_slave_that_is_gone_falls_out_by_time() -> None:
    master, key = in_sync_with_n2()
    master.deliver(key, Closed("cut"))
    master.tick(1_400)
    assert master.wanted_set is None
    master.tick(200)
    assert master.wanted_set == (1,)


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("source", ["controller", "handshake"])
def test_a_learner_gets_the_log_and_is_never_in_the_set(source: str) -> None:
    replicas = (*REPLICAS[:2], KnownReplica(3, "n3", "n3:10911", learner=source == "controller"))
    master = Replicated()
    master.lead(replicas=replicas)
    key = join(master, "n3", learner=source == "handshake")
    master.append(b"a")
    assert master.frames(key, TransferFrame)[-1].body
    ack_all(master, key)
    master.tick(SLOW)
    assert master.wanted_set is None
    assert master.core.committed_index == master.log.end_index


@pytest.mark.rule("C-11")
def test_a_learner_knows_that_it_is_one() -> None:
    learner = Replicated("n3")
    replicas = (*REPLICAS[:2], KnownReplica(3, "n3", "n3:10911", learner=True))
    learner.deliver(MANAGER, SlaveRole(1, 1, replicas))
    assert learner.core.role is Role.LEARNER
    learner.tick()
    key = learner.dialled()
    (hello,) = learner.frames(key, Handshake)
    assert hello.is_learner
