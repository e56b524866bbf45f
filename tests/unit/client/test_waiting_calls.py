"""Calls that wait at the service: their time limit follows `wait_ms`, and what follows a log has no end."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.client import AsyncCommitlogClient, CommitlogClient, Consumer
from app.client.batches import arrow_stream
from app.client.connection import ClusterConnection
from storage.format.records import READ_SCHEMA
from tests.unit.cli.fake_service import Scripted, fake_service

WAITING: dict[str, Any] = {"wait_ms": 30_000}
CURSOR = Scripted(200, {"name": "etl", "index": 0, "fence": False}, {"ETag": '"1"'})


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:1"])
def test_the_time_limit_of_a_call_is_longer_than_its_wait(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None
) -> None:
    limits: list[float] = []

    def answer(*arguments: Any, wait_s: float = 5.0, **_: Any) -> SimpleNamespace:
        limits.append(wait_s)
        if arguments[-1].endswith("/events"):
            return SimpleNamespace(data=b"{}", headers={})
        headers = {"Commitlog-Next-Index": "0", "Commitlog-Has-More": "false"}
        return SimpleNamespace(data=arrow_stream(READ_SCHEMA.empty_table()), headers=headers)

    monkeypatch.setattr(ClusterConnection, "call", lambda _, *given, **asked: answer(*given, **asked))
    monkeypatch.setattr(ClusterConnection, "once", lambda _, *given, **asked: answer(*given, **asked))
    client = CommitlogClient("http://127.0.0.1:1")
    client.read_arrow(0, endpoint=endpoint, **WAITING)
    client.events(endpoint, **WAITING)
    client.read_arrow(0, endpoint=endpoint)
    client.events(endpoint)
    client.events(endpoint, wait_ms=None)
    assert limits == [30.0, 30.0, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("end", ["until_index", "until_timestamp"])
def test_records_that_are_followed_have_no_end(end: str) -> None:
    """After its end, each call would be answered at once, without a record."""

    async def follow(url: str) -> None:
        async with AsyncCommitlogClient(url) as client:
            async for _ in client.follow(0, **{end: 5}):
                pass

    async def consume(url: str) -> None:
        async with AsyncCommitlogClient(url) as client:
            async for _ in (await client.consumer("etl")).records(**{end: 5}):
                pass

    with fake_service(lambda _: CURSOR) as node:
        client = CommitlogClient(node.url)
        for use in (
            lambda: next(client.follow(0, **{end: 5})),
            lambda: next(Consumer(client, "etl").records(**{end: 5})),
            lambda: asyncio.run(follow(node.url)),
            lambda: asyncio.run(consume(node.url)),
        ):
            with pytest.raises(ValueError, match=f"{end} is not available here"):
                use()
