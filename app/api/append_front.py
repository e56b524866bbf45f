"""Two doors to the append handler: a plain ASGI one for speed, and the FastAPI route that is its reference.

Both read the call in the same way and give the same bytes back; `[http] append_front` chooses.
"""

import asyncio
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from app.api.appends import AppendHandler
from app.api.calls import REQUEST_ID, AppendCall, Response, problem_response, request_id_of
from app.errors import CommitlogError, InvalidRequest, TooLarge
from app.settings import Limits

PREFIX = "/v1/logs/"
SUFFIX = "/records"


def append_log_of(path: str) -> str | None:
    """The log's name in the path of an append, None for any other path."""
    if path.startswith(PREFIX) and path.endswith(SUFFIX):
        name = path[len(PREFIX) : -len(SUFFIX)]
        if name and "/" not in name:
            return name
    return None


class AppendFront:
    """An ASGI application for `POST /v1/logs/{log}/records`, and nothing else."""

    def __init__(self, handler: AppendHandler, limits: Limits) -> None:
        self._handler = handler
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self.answer(scope, receive)
        if response is None:
            return
        await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
        await send({"type": "http.response.body", "body": response.body})

    async def answer(self, scope: Scope, receive: Receive) -> Response | None:
        """Read the call and wait for its answer; None when the client has gone before it was whole."""
        headers = scope["headers"]
        length = request_id = None
        for name, value in headers:
            if name == b"content-length":
                length = value
            elif name == REQUEST_ID:
                request_id = value
        request_id = scope.get("commitlog.request_id") or request_id_of(request_id)
        log = append_log_of(scope["path"])
        assert log is not None
        try:
            self._handler.check_log(log)
            body = await self._read(receive, length)
        except CommitlogError as error:
            return problem_response(error, instance=scope["path"], request_id=request_id)
        if body is None:
            return None
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def done(response: Response) -> None:
            if not future.done():  # else the client's task was cancelled: the append goes on without it
                future.set_result(response)

        self._handler.handle(
            AppendCall(log, scope["path"], scope["query_string"], headers, body, request_id), done
        )
        return await future

    async def _read(self, receive: Receive, length: bytes | None) -> bytes | None:
        """The whole body, None when the client disconnects. Raises TooLarge or RateLimited, unread."""
        limit = self._limits.max_request_bytes
        announced = 0
        if length is not None:
            if not length.isdigit():
                raise InvalidRequest(("/headers/Content-Length", "is a whole number"))
            announced = int(length)
            if announced > limit:
                raise TooLarge(f"the body has {announced} bytes, at most {limit}", limit)
        self._handler.check_room(announced)
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            return body
        parts: list[Any] = [body]
        size = len(body)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            if size > limit:
                raise TooLarge(f"the body has more than {limit} bytes", limit)
            if not message.get("more_body", False):
                return b"".join(parts)
