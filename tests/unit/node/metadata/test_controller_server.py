"""Limits of the controller's side of one node: open requests, and who may send what (C-01)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.controller.commands import (
    AlterSyncStateSet,
    AnyCommand,
    ApplyForReplicaId,
    CreateLog,
    DeleteLog,
    Done,
    RegisterReplica,
    StepDown,
)
from app.controller.config import ControllerConfig
from app.controller.log_state import MetadataLogState
from app.controller.messages import BrokerHeartbeat, CommandAnswer, CommandRequest
from app.controller.metadata import Log, LogSpec, Replica
from app.controller.senders import only_sender_of
from app.errors import CommitlogError, QuorumTimeout, ReadIndexUnavailable, StorageFull
from app.log.contract import AppendRequest, GroupConfig, Role
from app.node.metadata.controller_server import MAX_OPEN_REQUESTS, ControllerServer, ControllerSetup
from app.node.replica.driver import LogDriver

COPY_OF_N1 = Replica(1, "n1", "code", "n1:9")


class Metadata:
    """Metadata of the log `a` in generation 5: copy 1 is on n1."""

    def log(self, name: str) -> Log | None:
        spec = LogSpec(replication="controller", replicas=("n1", "n2"))
        log = Log(name="a", log_id=1, generation=5, version=5, spec=spec, replicas=(COPY_OF_N1,))
        return log if name == "a" else None


class Bench:
    """An active controller whose turn the test decides; `sent` is what left it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.turns: list[Any] = []
        self.rounds = 0  # appended
        self.outcome: CommitlogError = StorageFull("n1")  # of each round
        self.now_ms = 1_000
        leader = SimpleNamespace(role=Role.LEADER, term=1, leader_id="c1", committed_index=0)
        leader.log = SimpleNamespace(end_index=0, last_term=1, next_index=1, begin_index=0)
        leader.state = MetadataLogState()
        leader.group = GroupConfig(voters=("c1", "n1", "n2"))
        leader.append = self.append
        self.reads: list[Any] = []  # that wait for a confirmation of the lead
        leader.read_index = self.reads.append
        self.leader = leader
        self.server = ControllerServer(
            setup=ControllerSetup(
                node_id="c1",
                config=ControllerConfig(),
                brokers=("n1", "n2"),
                configured={},
                make_log_id=lambda _name, generation: generation,
            ),
            replica=lambda: cast(LogDriver, leader),
            connected=lambda: ("n1", "n2"),
            send=lambda _target, message: self.sent.append(message),
            clock=cast(Any, SimpleNamespace(monotonic_ms=lambda: self.now_ms, now_ms=lambda: 1_000)),
            scheduler=cast(Any, SimpleNamespace(call_soon=self.turns.append)),
        )
        self.server.tick()
        assert self.server.is_active

    def lead(
        self, term: int, end_index: int = 0, last_term: int | None = None, committed_index: int = 0
    ) -> None:
        """Lead in a term, with such a log."""
        self.leader.term, self.leader.committed_index = term, committed_index
        self.leader.log.end_index = end_index
        self.leader.log.last_term = term if last_term is None else last_term
        self.server.tick()

    def heartbeat(self, id: int, node: str, metadata_index: int) -> None:
        """Take a heartbeat, and confirm the lead."""
        self.leader.state.metadata._applied_index = 3
        self.server.take(node, BrokerHeartbeat(id, metadata_index, ()))
        self.server.tick()
        self.reads.pop()(7)

    def append(self, _request: AppendRequest, done: Any) -> None:
        self.rounds += 1
        done(self.outcome)

    def ask(self, source: str, id: int, command: AnyCommand) -> None:
        self.server.take(source, CommandRequest(id, command, -1))

    def turn(self, *, confirm: int | CommitlogError = 7) -> list[CommandAnswer]:
        """Decide about what was asked; return the answers. confirm: of the lead, as a read is answered."""
        self.sent.clear()
        for _ in range(100):
            if self.turns:
                self.turns.pop(0)()
            elif self.reads:
                self.reads.pop(0)(confirm)
        assert (self.turns, self.reads) == ([], [])
        return [message for message in self.sent if isinstance(message, CommandAnswer)]


def test_open_requests_are_limited_and_the_dropped_ones_can_be_repeated() -> None:
    bench = Bench()
    for id in range(MAX_OPEN_REQUESTS + 3):
        bench.ask("n1", id, DeleteLog("missing"))
    assert bench.server.dropped_requests == 3
    answers = bench.turn()
    assert sorted(answer.id for answer in answers) == list(range(MAX_OPEN_REQUESTS))
    bench.ask("n1", MAX_OPEN_REQUESTS, DeleteLog("missing"))
    assert [answer.id for answer in bench.turn()] == [MAX_OPEN_REQUESTS]
    assert bench.server.dropped_requests == 3


def test_a_round_that_a_full_disk_refuses_is_decided_again_once_a_tick() -> None:
    bench = Bench()
    bench.ask("n1", 1, CreateLog("b", LogSpec(replication="controller", replicas=("n1", "n2")), "change"))
    for rounds in (1, 2, 3):
        assert bench.turn() == []
        assert bench.rounds == rounds
        bench.server.tick()


@pytest.mark.rule("C-01")
def test_a_round_whose_outcome_is_unknown_is_not_decided_a_second_time() -> None:
    """Its events may commit later, and a second decision would contradict them."""
    bench = Bench()
    bench.outcome = QuorumTimeout(1)
    bench.ask("n1", 1, CreateLog("b", LogSpec(replication="controller", replicas=("n1", "n2")), "change"))
    for _ in range(3):
        assert bench.turn() == []
        bench.server.tick()
    assert bench.rounds == 1


@pytest.mark.rule("R-08", "C-05")
def test_one_confirmation_answers_all_heartbeats_since_the_last_tick() -> None:
    bench = Bench()
    for id, node in ((1, "n1"), (2, "n2"), (3, "n1")):
        bench.server.take(node, BrokerHeartbeat(id, -1, ()))
    assert (bench.reads, bench.sent) == ([], [])
    bench.server.tick()
    (confirmed,), bench.reads[:] = list(bench.reads), []
    assert bench.sent == []  # the lead is not confirmed yet
    bench.server.take("n2", BrokerHeartbeat(4, -1, ()))
    confirmed(7)
    assert [(each.id, each.active) for each in bench.sent] == [(1, "c1"), (2, "c1"), (3, "c1")]
    bench.sent.clear()
    bench.server.tick()
    bench.reads.pop()(ReadIndexUnavailable())
    bench.server.tick()
    assert (bench.reads, bench.sent) == ([], [])  # the node repeats it


@pytest.mark.rule("R-08", "A-11")
def test_a_heartbeat_is_not_answered_by_a_controller_that_has_led_again_meanwhile() -> None:
    """The lease would be of a decision that its successor does not know."""
    bench = Bench()
    bench.server.take("n1", BrokerHeartbeat(1, -1, ()))
    bench.server.tick()
    bench.lead(2)
    bench.reads.pop()(7)
    assert bench.sent == []


@pytest.mark.rule("R-05", "C-02")
def test_a_controller_is_active_only_once_all_that_it_holds_is_committed() -> None:
    """An earlier decision may contradict an event that commits later. Until then it names the leader."""
    bench = Bench()
    for end_index, last_term, committed_index in ((1, 1, 1), (1, 2, 0), (2, 2, 1)):
        bench.lead(2, end_index, last_term, committed_index)
        assert not bench.server.is_active
    bench.ask("n1", 1, DeleteLog("a"))
    bench.server.take("n1", BrokerHeartbeat(2, -1, ()))
    bench.leader.leader_id = "c2"
    bench.ask("n1", 3, DeleteLog("a"))
    bench.server.take("n1", BrokerHeartbeat(4, -1, ()))
    hints = [(each.id, each.active) for each in bench.sent]
    assert hints == [(1, None), (2, None), (3, "c2"), (4, "c2")]  # it names no other than the leader
    bench.lead(2, 2, 2, 2)
    assert bench.server.is_active


@pytest.mark.rule("C-02")
def test_a_node_is_answered_about_a_new_log_once_the_living_nodes_know_it_or_after_a_second() -> None:
    """The caller may use the log at any of them next."""
    for knows in (True, False):
        bench = Bench()
        for id, node in enumerate(("n1", "n2")):
            bench.heartbeat(id, node, -1)
        bench.sent.clear()
        bench.server._answer([(("n1", 7), Done(3, created=True)), (("n1", 8), Done(3))])
        assert [each.id for each in bench.sent] == [8]
        bench.heartbeat(9, "n1", 3)
        if knows:
            bench.heartbeat(10, "n2", 3)
        else:
            bench.now_ms += 999
            bench.server.tick()
            assert [each.id for each in bench.sent] == [8, 9]
            bench.now_ms += 1
        bench.server.tick()
        assert [each.id for each in bench.sent if isinstance(each, CommandAnswer)] == [8, 7]


@pytest.mark.rule("R-08", "C-02")
def test_an_answer_without_an_event_leaves_only_once_the_lead_is_confirmed() -> None:
    """A controller that was replaced unnoticed does not know the newest copies: it would refuse them."""
    bench = Bench()
    bench.ask("n1", 1, DeleteLog("missing"))
    assert bench.turn(confirm=ReadIndexUnavailable()) == []
    assert bench.turn() == []
    bench.ask("n1", 1, DeleteLog("missing"))  # the node repeats it
    assert [answer.id for answer in bench.turn()] == [1]


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("is_confirming", [False, True])
def test_a_heartbeat_of_before_a_disconnection_makes_no_node_alive(is_confirming: bool) -> None:
    """A master that crashes would lead until its heartbeats are missed."""
    bench = Bench()
    bench.server.take("n1", BrokerHeartbeat(1, -1, ()))
    bench.server.take("n2", BrokerHeartbeat(2, -1, ()))
    if is_confirming:
        bench.server.tick()
    bench.server.disconnected("n1")
    bench.server.tick()
    bench.reads.pop()(7)
    assert [(each.id, each.alive) for each in bench.sent] == [(2, ("n2",))]
    bench.server.take("n1", BrokerHeartbeat(3, -1, ()))  # of the next connection
    bench.server.tick()
    bench.reads.pop()(7)
    assert (bench.sent[-1].id, bench.sent[-1].alive) == (3, ("n1", "n2"))


@pytest.mark.rule("C-02")
def test_a_log_may_be_placed_on_a_node_that_has_joined_before_its_first_heartbeat() -> None:
    bench = Bench()
    spec = LogSpec(replication="controller", replicas=("n1", "n3"))
    bench.ask("n1", 1, CreateLog("b", spec, "first"))
    (refused,) = bench.turn()
    assert refused.refusal is not None
    assert refused.refusal.detail == "no such nodes: n3"
    assert bench.rounds == 0
    bench.leader.group = GroupConfig(voters=("c1", "n1", "n2"), learners=("n3",))
    bench.ask("n1", 2, CreateLog("b", spec, "second"))
    assert bench.turn() == []
    assert bench.rounds == 1


@pytest.mark.rule("C-03")
def test_a_node_cannot_register_a_copy_of_another_node() -> None:
    bench = Bench()
    bench.ask("n2", 1, ApplyForReplicaId("a", 5, "n1", "code"))
    (answer,) = bench.sent
    assert isinstance(answer, CommandAnswer)
    assert answer.refusal is not None
    assert answer.refusal.detail == "node n2 must not speak for a copy of node n1"
    assert bench.turn() == []


@pytest.mark.parametrize(
    ("command", "sender"),
    [
        (ApplyForReplicaId("a", 5, "n1", "code"), "n1"),
        (RegisterReplica("a", 5, "n2", 2, "code", "n2:9"), "n2"),
        (AlterSyncStateSet("a", 5, 1, 3, 2, (1, 2)), "n1"),
        (StepDown("a", 5, 1, 3), "n1"),
        (StepDown("a", 5, 9, 3), None),  # an unknown copy: the decision refuses it
        (StepDown("a", 4, 1, 3), None),  # an earlier log of the name
        (DeleteLog("a"), None),  # an operator's, at any node
    ],
)
def test_senders_may_send_their_own_commands_only(command: AnyCommand, sender: str | None) -> None:
    assert only_sender_of(cast(Any, Metadata()), command) == sender
