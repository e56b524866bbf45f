"""A state that is ahead of its replica's log, and the next epoch."""

import pytest

from app.log.contract import Role
from app.log.state import LogState
from storage.format.batch import AppendMark, stamp
from storage.format.records import RecordColumns, encode_body
from tests.unit.ha.group import LOG_ID, Group


@pytest.mark.rule("D-28", "C-05")
def test_a_slave_forgets_at_the_next_epoch_what_its_state_knows_and_its_log_lacks() -> None:
    """The next master may lack it after an unclean election: other records come to its places."""
    group = Group(1, faults=False, clients=0)
    nodes = list(group.nodes.values())
    assert group.run_until(
        lambda: all(node.log.end_index == node.driver.committed_index == 0 for node in nodes), 10
    )
    slave = next(node for node in nodes if node.name != group.controller.master)
    state, records = LogState(), RecordColumns()
    records.add(b"v")
    state.apply(slave.log.batch_at(0))
    log = slave.log
    lost = stamp(
        encode_body(records),
        log_id=LOG_ID,
        base_index=log.next_index,
        term=log.last_term,
        timestamp_ms=1,
        offset=log.end_offset,
        previous_chain=log.last_chain,
        marks=(AppendMark(0, 1, "lost", digest=bytes(16)),),
    )
    state.apply(lost)
    state.committed(lost.last_index)
    slave.driver.state.become(state)
    group.run(1)
    assert slave.driver.state.find_key("lost") is not None  # in the epoch of its sender it is right
    epoch = slave.core.term
    group.controller.hand_over(str(group.controller.master))
    assert group.run_until(lambda: slave.core.term > epoch and log.last_term > epoch, 10)
    assert slave.driver.state.find_key("lost") is None
    assert slave.driver.state.applied_index == log.end_index


@pytest.mark.rule("C-05", "C-11")
def test_no_replica_asks_other_slaves_for_the_state_while_there_is_no_master() -> None:
    """After an unclean election they may not have removed yet what is lost, a learner as a replica."""
    group = Group(1, faults=False, clients=0)
    group.controller.never_in_set["n3"] = None
    assert group.run_until(lambda: all(node.log.end_index >= 0 for node in group.nodes.values()), 10)
    master = str(group.controller.master)
    group.controller.master = None
    group.nodes[master].crash()
    others = [node for node in group.nodes.values() if node.name != master]
    assert group.run_until(lambda: all(node.core.leader_id is None for node in others), 10)
    assert {node.core.role for node in others} == {Role.SLAVE, Role.LEARNER}
    assert [node.driver._state._peers for node in others] == [(), ()]
