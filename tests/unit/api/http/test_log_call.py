"""Reads that a node without the log passes on: to the next node, while one of them cannot answer."""

import asyncio
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from app.api.http.log_call import AnsweredElsewhere, LogCall
from app.errors import CommitlogError
from app.node.network.http_forwarder import Forwarder
from app.settings.model import SecuritySettings
from tests.unit.cli.fake_service import Scripted, fake_service

GOOD = Scripted(200, {"value": "a"})


def passed_on(*answers: Scripted, method: str = "GET") -> tuple[int | str, int]:
    """Return the outcome of a read that n1 passes on to nodes with those answers, and how many it asked."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(fake_service(lambda _, answer=each: answer)) for each in answers]
        urls = {f"n{number}": node.url for number, node in enumerate(nodes, 2)}
        outcome = asyncio.run(_passed_on(urls, method))
        return outcome, sum(len(node.asked) for node in nodes)


async def _passed_on(urls: dict[str, str], method: str) -> int | str:
    forwarder = Forwarder(SecuritySettings())
    await forwarder.start()
    broker: Any = SimpleNamespace(
        node=SimpleNamespace(id="n1"),
        nodes=SimpleNamespace(find=lambda id: SimpleNamespace(id=id, url=urls[id])),
        forwarder=forwarder,
    )
    hosted: Any = SimpleNamespace(repair=None, answering=lambda _: list(urls))
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/v1/logs/default/tail",
        "query_string": b"",
        "headers": [],
        "commitlog.request_id": b"r1",
        "commitlog.head": method == "HEAD",
    }
    try:
        await LogCall(Request(scope), broker).elsewhere(hosted)
    except AnsweredElsewhere as answered:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(60)
            return {}

        async def send(message: Any) -> None:
            sent.append(message)

        await answered.response(scope, receive, send)
        return int(sent[0]["status"])
    except CommitlogError as error:
        return error.code
    finally:
        await forwarder.stop()


@pytest.mark.parametrize("status_code", [(421, "not-leader"), (503, "no-leader"), (503, "repairing")])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_node_that_cannot_answer_is_followed_by_the_next_one(
    status_code: tuple[int, str], method: str
) -> None:
    status, code = status_code
    refusal = Scripted(status, {"code": code, "detail": "this node was removed from the cluster"})
    assert passed_on(refusal, GOOD, GOOD, method=method) == (200, 2)
    assert passed_on(refusal, refusal, method=method) == ("no-leader", 2)


def test_the_refusal_of_a_node_that_serves_the_log_is_the_answer() -> None:
    assert passed_on(Scripted(503, {"code": "read-index-unavailable"}), GOOD) == (503, 1)
    assert passed_on(Scripted(404, {"code": "log-not-found"}), GOOD) == (404, 1)
    assert passed_on(Scripted(0), GOOD)[0] == 200
