"""Bodies of calls other than appends: JSON, also compressed (Content-Encoding)."""

import asyncio
import gzip
from typing import Any

import msgspec
import pytest
import zstandard
from fastapi import Request

from app.api.http.log_call import BODY_MAX_BYTES, LogCall
from app.errors import CommitlogError

BODY = b'{"index":7}'


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    index: int = 0


def asked(body: bytes, **headers: str) -> Asked | str:
    """Return what a route reads from the body, or the code of its refusal."""
    given = {
        "content-type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    scope = {
        "type": "http",
        "method": "PUT",
        "path": "/v1/logs/default/cursors/etl",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    try:
        return asyncio.run(LogCall(Request(scope, receive), None).asked(Asked))  # type: ignore[arg-type]
    except CommitlogError as error:
        return error.code


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("identity", BODY),
        ("gzip", gzip.compress(BODY)),
        ("GZIP", gzip.compress(BODY)),
        ("zstd", zstandard.compress(BODY)),
    ],
    ids=["identity", "gzip", "upper-case", "zstd"],
)
def test_a_body_may_be_compressed(encoding: str, body: bytes) -> None:
    assert asked(body, content_encoding=encoding) == Asked(7)


@pytest.mark.parametrize(
    ("encoding", "body", "code"),
    [
        ("gzip", BODY, "invalid-body"),
        ("gzip", gzip.compress(BODY)[:-4], "invalid-body"),
        ("gzip", gzip.compress(b"{"), "invalid-json"),
        ("gzip", gzip.compress(b" " * (BODY_MAX_BYTES + 1)), "too-large"),
        ("br", BODY, "unsupported-media-type"),
    ],
    ids=["not-gzip", "truncated", "not-json", "bomb", "other"],
)
def test_a_body_of_another_encoding_is_not_taken_for_json(encoding: str, body: bytes, code: str) -> None:
    assert asked(body, content_encoding=encoding) == code


def test_an_absent_body_is_an_empty_object() -> None:
    assert asked(b"") == asked(b"", content_encoding="gzip") == Asked(0)
