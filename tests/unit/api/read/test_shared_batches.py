"""Event streams of one log share the bytes of a batch."""

import asyncio
from pathlib import Path

import pytest

from app.api.read.query import ReadQuery
from app.api.read.reader import Reader
from app.api.read.selection import Selection
from app.api.read.shared_batches import ENTRIES, EVENT_MAX_BYTES, SharedBatches
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


def test_a_bounded_number_of_small_batches_is_kept() -> None:
    shared = SharedBatches()
    shared.put("large", 1, bytes(EVENT_MAX_BYTES + 1))
    assert shared.get("large") is None
    for number in range(ENTRIES + 1):
        shared.put(number, number + 1, None)
    assert shared.get(0) is None
    assert shared.get(ENTRIES) == (ENTRIES + 1, None)


def test_selections_that_are_equal_share() -> None:
    assert hash(ReadQuery().selection()) == hash(Selection())  # type: ignore[call-arg]
