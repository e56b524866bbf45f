"""A node finds the active controller by itself, and asks until it is answered (C-02, C-10)."""

from collections import Counter
from random import Random
from typing import TypeVar

import pytest

from app.controller.commands import DeleteLog, Done, Reason, Refusal
from app.controller.config import ControllerConfig
from app.controller.messages import (
    AnyControllerMessage,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CommandAnswer,
    CommandRequest,
)
from app.node.metadata import controller_client
from app.node.metadata.controller_client import MAX_OPEN_COMMANDS, ControllerClient

Sent = TypeVar("Sent")
CONFIG = ControllerConfig()
NOT_ACTIVE = Refusal(Reason.NOT_ACTIVE, "")


class Bench:
    """One client; `sent` is what left it. Clock and leader are the test's."""

    def __init__(self) -> None:
        self.now = 1_000
        self.leader: str | None = "c1"
        self.sent: list[tuple[str, AnyControllerMessage]] = []
        self.answers: list[Done | Refusal | None] = []
        self.leases: list[tuple[BrokerHeartbeatAnswer, int]] = []
        self.client = ControllerClient(
            config=CONFIG,
            controllers=("c1", "c2", "c3"),
            leader=lambda: self.leader,
            send=lambda target, message: self.sent.append((target, message)),
            reports=lambda: (7, ()),
            heartbeat_answered=lambda answer, sent_ms: self.leases.append((answer, sent_ms)),
            clock=self,
            random=Random(1),
        )

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now

    def ask(self) -> CommandRequest:
        self.client.ask(DeleteLog("a"), self.answers.append, 1_000)
        return self.last(CommandRequest)

    def last(self, kind: type[Sent]) -> Sent:
        return next(message for _, message in reversed(self.sent) if isinstance(message, kind))

    def pass_time(self, ms: int) -> None:
        for _ in range(ms // 20):
            self.now += 20
            self.client.tick()

    def commands(self) -> list[tuple[str, int]]:
        return [(target, message.id) for target, message in self.sent if isinstance(message, CommandRequest)]


@pytest.mark.rule("C-02", "C-10")
def test_an_inactive_controller_names_the_active_one_which_is_asked_under_the_same_id() -> None:
    bench = Bench()
    request = bench.ask()
    bench.client.take("c1", CommandAnswer(request.id, None, NOT_ACTIVE, "c3"))
    assert bench.commands() == [("c1", request.id), ("c3", request.id)]
    bench.client.take("c3", CommandAnswer(request.id, Done(5), None, "c3"))
    bench.client.take("c3", CommandAnswer(request.id, Done(5), None, "c3"))  # the repeat's
    assert bench.answers == [Done(5)]


@pytest.mark.rule("C-02")
def test_a_refusal_of_the_active_controller_is_the_answer() -> None:
    bench = Bench()
    request = bench.ask()
    refused = Refusal(Reason.INVALID, "no such log")
    bench.client.take("c1", CommandAnswer(request.id, None, refused, "c1"))
    bench.pass_time(2_000)
    assert bench.answers == [refused]
    assert len(bench.commands()) == 1


@pytest.mark.rule("C-10")
def test_an_unanswered_request_is_sent_again_to_the_current_leader_and_ends_as_unknown() -> None:
    bench = Bench()
    request = bench.ask()
    bench.leader = "c2"
    bench.pass_time(CONFIG.retry_interval_ms)
    assert bench.commands()[-1] == ("c2", request.id)
    bench.leader = None
    bench.pass_time(3 * CONFIG.retry_interval_ms)
    assert {target for target, _ in bench.commands()[-3:]} == {"c1", "c2", "c3"}
    bench.pass_time(1_000)
    assert bench.answers == [None]
    bench.client.take("c2", CommandAnswer(request.id, Done(5), None, "c2"))  # too late
    assert bench.answers == [None]


@pytest.mark.rule("C-10")
def test_two_that_name_each_other_do_not_keep_a_node_running() -> None:
    bench = Bench()
    request = bench.ask()
    for _ in range(50):
        target = bench.commands()[-1][0]
        other = {"c1": "c2", "c2": "c1"}[target]
        bench.client.take(target, CommandAnswer(request.id, None, NOT_ACTIVE, other))
    assert len(bench.commands()) < 10


@pytest.mark.rule("C-03")
@pytest.mark.parametrize("removed", [False, True])
def test_a_node_that_leaves_does_not_report_to_a_controller_that_is_named_later(removed: bool) -> None:
    """It would count as alive there for another time-out, and may be elected meanwhile."""
    bench = Bench()
    bench.client.tick()
    heartbeat = bench.last(BrokerHeartbeat)
    if removed:
        bench.client.silent = True
    else:
        bench.client.stop()
    bench.client.take("c1", BrokerHeartbeatAnswer(heartbeat.id, "c3"))
    bench.pass_time(2_000)
    assert [message for _, message in bench.sent] == [heartbeat]


@pytest.mark.rule("C-03", "A-11")
def test_a_heartbeat_is_repeated_until_it_is_answered_and_its_lease_counts_from_its_sending() -> None:
    bench = Bench()
    bench.client.tick()
    first = bench.last(BrokerHeartbeat)
    sent_ms = bench.now
    bench.pass_time(CONFIG.retry_interval_ms)
    second = bench.last(BrokerHeartbeat)
    assert first.id != second.id
    bench.client.take("c1", BrokerHeartbeatAnswer(first.id, "c1", granted=(("a", 1),)))
    assert [(answer.granted, when) for answer, when in bench.leases] == [((("a", 1),), sent_ms)]
    bench.client.take("c1", BrokerHeartbeatAnswer(12345, "c1"))  # to an earlier incarnation
    bench.client.take("c1", BrokerHeartbeatAnswer(second.id, "c2"))  # not active (any more)
    assert len(bench.leases) == 1
    assert bench.sent[-1][0] == "c2"
    third = bench.last(BrokerHeartbeat)
    bench.client.take("c2", BrokerHeartbeatAnswer(third.id, "c2"))
    count = len(bench.sent)
    bench.pass_time(CONFIG.heartbeat_interval_ms - 40)
    assert len(bench.sent) == count
    bench.client.heartbeat_now()
    bench.client.tick()
    assert len(bench.sent) == count + 1
    bench.client.stop()
    bench.pass_time(2_000)
    assert len(bench.sent) == count + 1


@pytest.mark.rule("C-03", "C-10")
def test_heartbeats_leave_a_controller_that_was_named_and_has_died() -> None:
    bench = Bench()
    bench.leader = "c3"
    bench.client.tick()
    bench.client.take("c3", BrokerHeartbeatAnswer(bench.last(BrokerHeartbeat).id, "c1"))
    assert bench.sent[-1][0] == "c1"
    bench.client.take("c1", BrokerHeartbeatAnswer(bench.last(BrokerHeartbeat).id, "c1"))
    bench.pass_time(CONFIG.heartbeat_interval_ms + 2 * CONFIG.retry_interval_ms)  # c1 is silent from now on
    assert bench.sent[-1][0] == "c3"


@pytest.mark.rule("C-05")
def test_a_heartbeat_reports_the_last_one_that_was_answered() -> None:
    bench = Bench()
    bench.client.tick()
    first = bench.last(BrokerHeartbeat)
    assert first.answered == 0
    bench.pass_time(CONFIG.retry_interval_ms)
    second = bench.last(BrokerHeartbeat)
    bench.client.take("c1", BrokerHeartbeatAnswer(second.id, "c1"))
    bench.client.take("c1", BrokerHeartbeatAnswer(first.id, "c1"))  # late
    bench.pass_time(CONFIG.heartbeat_interval_ms)
    assert bench.last(BrokerHeartbeat).answered == second.id


def test_heartbeats_without_an_answer_are_counted() -> None:
    bench = Bench()
    bench.client.tick()
    bench.client.heartbeat_now()  # before an answer can be there
    bench.client.tick()
    assert bench.client.missed_heartbeats == 0
    bench.pass_time(3 * CONFIG.retry_interval_ms)
    assert bench.client.missed_heartbeats >= 2
    missed = bench.client.missed_heartbeats
    id = bench.last(BrokerHeartbeat).id
    bench.client.take("c1", BrokerHeartbeatAnswer(id, "c1"))
    bench.pass_time(CONFIG.heartbeat_interval_ms)
    assert bench.client.missed_heartbeats == missed


def test_heartbeats_that_a_quiet_controller_answers_after_their_repeat_are_not_missed() -> None:
    """A node whose logs are quiet ticks with the heartbeats of its logs, each 100 ms: in an idle cluster that
    works, up to half of the heartbeats were counted, and CommitlogHeartbeatsMissed fired."""
    bench = Bench()
    bench.client.tick()
    for _ in range(20):
        heartbeat = bench.last(BrokerHeartbeat)
        bench.client.take("c1", BrokerHeartbeatAnswer(heartbeat.id, "c1"))
        while bench.last(BrokerHeartbeat) is heartbeat:
            bench.pass_time(20)
        first = bench.last(BrokerHeartbeat)
        bench.pass_time(CONFIG.retry_interval_ms)
        assert bench.last(BrokerHeartbeat) is not first  # repeated before its answer
        bench.client.take("c1", BrokerHeartbeatAnswer(first.id, "c1"))
    assert bench.client.missed_heartbeats == 0
    bench.pass_time(4 * CONFIG.heartbeat_interval_ms)  # it is silent
    assert bench.client.missed_heartbeats >= 10


def test_open_commands_are_limited_and_the_oldest_ends_first() -> None:
    bench = Bench()
    first = bench.ask()
    for _ in range(MAX_OPEN_COMMANDS - 1):
        last = bench.ask()
    assert bench.answers == []
    bench.ask()
    bench.client.tick()
    assert bench.answers == [None]  # of the oldest: its outcome is unknown
    bench.client.take("c1", CommandAnswer(first.id, Done(7)))
    assert bench.answers == [None]
    bench.client.take("c1", CommandAnswer(last.id, Done(7)))
    assert bench.answers == [None, Done(7)]


@pytest.mark.parametrize("callers", [33, 96])
def test_more_callers_than_open_commands_that_ask_again_at_once_are_each_answered(
    callers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with as many logs, whose managers ask at its start while no controller answers."""
    open_max = 32
    monkeypatch.setattr(controller_client, "MAX_OPEN_COMMANDS", open_max)
    bench = Bench()
    unknown = Counter[int]()

    def ask(caller: int) -> None:
        def answered(_answer: Done | Refusal | None) -> None:
            unknown[caller] += 1
            ask(caller)

        bench.client.ask(DeleteLog("a"), answered, 1_000)

    for caller in range(callers):
        ask(caller)
    bench.pass_time(2_000)
    assert min(unknown[caller] for caller in range(callers)) >= 1
    bench.sent.clear()
    bench.pass_time(CONFIG.retry_interval_ms)
    displaced = (callers - open_max) * (CONFIG.retry_interval_ms // 20)
    assert len({id for _, id in bench.commands()}) <= open_max + displaced


def test_a_caller_that_asks_twice_when_its_command_ends_displaces_one_that_ends_with_it() -> None:
    bench = Bench()
    ended = Counter[int]()

    def ask(caller: int) -> None:
        def answered(_answer: Done | Refusal | None) -> None:
            ended[caller] += 1
            if caller == 0:
                bench.ask()
                bench.ask()

        bench.client.ask(DeleteLog("a"), answered, 1_000)

    for caller in range(MAX_OPEN_COMMANDS):
        ask(caller)
    bench.pass_time(1_020)
    assert ended == dict.fromkeys(range(MAX_OPEN_COMMANDS), 1)
