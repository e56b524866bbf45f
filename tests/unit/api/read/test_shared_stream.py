"""Event streams at the end of one log whose clients get the events of one of them."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.api.http.log_call import Served
from app.api.read.event_stream import client_events
from app.api.read.events import EventStream
from app.api.read.query import ReadQuery
from app.api.read.reader import Range, Reader
from app.api.read.selection import Consistency
from app.api.read.shared_stream import _STREAMS, SharedStream
from app.api.read.tail_pace import WOKEN_AT_ONCE
from app.errors import CommitlogError
from tests.support.event_loop import until
from tests.support.in_process import InProcess, node_in_process

LOG = "/v1/logs/default"


class _Client:
    """A client whose connection is a list of events. reads: False while it does not read."""

    def __init__(self, node: InProcess, start_index: int, *, has_outlet: bool = True, **query: Any) -> None:
        hosted = node.broker.lookup.find("default")
        assert hosted.driver is not None
        reader = Reader(Served(node.broker, hosted, hosted.driver), Consistency.COMMITTED)
        self.events: list[bytes] = []
        self.written = 0  # of them by a shared stream
        self.reading = asyncio.Event()
        self.reading.set()
        self.at_write: Callable[[], object] = lambda: None
        until_index = query.pop("until_index", None)
        self.stream = EventStream(reader, Range(start_index, until_index), ReadQuery.model_validate(query))
        self.task = asyncio.ensure_future(self._receive(self._write if has_outlet else None))

    def _write(self, chunks: bytes) -> bool:
        if not self.reading.is_set():
            return False
        self.at_write()
        size, _, rest = chunks.partition(b"\r\n")
        assert len(rest) == int(size, 16) + 2
        self.events.append(rest[:-2])
        self.written += 1
        return True

    async def _receive(self, write: Callable[[bytes], bool] | None) -> str | None:
        try:
            async for event in client_events(self.stream, write):
                await self.reading.wait()
                self.events.append(event)
        except CommitlogError as error:
            return error.code
        return None

    @property
    def batches(self) -> list[bytes]:
        return [event for event in self.events if event.startswith(b"event: batch\n")]

    @property
    def indexes(self) -> list[int]:
        pages = [json.loads(event.split(b"\ndata: ")[1]) for event in self.batches]
        return [record["index"] for page in pages for record in page["records"]]


async def _append(node: InProcess) -> int:
    octets = {"content-type": "application/octet-stream"}
    answer = await node.client.post(f"{LOG}/records", content=b"v", headers=octets)
    assert answer.status_code == 200, answer.text
    index: int = answer.json()["last_index"]
    return index


@asynccontextmanager
async def _node(folder: Path) -> AsyncIterator[tuple[InProcess, int]]:
    """Yield a node with the index of its next record; it appends nothing by itself meanwhile."""
    async with node_in_process(folder) as node:
        yield node, await _append(node) + 1


def _run(folder: Path, test: Callable[[InProcess, int], Awaitable[None]]) -> None:
    async def run() -> None:
        async with _node(folder) as (node, start):
            await test(node, start)

    asyncio.run(run())


def _shared(client: _Client) -> SharedStream | None:
    return _STREAMS.get(client.stream.pace, {}).get(client.stream.content)


async def _following(*clients: _Client) -> SharedStream:
    """Wait until a shared stream writes to all of them."""
    shared = None

    def found() -> bool:
        nonlocal shared
        shared = _shared(clients[0])
        return shared is not None and all(client.stream in shared._clients for client in clients)

    await until(found)
    assert shared is not None
    return shared


async def _have(index: int, *clients: _Client) -> None:
    """Wait until the record is the last one that each of them has."""
    await until(lambda: all(client.indexes[-1:] == [index] for client in clients))


async def _cancel(*clients: _Client) -> None:
    for client in clients:
        client.task.cancel()
    await asyncio.gather(*(client.task for client in clients), return_exceptions=True)


def test_a_shared_stream_writes_the_bytes_that_a_client_alone_gets(tmp_path: Path) -> None:
    async def test(node: InProcess, start: int) -> None:
        alone = _Client(node, start, has_outlet=False)
        clients = [_Client(node, start) for _ in range(WOKEN_AT_ONCE + 2)]
        other = _Client(node, start, encoding="base64")
        await _following(*clients)
        assert await _following(other) is not await _following(clients[0])
        indexes = []  # of the client's records: a trim appends a control record
        for trim in (False, False, True, False):
            index = await _append(node)
            indexes.append(index)
            await _have(index, *clients, alone, other)
            if trim:
                body = {"until_index": index, "force": True}
                assert (await node.client.post(f"{LOG}:trim", json=body)).status_code == 200
        assert all(client.events == alone.events for client in clients)
        assert alone.indexes == indexes
        assert [client.written for client in clients] == [len(alone.batches)] * len(clients)
        assert b'"value_base64":"dg=="' in other.batches[-1]
        await _cancel(alone, other, *clients)
        assert not alone.written

    _run(tmp_path, test)


def test_a_client_that_does_not_read_misses_nothing_and_delays_no_other(tmp_path: Path) -> None:
    async def test(node: InProcess, start: int) -> None:
        slow, others = _Client(node, start), [_Client(node, start) for _ in range(3)]
        shared = await _following(slow, *others)
        slow.reading.clear()
        for _ in range(5):
            index = await _append(node)
            await _have(index, *others)
        assert slow.stream not in shared._clients
        assert slow.indexes == []
        slow.reading.set()
        assert await _following(slow, *others) is shared
        assert slow.indexes == list(range(start, index + 1))
        index = await _append(node)
        await until(lambda: slow.indexes == list(range(start, index + 1)))
        assert slow.written == 1
        await _cancel(slow, *others)

    _run(tmp_path, test)


def test_a_client_that_disconnects_while_events_are_written_stops_no_other(tmp_path: Path) -> None:
    async def test(node: InProcess, start: int) -> None:
        clients = [_Client(node, start) for _ in range(3 * WOKEN_AT_ONCE)]
        shared = await _following(*clients)
        first, *_, last = list(shared._clients)
        leaving = next(client for client in clients if client.stream is last)
        next(client for client in clients if client.stream is first).at_write = leaving.task.cancel
        index = await _append(node)
        rest = [client for client in clients if client is not leaving]
        await _have(index, *rest)
        assert leaving.indexes == []
        await _cancel(*clients)
        await _append(node)
        await until(lambda: _shared(clients[0]) is None)  # it ends once it has no clients

    _run(tmp_path, test)


def test_the_reason_that_ends_a_shared_stream_reaches_every_client(tmp_path: Path) -> None:
    async def test(node: InProcess, start: int) -> None:
        clients = [_Client(node, start) for _ in range(5)]
        await _following(*clients)
        hosted = node.broker.lookup.find("default")
        driver, hosted.driver = hosted.driver, None
        try:
            assert driver is not None
            driver._waiters.wake(2**62)
            assert await asyncio.gather(*(client.task for client in clients)) == ["repairing"] * 5
        finally:
            hosted.driver = driver
        assert _shared(clients[0]) is None

    _run(tmp_path, test)


def test_a_stop_ends_all_clients(tmp_path: Path) -> None:
    async def test(node: InProcess, start: int) -> None:
        clients = [_Client(node, start) for _ in range(5)]
        await _following(*clients)
        node.broker.waits.end()
        assert await asyncio.gather(*(client.task for client in clients)) == [None] * 5

    _run(tmp_path, test)


def test_a_stream_with_an_end_of_its_own_shares_nothing(tmp_path: Path) -> None:
    async def test(node: InProcess, start: int) -> None:
        bounded = _Client(node, start, until_index=start + 1)
        await until(lambda: bounded.events != [])
        assert not bounded.stream.may_share
        await _append(node)
        assert await bounded.task is None
        assert bounded.indexes == [start]
        assert not bounded.written

    _run(tmp_path, test)


@pytest.mark.parametrize("seed", range(2))
def test_clients_that_pause_leave_and_arrive_at_any_time_get_each_record_once(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)

    async def test(node: InProcess, start: int) -> None:
        clients: list[_Client] = []
        gone: list[_Client] = []
        index = start - 1
        for _ in range(40):
            if chance.random() < 0.4 and len(clients) < 20:
                limit = chance.choice((1, 2, 1_000))
                clients.append(_Client(node, chance.randrange(start, index + 2), limit=limit))
            elif clients and chance.random() < 0.1:
                gone.append(clients.pop(chance.randrange(len(clients))))
                await _cancel(gone[-1])
            for client in chance.sample(clients, min(3, len(clients))):
                if client.reading.is_set():
                    client.reading.clear()
                else:
                    client.reading.set()
            if chance.random() < 0.7:
                index = await _append(node)
        for client in clients:
            client.reading.set()
        index = await _append(node)
        await _have(index, *clients)
        for client in (*clients, *gone):
            found = client.indexes
            assert not found or found == list(range(found[0], found[0] + len(found)))
        assert sum(client.written for client in clients) > len(clients)
        await _cancel(*clients)

    _run(tmp_path, test)
