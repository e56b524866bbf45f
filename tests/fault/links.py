"""Faults of a network between nodes, whatever its implementation: one link for each ordered pair of nodes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """One direction between two nodes. The shares (0 to 1) count packets; delays are milliseconds."""

    up: bool = True  # False: everything is lost without a word
    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # of packets that later ones overtake
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    bytes_per_s: int = 0  # 0: as fast as it goes
    closed_port: int = 0  # TCP packets to this port are lost, others pass; 0: none. Switch only


GOOD = Link()
DOWN = Link(up=False)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The address on which a node listens, and the address that another node uses for it."""

    listen: str
    url: str
    peer_listen: str
    peer_address: str


class Network(Protocol):
    """The network of one cluster. `name` appears in reports."""

    name: str
    ids: Sequence[str]

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def addresses(self, viewer: str, node: str) -> Addresses:
        """How `viewer` reaches `node`; of a node itself: where it listens."""
        ...

    def client_url(self, node: str) -> str:
        """Return the address of a node for clients of the test, independent of the links."""
        ...

    def inside(self, node: str, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` where the node lives."""
        ...

    def set(self, links: Mapping[tuple[str, str], Link]) -> None:
        """Change links by (source, target), from now on; others stay as they are."""
        ...


def both_ways(one: Iterable[str], other: Iterable[str]) -> list[tuple[str, str]]:
    """Every ordered pair between two groups of nodes."""
    others = list(other)
    return [pair for a in one for b in others if a != b for pair in ((a, b), (b, a))]
