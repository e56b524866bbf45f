"""Real nodes whose every link runs through a relay of its own, so that any of them can be cut."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fault.proxy import Relay
from tests.support.cluster import Cluster


class RoutedCluster(Cluster):
    """A cluster in which each node has its own way to each peer: relays[source, target]."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        super().__init__(folder, nodes)
        self.relays = {
            (source, target): Relay("127.0.0.1", self.peer_ports[target])
            for source, target in itertools.permutations(self.ids, 2)
        }
        self._plain = self.config.read_text()

    async def connect(self) -> None:
        """Start the relays and write each node's own configuration file."""
        for relay in self.relays.values():
            await relay.start()
        for source in self.ids:
            text = self._plain
            for target in self.ids:
                if target != source:
                    direct = f'peer_address = "127.0.0.1:{self.peer_ports[target]}"'
                    relayed = f'peer_address = "127.0.0.1:{self.relays[source, target].port}"'
                    text = text.replace(direct, relayed)
            self.config_of(source).write_text(text)

    def config_of(self, node: str) -> Path:
        return self.folder / f"{node}.toml"

    def start(self, *nodes: str) -> None:
        for node in nodes or self.ids:
            self.config = self.config_of(node)
            super().start(node)

    def isolate(self, node: str) -> None:
        """Cut every link of a node, both ways."""
        for pair, relay in self.relays.items():
            if node in pair:
                relay.cut()

    def deafen(self, node: str) -> None:
        """The node is heard but hears nobody."""
        for (_, target), relay in self.relays.items():
            if target == node:
                relay.cut()

    def heal(self) -> None:
        for relay in self.relays.values():
            relay.mend()

    async def disconnect(self) -> None:
        for relay in self.relays.values():
            await relay.stop()


@asynccontextmanager
async def routed(folder: Path, nodes: int = 3) -> AsyncIterator[RoutedCluster]:
    """A started and ready cluster behind relays, ended at the end."""
    cluster = RoutedCluster(folder, nodes)
    await cluster.connect()
    try:
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.close)
        await cluster.disconnect()
