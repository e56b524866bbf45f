"""Appends carried to the leader between nodes: frames of a turn, and exactly one outcome of each append."""

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from app.node.network import append_carrier as module
from app.node.network import wire
from app.node.network.append_carrier import AppendCarrier, CarryOutcome
from app.node.network.append_messages import (
    DECLINED,
    HEAD_MAX_BYTES,
    AppendMessage,
    CarriedAnswer,
    CarriedAnswers,
    CarriedAppend,
    CarriedAppends,
)
from app.node.network.http_forwarder import Lost, NotSent
from tests.support.event_loop import run


class Wire:
    """app.node.network.append_carrier.CarryingTransport."""

    def __init__(self) -> None:
        self.open = True
        self.sent: list[tuple[str, AppendMessage]] = []

    def carries_appends(self, _peer_id: str) -> bool:
        return self.open

    def send(self, target: str, _log_id: int, message: AppendMessage) -> None:
        self.sent.append((target, message))

    def ids(self) -> list[int]:
        found: list[int] = []
        for _, message in self.sent:
            assert isinstance(message, CarriedAppends)
            found += [append.id for append in message.appends]
        return found


class End:
    """One carrier, a log led by n2, and the outcomes of its appends in the order of their arrival."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.hosted: Any = SimpleNamespace(leader_id="n2")
        self.carrier = AppendCarrier(self.wire, random.Random(1))
        self.outcomes: dict[bytes, list[CarryOutcome]] = {}

    def send(self, name: bytes, body: bytes = b"v", timeout_ms: int = 5_000) -> bool:
        found = self.outcomes.setdefault(name, [])
        return self.carrier.send(self.hosted, b"head", name, body, timeout_ms, found.append)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_the_appends_of_a_turn_share_a_frame_and_each_gets_its_own_answer() -> None:
    async def test() -> None:
        end = End()
        assert all(end.send(b"%d" % number) for number in range(5))
        await turns()
        assert [target for target, _ in end.wire.sent] == ["n2"]
        ids = end.wire.ids()
        answers = [CarriedAnswer(each, 200 + k, (), b"%d" % k) for k, each in enumerate(ids)]
        end.carrier.take("n3", CarriedAnswers(tuple(answers)))  # not the node that was asked
        assert not any(end.outcomes.values())
        end.carrier.take("n2", CarriedAnswers((*reversed(answers), answers[0])))  # one of them twice
        assert end.outcomes == {b"%d" % k: [answer] for k, answer in enumerate(answers)}
        end.carrier.stop()

    run(test)


def test_large_turns_become_several_frames_and_large_bodies_are_not_carried() -> None:
    async def test() -> None:
        end = End()
        assert not end.send(b"large", b"v" * (module.BODY_MAX_BYTES + 1))
        half = b"v" * (module.FRAME_BYTES // 2)
        assert all(end.send(b"%d" % number, half[: module.BODY_MAX_BYTES]) for number in range(5))
        await turns()
        assert [len(message.appends) for _, message in end.wire.sent] == [2, 2, 1]  # type: ignore[union-attr]
        assert len(set(end.wire.ids())) == 5
        end.carrier.stop()

    run(test)


@pytest.mark.parametrize("head_bytes", [100, 2_000, HEAD_MAX_BYTES])
def test_every_frame_of_a_turn_can_be_read(head_bytes: int) -> None:
    """Small records with long heads: a frame that its receiver refuses costs the connection for heartbeats,
    and the outcome of every append on it."""

    async def test() -> None:
        end, head = End(), b"h" * head_bytes
        count = max(40, 2 * wire.HEAD_MAX_BYTES // head_bytes)
        found: list[CarryOutcome] = []
        for _ in range(count):
            assert end.carrier.send(end.hosted, head, b"r" * 128, b"v", 5_000, found.append)
        await turns()
        assert len(set(end.wire.ids())) == count
        headers = ((b"commitlog-leader", head),)
        for _, message in list(end.wire.sent):
            assert isinstance(message, CarriedAppends)
            end.carrier.take("n3", message)  # it declines them
        end.carrier.serve = lambda append, done: done(CarriedAnswer(append.id, 200, headers, b"v"))
        for _, message in list(end.wire.sent):
            assert isinstance(message, CarriedAppends)
            end.carrier.take("n4", message)
        await turns()
        for _, message in end.wire.sent:
            assert wire.decode(memoryview(b"".join(wire.encode(0, message))))[1] == message
        end.carrier.stop()

    run(test)


def test_a_head_that_no_frame_takes_is_not_carried() -> None:
    async def test() -> None:
        end = End()
        head = b"h" * (HEAD_MAX_BYTES + 1)
        assert not end.carrier.send(end.hosted, head, b"r", b"v", 5_000, lambda _outcome: None)

    run(test)


def test_nothing_is_carried_without_a_leader_or_a_connection() -> None:
    async def test() -> None:
        end = End()
        end.hosted.leader_id = None
        assert not end.send(b"a")
        end.hosted.leader_id = "n2"
        end.wire.open = False
        assert not end.send(b"a")
        assert end.outcomes == {b"a": []}
        end.wire.open = True
        assert end.send(b"b")
        end.wire.open = False  # before the turn ends: the leader has not seen it
        await turns()
        assert end.wire.sent == []
        assert [type(each) for each in end.outcomes[b"b"]] == [NotSent]
        end.carrier.stop()

    run(test)


@pytest.mark.rule("D-29")
def test_a_lost_connection_is_an_unknown_outcome_for_what_was_sent_and_for_nothing_else() -> None:
    async def test() -> None:
        end = End()
        end.send(b"sent")
        await turns()
        end.send(b"waiting")
        end.carrier.lost("n3")
        assert not any(end.outcomes.values())
        end.carrier.lost("n2")
        assert [type(each) for each in end.outcomes[b"sent"]] == [Lost]
        assert [type(each) for each in end.outcomes[b"waiting"]] == [NotSent]
        await turns()
        assert len(end.wire.sent) == 1  # what was not sent is not sent later either
        end.carrier.take("n2", CarriedAnswers((CarriedAnswer(end.wire.ids()[0], 200),)))
        assert len(end.outcomes[b"sent"]) == 1
        end.carrier.stop()

    run(test)


@pytest.mark.parametrize("what", ["late", "replaced"])
def test_a_leader_that_is_silent_is_given_up(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0.01)
    monkeypatch.setattr(module, "REPLACED_GRACE_S", 0.03)
    monkeypatch.setattr(module, "GRACE_S", 0.0 if what == "late" else 60.0)

    async def test() -> None:
        end = End()
        end.send(b"a", timeout_ms=20)
        await turns()
        if what == "replaced":
            end.hosted.leader_id = "n3"
        while not end.outcomes[b"a"]:  # noqa: ASYNC110  # the test has a time limit
            await asyncio.sleep(0.005)
        assert [type(each) for each in end.outcomes[b"a"]] == [Lost]
        end.carrier.stop()

    run(test)


def test_a_leader_that_leads_again_has_the_whole_grace_period_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SWEEP_S", 0)
    monkeypatch.setattr(module, "REPLACED_GRACE_S", 5)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now_s)
        end = End()
        end.send(b"a", timeout_ms=60_000)
        for leader, lasts_s in [("n3", 3), ("n2", 3), ("n3", 3)]:
            end.hosted.leader_id = leader
            await turns()
            now_s += lasts_s
        await turns()
        assert not end.outcomes[b"a"]
        now_s += 3
        await turns()
        assert [type(each) for each in end.outcomes[b"a"]] == [Lost]
        end.carrier.stop()

    run(test)


def test_the_leader_answers_the_appends_of_a_turn_in_one_frame_and_declines_before_it_is_ready() -> None:
    async def test() -> None:
        end = End()
        appends = tuple(CarriedAppend(number, 1_000, b"head", b"r", b"v") for number in range(4))
        end.carrier.take("n3", CarriedAppends(appends[:1]))
        await turns()
        assert end.wire.sent == [("n3", CarriedAnswers((CarriedAnswer(0, DECLINED),)))]
        end.wire.sent.clear()
        end.carrier.serve = lambda append, done: done(CarriedAnswer(append.id, 200, (), append.body))
        end.carrier.take("n3", CarriedAppends(appends[1:]))
        await turns()
        answers = tuple(CarriedAnswer(append.id, 200, (), b"v") for append in appends[1:])
        assert end.wire.sent == [("n3", CarriedAnswers(answers))]

    run(test)


def test_an_append_that_the_leader_declines_was_not_sent() -> None:
    async def test() -> None:
        end = End()
        end.send(b"a")
        await turns()
        end.carrier.take("n2", CarriedAnswers((CarriedAnswer(end.wire.ids()[0], DECLINED),)))
        assert [type(each) for each in end.outcomes[b"a"]] == [NotSent]
        end.carrier.stop()

    run(test)
