"""Interface of the node that the transport between nodes uses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from app.node.network.group_claims import GroupClaim
from app.settings.model import Settings


@dataclass(frozen=True, kw_only=True)
class PeerIdentity:
    """This node, as its transport knows it. listen: host:port to listen at. address: host:port at which the
    other nodes reach this one."""

    cluster_id: str
    node_id: str
    listen: str
    address: str

    @classmethod
    def of(cls, settings: Settings) -> "PeerIdentity":
        """Return what the settings of this node define."""
        return cls(
            cluster_id=settings.cluster_id,
            node_id=settings.node.id,
            listen=settings.node.peer_listen,
            address=settings.node.peer_address,
        )


class PeerHost(Protocol):
    """Every method is called on the event loop."""

    def deliver(self, source: str, log_id: int, message: Any) -> None:
        """Take a message of a peer."""
        ...

    def peer_lost(self, peer_id: str) -> None:
        """The last connection of a peer to this node has closed."""
        ...

    def connection_lost(self, peer_id: str) -> None:
        """A connection with a peer was lost, in any direction."""
        ...

    def is_member(self, peer_id: str) -> bool:
        """Return whether a peer is a member of any log here: only then is it called often."""
        ...

    def forget_peer(self, peer_id: str) -> bool:
        """A peer has not been a member for a long time, and cannot be reached. Return whether the transport
        may forget it too."""
        ...

    def claims(self) -> Mapping[str, GroupClaim]:
        """Return the groups of the logs of this node. The peers receive them."""
        ...

    def claimed(self, peer_id: str, claims: dict[str, GroupClaim]) -> None:
        """A peer has reported the groups of its logs."""
        ...

    def ha_address(self) -> str | None:
        """Return host:port where this node takes slaves; None: it takes none. The peers receive it."""
        ...
