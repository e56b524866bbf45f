"""Calls that wait, and whose clients disconnect meanwhile."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.in_process import InProcess, node_in_process


async def cut_off(node: InProcess, path: str, query: str, *headers: tuple[bytes, bytes]) -> list[Any]:
    """Send a call, disconnect while it is answered, and return what the node would have sent."""
    sent: list[Any] = []
    received: Iterator[dict[str, object]] = iter(({"type": "http.request"}, {"type": "http.disconnect"}))

    async def receive() -> dict[str, object]:
        await asyncio.sleep(0)
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": [*headers]}
    scope |= {"query_string": query.encode(), "http_version": "1.1", "scheme": "http", "root_path": ""}
    async with asyncio.timeout(20):
        await node.app(scope, receive, send)
    return sent


def test_a_call_that_waits_ends_when_its_client_disconnects(tmp_path: Path) -> None:
    """Its task and its place among the open reads stayed until `wait_ms`."""
    calls = (
        ("records", "from=latest&wait_ms=60000", (b"accept", b"application/json")),
        ("records", "from=latest&wait_ms=60000", (b"accept", b"application/vnd.commitlog.batch")),
        ("records", "from_index=0&wait_ms=60000", (b"commitlog-min-index", b"1000")),
        ("events", "from_seq=1000&wait_ms=60000", (b"accept", b"application/json")),
    )

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            for path, query, header in calls:
                sent = await cut_off(node, f"/v1/logs/default/{path}", query, header)
                assert [message.get("status") for message in sent] == [408, None]
                assert node.app._in_flight.requests == 0

    asyncio.run(run())
