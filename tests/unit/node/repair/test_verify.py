"""Comparison of a replica with its peers while they go on."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from app.node.network.repair_messages import PeerCall
from app.node.repair import server
from app.node.repair.verify import Comparison, ReplicaReport, ReplicaState, Verifier
from app.node.replica.driver import LogDriver
from tests.unit.node.repair.test_fetch import OTHERS
from tests.unit.node.repair.test_server import Node


class Peer:
    """The calls of n1, answered by n2. meanwhile(): called once, while n2 reads its log for the first
    answer."""

    def __init__(self, node: Node, meanwhile: Callable[[], None] | None) -> None:
        self._node = node
        self._meanwhile = meanwhile

    async def ask(
        self, _peer: str, log_id: int, make: Callable[[int], PeerCall], _timeout_s: float
    ) -> PeerCall | None:
        driver = cast(LogDriver, self._node.replica)
        answering = asyncio.create_task(self._node.server.answer("n1", log_id, driver, make(1)))
        for _ in range(3):
            await asyncio.sleep(0)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            assert not answering.done()
            meanwhile()
        await answering
        return self._node.sent.pop()


def compared(
    own: Node, peer: Node, meanwhile: Callable[[], None] | None = None, until: int = 20
) -> Comparison:
    calls: Any = Peer(peer, meanwhile)
    driver: Any = own.replica
    driver.node_id, driver.log_id = "n1", 7
    return asyncio.run(Verifier(calls, driver, ["n2"]).compare(0, until))


def trim(node: Node) -> None:
    ticket = node.replica.log.start_trim(8)
    assert ticket is not None
    ticket.run()


@pytest.mark.rule("R-07")
def test_a_peer_that_trims_while_it_is_compared_does_not_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_STEP_BYTES", 1)
    own, peer = Node(committed=19), Node(committed=19)
    result = compared(own, peer, lambda: trim(peer))
    [_, report] = result.replicas
    assert (report.state, report.first_difference) == (ReplicaState.SAME, None)
    assert result.equal


@pytest.mark.rule("R-07")
def test_a_difference_is_reported_also_when_this_replica_trims_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_STEP_BYTES", 1)
    own = Node(committed=19)
    monkeypatch.setattr("tests.unit.node.repair.test_server.BATCHES", OTHERS)
    peer = Node(committed=19)
    result = compared(own, peer, lambda: trim(own))
    assert (result.first_difference, result.groups) == (0, [["n1"], ["n2"]])
    assert not result.equal


@pytest.mark.rule("R-07")
def test_the_rest_of_a_peer_that_begins_later_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Node(committed=19)
    monkeypatch.setattr("tests.unit.node.repair.test_server.BATCHES", OTHERS)
    peer = Node(committed=19)
    trim(peer)
    result = compared(own, peer)
    assert (result.first_difference, result.groups) == (8, [["n1"], ["n2"]])


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_the_report_has_the_first_index_that_was_compared(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_STEP_BYTES", 1)
    own, peer = Node(committed=19), Node(committed=19)
    if when == "before":
        trim(peer)
    result = compared(own, peer, (lambda: trim(peer)) if when == "meanwhile" else None)
    assert [(each.from_index, each.until_index) for each in result.replicas] == [(0, 20), (8, 20)]
    assert result.equal
    assert result.complete


@pytest.mark.rule("R-07")
def test_a_peer_that_has_trimmed_the_whole_range_was_not_compared() -> None:
    own, peer = Node(committed=19), Node(committed=19)
    trim(peer)
    result = compared(own, peer, until=8)
    assert [(each.from_index, each.until_index) for each in result.replicas] == [(0, 8), (8, 8)]


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("from_index", [0, 5])  # 5: within the batch that differs
def test_a_replica_that_begins_after_the_difference_is_on_no_side_of_it(from_index: int) -> None:
    replicas = [
        ReplicaReport("n1", from_index=from_index, until_index=20),
        ReplicaReport("n2", ReplicaState.DIFFERS, first_difference=4, digest=b"other"),
        ReplicaReport("n3", from_index=8, until_index=20),
        ReplicaReport("n4", from_index=0, until_index=20),
    ]
    assert Comparison(from_index, 20, replicas).groups == [["n1", "n4"], ["n2"]]
