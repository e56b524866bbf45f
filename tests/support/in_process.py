"""One node in the test's own process, called through its ASGI application: no port, no other process."""

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.routing import BaseRoute

from app.main import build_app
from app.middleware import HttpMiddleware
from app.node.broker import Broker
from app.settings.file import parse
from tests.support.event_loop import until


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@dataclass(frozen=True)
class InProcess:
    """client: raises nothing; an exception in the application is an answer with status 500."""

    broker: Broker
    app: HttpMiddleware
    client: httpx.AsyncClient

    @property
    def framework(self) -> FastAPI:
        inner = self.app._inner
        assert isinstance(inner, FastAPI)
        return inner

    @property
    def routes(self) -> list[BaseRoute]:
        return list(self.framework.state.routes)


@asynccontextmanager
async def node_in_process(folder: Path, **sections: Mapping[str, Any]) -> AsyncIterator[InProcess]:
    """Start a node alone, wait until it leads `default`, and stop it at the end."""
    node = {"id": "n1", "listen": free_address(), "peer_listen": free_address(), "data": str(folder / "n1")}
    settings = parse({"cluster": {"id": "alone"}, "nodes": [node], **sections}, "n1")
    broker = Broker(settings)
    await broker.start()
    try:
        app = build_app(settings, broker).asgi
        assert isinstance(app, HttpMiddleware)
        await until(lambda: broker.metadata.is_current and broker.lookup.find("default").leads)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
            yield InProcess(broker, app, client)
    finally:
        await broker.stop()
