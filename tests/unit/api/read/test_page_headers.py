"""Headers of a read: those of the log in every format, and what the format depends on."""

import asyncio
from pathlib import Path

from app.media_types import ARROW_STREAM, BATCHES, EVENTS, JSON, NDJSON, PARQUET
from tests.support.in_process import node_in_process


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
