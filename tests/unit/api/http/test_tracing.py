"""Traces cross nodes by `traceparent`, and name what took the time."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from app.api.http import tracing
from app.api.http.tracing import TracedApp, Tracer
from app.errors import NoLeader
from app.pauses import REPORT_S
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
    "given",
    [
        (),
        (b"x",),
        (PARENT, PARENT),
        (b"ff" + PARENT[2:],),
        (b"00-" + b"0" * 32 + PARENT[35:],),
        (PARENT + b"-00",),  # version 00 has four fields
        (b"01" + PARENT[2:] + b"00",),
    ],
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


def test_a_later_version_of_the_header_may_have_further_fields() -> None:
    tracer = tracer_of()
    call(tracer, b"cc" + PARENT[2:] + b"-more")
    assert (tracer._ended[1].trace_id, tracer._ended[1].parent_id) == ("a" * 32, "b" * 16)


@pytest.mark.parametrize(("parent", "kept"), [(PARENT, [b"vendor=1"]), (b"x", [])])
def test_the_state_of_a_trace_is_passed_on_with_it_alone(parent: bytes, kept: list[bytes]) -> None:
    seen: list[bytes] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value for name, value in scope["headers"] if name == b"tracestate")

    headers = [(b"traceparent", parent), (b"tracestate", b"vendor=1")]
    scope = {"type": "http", "method": "GET", "path": "/v1/logs", "headers": headers}
    asyncio.run(TracedApp(application, tracer_of())(scope, None, None))  # type: ignore[arg-type]
    assert seen == kept


def test_a_span_holds_the_begin_of_a_long_path() -> None:
    """4 096 spans wait: with the paths of a client that sends 64 KiB in each request they were 0.5 GiB."""
    tracer = tracer_of()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/v1/" + "\ufffd" * 60_000, "headers": []}
    asyncio.run(TracedApp(application, tracer)(scope, None, None))  # type: ignore[arg-type]
    (span,) = tracer._ended
    assert len(str(span.attributes["url.path"])) == 1_024


class Session:
    """A session of aiohttp whose collector answers with the statuses in turn; 0: it is not reached."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.options: list[dict[str, Any]] = []

    @asynccontextmanager
    async def post(self, _url: object, **options: Any) -> AsyncIterator[Any]:
        self.options.append(options)
        status = self._statuses.pop(0)
        if not status:
            raise aiohttp.ClientConnectionError("refused")
        yield SimpleNamespace(status=status)


def test_dropped_spans_are_reported_once_in_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of a busy node is eight requests each second, and each of them was a line."""
    now_s = 1_000.0
    monkeypatch.setattr(tracing, "time", SimpleNamespace(monotonic=lambda: now_s, time_ns=lambda: 0))
    tracer = Tracer(TracingSettings(endpoint="http://ops:secret@collector:4318"), "n1", Random(1))
    session: Any = Session(0, 503, 302, 200, 0, 200)
    spans = [tracer.begin("x", None)]

    async def export(times: int) -> None:
        for _ in range(times):
            await tracer._export(session, spans)

    with caplog.at_level(logging.WARNING):
        asyncio.run(export(5))
        now_s += REPORT_S
        asyncio.run(export(1))
    first, second = (record.getMessage() for record in caplog.records)
    assert first == "1 spans dropped, collector http://collector:4318/v1/traces: refused"
    assert second.startswith("3 spans dropped, ")
    assert tracer.dropped == 4
    assert all(options["allow_redirects"] is False for options in session.options)


def test_spans_that_a_slow_collector_leaves_behind_are_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "WAITING_MAX", 1)
    tracer = tracer_of()
    call(tracer, PARENT)
    session: Any = Session(200)
    with caplog.at_level(logging.WARNING):
        asyncio.run(tracer._export(session, [tracer._ended.popleft()]))
    assert [record.getMessage() for record in caplog.records] == [
        "1 spans dropped, collector http://collector/v1/traces: it is too slow"
    ]
