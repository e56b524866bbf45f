"""Event streams at the end of a log that show the same: one is read, and its events go to all clients.

The task of a client takes several times as long for an event as the system takes to send it. So the tasks of
clients wait while a shared stream writes to their connections. A client that does not read leaves it: its own
task sends what it missed, once it reads, and the client follows again.
"""

import asyncio
from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from app.api.read.events import EventStream, Position
from app.api.read.outlet import Write, as_chunk
from app.api.read.tail_pace import EVENT_S, WOKEN_AT_ONCE, TailPace
from app.futures import settle


class _Following(NamedTuple):
    """One client's connection. left: settled when the client continues by itself."""

    write: Write
    left: asyncio.Future[None]


class SharedStream:
    """One stream for many clients. Owned by the event loop.

    Invariant: the position of a client is that of the stream, or one after it where the client waits until
    the stream arrives there. A client receives what follows its position, in order and once.
    """

    def __init__(self, stream: EventStream, ended: Callable[[], object]) -> None:
        """ended(): called once the stream takes no more clients."""
        self.stream = stream
        self._ended = ended
        self._clients: dict[EventStream, _Following] = {}

    async def serve(self, client: EventStream, write: Write) -> None:
        """Write to the client until it does not read, or the stream ends. Raises what ended the stream."""
        left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._clients[client] = _Following(write, left)
        try:
            await left
        finally:
            self._clients.pop(client, None)

    async def run(self) -> None:
        """Read and write until no client is left, or the stream is over."""
        stream = self.stream
        before, failure = stream.position, None
        try:
            while self._clients and not stream.is_over:
                before = stream.position
                await self._write(before, await stream.next_events())
        except Exception as error:  # the task of each client reports it
            failure = error
        finally:
            self._ended()
            for client, following in self._clients.items():
                settle(following.left, None, failure if client.position == before else None)

    async def _write(self, before: Position, events: list[bytes]) -> None:
        """Write the events after the position `before` to the clients there. Other tasks run meanwhile."""
        position, chunks = self.stream.position, b"".join(map(as_chunk, events))
        is_ping = position == before
        clients = list(self._clients.items())
        self.stream.pace.put_off(EVENT_S * (len(clients) - 1))
        for number, (client, following) in enumerate(clients, 1):
            if client not in self._clients:  # it has disconnected meanwhile
                continue
            is_here = client.position == before
            if not is_here and not is_ping and client.position.next_index >= position.next_index:
                continue
            if (is_here or is_ping) and (not chunks or following.write(chunks)):
                client.position = position if is_here else client.position
            else:
                del self._clients[client]
                settle(following.left, None)
            if number % WOKEN_AT_ONCE == 0:
                await asyncio.sleep(0)


_STREAMS: Final[WeakKeyDictionary[TailPace, dict[Hashable, SharedStream]]] = WeakKeyDictionary()


async def follow(client: EventStream, write: Write) -> None:
    """Let the shared stream at the client's position write to it, while it reads. Return at once if there can
    be none, or if it is after the client. Raises what ended the stream."""
    if not client.may_share:
        return
    streams = _STREAMS.setdefault(client.pace, {})
    shared = streams.get(client.content)
    if shared is None:
        reader = client.reader
        ended = partial(streams.pop, client.content)
        shared = streams[client.content] = SharedStream(client.twin(), ended)
        reader.broker.tasks.once(f"shared-stream {reader.hosted.name}", shared.run())
    if shared.stream.position.next_index <= client.position.next_index:
        await shared.serve(client, write)
