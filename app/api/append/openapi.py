"""OpenAPI description of the append routes: request bodies, parameters, responses."""

from typing import Any, Final

from app.api.append.parameters import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS
from app.api.http.json_decoding import MAX_ORDINAL
from app.api.http.openapi import (
    APPEND_ANSWER_EXAMPLE,
    BUFFERING,
    HEADERS_SCHEMA,
    OF_A_COMMIT,
    answers,
    headers_of,
    schema_of,
)
from app.media_types import NDJSON
from app.names import IDEMPOTENCY_KEY
from storage.format.records import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

_TEXT: Final = {"type": "string"}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 255}
_INTEGER: Final = {"type": "integer", "minimum": 0, "maximum": MAX_ORDINAL}
_TIMESTAMP: Final = {
    "type": "integer",
    "minimum": MIN_TIMESTAMP_MS,
    "maximum": MAX_TIMESTAMP_MS,
    "description": "Milliseconds since 1970 UTC, within the years 1 to 9999",
}
_RECORD: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "description": "Has exactly one of value, value_json and value_base64. `value: null` is a tombstone.",
    "oneOf": [{"required": [name]} for name in ("value", "value_json", "value_base64")],
    "not": {
        "required": ["key", "key_base64"],
        "properties": {"key": {"type": "string"}, "key_base64": {"type": "string"}},
    },
    "properties": {
        "value": {"type": ["string", "null"]},
        "value_json": {
            "description": "Any JSON value. Stored as compact UTF-8 text; numbers keep their notation"
        },
        "value_base64": {"type": "string", "contentEncoding": "base64"},
        "key": {"type": ["string", "null"]},
        "key_base64": {"type": ["string", "null"], "contentEncoding": "base64"},
        "timestamp": _TIMESTAMP | {"type": ["integer", "null"]},
        "headers": HEADERS_SCHEMA | {"type": ["array", "null"]},
    },
}
_PRODUCER: Final[dict[str, Any]] = {
    "type": ["object", "null"],
    "additionalProperties": False,
    "properties": {
        "id": _NAME,
        "epoch": _INTEGER,
        "sequence": _INTEGER,
        "allow_gap": {"type": "boolean", "default": False},
    },
    "required": ["id", "epoch", "sequence"],
}
_REQUEST: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "records": {"type": "array", "minItems": 1, "items": _RECORD},
        "match_index": _INTEGER | {"type": ["integer", "null"]},
        "match_term": _INTEGER | {"type": ["integer", "null"]},
        "fencing_token": _NAME | {"type": ["string", "null"]},
        "producer": _PRODUCER,
    },
    "required": ["records"],
}
_RECORDS_EXAMPLE: Final = {
    "records": [
        {"key": "k1", "value": "text", "headers": [["name", "v"]], "timestamp": 1730000000000},
        {"value_json": {"temperature": 21.50}},
        {"value_base64": "3q2+7w=="},
    ]
}
_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}


def _parameter(place: str, name: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"in": place, "name": name, "required": False, "schema": schema, "description": text}


OPENAPI_EXTRA: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"oneOf": [_REQUEST, _RECORD]},
                "examples": {
                    "records": {"summary": "Several records, one append", "value": _RECORDS_EXAMPLE},
                    "record": {"summary": "A single record", "value": {"key": "k1", "value": "text"}},
                    "conditional": {
                        "summary": "Conditional append: refused unless index and term match",
                        "value": {"records": [{"value": "text"}], "match_index": 42, "match_term": 7},
                    },
                },
            },
            "application/x-ndjson": {
                "schema": {"type": "string", "description": "One record object per line"},
                "example": '{"value":"first"}\n{"value":"second"}\n',
            },
            "application/octet-stream": {
                **_BINARY,
                "example": "the value of one record; may be empty",
            },
            "application/vnd.apache.arrow.stream": _BINARY,
            "application/vnd.commitlog.batch": _BINARY,
        },
    },
    "parameters": [
        _parameter(
            "query",
            "acks",
            {"type": "string", "enum": ["leader", "quorum", "all"], "default": "quorum"},
            "Replicas that must have the append before the response: `leader`, a `quorum`, or `all`. With "
            "`leader` the status is 202, and the append can still be lost",
        ),
        _parameter(
            "query",
            "timeout_ms",
            {"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS, "default": DEFAULT_TIMEOUT_MS},
            "Time to wait for the acknowledgement. After it the response is 504 and the outcome is unknown",
        ),
        _parameter(
            "query",
            "match_index",
            _INTEGER,
            "Append only if the log has no data record at this index or after it; at most the leader's "
            "next index",
        ),
        _parameter("query", "match_term", _INTEGER, "Append only if this is the leader's term"),
        _parameter("query", "fencing_token", _NAME, "Fencing token; must equal the log's"),
        _parameter(
            "query", "producer_id", _NAME, "Name of an idempotent producer; requires its epoch and sequence"
        ),
        _parameter(
            "query", "producer_epoch", _INTEGER, "Epoch of the producer; an epoch below the newest is refused"
        ),
        _parameter(
            "query", "producer_sequence", _INTEGER, "Sequence of this append: the producer's last one + 1"
        ),
        _parameter(
            "query", "producer_allow_gap", {"type": "boolean"}, "Accept any sequence above the last one"
        ),
        _parameter(
            "header",
            "Idempotency-Key",
            {"type": "string", "pattern": IDEMPOTENCY_KEY.anchored},
            "1-255 visible ASCII characters. A retry with the same key gets the first response",
        ),
        _parameter("header", "Content-Encoding", {"type": "string", "enum": ["gzip", "zstd"]}, "Compression"),
        _parameter("header", "Commitlog-Key", _TEXT, "Key of an octet-stream record"),
        _parameter("header", "Commitlog-Timestamp", _TIMESTAMP, "Timestamp of an octet-stream record"),
    ],
}

STREAM_EXTRA: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/x-ndjson": {
                "schema": {"type": "string", "description": "One append request or record per line"},
                "example": '{"value":"first"}\n{"records":[{"value":"second"},{"value":"third"}]}\n',
            },
            "application/vnd.apache.arrow.stream": _BINARY,
            "application/vnd.commitlog.batch": _BINARY,
        },
    },
    "parameters": [parameter for parameter in OPENAPI_EXTRA["parameters"] if parameter["in"] == "query"],
}

STREAM_RESPONSES: Final = answers(
    "unsupported-media-type",
    "quorum-timeout",
    content={NDJSON: {"schema": schema_of(APPEND_ANSWER_EXAMPLE), "example": APPEND_ANSWER_EXAMPLE}},
    description="One answer per append; ends after the first problem",
    headers=(BUFFERING,),
)

RESPONSES: Final = {
    **answers(
        "invalid-json",
        "invalid-body",
        "producer-fenced",
        "sequence-gap",
        "request-outstanding",
        "index-mismatch",
        "term-mismatch",
        "fenced",
        "too-large",
        "unsupported-media-type",
        "idempotency-key-reused",
        "schema-mismatch",
        "not-enough-in-sync",
        "flush-slave-timeout",
        *OF_A_COMMIT,
        example=APPEND_ANSWER_EXAMPLE,
        description="The append is committed",
    ),
    "202": {
        "description": "acks=leader: stored at the leader; the append can still be lost",
        "headers": headers_of(),
        "content": {
            "application/json": {
                "schema": schema_of(APPEND_ANSWER_EXAMPLE),
                "example": {**APPEND_ANSWER_EXAMPLE, "acks": "leader"},
            }
        },
    },
}
