"""Traces cross nodes by `traceparent`, and name what took the time."""

import asyncio
from random import Random
from typing import Any

import pytest

from app.api.http import tracing
from app.api.http.tracing import TracedApp, Tracer
from app.errors import NoLeader
from app.settings.model import TracingSettings

PARENT = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


def tracer_of(**settings: Any) -> Tracer:
    return Tracer(TracingSettings(endpoint="http://collector", **settings), "n1", Random(1))


def call(tracer: Tracer, *traceparents: bytes) -> bytes:
    """Return the traceparent that the application, and a node that it forwards to, sees."""
    seen: list[bytes] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value for name, value in scope["headers"] if name == b"traceparent")
        tracer.timed("replicate", seen[0], lambda _: None)(NoLeader())
        headers = [(b"x-request-id", b"r-1")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        pass

    headers = [(b"host", b"x"), *((b"traceparent", value) for value in traceparents)]
    scope = {"type": "http", "method": "POST", "path": "/v1/logs/a/records", "headers": headers}
    asyncio.run(TracedApp(application, tracer)(scope, send, send))  # type: ignore[arg-type]
    (one,) = seen
    return one


def test_a_call_continues_the_trace_of_its_client() -> None:
    tracer = tracer_of()
    passed_on = call(tracer, PARENT)
    replicate, server = tracer._ended
    assert (server.trace_id, server.parent_id) == ("a" * 32, "b" * 16)
    assert passed_on == f"00-{'a' * 32}-{server.span_id}-01".encode()
    assert (replicate.name, replicate.trace_id, replicate.parent_id) == (
        "replicate",
        "a" * 32,
        server.span_id,
    )
    (encoded,) = tracer.document([server])["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert encoded["parentSpanId"] == "b" * 16
    assert encoded["status"] == {"code": 2}
    assert {"key": "commitlog.request_id", "value": {"stringValue": "r-1"}} in encoded["attributes"]
    assert int(encoded["startTimeUnixNano"]) <= int(encoded["endTimeUnixNano"])


@pytest.mark.parametrize(
    "given", [(), (b"x",), (PARENT, PARENT), (b"ff" + PARENT[2:],), (b"00-" + b"0" * 32 + PARENT[35:],)]
)
def test_without_a_valid_parent_a_trace_begins(given: tuple[bytes, ...]) -> None:
    tracer = tracer_of()
    call(tracer, *given)
    assert tracer._ended[1].parent_id is None
    assert tracer._ended[1].trace_id != "a" * 32


def test_a_trace_that_is_not_sampled_is_passed_on_and_not_kept() -> None:
    tracer = tracer_of(sample_percent=0)
    assert call(tracer).endswith(b"-00")
    assert call(tracer, PARENT[:-1] + b"0").endswith(b"-00")
    assert not tracer._ended
    call(tracer, PARENT)  # the client decides
    assert len(tracer._ended) == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "WAITING_MAX", 3)
    tracer = tracer_of()
    for _ in range(3):
        call(tracer, PARENT)
    assert (len(tracer._ended), tracer.dropped) == (3, 3)
