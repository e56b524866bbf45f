"""Entries of the audit log about calls: no caller can make one that cannot be stored."""

import asyncio
import json
import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from app.api.access.administration import ObservedCall, refusal_entry
from app.api.access.caller import UNRESTRICTED, Caller
from app.errors import Forbidden
from app.node.network.audit_messages import ENTRY_MAX_BYTES
from app.telemetry import LineFormatter


def scope_of(path: str = "/v1/logs", query: bytes = b"") -> dict[str, Any]:
    route = SimpleNamespace(path="/v1/logs")
    return {"method": "POST", "path": path, "query_string": query, "client": ("::1", 1), "route": route}


def entry_about(body: bytes, status: int) -> dict[str, Any]:
    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    call = ObservedCall(receive)
    asyncio.run(call.receive())  # type: ignore[arg-type]
    entry = call.entry(scope_of(), Caller(UNRESTRICTED), b"r-1", status)
    assert entry is not None
    return entry


@pytest.mark.parametrize("status", [200, 422])
@pytest.mark.parametrize(
    "body",
    [b'{"name":"\\ud800"}', b'{"\\udfff":1}', b'{"name":NaN}', b'{"name":-Infinity}', b"\xff", b"[" * 4_000],
)
def test_a_body_that_is_not_json_leaves_an_entry_without_it(body: bytes, status: int) -> None:
    entry = entry_about(body, status)
    assert entry["request"] is None
    assert json.loads(msgspec.json.encode(entry))["status"] == status


def test_a_line_about_a_call_is_json() -> None:
    record = logging.makeLogRecord({"msg": "administration", **entry_about(b'{"name":NaN}', 422)})

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(LineFormatter(as_json=True).format(record), parse_constant=refuse)["status"] == 422


def test_a_long_target_does_not_make_an_entry_too_large() -> None:
    scope = scope_of("/v1/logs/" + "\x01" * 60_000, b"\x7f\xff" * 30_000)
    entry = refusal_entry(scope, Caller(UNRESTRICTED), b"r" * 128, Forbidden("no"))
    assert len(msgspec.json.encode(entry)) < ENTRY_MAX_BYTES
    assert entry["path"].startswith("/v1/logs/\x01")
    assert entry["path"].endswith("…")
