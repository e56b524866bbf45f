"""Simulated network: frames are really encoded, and may be late, lost, doubled, overtaken or cut off."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from app.raft.wire import decode, encode
from tests.simulation.world import Life, World

MAX_DELAY_FACTOR = 50  # of a frame that the network holds back


@dataclass(frozen=True, kw_only=True)
class LinkFaults:
    """Chances are of one frame, between 0 and 1. Delays are microseconds."""

    min_delay_us: int = 100
    max_delay_us: int = 1_000
    loss: float = 0.0
    duplication: float = 0.0
    holding: float = 0.0  # held back long enough to be overtaken by many


class Network:
    """Carries frames between nodes. A cut is one-way: (source, target)."""

    def __init__(self, world: World, faults: LinkFaults) -> None:
        self.faults = faults
        self.sent = self.lost = 0
        self._world = world
        self._cuts: dict[tuple[str, str], None] = {}  # a set that keeps its order
        self._inboxes: dict[str, tuple[Life, Callable[[str, int, Any], None]]] = {}

    def attach(self, node: str, life: Life, receive: Callable[[str, int, Any], None]) -> None:
        """From now on frames for `node` reach receive(source, log_id, message)."""
        self._inboxes[node] = (life, receive)

    def cut(self, source: str, target: str) -> None:
        self._cuts[source, target] = None

    def mend(self) -> None:
        self._cuts.clear()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def send(self, source: str, target: str, log_id: int, message: Any) -> None:
        """Encode at once, deliver later, perhaps; what arrives at a cut link is lost."""
        faults, chance = self.faults, self._world.random
        frame = b"".join(encode(log_id, message))
        copies = 2 if chance.random() < faults.duplication else 1
        for _ in range(copies):
            self.sent += 1
            if chance.random() < faults.loss:
                self.lost += 1
                continue
            delay_us = chance.randint(faults.min_delay_us, faults.max_delay_us)
            if chance.random() < faults.holding:
                delay_us *= chance.randint(2, MAX_DELAY_FACTOR)
            self._world.after(delay_us, lambda: self._deliver(source, target, frame))

    def _deliver(self, source: str, target: str, frame: bytes) -> None:
        inbox = self._inboxes.get(target)
        if inbox is None or not inbox[0].alive or self.is_cut(source, target):
            self.lost += 1
            return
        self._world.note(f"{source}>{target} {crc32(frame)}")
        log_id, message = decode(memoryview(frame))
        inbox[1](source, log_id, message)


class NodeTransport:
    """app.replication.Transport of one life of a node."""

    def __init__(self, network: Network, node: str, life: Life) -> None:
        self._network = network
        self._node = node
        self._life = life

    def send(self, target: str, log_id: int, message: Any) -> None:
        if self._life.alive:
            self._network.send(self._node, target, log_id, message)
