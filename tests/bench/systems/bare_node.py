"""A member of the barest quorum: what this machine permits, without a log, checks, terms or reads.

    python -m tests.bench.systems.bare_node PORT FILE [PEER_PORT PEER_PORT]

With two peers, a leader: it answers each HTTP request on PORT when two of three members have synced the body.
The bodies that arrive during a sync are written, sent and synced together. Without peers, a follower. The end
of a request is found by the length of the first one of its connection: all requests are of one length.
"""

import asyncio
import contextlib
import os
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import uvloop

from tests.bench.systems.peers import running_servers

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
FRAME = struct.Struct("<QQ")  # number of the group, bytes that follow
ACKNOWLEDGEMENT = struct.Struct("<Q")  # number of the last group that is synced
MAX_BUFFERS = 1024  # of one system call


class File:
    """Appends to a file, and syncs it in a thread, one sync at a time."""

    def __init__(self, path: str, synced: Callable[[int], None]) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._thread = ThreadPoolExecutor(1)
        self._synced = synced
        self._written = 0
        self.is_syncing = False

    def append(self, group: int, parts: list[bytes]) -> None:
        for at in range(0, len(parts), MAX_BUFFERS):
            some = parts[at : at + MAX_BUFFERS]
            if os.writev(self._file, some) != sum(map(len, some)):
                raise OSError("the disk took a part of a write")
        self._written = group
        if not self.is_syncing:
            self._sync()

    def _sync(self) -> None:
        self.is_syncing, group = True, self._written
        loop = asyncio.get_running_loop()
        done = loop.run_in_executor(self._thread, os.fdatasync, self._file)
        done.add_done_callback(lambda _: self._done(group))

    def _done(self, group: int) -> None:
        self.is_syncing = False
        if self._written > group:
            self._sync()
        self._synced(group)


class Follower(asyncio.Protocol):
    """One connection of the leader."""

    def __init__(self, path: str) -> None:
        self._file = File(path, self._acknowledge)
        self._parts: list[bytes] = []
        self._size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        while self._size >= FRAME.size:
            if len(self._parts[0]) < FRAME.size:
                self._parts = [b"".join(self._parts)]
            group, size = FRAME.unpack_from(self._parts[0])
            rest = self._size - FRAME.size - size
            if rest < 0:
                return
            last = self._parts[-1]
            self._parts[0] = self._parts[0][FRAME.size :]
            if rest:
                self._parts[-1] = self._parts[-1][:-rest]
            self._file.append(group, self._parts)
            self._parts, self._size = [last[-rest:]] if rest else [], rest

    def _acknowledge(self, group: int) -> None:
        self._transport.write(ACKNOWLEDGEMENT.pack(group))


class Peer(asyncio.Protocol):
    """The leader's connection to a follower. synced: the last group that the follower has synced."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.synced = 0
        self._changed = changed

    def data_received(self, data: bytes) -> None:
        (self.synced,) = ACKNOWLEDGEMENT.unpack_from(data, len(data) - ACKNOWLEDGEMENT.size)
        self._changed()


class Leader:
    """Groups of requests, each answered when two of three members have synced it."""

    def __init__(self, path: str) -> None:
        self._file = File(path, self._own_synced)
        self._own = self._group = 0
        self._peers: list[tuple[asyncio.Transport, Peer]] = []
        self._arrived: list[tuple[asyncio.Transport, list[bytes]]] = []
        self._open: deque[tuple[int, list[asyncio.Transport]]] = deque()
        self._is_planned = False

    async def connect(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        self._peers.append(await loop.create_connection(lambda: Peer(self._commit), "127.0.0.1", port))

    def take(self, client: asyncio.Transport, body: list[bytes]) -> None:
        self._arrived.append((client, body))
        if not self._is_planned and not self._file.is_syncing:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_planned = False
        if self._file.is_syncing or not self._arrived:
            return
        arrived, self._arrived = self._arrived, []
        self._group += 1
        bodies = [part for _, body in arrived for part in body]
        frame = [FRAME.pack(self._group, sum(map(len, bodies))), *bodies]
        for transport, _ in self._peers:
            transport.writelines(frame)
        self._open.append((self._group, [client for client, _ in arrived]))
        self._file.append(self._group, bodies)

    def _own_synced(self, group: int) -> None:
        self._own = group
        self._commit()
        self._flush()

    def _commit(self) -> None:
        committed = sorted([self._own, *(peer.synced for _, peer in self._peers)])[1]
        while self._open and self._open[0][0] <= committed:
            for client in self._open.popleft()[1]:
                client.write(ANSWER)


class Client(asyncio.Protocol):
    """One HTTP connection of a load generator."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._parts: list[bytes] = []
        self._size = self._head = self._request = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._request:
            self._head = data.index(b"\r\n\r\n") + 4
            lines = data[: self._head].lower().split(b"\r\n")
            length = next(line for line in lines if line.startswith(b"content-length:"))
            self._request = self._head + int(length.partition(b":")[2])
        self._parts.append(data if self._parts else data[self._head :])
        self._size += len(data)
        if self._size >= self._request:
            self._leader.take(self._transport, self._parts)
            self._parts, self._size = [], 0


async def serve(port: int, path: str, peers: list[int]) -> None:
    loop = asyncio.get_running_loop()
    if peers:
        leader = Leader(path)
        for peer in peers:
            await leader.connect(peer)
        server = await loop.create_server(lambda: Client(leader), "127.0.0.1", port, backlog=1024)
    else:
        server = await loop.create_server(lambda: Follower(path), "127.0.0.1", port)
    await server.serve_forever()


@contextlib.contextmanager
def running_bare_quorum(port: int) -> Iterator[tuple[str, list[int]]]:
    """Run three members on `port` and the next two; give the leader's URL, and the pids, its own first."""
    ports = [port, port + 1, port + 2]
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        commands = [
            [sys.executable, "-m", "tests.bench.systems.bare_node", str(each), f"{folder}/{each}"]
            for each in ports
        ]
        commands[0] += map(str, ports[1:])
        with (
            running_servers(commands[1:], ports[1:]) as followers,
            running_servers(commands[:1], [port]) as leader,
        ):
            yield f"http://127.0.0.1:{port}/", leader + followers


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3:]]))
