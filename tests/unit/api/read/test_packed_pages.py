"""Packed reads return whole stored batches, and nothing beyond the visible end (docs/api.md §5)."""

import asyncio
from pathlib import Path

import httpx
import pytest

from app.api.read.reader import Reader
from app.media_types import BATCHES
from storage.format.batch import Batch, decode_batch
from tests.support.in_process import node_in_process

RECORDS = "/v1/logs/default/records"


def batches_in(answer: httpx.Response) -> list[Batch]:
    assert answer.status_code == 200
    data, found = memoryview(answer.content), []
    while data:
        batch = decode_batch(data)
        found.append(batch)
        data = data[batch.size_bytes :]
    return found


@pytest.mark.rule("R-08", "A-10")
@pytest.mark.parametrize("consistency", ["linearizable", "committed"])
@pytest.mark.parametrize("skipped", [0, 1, 2])
def test_a_batch_that_is_visible_in_part_is_not_in_a_packed_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skipped: int, consistency: str
) -> None:
    """A leader permits a replica that is ahead of it less than the replica holds; the rest comes later."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            first = (await node.client.post(RECORDS, json={"value": "a"})).json()["last_index"]
            several = {"records": [{"value": "b"}, {"value": "c"}, {"value": "d"}]}
            last = (await node.client.post(RECORDS, json=several)).json()["last_index"]
            from_index = first + skipped
            params = {"from_index": from_index, "until_index": last, "consistency": consistency}
            for visible_end in range(from_index, last + 1):

                async def confirm(reader: Reader, visible_end: int = visible_end) -> None:
                    reader._given = visible_end

                monkeypatch.setattr(Reader, "confirm", confirm)
                answer = await node.client.get(RECORDS, params=params, headers={"Accept": BATCHES})
                whole = [end for end in (first, last) if from_index <= end <= visible_end]
                assert [batch.last_index for batch in batches_in(answer)] == whole
                next_index = whole[-1] + 1 if whole else from_index
                assert answer.headers["commitlog-next-index"] == str(next_index)
                has_more = next_index <= min(visible_end, last - 1)
                assert answer.headers["commitlog-has-more"] == str(has_more).lower()

    asyncio.run(run())


def test_a_packed_page_reads_each_batch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, read = Reader.raw, list[int]()

    async def counting(reader: Reader, from_index: int, end: int, max_bytes: int) -> list[Batch]:
        batches = await raw(reader, from_index, end, max_bytes)
        read.extend(batch.base_index for batch in batches)
        return batches

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            first = (await node.client.post(RECORDS, json={"value": "a"})).json()["last_index"]
            last = (await node.client.post(RECORDS, json={"value": "b"})).json()["last_index"]
            monkeypatch.setattr(Reader, "raw", counting)
            answer = await node.client.get(RECORDS, params={"from_index": first}, headers={"Accept": BATCHES})
            assert [batch.base_index for batch in batches_in(answer)] == read == [first, last]

    asyncio.run(run())


def test_a_packed_page_names_the_filters_that_it_refuses(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            for filters in ({"term": 1}, {"key": "k"}, {"key": "k", "term": 1}):
                answer = await node.client.get(RECORDS, params=filters, headers={"Accept": BATCHES})
                assert answer.status_code == 422
                pointers = [error["pointer"] for error in answer.json()["errors"]]
                assert pointers == [f"/query/{name}" for name in filters]

    asyncio.run(run())
