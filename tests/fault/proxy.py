"""A network between peers that can be cut and slowed without privileges: a TCP relay for each ordered pair.

A relay cannot lose, double or reorder packets below TCP: a lost packet is simulated as the pause until TCP
sends it again.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.fault.links import DOWN, GOOD, Addresses, Link
from tests.support.cluster import free_ports

CHUNK_BYTES = 1 << 16
RETRANSMISSION_S = 0.2


@dataclass
class Relay:
    """Forward bytes from the source's connections to the target's peer port, as `link` specifies."""

    target_host: str
    target_port: int
    port: int = 0
    link: Link = GOOD
    chance: random.Random = field(default_factory=random.Random)
    server: asyncio.Server | None = None
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.link.up:
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
                tasks.create_task(self.pump(reader, target_writer))
                tasks.create_task(self.pump(target_reader, writer))
        finally:
            for end in pair:
                end.transport.abort()
                self.writers.remove(end)

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                link = self.link
                if link != GOOD:
                    await asyncio.sleep(self.hold_s(link, len(chunk)))
                writer.write(chunk)
                await writer.drain()
        writer.transport.abort()

    def hold_s(self, link: Link, size_bytes: int) -> float:
        """Return the time that a chunk takes over the link."""
        seconds = (link.delay_ms + self.chance.random() * link.jitter_ms) / 1000
        if link.bytes_per_s:
            seconds += size_bytes / link.bytes_per_s
        while self.chance.random() < link.loss:
            seconds += RETRANSMISSION_S
        return seconds

    def set(self, link: Link) -> None:
        """A link that is down breaks what is open and refuses what comes."""
        self.link = link
        if not link.up:
            for writer in self.writers:
                writer.transport.abort()

    async def stop(self) -> None:
        self.set(DOWN)
        if self.server is not None:
            self.server.close()
            await self.server.wait_closed()


class RelayNetwork:
    """tests.fault.links.Network on 127.0.0.1: nodes reach each other's peer ports through relays."""

    name = "relays"

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = ids
        ports = free_ports(2 * len(ids))
        self._rest = dict(zip(ids, ports[: len(ids)], strict=True))
        self._peer = dict(zip(ids, ports[len(ids) :], strict=True))
        self._relays = {
            (source, target): Relay("127.0.0.1", self._peer[target])
            for source, target in itertools.permutations(ids, 2)
        }

    async def open(self) -> None:
        for relay in self._relays.values():
            await relay.start()

    async def close(self) -> None:
        for relay in self._relays.values():
            await relay.stop()

    def addresses(self, viewer: str, node: str) -> Addresses:
        own = f"127.0.0.1:{self._peer[node]}"
        seen = own if viewer == node else f"127.0.0.1:{self._relays[viewer, node].port}"
        return Addresses(f"127.0.0.1:{self._rest[node]}", self.client_url(node), own, seen)

    def client_url(self, node: str) -> str:
        return f"http://127.0.0.1:{self._rest[node]}"

    def inside(self, node: str, command: Sequence[str]) -> list[str]:
        return list(command)

    def set(self, links: Mapping[tuple[str, str], Link]) -> None:
        for pair, link in links.items():
            self._relays[pair].set(link)
