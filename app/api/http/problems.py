"""FastAPI's own errors as problem documents: its default bodies are never sent (docs/api.md §5)."""

import logging
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from app.api.http.dependencies import ExactResponse, broker_of, request_id_of
from app.api.http.log_call import AnsweredElsewhere
from app.api.http.messages import problem_response
from app.errors import CommitlogError, Internal, InvalidRequest, MethodNotAllowed, NotFound, Repairing
from app.names import rule_of
from app.schemas.errors import pointer_of
from app.settings.toml import message_of
from app.tables.delta_log import DeltaLogError
from storage.errors import StorageError

logger = logging.getLogger(__name__)

OPENAPI_PATH: Final = "/v1/openapi.json"


def install(app: FastAPI) -> None:
    app.add_exception_handler(CommitlogError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(StorageError, _storage)
    app.add_exception_handler(DeltaLogError, _table)
    app.add_exception_handler(AnsweredElsewhere, _elsewhere)
    app.add_exception_handler(Exception, _failed)


def problem(request: Request, error: CommitlogError) -> Response:
    answer = problem_response(error, instance=_path(request), request_id=request_id_of(request))
    return ExactResponse(answer)


async def _elsewhere(request: Request, error: Exception) -> Response:
    assert isinstance(error, AnsweredElsewhere)
    return error.response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, CommitlogError)
    return problem(request, error)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # A missing log is reported first, whatever else is wrong (docs/api.md §3).
    log = request.path_params.get("log")
    if log is not None:
        try:
            broker_of(request).lookup.find(log)
        except CommitlogError as unknown:
            return problem(request, unknown)
    return problem(request, InvalidRequest(*(_complaint(item) for item in error.errors())))


def _complaint(item: Any) -> tuple[str, str]:
    place, *rest = (str(part) for part in item["loc"])
    rule = rule_of(item.get("ctx", {}).get("pattern"))
    if item["type"] == "extra_forbidden":
        detail = "unknown parameter"
    elif rule is not None:
        detail = rule.refusal(item["input"])
    else:
        detail = message_of(item)
        if isinstance(item["input"], str):
            detail += f", got {item['input'][:40]!r}"
    place = {"header": "headers"}.get(place, place)
    return pointer_of((place, *rest)), detail


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return problem(request, MethodNotAllowed(_method(request), _allowed(request)))
    if error.status_code == 404:
        return problem(
            request, NotFound(f"{_path(request)} is not a route of this API; GET /docs lists the routes")
        )
    logger.error("unexpected %s from the framework: %s", error.status_code, error.detail)
    return problem(request, Internal())


async def _table(request: Request, error: Exception) -> Response:
    """A damaged table, or one that requires features that this reader lacks."""
    logger.error("tables: %s", error, extra={"request_id": request_id_of(request).decode("ascii")})
    return problem(request, Internal(str(error)))


async def _storage(request: Request, error: Exception) -> Response:
    """A read found damage, which begins a repair, or a failed disk: the details are only logged."""
    assert isinstance(error, StorageError)
    if broker_of(request).repairs.report(error, "read"):
        return problem(request, Repairing())
    logger.error("storage: %s", error, extra={"request_id": request_id_of(request).decode("ascii")})
    return problem(request, Internal())


async def _failed(request: Request, _error: Exception) -> Response:
    """Any other exception. Starlette raises it again after this answer, and HttpMiddleware logs it."""
    return problem(request, Internal())


def _path(request: Request) -> str:
    """Return the decoded path. That of `request.url` ends at a decoded `?` or `#` and lacks line breaks."""
    path: str = request.scope["path"]
    return path


def _method(request: Request) -> str:
    return "HEAD" if request.scope.get("commitlog.head") else request.method


def _allowed(request: Request) -> list[str]:
    """Return the methods of every route with this path."""
    allowed: dict[str, None] = {}
    for route in request.app.state.routes:
        if route.path_regex.match(_path(request)):
            allowed.update(dict.fromkeys(route.methods))
    if _path(request) == OPENAPI_PATH:  # not one of the API's routes
        allowed["GET"] = None
    if "GET" in allowed:
        allowed["HEAD"] = None
    return list(allowed)
