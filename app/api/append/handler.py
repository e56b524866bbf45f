"""Appends: the handler that every front shares, free of any framework.

A call is checked, then either queued at this node's driver (when it leads the log) or forwarded to the
leader. The answer comes by callback: nothing waits in here, so a client that disconnects disturbs no other.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import msgspec

from app.api.append.bodies import Heads, media_type_of, read_append
from app.api.append.call import AppendCall
from app.api.append.parameters import parse_append_query
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.leader_headers import log_headers, not_leader
from app.api.http.leader_proxy import LeaderProxy, check_led
from app.api.http.messages import JSON_TYPE, REQUEST_ID, Response, problem_response
from app.errors import CommitlogError, Forbidden, Internal, NoLeader, NotLeader, QuorumTimeout
from app.log.contract import Acks, AppendRequest, AppendResult
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.http_forwarder import NO_FORWARD, Lost, NotSent, Relayed
from app.node.replica.driver import LogDriver
from app.settings.model import NodeSettings

logger = logging.getLogger(__name__)

Done = Callable[[Response], None]

_GRACE_MS: Final = 1_000  # the leader's own timeout comes first, with the more precise answer
_IN_PLACE_BYTES: Final = 256 * 1024  # of a body that is decoded on the loop: heartbeats wait meanwhile


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
    """Takes appends from any front. `handle` calls `done` exactly once, at once or later, never raises.

    A front adds a request to `in_flight` before it reads the body; the answer removes it.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._limits = broker.settings.limits
        self._http = broker.settings.http
        self._url = broker.node.url.encode("latin-1")
        self.in_flight = InFlightLimit(self._http.max_open_appends, self._http.max_open_bytes)

    def check_log(self, name: str) -> None:
        """Raises LogNotFound, InvalidRequest or Forbidden, before a body is read."""
        if self._broker.find(name) is self._broker.metadata.hosted:
            raise Forbidden("clients may not append to a system log")

    def handle(self, call: AppendCall, done: Done) -> None:
        """Check a call and begin it; done(answer) when it ends. Order of checks: docs/api.md §3."""

        def answered(response: Response) -> None:
            self.in_flight.leave(call.reserved_bytes)
            self._broker.meter.answered("POST", "/v1/logs/{log}/records", response.status)
            done(response)

        with self._guarded(call, answered):
            self._begin(call, answered)

    @contextmanager
    def _guarded(self, call: AppendCall, done: Done) -> Iterator[None]:
        """An exception in the `with` becomes the call's answer."""
        try:
            yield
        except CommitlogError as error:
            done(self._problem(call, error))
        except Exception:
            logger.exception("append failed", extra={"request_id": call.request_id.decode("latin-1")})
            done(self._problem(call, Internal()))

    def _begin(self, call: AppendCall, done: Done) -> None:
        """Decode the body, here or, if that may take long, in a thread; then append or forward it."""
        started_ms = self._broker.clock.monotonic_ms()
        hosted = self._broker.find(call.log)
        heads = dict(call.headers)
        media_type = media_type_of(heads)
        parameters = call.parameters or parse_append_query(call.query)
        if not hosted.leads and _stays(heads):
            done(self._problem(call, not_leader(self._broker, hosted), hosted))
            return

        def decode() -> AppendRequest:
            return read_append(call, heads, parameters, media_type, self._limits)

        if len(call.body) <= _IN_PLACE_BYTES and b"content-encoding" not in heads:
            self._enter(call, hosted, heads, decode(), started_ms, done)
            return

        async def decode_aside() -> None:
            with self._guarded(call, done):
                try:
                    request = await asyncio.to_thread(decode)
                except asyncio.CancelledError:
                    done(self._problem(call, NoLeader(), hosted))
                    raise
                self._enter(call, hosted, heads, request, started_ms, done)

        self._broker.tasks.once("decode", decode_aside())

    def _enter(
        self,
        call: AppendCall,
        hosted: HostedLog,
        heads: Heads,
        request: AppendRequest,
        started_ms: int,
        done: Done,
    ) -> None:
        """Pass a checked append to this node's driver, or to the leader. started_ms: when the call
        arrived."""
        if not hosted.leads or hosted.driver is None:
            if _stays(heads):
                done(self._problem(call, not_leader(self._broker, hosted), hosted))
            else:
                self._carry(call, hosted, request, started_ms, done)
            return

        def ended(result: AppendResult | CommitlogError) -> None:
            if isinstance(result, (NotLeader, NoLeader)) and not _stays(heads):
                # Leadership was lost while the append waited for its turn: nothing was applied; forward it.
                self._carry(call, hosted, request, started_ms, done)
            else:
                done(self._ended(call, hosted, request, started_ms, result))

        hosted.driver.append(request, ended)

    def _ended(
        self,
        call: AppendCall,
        hosted: HostedLog,
        request: AppendRequest,
        started_ms: int,
        result: AppendResult | CommitlogError,
    ) -> Response:
        if isinstance(result, NotLeader):  # the driver knows ids only; the client also gets a URL
            result = not_leader(self._broker, hosted)
        if isinstance(result, CommitlogError):
            return self._problem(call, result, hosted)
        seconds = (self._broker.clock.monotonic_ms() - started_ms) / 1000
        self._broker.meter.appended(seconds, result.count, request.records.size_bytes)
        return self._answer(call, hosted, result)

    def _answer(self, call: AppendCall, hosted: HostedLog, result: AppendResult) -> Response:
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
                (b"commitlog-leader", self._url),
                (b"commitlog-term", b"%d" % result.term),
                (b"commitlog-committed-index", b"%d" % result.committed_index),
                (b"commitlog-next-index", b"%d" % result.next_index),
                (REQUEST_ID, call.request_id),
            ],
            body,
        )

    # --- elsewhere ----------------------------------------------------------------------------------------

    def _carry(
        self, call: AppendCall, hosted: HostedLog, request: AppendRequest, started_ms: int, done: Done
    ) -> None:
        """Find the leader and let it answer, as a task of the node."""
        deadline_ms = started_ms + request.timeout_ms
        now_ms = self._broker.clock.monotonic_ms

        async def here(driver: LogDriver) -> Response:
            own = replace(request, timeout_ms=max(1, deadline_ms - now_ms()))
            own_started_ms = now_ms()
            result = await _appended(driver, own)
            if isinstance(result, (NotLeader, NoLeader)):
                raise result
            return self._ended(call, hosted, own, own_started_ms, result)

        async def there(node: NodeSettings) -> Response:
            left_ms = deadline_ms - now_ms()
            if left_ms <= 0:
                raise NotSent(f"{node.id}: the time of the append has passed")
            return self._relay(call, check_led(await self._send(call, hosted, node, left_ms)))

        async def carry() -> None:
            try:
                response = await LeaderProxy(self._broker).at_leader(
                    hosted,
                    here,
                    there,
                    deadline_ms=min(deadline_ms, started_ms + self._http.leader_wait_ms),
                    repeatable=request.idempotency_key is not None or request.producer is not None,
                    acknowledges=_acknowledges,
                )
            except CommitlogError as error:
                response = self._problem(call, error, hosted)
            except Exception:
                logger.exception("forward failed", extra={"request_id": call.request_id.decode("latin-1")})
                response = self._problem(call, Internal(), hosted)
            except asyncio.CancelledError:
                done(self._problem(call, QuorumTimeout(None, "this node stops"), hosted))
                raise
            done(response)

        self._broker.tasks.once("forward", carry())

    async def _send(self, call: AppendCall, hosted: HostedLog, target: NodeSettings, left_ms: int) -> Relayed:
        """Make one attempt. Raises NotSent, or Lost: also when another leads before `target` has answered."""
        query = [part for part in call.query.split(b"&") if part and not part.startswith(b"timeout_ms=")]
        query.append(b"timeout_ms=%d" % left_ms)
        path = b"/v1/logs/%s/records?%s" % (quote(call.log).encode(), b"&".join(query))
        timeout_s = (left_ms + _GRACE_MS) / 1000
        try:
            async with hosted.while_led_by(target.id):
                return await self._broker.forwarder.send(
                    target, "POST", path, call.headers, call.body, call.request_id, timeout_s
                )
        except TimeoutError as error:
            raise Lost(f"{target.id} lost its leadership before it answered") from error

    def _relay(self, call: AppendCall, relayed: Relayed) -> Response:
        return Response(
            relayed.status,
            [
                *relayed.headers,
                (b"content-length", b"%d" % len(relayed.body)),
                (REQUEST_ID, call.request_id),
            ],
            relayed.body,
        )

    # --- refusals -----------------------------------------------------------------------------------------

    def _problem(self, call: AppendCall, error: CommitlogError, hosted: HostedLog | None = None) -> Response:
        return problem_response(
            error,
            instance=call.path,
            request_id=call.request_id,
            headers=() if hosted is None else log_headers(self._broker, hosted),
        )


async def _appended(driver: LogDriver, request: AppendRequest) -> AppendResult | CommitlogError:
    future: asyncio.Future[AppendResult | CommitlogError] = asyncio.get_running_loop().create_future()
    driver.append(request, lambda result: None if future.done() else future.set_result(result))
    return await future


def _stays(heads: Heads) -> bool:
    """Return whether the client wants this node's own answer."""
    return heads.get(NO_FORWARD) == b"1"


def _acknowledges(response: Response) -> bool:
    return response.status < 300
