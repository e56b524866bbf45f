"""Simulated network: frames are really encoded, and may be late, lost, doubled, overtaken or cut off."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.node.network.wire import decode, encode
from tests.simulation.world.world import Life, World

MAX_DELAY_FACTOR = 50  # of a frame that the network holds back
SLOW_DELAY_US = (20_000, 400_000)  # of a frame on a slow link
SLOW_LOSS = 0.1
LINE_LENGTH = 180  # of the trace
KEPT_FRAMES = 200  # of one link that a cut keeps
LATE_US = (0, 3_000_000)  # after the reconnect, until a kept frame arrives

Link = tuple[str, str]  # source, target: one way
Receive = Callable[[str, int, Any], None]


@dataclass(frozen=True, kw_only=True)
class LinkFaults:
    """Chances are of one frame, between 0 and 1. Delays are microseconds."""

    min_delay_us: int = 100
    max_delay_us: int = 1_000
    loss: float = 0.0
    duplication: float = 0.0
    holding: float = 0.0  # held back long enough to be overtaken by many


class Network:
    """Carries frames between nodes. observe(source, target, message): sees every message that is sent."""

    def __init__(
        self,
        world: World,
        faults: LinkFaults,
        observe: Callable[[str, str, Any], None],
        observe_late: Callable[[], None] = lambda: None,
    ) -> None:
        self.faults = faults
        self.sent = self.lost = 0
        self._observe_late = observe_late
        self._world = world
        self._observe = observe
        self._cuts: dict[Link, int] = {}  # how many faults cut the link now
        self._slow: dict[Link, int] = {}
        self._kept: dict[Link, deque[bytes]] = {}  # frames of links whose cut keeps them
        self._late_until_us: dict[Link, int] = {}  # by then the frames that a cut has kept have arrived
        self._inboxes: dict[str, tuple[Life, Receive]] = {}

    def attach(self, node: str, life: Life, receive: Receive) -> None:
        """From now on frames for `node` reach receive(source, log_id, message)."""
        self._inboxes[node] = (life, receive)

    def cut(self, links: Iterable[Link], *, keeps: bool = False) -> None:
        """Cut the links. keeps: the last frames on each arrive some time after the cut has ended."""
        for link in links:
            self._cuts[link] = self._cuts.get(link, 0) + 1
            if keeps:
                self._kept.setdefault(link, deque(maxlen=KEPT_FRAMES))

    def heal_links(self, links: Iterable[Link]) -> None:
        """End one cut of each of the links."""
        for link in links:
            _decrease(self._cuts, link)
            if link not in self._cuts:
                self._deliver_late(link)

    def is_clear(self, source: str, target: str) -> bool:
        """Return whether the link is neither cut nor slow."""
        return (source, target) not in self._cuts and (source, target) not in self._slow

    def is_late(self, source: str, target: str) -> bool:
        """Return whether frames from before the end of a cut may still arrive: an old heartbeat of a leader
        that is gone postpones the next election."""
        return self._late_until_us.get((source, target), 0) > self._world.now_us

    def slow_down(self, links: Iterable[Link]) -> None:
        for link in links:
            self._slow[link] = self._slow.get(link, 0) + 1

    def speed_up(self, links: Iterable[Link]) -> None:
        for link in links:
            _decrease(self._slow, link)

    def heal(self) -> None:
        """End every cut, every slow link, and what is wrong with all of them."""
        self._cuts.clear()
        self._slow.clear()
        for link in list(self._kept):
            self._deliver_late(link)
        self.faults = LinkFaults()

    def send(self, source: str, target: str, log_id: int, message: Any) -> None:
        """Encode at once, deliver later, perhaps; what arrives at a cut link is lost."""
        faults, world = self.faults, self._world
        chance = world.random.random
        self._observe(source, target, message)
        frame = b"".join(encode(log_id, message))
        slow = bool(self._slow) and (source, target) in self._slow
        for _ in range(2 if chance() < faults.duplication else 1):
            self.sent += 1
            if chance() < faults.loss or (slow and chance() < SLOW_LOSS):
                self.lost += 1
                continue
            delay_us = faults.min_delay_us + int(chance() * (faults.max_delay_us - faults.min_delay_us))
            if slow:
                delay_us += world.between(SLOW_DELAY_US)
            elif chance() < faults.holding:
                delay_us *= 2 + int(chance() * (MAX_DELAY_FACTOR - 1))
            world.after(delay_us, partial(self._deliver, source, target, frame))

    def _deliver_late(self, link: Link) -> None:
        """Let the frames that a cut has kept arrive, among those that are sent from now on."""
        for frame in self._kept.pop(link, ()):
            self._late_until_us[link] = self._world.now_us + LATE_US[1]
            self._observe_late()
            self._world.after(self._world.between(LATE_US), partial(self._deliver, *link, frame))

    def _deliver(self, source: str, target: str, frame: bytes) -> None:
        inbox = self._inboxes.get(target)
        if self._cuts and (source, target) in self._cuts:
            if (kept := self._kept.get((source, target))) is not None:
                kept.append(frame)
            self.lost += 1
            return
        if inbox is None or not inbox[0].alive:
            self.lost += 1
            return
        world, life = self._world, inbox[0]
        stalled_us = life.stall.until_us - world.now_us
        if stalled_us > 0:  # it waits in the socket
            world.after(stalled_us, partial(self._deliver, source, target, frame))
            return
        world.note_frame(frame)
        log_id, message = decode(memoryview(frame))
        if world.lines is not None:
            line = f"{world.now_us / 1e6:11.6f} {source}>{target} {message!r}"
            world.lines.append(line[:LINE_LENGTH])
        inbox[1](source, log_id, message)


def _decrease(counts: dict[Link, int], link: Link) -> None:
    count = counts.get(link, 0)
    if count > 1:
        counts[link] = count - 1
    else:
        counts.pop(link, None)


class NodeTransport:
    """app.log.driver_interfaces.Transport of one incarnation of a node."""

    def __init__(self, network: Network, node: str, life: Life) -> None:
        self._network = network
        self._node = node
        self._life = life

    def send(self, target: str, log_id: int, message: Any) -> None:
        if self._life.alive:
            self._network.send(self._node, target, log_id, message)
