"""The plain route of appends: what a body holds while it arrives."""

import asyncio
import json
from typing import Any

import pytest

from app.api.append.plain_route import PlainRoute
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.messages import Response
from tests.unit.api.append.lane_node import LIMITS, Node


class Client:
    """Sends a body in parts, without announcing its length; `held` is what was in flight before each."""

    def __init__(self, node: Node, parts: list[bytes], headers: list[tuple[bytes, bytes]]) -> None:
        self.limit = node.handler.in_flight
        self.parts = parts
        self.headers = headers
        self.held: list[tuple[int, int]] = []

    async def receive(self) -> dict[str, Any]:
        self.held.append((self.limit.requests, self.limit.bytes))
        part = self.parts.pop(0)
        if part == b"left":
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(self.parts)}


def answer_to(
    parts: list[bytes], headers: list[tuple[bytes, bytes]] | None = None, max_bytes: int = 1 << 20
) -> tuple[Response | None, Client, Node]:
    async def run() -> tuple[Response | None, Client, Node]:
        node = Node(lane=False)
        node.handler.in_flight = InFlightLimit(10, max_bytes)
        given = [(b"content-type", b"application/octet-stream"), *(headers or ())]
        client = Client(node, parts, given)
        scope = {"path": "/v1/logs/default/records", "query_string": b"", "headers": given}
        answer = await PlainRoute(node.handler, LIMITS, 1_000).answer(scope, client.receive)
        return answer, client, node

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("parts", "announced", "held"),
    [
        ([b"a" * 300, b"b" * 200, b""], False, [0, 300, 500]),
        ([b"a" * 300, b"b" * 200], True, [500, 500]),
        ([b"a" * 500], False, [0]),
    ],
)
def test_a_body_counts_as_it_arrives_and_an_announced_one_at_once(
    parts: list[bytes], announced: bool, held: list[int]
) -> None:
    length = [(b"content-length", b"500")] if announced else []
    answer, client, node = answer_to([*parts], length)
    assert answer is not None
    assert answer.status == 200
    assert client.held == [(1, each) for each in held]
    assert node.driver.stored == [[b"".join(parts)]]
    assert (client.limit.requests, client.limit.bytes) == (0, 0)


def test_a_body_that_exceeds_the_limit_is_refused_before_its_end() -> None:
    answer, client, node = answer_to([b"a" * 2_000, b"b" * 49, b"never", b"received"])
    assert answer is not None
    assert (answer.status, json.loads(answer.body)["code"]) == (413, "too-large")
    assert (client.parts, node.driver.stored) == ([b"never", b"received"], [])
    assert (client.limit.requests, client.limit.bytes) == (0, 0)


def test_a_client_that_leaves_within_its_body_gets_no_answer_and_holds_nothing() -> None:
    answer, client, node = answer_to([b"a" * 100, b"left"])
    assert (answer, node.driver.stored) == (None, [])
    assert client.held == [(1, 0), (1, 100)]
    assert (client.limit.requests, client.limit.bytes) == (0, 0)


def test_the_answer_has_the_request_id_of_the_client() -> None:
    answer, _, _ = answer_to([b"a"], [(b"x-request-id", b"mine"), (b"x-other", b"other")])
    assert answer is not None
    assert dict(answer.headers)[b"x-request-id"] == b"mine"
