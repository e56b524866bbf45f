"""The ASGI application of a node. Importing this module starts nothing."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from app.api.access.rules import authorize
from app.api.access.tokens import Tokens, is_open
from app.api.append import stream as append_stream
from app.api.append.fast_front import FastFront
from app.api.append.handler import AppendHandler
from app.api.append.openapi import OPENAPI_EXTRA, RESPONSES
from app.api.http import openapi, problems
from app.api.http.dependencies import ExactResponse, LogName
from app.api.http.in_flight_limit import InFlightLimit
from app.api.routes import (
    block_digests,
    cluster,
    controller_settings,
    elect,
    fences,
    ha_status,
    health,
    live_page,
    logs,
    members,
    reads,
    receipts,
    replicas,
    tables,
    upkeep,
)
from app.api.routes.tables import KnownTables
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
    fences,
    elect,
    upkeep,
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


def build_app(settings: Settings, broker: Broker) -> ASGIApp:
    """Return the application of a started node. Raises ConfigError for a tokens file that cannot be used."""
    tokens = Tokens.load(settings.security.tokens_file)
    if tokens.needed:
        broker.tasks.keep("tokens-file", partial(tokens.watch, broker.meter))
    handler = AppendHandler(broker)
    front = FastFront(handler, settings.limits, settings.http.body_timeout_ms)
    broker.tasks.keep("late-bodies", front.sweep)
    app = FastAPI(
        title="commitlog",
        version=VERSION,
        description=_DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.broker = broker
    app.state.tables = KnownTables(settings.tables.path)
    app.state.appends = handler
    routers = [_append_router(front), *(part.router for part in _PARTS)]
    for router in routers:
        app.include_router(router, dependencies=[Depends(authorize)])
    app.state.routes = [route for router in routers for route in router.routes]
    problems.install(app)
    _complete_openapi(app)
    direct = front if settings.http.append_front is AppendFront.ASGI else None
    in_flight = InFlightLimit(settings.http.max_open_reads, settings.http.max_open_bytes)
    return HttpMiddleware(
        app, direct, tokens, broker.meter, in_flight, _actions_of(app.state.routes), broker.audit.write
    )


def _actions_of(routes: Sequence[BaseRoute]) -> dict[str, tuple[str, ...]]:
    """Return the methods of each `…:action` route."""
    actions: dict[str, tuple[str, ...]] = {}
    for route in routes:
        if isinstance(route, APIRoute):
            _, separator, action = route.path.rpartition("/")[2].rpartition(":")
            if separator:
                actions[action] = (*actions.get(action, ()), *sorted(route.methods or ()))
    return actions


def _append_router(front: FastFront) -> APIRouter:
    """The append as a FastAPI route: the reference of the plain ASGI front, and its documentation."""
    router = APIRouter(tags=["records"])

    @router.post(
        "/v1/logs/{log}/records",
        summary="Append records",
        description="The append is atomic: all of its records are committed at consecutive indexes, or none.",
        responses=RESPONSES,
        openapi_extra=OPENAPI_EXTRA,
        response_class=Response,
    )
    async def append(request: Request, log: LogName) -> Response:
        answer = await front.answer(request.scope, request.receive)
        return Response(status_code=204) if answer is None else ExactResponse(answer)

    return router


def _complete_openapi(app: FastAPI) -> None:
    """Complete the OpenAPI document, once, when it is first requested."""
    generate = app.openapi

    def completed() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = generate()
            openapi.complete(app.openapi_schema, is_open)
        return app.openapi_schema

    app.openapi = completed  # type: ignore[method-assign]  # the way FastAPI's own documentation shows
