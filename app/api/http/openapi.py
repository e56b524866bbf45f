"""Problems, headers and examples of the OpenAPI document."""

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec

from app.errors import PROBLEMS
from app.media_types import PROBLEM

_EVERYWHERE: Final = (
    "not-found",
    "method-not-allowed",
    "not-acceptable",
    "invalid-request",
    "rate-limited",
    "internal",
)
_OF_HTTP: Final = ("bad-request", "request-timeout", "head-too-large", "cross-origin")  # before any route
OF_A_BODY: Final = (  # of routes that read JSON
    "invalid-json",
    "invalid-body",
    "too-large",
    "unsupported-media-type",
)
_OF_A_LOG: Final = (
    "log-not-found",
    "log-deleting",
    "not-leader",
    "no-leader",
    "repairing",
    "log-unsupported",
)
_OF_TOKENS: Final = ("unauthenticated", "forbidden")  # of routes that are not open to everyone
_CONDITIONS: Final = frozenset(("config-changed", "cursor-moved", "schema-changed"))  # of `If-Match`
OF_A_COMMIT: Final = (  # of routes whose change is a record of a log
    "not-leader",
    "no-leader",
    "leader-pending-full",
    "leader-transferring",
    "term-changed",
    "storage-full",
    "quorum-timeout",
)

RECORD_EXAMPLE: Final = {
    "index": 42,
    "term": 7,
    "offset": 10240,
    "timestamp": 1730000000000,
    "key": "k1",
    "value": "text",
    "headers": [["name", "v"]],
    "type": "data",
}
READ_EXAMPLE: Final = {
    "log": "default",
    "records": [RECORD_EXAMPLE],
    "next_index": 43,
    "begin_index": 0,
    "end_index": 44,
    "committed_index": 44,
    "term": 7,
    "has_more": True,
}
APPEND_ANSWER_EXAMPLE: Final = {
    "log": "default",
    "first_index": 42,
    "last_index": 44,
    "count": 3,
    "term": 7,
    "first_offset": 10240,
    "next_offset": 10912,
    "timestamp": 1730000000001,
    "committed_index": 44,
    "next_index": 45,
    "leader": "n1",
    "acks": "quorum",
    "durability": "fsync",
    "replayed": False,
}
TAIL_EXAMPLE: Final = {
    "begin_index": 0,
    "end_index": 44,
    "committed_index": 44,
    "next_index": 45,
    "term": 7,
    "leader": "n1",
    "schema_version": 1,
}
STATUS_EXAMPLE: Final = {
    "log": "default",
    "node": "n1",
    "replication": "raft",
    "role": "leader",
    "term": 7,
    "leader": "n1",
    "begin_index": 0,
    "end_index": 44,
    "committed_index": 44,
    "next_index": 45,
    "end_offset": 10912,
    "durability": "fsync",
    "peers": [
        {
            "id": "n2",
            "url": "http://127.0.0.1:8102",
            "state": "APPEND",
            "watermark": 44,
            "pending": 0,
            "lag_bytes": 0,
        },
        {
            "id": "n3",
            "url": "http://127.0.0.1:8103",
            "state": "APPEND",
            "watermark": 41,
            "pending": 1,
            "lag_bytes": None,
            "unreachable_since_ms": 1730000000000,
        },
    ],
    "learners": [],
    "master": None,
    "epoch": 7,
    "sync_state_set": None,
    "confirm_offset": None,
    "certificates": [{"name": "tls_certificate", "end_ms": 1730000000000}],
    "conflicts": ["the nodes differ in `replicas`: n2 has raft (n2, n3), n1 has raft (n1)"],
}
EPOCH_EXAMPLE: Final = {
    "epoch": 7,
    "term": 7,
    "leader": "n1",
    "start_index": 40,
    "start_offset": 9000,
    "end_index": None,
    "end_offset": None,
    "started_ms": 1730000000000,
}
EVENT_EXAMPLE: Final = {
    "seq": 17,
    "node": "n1",
    "log": "default",
    "timestamp": 1730000000001,
    "kind": "watermarks",
    "term": 7,
    "data": {"committed_index": 44, "peers": {"n1": 44, "n2": 44, "n3": 41}},
}
LOG_EXAMPLE: Final[dict[str, Any]] = {
    "name": "default",
    "id": "9d1cf1a8f0c1b2d3",
    "replication": "raft",
    "replicas": ["n1", "n2", "n3"],
    "durability": "fsync",
    "retention": None,
    "learners": [],
    "min_in_sync_replicas": 1,
    "unclean": False,
    "preferred": None,
    "priorities": {},
    "in_sync_replicas": None,
    "state": "created",
    "master": None,
    "epoch": None,
    "sync_state_set": None,
    "set_epoch": None,
    "leaving": [],
    "schema_version": 1,
}
CLUSTER_EXAMPLE: Final = {
    "id": "three-local",
    "nodes": [
        {
            "id": "n1",
            "url": "http://127.0.0.1:8101",
            "peer_address": "127.0.0.1:9101",
            "voter": True,
            "alive": True,
            "version": "0.1.0",
        }
    ],
    "logs": ["default"],
    "limits": {"max_record_bytes": 1048576},
}

_HEADERS: Final = {
    "Commitlog-Leader": ("string", "Base URL of the leader, as known to this node"),
    "Commitlog-Term": ("integer", "Term of the log at this node"),
    "Commitlog-Committed-Index": ("integer", "Last committed index known to this node"),
    "Commitlog-Next-Index": (
        "integer",
        "Index at which the next read continues; after an append the log's next index",
    ),
    "X-Request-Id": ("string", "Id of this request: the client's, or one that the service generated"),
}
ETAG, LOCATION, HAS_MORE, LOG_ID = "ETag", "Location", "Commitlog-Has-More", "Commitlog-Log-Id"
RETRY_AFTER, ALLOW, WWW_AUTHENTICATE = "Retry-After", "Allow", "WWW-Authenticate"
VARY, BUFFERING, ACCEPT, ACCEPT_ENCODING = "Vary", "X-Accel-Buffering", "Accept", "Accept-Encoding"
_OF_SOME: Final = {
    ETAG: ("string", "Version for `If-Match`"),
    LOCATION: ("string", "Path of what was created"),
    HAS_MORE: ("boolean", "True if more committed records follow. In JSON it is the field `has_more`"),
    LOG_ID: ("string", "Id of the log that the records are of: another log of the name has another one"),
    RETRY_AFTER: ("integer", "Seconds after which a retry may succeed"),
    ALLOW: ("string", "Methods of the route"),
    WWW_AUTHENTICATE: ("string", "`Bearer`: a token is required"),
    VARY: ("string", "`accept`: the format of a read depends on the request's `Accept`"),
    BUFFERING: ("string", "`no`: a proxy passes each part of a stream on at once"),
    ACCEPT: ("string", "Content types that the route accepts"),
    ACCEPT_ENCODING: ("string", "Content encodings that the route accepts"),
    "Content-Security-Policy": ("string", "Policy of a page for people"),
    "X-Content-Type-Options": ("string", "`nosniff`"),
    "X-Frame-Options": ("string", "`DENY`"),
}


@cache
def headers_of(more: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the headers of a response: the common ones, and `more`. Responses share the result."""
    return {name: {"$ref": f"#/components/headers/{name}"} for name in (*_HEADERS, *more)}


_NULLABLE: Final = frozenset((  # fields whose example is a value, and that may be null
    "acked_offset", "acks_needed", "active", "catalog_name", "committed_ms", "confirm_offset",
    "end_index", "end_offset", "ends", "epoch", "error", "failed_ms", "first_difference", "gap_bytes",
    "in_sync", "key", "lag_bytes", "lag_ms", "lag_records", "leader", "master", "materialized_index",
    "reason", "sync_state_set", "token", "transfer_bytes_per_s", "value", "version", "waits_for",
))  # fmt: skip
_OPTIONAL: Final = frozenset((
    "certificates", "conflicts", "ends", "holder", "job", "schema_version", "tables_job",
    "unreachable_since_ms",
))  # fmt: skip
_BY_NAME: Final = frozenset(("changed", "data", "failing", "limits", "peers", "priorities", "tables"))
HEADERS_SCHEMA: Final[dict[str, Any]] = {
    "type": "array",
    "items": {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "items": {
            "description": 'Name and value; a value that is not UTF-8 text is {"base64": "..."}',
            "type": ["string", "object"],
            "properties": {"base64": {"type": "string", "contentEncoding": "base64"}},
            "additionalProperties": False,
            "required": ["base64"],
        },
    },
}
_INSTEAD: Final = {"key": ("key_base64",), "value": ("value_base64", "value_json")}  # of bytes


def schema_of(example: Any, name: str = "") -> dict[str, Any]:
    """Return the JSON schema of the example of a field. null matches any value."""
    schema = _schema_of(example, name)
    if name in _NULLABLE and "type" in schema:
        schema["type"] = [schema["type"], "null"]
    return schema


def _schema_of(example: Any, name: str) -> dict[str, Any]:
    if example is None:
        return {}
    if name == "headers":
        return HEADERS_SCHEMA
    if isinstance(example, bool):
        return {"type": "boolean"}
    if isinstance(example, int):
        return {"type": "integer"}
    if isinstance(example, str):
        return {"type": "string"}
    if isinstance(example, list):
        return {"type": "array", "items": schema_of(_richest(example)) if example else {}}
    if name in _BY_NAME or _is_map(example):
        values = [schema_of(value) for value in example.values()]
        uniform = values and values[1:] == values[:-1]
        return {"type": "object", "additionalProperties": values[0] if uniform else {}}
    replaced: dict[str, dict[str, Any]] = {}
    if "offset" in example:  # a record of a read: bytes that are not text have another field
        replaced = {other: {} for others in _INSTEAD.values() for other in others}
    return {
        "type": "object",
        "properties": {field: schema_of(value, field) for field, value in example.items()} | replaced,
        "required": [
            field for field in example if field not in _OPTIONAL and not (replaced and field in _INSTEAD)
        ],
    }


def _richest(examples: list[Any]) -> Any:
    """Return the object with the most fields: it has the optional ones; of other values the first."""
    return max(examples, key=lambda each: len(each) if isinstance(each, dict) else 0)


def _is_map(example: dict[str, Any]) -> bool:
    """Return whether the names of an object are data: terms, or names of logs and nodes."""
    return any(name.isdigit() or name in ("default", "n1") for name in example)


@cache
def _problem_example(code: str) -> dict[str, Any]:
    """Return the example of a problem, which all routes share."""
    problem = PROBLEMS[code]
    value = {
        "type": f"/problems/{problem.code}",
        "title": problem.title,
        "status": problem.http_status,
        "detail": problem.title,
        "instance": "/v1/logs/default/records",
        "code": problem.code,
        "retryable": problem.retryable,
        "outcome": problem.outcome.value,
        "request_id": "5b1f0c9de2a4-1",
    }
    return {"summary": problem.title, "value": value}


def answers(
    *codes: str,
    example: Any = None,
    description: str = "Success",
    of_a_log: bool = True,
    content: dict[str, Any] | None = None,
    status: int = 200,
    headers: tuple[str, ...] = (),
) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route: its success response, and its problems by status with examples.

    headers: those that not every route sends.
    """
    given: dict[str, Any] = {"description": description, "headers": headers_of(headers)}
    given["content"] = content or {"application/json": {"schema": schema_of(example), "example": example}}
    responses: dict[int | str, dict[str, Any]] = {str(status): given}
    add_problems(responses, *codes, *_EVERYWHERE, *(_OF_A_LOG if of_a_log else ()))
    return responses


def unchanged(description: str) -> dict[str, Any]:
    """Return the response 304 of a route."""
    return {"description": description, "headers": headers_of((ETAG,))}


def add_problems(responses: dict[Any, dict[str, Any]], *codes: str) -> None:
    """Add problems with examples to the `responses` of a route, by status."""
    for code in codes:
        problem = PROBLEMS[code]
        entry = responses.setdefault(
            str(problem.http_status),
            {
                "description": problem.title,
                "headers": headers_of(_PROBLEM_HEADERS.get(problem.http_status, ())),
            },
        )
        content = entry.setdefault("content", {}).setdefault(
            PROBLEM, {"schema": {"$ref": "#/components/schemas/Problem"}, "examples": {}}
        )
        content["examples"][code] = _problem_example(code)


def complete(document: dict[str, Any], is_open: Callable[[str], bool]) -> None:
    """Add to a whole document what every route has in common. is_open: whether a path needs no token."""
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM_SCHEMA
    components["headers"] = {
        name: {"description": text, "schema": {"type": kind}}
        for name, (kind, text) in (_HEADERS | _OF_SOME).items()
    }
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{}, {"bearer": []}]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            add_problems(operation["responses"], *_OF_HTTP)
            if not is_open(path):
                add_problems(operation["responses"], *_OF_TOKENS)
            if method == "post":
                add_problems(operation["responses"], "unsupported-media-type")
            headers = [] if path.startswith("/v1/cluster/members") else _conditions_of(method, operation)
            if "421" in operation["responses"]:
                headers.append(_NO_FORWARD)
            if headers:
                operation["parameters"] = [*operation.get("parameters", ()), *headers]


def _conditions_of(method: str, operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the conditional headers that a route takes, by its responses."""
    responses = operation["responses"]
    examples = responses["412"]["content"][PROBLEM]["examples"] if "412" in responses else {}
    takes = [_IF_MATCH] if _CONDITIONS & examples.keys() else []
    if "304" in responses or (takes and method == "put"):
        takes.append(_IF_NONE_MATCH)
    return takes


def _header(name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"in": "header", "name": name, "required": False, "schema": schema, "description": text}


_IF_MATCH: Final = _header(
    "If-Match", {"type": "string"}, "ETag that the resource must have; `*`: it must exist"
)
_IF_NONE_MATCH: Final = _header(
    "If-None-Match", {"type": "string"}, "`GET`: ETag that the client holds. `PUT`, `*`: it must not exist"
)
_NO_FORWARD: Final = _header(
    "Commitlog-No-Forward",
    {"type": "string", "enum": ["1"]},
    "Do not forward the call to another node; answer 421 where it would be",
)


def json_request(kind: type[msgspec.Struct], example: Any) -> dict[str, Any]:
    """Return the `openapi_extra` of a route that decodes a JSON body of type `kind`."""
    document = msgspec.json.schema(kind)
    schema = _inlined(document, document["$defs"])
    content = {"application/json": {"schema": schema, "example": example}}
    return {"requestBody": {"required": bool(schema.get("required")), "content": content}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with its references resolved. The schema must not be recursive."""
    if isinstance(node, list):
        return [_inlined(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
    return {name: _inlined(value, definitions) for name, value in node.items() if name != "$defs"}


_PROBLEM_HEADERS: Final = {
    401: (WWW_AUTHENTICATE,),
    405: (ALLOW,),
    415: (ACCEPT, ACCEPT_ENCODING),
    429: (RETRY_AFTER,),
    503: (RETRY_AFTER,),
    504: (RETRY_AFTER,),
}
_TEXT: Final = {"type": "string"}
_TEXT_OR_NULL: Final = {"type": ["string", "null"]}
_NUMBER: Final = {"type": "integer"}
_NUMBER_OR_NULL: Final = {"type": ["integer", "null"]}
_PROBLEM_FIELDS: Final[dict[str, dict[str, Any]]] = {  # those that not every problem has
    "begin_index": _NUMBER,
    "current_epoch": _NUMBER,
    "cursor": _TEXT,
    "differences": {
        "type": "array",
        "items": {"type": "object", "properties": {"path": _TEXT, "kind": _TEXT, "detail": _TEXT}},
    },
    "errors": {
        "type": "array",
        "items": {"type": "object", "properties": {"pointer": _TEXT, "detail": _TEXT}},
    },
    "expected_index": _NUMBER,
    "expected_sequence": _NUMBER,
    "expected_term": _NUMBER,
    "first_index": _NUMBER_OR_NULL,
    "first_outcome": _TEXT,
    "first_seq": _NUMBER,
    "in_sync": _NUMBER,
    "index": _NUMBER,
    "leader": _TEXT_OR_NULL,
    "leader_url": _TEXT_OR_NULL,
    "limit": _NUMBER,
    "limit_name": _TEXT,
    "log": _TEXT,
    "materialized_index": _NUMBER_OR_NULL,
    "min_in_sync_replicas": _NUMBER,
    "next_index": _NUMBER,
    "pointer": _TEXT,
    "reason": _TEXT,
    "record": _NUMBER,
    "table": _TEXT,
    "term": _NUMBER,
    "version": _NUMBER_OR_NULL,
}
PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "description": "RFC 9457. `outcome`: outcome of the append; `retryable`: true if a retry may succeed. "
    "Each page /problems/{code} explains one of them.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "code": {"type": "string", "enum": sorted(PROBLEMS)},
        "retryable": {"type": "boolean"},
        "outcome": {"type": "string", "enum": ["not_applied", "applied", "unknown"]},
        "request_id": {"type": "string"},
        **_PROBLEM_FIELDS,
    },
    "required": ["type", "title", "status", "code", "retryable", "outcome", "request_id"],
}
