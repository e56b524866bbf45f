"""An Ethernet switch in user space: it loses, doubles, delays, reorders and slows what passes, link by link.

It needs a network namespace with one interface `port-NODE` for each node, and CAP_NET_RAW; no netem, no
packet filter. It runs as a process of its own, reads settings as JSON lines from standard input, and answers
each with `ok` once it holds:

    {"n1 n2": {"up": true, "loss": 0.1, "delay_ms": 50.0, ...}}      fields of tests.fault.links.Link

Frames come and go with their offload header (PACKET_VNET_HDR), so that checksums and large segments are the
kernel's business; a frame counts as one packet, as TCP's segmentation made it.
"""

import heapq
import json
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.fault.links import GOOD, Link

ETH_P_IP = 0x0800
SOL_PACKET, PACKET_VNET_HDR, SO_RCVBUFFORCE = 263, 15, 33
VNET_HEADER_BYTES = 10
FRAME_BYTES = 1 << 17
BUFFER_BYTES = 16 << 20
QUEUE_BYTES = 1 << 18  # of one slow direction; past it, frames are lost
TURN_FRAMES = 64
REORDER_HOLD_S = 0.02
MAC_PREFIX = "02:00:00:00:00:"  # and the number of the node

IP_AT = VNET_HEADER_BYTES + 14  # behind the Ethernet header
TCP = 6

assert struct.calcsize("@BBHHHH") == VNET_HEADER_BYTES


def mac_of(number: int) -> str:
    return f"{MAC_PREFIX}{number:02x}"


def target_port(frame: bytes) -> int | None:
    """The port that a TCP packet goes to, None for any other packet."""
    if len(frame) < IP_AT + 20 or frame[IP_AT + 9] != TCP:
        return None
    at = IP_AT + 4 * (frame[IP_AT] & 15) + 2
    return int.from_bytes(frame[at : at + 2])


@dataclass(slots=True)
class Line:
    """One direction of a link and what waits on it."""

    link: Link = GOOD
    free_at: float = 0.0  # when a slow link has sent what it was given
    waiting_bytes: int = 0


@dataclass
class Switch:
    """ports: node -> raw socket on its port, in the order of the nodes' numbers from 1."""

    ports: Mapping[str, socket.socket]
    chance: random.Random
    lines: dict[tuple[str, str], Line] = field(default_factory=dict)
    due: list[tuple[float, int, str, str, bytes]] = field(default_factory=list)  # a heap by time
    sequence: int = 0

    def __post_init__(self) -> None:
        self.names = dict(enumerate(self.ports, start=1))
        self.lines = {(a, b): Line() for a in self.ports for b in self.ports if a != b}

    def run(self) -> None:
        """Pass frames on until standard input ends."""
        poll = select.epoll()
        by_descriptor = {door.fileno(): node for node, door in self.ports.items()}
        for descriptor in (*by_descriptor, sys.stdin.fileno()):
            poll.register(descriptor, select.EPOLLIN)
        while True:
            timeout = max(0.0, self.due[0][0] - time.monotonic()) if self.due else -1
            for descriptor, _ in poll.poll(timeout):
                if descriptor == sys.stdin.fileno():
                    if not self.obey(sys.stdin.readline()):
                        return
                else:
                    self.receive(by_descriptor[descriptor])
            self.send_due()

    def obey(self, line: str) -> bool:
        for pair, link in json.loads(line).items() if line else ():
            source, target = pair.split()
            self.lines[source, target].link = Link(**link)
        if line:
            sys.stdout.write("ok\n")
            sys.stdout.flush()
        return bool(line)

    def receive(self, source: str) -> None:
        door = self.ports[source]
        for _ in range(TURN_FRAMES):
            try:
                frame = door.recv(FRAME_BYTES)
            except BlockingIOError:
                return
            target = self.names.get(frame[VNET_HEADER_BYTES + 5])  # the last byte of the target's MAC
            if target is not None and target != source:
                self.pass_on(source, target, frame)

    def pass_on(self, source: str, target: str, frame: bytes) -> None:
        line = self.lines[source, target]
        link = line.link
        if link == GOOD:
            self.send(target, frame)
            return
        if not link.up or self.chance.random() < link.loss:
            return
        if link.closed_port and target_port(frame) == link.closed_port:
            return
        self.schedule(source, target, line, frame)
        if self.chance.random() < link.duplicate:
            self.schedule(source, target, line, frame)

    def schedule(self, source: str, target: str, line: Line, frame: bytes) -> None:
        link, now = line.link, time.monotonic()
        moment = now + (link.delay_ms + self.chance.random() * link.jitter_ms) / 1000
        if self.chance.random() < link.reorder:
            moment += REORDER_HOLD_S
        if link.bytes_per_s:
            if line.waiting_bytes + len(frame) > QUEUE_BYTES:
                return
            line.free_at = max(line.free_at, now) + len(frame) / link.bytes_per_s
            moment += line.free_at - now
        line.waiting_bytes += len(frame)
        self.sequence += 1
        heapq.heappush(self.due, (moment, self.sequence, source, target, frame))

    def send_due(self) -> None:
        now = time.monotonic()
        while self.due and self.due[0][0] <= now:
            _, _, source, target, frame = heapq.heappop(self.due)
            line = self.lines[source, target]
            line.waiting_bytes -= len(frame)
            if line.link.up:
                self.send(target, frame)

    def send(self, target: str, frame: bytes) -> None:
        try:
            self.ports[target].send(frame)
        except (BlockingIOError, OSError):
            return  # a full queue loses frames, as a switch does


def open_port(interface: str) -> socket.socket:
    door = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    door.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    door.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
    door.setblocking(False)
    door.bind((interface, ETH_P_IP))
    return door


def main() -> None:
    seed, *nodes = sys.argv[1:]
    ports = {node: open_port(f"port-{node}") for node in nodes}
    sys.stdout.write("ok\n")
    sys.stdout.flush()
    Switch(ports, random.Random(int(seed))).run()


if __name__ == "__main__":
    main()
