"""Calls about a log other than appends: answered by this node, or forwarded to one that can.

`LogCall` is the one FastAPI dependency of their routes. Another node's answer leaves a route as the exception
AnsweredElsewhere, which the application turns into that answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NoReturn, TypeVar

import msgspec
from fastapi import Depends, Request
from starlette.responses import Response, StreamingResponse

from app.api.http.dependencies import ExactResponse, Node, json_answer, request_id_of, stays_here, target_of
from app.api.http.json_decoding import decode_as
from app.api.http.leader_headers import log_headers, not_leader
from app.api.http.messages import JSON_TYPE
from app.api.http.messages import Response as Answer
from app.api.http.negotiation import negotiate
from app.errors import (
    NoLeader,
    NotLeader,
    QuorumTimeout,
    Repairing,
    TooLarge,
    UnsupportedMediaType,
)
from app.log.commands import Command, CommandResult
from app.media_types import JSON
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.http_forwarder import Lost, NotSent, Relayed
from app.node.replica.driver import LogDriver
from app.node.request_waits import settling

BODY_MAX_BYTES: Final = 64 * 1024
CALL_TIMEOUT_S: Final = 10.0  # time limit of a call that another node carries out
_LONG_SILENCE_S: Final = 75.0  # a long poll may take a minute
_RETRY_S: Final = 0.1
Shape = TypeVar("Shape", bound=msgspec.Struct)


class AnsweredElsewhere(Exception):
    """Another node has answered the call: `response` is its answer, streamed."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


@dataclass(frozen=True, slots=True)
class Served:
    """A log that this node serves: `driver` is that of `hosted`."""

    broker: Broker
    hosted: HostedLog
    driver: LogDriver

    def answer(self, content: object, *, headers: Sequence[tuple[bytes, bytes]] = ()) -> Response:
        """Return 200 with that JSON, and this node's headers about the log before the others."""
        return json_answer(content, headers=(*log_headers(self.broker, self.hosted), *headers))

    async def commit(self, command: Command) -> CommandResult:
        """Decide and commit a command here. Raises CommitlogError."""
        future: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self.driver.command(command, settling(future))
        return await future


Act = Callable[[Served], Awaitable[Response]]


class LogCall:
    """One call. A route asks in this order: the log, the type of answer, the request, the answering node."""

    def __init__(self, request: Request, broker: Node) -> None:
        self.request = request
        self.broker = broker
        self._body = b""

    # --- what is asked ------------------------------------------------------------------------------------

    def find(self, log: str) -> HostedLog:
        """Return the log, for a client that accepts JSON. Raises what Broker.find raises, NotAcceptable."""
        hosted = self.broker.find(log)
        self.wants_json()
        return hosted

    def wants_json(self) -> None:
        """Refuse a client that does not accept JSON. Raises NotAcceptable."""
        negotiate(self.request.headers.get("accept"), (JSON,))

    async def asked(self, kind: type[Shape]) -> Shape:
        """Return the body as JSON of that shape; an absent one is an empty object.

        Raises TooLarge beyond BODY_MAX_BYTES, UnsupportedMediaType, InvalidJson, InvalidRequest.
        """
        parts, size = [], 0
        async for part in self.request.stream():
            size += len(part)
            if size > BODY_MAX_BYTES:
                raise TooLarge(f"the body may have at most {BODY_MAX_BYTES} bytes, got more", BODY_MAX_BYTES)
            parts.append(part)
        given = self.request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if size and given != JSON_TYPE.decode():
            raise UnsupportedMediaType(f"Content-Type must be {JSON_TYPE.decode()}, got {given!r}")
        self._body = b"".join(parts)
        return decode_as(kind, self._body or b"{}")

    # --- who answers --------------------------------------------------------------------------------------

    async def replica(self, log: str, *, own: bool = False) -> Served:
        """Return the log as this node serves it. Raises what `find` and `elsewhere` raise."""
        return await self.replica_of(self.find(log), own=own)

    async def replica_of(self, hosted: HostedLog, *, own: bool = False) -> Served:
        """The same for a log that is already found. own: this node's replica is meant, also a removed one.

        Raises what `elsewhere` raises.
        """
        driver = hosted.driver if own else hosted.serving
        if driver is not None:
            return Served(self.broker, hosted, driver)
        await self.elsewhere(hosted)

    async def elsewhere(self, hosted: HostedLog) -> NoReturn:
        """Forward the request to a replica that serves the log.

        Raises AnsweredElsewhere; NoLeader when none of them can be reached, NotLeader when the client wants
        none of their answers, Repairing while this node's copy is damaged.
        """
        if hosted.repair is not None:
            raise Repairing()
        if not self._forward:
            raise not_leader(self.broker, hosted)
        for node_id in hosted.answering(self.broker.node.id):
            await self._pass_on(node_id, _LONG_SILENCE_S)
        raise NoLeader("no replica of this log is reachable")

    async def leader(self, log: str) -> Served:
        """As `find`; then return the log if this node leads it, otherwise forward the call to the leader.

        Waits for a leader, at most `leader_wait_ms`. Raises AnsweredElsewhere, NotLeader, NoLeader.
        """
        hosted = self.find(log)
        deadline_ms = self._leader_deadline_ms()
        while hosted.serving is not None and not hosted.leads:
            if not self._forward:
                raise not_leader(self.broker, hosted)
            left_ms = deadline_ms - self.broker.clock.monotonic_ms()
            if hosted.leader_id is not None:
                await self._pass_on(hosted.leader_id, max(0.1, left_ms / 1000))
            await self._no_leader_yet(hosted, deadline_ms)
        return await self.replica_of(hosted)

    async def at_leader(self, hosted: HostedLog, act: Act, query: bytes = b"") -> Response:
        """Return what `act` answers here, if this node leads, otherwise the leader's answer to the same call.

        query: added for the leader. Waits for a leader, at most `leader_wait_ms`. Raises NotLeader, NoLeader;
        QuorumTimeout when the call was lost, so that its outcome is unknown.
        """
        deadline_ms = self._leader_deadline_ms()
        while True:
            if hosted.driver is not None and hosted.leads:
                try:
                    return await act(Served(self.broker, hosted, hosted.driver))
                except (NotLeader, NoLeader):
                    if not self._forward:
                        raise
            if not self._forward:
                raise not_leader(self.broker, hosted)
            for target in self._targets(hosted):
                relayed = await self._carry(target, query)
                if relayed is not None:
                    return ExactResponse(Answer(relayed.status, relayed.headers, relayed.body))
            await self._no_leader_yet(hosted, deadline_ms)

    @property
    def _forward(self) -> bool:
        return not stays_here(self.request)

    def _leader_deadline_ms(self) -> int:
        return self.broker.clock.monotonic_ms() + self.broker.settings.http.leader_wait_ms

    async def _no_leader_yet(self, hosted: HostedLog, deadline_ms: int) -> None:
        """Wait for a change, because no leader is known. Raises NoLeader after the deadline."""
        if self.broker.clock.monotonic_ms() >= deadline_ms:
            raise NoLeader()
        await hosted.leadership_changed(_RETRY_S)

    def _targets(self, hosted: HostedLog) -> list[str]:
        """Return the nodes that may lead: the known leader; for a log that this node does not serve, any
        replica."""
        here = self.broker.node.id
        if hosted.serving is None:
            return hosted.answering(here)
        leader = hosted.leader_id
        return [] if leader is None or leader == here else [leader]

    async def _pass_on(self, node_id: str, silence_s: float) -> None:
        """Raises AnsweredElsewhere with another node's answer to this read, streamed.

        Returns when the node cannot be reached or does not lead (any more).
        """
        node = self.broker.nodes.find(node_id)
        if node is None:
            return
        try:
            stream = await self.broker.forwarder.stream(
                node,
                "HEAD" if self.request.scope.get("commitlog.head") else "GET",
                target_of(self.request),
                self.request.headers.raw,
                request_id_of(self.request),
                silence_s,
            )
        except (NotSent, Lost):
            return
        if stream.status == NotLeader.http_status:
            stream.close()
            return
        response = StreamingResponse(stream.pieces(), status_code=stream.status)
        response.raw_headers = stream.headers
        raise AnsweredElsewhere(response)

    async def _carry(self, node_id: str, query: bytes) -> Relayed | None:
        """Return another node's answer; None when it did not get the call, or does not lead (any more)."""
        node = self.broker.nodes.find(node_id)
        if node is None:
            return None
        try:
            relayed = await self.broker.forwarder.send(
                node,
                self.request.method,
                target_of(self.request, query),
                self.request.headers.raw,
                self._body,
                request_id_of(self.request),
                CALL_TIMEOUT_S,
            )
        except NotSent:
            return None
        except Lost as error:
            raise QuorumTimeout(None, str(error)) from error
        return None if relayed.status == NotLeader.http_status else relayed


Call = Annotated[LogCall, Depends(LogCall)]
