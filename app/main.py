"""The ASGI application of a node. Importing this module starts nothing."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Final, NamedTuple

from fastapi import Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from app.api.access.rules import authorize
from app.api.access.tokens import Tokens, is_open
from app.api.append import stream as append_stream
from app.api.append.appends_of_peers import AppendsOfPeers
from app.api.append.groups import AppendGroups
from app.api.append.handler import AppendHandler
from app.api.append.lane import AppendLane
from app.api.append.plain_route import PlainRoute
from app.api.http import openapi, problems
from app.api.http.dependencies import body_answer
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.messages import as_json
from app.api.http.problems import OPENAPI_PATH
from app.api.http.tracing import TracedApp, Tracer
from app.api.read.lane import PollLane
from app.api.routes import (
    block_digests,
    cluster,
    controller_settings,
    cursors,
    elect,
    ha_status,
    health,
    live_page,
    log_actions,
    logs,
    members,
    reads,
    receipts,
    replicas,
    tables,
)
from app.api.schemas import routes as schemas
from app.api.tables.known_jobs import KnownJobs
from app.api.tables.known_tables import KnownTables
from app.media_types import JSON
from app.middleware import HttpMiddleware
from app.node.broker import Broker
from app.settings.model import AppendFront, Settings
from app.version import VERSION

_PARTS: Final = (
    append_stream,
    reads,
    logs,
    cluster,
    ha_status,
    cursors,
    schemas,
    elect,
    log_actions,
    tables,
    block_digests,
    receipts,
    members,
    replicas,
    controller_settings,
    health,
    live_page,
)
_DESCRIPTION: Final = (
    "A replicated commit log. `index` counts records, `offset` counts bytes. Every node accepts every call "
    "and forwards writes to the leader. Every refusal is a problem document (RFC 9457); its `outcome` is the "
    "outcome of the append."
)


class Application(NamedTuple):
    """The REST service of a node. lane, polls: take appends and long polls before ASGI; None if the settings
    turn them off."""

    asgi: ASGIApp
    lane: AppendLane | None
    polls: PollLane | None


def build_app(settings: Settings, broker: Broker) -> Application:
    """Return the application of a started node. Raises ConfigError for a tokens file that cannot be used."""
    tokens = Tokens.load(settings.security.tokens_file)
    if tokens.needed:
        broker.tasks.keep("tokens-file", partial(tokens.watch, broker.meter))
    tracer = None if settings.tracing.endpoint is None else Tracer(settings.tracing, broker.node.id)
    handler = AppendHandler(broker, tracer)
    groups = AppendGroups(handler)
    if broker.takes_appends:
        broker.carrier.serve = AppendsOfPeers(groups).serve
    appends = PlainRoute(handler, settings.limits, settings.http.body_timeout_ms)
    broker.tasks.keep("late-bodies", appends.end_late_bodies)
    app = FastAPI(
        title="commitlog",
        version=VERSION,
        description=_DESCRIPTION,
        openapi_url=None,  # serve_openapi
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.broker = broker
    app.state.tokens = tokens
    app.state.tables = KnownTables(settings.tables.path)
    app.state.jobs = KnownJobs(app.state.tables.root)
    app.state.appends = handler
    routers = [appends.router(), *(part.router for part in _PARTS)]
    for router in routers:
        app.include_router(router, dependencies=[Depends(authorize)])
    app.state.routes = [route for router in routers for route in router.routes]
    problems.install(app)
    serve_openapi(app)
    in_flight = InFlightLimit(settings.http.max_open_reads, settings.http.max_open_bytes)
    lane = polls = None
    if settings.http.append_front is AppendFront.LANE and tracer is None:
        lane = AppendLane(groups, tokens, settings.limits, settings.http.body_timeout_ms)
        polls = PollLane(broker, tokens, in_flight)
    actions = _actions_of(app.state.routes)
    asgi = HttpMiddleware(app, tokens, broker.meter, in_flight, actions, broker.audit.write)
    if tracer is None:
        return Application(asgi, lane, polls)
    broker.tasks.keep("traces", tracer.run)
    return Application(TracedApp(asgi, tracer), lane, polls)


def _actions_of(routes: Sequence[BaseRoute]) -> dict[str, tuple[str, ...]]:
    """Return the methods of each `…:action` route."""
    actions: dict[str, tuple[str, ...]] = {}
    for route in routes:
        if isinstance(route, APIRoute):
            _, separator, action = route.path.rpartition("/")[2].rpartition(":")
            if separator:
                actions[action] = (*actions.get(action, ()), *sorted(route.methods or ()))
    return actions


def serve_openapi(app: FastAPI) -> None:
    """Serve the OpenAPI document. It is made once, when it is first requested, and kept as bytes: clients
    without a token may request it, and to encode it again would occupy the event loop for 20 ms each time."""

    @cache
    def document() -> bytes:
        content = app.openapi()
        openapi.complete(content, is_open)
        return as_json(content)

    async def serve(_request: Request) -> Response:
        return body_answer(document(), JSON)

    app.add_route(OPENAPI_PATH, serve, include_in_schema=False)
