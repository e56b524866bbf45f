"""Simulated TCP for HA cores: real bytes through the real codecs, in pieces, late, or gone with the line."""

from collections.abc import Callable, Iterable
from typing import Any

from app.ha.frames import (
    Decode,
    FrameSplitter,
    History,
    Preface,
    decode_classic,
    decode_from_master,
    decode_from_slave,
    decode_preface,
    decode_report,
    encode,
    encode_preface,
)
from app.ha.messages import INCOMING, OUTGOING, Closed, Connect, Disconnect, Drained, Opened
from tests.simulation.world.world import Life, World

Deliver = Callable[[str, Any], None]


def as_read(history: History | None) -> History | None:
    """Return the history that the other end reads in the preface."""
    found = decode_preface(memoryview(encode_preface(Preface(1, 1, history=history))))
    assert found is not None
    return found[0].history


class End:
    """One end of a connection: what it is called there, and what reads the bytes that arrive."""

    def __init__(self, host: "Host", key: str, reader: FrameSplitter) -> None:
        self.host = host
        self.life = host.life
        self.key = key
        self.reader = reader
        self.open = True
        self.has_lost = False  # bytes that it sent: nothing arrives after them
        self.last_us = 0  # when the last bytes arrive: those sent later arrive later
        self.peer: End


class Host:
    """One incarnation of a node on the network."""

    def __init__(self, network: "StreamNetwork", name: str, life: Life, deliver: Deliver) -> None:
        self.network = network
        self.name = name
        self.life = life
        self.deliver = deliver
        self.ends: dict[str, End] = {}

    def send(self, target: str, log_id: int, message: Any) -> None:
        """app.log.driver_interfaces.Transport, for connections and (reads) between nodes."""
        if not self.life.alive:
            return
        if not target.startswith((INCOMING, OUTGOING)):
            self.network.post(self.name, target, message)
        elif isinstance(message, Connect):
            self.network.connect(self, target, message)
        elif (end := self.ends.get(target)) is not None:
            if isinstance(message, Disconnect):
                self.network.close(end)
            else:
                self.network.carry(end, b"".join(encode(message)))


class StreamNetwork:
    """Nodes by address. A cut pair cannot connect, and what is sent between it hangs until the cut ends."""

    def __init__(self, world: World, *, classic: bool = False, max_delay_us: int = 2_000) -> None:
        """classic: frames of classic HA, else of AutoSwitch."""
        self.world = world
        self._at_slave: Decode = decode_classic if classic else decode_from_master
        self._at_master: Decode = decode_report if classic else decode_from_slave
        self.max_delay_us = max_delay_us
        self.hosts: dict[str, Host] = {}
        self.connections = 0
        self.cuts: dict[tuple[str, str], int | None] = {}  # lines, by how many faults they are cut

    def attach(self, name: str, life: Life, deliver: Deliver) -> Host:
        self.hosts[name] = host = Host(self, name, life, deliver)
        return host

    def is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self.cuts or (other, one) in self.cuts

    def cut(self, lines: Iterable[tuple[str, str]]) -> None:
        for line in lines:
            self.cuts[line] = (self.cuts.get(line) or 0) + 1

    def heal_lines(self, lines: Iterable[tuple[str, str]]) -> None:
        """End one cut of each of the lines."""
        for line in lines:
            left = (self.cuts.pop(line, None) or 1) - 1
            if left:
                self.cuts[line] = left

    def heal(self) -> None:
        self.cuts.clear()

    def _delay(self) -> int:
        return self.world.random.randint(50, self.max_delay_us)

    def post(self, source: str, target: str, message: Any) -> None:
        """A message between nodes, not of a connection: it may be lost."""

        def arrive() -> None:
            host = self.hosts.get(target)
            if host is not None and host.life.alive and not self.is_cut(source, target):
                host.deliver(source, message)

        self.world.after(self._delay(), arrive)

    def connect(self, host: Host, key: str, connect: Connect) -> None:
        def arrive() -> None:
            address = connect.address
            target = self.hosts.get(address)
            if target is None or not target.life.alive or self.is_cut(host.name, address):
                host.deliver(key, Closed("nobody there"))
                return
            self.connections += 1
            out = End(host, key, FrameSplitter(self._at_slave))
            into = End(target, f"{INCOMING}{self.connections}", FrameSplitter(self._at_master))
            out.peer, into.peer = into, out
            host.ends[key], target.ends[into.key] = out, into
            host.deliver(key, Opened())
            target.deliver(into.key, Opened(history=as_read(connect.history)))

        self.world.after(self._delay(), arrive, host.life)

    def carry(self, end: End, data: bytes) -> None:
        """The bytes arrive in order, in one piece or several; then there is room again."""
        chance = self.world.random
        place = chance.randrange(len(data) + 1) if chance.random() < 0.3 else len(data)
        for piece in (data[:place], data[place:]):
            if piece:
                self._in_order(end, lambda piece=piece: self._arrive(end, piece))  # type: ignore[misc]

        def room() -> None:
            if end.open and end.life.alive:
                end.host.deliver(end.key, Drained())

        self._in_order(end, room)

    def _in_order(self, end: End, action: Callable[[], None]) -> None:
        end.last_us = max(end.last_us, self.world.now_us + self._delay())
        self.world.after(end.last_us - self.world.now_us, action)

    def _arrive(self, end: End, piece: bytes) -> None:
        peer = end.peer
        if not peer.open or not peer.life.alive or end.has_lost:
            return
        if self.is_cut(end.host.name, peer.host.name):
            end.has_lost = True
            self.snap(end)
            return
        for frame in peer.reader.feed(piece):
            if peer.open:
                peer.host.deliver(peer.key, frame)

    def close(self, end: End) -> None:
        """This end is gone at once; the other hears of it later."""
        if end.open:
            end.open = False
            end.host.ends.pop(end.key, None)
            self._in_order(end, lambda: self._hang_up(end.peer))

    def _hang_up(self, end: End) -> None:
        if end.open and end.life.alive and not self.is_cut(end.host.name, end.peer.host.name):
            end.open = False
            end.host.ends.pop(end.key, None)
            end.host.deliver(end.key, Closed("hung up"))

    def snap(self, end: End) -> None:
        """The connection is dead: each end is notified, or (half-open) only its own timers notice."""
        for side in (end, end.peer):
            if side.open and side.life.alive and self.world.random.random() < 0.5:
                side.open = False
                side.host.ends.pop(side.key, None)
                self.world.after(self._delay(), lambda side=side: self._tell(side), side.life)  # type: ignore[misc]

    def _tell(self, end: End) -> None:
        end.host.deliver(end.key, Closed("the line is dead"))

    def crashed(self, name: str) -> None:
        """The process is gone; its peers hear a reset, or nothing after a power cut."""
        host = self.hosts.pop(name)
        for end in list(host.ends.values()):
            end.open = False
            if self.world.random.random() < 0.7:
                self.world.after(self._delay(), lambda end=end: self._hang_up(end.peer))  # type: ignore[misc]
