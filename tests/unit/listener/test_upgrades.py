"""A request for another protocol that arrives in pieces: the header is ignored, wherever it is divided."""

import asyncio

import pytest

from tests.unit.listener.test_connection import GET, UPGRADES, Server, run

OTHER = GET.replace(b"host: x", b"host: x\r\nconnection: close")


@pytest.mark.parametrize("kind", UPGRADES)
def test_a_divided_upgrade_of_a_request_with_a_body_is_ignored(kind: str) -> None:
    head = b"POST /echo HTTP/1.1\r\nhost: x\r\ncommitlog-key: k\r\ncontent-length: 2\r\n" + UPGRADES[kind]
    request = head + b"\r\nok"
    first = head.index(b"\r\nupgrade: ")

    async def test(server: Server) -> None:
        for at in range(first, first + len("\r\nupgrade: ") + 1):
            reader, writer = await server.connect()
            writer.write(request[:at])
            await server.exchange(OTHER)  # meanwhile the first piece is received
            writer.write(request[at:])
            answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\nk"), 10)
            assert answer.startswith(b"HTTP/1.1 200"), request[:at]
            writer.close()

    run(test)
