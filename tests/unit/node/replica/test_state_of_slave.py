"""State of a slave that is ahead of its log, and the next epoch."""

from pathlib import Path

import pytest

from app.ha.frames import ClassicFrame
from app.ha.messages import OUTGOING
from app.log.state import LogState
from app.raft.messages import StateChunk, StateRequest
from storage.format.batch import AppendMark
from storage.format.records import encode_control
from tests.unit.node.replica.driver_support import Node, classic_slave
from tests.unit.raft.support import MemoryLog, body_of


def opening(log: MemoryLog, epoch: int) -> None:
    log.write([log.stamp(encode_control({"kind": "term", "leader": "n2"}), epoch, control=True)])


def append(log: MemoryLog, key: str, epoch: int) -> None:
    log.write([log.stamp(body_of(1, b"v"), epoch, marks=(AppendMark(0, 1, key, digest=b"d" * 16),))])


def transfer(node: Node, log: MemoryLog, first: int) -> None:
    """The batches of the master's log from its place `first` on."""
    body = b"".join(bytes(batch.data) for batch in log.batches[first:])
    node.driver.deliver(f"{OUTGOING}1", ClassicFrame(log.batches[first].offset, body))
    node.seams.run()


@pytest.fixture
def slave(tmp_path: Path) -> Node:
    """n1 holds the opening of epoch 1; its state, received from n2, knows the committed key `lost` too."""
    node = classic_slave(tmp_path)
    log = MemoryLog()
    opening(log, 1)
    transfer(node, log, 0)
    append(log, "lost", 1)
    state = LogState()
    for batch in log.batches:
        state.apply(batch)
    state.committed(log.end_index)
    node.driver.state.become(state)
    return node


@pytest.mark.rule("D-28", "H-07")
def test_a_slave_forgets_its_state_where_the_records_of_another_epoch_come_to_its_places(slave: Node) -> None:
    """Its master may have lost what the state knows; a slave in classic mode sees only the records."""
    master = MemoryLog()
    opening(master, 1)
    opening(master, 2)
    append(master, "new", 2)
    transfer(slave, master, 1)
    state = slave.driver.state
    assert (slave.driver.log.end_index, state.applied_index, state.committed_index) == (2, 2, 2)
    assert state.find_key("lost") is None
    assert state.find_key("new") is not None


@pytest.mark.rule("D-28")
def test_the_rest_of_a_forgotten_state_stays_committed(slave: Node) -> None:
    """Readers of a cursor get what a committed record has set, also before the next commit."""
    slave.driver._state.epoch_began(1)
    assert (slave.driver.state.applied_index, slave.driver.state.committed_index) == (0, 0)


@pytest.mark.rule("D-20", "H-07")
def test_no_snapshot_of_a_forgotten_state_is_saved_when_the_log_reaches_its_place(slave: Node) -> None:
    slave.driver._state.checkpointer.demand()
    slave.tick(1)  # taken; it waits for the log
    master = MemoryLog()
    opening(master, 1)
    opening(master, 2)
    transfer(slave, master, 1)
    slave.tick(10_000)  # the checkpoint, and a snapshot that was waiting
    assert slave.driver._state.checkpointer.safe_index == -1


@pytest.mark.rule("D-28", "C-05")
def test_a_state_that_is_ahead_of_its_log_is_not_sent(slave: Node) -> None:
    """A node that knows the next epoch asks the next master, which may not know it yet."""

    def answers(id: int) -> bool:
        slave.driver.deliver("n3", StateRequest(id, 0))
        slave.tick(1)
        return any(isinstance(message, StateChunk) for _node, message in slave.seams.sent)

    assert not answers(1)
    master = MemoryLog()
    opening(master, 1)
    append(master, "lost", 1)  # by the same master: the log bears it out
    transfer(slave, master, 1)
    assert answers(2)
