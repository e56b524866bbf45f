"""Connections of the REST listener without sockets: a transport that collects what is written."""

import asyncio
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from app.listener.connection import Connection
from app.listener.listener import Listener


class FakeTransport(asyncio.Transport):
    """Collects what is written. A write after the end is an error, as in uvloop."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closing = self.paused = False

    def write(self, data: Any) -> None:
        if self.closing:
            raise RuntimeError("the handler is closed")
        self.sent += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name.endswith("name") else default

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


def connect(listener: Listener, config: uvicorn.Config) -> tuple[Any, FakeTransport]:
    """Return a new connection of the listener, and its transport."""
    transport = FakeTransport()
    connection: Any = Connection(
        listener, config=config, server_state=ServerState(), app_state={}, _loop=asyncio.get_running_loop()
    )
    connection.connection_made(transport)
    return connection, transport
