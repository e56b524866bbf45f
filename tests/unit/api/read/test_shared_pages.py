"""Readers of one log share the bytes of a page."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from app.api.read.query import ReadQuery
from app.api.read.reader import Reader
from app.api.read.selection import Selection
from app.api.read.shared_pages import (
    KEPT_MAX,
    KEPT_MAX_BYTES,
    PAGE_MAX_BYTES,
    RenderedPage,
    SharedPages,
)
from storage.units import KIB
from tests.support.in_process import InProcess, node_in_process

RECORDS = "/v1/logs/default/records"


async def _append(node: InProcess, value: str) -> int:
    octets = {"content-type": "application/octet-stream"}
    answer = await node.client.post(RECORDS, content=value, headers=octets)
    assert answer.status_code == 200, answer.text
    index: int = answer.json()["last_index"]
    return index


async def _stream(node: InProcess, until: int, **query: str) -> str:
    bounds = {"from_index": "0", "until_index": str(until)}
    answer = await node.client.get(RECORDS, params=bounds | query, headers={"accept": "text/event-stream"})
    assert answer.status_code == 200, answer.text
    return answer.text


def test_many_streams_read_a_batch_once_and_get_what_each_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    fill = Reader.fill

    async def counted(self: Reader, *arguments: object) -> None:
        nonlocal reads
        reads += 1
        await fill(self, *arguments)  # type: ignore[arg-type]

    async def run() -> None:
        nonlocal reads
        async with node_in_process(tmp_path) as node:
            last = await _append(node, "one")
            monkeypatch.setattr(Reader, "fill", counted)
            streams = await asyncio.gather(*(_stream(node, last + 1) for _ in range(20)))
            assert len(set(streams)) == 1
            assert '"value":"one"' in streams[0]
            assert reads < len(streams)
            assert '"value_base64":"b25l"' in await _stream(node, last + 1, encoding="base64")
            assert '"value":"one"' not in await _stream(node, last + 1, key="other")
            longer = await _append(node, "two")
            assert '"value":"two"' in await _stream(node, longer + 1)

    asyncio.run(run())


def test_many_streams_share_a_large_batch_that_a_thread_renders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = 0
    to_thread = asyncio.to_thread

    async def counted(*arguments: object) -> object:
        nonlocal threads
        threads += 1
        return await to_thread(*arguments)  # type: ignore[arg-type]

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            last = await _append(node, "v" * 300 * KIB)
            monkeypatch.setattr(asyncio, "to_thread", counted)
            streams = await asyncio.gather(*(_stream(node, last + 1) for _ in range(20)))
            assert len(set(streams)) == 1
            assert streams[0].count("v") > 300 * KIB
            assert threads < len(streams)

    asyncio.run(run())


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_long_polls_at_the_end_share_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    reads = 0
    fill = Reader.fill

    async def counted(self: Reader, *arguments: object) -> None:
        nonlocal reads
        reads += 1
        await fill(self, *arguments)  # type: ignore[arg-type]

    async def poll(node: InProcess, index: int, **query: str) -> tuple[str, str]:
        where = {"from_index": str(index), "wait_ms": "5000"} | query
        answer = await node.client.get(RECORDS, params=where, headers={"accept": accept})
        assert answer.status_code == 200, answer.text
        return answer.text, answer.headers["commitlog-next-index"]

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            end = await _append(node, "one") + 1
            monkeypatch.setattr(Reader, "fill", counted)
            polls = [asyncio.ensure_future(poll(node, end)) for _ in range(20)]
            others = [asyncio.ensure_future(poll(node, end, encoding="base64")) for _ in range(2)]
            await asyncio.sleep(0.1)
            assert await _append(node, "two") == end
            answers = await asyncio.gather(*polls)
            assert len(set(answers)) == 1
            assert '"value":"two"' in answers[0][0]
            assert answers[0][1] == str(end + 1)
            assert {'"value_base64":"dHdv"' in text for text, _ in await asyncio.gather(*others)} == {True}
            assert reads < len(polls)
            alone = await node.client.get(
                RECORDS, params={"from_index": str(end)}, headers={"accept": accept}
            )
            assert alone.text == answers[0][0]  # the same bytes as without wait_ms

    asyncio.run(run())


def test_a_record_that_arrives_while_long_polls_wait_may_end_them_by_its_time(tmp_path: Path) -> None:
    late = {"value": "late", "timestamp": 250_000_000_000_000}

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            bounds = {"from": "latest", "until_timestamp": "240000000000000", "wait_ms": "5000"}
            polls = [asyncio.ensure_future(node.client.get(RECORDS, params=bounds)) for _ in range(3)]
            await asyncio.sleep(0.1)
            assert (await node.client.post(RECORDS, json={"records": [late]})).status_code == 200
            assert [answer.json()["records"] for answer in await asyncio.gather(*polls)] == [[], [], []]

    asyncio.run(run())


class _Renders:
    """Renders pages for SharedPages, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def page(self, event: bytes | None = b"event") -> RenderedPage:
        self.count += 1
        await self.gate.wait()
        return RenderedPage(1, False, event)


def test_a_bounded_number_of_pages_is_kept() -> None:
    async def run() -> None:
        shared, renders = SharedPages(), _Renders()
        for number in (*range(KEPT_MAX + 1), KEPT_MAX, 0):
            assert await shared.get(number, renders.page) == RenderedPage(1, False, b"event")
        assert renders.count == KEPT_MAX + 2  # the first one was dropped, the last one was kept

    asyncio.run(run())


def test_large_pages_are_dropped_before_they_fill_the_memory() -> None:
    async def run() -> None:
        shared, renders = SharedPages(), _Renders()
        for _ in range(2):
            await shared.get("too large", partial(renders.page, bytes(PAGE_MAX_BYTES + 1)))
        assert renders.count == 2
        large = partial(renders.page, bytes(PAGE_MAX_BYTES))
        for number in (*range(KEPT_MAX_BYTES // PAGE_MAX_BYTES + 1), 0):
            await shared.get(number, large)
        assert renders.count == 2 + KEPT_MAX_BYTES // PAGE_MAX_BYTES + 2

    asyncio.run(run())


def test_streams_that_ask_while_a_page_is_rendered_share_it() -> None:
    async def run() -> None:
        shared, renders = SharedPages(), _Renders()
        renders.gate.clear()
        waiting = [asyncio.ensure_future(shared.get("key", renders.page)) for _ in range(10)]
        await asyncio.sleep(0)
        waiting.pop(0).cancel()  # the stream that renders is gone: another one renders for the rest
        await asyncio.sleep(0)
        renders.gate.set()
        assert await asyncio.gather(*waiting) == [RenderedPage(1, False, b"event")] * 9
        assert renders.count == 2

    asyncio.run(run())


def test_selections_that_are_equal_share() -> None:
    assert hash(ReadQuery().selection()) == hash(Selection())  # type: ignore[call-arg]
