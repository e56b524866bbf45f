"""The asyncio client against scripted nodes: calls that their caller cancels."""

import asyncio
import threading

import pytest

from app.client import AsyncCommitlogClient
from tests.unit.cli.fake_service import Asked, Scripted, committed, fake_service


def test_a_poll_that_was_cancelled_does_not_move_the_position() -> None:
    """The request goes on in its thread; its records have no receiver."""
    answering, answered = threading.Event(), threading.Event()
    cursor = {"name": "etl", "index": 5, "fence": False}

    def answer(asked: Asked) -> Scripted:
        if asked.path.endswith("/cursors/etl"):
            return Scripted(200, cursor, {"ETag": '"1"'})
        if not asked.path.endswith("/records"):
            return Scripted(404, {"code": "not-found"})
        first = int(asked.query["from_index"])
        if not answered.is_set():
            answering.set()
            answered.wait(30)
        record = {"index": first, "term": 1, "value": "v"}
        return Scripted(200, {"records": [record], "next_index": first + 1, "has_more": False})

    async def poll(url: str) -> int:
        async with AsyncCommitlogClient(url, max_calls=1) as client:
            consumer = await client.consumer("etl")
            cancelled = asyncio.create_task(consumer.poll())
            assert await asyncio.to_thread(answering.wait, 30)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            answered.set()
            page = await consumer.poll()  # in the only thread, so after the first
            return int(page.records[0]["index"])

    with fake_service(answer) as service:
        assert asyncio.run(poll(service.url)) == 5


def test_calls_that_wait_for_a_thread_end_although_the_client_was_closed() -> None:
    """They are not cancelled: a group of tasks would leave out such a call without an error."""
    asked, answered = threading.Event(), threading.Event()

    def answer(_: Asked) -> Scripted:
        asked.set()
        answered.wait(30)
        return Scripted(200, {"next_index": 5})

    async def close(url: str) -> list[int]:
        client = AsyncCommitlogClient(url, max_calls=1)
        calls = [asyncio.create_task(client.tail()) for _ in range(2)]
        assert await asyncio.to_thread(asked.wait, 30)
        await client.close()
        answered.set()
        found = [tail["next_index"] for tail in await asyncio.gather(*calls)]
        with pytest.raises(ValueError, match="the client is closed"):
            await client.append(["x"])
        await client.close()
        return found

    with fake_service(answer) as service:
        assert asyncio.run(close(service.url)) == [5, 5]


def test_a_cancelled_send_has_queued_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record would be stored twice, if it was queued as soon as there is room, and sent again."""
    may_answer = threading.Event()

    def answer(asked: Asked) -> Scripted:
        may_answer.wait(30)
        return Scripted(200, committed())

    async def send(url: str) -> None:
        async with (
            AsyncCommitlogClient(url) as client,
            client.producer(max_pending_bytes=1, linger_ms=0) as producer,
        ):
            room, waits = producer.blocking._room, threading.Event()
            wait = room.wait

            def noted(timeout: float | None = None) -> bool:
                waits.set()
                return wait(timeout)

            monkeypatch.setattr(room, "wait", noted)
            await producer.send("first")
            waiting = asyncio.create_task(producer.send("cancelled"))
            assert await asyncio.to_thread(waits.wait, 30)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            may_answer.set()
            await producer.send("last")

    with fake_service(answer) as service:
        asyncio.run(send(service.url))
        bodies = [asked.body for asked in service.appends()]
    assert [b"cancelled" in body for body in bodies] == [False, False]
    assert b"last" in bodies[1]
