"""Traces: a span for each call at each node that it reaches, and one for the replication of each append.

Off by default; then no code of this module runs for a call. Spans are sent to an OpenTelemetry collector as
OTLP over HTTP, in JSON. A trace crosses nodes by the header `traceparent` (W3C Trace Context), which a
forwarded call keeps.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from yarl import URL

from app.api.http.messages import REQUEST_ID
from app.errors import CommitlogError
from app.pauses import Repeats
from app.settings.model import TracingSettings
from app.version import VERSION

logger = logging.getLogger(__name__)

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
WAITING_MAX: Final = 4_096  # spans in memory; later ones are dropped
EXPORT_S: Final = 1.0
_SPANS_A_REQUEST: Final = 512
_TIMEOUT_S: Final = 5.0
_PATH_MAX: Final = 1_024  # characters of a path in a span; those of routes are shorter
_PARENT = re.compile(  # W3C Trace Context, section 3.2: a version after 00 may have further fields
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
PROBES: Final = ("/healthz", "/readyz", "/metrics")  # not traced, and not counted as in flight
_SERVER, _INTERNAL, _ERROR = 2, 1, 2  # OTLP: kinds of spans, status code
Result = TypeVar("Result")


@dataclass(slots=True)
class Span:
    """One piece of work. Ids in hexadecimal; times in nanoseconds since 1970."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str | None
    sampled: bool
    started_ns: int
    ended_ns: int = 0
    failed: bool = False
    attributes: dict[str, str | int] = field(default_factory=dict)

    @property
    def traceparent(self) -> bytes:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}".encode()


class Tracer:
    """Spans of one node on their way to the collector. Owned by the event loop; `run` runs beside it."""

    def __init__(self, settings: TracingSettings, node_id: str, chance: Random | None = None) -> None:
        self.dropped = 0
        self._url = URL(f"{(settings.endpoint or '').rstrip('/')}/v1/traces")
        self._ratio = settings.sample_percent / 100
        self._node_id = node_id
        self._chance = chance or SystemRandom()
        self._ended: deque[Span] = deque()
        self._failure: object = "it is too slow"  # of the newest request
        self._reported = 0  # dropped spans that log lines have named
        self._reports = Repeats()

    def begin(self, name: str, parent: bytes | None, kind: int = _INTERNAL) -> Span:
        """Begin a span. parent: a traceparent; without a valid one the span begins a trace."""
        found = _PARENT.fullmatch(parent) if parent is not None else None
        if parent is None or found is None or (found[4] is not None and parent.startswith(b"00")):
            trace_id, parent_id = f"{self._chance.getrandbits(128) or 1:032x}", None
            sampled = self._chance.random() < self._ratio
        else:
            trace_id, parent_id = found[1].decode(), found[2].decode()
            sampled = bool(int(found[3], 16) & 1)
        span_id = f"{self._chance.getrandbits(64) or 1:016x}"
        return Span(name, kind, trace_id, span_id, parent_id, sampled, time.time_ns())

    def end(self, span: Span) -> None:
        """Queue a span for the collector."""
        if not span.sampled:
            return
        if len(self._ended) >= WAITING_MAX:
            self.dropped += 1
            return
        span.ended_ns = time.time_ns()
        self._ended.append(span)

    def timed(
        self, name: str, parent: bytes | None, done: Callable[[Result | CommitlogError], None]
    ) -> Callable[[Result | CommitlogError], None]:
        """Return `done` with a span from now until it is called."""
        span = self.begin(name, parent)

        def ended(result: Result | CommitlogError) -> None:
            if isinstance(result, CommitlogError):
                span.failed = True
                span.attributes["error.type"] = result.code
            self.end(span)
            done(result)

        return ended

    async def run(self) -> None:
        """Send ended spans to the collector, until cancelled; what it does not accept is dropped."""
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.sleep(EXPORT_S)
                while self._ended:
                    spans = [self._ended.popleft() for _ in range(min(_SPANS_A_REQUEST, len(self._ended)))]
                    await self._export(session, spans)

    async def _export(self, session: aiohttp.ClientSession, spans: list[Span]) -> None:
        body = msgspec.json.encode(self.document(spans))
        failure: object = None
        try:
            async with session.post(
                self._url, data=body, headers={"Content-Type": "application/json"}, allow_redirects=False
            ) as answer:
                if answer.status >= 300:
                    failure = f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = error
        if failure is not None:
            self.dropped += len(spans)
            self._failure = str(failure) or type(failure).__name__
        self._report(time.monotonic())

    def _report(self, now_s: float) -> None:
        """Log how many spans were dropped since the last line about it, at most once in REPORT_S."""
        if self.dropped == self._reported or not self._reports.allow(self._url, now_s):
            return
        count, self._reported = self.dropped - self._reported, self.dropped
        address = self._url.with_user(None)  # the password ends with it
        logger.warning("%d spans dropped, collector %s: %s", count, address, self._failure)

    def document(self, spans: list[Span]) -> dict[str, Any]:
        """Return the OTLP request for the spans."""
        resource = {
            "service.name": "commitlog",
            "service.version": VERSION,
            "service.instance.id": self._node_id,
        }
        return {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(resource)},
                    "scopeSpans": [
                        {"scope": {"name": "commitlog", "version": VERSION}, "spans": [*map(_encoded, spans)]}
                    ],
                }
            ]
        }


class TracedApp:
    """An ASGI application that gives each call of another one a span."""

    def __init__(self, inner: ASGIApp, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PROBES:
            await self._inner(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == TRACEPARENT]
        span = self._tracer.begin(scope["method"], given[0] if len(given) == 1 else None, _SERVER)
        replaced = (TRACEPARENT,) if span.parent_id else (TRACEPARENT, TRACESTATE)  # of another trace
        others = [(name, value) for name, value in scope["headers"] if name not in replaced]
        span.attributes |= {"http.request.method": scope["method"], "url.path": scope["path"][:_PATH_MAX]}
        scope["headers"] = [*others, (TRACEPARENT, span.traceparent)]

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                span.attributes["http.response.status_code"] = message["status"]
                span.failed = message["status"] >= 500
                with contextlib.suppress(KeyError):
                    span.attributes["commitlog.request_id"] = dict(message["headers"])[REQUEST_ID].decode()
            await send(message)

        try:
            await self._inner(scope, receive, noted)
        finally:
            route = getattr(scope.get("route"), "path", None)
            if route is not None:
                span.name = f"{span.name} {route}"
                span.attributes["http.route"] = route
            self._tracer.end(span)


def _attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in given.items()
    ]


def _encoded(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        **({} if span.parent_id is None else {"parentSpanId": span.parent_id}),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.started_ns),
        "endTimeUnixNano": str(span.ended_ns),
        "attributes": _attributes(span.attributes),
        **({"status": {"code": _ERROR}} if span.failed else {}),
    }
