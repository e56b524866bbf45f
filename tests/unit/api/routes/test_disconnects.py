"""Calls that wait, and whose clients disconnect meanwhile."""

import asyncio
from pathlib import Path

import pytest
import uvicorn

from app.api.http.dependencies import WAITING
from app.listener.listener import Listener
from app.settings.model import HttpSettings
from tests.support.connections import connect
from tests.support.event_loop import until
from tests.support.in_process import node_in_process

CALLS = (
    "records?from=latest&wait_ms=60000",
    "records?from=latest&wait_ms=60000 Accept: application/vnd.commitlog.batch",
    "records?from_index=0&wait_ms=60000 Commitlog-Min-Index: 1000",
    "events?from_seq=1000&wait_ms=60000",
    "tables/entries:wait?index=1000&timeout_ms=60000",
    "tables:at?index=1000&timeout_ms=60000",
)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_a_call_that_waits_ends_when_its_client_disconnects(version: str, tmp_path: Path) -> None:
    """Its task and its place among the open reads stayed until `wait_ms`."""

    async def run() -> None:
        async with node_in_process(tmp_path, tables={"path": str(tmp_path / "tables")}) as node:
            config = uvicorn.Config(node.app, lifespan="off", log_config=None, access_log=False)
            config.load()
            listener, open_reads = Listener(HttpSettings(), 9, node.broker.meter), node.app._in_flight
            for call in CALLS:
                path, _, header = call.partition(" ")
                connection, transport = connect(listener, config)
                lines = [
                    f"GET /v1/logs/default/{path} HTTP/{version}",
                    "Host: x",
                    *([header] if header else []),
                ]
                connection.data_received("\r\n".join((*lines, "", "")).encode())
                cycle = connection.cycle
                await until(lambda cycle=cycle: cycle.scope.get(WAITING))
                assert open_reads.requests == 1
                transport.close()
                connection.connection_lost(None)
                await until(lambda: open_reads.requests == 0, timeout_s=10)
                assert transport.sent == b""
            answers = node.broker.meter.answers
            assert ({key[2] for key in answers}, sum(answers.values())) == ({408}, len(CALLS))

    asyncio.run(run())
