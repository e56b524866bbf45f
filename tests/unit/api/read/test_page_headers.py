"""Headers of a read: those of the log in every format, and what the format depends on."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from app.api.read import page_rendering
from app.api.read.reader import Reader
from app.api.read.selection import RecordPage
from app.media_types import ARROW_STREAM, BATCHES, EVENTS, JSON, NDJSON, PARQUET
from tests.support.in_process import node_in_process

RECORDS = "/v1/logs/default/records"


def test_every_format_has_the_headers_of_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            await node.client.post("/v1/logs/default/records", json={"value": "a"})
            status = (await node.client.get("/v1/logs/default/status")).json()
            leader = (await node.client.get("/v1/cluster")).json()["nodes"][0]["url"]
            for media_type in (JSON, NDJSON, ARROW_STREAM, PARQUET, BATCHES, EVENTS):
                answer = await node.client.head("/v1/logs/default/records", headers={"Accept": media_type})
                assert answer.headers["content-type"].partition(";")[0] == media_type
                assert answer.headers["commitlog-leader"] == leader
                assert answer.headers["commitlog-term"] == str(status["term"])
                assert answer.headers["commitlog-committed-index"] == str(status["committed_index"])
                next_index = 0 if media_type == EVENTS else status["next_index"]
                assert answer.headers["commitlog-next-index"] == str(next_index)
                assert answer.headers["vary"] == "accept"

    asyncio.run(run())


@pytest.mark.rule("R-08")
@pytest.mark.parametrize("wait_ms", [0, 1])
def test_the_headers_of_a_page_are_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    """A client that compares `Commitlog-Committed-Index` with the next index finds what `has_more` states,
    and a linearizable read shows no later index in its headers than in its records."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            first = (await node.client.post(RECORDS, json={"value": "a"})).json()["last_index"]
            await node.client.post(RECORDS, json={"value": "b"})

            async def confirm(reader: Reader) -> None:
                reader._given = first  # this replica is ahead of what the leader has permitted

            monkeypatch.setattr(Reader, "confirm", confirm)
            for media_type in (JSON, NDJSON, ARROW_STREAM, PARQUET, BATCHES):
                params = {"wait_ms": wait_ms, "from_index": first}
                answer = await node.client.get(RECORDS, params=params, headers={"Accept": media_type})
                assert answer.headers["commitlog-next-index"] == str(first + 1)
                assert answer.headers["commitlog-committed-index"] == str(first), media_type
                if media_type != JSON:
                    assert answer.headers["commitlog-has-more"] == "false"

    asyncio.run(run())


@pytest.mark.parametrize("wait_ms", [0, 60_000])
def test_a_page_that_is_rendered_while_records_arrive_has_the_headers_of_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_ms: int
) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            appended = (await node.client.post(RECORDS, json={"value": "a"})).json()

            async def slowly(page: RecordPage, render: Callable[[], bytes]) -> bytes:
                await node.client.post(RECORDS, json={"value": "meanwhile"})
                return render()

            monkeypatch.setattr(page_rendering, "rendered", slowly)
            params = {"wait_ms": wait_ms, "from_index": appended["first_index"]}
            answer = await node.client.get(RECORDS, params=params)
            assert answer.json()["committed_index"] == appended["committed_index"]
            assert answer.headers["commitlog-committed-index"] == str(appended["committed_index"])

    asyncio.run(run())
