"""Addresses of all nodes: those of the configuration, and those in a log's membership records."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from app.log.state import Address
from app.settings.addresses import split_address
from app.settings.model import NodeSettings


class Directory:
    """Nodes by id. A node that only a log's records contain is learned from there (R-10)."""

    def __init__(self, configured: tuple[NodeSettings, ...]) -> None:
        self._nodes = {node.id: node for node in configured}
        self._configured = frozenset(self._nodes)

    def __iter__(self) -> Iterator[NodeSettings]:
        return iter(tuple(self._nodes.values()))

    def find(self, node_id: str | None) -> NodeSettings | None:
        """Return the node with that id; None for None and unknown ids."""
        return None if node_id is None else self._nodes.get(node_id)

    def host_of(self, node_id: str) -> str | None:
        """The host at which the other nodes reach a node; None for one that is not known."""
        node = self._nodes.get(node_id)
        return None if node is None else split_address(node.peer_address)[0]

    def learn(self, addresses: Mapping[str, Address]) -> list[NodeSettings]:
        """Add the nodes that are new; return them."""
        fresh = [
            NodeSettings(
                id=node_id,
                listen="",
                url=address.url,
                peer_listen="",
                peer_address=address.peer_address,
                data=Path(),
            )
            for node_id, address in addresses.items()
            if node_id not in self._nodes
        ]
        self._nodes.update({node.id: node for node in fresh})
        return fresh

    def forget(self, node_id: str) -> bool:
        """Forget a node that a log named; False for a node of the configuration, which stays."""
        if node_id in self._configured:
            return False
        self._nodes.pop(node_id, None)
        return True
