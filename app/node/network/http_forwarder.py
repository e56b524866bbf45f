"""Client that forwards calls to other nodes: writes and views of the leader to the leader, other calls about
a log that this node does not keep to a node that does.

It makes one attempt; app/api/http/leader_proxy.py decides about retries. `NotSent` was certainly not applied,
`Lost` may have been.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import aiohttp
from yarl import URL

from app.node.links.unreached import Unreached
from app.settings.model import NodeSettings, SecuritySettings
from storage.units import MIB

HeaderList = list[tuple[bytes, bytes]]

NO_FORWARD: Final = b"commitlog-no-forward"  # its sender wants an answer of this very node
_CONNECT_TIMEOUT_S: Final = 1.0
_CONNECTIONS_A_NODE: Final = 512
_KEEP_ALIVE_S: Final = (
    15.0  # well below the idle timeout of a node's listener: no call meets a closing connection
)
_PRINTABLE: Final = "".join(map(chr, range(0x21, 0x7F)))  # the rest of a path or query is percent-encoded
PASSED_ON: Final = frozenset(
    (
        b"content-type",
        b"content-encoding",
        b"accept",
        b"authorization",
        b"idempotency-key",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"commitlog-key",
        b"commitlog-timestamp",
        b"commitlog-min-index",
        b"traceparent",
        b"tracestate",
    )
)
OF_THE_CONNECTION: Final = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"transfer-encoding",
        b"content-length",
        b"date",
        b"server",
        b"x-request-id",
    )
)


class NotSent(Exception):
    """No connection was made: the other node has not seen the call."""


class Lost(Exception):
    """The call was sent, or may have been, and no complete answer arrived."""


@dataclass(slots=True)
class Relayed:
    """Another node's answer. headers: without those of the connection, the length and the request id."""

    status: int
    headers: HeaderList
    body: bytes

    @property
    def all_headers(self) -> HeaderList:
        """The headers, and the length of the body."""
        return [*self.headers, (b"content-length", b"%d" % len(self.body))]


class Stream:
    """Another node's answer while it arrives. Read `pieces` to the end, or `close`.

    headers: as those of Relayed, and the length of the body if it is known.
    """

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer
        self.status = answer.status
        length = answer.headers.get("content-length")
        self.headers = [
            *_returned(answer),
            *([(b"content-length", length.encode("ascii"))] if length else []),
        ]

    async def whole(self) -> Relayed:
        """Return the answer once it is complete. Raises Lost."""
        try:
            return Relayed(self.status, _returned(self._answer), await self._answer.read())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Lost(str(error)) from error
        finally:
            self.close()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises Lost if it ends before it is complete."""
        try:
            async for piece in self._answer.content.iter_any():
                yield piece
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Lost(str(error)) from error
        finally:
            self.close()

    def close(self) -> None:
        self._answer.close()


class Forwarder:
    """Owned by the event loop; `start` before the first call."""

    def __init__(self, security: SecuritySettings) -> None:
        self._security = security
        self._session: aiohttp.ClientSession | None = None
        self._unreached: dict[str, Unreached] = {}  # by node

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                limit_per_host=_CONNECTIONS_A_NODE,
                keepalive_timeout=_KEEP_ALIVE_S,
                ssl=_ssl_context(self._security),
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=MIB,
            middlewares=(_once,),
        )

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def send(
        self,
        target: NodeSettings,
        method: str,
        path_and_query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        request_id: bytes,
        timeout_s: float,
    ) -> Relayed:
        """Send one call and return its complete answer. Raises NotSent or Lost."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
        async with self._open(target, method, path_and_query, headers, body, request_id, timeout) as answer:
            try:
                content = await answer.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise Lost(f"{target.id}: {error}") from error
            return Relayed(answer.status, _returned(answer), content)

    async def stream(
        self,
        target: NodeSettings,
        method: str,
        path_and_query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        request_id: bytes,
        silence_s: float,
    ) -> "Stream":
        """Send a GET or HEAD and pass its answer on as it arrives. Raises NotSent or Lost, before the head
        only.

        silence_s: the longest silence of the other node, before and between the bytes of its answer.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=silence_s)
        opened = self._open(target, method, path_and_query, headers, b"", request_id, timeout)
        return Stream(await opened.__aenter__())

    async def pass_stream(
        self,
        target: NodeSettings,
        path_and_query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: AsyncIterator[bytes],
        request_id: bytes,
        head_timeout_s: float,
    ) -> "Stream":
        """Send a POST whose body and answer are streamed. Raises NotSent or Lost.

        head_timeout_s: until the head of the answer arrives; `body` may wait for it.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
        opened = self._open(target, "POST", path_and_query, headers, body, request_id, timeout)
        try:
            async with asyncio.timeout(head_timeout_s):
                return Stream(await opened.__aenter__())
        except TimeoutError as error:
            raise Lost(f"{target.id}: no answer within {head_timeout_s:g} s") from error

    def _open(
        self,
        target: NodeSettings,
        method: str,
        path_and_query: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | AsyncIterator[bytes],
        request_id: bytes,
        timeout: aiohttp.ClientTimeout,
    ) -> "_Opening":
        assert self._session is not None
        passed = [
            (name.decode("latin-1"), value.decode("utf-8", "replace"))  # the client library writes UTF-8
            for name, value in headers
            if name in PASSED_ON
        ]
        passed.append((NO_FORWARD.decode(), "1"))
        passed.append(("X-Request-Id", request_id.decode("latin-1")))
        context = self._session.request(
            method,
            URL(target.url + quote(path_and_query, safe=_PRINTABLE), encoded=True),
            headers=passed,
            skip_auto_headers=("Content-Type", "Accept", "Accept-Encoding", "User-Agent"),
            data=body if body or method == "POST" else None,
            allow_redirects=False,
            timeout=timeout,
        )
        return _Opening(target, context, self._unreached.setdefault(target.id, Unreached("rest")))


async def _once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a PUT or a DELETE again whose connection was lost: the first may have been
    applied, and the second one be refused, or find that node stopped."""
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        if request.method in ("GET", "HEAD"):
            raise
        raise aiohttp.ClientConnectionError(str(error)) from error


class _Opening:
    """Send a call and wait for the head of its answer, with the two errors of this module."""

    def __init__(
        self,
        target: NodeSettings,
        context: "aiohttp.client._RequestContextManager",
        unreached: Unreached,
    ) -> None:
        self._target = target
        self._context = context
        self._unreached = unreached

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            answer = await self._context.__aenter__()
            self._unreached.reached()
            return answer
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL) as error:
            cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
            now_s = asyncio.get_running_loop().time()
            self._unreached.failed(self._target.id, self._target.url, cause, now_s)
            raise NotSent(f"{self._target.id}: {error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Lost(f"{self._target.id}: {error!r}") from error

    async def __aexit__(self, *problem: object) -> None:
        await self._context.__aexit__(*problem)  # type: ignore[arg-type]  # as the with statement gives them


def _returned(answer: aiohttp.ClientResponse) -> HeaderList:
    return [
        (lower, value)
        for name, value in answer.raw_headers
        if (lower := name.lower()) not in OF_THE_CONNECTION
    ]


def _ssl_context(security: SecuritySettings) -> ssl.SSLContext | bool:
    if security.tls_ca is None:
        return True
    return ssl.create_default_context(cafile=str(security.tls_ca))
