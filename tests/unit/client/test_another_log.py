"""Readers of a log that is deleted and created again while they read it: its indexes are of other records."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.client import AsyncCommitlogClient, CommitlogClient, Consumer, NotFound, OtherLog
from tests.unit.cli.fake_service import Asked, FakeService, Scripted, fake_service


@contextmanager
def created_again() -> Iterator[FakeService]:
    """A node whose log is another one after the first page."""
    pages = 0

    def answer(asked: Asked) -> Scripted:
        nonlocal pages
        if asked.path.endswith("/cursors/etl"):
            return Scripted(200, {"name": "etl", "index": 0, "fence": False}, {"ETag": '"1"'})
        if not asked.path.endswith("/records"):
            return Scripted(404, {"code": "not-found"})
        pages += 1
        first = int(asked.query["from_index"])
        page = {"records": [{"index": first, "value": "v"}], "next_index": first + 1, "has_more": False}
        return Scripted(200, page, {"Commitlog-Log-Id": "a" if pages == 1 else "b"})

    with fake_service(answer) as service:
        yield service


def test_follow_reports_it() -> None:
    with created_again() as service, CommitlogClient(service.url) as client:
        found = client.follow(0)
        assert next(found)["index"] == 0
        with pytest.raises(OtherLog, match="log 'default': its id is b, not a") as other:
            next(found)
        assert not other.value.retryable  # a program that repeats the call would repeat it without end


def test_a_follower_that_starts_again_names_the_log_that_it_read() -> None:
    with created_again() as service, CommitlogClient(service.url) as client:
        page = client.read(from_index=0)
        assert page.log_id == "a"
        with pytest.raises(OtherLog, match="its id is b, not a"):
            next(client.follow(page.next_index, log_id=page.log_id))

    async def follow(url: str) -> None:
        async with AsyncCommitlogClient(url) as client:
            page = await client.read(from_index=0)
            async for _ in client.follow(page.next_index, log_id=page.log_id):
                pass

    with created_again() as service, pytest.raises(OtherLog, match="its id is b, not a"):
        asyncio.run(follow(service.url))


def test_a_consumer_reports_it_and_does_not_move() -> None:
    with created_again() as service, CommitlogClient(service.url) as client:
        consumer = Consumer(client, "etl")
        consumer.poll()
        with pytest.raises(OtherLog):
            consumer.poll()
        assert consumer.position == 1


@pytest.mark.parametrize(("identity", "error"), [("b", OtherLog), ("a", NotFound)])
def test_a_shorter_log_is_another_one_too(identity: str, error: type[Exception]) -> None:
    """The service refuses an index beyond its end, without the id of the log."""

    def answer(asked: Asked) -> Scripted:
        if not asked.path.endswith("/records"):
            return Scripted(404, {"code": "not-found"})
        page = {"records": [{"index": 7, "value": "v"}], "next_index": 8, "has_more": False}
        if asked.query.get("from_index") == "7":
            return Scripted(200, page, {"Commitlog-Log-Id": "a"})
        if "from_index" in asked.query:
            return Scripted(416, {"code": "index-out-of-range", "next_index": 1})
        return Scripted(200, page, {"Commitlog-Log-Id": identity})

    with fake_service(answer) as service, CommitlogClient(service.url) as client:
        found = client.follow(7)
        assert next(found)["index"] == 7
        with pytest.raises(error):
            next(found)


def test_follow_for_asyncio_reports_it() -> None:
    found = []

    async def follow(url: str) -> None:
        async with AsyncCommitlogClient(url) as client:
            async for record in client.follow(0):
                found.append(record["index"])

    with created_again() as service, pytest.raises(OtherLog):
        asyncio.run(follow(service.url))
    assert found == [0]
