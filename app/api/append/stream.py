"""`POST …/records:stream`: appends one after the other on one connection, answered in order as they commit.

Up to WINDOW appends are in flight; the log holds them in the order of the stream. After the first failure
nothing more of the stream is stored, and its problem is the last line. A node that does not lead forwards the
stream to the leader as it arrives.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api.access.rules import caller_of
from app.api.append.call import AppendCall, AppendHead, media_type_of
from app.api.append.handler import AppendHandler
from app.api.append.openapi import STREAM_EXTRA, STREAM_RESPONSES
from app.api.append.parameters import AppendParameters, parse_append_query
from app.api.append.stream_pieces import pieces_of
from app.api.http.dependencies import LogName, Node, request_id_of, target_of
from app.api.http.leader_headers import log_headers
from app.api.http.leader_proxy import LeaderProxy
from app.api.http.messages import Response as Answer
from app.api.http.messages import problem_response
from app.errors import CommitlogError, InvalidRequest, NoLeader, NotLeader
from app.log.contract import AppendStream
from app.media_types import NDJSON
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.http_forwarder import NO_FORWARD, Lost, NotSent
from app.node.replica.driver import LogDriver
from app.settings.model import NodeSettings

router = APIRouter(tags=["records"])

WINDOW: Final = 256  # appends in flight
WINDOW_BYTES: Final = 16 * 1024 * 1024
IN_ORDER_BYTES: Final = 128 * 1024  # a larger append is decoded in a thread: no other one is begun meanwhile
_HEAD_TIMEOUT_S: Final = 2.0  # of a node that a stream is forwarded to


@router.post(
    "/v1/logs/{log}/records:stream",
    summary="Append many times on one connection",
    description="Each line, Arrow record batch or packed batch is one append. The response has one line for "
    "each append, in order: its answer or its problem. Nothing is stored after the first failure. The "
    "parameters `match_index` and `match_term` apply to the first append only; `producer_sequence` is the "
    "sequence of the first append and rises by one with each.",
    responses=STREAM_RESPONSES,
    openapi_extra=STREAM_EXTRA,
    response_class=Response,
)
async def append_stream(request: Request, broker: Node, log: LogName) -> Response:
    hosted = broker.find(log)
    headers = {name.lower(): value for name, value in request.headers.raw}
    if b"idempotency-key" in headers or b"content-encoding" in headers:
        name = "Idempotency-Key" if b"idempotency-key" in headers else "Content-Encoding"
        raise InvalidRequest(
            (f"/headers/{name}", "is not supported for a stream; for idempotent appends use a producer")
        )
    media_type = media_type_of(headers.get(b"content-type", b""))
    parameters = parse_append_query(request.scope["query_string"])
    limit = broker.settings.limits.max_request_bytes

    async def here(_: LogDriver) -> Response:
        piece_type, pieces = pieces_of(request.stream(), media_type, limit)
        handler: AppendHandler = request.app.state.appends
        stream = _AppendStream(request, handler, hosted.name, piece_type, parameters)
        return _StreamResponse(stream.lines(pieces), media_type=NDJSON, headers=_text(broker, hosted))

    async def there(node: NodeSettings) -> Response:
        return await _forwarded(request, broker, node)

    proxy = LeaderProxy(broker)
    stays = headers.get(NO_FORWARD) == b"1"
    return await proxy.at_leader(hosted, here, there, deadline_ms=proxy.deadline_ms(), stays=stays)


def _text(broker: Broker, hosted: HostedLog) -> dict[str, str]:
    return {name.decode(): value.decode("latin-1") for name, value in log_headers(broker, hosted)}


async def _forwarded(request: Request, broker: Broker, node: NodeSettings) -> Response:
    """Forward the stream to a node that leads, and its answers to the client, as they arrive.

    The first bytes of the body follow the head of the answer, so a node that does not lead has read nothing
    of the stream. Raises NotSent, NotLeader, NoLeader.
    """
    accepted = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b""  # sends the head of the request
        await accepted.wait()
        async for part in request.stream():
            yield part

    try:
        stream = await broker.forwarder.pass_stream(
            node, target_of(request), request.headers.raw, body(), request_id_of(request), _HEAD_TIMEOUT_S
        )
    except Lost as error:
        raise NotSent(str(error)) from error
    if stream.status in (NotLeader.http_status, NoLeader.http_status):
        stream.close()
        raise NotLeader(None) if stream.status == NotLeader.http_status else NoLeader()
    accepted.set()
    response = _StreamResponse(stream.pieces(), status_code=stream.status)
    response.raw_headers = stream.headers
    return response


class _StreamResponse(StreamingResponse):
    """An answer that is sent while the request arrives: incoming messages belong to the request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await self.stream_response(send)


class _AppendStream:
    """One client's stream at the leader. Invariant: answers leave in the order of the appends."""

    def __init__(
        self,
        request: Request,
        handler: AppendHandler,
        log: str,
        media_type: str,
        parameters: AppendParameters,
    ) -> None:
        self._handler = handler
        self._path = request.url.path
        self._caller = caller_of(request)
        self._request_id = request_id_of(request)
        given = [
            (name.lower(), value) for name, value in request.headers.raw if name.lower() != b"content-type"
        ]
        one = [(b"content-type", media_type.encode()), (NO_FORWARD, b"1")]
        self._head = AppendHead(log, self._path, b"", [*given, *one])
        self._parameters = parameters
        self._order = AppendStream()
        self._open: deque[tuple[asyncio.Future[Answer], int]] = deque()
        self._open_bytes = 0
        self._count = 0

    async def lines(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield the answers, until the stream ends or an append fails."""
        problem: CommitlogError | None = None
        piece: asyncio.Future[bytes | None] | None = None
        try:
            while True:
                piece = piece or asyncio.ensure_future(anext(pieces, None))
                waiting: list[asyncio.Future[Any]] = [] if self._is_full else [piece]
                if self._open:
                    waiting.append(self._open[0][0])
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                while self._open and self._open[0][0].done():
                    answer = self._take_answer()
                    yield answer.body + b"\n"
                    if answer.status >= 300:
                        return
                if piece.done() and not self._is_full:
                    try:
                        data = piece.result()
                    except CommitlogError as error:
                        problem, data = error, None
                    piece = None
                    if data is None:
                        break
                    self._begin(data)
            while self._open:
                await asyncio.wait([self._open[0][0]])
                answer = self._take_answer()
                yield answer.body + b"\n"
                if answer.status >= 300:
                    return
            if problem is not None:
                yield self._problem(problem).body + b"\n"
        finally:
            self._order.broken = True
            if piece is not None:
                piece.cancel()

    @property
    def _is_full(self) -> bool:
        large = self._open and self._open[-1][1] > IN_ORDER_BYTES
        return bool(large) or len(self._open) >= WINDOW or self._open_bytes >= WINDOW_BYTES

    def _begin(self, data: bytes) -> None:
        """Let the next append enter the log after the one before."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open.append((future, len(data)))
        self._open_bytes += len(data)
        call = AppendCall(
            self._head,
            data,
            self._request_id,
            len(data),
            self._next_parameters(),
            self._order,
        )
        try:
            if self._count > 1:  # the request itself has counted
                self._caller.spend()
            self._handler.in_flight.enter(len(data))
        except CommitlogError as error:
            self._order.broken = True
            future.set_result(self._problem(error))
            return

        def answered(answer: Answer) -> None:
            if answer.status >= 300:
                self._order.broken = True
            if not future.done():
                future.set_result(answer)

        self._handler.handle(call, answered)

    def _next_parameters(self) -> AppendParameters:
        parameters = self._parameters
        producer = parameters.producer
        if self._count:
            if producer is not None:
                producer = replace(producer, sequence=producer.sequence + self._count)
            parameters = replace(parameters, match_index=None, match_term=None, producer=producer)
        self._count += 1
        return parameters

    def _take_answer(self) -> Answer:
        future, size = self._open.popleft()
        self._open_bytes -= size
        return future.result()

    def _problem(self, error: CommitlogError) -> Answer:
        return problem_response(error, instance=self._path, request_id=self._request_id)
