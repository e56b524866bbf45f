"""`POST …/records:stream`: appends one after the other on one connection, answered in order as they commit.

Many appends are in flight (stream_window.py); the log holds them in the order of the stream. After the first
failure nothing more of the stream is stored, and its problem is the last line. A node that does not lead
forwards the stream to the leader as it arrives.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api.access.rules import caller_of
from app.api.append.bodies import decodes_in_place, refuse_record_headers
from app.api.append.call import AppendCall, AppendHead, media_type_of
from app.api.append.groups import judges_records
from app.api.append.handler import AppendHandler
from app.api.append.openapi import STREAM_EXTRA, STREAM_RESPONSES
from app.api.append.parameters import AppendParameters, parse_append_query
from app.api.append.stream_groups import lines_of_answers, records_of_group, take_group
from app.api.append.stream_pieces import STREAM_TYPES, pieces_of
from app.api.append.stream_window import StreamWindow
from app.api.http.dependencies import LogName, NodeBroker, request_id_of, target_of
from app.api.http.json_decoding import MAX_ORDINAL
from app.api.http.leader_headers import log_headers
from app.api.http.leader_proxy import LeaderProxy
from app.api.http.messages import Response as Answer
from app.api.http.messages import is_problem, problem_response
from app.api.http.negotiation import accepted_type
from app.errors import (
    CommitlogError,
    InvalidRequest,
    NoLeader,
    NotLeader,
    QuorumTimeout,
    Unauthenticated,
    UnsupportedMediaType,
)
from app.log.contract import AppendStream
from app.media_types import JSON, NDJSON
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.http_forwarder import NO_FORWARD, Lost, NotSent, Stream
from app.node.replica.driver import LogDriver
from app.settings.model import Limits, NodeSettings
from storage.format.records import RecordColumns
from storage.units import KIB

router = APIRouter(tags=["records"])

A_TURN: Final = 256  # appends that one stream begins in one turn of the event loop: heartbeats wait meanwhile
TURN_BYTES: Final = 128 * KIB  # of these appends: once that is reached no more are begun
_HEAD_TIMEOUT_S: Final = 2.0  # of a node that a stream is forwarded to
_QUIET_S: Final = 2.0  # without an answer of that node: whether it still leads is looked at


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
async def append_stream(request: Request, broker: NodeBroker, log: LogName) -> Response:
    hosted = broker.lookup.find(log)
    accepted_type(request.scope["headers"], (NDJSON,))
    headers = {name.lower(): value for name, value in request.headers.raw}
    if b"idempotency-key" in headers:
        raise InvalidRequest(
            (
                "/headers/Idempotency-Key",
                "is not supported for a stream; for idempotent appends use a producer",
            )
        )
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise UnsupportedMediaType(
            "a stream of appends has no Content-Encoding; compress single appends", encodings=("identity",)
        )
    media_type = media_type_of(headers.get(b"content-type", b""), STREAM_TYPES)
    refuse_record_headers(headers)
    parameters = parse_append_query(request.scope["query_string"])
    limit = broker.settings.limits.max_request_bytes

    async def here(_: LogDriver) -> Response:
        piece_type, pieces = pieces_of(request.stream(), media_type, limit)
        handler: AppendHandler = request.app.state.appends
        groups = broker.settings.limits if piece_type == JSON else None
        stream = _AppendStream(request, handler, hosted, piece_type, parameters, groups)
        return _StreamResponse(stream.lines(pieces), media_type=NDJSON, headers=_text(broker, hosted))

    async def there(node: NodeSettings) -> Response:
        return await _forwarded(request, broker, hosted, node)

    proxy = LeaderProxy(broker)
    here_only = headers.get(NO_FORWARD) == b"1"
    return await proxy.at_leader(hosted, here, there, deadline_ms=proxy.deadline_ms(), here_only=here_only)


def _text(broker: Broker, hosted: HostedLog) -> dict[str, str]:
    found = {name.decode(): value.decode("latin-1") for name, value in log_headers(broker, hosted)}
    return {**found, "x-accel-buffering": "no"}  # a proxy passes each answer on at once


def _check_sequence(parameters: AppendParameters) -> None:
    """Raise InvalidRequest for a sequence that has risen beyond its range."""
    producer = parameters.producer
    if producer is not None and producer.sequence > MAX_ORDINAL:
        detail = f"must be at most {MAX_ORDINAL} for each append of the stream, got {producer.sequence}"
        raise InvalidRequest(("/query/producer_sequence", detail))


async def _forwarded(request: Request, broker: Broker, hosted: HostedLog, node: NodeSettings) -> Response:
    """Forward the stream to a node that leads, and its answers to the client, as they arrive.

    The first bytes of the body follow the head of the answer, so a node that does not lead has read nothing
    of the stream. Raises NotSent, NotLeader, NoLeader.
    """
    accepted = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b""  # sends the head of the request
        await accepted.wait()
        try:
            async for part in request.stream():
                yield part
        except ClientDisconnect:
            stream.close()  # the leader would wait for more of the stream, and this node for its answers
            raise

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

    def may_lead() -> bool:
        return hosted.serving is None or hosted.leader_id in (None, node.id)

    answers = _answers_of(stream, request, may_lead) if stream.status < 300 else stream.pieces()
    response = _StreamResponse(answers, status_code=stream.status)
    response.raw_headers = stream.headers
    return response


async def _answers_of(stream: Stream, request: Request, may_lead: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield the answers of the leader, until one is a problem; if the leader is lost before that, a problem
    follows the last one that arrived whole.

    may_lead(): False while this node knows that another one leads.
    """
    partial_line = b""
    pieces = stream.pieces()
    try:
        while piece := await _next_of(pieces, may_lead):
            lines, newline, partial_line = (partial_line + piece).rpartition(b"\n")
            if newline:
                yield lines + newline
                if is_problem(lines.rpartition(b"\n")[2]):
                    return  # the leader closes the connection, which may be lost before its end arrives
    except Lost as error:
        problem = QuorumTimeout(None, f"the leader's answer was lost: {error}")
        path = request.url.path
        yield problem_response(problem, instance=path, request_id=request_id_of(request)).body + b"\n"
    finally:
        stream.close()


async def _next_of(pieces: AsyncIterator[bytes], may_lead: Callable[[], bool]) -> bytes:
    """Return the next piece of the answers, b"" after the last one.

    Raises Lost if none arrives while another node leads: one that hangs or is cut off closes no connection.
    """
    arriving = asyncio.ensure_future(anext(pieces, b""))
    led = True
    try:
        while not (await asyncio.wait({arriving}, timeout=_QUIET_S))[0]:
            leads = may_lead()
            if not (led or leads):
                raise Lost(f"another node leads, and no answer arrived for {2 * _QUIET_S:g} s")
            led = leads
    finally:
        arriving.cancel()
    return arriving.result()


class _StreamResponse(StreamingResponse):
    """An answer that is sent while the request arrives: incoming messages belong to the request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await self.stream_response(send)


class _OpenAppend:
    """An append of a stream, or a group of them, and its answer once it has one.

    size: of its body, bytes. is_decoded_aside: by a thread, so no other one begins before its answer.
    """

    __slots__ = ("answer", "count", "is_decoded_aside", "size")

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.count = count
        self.is_decoded_aside = False
        self.answer: Answer | None = None


class _AppendStream:
    """One client's stream at the leader. Invariant: answers leave in the order of the appends.

    All appends that arrive together begin in one turn of the event loop, and answers that are ready together
    leave in one write.
    """

    def __init__(
        self,
        request: Request,
        handler: AppendHandler,
        hosted: HostedLog,
        media_type: str,
        parameters: AppendParameters,
        groups: Limits | None = None,
    ) -> None:
        """groups: limits of appends; None: each piece is an append, never a part of one."""
        self._handler = handler
        self._hosted = hosted
        self._path = request.url.path
        self._caller = caller_of(request)
        self._granted = self._caller.grant
        self._request_id = request_id_of(request)
        of_the_stream = (b"accept", b"content-type")
        given = [
            (name.lower(), value) for name, value in request.headers.raw if name.lower() not in of_the_stream
        ]
        one = [(b"content-type", media_type.encode()), (NO_FORWARD, b"1")]
        self._head = AppendHead(hosted.name, self._path, b"", [*given, *one])
        self._parameters = parameters
        self._later = replace(parameters, match_index=None, match_term=None)  # of all but the first append
        self._groups = groups if parameters.producer is None and not self._caller.has_rate_limit else None
        self._order = AppendStream()
        self._arrived: deque[bytes] = deque()  # not begun: the window is full
        self._open: deque[_OpenAppend] = deque()
        self._window = StreamWindow(handler.stream_windows)
        self._count = 0
        self._has_failed = False
        self._changed = asyncio.Event()  # pieces have arrived, or the oldest append has its answer

    async def lines(self, pieces: AsyncIterator[list[bytes]]) -> AsyncIterator[bytes]:
        """Yield the answers, until the stream ends or an append fails."""
        problem: CommitlogError | None = None
        incoming: asyncio.Future[list[bytes] | None] | None = None
        has_ended = False
        try:
            while True:
                self._changed.clear()
                self._begin_arrived()
                answers, is_last = self._take_answers()
                if answers:
                    yield answers
                if is_last:
                    return
                if self._arrived and not self._is_full:
                    await asyncio.sleep(0)
                    continue
                if incoming is not None and incoming.done():
                    try:
                        found = incoming.result()
                    except CommitlogError as error:
                        problem, found = error, None
                    incoming = None
                    has_ended = found is None
                    if not self._has_failed:
                        self._arrived.extend(found or ())
                    continue
                if has_ended and not self._open:
                    break
                if incoming is None and not (has_ended or self._arrived or self._has_failed):
                    incoming = asyncio.ensure_future(anext(pieces, None))
                    incoming.add_done_callback(lambda _: self._changed.set())
                await self._changed.wait()
            if problem is not None:
                yield self._problem(problem).body + b"\n"
        finally:
            self._order.broken = True
            self._window.close()
            if incoming is not None:
                incoming.cancel()

    @property
    def _is_full(self) -> bool:
        is_decoded_aside = bool(self._open) and self._open[-1].is_decoded_aside
        return is_decoded_aside or not self._window.room

    def _begin_arrived(self) -> None:
        left, left_bytes = A_TURN, TURN_BYTES
        while left > 0 and left_bytes > 0 and self._arrived and not self._is_full:
            limits = self._groups if self._may_group else None
            if limits is None:
                left -= 1
                left_bytes -= len(self._arrived[0])
                self._begin(self._arrived.popleft())
                continue
            group = take_group(self._arrived, min(left, self._window.room), limits)
            left -= len(group)
            left_bytes -= sum(map(len, group))
            records = records_of_group(group, limits) if len(group) > 1 else None
            if records is not None:
                self._begin(b"", sum(map(len, group)), records)
                continue
            for number, data in enumerate(group):
                if self._has_failed:
                    return
                if self._is_full:
                    self._arrived.extendleft(reversed(group[number:]))
                    return
                self._begin(data)

    @property
    def _may_group(self) -> bool:
        """Return whether the next lines may be one append: what could refuse one of them would refuse all."""
        if not self._count and self._later != self._parameters:
            return False
        return not judges_records(self._hosted.driver)

    def _begin(self, data: bytes, size: int | None = None, records: RecordColumns | None = None) -> None:
        """Let the next append, or the next group of lines, enter the log after the one before. size: None:
        of the data."""
        append = _OpenAppend(len(data) if size is None else size, 1 if records is None else records.count)
        self._open.append(append)
        self._window.enter(append.count, append.size)
        parameters = self._next_parameters(append.count)
        call = AppendCall(self._head, data, self._request_id, append.size, parameters, self._order, records)
        try:
            _check_sequence(parameters)
            if not self._caller.holds(self._granted):
                raise Unauthenticated("the token was removed or has lost rights since the stream began")
            if self._count > 1:  # the request itself has counted
                self._caller.spend()
            append.is_decoded_aside = not decodes_in_place(call)
            self._handler.in_flight.enter(append.size)
        except CommitlogError as error:
            self._answered(append, self._problem(error))
            return
        self._handler.handle(call, partial(self._answered, append))

    def _answered(self, append: _OpenAppend, answer: Answer) -> None:
        """Record an answer. After a failure no later append begins; the driver refuses those that have begun,
        unless this one has not reached it: the earlier ones in its queue are good."""
        if answer.status >= 300:
            self._has_failed = True
            self._arrived.clear()
        append.answer = answer
        if self._open and self._open[0] is append:
            self._changed.set()

    def _next_parameters(self, count: int) -> AppendParameters:
        """Return the parameters of the next append, or group of `count` lines."""
        parameters = self._later if self._count else self._parameters
        producer = parameters.producer
        if producer is not None and self._count:
            producer = replace(producer, sequence=producer.sequence + self._count)
            parameters = replace(parameters, producer=producer)
        self._count += count
        return parameters

    def _take_answers(self) -> tuple[bytes, bool]:
        """Return the lines that can leave now, and whether the last one is a problem: it ends the stream."""
        lines: list[bytes] = []
        while self._open and (answer := self._open[0].answer) is not None:
            append = self._open.popleft()
            self._window.leave(append.count, append.size)
            if answer.status >= 300:
                return b"".join((*lines, answer.body, b"\n")), True
            lines += (answer.body, b"\n") if append.count == 1 else (lines_of_answers(answer, append.count),)
        return b"".join(lines), False

    def _problem(self, error: CommitlogError) -> Answer:
        return problem_response(error, instance=self._path, request_id=self._request_id)
