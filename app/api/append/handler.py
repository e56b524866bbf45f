"""Appends: the handler that every front shares, free of any framework.

A call is checked, then either queued at this node's driver (when it leads the log) or forwarded to the
leader. A callback delivers the answer: nothing waits in here, so a client that disconnects disturbs no other.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec

from app.api.append.bodies import decodes_in_place, read_append
from app.api.append.call import AppendCall
from app.api.append.carried_head import carried_head
from app.api.append.parameters import without_timeout
from app.api.append.stream_window import StreamWindows
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.lane_call import RECORDS_ROUTE
from app.api.http.leader_headers import log_headers, not_leader
from app.api.http.leader_proxy import LeaderProxy, check_led
from app.api.http.messages import JSON_TYPE, REQUEST_ID, Response, problem_response
from app.api.http.tracing import TRACEPARENT, Tracer
from app.errors import CommitlogError, Forbidden, Internal, NoLeader, NotLeader, QuorumTimeout
from app.futures import settle
from app.log.contract import Acks, AppendRequest, AppendResult
from app.names import SYSTEM
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.append_carrier import CarryOutcome
from app.node.network.http_forwarder import NO_FORWARD, Lost, NotSent, Relayed
from app.node.replica.commit_waiters import answer
from app.node.replica.driver import LogDriver
from app.settings.model import NodeSettings
from storage.format.records import RecordColumns, RecordTable

logger = logging.getLogger(__name__)

ResponseDone = Callable[[Response], None]


_GRACE_MS: Final = 1_000  # the leader's own timeout ends earlier, with the more precise answer


class AppendAnswer(msgspec.Struct, frozen=True):
    """The answer of docs/api.md §2, in its order of fields."""

    log: str
    first_index: int
    last_index: int
    count: int
    term: int
    first_offset: int
    next_offset: int
    timestamp: int
    committed_index: int
    next_index: int
    leader: str
    acks: str
    durability: str
    replayed: bool


_ENCODE = msgspec.json.Encoder().encode


class AppendHandler:
    """Takes appends from any front. `handle` and `refused` call `done` exactly once, at once or later, and
    never raise, also if `done` does.

    A front adds a request to `in_flight` before it reads the body; the answer removes it.
    """

    def __init__(self, broker: Broker, tracer: Tracer | None = None) -> None:
        self.broker = broker
        self.tracer = tracer
        self.url = broker.node.url.encode("latin-1")
        http = broker.settings.http
        self.in_flight = InFlightLimit(http.max_open_appends, http.max_open_bytes)
        self.stream_windows = StreamWindows(broker.settings.limits, http)

    def check_log(self, name: str) -> None:
        """Raise LogNotFound, InvalidRequest or Forbidden before a body is read."""
        self.broker.lookup.find(name)
        if name.startswith(SYSTEM):
            raise Forbidden("clients may not append to a system log")

    def handle(self, call: AppendCall, done: ResponseDone) -> None:
        """Check a call and begin it; done(answer) when it ends. Order of checks: docs/api.md §3."""
        _OneAppend(self, self.broker, call, done).begin()

    def refused(
        self, call: AppendCall, hosted: HostedLog, failure: CommitlogError, done: ResponseDone
    ) -> None:
        """Continue a valid append of a group that the driver of `hosted` has refused, or whose outcome is
        unknown: forward it or answer it, as one that was refused alone."""
        _OneAppend(self, self.broker, call, done).continue_after(hosted, failure)

    # --- answers, of single appends and of groups ---------------------------------------------------------

    def acknowledged(self, arrivals: Mapping[int, int], records: RecordColumns | RecordTable | None) -> None:
        """Count appends that were acknowledged. arrivals: number of appends by the time of their arrival, in
        monotonic ms. records: None for a repeat, whose records were counted before."""
        now_ms, meter = self.broker.clock.monotonic_ms(), self.broker.meter
        for arrived_ms, appends in arrivals.items():
            meter.acknowledged((now_ms - arrived_ms) / 1000, appends)
        if records is not None:
            meter.appended(records.count, records.size_bytes)

    def answered(self, status: int, reserved_bytes: int, count: int = 1) -> None:
        """Count appends that are answered now."""
        self.in_flight.leave(reserved_bytes, count)
        self.broker.meter.answered("POST", RECORDS_ROUTE, status, count)

    def refusal(self, error: CommitlogError, path: str, request_id: bytes) -> Response:
        """Return the answer to an append that is refused before its body is complete, and count it."""
        answer = problem_response(error, instance=path, request_id=request_id)
        self.broker.meter.answered("POST", RECORDS_ROUTE, answer.status)
        return answer

    def response(self, hosted: HostedLog, result: AppendResult, request_id: bytes) -> Response:
        """Return the answer to an append that was acknowledged."""
        body = _ENCODE(
            AppendAnswer(
                hosted.name,
                result.first_index,
                result.last_index,
                result.count,
                result.term,
                result.first_offset,
                result.next_offset,
                result.timestamp_ms,
                result.committed_index,
                result.next_index,
                result.leader,
                result.acks,
                result.durability,
                result.replayed,
            )
        )
        return Response(
            202 if result.acks is Acks.LEADER else 200,
            [
                (b"content-type", JSON_TYPE),
                (b"content-length", b"%d" % len(body)),
                (b"commitlog-leader", self.url),
                (b"commitlog-term", b"%d" % result.term),
                (b"commitlog-committed-index", b"%d" % result.committed_index),
                (b"commitlog-next-index", b"%d" % result.next_index),
                (REQUEST_ID, request_id),
            ],
            body,
        )


class _OneAppend:
    """One append from its call to its answer. `_finish` is called exactly once."""

    __slots__ = ("_broker", "_call", "_done", "_handler", "_here_only", "_hosted", "_request", "_started_ms")

    _hosted: HostedLog
    _request: AppendRequest

    def __init__(self, handler: AppendHandler, broker: Broker, call: AppendCall, done: ResponseDone) -> None:
        self._handler = handler
        self._broker = broker
        self._call = call
        self._done = done
        self._started_ms = call.arrived_ms or broker.clock.monotonic_ms()
        self._here_only = False  # the client wants the answer of this node: do not forward

    def begin(self) -> None:
        """Begin the append."""
        self._guarded(self._begin)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run `action`. An exception in it becomes the answer."""
        try:
            action()
        except CommitlogError as error:
            self._finish(self._problem(error))
        except Exception:
            self._finish(self._failed("append failed"))

    def continue_after(self, hosted: HostedLog, failure: CommitlogError) -> None:
        """Continue as if the driver had answered this append."""
        self._hosted = hosted
        self._here_only = self._call.head.fields.get(NO_FORWARD) == b"1"

        def end() -> None:
            self._request = read_append(self._call, self._broker.settings.limits)
            self._ended(failure)

        self._guarded(end)

    def _begin(self) -> None:
        """Decode the body, here or, if that may take long, in a thread; then append or forward it."""
        call = self._call
        head = call.head
        hosted = self._hosted = self._broker.lookup.find(head.log)
        head.check_accept()
        _ = head.media_type, call.parameters or head.parameters  # errors in them precede those of the body
        self._here_only = head.fields.get(NO_FORWARD) == b"1"
        limits = self._broker.settings.limits
        if self._here_only and not hosted.leads:
            self._finish(self._problem(not_leader(self._broker, hosted), hosted))
        elif decodes_in_place(call):
            self._request = read_append(call, limits)
            self._append_or_carry()
        else:
            decode = partial(read_append, call, limits)
            self._broker.tasks.once("decode", self._decode_aside(decode))

    async def _decode_aside(self, decode: Callable[[], AppendRequest]) -> None:
        try:
            self._request = await asyncio.to_thread(decode)
            self._append_or_carry()
        except asyncio.CancelledError:
            self._finish(self._problem(NoLeader(), self._hosted))
            raise
        except CommitlogError as error:
            self._finish(self._problem(error))
        except Exception:
            self._finish(self._failed("append failed"))

    def _append_or_carry(self) -> None:
        """Pass a checked append to this node's driver, or to the leader."""
        hosted = self._hosted
        driver, request = hosted.driver, self._request
        if driver is not None and hosted.leads:
            tracer = self._handler.tracer
            if self._call.arrived_ms:  # it was in a group that was refused
                left_ms = self._started_ms + request.timeout_ms - self._broker.clock.monotonic_ms()
                request = msgspec.structs.replace(request, timeout_ms=max(1, left_ms))
            if tracer is None:
                driver.append(request, self._ended)
            else:
                parent = self._call.head.fields.get(TRACEPARENT)
                driver.append(request, tracer.timed("replicate", parent, self._ended))
        elif self._here_only:
            self._finish(self._problem(not_leader(self._broker, hosted), hosted))
        else:
            self._carry()

    def _ended(self, result: AppendResult | CommitlogError) -> None:
        """The driver answers. After a loss of leadership nothing was applied: forward the append."""
        if isinstance(result, (NotLeader, NoLeader)) and not self._here_only:
            self._carry()
        else:
            self._finish(self._response(self._request, self._started_ms, result))

    def _finish(self, response: Response) -> None:
        self._handler.answered(response.status, self._call.reserved_bytes)
        answer(self._done, response)

    # --- answers ------------------------------------------------------------------------------------------

    def _response(
        self, request: AppendRequest, started_ms: int, result: AppendResult | CommitlogError
    ) -> Response:
        if isinstance(result, NotLeader):  # the driver knows ids only; the client also gets a URL
            result = not_leader(self._broker, self._hosted)
        if isinstance(result, CommitlogError):
            return self._problem(result, self._hosted)
        self._handler.acknowledged({started_ms: 1}, None if result.replayed else request.records)
        return self._handler.response(self._hosted, result, self._call.request_id)

    # --- elsewhere ----------------------------------------------------------------------------------------

    def _carry(self) -> None:
        """Let the leader answer: over the connection between the nodes, otherwise by a search for it."""
        call, hosted = self._call, self._hosted
        whole = call.stream is None and call.parameters is None and call.records is None
        left_ms = self._started_ms + self._request.timeout_ms - self._broker.clock.monotonic_ms()
        if not (
            whole
            and left_ms > 0
            and hosted.serving is not None
            and self._handler.tracer is None
            and self._broker.carrier.send(
                hosted, carried_head(call.head), call.request_id, call.body, left_ms, self._returned
            )
        ):
            self._find_leader()

    def _returned(self, outcome: CarryOutcome) -> None:
        """The leader's answer to an append that was carried, or why there is none."""
        if isinstance(outcome, Lost):
            self._find_leader(outcome)
        elif isinstance(outcome, NotSent):
            self._find_leader()
        else:
            try:
                relayed = check_led(Relayed(outcome.status, list(outcome.headers), outcome.body))
            except (NotLeader, NoLeader):
                self._find_leader()
            else:
                self._finish(self._relay(relayed))

    def _find_leader(self, lost: Lost | None = None) -> None:
        """Find the leader and forward the append to it, in a task. lost: an earlier attempt."""
        self._broker.tasks.once("forward", self._forward(lost))

    async def _forward(self, lost: Lost | None) -> None:
        try:
            response = await self._at_leader(lost)
        except CommitlogError as error:
            response = self._problem(error, self._hosted)
        except Exception:
            response = self._failed("forward failed", self._hosted)
        except asyncio.CancelledError:
            self._finish(self._problem(QuorumTimeout(None, "this node stops"), self._hosted))
            raise
        self._finish(response)

    async def _at_leader(self, lost: Lost | None) -> Response:
        request, started_ms = self._request, self._started_ms
        deadline_ms = started_ms + request.timeout_ms
        now_ms = self._broker.clock.monotonic_ms

        async def here(driver: LogDriver) -> Response:
            own = msgspec.structs.replace(request, timeout_ms=max(1, deadline_ms - now_ms()))
            own_started_ms = now_ms()
            result = await _appended(driver, own)
            if isinstance(result, (NotLeader, NoLeader)):
                raise result
            return self._response(own, own_started_ms, result)

        async def there(node: NodeSettings) -> Response:
            left_ms = deadline_ms - now_ms()
            if left_ms <= 0:
                raise NotSent(f"{node.id}: the time of the append has passed")
            return self._relay(check_led(await self._send(node, left_ms)))

        return await LeaderProxy(self._broker).at_leader(
            self._hosted,
            here,
            there,
            deadline_ms=min(deadline_ms, started_ms + self._broker.settings.http.leader_wait_ms),
            repeatable=request.idempotency_key is not None or request.producer is not None,
            acknowledges=_acknowledges,
            lost=lost,
        )

    async def _send(self, target: NodeSettings, left_ms: int) -> Relayed:
        """Make one attempt. Raises NotSent, or Lost: also when another leads before `target` has answered."""
        call, head = self._call, self._call.head
        query = [*without_timeout(head.query), b"timeout_ms=%d" % left_ms]
        path = b"/v1/logs/%s/records?%s" % (quote(head.log).encode(), b"&".join(query))
        timeout_s = (left_ms + _GRACE_MS) / 1000
        try:
            async with self._hosted.while_led_by(target.id):
                return await self._broker.forwarder.send(
                    target, "POST", path, head.headers, call.body, call.request_id, timeout_s
                )
        except TimeoutError as error:
            raise Lost(f"{target.id} lost its leadership before it answered") from error

    def _relay(self, relayed: Relayed) -> Response:
        return Response(
            relayed.status,
            [
                *relayed.all_headers,
                (REQUEST_ID, self._call.request_id),
            ],
            relayed.body,
        )

    def _problem(self, error: CommitlogError, hosted: HostedLog | None = None) -> Response:
        """Return the refusal as an answer. hosted: the answer has the headers of this log."""
        return problem_response(
            error,
            instance=self._call.head.path,
            request_id=self._call.request_id,
            headers=() if hosted is None else log_headers(self._broker, hosted),
        )

    def _failed(self, what: str, hosted: HostedLog | None = None) -> Response:
        logger.exception(what, extra={"request_id": self._call.request_id.decode("latin-1")})
        return self._problem(Internal(), hosted)


async def _appended(driver: LogDriver, request: AppendRequest) -> AppendResult | CommitlogError:
    future: asyncio.Future[AppendResult | CommitlogError] = asyncio.get_running_loop().create_future()
    driver.append(request, partial(settle, future))
    return await future


def _acknowledges(response: Response) -> bool:
    return response.status < 300
