"""REST service of a node over a fake driver, with or without the lane of appends."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI

from app.api.access.rules import authorize
from app.api.access.tokens import Tokens
from app.api.append.groups import AppendGroups
from app.api.append.handler import AppendHandler
from app.api.append.lane import AppendLane
from app.api.append.plain_route import PlainRoute
from app.api.http import problems
from app.api.http.in_flight_limit import InFlightLimit
from app.errors import IndexMismatch, LogNotFound, QuorumTimeout
from app.listener.connection import Connection
from app.listener.listener import Listener
from app.log.contract import AppendRequest, AppendResult, Durability
from app.middleware import HttpMiddleware
from app.node.replica.open_appends import OpenAppend
from app.node.tasks import TaskSupervisor
from app.settings.model import HttpSettings, Limits
from app.telemetry import Meter
from storage.format.records import RecordColumns
from tests.support.connections import FakeTransport, connect

HTTP = HttpSettings(body_timeout_ms=100, max_head_bytes=4096)
LIMITS = Limits(max_request_bytes=2048, max_record_bytes=1024)

Row = tuple[Any, ...]  # value, key, timestamp and headers of a record, and the conditions of its append


class FakeDriver:
    """A leader's driver that answers in the next turns of the loop, some appends with a refusal."""

    term, committed_index, leader_id = 3, 41, "n1"
    state = SimpleNamespace(schemas=SimpleNamespace(newest=None))

    def __init__(self) -> None:
        self.stored: list[list[bytes | None]] = []
        self.rows: list[Row] = []
        self.counts: list[int] = []  # of clients' appends in each that has entered
        self.next_index = 10

    def append(self, request: AppendRequest, done: Callable[[Any], None]) -> OpenAppend:
        append = OpenAppend(request, done, 0)
        asyncio.get_running_loop().call_soon(self.enter, append)
        return append

    def grow(self, append: OpenAppend, _size_bytes: int, _now_ms: int) -> bool:
        append.request.appends += append.is_queued
        return append.is_queued

    def enter(self, append: OpenAppend) -> None:
        append.is_queued = False
        request = append.request
        records = request.records
        assert isinstance(records, RecordColumns)
        values = records.values
        first, last = self.next_index, self.next_index + len(values) - 1
        result: Any = AppendResult(
            first, last, len(values), 3, 0, 100, 7, 41, 42, "n1", request.acks, Durability.FSYNC
        )
        if b"refused" in values:
            result = IndexMismatch(1, 2)
        else:
            given = (request.fencing_token, request.match_term, request.idempotency_key, request.producer)
            more = zip(records.keys, records.timestamps_ms, map(repr, records.headers), strict=True)
            self.rows += [(value, *row, given) for value, row in zip(values, more, strict=True)]
            self.stored.append(list(values))
            self.counts.append(request.appends)
            self.next_index = last + 1
        if b"unknown" in values:
            result = QuorumTimeout(first)
        asyncio.get_running_loop().call_soon(append.done, result)


class Node:
    """The REST service of a node of one log, over fake disks and peers."""

    def __init__(self, *, lane: bool, tokens: bool = False) -> None:
        self.driver = FakeDriver()
        hosted = SimpleNamespace(
            name="default", leads=True, repair=None, leader_id="n1", driver=self.driver, serving=self.driver
        )

        def find(name: str) -> Any:
            if name != "default":
                raise LogNotFound(name)
            return hosted

        broker: Any = SimpleNamespace(
            settings=SimpleNamespace(limits=LIMITS, http=HTTP),
            node=SimpleNamespace(id="n1", url="http://n1"),
            nodes=SimpleNamespace(find=lambda id: SimpleNamespace(id=id, url=f"http://{id}")),
            clock=SimpleNamespace(monotonic_ms=lambda: 0),
            meter=Meter(),
            metadata=SimpleNamespace(hosted=None),
            lookup=SimpleNamespace(find=find),
            tasks=TaskSupervisor(lambda what, error: None),
        )
        self.broker = broker
        self.hosted = hosted
        self.handler = AppendHandler(broker)
        self.groups = AppendGroups(self.handler)
        self.tokens = known = Tokens(
            Path("tokens") if tokens else None, "writer write\nreader read\n" if tokens else ""
        )
        app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
        app.state.broker = broker
        router = PlainRoute(self.handler, LIMITS, HTTP.body_timeout_ms).router()
        app.include_router(router, dependencies=[Depends(authorize)])
        app.state.routes = router.routes
        problems.install(app)
        asgi = HttpMiddleware(app, known, broker.meter, InFlightLimit(100, 1 << 20), {}, lambda _: None)
        self.lane = AppendLane(self.groups, known, LIMITS, HTTP.body_timeout_ms) if lane else None
        self.listener = Listener(HTTP, 100, broker.meter, self.lane)
        self.config = uvicorn.Config(
            asgi,
            http=partial(Connection, self.listener),  # type: ignore[arg-type]
            lifespan="off",
            log_config=None,
            access_log=False,
        )
        self.config.load()

    def connect(self) -> tuple[Any, FakeTransport]:
        return connect(self.listener, self.config)

    async def exchange(self, pieces: list[bytes], *, then_leave: bool = False) -> bytes:
        """Return what a client gets that sends pieces, and then waits or disconnects."""
        connection, transport = self.connect()
        for piece in pieces:
            for _ in range(200):
                if not transport.paused:
                    break
                await asyncio.sleep(0)
            if transport.closing:
                break
            connection.data_received(piece)
        if not then_leave:
            quiet = 0
            before = -1
            while quiet < 60:
                quiet = quiet + 1 if len(transport.sent) == before else 0
                before = len(transport.sent)
                await asyncio.sleep(0)
        transport.close()
        connection.connection_lost(None)
        for _ in range(60):
            await asyncio.sleep(0)
        return bytes(transport.sent)
