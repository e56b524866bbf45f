"""Appends of several clients that arrive in one turn get the answers that they get one after another."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.errors import CommitlogError
from app.log.commands import SetFence
from app.log.contract import AppendResult, AppendStream, Producer
from app.log.driver_interfaces import DriverConfig
from tests.unit.node.replica.driver_support import Limits, Node

STREAMS = 2
CLIENTS = 14  # in one turn
TURNS = 15
REFUSALS = {
    "fenced",
    "idempotency-key-reused",
    "index-mismatch",
    "rate-limited",
    "request-outstanding",
    "term-mismatch",
}


def request_of(random: Random, next_index: int) -> dict[str, Any]:
    """A request that may be refused: a key again, a gap of a producer, a stale index, an old token."""
    given: dict[str, Any] = {"count": random.choice((1, 1, 2, 5)), "digest": random.choice((b"a", b"b")) * 16}
    if random.random() < 0.5:
        given["idempotency_key"] = random.choice("abcdefghijklmnopqrstuvwxyz")
    if random.random() < 0.2:
        given["producer"] = Producer(
            random.choice("pq"), random.choice((0, 0, 0, 1)), random.randrange(9), random.random() < 0.1
        )
    if random.random() < 0.2:
        given["match_index"] = next_index + random.randrange(-2, 8)
    if random.random() < 0.2:
        given["match_term"] = random.choice((1, 1, 2))
    if random.random() < 0.9:
        given["fencing_token"] = "t"
    if random.random() < 0.2:
        given["stream"] = random.randrange(STREAMS)
    return given


def outcome(answer: AppendResult | CommitlogError) -> tuple[object, ...]:
    if isinstance(answer, CommitlogError):
        return (answer.code, str(answer))
    return (answer.first_index, answer.last_index, answer.term, answer.replayed)


def streams() -> list[AppendStream]:
    return [AppendStream() for _ in range(STREAMS)]


class Side:
    """A node whose appends share batches of at most so many bytes."""

    def __init__(self, folder: Path, coalesce_max_bytes: int) -> None:
        self.node = Node(
            folder,
            limits=Limits(max_idempotency_keys=10, max_producers=1, max_pending_requests=1_000),
            config=DriverConfig(coalesce_max_bytes=coalesce_max_bytes),
        )
        self.node.command(SetFence("t"))
        self.streams = streams()

    def ask(self, place: int, given: dict[str, Any]) -> list[AppendResult | CommitlogError]:
        options = dict(given)
        values = [b"%d" % place] * options.pop("count")
        if "stream" in options:
            options["stream"] = self.streams[options["stream"]]
        return self.node.ask(*values, **options)


@pytest.mark.rule("D-28")
@pytest.mark.parametrize("seed", range(9))
def test_clients_that_share_a_turn_are_answered_as_one_after_another(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    together = Side(tmp_path / "together", (1, 4_000_000, 2_000)[seed % 3])
    apart = Side(tmp_path / "apart", 4_000_000)
    seen: set[object] = set()
    for _ in range(TURNS):
        together.streams, apart.streams = streams(), streams()
        requests = [request_of(random, together.node.driver.log.next_index) for _ in range(CLIENTS)]
        shared = [together.ask(place, given) for place, given in enumerate(requests)]
        together.node.seams.run()
        for place, given in enumerate(requests):
            answers = apart.ask(place, given)
            apart.node.seams.run()
            assert len(shared[place]) == len(answers) == 1
            assert outcome(shared[place][0]) == outcome(answers[0]), (place, given)
            seen.add(outcome(answers[0])[0])
        assert together.node.driver.log.next_index == apart.node.driver.log.next_index
    assert seen >= REFUSALS
    assert together.node.driver._appends.size_bytes == 0  # nothing waits
