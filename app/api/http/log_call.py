"""Calls about a log other than appends: answered by this node, or forwarded to one that can.

`LogCall` is the one FastAPI dependency of their routes. Another node's answer leaves a route as the exception
AnsweredElsewhere, which the application turns into that answer.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final, NoReturn, TypeVar

import msgspec
from fastapi import Depends, Request
from starlette.responses import Response, StreamingResponse

from app.api.access.administration import mark_forwarded
from app.api.http.compression import unpack
from app.api.http.dependencies import (
    ExactResponse,
    NodeBroker,
    is_here_only,
    json_answer,
    request_id_of,
    rows_answer,
    target_of,
)
from app.api.http.json_decoding import decode_as
from app.api.http.leader_headers import log_headers, not_leader
from app.api.http.leader_proxy import LeaderProxy, check_led
from app.api.http.messages import JSON_TYPE
from app.api.http.messages import Response as Answer
from app.api.http.negotiation import accepted_type
from app.errors import (
    InvalidRequest,
    NoLeader,
    NotLeader,
    ReadIndexUnavailable,
    Repairing,
    TooLarge,
    UnsupportedMediaType,
)
from app.futures import settling
from app.log.commands import Command, CommandResult
from app.media_types import JSON
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.http_forwarder import Lost, NotSent
from app.node.replica.driver import LogDriver
from app.settings.model import NodeSettings
from storage.units import KIB

BODY_MAX_BYTES: Final = 64 * KIB
CALL_TIMEOUT_S: Final = 10.0  # time limit of a call that another node carries out
_LONG_SILENCE_S: Final = 75.0  # a long poll may take a minute
_OF_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
Shape = TypeVar("Shape", bound=msgspec.Struct)


def _not_json(given: str) -> UnsupportedMediaType:
    received = f"got {given!r}" if given else "but it is missing"
    known = JSON_TYPE.decode()
    return UnsupportedMediaType(f"Content-Type must be {known}, {received}", types=(known,))


class _NoFields(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a call that takes none."""


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

    async def answer_rows(self, rows: int, content: Callable[[], object]) -> Response:
        """As `answer`, for a list of that many rows. content: uses nothing that the loop changes."""
        return await rows_answer(rows, content, log_headers(self.broker, self.hosted))

    def unchanged(self, etag: bytes) -> Response:
        """Return 304: the client holds the version with this tag."""
        return ExactResponse(Answer(304, [*log_headers(self.broker, self.hosted), (b"etag", etag)], b""))

    async def confirm(self) -> None:
        """Wait until a majority has confirmed the leader. Raises NoLeader, Repairing, LogDeleting."""
        try:
            await self.broker.waits.read_index(self.hosted)
        except ReadIndexUnavailable as error:
            raise NoLeader(error.detail) from error

    async def commit(self, command: Command) -> CommandResult:
        """Decide and commit a command here. Raises CommitlogError."""
        future: asyncio.Future[CommandResult] = asyncio.get_running_loop().create_future()
        self.driver.command(command, settling(future))
        return await future


Act = Callable[[Served], Awaitable[Response]]


class LogCall:
    """One call. A route asks in this order: the log, the type of answer, the request, the answering node."""

    def __init__(self, request: Request, broker: Broker) -> None:
        """Raises InvalidRequest for a parameter that is given twice: each is one value, as in an append."""
        given = Counter(name for name, _ in request.query_params.multi_items())
        twice = [(f"/query/{name}", "given twice") for name, times in given.items() if times > 1]
        if twice:
            raise InvalidRequest(*twice)
        self.request = request
        self.broker = broker
        self._body = b""

    # --- what is asked ------------------------------------------------------------------------------------

    def find(self, log: str) -> HostedLog:
        """Return the log, for a client that accepts JSON.

        Raises what LogLookup.find raises, NotAcceptable, UnsupportedMediaType.
        """
        hosted = self.broker.lookup.find(log)
        self.wants_json()
        return hosted

    def wants_json(self) -> None:
        """Refuse a client that does not accept JSON, and the form of a web page, also an empty one.

        Raises NotAcceptable, UnsupportedMediaType.
        """
        accepted_type(self.request.scope["headers"], (JSON,))
        if self.request.method == "POST" and self._content_type() in _OF_FORMS:
            raise _not_json(self._content_type())

    def _content_type(self) -> str:
        return self.request.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def asked(self, kind: type[Shape], max_bytes: int = BODY_MAX_BYTES) -> Shape:
        """Return the body as JSON of that shape; an absent one is an empty object. It may be compressed.

        Raises TooLarge beyond `max_bytes`, UnsupportedMediaType, InvalidBody, InvalidJson, InvalidRequest.
        """
        parts, size = [], 0
        async for part in self.request.stream():
            size += len(part)
            if size > max_bytes:
                raise TooLarge(f"the body may have at most {max_bytes} bytes, got more", max_bytes)
            parts.append(part)
        given = self._content_type()
        if size and given != JSON_TYPE.decode():
            raise _not_json(given)
        self._body = b"".join(parts)  # forwarded as it came, with its encoding
        if not size:
            return decode_as(kind, b"{}")
        encoding = self.request.headers.get("content-encoding", "identity").encode("latin-1")
        return decode_as(kind, unpack(self._body, encoding, max_bytes))

    async def refuse_fields(self) -> None:
        """Raise InvalidRequest for a body with fields: what this call takes is in the query. Raises as
        `asked`."""
        await self.asked(_NoFields)

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

        Raises AnsweredElsewhere; NoLeader when none of them can answer, NotLeader when the client wants
        none of their answers, Repairing while this node's copy is damaged.
        """
        if hosted.repair is not None:
            raise Repairing()
        if self._here_only:
            raise not_leader(self.broker, hosted)
        for node_id in hosted.answering(self.broker.node.id):
            node = self.broker.nodes.find(node_id)
            if node is not None:
                with suppress(NotSent, NotLeader, NoLeader):
                    await self._pass_on(node, _LONG_SILENCE_S)
        raise NoLeader("no replica of this log is reachable")

    async def of_a_member(self) -> None:
        """Do nothing at a member of the cluster, or where none is reached; a removed node, which does not
        learn of changes, forwards the call to a member.

        Raises AnsweredElsewhere, NotLeader.
        """
        if self.broker.metadata.hosted.removed:
            with suppress(NoLeader):
                await self.elsewhere(self.broker.metadata.hosted)

    async def leader(self, log: str) -> Served:
        """As `find`; then return the log if this node leads it, otherwise forward the read to the leader.

        Waits for a leader, at most `leader_wait_ms`. Raises AnsweredElsewhere, NotLeader, NoLeader.
        """
        hosted = self.find(log)
        proxy = LeaderProxy(self.broker)
        deadline_ms = proxy.deadline_ms()

        async def here(driver: LogDriver) -> Served:
            return Served(self.broker, hosted, driver)

        async def there(node: NodeSettings) -> Served:
            left_ms = deadline_ms - self.broker.clock.monotonic_ms()
            await self._pass_on(node, max(0.1, left_ms / 1000))

        return await proxy.at_leader(hosted, here, there, deadline_ms=deadline_ms, here_only=self._here_only)

    async def at_leader(self, hosted: HostedLog, act: Act, query: bytes = b"") -> Response:
        """Return what `act` answers here, if this node leads, otherwise the leader's answer to the same call.

        query: added for the leader. Waits for a leader, at most `leader_wait_ms`. Raises NotLeader, NoLeader;
        QuorumTimeout when the call was lost, so that its outcome is unknown.
        """
        proxy = LeaderProxy(self.broker)

        async def here(driver: LogDriver) -> Response:
            return await act(Served(self.broker, hosted, driver))

        async def there(node: NodeSettings) -> Response:
            relayed = await self.broker.forwarder.send(
                node,
                self.request.method,
                target_of(self.request, query),
                self.request.headers.raw,
                self._body,
                request_id_of(self.request),
                CALL_TIMEOUT_S,
            )
            check_led(relayed)
            if not query:
                mark_forwarded(self.request)
            return ExactResponse(Answer(relayed.status, relayed.all_headers, relayed.body))

        deadline_ms = proxy.deadline_ms()
        return await proxy.at_leader(hosted, here, there, deadline_ms=deadline_ms, here_only=self._here_only)

    @property
    def _here_only(self) -> bool:
        return is_here_only(self.request)

    async def _pass_on(self, node: NodeSettings, silence_s: float) -> NoReturn:
        """Raise AnsweredElsewhere with another node's answer to this read, streamed.

        Raises NotSent when there is none: a read may be repeated, so a lost one counts as not sent; NotLeader
        when that node does not lead; NoLeader when it knows no leader, was removed, or is repaired.
        """
        is_head = self.request.scope.get("commitlog.head")
        try:
            stream = await self.broker.forwarder.stream(
                node,
                "HEAD" if is_head else "GET",
                target_of(self.request),
                self.request.headers.raw,
                request_id_of(self.request),
                silence_s,
            )
            if stream.status in (NotLeader.http_status, NoLeader.http_status):
                answer = check_led(await stream.whole())
                if is_head:  # no body gives the reason
                    raise NoLeader()
                raise AnsweredElsewhere(ExactResponse(Answer(answer.status, answer.all_headers, answer.body)))
        except Lost as error:
            raise NotSent(str(error)) from error
        response = StreamingResponse(stream.pieces(), status_code=stream.status)
        response.raw_headers = stream.headers
        raise AnsweredElsewhere(response)


async def _log_call(request: Request, broker: NodeBroker) -> LogCall:
    return LogCall(request, broker)


Call = Annotated[LogCall, Depends(_log_call)]
