"""One attempt of a call at another node: whether it may have been applied."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.node.network.http_forwarder import Forwarder, Lost
from app.settings.model import SecuritySettings
from tests.unit.cli.fake_service import Scripted, fake_service


async def _send(url: str, method: str) -> None:
    target: Any = SimpleNamespace(id="n2", url=url)
    forwarder = Forwarder(SecuritySettings())
    await forwarder.start()
    try:
        await forwarder.send(target, method, b"/v1/logs/default/cursors/etl", (), b"{}", b"r1", 5.0)
    finally:
        await forwarder.stop()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST"])
def test_a_write_whose_answer_is_lost_is_not_sent_again(method: str) -> None:
    """The node may have applied it: a second attempt would be refused, or find the node gone."""
    with fake_service(lambda _: Scripted(0)) as node:
        with pytest.raises(Lost, match="n2: "):
            asyncio.run(_send(node.url, method))
        assert [asked.method for asked in node.asked] == [method]


def test_an_answer_that_ends_before_it_is_complete_is_lost() -> None:
    async def read() -> list[bytes]:
        async def leader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n")
            await writer.drain()
            writer.close()

        forwarder = Forwarder(SecuritySettings())
        await forwarder.start()
        try:
            async with await asyncio.start_server(leader, "127.0.0.1", 0) as server:
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                target: Any = SimpleNamespace(id="n2", url=url)
                stream = await forwarder.stream(target, "GET", b"/", (), b"r1", 5.0)
                return [piece async for piece in stream.pieces()]
        finally:
            await forwarder.stop()

    with pytest.raises(Lost):
        asyncio.run(read())
