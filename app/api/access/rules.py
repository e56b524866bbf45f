"""Scope of every route, and the check of a caller against it.

The check runs with the route that the framework has selected, so no path can be taken for another one. A
route without an entry in RULES is refused to every caller; tests/integration/security/test_scopes.py finds
it earlier.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, cast

from fastapi import Request

from app.api.access.caller import ALL_SCOPES, TO_APPEND, TO_READ, Caller, Scope
from app.errors import Forbidden

CALLER: Final = "commitlog.caller"  # in an ASGI scope


class Reach(Enum):
    """Logs that a call concerns, which the token must cover."""

    PATH = auto()  # the log of the path
    QUERY = auto()  # the log of the query parameter `log`
    CHECKED_LATER = auto()  # the log of the body, or each log of the answer: checked by the route
    ALL = auto()


@dataclass(frozen=True, slots=True)
class Rule:
    """scopes: any one of them suffices; None: open to every caller."""

    scopes: frozenset[Scope] | None
    reach: Reach = Reach.PATH


_ADMIN: Final = frozenset((Scope.ADMIN,))
_OPEN: Final = Rule(None)
_DATA: Final = Rule(TO_READ)
_DESCRIBES: Final = Rule(ALL_SCOPES)  # indexes and settings, no records: producers need them too
_CURSOR: Final = "/v1/logs/{log}/cursors/{name}"
_MEMBER: Final = "/v1/cluster/members/{id}"

RULES: Final = {
    ("GET", "/"): _OPEN,
    ("GET", "/healthz"): _OPEN,
    ("GET", "/readyz"): _OPEN,
    ("GET", "/docs"): _OPEN,
    ("GET", "/docs/{path:path}"): _OPEN,
    ("GET", "/problems"): _OPEN,
    ("GET", "/problems/"): _OPEN,
    ("GET", "/problems/{code}"): _OPEN,
    ("GET", "/ui"): _OPEN,
    ("GET", "/ui/{name}"): _OPEN,
    ("GET", "/metrics"): Rule(ALL_SCOPES, Reach.ALL),
    ("GET", "/ui/overview.json"): Rule(ALL_SCOPES, Reach.CHECKED_LATER),
    ("GET", "/ui/led.json"): Rule(ALL_SCOPES, Reach.CHECKED_LATER),
    ("GET", "/ui/log.json"): Rule(TO_READ, Reach.QUERY),
    ("GET", "/v1/cluster"): Rule(ALL_SCOPES, Reach.CHECKED_LATER),
    ("GET", "/v1/cluster/members"): Rule(ALL_SCOPES, Reach.CHECKED_LATER),
    ("POST", "/v1/cluster/members"): Rule(_ADMIN, Reach.ALL),
    ("DELETE", _MEMBER): Rule(_ADMIN, Reach.ALL),
    ("POST", f"{_MEMBER}:promote"): Rule(_ADMIN, Reach.ALL),
    ("POST", f"{_MEMBER}:demote"): Rule(_ADMIN, Reach.ALL),
    ("POST", f"{_MEMBER}:clean"): Rule(_ADMIN, Reach.ALL),
    ("POST", "/v1/cluster/leader:transfer"): Rule(_ADMIN, Reach.ALL),
    ("GET", "/v1/cluster/controller"): Rule(frozenset((Scope.READ, Scope.ADMIN)), Reach.ALL),
    ("PATCH", "/v1/cluster/controller"): Rule(_ADMIN, Reach.ALL),
    ("GET", "/v1/logs"): Rule(ALL_SCOPES, Reach.CHECKED_LATER),
    ("POST", "/v1/logs"): Rule(_ADMIN, Reach.CHECKED_LATER),
    ("GET", "/v1/logs/{log}"): _DESCRIBES,
    ("PATCH", "/v1/logs/{log}"): Rule(_ADMIN),
    ("DELETE", "/v1/logs/{log}"): Rule(_ADMIN),
    ("POST", "/v1/logs/{log}/records"): Rule(TO_APPEND),
    ("POST", "/v1/logs/{log}/records:stream"): Rule(TO_APPEND),
    ("POST", "/v1/logs/{log}:fence"): Rule(TO_APPEND),  # the way in which a writer takes over
    ("POST", "/v1/logs/{log}:trim"): Rule(_ADMIN),
    ("POST", "/v1/logs/{log}:elect"): Rule(_ADMIN),
    ("POST", "/v1/logs/{log}:verify"): Rule(_ADMIN),
    ("GET", "/v1/logs/{log}/records"): _DATA,
    ("GET", "/v1/logs/{log}/records/{index}"): _DATA,
    ("GET", "/v1/logs/{log}/digests"): _DATA,
    ("GET", "/v1/logs/{log}/receipts/{name}"): _DATA,
    ("GET", "/v1/logs/{log}/events"): _DATA,
    ("GET", "/v1/logs/{log}/tables"): _DATA,
    ("GET", "/v1/logs/{log}/tables:at"): _DATA,
    ("GET", "/v1/logs/{log}/tables/{table}"): _DATA,
    ("GET", "/v1/logs/{log}/tables/{table}:wait"): _DATA,
    ("PUT", "/v1/logs/{log}/schema"): Rule(_ADMIN),
    ("GET", "/v1/logs/{log}/schema"): _DATA,
    ("GET", "/v1/logs/{log}/schemas"): _DATA,
    ("GET", "/v1/logs/{log}/schemas/{version}"): _DATA,
    ("GET", "/v1/logs/{log}/tail"): _DESCRIBES,
    ("GET", "/v1/logs/{log}/status"): _DESCRIBES,
    ("GET", "/v1/logs/{log}/ha-status"): _DESCRIBES,
    ("GET", "/v1/logs/{log}/epochs"): _DESCRIBES,
    ("GET", "/v1/logs/{log}/epochs/{epoch}"): _DESCRIBES,
    ("GET", "/v1/logs/{log}/watermarks"): _DESCRIBES,
    ("GET", "/v1/logs/{log}/cursors"): Rule(frozenset((Scope.READ, Scope.CURSORS))),
    ("GET", _CURSOR): Rule(frozenset((Scope.READ, Scope.CURSORS))),
    ("PUT", _CURSOR): Rule(frozenset((Scope.CURSORS,))),
    ("DELETE", _CURSOR): Rule(frozenset((Scope.CURSORS,))),
}
_DEFAULT_LOG: Final = "default"  # of the query parameter `log`


def caller_of(request: Request) -> Caller:
    return cast(Caller, request.scope[CALLER])


async def authorize(request: Request) -> None:
    """Dependency of every route. Raises Forbidden."""
    path = request.scope["route"].path
    rule = RULES.get((request.method, path))
    if rule is None:
        raise Forbidden(f"no scope is defined for {request.method} {path}")
    if rule.scopes is None:
        return
    caller = caller_of(request)
    match rule.reach:
        case Reach.ALL:
            caller.require(rule.scopes, None)
        case Reach.PATH:
            caller.require(rule.scopes, request.path_params["log"])
        case Reach.QUERY:
            for log in request.query_params.getlist("log") or (_DEFAULT_LOG,):
                caller.require(rule.scopes, log)
        case Reach.CHECKED_LATER:
            caller.require_any(rule.scopes)


def administers(method: str, path: str) -> bool:
    """Return whether a route changes the cluster or its logs. path: the route's template."""
    rule = RULES.get((method, path))
    return rule is not None and rule.scopes == _ADMIN
