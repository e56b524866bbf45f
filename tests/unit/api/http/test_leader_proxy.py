"""One search for the leader of a log, and one retry policy, for every kind of call (D-29)."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.http.leader_headers import not_leader
from app.api.http.leader_proxy import LeaderProxy
from app.errors import CommitlogError, NoLeader, NotLeader, QuorumTimeout
from app.node.network.http_forwarder import Lost, NotSent
from app.settings.model import Replication


class FakeLog:
    """A log as node n1 knows it. Time passes only while a call waits for a change of leadership."""

    repair = None
    replicas = ("n2", "n3")

    def __init__(self, leader: str | None, *, served: bool = True) -> None:
        self.leader_id = leader
        self.driver: Any = object() if served else None
        self.now_ms = 0
        self.then: Callable[[], None] = lambda: None

    @property
    def serving(self) -> Any:
        return self.driver

    @property
    def leads(self) -> bool:
        return self.leader_id == "n1"

    @property
    def no_leader(self) -> NoLeader:
        return NoLeader("the log is new")

    def answering(self, _here: str) -> list[str]:
        return list(self.replicas)

    async def leadership_changed(self, timeout_s: float) -> None:
        self.now_ms += round(timeout_s * 1000)
        self.then()


def asked(log: FakeLog, answers: dict[str, list[Any]], **how: Any) -> tuple[str | CommitlogError, list[str]]:
    """Return the outcome of a call at n1 and the nodes that were asked. answers: of each node, in order."""
    asked_nodes: list[str] = []

    def next_of(node: str) -> str:
        asked_nodes.append(node)
        answer = answers[node].pop(0) if len(answers[node]) > 1 else answers[node][0]
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    async def here(_: Any) -> str:
        return next_of("n1")

    async def there(node: Any) -> str:
        return next_of(node.id)

    broker: Any = SimpleNamespace(
        node=SimpleNamespace(id="n1"),
        nodes=SimpleNamespace(
            find=lambda id: None if id is None else SimpleNamespace(id=id, url=f"http://{id}")
        ),
        clock=SimpleNamespace(monotonic_ms=lambda: log.now_ms),
    )
    hosted: Any = log
    try:
        return asyncio.run(
            LeaderProxy(broker).at_leader(hosted, here, there, deadline_ms=1000, **how)
        ), asked_nodes
    except CommitlogError as error:
        return error, asked_nodes


def test_this_node_answers_if_it_leads_and_otherwise_the_leader() -> None:
    assert asked(FakeLog("n1"), {"n1": ["own"]}) == ("own", ["n1"])
    assert asked(FakeLog("n2"), {"n2": ["theirs"]}) == ("theirs", ["n2"])


def test_a_node_that_does_not_lead_names_the_next_one_to_ask() -> None:
    log = FakeLog("n2")
    assert asked(log, {"n2": [NotLeader("n3")], "n3": ["theirs"]}) == ("theirs", ["n2", "n3"])
    assert log.now_ms == 0


def test_nodes_that_name_each_other_are_asked_once_before_a_pause() -> None:
    log = FakeLog("n2")
    outcome, nodes = asked(log, {"n2": [NotLeader("n3")], "n3": [NotLeader("n2")]})
    assert isinstance(outcome, NoLeader)
    assert nodes == ["n2", "n3"] * 11
    assert log.now_ms == 1000


def test_every_replica_of_a_log_that_is_not_served_here_is_asked() -> None:
    answers = {"n2": [NotSent("n2")], "n3": ["theirs"]}
    assert asked(FakeLog(None, served=False), answers) == ("theirs", ["n2", "n3"])


def test_a_call_waits_for_an_election_and_becomes_this_nodes_own() -> None:
    log = FakeLog(None)

    def elect() -> None:
        log.leader_id = "n1"

    log.then = elect
    assert asked(log, {"n1": ["own"]}) == ("own", ["n1"])


def test_without_a_leader_the_refusal_gives_the_last_reason() -> None:
    outcome, _ = asked(FakeLog("n2"), {"n2": [NoLeader("too few replicas")]})
    assert isinstance(outcome, NoLeader)
    assert outcome.detail == "too few replicas"
    outcome, _ = asked(FakeLog(None), {})
    assert isinstance(outcome, NoLeader)
    assert outcome.detail == "the log is new"


def test_a_call_of_this_node_only_is_never_sent_to_another_node() -> None:
    outcome, nodes = asked(FakeLog("n2"), {"n2": ["theirs"]}, here_only=True)
    assert isinstance(outcome, NotLeader)
    assert (outcome.leader, nodes) == ("n2", [])


@pytest.mark.parametrize(
    ("mode", "leader"),
    [(Replication.CLASSIC, "n2"), (Replication.CONTROLLER, "n3"), (Replication.RAFT, None)],
)
def test_a_node_without_a_copy_names_the_master(mode: Replication, leader: str | None) -> None:
    def broker_of(node: str) -> Any:
        return SimpleNamespace(
            node=SimpleNamespace(id=node),
            nodes=SimpleNamespace(find=lambda name: name and SimpleNamespace(id=name, url=f"http://{name}")),
            metadata=SimpleNamespace(log=lambda _: SimpleNamespace(master_node="n3")),
        )

    settings = SimpleNamespace(replication=mode, replicas=("n2", "n3"))
    log: Any = SimpleNamespace(name="x", repair=None, driver=None, serving=None, settings=settings)
    refusal = not_leader(broker_of("n1"), log)
    assert isinstance(refusal, NotLeader)
    assert refusal.leader == leader
    opening = not_leader(broker_of(leader or "n1"), log)
    assert isinstance(opening, NotLeader)
    assert opening.leader is None


@pytest.mark.rule("D-26")
def test_a_lost_call_has_an_unknown_outcome_and_is_not_sent_again() -> None:
    outcome, nodes = asked(FakeLog("n2"), {"n2": [Lost("n2"), "theirs"]})
    assert isinstance(outcome, QuorumTimeout)
    assert nodes == ["n2"]


@pytest.mark.rule("D-26")
def test_after_a_lost_attempt_only_an_acknowledgement_is_certain() -> None:
    how: dict[str, Any] = {"repeatable": True, "acknowledges": lambda answer: answer == "stored"}
    assert asked(FakeLog("n2"), {"n2": [Lost("n2"), "stored"]}, **how) == ("stored", ["n2", "n2"])
    for later in ("refused", NotLeader(None), NotSent("n2")):
        outcome, _ = asked(FakeLog("n2"), {"n2": [Lost("n2"), later]}, **how)
        assert isinstance(outcome, QuorumTimeout)
