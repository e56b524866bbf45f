"""The epoch of the beginning after a reset: asked for over the links of AutoSwitch and classic groups, and of
a master of the version before, which knows neither the question nor the answer."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from app.log.commands import Trim
from app.log.contract import Acks, AppendRequest
from app.node.replica.driver import LogDriver
from app.raft.messages import StateChunk, StateRequest
from storage.format.records import RecordColumns
from storage.log.commitlog import Commitlog
from tests.simulation.classic.group import ClassicGroup
from tests.unit.ha.group import Group
from tests.unit.ha.streams import StreamNetwork

CLASSIC_ONE_SYNC_SLAVE = 1  # a seed of three nodes; appends wait for one slave


class RequestBefore(msgspec.Struct, array_like=True, tag_field="kind", tag=10):
    """StateRequest of the version before."""

    id: int
    offset: int


class ChunkBefore(msgspec.Struct, array_like=True, tag_field="kind", tag=11):
    """StateChunk of the version before."""

    id: int
    offset: int
    total: int
    crc: int
    data: bytes


def through_the_version_before(message: StateRequest | StateChunk) -> StateRequest | StateChunk:
    """Return the message without the fields that a node of the version before does not know."""
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=RequestBefore | ChunkBefore)
    return msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=StateRequest | StateChunk)


class Requests:
    """The requests of an epoch that a network carries. is_before: the master is of the version before."""

    def __init__(self, network: StreamNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.is_before = False
        self._post = network.post
        monkeypatch.setattr(network, "post", self._carry)

    def _carry(self, source: str, target: str, message: Any) -> None:
        if isinstance(message, StateRequest | StateChunk):
            self.count += isinstance(message, StateRequest) and message.begin_term != 0
            if self.is_before:
                message = through_the_version_before(message)
        self._post(source, target, message)


def began_again(copy: Commitlog, master: Commitlog) -> bool:
    return copy.begin_index > 0 and copy.end_index >= master.begin_index


def group_with_a_reset_slave() -> tuple[Group, str, str]:
    """(group, master, slave): the slave is down, and its master has trimmed past its end."""
    group = Group(1, faults=False)
    group.run(2)
    master = group.controller.master
    assert master is not None
    slave = next(name for name in group.names if name != master)
    node = group.nodes[slave]
    node.life.alive = False
    group.network.crashed(slave)
    leading = group.nodes[master]
    assert group.run_until(lambda: leading.driver.committed_index > node.log.end_index + 8, 10)
    trim(leading.driver, group.run_until)
    return group, master, slave


def trim(driver: LogDriver, run_until: Callable[[Callable[[], bool], float], bool]) -> None:
    """Trim within the newest epoch, past what the slave has."""
    until_index = driver.committed_index - 1
    driver.command(Trim(until_index), lambda _answer: None)
    assert run_until(lambda: driver.log.begin_index == until_index, 10)
    assert driver.log.epochs[-1].start_index < until_index


@pytest.mark.rule("A-09")
def test_a_slave_of_auto_switch_learns_the_epoch_of_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    group, master, slave = group_with_a_reset_slave()
    requests = Requests(group.network, monkeypatch)
    group.nodes[slave].start()
    copy, source = group.nodes[slave], group.nodes[master]
    assert group.run_until(lambda: began_again(copy.log, source.log), 10)
    assert group.run_until(lambda: copy.log.knows_begin_epoch, 5)
    assert (requests.count, copy.log.epochs) == (1, source.log.epochs)


@pytest.mark.rule("A-09")
def test_a_master_of_the_version_before_is_asked_once_and_again_when_it_leads_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It answers with the log's state, which changes nothing; its successor may be the same node, renewed."""
    group, master, slave = group_with_a_reset_slave()
    requests = Requests(group.network, monkeypatch)
    requests.is_before = True
    group.nodes[slave].start()
    copy, source = group.nodes[slave], group.nodes[master]
    assert group.run_until(lambda: began_again(copy.log, source.log) and requests.count > 0, 10)
    group.run(3)
    assert (requests.count, copy.log.knows_begin_epoch) == (1, False)
    assert copy.driver.committed_index > copy.log.begin_index  # it follows all the same
    requests.is_before = False
    group.controller.hand_over(master)
    assert group.run_until(lambda: copy.log.knows_begin_epoch, 10)
    assert group.controller.master == master
    assert copy.log.epochs[0] == source.log.epochs[0]


def append(group: ClassicGroup, value: str) -> None:
    records = RecordColumns()
    records.add(value.encode())
    answers: list[object] = []
    group.master.append(AppendRequest(records, timeout_ms=5_000, acks=Acks.QUORUM), answers.append)
    assert group.run_until(lambda: answers != [], 6)


@pytest.mark.rule("H-06")
@pytest.mark.parametrize("is_before", [False, True])
def test_a_classic_slave_learns_the_epoch_of_its_begin(
    is_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ClassicGroup(CLASSIC_ONE_SYNC_SLAVE, faults=False, clients=0)
    master, slave, _other = group.nodes.values()
    assert group.run_until(lambda: master.driver._core.accepts_appends, 8)
    append(group, "first")
    slave.crash(power=False)
    for number in range(8):
        append(group, f"later {number}")
    trim(master.driver, group.run_until)
    requests = Requests(group.network, monkeypatch)
    requests.is_before = is_before
    slave.start()
    assert group.run_until(lambda: began_again(slave.driver.log, master.driver.log), 20)
    assert group.run_until(lambda: requests.count > 0, 5)
    group.run(3)
    assert (requests.count, slave.driver.log.knows_begin_epoch) == (1, not is_before)
    assert is_before or slave.driver.log.epochs == master.driver.log.epochs


def test_a_request_of_the_version_before_asks_for_the_state() -> None:
    """It reads every field of the answer that it knows."""
    request = msgspec.msgpack.decode(msgspec.msgpack.encode(RequestBefore(3, 5)), type=StateRequest)
    assert request == StateRequest(3, 5)
    chunk = StateChunk(3, 5, 9, 7, b"data")
    assert through_the_version_before(chunk) == chunk
