"""A network between peers that can be cut: one TCP relay for each ordered pair of nodes."""

import asyncio
import contextlib
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 16


@dataclass
class Relay:
    """Passes bytes from `source`'s connections on to the target's peer port, while it is up."""

    target_host: str
    target_port: int
    port: int = 0
    up: bool = True
    server: asyncio.Server | None = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.up:
            writer.transport.abort()
            return
        try:
            target_reader, target_writer = await asyncio.open_connection(self.target_host, self.target_port)
        except OSError:
            writer.transport.abort()
            return
        pair = [writer, target_writer]
        self.writers += pair
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pump(reader, target_writer))
                tasks.create_task(pump(target_reader, writer))
        finally:
            for end in pair:
                end.transport.abort()
                self.writers.remove(end)

    def cut(self) -> None:
        """Break what is open and refuse what comes, until `mend`."""
        self.up = False
        for writer in self.writers:
            writer.transport.abort()

    def mend(self) -> None:
        self.up = True

    async def stop(self) -> None:
        self.cut()
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.transport.abort()
