"""What every FastAPI route shares: the node, the log in the path, headers of answers, and calls passed on."""

from collections.abc import Sequence
from typing import Annotated, Final, cast

from fastapi import Depends, Path, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from app.api.calls import NO_FORWARD
from app.api.calls import Response as Answer
from app.api.negotiation import JSON, negotiate
from app.api.rendering import as_json
from app.errors import NoLeader, NotLeader, Repairing
from app.node.broker import Broker
from app.node.driver import LogDriver
from app.node.forward import Lost, NotSent
from app.node.hosted_log import HostedLog

_LONG_SILENCE_S: Final = 75.0  # a long poll may take a minute


def broker_of(request: Request) -> Broker:
    return cast(Broker, request.app.state.broker)


def request_id_of(request: Request) -> bytes:
    return cast(bytes, request.scope["commitlog.request_id"])


LogName = Annotated[
    str, Path(description="Name of the log: `[a-z0-9][a-z0-9._-]{0,127}`", examples=["default"])
]
Node = Annotated[Broker, Depends(broker_of)]


class ExactResponse(Response):
    """An answer of the framework-free part, sent with its very headers."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(status_code=answer.status)
        self.body = answer.body
        self.raw_headers = answer.headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


def json_answer(
    content: object, *, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()
) -> Response:
    return body_answer(as_json(content), JSON, status=status, headers=headers)


def body_answer(
    body: bytes, media_type: str, *, status: int = 200, headers: Sequence[tuple[bytes, bytes]] = ()
) -> Response:
    return ExactResponse(
        Answer(
            status,
            [
                (b"content-type", media_type.encode("ascii")),
                (b"content-length", b"%d" % len(body)),
                *headers,
            ],
            body,
        )
    )


def wants_json(request: Request) -> None:
    """Refuse a client that does not take JSON. Raises NotAcceptable."""
    negotiate(request.headers.get("accept"), (JSON,))


async def from_replica(request: Request, broker: Broker, hosted: HostedLog) -> LogDriver | Response:
    """This node's driver; of a log that it does not keep, the answer of a node that does.

    Raises NoLeader when none of them can be reached, Repairing while this node's copy is damaged.
    """
    if hosted.driver is not None:
        return hosted.driver
    if hosted.repair is not None:
        raise Repairing()
    if request.headers.get(NO_FORWARD.decode()) == "1":
        raise NotLeader(None)
    for node_id in hosted.settings.replicas:
        answer = await _passed_on(request, broker, node_id, _LONG_SILENCE_S)
        if answer is not None:
            return answer
    raise NoLeader("no node that can answer for this log can be reached")


async def from_leader(request: Request, broker: Broker, hosted: HostedLog) -> LogDriver | Response:
    """This node's driver if it leads, else the leader's answer. Raises NotLeader, NoLeader."""
    if hosted.driver is None:
        return await from_replica(request, broker, hosted)
    loop_time = broker.clock.monotonic_ms
    deadline_ms = loop_time() + broker.settings.http.leader_wait_ms
    while not hosted.leads:  # `driver` is not None here
        leader = broker.nodes.find(hosted.leader_id)
        if leader is not None:
            if request.headers.get(NO_FORWARD.decode()) == "1":
                raise NotLeader(leader.id, leader.url)
            silence_s = max(0.1, (deadline_ms - loop_time()) / 1000)
            answer = await _passed_on(request, broker, leader.id, silence_s)
            if answer is not None:
                return answer
        if loop_time() >= deadline_ms or request.headers.get(NO_FORWARD.decode()) == "1":
            raise NoLeader()
        await hosted.leadership_changed(0.1)
    return hosted.driver


async def _passed_on(
    request: Request, broker: Broker, node_id: str, silence_s: float
) -> StreamingResponse | None:
    """Another node's answer; None when it cannot be reached or does not lead (any more)."""
    target = broker.nodes.find(node_id)
    assert target is not None
    path = request.scope.get("raw_path") or request.url.path.encode()
    query = request.scope["query_string"]
    try:
        stream = await broker.forwarder.stream(
            target,
            "HEAD" if request.scope.get("commitlog.head") else "GET",
            path + (b"?" + query if query else b""),
            request.headers.raw,
            request_id_of(request),
            silence_s,
        )
    except (NotSent, Lost):
        return None
    if stream.status == NotLeader.http_status:
        stream.close()
        return None
    response = StreamingResponse(stream.pieces(), status_code=stream.status)
    response.raw_headers = stream.headers
    return response
