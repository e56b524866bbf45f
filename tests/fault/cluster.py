"""Real nodes on a network that can be cut and worsened link by link (links.py)."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from tests.fault.links import DOWN, GOOD, Link, Network, both_ways
from tests.fault.proxy import RelayNetwork
from tests.support.cluster import Cluster, configuration


class FaultCluster(Cluster):
    """A cluster behind an open Network. `away` are the nodes that cannot be asked now: paused ones."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        *,
        entry: str = "app.serve",
        logs: tuple[Mapping[str, object], ...] = (),
        sections: Mapping[str, Mapping[str, object]] | None = None,
        joining: int = 0,
    ) -> None:
        """entry: the module that is a node's process. joining: the last so many are no members yet."""
        self.network = network
        self.first_ids = list(network.ids[: len(network.ids) - joining])
        self.away: list[str] = []
        self._entry = entry
        self._logs = logs
        super().__init__(folder, len(network.ids), logs=logs, sections=sections)

    def _write(
        self,
        cluster_id: str,
        logs: tuple[Mapping[str, object], ...],
        sections: Mapping[str, Mapping[str, object]],
        peer_addresses: Mapping[str, str],
    ) -> None:
        for viewer in self.ids:
            self._write_of(viewer, cluster_id, logs, sections)

    def _write_of(
        self,
        viewer: str,
        cluster_id: str,
        logs: tuple[Mapping[str, object], ...],
        sections: Mapping[str, Mapping[str, object]],
    ) -> None:
        nodes = [
            {"id": node, **asdict(self.network.addresses(viewer, node)), "data": self.folder / node}
            for node in self.ids
            if node in (*self.first_ids, viewer)
        ]
        security = {"security": {"allow_insecure": True}, **sections}
        self.config_of(viewer).write_text(configuration(cluster_id, nodes, logs, security))

    def configure(self, node: str, sections: Mapping[str, Mapping[str, object]]) -> None:
        """Change the sections of a node's configuration; it holds from the node's next start on."""
        self._write_of(node, "test", self._logs, sections)

    def config_of(self, node: str) -> Path:
        return self.folder / f"{node}.toml"

    def command(self, node: str) -> list[str]:
        served = [sys.executable, "-m", self._entry, "--config", str(self.config_of(node)), "--node", node]
        return self.network.inside(node, served)

    def url(self, node: str) -> str:
        return self.network.client_url(node)

    @property
    def running(self) -> list[str]:
        return [node for node in super().running if node not in self.away]

    def pid(self, node: str) -> int:
        return self._processes[node].pid

    def ended(self) -> list[str]:
        """Nodes whose process has ended by itself, and was not waited for."""
        return [node for node, process in self._processes.items() if process.poll() is not None]

    def pause(self, node: str) -> None:
        self.away.append(node)
        super().pause(node)

    def resume(self, node: str) -> None:
        super().resume(node)
        self.away.remove(node)

    # --- the network -------------------------------------------------------------------------------------

    def set_links(self, pairs: Iterable[tuple[str, str]], link: Link) -> None:
        self.network.set(dict.fromkeys(pairs, link))

    def isolate(self, node: str) -> None:
        """Cut every link of a node, both ways."""
        self.set_links(both_ways([node], self.ids), DOWN)

    def deafen(self, node: str) -> None:
        """Cut what others send to the node; what it sends arrives."""
        self.set_links([(other, node) for other in self.ids if other != node], DOWN)

    def mute(self, node: str) -> None:
        """The node hears everybody and is not heard."""
        self.set_links([(node, other) for other in self.ids if other != node], DOWN)

    def split(self, *groups: Sequence[str]) -> None:
        """Cut every link between the groups."""
        for number, group in enumerate(groups):
            for other in groups[number + 1 :]:
                self.set_links(both_ways(group, other), DOWN)

    def heal(self) -> None:
        self.set_links(both_ways(self.ids, self.ids), GOOD)


@asynccontextmanager
async def started(cluster: FaultCluster) -> AsyncIterator[FaultCluster]:
    """The cluster's first nodes, ready; ended at the end."""
    try:
        cluster.start(*cluster.first_ids)
        await asyncio.to_thread(cluster.wait_ready, *cluster.first_ids)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.close)


@asynccontextmanager
async def relayed(folder: Path, nodes: int = 3) -> AsyncIterator[FaultCluster]:
    """A started and ready cluster behind relays, ended at the end."""
    network = RelayNetwork([f"n{number}" for number in range(1, nodes + 1)])
    await network.open()
    try:
        async with started(FaultCluster(folder, network)) as cluster:
            yield cluster
    finally:
        await network.close()
