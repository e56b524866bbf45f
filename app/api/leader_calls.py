"""Calls that change a log and are no appends: done at its leader, or carried there and back."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from app.api.calls import JSON_TYPE, NO_FORWARD
from app.api.calls import Response as Answer
from app.api.json_bodies import decode_as
from app.api.routing import ExactResponse, request_id_of
from app.errors import CommitlogError, NoLeader, NotLeader, QuorumTimeout, TooLarge, UnsupportedMediaType
from app.log_commands import Command, CommandResult
from app.node.broker import Broker
from app.node.driver import LogDriver
from app.node.forward import Lost, NotSent, Relayed
from app.node.hosted_log import HostedLog

BODY_MAX_BYTES: Final = 64 * 1024
CALL_TIMEOUT_S: Final = 10.0  # of a call that another node carries out
_RETRY_S: Final = 0.1
Shape = TypeVar("Shape", bound=msgspec.Struct)
Act = Callable[[LogDriver], Awaitable[Response]]


async def body_of(request: Request) -> bytes:
    """The whole body, of JSON. Raises TooLarge past BODY_MAX_BYTES, UnsupportedMediaType."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_MAX_BYTES:
            raise TooLarge(f"at most {BODY_MAX_BYTES} bytes", BODY_MAX_BYTES)
        parts.append(part)
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if size and given != JSON_TYPE.decode():
        raise UnsupportedMediaType(f"Content-Type must be {JSON_TYPE.decode()}, not {given!r}")
    return b"".join(parts)


def shaped(kind: type[Shape], body: bytes) -> Shape:
    """The body as JSON of that shape; none at all is an empty object. Raises InvalidJson, InvalidRequest."""
    return decode_as(kind, body or b"{}")


async def at_leader(
    request: Request, broker: Broker, hosted: HostedLog, act: Act, body: bytes = b"", query: bytes = b""
) -> Response:
    """What `act` answers here, if this node leads, else the leader's answer to the same call.

    query: to be added for the leader. Waits for a leader, at most `leader_wait_ms`. Raises NotLeader,
    NoLeader; QuorumTimeout when the call was lost on its way, so that nobody knows.
    """
    monotonic_ms = broker.clock.monotonic_ms
    deadline_ms = monotonic_ms() + broker.settings.http.leader_wait_ms
    forward = request.headers.get(NO_FORWARD.decode()) != "1"
    while True:
        if hosted.driver is not None and hosted.leads:
            try:
                return await act(hosted.driver)
            except (NotLeader, NoLeader):
                if not forward:
                    raise
        for target in _targets(broker, hosted):
            if not forward:
                raise NotLeader(target, _url_of(broker, target))
            relayed = await _carry(request, broker, target, body, query)
            if relayed is not None:
                return ExactResponse(Answer(relayed.status, relayed.headers, relayed.body))
        if monotonic_ms() >= deadline_ms or not forward:
            raise NoLeader()
        await hosted.leadership_changed(_RETRY_S)


def _targets(broker: Broker, hosted: HostedLog) -> list[str]:
    """Who may lead: as far as this node knows, or anybody of a log that it does not keep."""
    if hosted.driver is None:
        return [replica for replica in hosted.settings.replicas if replica != broker.node.id]
    leader = hosted.leader_id
    return [] if leader is None or leader == broker.node.id else [leader]


def _url_of(broker: Broker, node_id: str) -> str | None:
    node = broker.nodes.find(node_id)
    return None if node is None else node.url


async def _carry(request: Request, broker: Broker, target: str, body: bytes, query: bytes) -> Relayed | None:
    """Another node's answer; None when it did not get the call, or does not lead (any more)."""
    node = broker.nodes.find(target)
    if node is None:
        return None
    path = request.scope.get("raw_path") or request.url.path.encode()
    queries = b"&".join(part for part in (request.scope["query_string"], query) if part)
    try:
        relayed = await broker.forwarder.send(
            node,
            request.method,
            path + (b"?" + queries if queries else b""),
            request.headers.raw,
            body,
            request_id_of(request),
            CALL_TIMEOUT_S,
        )
    except NotSent:
        return None
    except Lost as error:
        raise QuorumTimeout(None, str(error)) from error
    return None if relayed.status == NotLeader.http_status else relayed


async def committed_command(driver: LogDriver, command: Command) -> CommandResult:
    """Decide and commit a command here. Raises CommitlogError."""
    future: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()

    def done(result: CommandResult | CommitlogError) -> None:
        if future.done():
            return
        if isinstance(result, CommitlogError):
            future.set_exception(result)
        else:
            future.set_result(result)

    driver.command(command, done)
    return await future
