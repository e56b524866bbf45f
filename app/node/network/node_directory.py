"""Addresses of all nodes: those of the configuration, and those in a log's membership records."""

from collections.abc import Iterable, Iterator, Mapping
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

    def learn(
        self, named: Iterable[Mapping[str, Address]], by_former: Iterable[Mapping[str, Address]] = ()
    ) -> list[NodeSettings]:
        """Add the nodes that are new, and place those that have moved; return both.

        named: by each log of which this node is a member. A node may be removed and added again with another
        address; it has moved once no log names the known one. by_former: by logs that this node has left,
        which may be out of date: only for nodes that are not known otherwise. The configuration places its
        own nodes.
        """
        given: dict[str, list[Address]] = {}
        for addresses in named:
            for node_id, address in addresses.items():
                given.setdefault(node_id, []).append(address)
        for addresses in by_former:
            for node_id, address in addresses.items():
                if node_id not in self._nodes:
                    given.setdefault(node_id, [address])
        fresh = [
            _learned(node_id, found[0])
            for node_id, found in given.items()
            if node_id not in self._configured and self._address_of(node_id) not in found
        ]
        self._nodes.update({node.id: node for node in fresh})
        return fresh

    def _address_of(self, node_id: str) -> Address | None:
        node = self._nodes.get(node_id)
        return None if node is None else Address(node.url, node.peer_address)

    def forget(self, node_id: str) -> bool:
        """Forget a node that a log named; False for a node of the configuration, which stays."""
        if node_id in self._configured:
            return False
        self._nodes.pop(node_id, None)
        return True


def _learned(node_id: str, address: Address) -> NodeSettings:
    return NodeSettings(
        id=node_id,
        listen="",
        url=address.url,
        peer_listen="",
        peer_address=address.peer_address,
        data=Path(),
    )
