"""Proofs of identity for the connections at a node's peer port and HA port."""

from collections.abc import Callable
from dataclasses import dataclass

from app.node.descriptors import ha_room_size, peer_room_size
from app.node.links.credentials import load_link_security
from app.node.links.handshake import Identity, Purpose
from app.node.links.links import Links
from app.settings.model import Settings


@dataclass(frozen=True)
class NodeLinks:
    """peer: between nodes. ha: of masters and slaves."""

    peer: Links
    ha: Links


def load_links(settings: Settings, host_of: Callable[[str], str | None]) -> NodeLinks:
    """Read the credentials of the settings. host_of(node): as load_link_security. Raises ConfigError."""
    security, cluster_id, node_id = (
        load_link_security(settings.security, host_of),
        settings.cluster_id,
        settings.node.id,
    )
    return NodeLinks(
        peer=Links(Identity(cluster_id, node_id, Purpose.PEER), security, peer_room_size()),
        ha=Links(Identity(cluster_id, node_id, Purpose.HA), security, ha_room_size()),
    )
